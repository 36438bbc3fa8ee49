"""The run as GitHub-flavored Markdown, for a step summary or a pull-request comment.

Laid out as rustc-perf's comment: the verdict first, what fails open, what warns or improved folded. Names from
outside appear only in code spans, so that they are neither markup nor mentions.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Sequence

from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import compared, figures, memory, words
from pytest_perfdl.report.layout import shorten
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.suggestion import first_suggestion
from pytest_perfdl.results.verdict import Cause, MetricVerdict

MARKER = "<!-- perfdl -->"
"""First line, by which a workflow finds the comment that it should update."""
LIMIT = 1024 * 1024
"""Bytes of step summary that GitHub accepts."""
COMMENT_LIMIT = 65_536
"""Characters of a comment that GitHub accepts; `summary.md` keeps below it in bytes."""
_CAUSES = 10
_NAME = 120
_SENTENCE = 1000
_PLAIN = frozenset(" .,:;()%+-=/_'\"?")


def summary(run: Run, limit: int = LIMIT) -> str:
    """The whole text in at most `limit` bytes.

    Detail is dropped from the end, where the least bad tests are: first they become a line each, then they are only
    counted. Empty where not even the verdict fits.
    """
    head = _head(run)
    listed = [result for result in words.worst_first(run.results) if _listed(result)]
    room = limit - _size(head)
    if room < 0:
        return ""
    full = [_section(result, run) if result.fails else _folded(result, run) for result in listed]
    lines = [_line(result) for result in listed]
    # What stands in the least room: all lines, and the note that some are left out.
    note = "\n{} left out here: see `run.json` or `index.html` of the report.\n"
    reserve = _size(note.format(plural(len(listed), "test")))
    shown = _fitting(lines, room, reserve)
    room -= sum(map(_size, lines[:shown])) + (reserve if shown < len(listed) else 0)
    whole = 0
    while whole < shown and (more := _size(full[whole]) - _size(lines[whole])) <= room:
        room -= more
        whole += 1
    text = head + "".join(full[:whole]) + ("\n" if whole < shown else "") + "".join(lines[whole:shown])
    said = note.format(plural(len(listed) - shown, "test"))
    return text + (said if shown < len(listed) and _size(text + said) <= limit else "")


def _fitting(blocks: Sequence[str], room: int, reserve: int) -> int:
    """How many blocks from the first have room, with the reserve for a note if some have not."""
    used = 0
    for number, block in enumerate(blocks):
        used += _size(block)
        if used + (reserve if number + 1 < len(blocks) else 0) > room:
            return number
    return len(blocks)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _line(result: Result) -> str:
    """One test in a line."""
    reason = f": {_prose(result.judgement.reason)}" if result.judgement.reason else ""
    return f"- {_word(result)} {code(result.id, 300)}{reason}\n"


def _head(run: Run) -> str:
    facts = [f"key {code(run.key.slug)}"]
    if run.commit:
        facts.append(f"commit {code(run.commit[:9])}")
    if other := compared.against(run.results):
        facts.append(f"against {code(other)}")
    if commits := words.baseline_commits(run.results):
        facts.append(f"baseline {', '.join(code(commit) for commit in commits[:3])}")
    if span := compared.measured(run.results):
        facts.append(span)
    lines = [MARKER, f"### {words.headline(run)}", "", words.counts_sentence(run), "", " · ".join(facts)]
    if table := _overall(run):
        lines += ["", table, ""]
    for name, base, new, number in words.context_changes(run)[:20]:
        of = f" ({plural(number, 'test')})" if number < len(run.results) else ""
        lines.append(f"- context differs: {code(name)} {code(base)} → {code(new)}{of}")
    lines += [f"- {_prose(note)}" for note in run.notes]
    return "\n".join(lines) + "\n"


def _overall(run: Run) -> str:
    """How step times changed over the tests that did, as a table; empty where one test says it all."""
    effects: dict[str, list[float]] = {"slower": [], "faster": [], "all that changed": []}
    for result in run.results:
        for metric in result.judgement.metrics:
            is_step = general(metric.name) == "step_time"
            if is_step and metric.verdict in ("regressed", "improved") and metric.effect is not None:
                effects["slower" if metric.verdict == "regressed" else "faster"].append(metric.effect)
                effects["all that changed"].append(metric.effect)
    if len(effects["all that changed"]) < 2:
        return ""
    return _table(
        ("step_time", "mean", "range", "count"),
        "lrrr",
        (
            (
                name,
                format_percent(sum(found) / len(found)),
                f"[{format_percent(min(found))}, {format_percent(max(found))}]",
                str(len(found)),
            )
            for name, found in effects.items()
            if found
        ),
    )


def _word(result: Result) -> str:
    return "updated" if result.updated else words.verdict_word(result)


def _listed(result: Result) -> bool:
    return words.notable(result)


def _section(result: Result, run: Run) -> str:
    return f"\n#### {words.verdict_word(result)}: {code(result.id)}\n\n{_body(result, run)}"


def _folded(result: Result, run: Run) -> str:
    title = html.escape(shorten(words.visible(result.id), 300))
    return f"\n<details><summary>{_word(result)}: <code>{title}</code></summary>\n\n{_body(result, run)}\n</details>\n"


def _body(result: Result, run: Run) -> str:
    judgement = result.judgement
    parts = [_prose(judgement.reason)] if judgement.reason else []
    metrics = [metric for metric in words.metrics_worst_first(judgement.metrics) if metric.verdict is not None]
    if metrics:
        parts.append(_metrics(metrics))
    parts += [_prose(words.work_sentence(change)) for change in judgement.work]
    times = [_causes(judgement.blame)] if judgement.blame else []
    peaks = [_memory(change) for change in judgement.memory]
    parts += [*peaks, *times] if memory.comes_first(judgement) else [*times, *peaks]
    if suggested := first_suggestion(result):
        how, gain = suggested
        parts.append(f"What would help: {code(how)}, {gain}.")
    findings = [f"- {finding.level}: {_prose(finding.message)}" for finding in words.told_findings(judgement)[:20]]
    if findings:
        parts.append("\n".join(findings))
    if notes := [*words.growth_notes(judgement), *words.budget_notes(result)]:
        parts.append("\n".join(f"- {_prose(note)}" for note in notes))
    todo = [f"{command}  # {purpose}" for purpose, command in words.commands(result, run.invocation)]
    if todo:
        fence = _fence("\n".join(todo), least=3)
        parts.append("\n".join([f"{fence}sh", *todo, fence]))
    return "\n\n".join(parts) + "\n"


def _metrics(metrics: Sequence[MetricVerdict]) -> str:
    return _table(
        ("metric", "baseline", "this run", "change", "95% interval", "limit", "times over", "verdict"),
        "lrrrrlrl",
        (
            (
                code(metric.name),
                _cell(figures.value(metric.base, metric)),
                _cell(figures.value(metric.new, metric)),
                figures.effect(metric),
                figures.interval(metric),
                _cell(metric.limit or ""),
                figures.times_over(metric).removesuffix(" over"),
                f"**{metric.verdict}**" if words.judged(metric) else metric.verdict or "",
            )
            for metric in metrics
        ),
    )


def _causes(blame: Sequence[Cause]) -> str:
    table = _table(
        ("what changed in the profiled step", "kind", "count", "time a step", "change", "share of the change"),
        "llrrrr",
        (
            (
                _cause_name(cause),
                cause.kind,
                figures.cause_count(cause),
                figures.cause_time(cause),
                figures.cause_effect(cause),
                figures.cause_share(cause),
            )
            for cause in blame[:_CAUSES]
        ),
    )
    return table + (f"\n\nand {len(blame) - _CAUSES} more" if len(blame) > _CAUSES else "")


def _memory(change: MemoryChange) -> str:
    """Whose the memory at the peak is that was not there before, and what accumulates."""
    parts = [_prose(memory.peak_sentence(change))]
    if change.causes:
        rows = (
            (
                code(memory.cause_name(cause), _SENTENCE),
                format_quantity(cause.bytes, "B", signed=True),
                code(cause.module),
                code(cause.row.line),
            )
            for cause in change.causes[:_CAUSES]
        )
        parts.append(_table(("what is alive at the peak", "bytes", "module", "line"), "lrll", rows))
    parts += [
        f"What would lower the peak: {code(memory.advice_sentence(each), _SENTENCE)}." for each in change.advice[:1]
    ]
    return "\n\n".join(parts)


def _cause_name(cause: Cause) -> str:
    """Its name, and on a line below it the module and the line."""
    name = code(f"{cause.call}: {cause.name}" if cause.call else cause.name)
    module = f"in {code(cause.module)}" if cause.module else ""
    line = f"at {code(cause.line)}" if cause.line else ""
    return "<br>".join(
        filter(None, (name, ", ".join(filter(None, (module, line, words.bound(cause.bound), words.doubt(cause))))))
    )


def _table(header: Sequence[str], sides: str, body: Iterable[Sequence[str]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in sides]
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in body)
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *escaped))


def code(text: str, most: int = _NAME) -> str:
    """A code span on one line.

    >>> code("a`b"), code("")
    ('``a`b``', '')
    """
    plain = shorten(words.visible(text), most)
    if not plain.strip():
        return ""
    fence = _fence(plain)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{space}{plain}{space}{fence}"


def _prose(text: str) -> str:
    """A sentence as it is if nothing in it can be markup or a mention, else as a code span."""
    plain = shorten(words.visible(text), _SENTENCE)
    return plain if all(char.isalnum() or char in _PLAIN for char in plain) else code(plain, _SENTENCE)


def _cell(text: str) -> str:
    """A figure as it is; one with a unit or limit of somebody's own as a code span."""
    figure = all(char.isalnum() or char in " .+-%<=>" for char in text)
    return text.replace("<", "&lt;").replace(">", "&gt;") if figure else code(text)


def _fence(text: str, least: int = 1) -> str:
    runs = {len(run) for run in "".join(char if char == "`" else " " for char in text).split()}
    return "`" * next(size for size in itertools.count(least) if size not in runs)
