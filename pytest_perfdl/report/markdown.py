"""The run as GitHub-flavored Markdown: the text of `summary.md`, a step summary or a pull-request comment.

Only text: `github.append_summary` writes the step summary, `ci.comment` makes and posts the comment.

Laid out as rustc-perf's comment: the verdict first, what fails open, what warns or improved folded. Names from
outside appear only in code spans, so that they are neither markup nor mentions.
"""

from __future__ import annotations

import html
import itertools
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import compared, figures, memory, ranks, words
from pytest_perfdl.report.figures import name_words
from pytest_perfdl.report.layout import Column, shorten
from pytest_perfdl.report.story import CauseGroup, Place, Story, frame_place, largest, story
from pytest_perfdl.results import memory_causes
from pytest_perfdl.results.run import Result, Run, first_suggestion
from pytest_perfdl.results.verdict import Cause, Judgement, MetricVerdict, SourceDiff

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
_LINK = re.compile(r"://|\bwww\.|\bgh-\d|\b[0-9a-f]{7,}\b", re.IGNORECASE)
"""Of what `_PLAIN` lets through, what GitHub makes links of: addresses, issues, and commits of any fork."""
_BLOCK = re.compile(r"\s*([-+=_]|\d+[.)])")
"""How a list, a rule, or the line below a heading begins."""


def summary(run: Run, limit: int = LIMIT) -> str:
    """The whole text in at most `limit` bytes.

    Detail is dropped from the end, where the least bad tests are: first they become a line each, then they are only
    counted. Empty where not even the verdict fits.
    """
    head = _head(run)
    listed = [result for result in words.worst_first(run.results) if words.notable(result)]
    room = limit - _size(head)
    if room < 0:
        return ""
    full = [_section(result, run) if result.fails else _fold(result, run) for result in listed]
    lines = [_line(result) for result in listed]
    # What stands in the least room: all lines, and the note that some are left out.
    note = "\n{} left out here because of the size limit of GitHub: see `run.json` or `index.html` of the report.\n"
    reserve = _size(note.format(plural(len(listed), "test")))
    shown = _count_fitting(lines, room, reserve)
    room -= sum(map(_size, lines[:shown])) + (reserve if shown < len(listed) else 0)
    whole = 0
    while whole < shown and (more := _size(full[whole]) - _size(lines[whole])) <= room:
        room -= more
        whole += 1
    text = head + "".join(full[:whole]) + ("\n" if whole < shown else "") + "".join(lines[whole:shown])
    said = note.format(plural(len(listed) - shown, "test"))
    return text + (said if shown < len(listed) and _size(text + said) <= limit else "")


def _count_fitting(blocks: Sequence[str], room: int, reserve: int) -> int:
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
    return f"- {words.word(result)} {code(result.id, 300)}{reason}\n"


def _head(run: Run) -> str:
    facts = [f"machine {code(run.key.slug)}"]
    if run.commit:
        facts.append(f"commit {code(run.commit[:9])}")
    if other := compared.against(run.results):
        facts.append(f"against {code(other)}")
    if commits := words.baseline_commits(run.results):
        facts.append(f"baseline {', '.join(code(commit) for commit in commits[:3])}")
    if span := compared.measured(run.results):
        facts.append(span)
    lines = [MARKER, f"### {words.headline(run)}", ""]
    if waivers := words.waiver_lines(run):
        lines += [*(f"- {_prose(line)}" for line in waivers), ""]
    lines += [words.counts_sentence(run), "", " · ".join(facts)]
    if table := _overall(run):
        lines += ["", table, ""]
    changes: dict[str, str] = {}
    for name, base, new, number in words.context_changes(run):
        of = f" ({plural(number, 'test')})" if number < len(run.results) else ""
        said = f"{code(base)} → {code(new)}{of}"
        changes[name] = f"{changes[name]}, {said}" if name in changes else f"{code(name)} {said}"
    lines += [f"- context differs: {said}" for said in words.context_list(changes)]
    lines += [f"- {_prose(note)}" for note in (*run.notes, *words.notes_on_others(run))]
    return "\n".join(lines) + "\n"


def _overall(run: Run) -> str:
    """How step times changed over the tests that did, as a table; empty where one test says it all."""
    effects: dict[str, list[float]] = {"slower": [], "faster": [], "all changed tests": []}
    for result in run.results:
        for metric in result.judgement.metrics:
            is_step = general(metric.name) == "step_time"
            if is_step and metric.verdict in ("regressed", "improved") and metric.effect is not None:
                effects["slower" if metric.verdict == "regressed" else "faster"].append(metric.effect)
                effects["all changed tests"].append(metric.effect)
    if len(effects["all changed tests"]) < 2:
        return ""
    columns = (
        Column("step_time", lambda row: row[0]),
        Column("mean", lambda row: format_percent(sum(row[1]) / len(row[1])), "figure"),
        Column("range", lambda row: f"[{format_percent(min(row[1]))}, {format_percent(max(row[1]))}]", "figure"),
        Column("count", lambda row: len(row[1]), "1"),
    )
    return _table(columns, (row for row in effects.items() if row[1]))


def _section(result: Result, run: Run) -> str:
    return f"\n#### {words.word(result)}: {code(result.id)}\n\n{_body(result, run)}"


def _fold(result: Result, run: Run) -> str:
    title = html.escape(shorten(words.visible(result.id), 300))
    head = f"<details><summary>{words.word(result)}: <code>{title}</code></summary>"
    return f"\n{head}\n\n{_body(result, run)}\n</details>\n"


def _body(result: Result, run: Run) -> str:
    judgement = result.judgement
    about = story(result, run)
    said, note = words.definition_sentence(judgement), words.baseline_note(result)
    verdict, definition = _verdict(about, judgement), [_diff(diff) for diff in judgement.definition]
    causes, peak = [_cause(group) for group in about.causes], [_peak(about)] if about.memory else []
    times = [_causes(about, result, run)] if judgement.blame else []
    peaks = [_memory(change, result, run) for change in judgement.memory]
    suggested = first_suggestion(result)
    parts = [
        f"**{_prose(said)}**" if said else "",
        *([*definition, verdict] if about.headline else [verdict, *definition]),
        *(f"**Waiver:** {_prose(note)}" for note in words.waiver_notes(judgement)),
        *(peak if about.memory_first else [*causes, *peak]),
        *(f"**Ranks:** {_prose('; '.join(said))}." for said in [ranks.sentences(judgement)] if said),
        *map(_diff, about.diffs),
        f"**To do:** {_prose(about.advice)}" if about.advice else "",
        *(_prose(words.work_sentence(change, judgement)) for change in judgement.work),
        *_verdicts(judgement),
        *([*peaks, *times] if about.memory_first else [*times, *peaks]),
        f"Advice: {code(suggested[0])}, {suggested[1]}." if suggested else "",
        "\n".join(f"- note: {_prose(note)}" for note in words.telling_notes(judgement)[:20]),
        f"Note of the baseline: {_prose(note)}" if note else "",
        "\n".join(f"- {_prose(note)}" for note in (*words.growth_notes(judgement), *words.budget_notes(result))),
        _code_block("sh", [f"{command}  # {purpose}" for purpose, command in about.commands]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _verdicts(judgement: Judgement) -> Iterator[str]:
    """The metrics that changed, what their verdicts mean, and what is not listed."""
    ordered = words.metrics_worst_first(judgement.metrics, judgement.verdict)
    metrics = [metric for metric in ordered if metric.verdict is not None]
    changed = [metric for metric in metrics if words.judged(metric)]
    told = [metric for metric in changed if words.matters(metric, judgement)] or changed or metrics
    if not told:
        return
    yield _metrics(told)
    yield from (f"{_prose(text)}." for text in [words.verdicts_explained(told)] if text)
    more = len(metrics) - len(changed or told)
    rest = [words.unimportant_sentence(judgement), f"{plural(more, 'other metric')} unchanged" if more else ""]
    yield " ".join(f"{_prose(text)}." for text in rest if text)


def _verdict(about: Story, judgement: Judgement) -> str:
    """By how much the headline's metric changed and how sure that is; else why the verdict is what it is."""
    metric = about.headline
    if metric is None or metric.effect is None or metric.base is None:
        return _prose(judgement.reason) if judgement.reason else ""
    interval = figures.interval(metric)
    basis = f", {plural(metric.rounds, 'paired round')}" if metric.rounds else ""
    text = f"{code(metric.name)} **{figures.effect(metric)}**"
    text += f" {interval} (95% interval{basis})" if interval else ""
    if metric.of_step:
        text += f": {_cell(figures.value(metric.base, metric))} → {_cell(figures.value(metric.new, metric))}"
    text += f", {_prose(figures.limit(metric))}" if metric.limit else ""
    names = [code(each.name) for each in about.also if each.of_step]
    # What the metrics do not say, such as the baseline's environment.
    other = judgement.reason if not any(each.reason in judgement.reason for each in (metric, *about.also)) else ""
    return text + (f". Also: {', '.join(names)}." if names else ".") + (f"\n\n{_prose(other)}" if other else "")


def _cause(group: CauseGroup) -> str:
    module = f" in {code(group.module)}" if group.module else ""
    place = f" at {_link(group.place)}" if group.place else ""
    return f"**Cause:** {_prose(group.sentence)}{module}{place}: {group.amount}."


def _peak(about: Story) -> str:
    place = f", allocated at {_link(about.memory_place)}" if about.memory_place else ""
    changed = f"; {_prose(about.memory_changed)}" if about.memory_changed else ""
    return f"**Memory:** {_prose(about.memory)}{place}{changed}."


def _link(place: Place) -> str:
    return f"[{code(place.text)}]({urllib.parse.quote(place.url, safe=':/#')})" if place.url else code(place.text)


def _diff(diff: SourceDiff) -> str:
    """The changed lines, as a fenced block that GitHub colors."""
    return _code_block("diff", [f"--- {words.source_title(diff)}", *words.code_lines(diff.text)])


def _code_block(kind: str, lines: Sequence[str]) -> str:
    """A block of code; empty without lines."""
    fence = _fence("\n".join(lines), least=3)
    return "\n".join([f"{fence}{kind}", *lines, fence]) if lines else ""


def _metrics(metrics: Sequence[MetricVerdict]) -> str:
    columns = (
        Column("metric", _metric_name),
        Column("baseline", lambda metric: _cell(figures.value(metric.base, metric)), "figure"),
        Column("current", lambda metric: _cell(figures.value(metric.new, metric)), "figure"),
        Column("change", figures.effect, "figure"),
        Column("95% interval", _interval, "figure"),
        Column("limit", lambda metric: _cell(figures.limit_cell(metric))),
        Column("verdict", lambda metric: f"**{metric.outcome}**" if words.judged(metric) else metric.verdict),
    )
    return _table(columns, metrics)


def _metric_name(metric: MetricVerdict) -> str:
    what = words.metric_words(metric)
    return code(metric.name) + (f" ({what})" if what else "")


def _interval(metric: MetricVerdict) -> str:
    return figures.interval(metric) or ("exact" if metric.kind == "counted" and words.judged(metric) else "")


def _causes(about: Story, result: Result, run: Run) -> str:
    """The rows of the profiled step that changed, folded: the causes above say what they come to."""
    blame = result.judgement.blame
    shown = largest(blame, _CAUSES)
    rows: list[tuple[str, ...]] = [
        (
            _cause_name(cause),
            _cause_place(cause, result, run),
            cause.kind,
            figures.cause_count(cause),
            figures.cause_time(cause),
            figures.cause_effect(cause),
            figures.cause_share(cause),
        )
        for cause in shown
    ]
    # A step that took as long as before, of which causes of a file may claim shares, has none.
    calls = {group.call: step for group in about.causes if group.share is not None and (step := group.step_delta_ns)}
    for call, step in calls.items():
        left = step - sum(cause.delta_ns for cause in shown if cause.call == call)
        name = f"{code(call)}: everything else" if call else "everything else"
        rows.append((name, "", "", "", format_quantity(left, "ns", signed=True), "", figures.share(left / step)))
    kinds = {
        **dict.fromkeys(("largest changes in the profiled step", "called in", "kind"), "text"),
        **dict.fromkeys(("count", "time per step", "change", "share of the step's change"), "figure"),
    }
    columns = [Column(title, itemgetter(place), kind) for place, (title, kind) in enumerate(kinds.items())]
    table = _table(columns, rows)
    more = f"\n\nand {len(blame) - _CAUSES} more" if len(blame) > _CAUSES else ""
    title = plural(min(len(blame), _CAUSES), "operator or kernel", "operators and kernels")
    return f"<details><summary>{title} in the profiled step</summary>\n\n{table}{more}\n\n</details>"


def _memory(change: MemoryChange, result: Result, run: Run) -> str:
    """Whose the memory at the peak is that was not there before, and what accumulates."""
    parts = [_prose(memory.peak_sentence(change))]
    if change.causes:
        columns = (
            Column("what is alive at the peak", lambda cause: code(memory_causes.cause_name(cause), _SENTENCE)),
            Column("bytes", lambda cause: format_quantity(cause.bytes, "B", signed=True), "figure"),
            Column("module", lambda cause: code(cause.module)),
            Column("allocated at", lambda cause: code(frame_place(cause.row.line, result, run))),
        )
        parts.append(_table(columns, change.causes[:_CAUSES]))
    lead = memory.advice_lead(change, result.judgement)
    parts += [
        f"{lead}: {code(memory.advice_sentence(each, change, result.judgement), _SENTENCE)}."
        for each in change.advice[:1]
    ]
    return "\n\n".join(parts)


def _cause_name(cause: Cause) -> str:
    """Its name, and on a line below it what bounds it."""
    name = name_words(cause.name)
    beside = ", ".join(filter(None, (words.bound(cause.bound), words.doubt(cause))))
    return "<br>".join(filter(None, (code(f"{cause.call}: {name}" if cause.call else name), beside)))


def _cause_place(cause: Cause, result: Result, run: Run) -> str:
    """The module and the function of the user's code that it is called in."""
    places = (cause.module, frame_place(cause.line, result, run))
    return "<br>".join(code(place) for place in places if place)


def _table(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    lines = [[column.title for column in columns], ["---" if column.is_text else "---:" for column in columns]]
    lines += [[column.text(column.value(row)).replace("|", "\\|") for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    """A sentence as it is if nothing in it can be markup, a mention or a link, else as a code span."""
    plain = shorten(words.visible(text), _SENTENCE)
    # Two underscores are bold.
    is_markup = "__" in plain or _LINK.search(plain) or _BLOCK.match(plain)
    is_plain = not is_markup and all(char.isalnum() or char in _PLAIN for char in plain)
    return plain if is_plain else code(plain, _SENTENCE)


def _cell(text: str) -> str:
    """A figure as it is; one with a unit or limit of somebody's own as a code span."""
    figure = all(char.isalnum() or char in " .+-%<=>/" for char in text)
    return text.replace("<", "&lt;").replace(">", "&gt;") if figure else code(text)


def _fence(text: str, least: int = 1) -> str:
    runs = {len(run) for run in "".join(char if char == "`" else " " for char in text).split()}
    return "`" * next(size for size in itertools.count(least) if size not in runs)
