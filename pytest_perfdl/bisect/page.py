"""An answer as text."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_perfdl.bisect.answer import Answer, Effect
from pytest_perfdl.bisect.environment_answer import EnvironmentAnswer
from pytest_perfdl.bisect.history import Commit
from pytest_perfdl.model.metrics import METRICS, general
from pytest_perfdl.model.units import duration, format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.words import diff_lines, source_title
from pytest_perfdl.results.verdict import SourceDiff

MOST_CAUSES = 3
MOST_CANDIDATES = 20
"""Candidates that are named; `--json` has all."""


def page(answer: Answer, commands: Sequence[str], width: int) -> str:
    """The commit or the range, how large the change is, where it comes from, and what was left out."""
    lines = [*_headline(answer, width), ""]
    if answer.effect is not None:
        lines += layout.paragraph(_change(answer), 2, width, more=2)
    if answer.culprit is not None and answer.whole is not None and answer.parent != answer.history.good:
        between = f"{answer.history.good.name} -> {answer.history.bad.name}"
        lines += layout.paragraph(f"{between}  {_effect(answer.whole)}", 2, width, more=2)
    if answer.time is not None:
        lines += layout.paragraph(f"{answer.time[0]}  {_effect(answer.time[1])}", 2, width, more=2)
    if answer.comparison is not None:
        for cause in answer.comparison.causes[:MOST_CAUSES]:
            lines += layout.paragraph(f"cause: {cause}", 2, width, more=2)
        for each in answer.comparison.source_diffs:
            diff = SourceDiff(**each)
            lines += layout.paragraph(source_title(diff), 2, width)
            lines += [f"    {line}" for line in diff_lines(diff)]
    for note in answer.notes:
        lines += layout.paragraph(f"note: {visible(note)}", 2, width, more=2)
    lines += _skipped(answer, width)
    counted = [plural(len(answer.measured), "commit") + f" of {answer.history.last + 1} measured"]
    if answer.probability is not None:
        counted.append(f"probability {_probability(answer.probability)}")
    lines += ["", *layout.paragraph(f"{', '.join(counted)}, in {duration(answer.seconds)}", 2, width)]
    labels = ["measure again" if answer.culprit is not None else "", *["search on"] * len(commands)]
    lines += [f"  {label}  {command}" for label, command in zip(labels, commands, strict=False)]
    return "\n".join(lines)


def page_of_environments(answer: EnvironmentAnswer, width: int) -> str:
    """The distributions, how large the change is, where it comes from, and what was left out."""
    lines = layout.paragraph(f"{answer.status}: {visible(answer.reason)}", 0, width)
    for name in answer.culprits:
        old, new = answer.differing[name]
        lines += layout.paragraph(f"{visible(name)}  {visible(old)} -> {visible(new)}", 2, width, more=2)
    lines.append("")
    if answer.effect is not None:
        lines += layout.paragraph(f"{answer.metric}  {_effect(answer.effect)}", 2, width, more=2)
    if answer.culprits and answer.whole is not None and answer.whole != answer.effect:
        lines += layout.paragraph(f"old -> new environment  {_effect(answer.whole)}", 2, width, more=2)
    if answer.proof is not None:
        for cause in answer.proof.causes[:MOST_CAUSES]:
            lines += layout.paragraph(f"cause: {cause}", 2, width, more=2)
    for note in answer.notes:
        lines += layout.paragraph(f"note: {visible(note)}", 2, width, more=2)
    for names, why in answer.skipped:
        lines += layout.paragraph(
            f"skipped: the new {visible(names.replace(',', ', '))}: {visible(why)}", 2, width, more=2
        )
    differing = plural(len(answer.differing), "different distribution")
    built = f"{plural(answer.built, 'environment')} built, {differing}"
    lines += ["", *layout.paragraph(f"{built}, in {duration(answer.seconds)}", 2, width)]
    return "\n".join(lines)


def _headline(answer: Answer, width: int) -> list[str]:
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


def _change(answer: Answer) -> str:
    """The metric's change: of the commit against its parent, or of the ends."""
    effect = answer.effect
    assert effect is not None
    if answer.values is None:
        return f"{answer.metric}  {_effect(effect)}"
    unit = METRICS[general(answer.metric)].unit
    base, new = (format_quantity(value, unit) for value in answer.values)
    return f"{answer.metric}  {base} -> {new}  {_effect(effect)}"


def _effect(effect: Effect) -> str:
    text = format_percent(effect.ratio)
    if not effect.rounds:
        return text
    low, high = (format_percent(end) for end in effect.interval)
    return f"{text} [{low}, {high}] (95% interval, {plural(effect.rounds, 'paired round')})"


def _skipped(answer: Answer, width: int) -> list[str]:
    """The commits that could not be measured, with why."""
    lines = []
    for commit, why in answer.skipped:
        lines += layout.paragraph(f"skipped: {_commit(commit)}: {visible(why)}", 2, width, more=2)
    return lines


def _probability(probability: float) -> str:
    """Never rounded up to certainty.

    >>> _probability(0.99999), _probability(0.9993), _probability(0.62)
    ('over 99.9%', 'over 99.9%', '62.0%')
    """
    return "over 99.9%" if probability >= 0.999 else format_percent(probability, signed=False)
