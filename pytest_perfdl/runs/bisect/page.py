"""An answer as text."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_perfdl.model.metrics import METRICS, general
from pytest_perfdl.model.units import duration, format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.words import diff_lines, source_title
from pytest_perfdl.runs.bisect.answers import Answer, CommitAnswer, Effect, EnvironmentAnswer
from pytest_perfdl.runs.bisect.history import Commit

MOST_CAUSES = 3
MOST_CANDIDATES = 20
"""Candidates that are named; `--json` has all."""


def page(answer: CommitAnswer, commands: Sequence[str], width: int) -> str:
    """The commit or the range, how large the change is, where it comes from, and what was left out."""
    lines = [*_commits(answer, width), ""]
    further = []
    if answer.culprit is not None and answer.whole is not None and answer.parent != answer.history.good:
        further.append(f"{answer.history.good.name} -> {answer.history.bad.name}  {_effect(answer.whole)}")
    if answer.time is not None:
        further.append(f"{answer.time[0]}  {_effect(answer.time[1])}")
    lines += _changes(answer, _values(answer), further, width)
    for diff in () if answer.comparison is None else answer.comparison.source_diffs:
        lines += layout.paragraph(source_title(diff), 2, width)
        lines += [f"    {line}" for line in diff_lines(diff)]
    lines += _remarks(answer, [(_commit(commit), why) for commit, why in answer.skipped], width)
    counted = [plural(len(answer.measured), "commit") + f" of {answer.history.last + 1} measured"]
    if answer.probability is not None:
        counted.append(f"probability {_probability(answer.probability)}")
    lines += _cost(answer, counted, width)
    labels = ["measure again" if answer.culprit is not None else "", *["search on"] * len(commands)]
    lines += [f"  {label}  {command}" for label, command in zip(labels, commands, strict=False)]
    return "\n".join(lines)


def page_of_environments(answer: EnvironmentAnswer, width: int) -> str:
    """The distributions, how large the change is, where it comes from, and what was left out."""
    lines = layout.paragraph(f"{answer.status}: {visible(answer.reason)}", 0, width)
    for name in answer.culprits:
        old, new = answer.differing[name]
        lines += layout.paragraph(f"{visible(name)}  {visible(old)} -> {visible(new)}", 2, width, more=2)
    further = []
    if answer.culprits and answer.whole is not None and answer.whole != answer.effect:
        further.append(f"old -> new environment  {_effect(answer.whole)}")
    lines += ["", *_changes(answer, "", further, width)]
    skipped = [(f"the new {visible(names.replace(',', ', '))}", why) for names, why in answer.skipped]
    lines += _remarks(answer, skipped, width)
    differing = plural(len(answer.differing), "different distribution")
    return "\n".join([*lines, *_cost(answer, [f"{plural(answer.built, 'environment')} built", differing], width)])


def _changes(answer: Answer, values: str, further: Sequence[str], width: int) -> list[str]:
    """How large the change is, and its causes."""
    texts = []
    if answer.effect is not None:
        texts.append(f"{answer.metric}  {values}{_effect(answer.effect)}")
    causes = () if answer.comparison is None else answer.comparison.causes[:MOST_CAUSES]
    texts += [*further, *(f"cause: {cause}" for cause in causes)]
    return [line for text in texts for line in layout.paragraph(text, 2, width, more=2)]


def _remarks(answer: Answer, skipped: Sequence[tuple[str, str]], width: int) -> list[str]:
    """The notes, then what could not be measured, with why."""
    texts = [f"note: {visible(note)}" for note in answer.notes]
    texts += [f"skipped: {what}: {visible(why)}" for what, why in skipped]
    return [line for text in texts for line in layout.paragraph(text, 2, width, more=2)]


def _cost(answer: Answer, counted: Sequence[str], width: int) -> list[str]:
    return ["", *layout.paragraph(f"{', '.join(counted)}, in {duration(answer.seconds)}", 2, width)]


def _commits(answer: CommitAnswer, width: int) -> list[str]:
    if answer.culprit is not None:
        lines = layout.paragraph(f"found: {_commit(answer.culprit)}", 0, width)
        if answer.culprit.date:
            lines.append(f"  author date {answer.culprit.date}")
        return lines
    lines = layout.paragraph(f"{answer.status}: {visible(answer.reason)}", 0, width)
    for commit in answer.candidates[:MOST_CANDIDATES]:
        lines += layout.paragraph(_commit(commit), 2, width, more=2)
    if len(answer.candidates) > MOST_CANDIDATES:
        lines.append(f"  and {plural(len(answer.candidates) - MOST_CANDIDATES, 'more commit')} (--json)")
    return lines


def _commit(commit: Commit) -> str:
    return f"{commit.name} {visible(commit.subject)}"


def _values(answer: CommitAnswer) -> str:
    """Parent's and commit's value of a counted metric."""
    if answer.values is None:
        return ""
    unit = METRICS[general(answer.metric)].unit
    base, new = (format_quantity(value, unit) for value in answer.values)
    return f"{base} -> {new}  "


def _effect(effect: Effect) -> str:
    text = format_percent(effect.ratio)
    if not effect.rounds:
        return text
    low, high = (format_percent(end) for end in effect.interval)
    return f"{text} [{low}, {high}] (95% interval, {plural(effect.rounds, 'paired round')})"


def _probability(probability: float) -> str:
    """Never rounded up to certainty.

    >>> _probability(0.99999), _probability(0.9993), _probability(0.62)
    ('over 99.9%', 'over 99.9%', '62.0%')
    """
    return "over 99.9%" if probability >= 0.999 else format_percent(probability, signed=False)
