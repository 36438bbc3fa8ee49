"""The terminal: the run's summary, and the text of a test that fails.

`summary_lines` gives lines with their markup, which the plugin writes with pytest's own reporter;
`failure_text` is complete by itself, since it may be all that a CI log or a JUnit viewer shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.metrics import general, is_utilization
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.model.visible import harmless
from pytest_perfdl.report import compared, figures, layout, memory, words
from pytest_perfdl.report.traces import kept, pattern
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.suggestion import first_suggestion
from pytest_perfdl.results.verdict import VERDICTS, Cause, MetricVerdict, SourceDiff

CAUSES_SHOWN = 5
SOURCE_LINES_SHOWN = 12
"""Of the blamed functions' diffs together, unless more is asked for."""
UNPAIRED = "unpaired"
"""Code of the finding that says why a suspect was not confirmed in pairs: told always, since it can be mended."""
FAILURE_WIDTH = 100
_WORD = max(map(len, VERDICTS))
_WARNS = {"yellow": True}
_BRIEF = frozenset({"improved", "missing", "unmeasured", "new"})
"""Verdicts that one line can say."""


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """One line and its markup, ready for `TerminalReporter.write_line(line.text, **line.markup)`."""

    text: str
    markup: Mapping[str, bool] = field(default_factory=dict)


def summary_lines(
    run: Run, verbosity: int, width: int, *, encoding: str = "utf-8", report: bool = True
) -> list[TerminalLine]:
    """The "perf summary" section, verdicts first and worst first, counts and commands last.

    `verbosity` is pytest's: below 0 gives the counts and a sentence for each test that fails, 0 what fails, warns or
    improved, 1 also unchanged tests, 2 also every operator and metric. `encoding` is the terminal's: what it cannot
    carry is spelled in ASCII. `report` says whether the report files were written and may be named. Example:

        key cpu-x86-zen4-8c   baseline 3f2c1ab   5 repeats against 10
        REGRESSED   tests/test_gpt.py::test_step
            step_time  41.20 -> 45.08 ms  +9.4%  [+8.9%, +9.9%]  limit 3%  3.1x over
              what changed in the profiled step
              aten::mm    24 a step       8.100 -> 11.02 ms  +36.0%  77% of the change
            + aten::item  0 -> 1 a step            61.00 µs  new     2% of the change
        [low, high] is the 95% interval of the change
        40 compared: 1 regressed, 39 unchanged. 0 missing, 0 incomparable, 0 unmeasured.
        report  perf-report/index.html
        accept  pytest --perf-update tests/test_gpt.py::test_step
    """
    counts = TerminalLine(words.counts_sentence(run), _counts_markup(run))
    if verbosity < 0:
        failing = [result for result in words.worst_first(run.results) if result.fails]
        lines = [line for result in failing for line in _named(result, width)]
        lines.append(counts)
        lines += [TerminalLine(text) for text in _notes(run, width)]
        return _encodable(lines, encoding)
    shown = [result for result in words.worst_first(run.results) if verbosity > 0 or words.notable(result)]
    lines = [TerminalLine(text) for text in _header(run, width)]
    for result in shown:
        lines += _block(result, run, verbosity, width, traces=report)
    lines += [TerminalLine(text) for text in _legend(shown, verbosity, width)]
    lines.append(counts)
    if report and run.results:
        lines.append(TerminalLine(f"report  {words.shown_path(run, run.report_dir / 'index.html')}"))
    lines += [TerminalLine(f"{label}  {command}") for label, command in words.run_commands(run)]
    lines += [TerminalLine(text) for text in layout.paragraph(words.recording_sentence(run), 0, width)]
    return _encodable(lines, encoding)


def failure_text(result: Result, run: Run) -> str:
    """What `PerfRegression` says: what is wrong, how sure that is, what is blamed, and what to do about it."""
    judgement = result.judgement
    lines = layout.paragraph(f"{words.verdict_word(result)}: {_reason(result)}", 0, FAILURE_WIDTH)
    lines += [line.text for line in _details(result, run, 0, FAILURE_WIDTH, traces=True)]
    lines += _legend([result], 0, FAILURE_WIDTH)
    if not run.judged:
        return "\n".join(lines)
    facts = []
    if judgement.context_changes:
        facts.append(("context differs", ", ".join(_shift(*change) for change in judgement.context_changes)))
    if result.against:
        commit = result.base.occasions[-1].commit if result.base else None
        facts.append(("against", words.visible(result.against) + (f" at {commit[:9]}" if commit else "")))
    elif result.base is not None:
        commits = words.baseline_commits([result])
        at = f" at {', '.join(commits)}" if commits else ""
        facts.append(("baseline", f"{words.visible(result.base_path)} ({compared.measured([result])}{at})"))
    elif result.base_path:
        facts.append(("baseline", f"{words.visible(result.base_path)} does not exist for key {run.key.slug}"))
    facts.append(("report", words.shown_path(run, run.report_dir / "index.html")))
    facts += words.commands(result, run.invocation)
    size = max(len(label) for label, _ in facts)
    lines += [f"{label:{size}}  {text}" for label, text in facts]
    return "\n".join(lines)


def _header(run: Run, width: int) -> list[str]:
    parts = [f"key {words.visible(run.key.slug)}"] if run.key.slug else []
    if other := compared.against(run.results):
        parts.append(f"against {words.visible(other)}")
    commits = words.baseline_commits(run.results)
    if commits:
        more = f" and {len(commits) - 1} more" if len(commits) > 1 else ""
        parts.append(f"baseline {commits[0]}{more}")
    if span := compared.measured(run.results):
        parts.append(span)
    line = "   ".join(parts)
    lines = [line] if line and layout.cells_wide(line) <= width else parts
    changes = [
        _shift(name, base, new) + (f" ({plural(number, 'test')})" if number < len(run.results) else "")
        for name, base, new, number in words.context_changes(run)
    ]
    if changes:
        lines += layout.paragraph(f"context differs: {', '.join(changes)}", 0, width)
    return lines + _notes(run, width)


def _notes(run: Run, width: int) -> list[str]:
    return [line for note in run.notes for line in layout.paragraph(words.visible(note), 0, width)]


def _block(result: Result, run: Run, verbosity: int, width: int, *, traces: bool) -> list[TerminalLine]:
    verdict = result.judgement.verdict
    if verdict in _BRIEF and verbosity < 2:
        notes = [*words.growth_notes(result.judgement), *words.recording_notes(result)]
        warnings = [TerminalLine(line, _WARNS) for note in notes for line in layout.paragraph(note, 4, width)]
        return [*_in_brief(result, _brief(result), width), *warnings]
    lines = [TerminalLine(_title(result), _markup(result))]
    if verdict != "unchanged" or result.judgement.counts_changed or verbosity > 0:
        lines += [TerminalLine(text) for text in layout.paragraph(_reason(result), 4, width)]
    return lines + _details(result, run, verbosity, width, traces=traces)


def _named(result: Result, width: int) -> list[TerminalLine]:
    """A test with its main sentence."""
    return _in_brief(result, _reason(result), width)


def _in_brief(result: Result, said: str, width: int) -> list[TerminalLine]:
    """A test and a sentence about it: on one line where there is room."""
    title = _title(result)
    whole = f"{title}  {said}".rstrip()
    if layout.cells_wide(whole) <= width:
        return [TerminalLine(whole, _markup(result))]
    return [TerminalLine(title, _markup(result)), *(TerminalLine(text) for text in layout.paragraph(said, 4, width))]


def _title(result: Result) -> str:
    word = "UPDATED" if result.updated else words.verdict_word(result).upper()
    return f"{word:{_WORD}}  {words.visible(result.id)}"


def _details(result: Result, run: Run, verbosity: int, width: int, *, traces: bool) -> list[TerminalLine]:
    judgement = result.judgement
    metrics = [metric for metric in judgement.metrics if _metric_shown(metric, verbosity, run)]
    told = any(metric.of_step and metric.verdict == judgement.verdict for metric in metrics)
    kernels = [metric for metric in words.metrics_worst_first(metrics) if not metric.of_step]
    # What the step lost is explained by its kernels below; on its own a slower kernel is the news.
    left_out = [] if verbosity > 1 else kernels if told else kernels[CAUSES_SHOWN:]
    metrics = [metric for metric in metrics if metric not in left_out]
    lines = _metric_lines(metrics, verbosity, width)
    if left_out and not told:
        lines.append(TerminalLine(f"    and {plural(len(left_out), 'more kernel')} past their limit (-vv)"))
    for metric in metrics:
        if words.judged(metric) and (reason := words.own_reason(metric, judgement)):
            text = f"{words.visible(metric.name)}: {words.visible(reason)}"
            lines += [TerminalLine(line) for line in layout.paragraph(text, 4, width)]
    if any(is_utilization(metric.name) for metric in metrics if words.judged(metric)) or verbosity > 1:
        for note in words.coverage_notes(judgement):
            lines += [TerminalLine(line) for line in layout.paragraph(note, 4, width)]
    if judgement.rounds and verbosity > 0:
        lines += [TerminalLine(text) for text in layout.paragraph(words.visible(judgement.rounds), 4, width)]
    for metric in judgement.environment:
        if words.judged(metric) or verbosity > 0:
            text = f"environment, the baseline's own code: {words.visible(metric.name)} {words.visible(metric.reason)}"
            lines += [TerminalLine(line) for line in layout.paragraph(text, 4, width)]
    if judgement.verdict != "unchanged" or judgement.counts_changed or verbosity > 1:
        for change in judgement.work:
            lines += [TerminalLine(text) for text in layout.paragraph(words.work_sentence(change), 4, width)]
        peaks = [TerminalLine(text) for text in _memory_lines(judgement.memory, verbosity, width)]
        times = [TerminalLine(text) for text in _cause_lines(judgement.blame, verbosity, width)]
        source = [TerminalLine(text) for text in _source_lines(judgement.source_diffs, verbosity, width)]
        lines += [*peaks, *source, *times] if memory.comes_first(judgement) else [*times, *peaks, *source]
        lines += [TerminalLine(text) for text in _suggestion_lines(result, width)]
    recording = words.recording_notes(result)
    for finding in words.told_findings(judgement):
        if (finding.code == UNPAIRED and verbosity == 0) or finding.message in recording:
            lines += [TerminalLine(line) for line in layout.paragraph(words.visible(finding.message), 4, width)]
        elif finding.level == "invalid" or verbosity > 0:
            text = f"{finding.level} ({words.visible(finding.code)}): {words.visible(finding.message)}"
            lines += [TerminalLine(line) for line in layout.paragraph(text, 4, width)]
    for note in words.growth_notes(judgement):
        lines += [TerminalLine(line, _WARNS) for line in layout.paragraph(note, 4, width)]
    for note in words.budget_notes(result):
        lines += [TerminalLine(line) for line in layout.paragraph(note, 4, width)]
    if traces and words.fails_or_warns(result):
        folder = words.shown_path(run, run.report_dir / "traces")
        lines += [
            TerminalLine(f"    traces  {folder}/{pattern(result, exemplars)}")
            for exemplars in kept(run, result)
            if exemplars.base or exemplars.new
        ]
    return lines


def _metric_shown(metric: MetricVerdict, verbosity: int, run: Run) -> bool:
    if verbosity > 1 or not run.judged:
        return True
    if words.judged(metric) or general(metric.name) == "step_time":
        return True
    return verbosity > 0 and metric.verdict is not None


def _metric_lines(metrics: Sequence[MetricVerdict], verbosity: int, width: int) -> list[TerminalLine]:
    if not metrics:
        return []
    ordered = words.metrics_worst_first(metrics)
    table = [
        (
            words.visible(metric.name),
            words.visible(figures.change(metric)),
            figures.effect(metric),
            figures.interval(metric),
            words.visible(figures.limit(metric)),
            figures.times_over(metric) or (metric.verdict or "" if words.judged(metric) else ""),
            f"excludes {figures.excluded(metric)}" if verbosity > 0 and figures.excluded(metric) else "",
        )
        for metric in ordered
    ]
    return [TerminalLine(text) for text in layout.rows(table, "lrrrlll", 4, width)]


def _cause_lines(blame: Sequence[Cause], verbosity: int, width: int) -> list[str]:
    if not blame:
        return []
    shown = blame if verbosity > 1 else blame[:CAUSES_SHOWN]
    table = [
        (
            _cause_name(cause),
            figures.cause_count(cause),
            figures.cause_time(cause),
            figures.cause_effect(cause),
            f"{figures.cause_share(cause)} of the change" if figures.cause_share(cause) else "",
        )
        for cause in shown
    ]
    # Each row's place stands under it, so the rows are laid out together and then taken apart again.
    rows = layout.rows(table, "llrrr", 6, width)
    lines = ["      what changed in the profiled step"]
    if len(rows) == len(shown):
        for row, cause in zip(rows, shown, strict=True):
            lines += [row, *layout.paragraph(words.cause_place(cause), 10, width)]
    else:
        lines += rows
    if len(shown) < len(blame):
        lines.append(f"        and {len(blame) - len(shown)} more (-vv)")
    return lines


def _memory_lines(changes: Sequence[MemoryChange], verbosity: int, width: int) -> list[str]:
    """Whose the memory at the peak is that was not there before, and what accumulates."""
    lines: list[str] = []
    for change in changes:
        if change.causes or verbosity > 0:
            lines += layout.paragraph(memory.peak_sentence(change), 6, width)
        shown = change.causes if verbosity > 1 else change.causes[: memory.CAUSES_SHOWN]
        for cause in shown:
            size = format_quantity(cause.bytes, "B", signed=True)
            lines += layout.paragraph(f"{size}  {memory.cause_name(cause)}", 6, width)
            lines += layout.paragraph(memory.cause_place(cause, change), 10, width)
        if len(shown) < len(change.causes):
            rest = sum(cause.bytes for cause in change.causes[len(shown) :])
            lines.append(
                f"        and {len(change.causes) - len(shown)} more, "
                f"{format_quantity(rest, 'B', signed=True)} together (-vv)"
            )
        for advice in change.advice[:1] if verbosity < 1 else change.advice:
            lines += layout.paragraph(f"what would lower the peak: {memory.advice_sentence(advice)}", 6, width)
    return lines


def _source_lines(diffs: Sequence[SourceDiff], verbosity: int, width: int) -> list[str]:
    """What changed in the blamed functions; their lines are code, so they are shortened rather than wrapped."""
    code = [words.code_lines(each.text) for each in diffs]
    total = sum(map(len, code))
    room = total if verbosity > 0 else min(total, SOURCE_LINES_SHOWN)
    lines: list[str] = []
    left = total - room
    for each, text in zip(diffs, code, strict=True):
        if room:
            lines += layout.paragraph(f"what changed in {words.source_title(each)}", 6, width)
            lines += [f"        {layout.shorten(line, max(layout.LEAST_NAME, width - 8))}" for line in text[:room]]
            room = max(0, room - len(text))
    return [*lines, f"        and {plural(left, 'more line')} (-v)"] if left else lines


def _suggestion_lines(result: Result, width: int) -> list[str]:
    found = first_suggestion(result)
    if found is None:
        return []
    how, gain = found
    return layout.paragraph(f"what would help: {words.visible(how)}, {gain}", 6, width)


def _cause_name(cause: Cause) -> str:
    call = f"{words.visible(cause.call)}: " if cause.call else ""
    return f"{figures.cause_sign(cause)} {call}{words.visible(cause.name)}"


def _legend(shown: Sequence[Result], verbosity: int, width: int) -> list[str]:
    metrics = [metric for result in shown for metric in result.judgement.metrics]
    text = []
    if any(figures.interval(metric) for metric in metrics):
        text.append(figures.INTERVAL_LEGEND)
    if verbosity > 0 and any(figures.excluded(metric) for metric in metrics):
        text.append(figures.EXCLUDED_LEGEND)
    return layout.paragraph("; ".join(text), 0, width) if text else []


def _reason(result: Result) -> str:
    return words.visible(result.judgement.reason) or f"{result.judgement.verdict} without a stated reason"


def _brief(result: Result) -> str:
    if result.judgement.verdict != "improved":
        return words.visible(result.judgement.reason)
    better = [metric for metric in result.judgement.metrics if metric.verdict == "improved"]
    gains = ", ".join(
        " ".join(filter(None, (words.visible(metric.name), figures.effect(metric), figures.interval(metric))))
        for metric in better
    )
    return gains if result.updated else f"{gains}  (update the baseline)".lstrip()


def _markup(result: Result) -> dict[str, bool]:
    if result.fails:
        return {"red": True, "bold": True}
    if words.fails_or_warns(result):
        return {"yellow": True, "bold": True}
    return {"green": True} if result.judgement.verdict == "improved" or result.updated else {}


def _counts_markup(run: Run) -> dict[str, bool]:
    if any(result.fails for result in run.results):
        return {"red": True, "bold": True}
    if any(words.fails_or_warns(result) for result in run.results):
        return {"yellow": True, "bold": True}
    told = any(compared.compared(result) or result.updated for result in run.results)
    return {"green": True, "bold": True} if told else {"yellow": True, "bold": True}


def _shift(name: str, base: str, new: str) -> str:
    return f"{words.visible(name)} {words.visible(base)} -> {words.visible(new)}"


def _encodable(lines: list[TerminalLine], encoding: str) -> list[TerminalLine]:
    return [TerminalLine(harmless(_carried(line.text, encoding)), line.markup) for line in lines]


def _carried(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.replace("µ", "u").replace("−", "-")
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text
