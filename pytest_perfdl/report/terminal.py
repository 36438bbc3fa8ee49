"""The terminal: the run's summary, and the text of a test that fails.

`summary_lines` gives lines with their markup, which the plugin writes with pytest's own reporter: one to three lines
for a test, since pytest has shown `failure_text` of what fails already. That text is complete without the summary: it
may be all that a CI log or a JUnit viewer shows. Its content comes from `story` and `words`: here it is laid out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_perfdl.judge.kernels import is_expected
from pytest_perfdl.model.metrics import GROWTH, general, is_utilization
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import harmless
from pytest_perfdl.report import compared, figures, layout, memory, ranks, words
from pytest_perfdl.report.figures import name_words
from pytest_perfdl.report.story import Story, cause_line, frame_place, largest, story
from pytest_perfdl.results import memory_causes
from pytest_perfdl.results.run import Result, Run, first_suggestion
from pytest_perfdl.results.trace_files import kept, pattern
from pytest_perfdl.results.verdict import VERDICTS, Cause, Judgement, MetricVerdict, SourceDiff, Verdict

CAUSES_SHOWN = 5
"""Rows of the profiled step below its causes."""
SOURCE_LINES_SHOWN = 20
"""Of the changed functions' diffs together, unless more is asked for."""
DEFINITION_LINES = 9
"""Of the diff of a test's definition, where little is shown."""
CODE_PIECES, CODE_INDENT = 3, 8
"""Lines of the terminal that one line of code takes at most, and how far all but the first are indented."""
TABLE_ROWS = 30
"""Most tests that pass which the summary lists; `-v` lists all."""
_LEAST_PATH = 12
"""Columns that a path must have to be shown cut behind a function's name."""
FAILURE_WIDTH = 80
"""CI logs and JUnit viewers wrap longer lines."""
_WORD = max(map(len, VERDICTS))
_WARNS = {"yellow": True}


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """One line and its markup, ready for `TerminalReporter.write_line(line.text, **line.markup)`."""

    text: str
    markup: Mapping[str, bool] = field(default_factory=dict)


def summary_lines(
    run: Run, verbosity: int, width: int, *, encoding: str = "utf-8", report: bool = True
) -> list[TerminalLine]:
    """The "perf summary" section: what fails or warns, worst first, a table of what passes, counts, commands.

    `verbosity` is pytest's: below 0 gives the counts and a sentence for each test that fails, 0 one to three lines for
    each test that fails, warns or improved and a line for each other one, 1 all metrics with a verdict, causes and
    source diffs of every test, 2 also every operator and metric. `encoding` is the terminal's: what it cannot carry is
    spelled in ASCII. `report` says whether the report files were written and may be named. Example:

        machine cpu-x86-zen4-8c   baseline 3f2c1ab   10 paired rounds
        REGRESSED   tests/test_gpt.py::test_step
            step_time 41.20 -> 45.08 ms  +9.4% [+8.9%, +9.9%], limit 3%; also block_time
            cause: src/gpt.py:47: scaled_dot_product_attention replaced by bmm, softmax in float64
        passed                        step_time  change  detectable
        tests/test_vit.py::test_step   12.36 ms   +0.2%  above 2.1%
        40 compared: 1 regressed, 39 unchanged. 0 missing, 0 incomparable, 0 unmeasured.
        report  perf-report/index.html
        again   pytest --perf tests/test_gpt.py::test_step
        accept  pytest --perf-update tests/test_gpt.py::test_step
    """
    counts = TerminalLine(words.counts_sentence(run), _counts_markup(run))
    ranked = words.worst_first(run.results)
    waivers = [TerminalLine(text, _WARNS) for text in _waivers(run, width)]
    if verbosity < 0:
        lines = waivers + [line for result in ranked if result.fails for line in _named(result, width)]
        lines.append(counts)
        lines += [TerminalLine(text) for text in _notes(run, width)]
        return _encodable(lines, encoding)
    lines = waivers + [TerminalLine(text) for text in _header(run, width)]
    listed = [result for result in ranked if verbosity > 0 or words.notable(result)]
    for result in listed:
        lines += _block(result, run, verbosity, width, traces=report)
    if verbosity == 0:
        lines += _table([result for result in run.results if result not in listed], run, width)
    else:
        lines += [TerminalLine(text) for text in _legend(listed, verbosity, width)]
    lines.append(counts)
    if report and run.results:
        lines.append(TerminalLine(f"report  {words.shown_path(run, run.report_dir / 'index.html')}"))
    lines += [TerminalLine(f"{label:6}  {command}") for label, command in words.run_commands(run)]
    lines += [TerminalLine(text) for text in layout.paragraph(words.recording_sentence(run), 0, width)]
    return _encodable(lines, encoding)


def failure_text(result: Result, run: Run) -> str:
    """What `PerfRegression` says: what is wrong, how sure that is, what caused it, and what to do about it."""
    about = story(result, run)
    lines = layout.paragraph(f"{words.word(result)}: {_main_reason(result, about)}", 0, FAILURE_WIDTH, more=4)
    lines += [line.text for line in _details(result, about, run, 0, FAILURE_WIDTH, traces=True)]
    lines += _legend([result], 0, FAILURE_WIDTH)
    if not run.judged:
        return "\n".join(lines)
    facts = []
    if result.judgement.context_changes:
        said = {change[0]: _shift(*change) for change in result.judgement.context_changes}
        facts.append(("context differs", ", ".join(words.context_list(said))))
    if result.other_side:
        facts.append(("against", words.visible(compared.against([result]))))
    elif result.base is not None:
        commits = words.baseline_commits([result])
        at = f" at {', '.join(commits)}" if commits else ""
        facts.append(("baseline", f"{words.visible(result.base_path)} ({compared.measured([result])}{at})"))
    elif result.base_path:
        facts.append(("baseline", f"{words.visible(result.base_path)} does not exist for machine {run.key.slug}"))
    if note := words.baseline_note(result):
        facts.append(("note", note))
    facts.append(("report", words.shown_path(run, run.report_dir / "index.html")))
    facts += words.commands(result, run.invocation)
    size = max(len(label) for label, _ in facts)
    lines += [f"{label:{size}}  {text}" for label, text in facts]
    return "\n".join(lines)


def _header(run: Run, width: int) -> list[str]:
    parts = [f"machine {words.visible(run.key.slug)}"] if run.key.slug else []
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
    changes: dict[str, str] = {}
    for name, base, new, number in words.context_changes(run):
        of = f" ({plural(number, 'test')})" if number < len(run.results) else ""
        said = _shift(name, base, new) + of
        changes[name] = f"{changes[name]}, {said}" if name in changes else said
    if changes:
        lines += layout.paragraph(f"context differs: {', '.join(words.context_list(changes))}", 0, width)
    return lines + _notes(run, width)


def _waivers(run: Run, width: int) -> list[str]:
    return [line for text in words.waiver_lines(run) for line in layout.paragraph(text, 0, width, more=4)]


def _notes(run: Run, width: int) -> list[str]:
    return [line for note in run.notes for line in layout.paragraph(words.visible(note), 0, width)]


def _block(result: Result, run: Run, verbosity: int, width: int, *, traces: bool) -> list[TerminalLine]:
    title = TerminalLine(_title(result), _markup(result))
    if verbosity == 0:
        brief = [TerminalLine(text) for text in _in_brief(result, run, width)]
        return [title, *brief, *_growth(result, width)]
    lines = [title, *(TerminalLine(text) for text in layout.paragraph(_reason(result), 4, width))]
    return lines + _details(result, story(result, run), run, verbosity, width, traces=traces)


def _growth(result: Result, width: int) -> list[TerminalLine]:
    """What each step keeps, of the calls whose memory grows."""
    notes = words.growth_notes(result.judgement)
    return [TerminalLine(line, _WARNS) for note in notes for line in layout.paragraph(note, 4, width)]


def _in_brief(result: Result, run: Run, width: int) -> list[str]:
    """One or two lines about a test: by how much, and why."""
    if result.updated:
        notes = [line for note in words.recording_notes(result) for line in layout.paragraph(note, 4, width)]
        return [f"    {words.recorded(result)}", *notes]
    about = story(result, run)
    lines = []
    definition = _definition_lines(result, DEFINITION_LINES, width)
    if about.headline is None or result.judgement.verdict in ("invalid", "missing", "outdated", "unmeasured"):
        return [*layout.paragraph(_reason(result), 4, width), *definition]
    lines += layout.paragraph(words.definition_sentence(result.judgement), 4, width) + definition
    lines += layout.paragraph(_change(about), 4, width)
    lines += [line for text in words.waiver_notes(result.judgement) for line in layout.paragraph(text, 4, width)]
    lines += [line for text in words.telling_notes(result.judgement) for line in layout.paragraph(text, 4, width)]
    if result.judgement.verdict == "improved":
        return lines
    causes = [_brief_cause(about)] if about.causes or about.memory else []
    environment = [each for each in result.judgement.environment if words.judged(each)]
    causes += [f"environment: {words.visible(each.name)} {words.visible(each.reason)}" for each in environment[:1]]
    return lines + [f"    {layout.cut(text, max(width, layout.LEAST_NAME) - 4)}" for text in causes if text]


def _change(about: Story) -> str:
    """By how much the headline's metric changed, and which others did."""
    metric = about.headline
    assert metric is not None
    if metric.effect is None or metric.base is None:
        return words.visible(f"{metric.name} {metric.reason}")
    parts = [words.visible(f"{metric.name} {figures.change(metric)}"), figures.effect(metric), figures.interval(metric)]
    text = " ".join(filter(None, parts))
    if limit := figures.limit(metric):
        text += f", {words.visible(limit)}"
    if metric.verdict == "suspect" and metric.reason:
        text += f" ({words.visible(metric.remark or metric.reason)})"
    names = [words.visible(each.name) for each in about.also if each.of_step]
    if names:
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        text += f"; also {', '.join(names[:2])}{more}"
    return text


def _brief_cause(about: Story) -> str:
    """The first cause in one line, its place first: the end is what is cut on a narrow terminal."""
    if about.memory_first or not about.causes:
        place = f"{about.memory_place.text}: " if about.memory_place else ""
        changed = f"; {about.memory_changed}" if about.memory_changed else ""
        return f"cause: {place}{about.memory}{changed}"
    group = about.causes[0]
    place = f"{group.place.text}: " if group.place else f"{words.visible(group.module)}: " if group.module else ""
    return f"cause: {place}{group.sentence} ({group.amount})"


def _table(results: Sequence[Result], run: Run, width: int) -> list[TerminalLine]:
    """The tests that pass: time, change, and which slowdown would have been detected."""
    if not run.judged:
        results = [result for result in results if result.judgement.metrics]
    shown = results[:TABLE_ROWS]
    table = [
        (
            words.visible(result.id) + ("" if metric.name == "step_time" else f" {words.visible(metric.name)}"),
            figures.value(metric.new, metric),
            figures.effect(metric),
            f"above {figures.excluded(metric)}" if figures.excluded(metric) else "",
        )
        for result in shown
        for metric in words.step_times(result.judgement)
    ]
    lines = []
    if table:
        head = ("passed" if run.judged else "measured", "step_time", "change", "detectable")
        titled = tuple(title if any(row[column] for row in table) else "" for column, title in enumerate(head))
        lines += layout.rows([titled, *table], "lrrr", 0, width, shorten=layout.cut_front)
        if titled[3]:
            lines += layout.paragraph(figures.DETECTABLE_LEGEND, 0, width)
    if len(shown) < len(results):
        lines.append(f"and {plural(len(results) - len(shown), 'more test')} (-v)")
    for result in shown:
        for metric in result.judgement.metrics:
            if is_expected(metric):
                lines += layout.paragraph(words.visible(f"{metric.name.rpartition('.')[0]}: {metric.reason}"), 0, width)
    return [TerminalLine(line) for line in lines]


def _named(result: Result, width: int) -> list[TerminalLine]:
    """A test with its main sentence: on one line where there is room."""
    title, reason = _title(result), _reason(result)
    whole = f"{title}  {reason}".rstrip()
    if layout.cells_wide(whole) <= width:
        return [TerminalLine(whole, _markup(result))]
    return [TerminalLine(title, _markup(result)), *(TerminalLine(text) for text in layout.paragraph(reason, 4, width))]


def _title(result: Result) -> str:
    return f"{words.word(result).upper():{_WORD}}  {words.visible(result.id)}"


def _details(result: Result, about: Story, run: Run, verbosity: int, width: int, *, traces: bool) -> list[TerminalLine]:
    judgement = result.judgement
    defined = [TerminalLine(text) for text in _definition_lines(result, SOURCE_LINES_SHOWN, width)]
    metrics = [metric for metric in judgement.metrics if _metric_shown(metric, verbosity, run)]
    of_step = any(metric.of_step and metric.outcome == judgement.verdict for metric in metrics)
    kernels = [metric for metric in words.metrics_worst_first(metrics) if not metric.of_step]
    # What the step lost is explained by its kernels below; without that a slower kernel is the news.
    left_out = [] if verbosity > 1 else kernels if of_step else kernels[CAUSES_SHOWN:]
    metrics = [metric for metric in metrics if metric not in left_out]
    if verbosity < 1:
        metrics = [metric for metric in metrics if not words.judged(metric) or words.matters(metric, judgement)]
    lines = defined + _metric_lines(metrics, judgement.verdict, verbosity, width)
    lines += _paragraph(words.metrics_explained(words.metrics_worst_first(metrics)), 4, width)
    lines += _paragraph(words.limits_explained(metrics), 4, width)
    lines += _paragraph(
        words.verdicts_explained(each for each in metrics if each.outcome != judgement.verdict), 4, width
    )
    if verbosity < 1:
        lines += _paragraph(words.unimportant_sentence(judgement), 4, width)
    if left_out and not of_step:
        lines.append(TerminalLine(f"    and {plural(len(left_out), 'more kernel')} over their limits (-vv)"))
    for metric in metrics:
        if words.judged(metric) and (reason := words.own_reason(metric, judgement)):
            lines += _paragraph(f"{metric.name}: {reason}", 4, width)
    if any(is_utilization(metric.name) for metric in metrics if words.judged(metric)) or verbosity > 1:
        for note in words.coverage_notes(judgement):
            lines += _paragraph(note, 4, width)
    if verbosity > 0 and (note := words.baseline_note(result)):
        lines += _paragraph(f"note of the baseline: {note}", 4, width)
    if judgement.rounds and verbosity > 0:
        lines += _paragraph(judgement.rounds, 4, width)
    for metric in judgement.environment:
        if words.judged(metric) or verbosity > 0:
            lines += _paragraph(f"{words.environment_words(metric)}: {metric.name} {metric.reason}", 4, width)
    if judgement.verdict != "unchanged" or judgement.counts_changed or verbosity > 1:
        lines += _why(result, about, run, verbosity, width)
    recording = words.recording_notes(result)
    for note in words.telling_notes(judgement):
        lines += _paragraph(note if note in recording else f"note: {note}", 4, width)
    for finding in words.told_findings(judgement):
        if finding.message in recording or (verbosity > 0 and not words.is_telling(finding, judgement)):
            said = "" if finding.message in recording else f"note ({finding.code}), does not affect the verdict: "
            lines += _paragraph(f"{said}{finding.message}", 4, width)
    lines += _growth(result, width)
    for note in words.budget_notes(result):
        lines += _paragraph(note, 4, width)
    if traces and words.fails_or_warns(result):
        folder = words.shown_path(run, run.report_dir / "traces")
        lines += [
            TerminalLine(f"    traces  {folder}/{pattern(result, exemplars)}")
            for exemplars in kept(run, result)
            if exemplars.base or exemplars.new
        ]
    return lines


def _why(result: Result, about: Story, run: Run, verbosity: int, width: int) -> list[TerminalLine]:
    """Causes with their place and changed lines, whose the memory is, and what the operators did."""
    judgement = result.judgement
    causes = [line for group in about.causes for line in _paragraph(f"cause: {cause_line(group)}", 4, width, more=6)]
    for rest in about.rest if len(judgement.blame) > 1 else ():
        call = f"{words.visible(rest.call)}: " if rest.call else ""
        text = f"{call}rest: {format_quantity(rest.delta_ns, 'ns', signed=True)} in smaller or uncertain changes"
        causes += _paragraph(f"{text}, {format_percent(rest.share, signed=False)}", 4, width)
    for text in ranks.sentences(judgement):
        causes += _paragraph(f"ranks: {text}", 4, width, more=7)
    source = [TerminalLine(text) for text in _source_lines(about.diffs, verbosity, width)]
    peaks = [TerminalLine(text) for text in _memory_lines(result, run, verbosity, width)]
    if about.memory_first and about.memory:
        place = f", allocated at {about.memory_place.text}" if about.memory_place else ""
        changed = f"; {about.memory_changed}" if about.memory_changed else ""
        peaks = [*_paragraph(f"cause: {about.memory}{place}{changed}", 4, width, more=6), *peaks]
    if verbosity == 0 and not about.memory_first and not _is_of_memory(judgement):
        # Within its limit a peak is no news beside a time that is not.
        peaks = []
    table = [TerminalLine(text) for text in _cause_lines(judgement.blame, verbosity, width)]
    work = [line for change in judgement.work for line in _paragraph(words.work_sentence(change, judgement), 4, width)]
    suggestion = [TerminalLine(text) for text in _suggestion_lines(result, width)]
    todo = [line for text in [about.advice] if text for line in _paragraph(f"to do: {text}", 4, width, more=6)]
    if about.memory_first:
        # Times did not change: what differs in the profiled step is for who asks.
        return [*peaks, *source, *todo, *([*causes, *work, *table, *suggestion] if verbosity > 0 else [])]
    return [*causes, *source, *todo, *work, *peaks, *table, *suggestion]


def _is_of_memory(judgement: Judgement) -> bool:
    """Whether a metric of memory has the verdict of the test, or memory grows."""
    metrics = [each for each in judgement.metrics if general(each.name) in ("peak_memory", "static_memory", GROWTH)]
    return bool(judgement.growth) or any(each.outcome == judgement.verdict for each in metrics)


def _paragraph(text: str, indent: int, width: int, *, more: int = 0) -> list[TerminalLine]:
    return [TerminalLine(line) for line in layout.paragraph(words.visible(text), indent, width, more=more)]


def _metric_shown(metric: MetricVerdict, verbosity: int, run: Run) -> bool:
    if verbosity > 1 or not run.judged:
        return True
    if words.judged(metric) or general(metric.name) == "step_time":
        return True
    return verbosity > 0 and metric.verdict is not None


def _metric_lines(metrics: Sequence[MetricVerdict], verdict: Verdict, verbosity: int, width: int) -> list[TerminalLine]:
    if not metrics:
        return []
    head = ("", "baseline -> current", "change", "95% interval", "limit", "detectable" if verbosity > 0 else "")
    table = [
        (
            words.visible(metric.name),
            words.visible(figures.change(metric)),
            figures.effect(metric),
            figures.interval(metric),
            words.visible(_limit(metric, verdict)),
            f"above {figures.excluded(metric)}" if verbosity > 0 and figures.excluded(metric) else "",
        )
        for metric in words.metrics_worst_first(metrics, verdict)
    ]
    titled = tuple(title if any(row[column] for row in table) else "" for column, title in enumerate(head))
    return [TerminalLine(text) for text in layout.rows([titled, *table], "lrrrlr", 4, width)]


def _limit(metric: MetricVerdict, verdict: Verdict) -> str:
    """What a metric was compared with, and its verdict where that is another than its test's."""
    limit = "" if metric.limit is None else f"{'budget ' if metric.is_held_to_budget else ''}{metric.limit}"
    other = metric.outcome or ""
    return limit if other == verdict or not words.judged(metric) else f"{limit} {other}".strip()


def _cause_lines(blame: Sequence[Cause], verbosity: int, width: int) -> list[str]:
    if not blame:
        return []
    shown = largest(blame, len(blame) if verbosity > 1 else CAUSES_SHOWN)
    table = [
        (
            _cause_name(cause),
            figures.cause_count(cause),
            figures.cause_time(cause),
            figures.cause_effect(cause),
            figures.cause_share(cause),
        )
        for cause in shown
    ]
    share = "; share of the step's change" if any(row[4] for row in table) else ""
    lines = layout.paragraph(f"largest changes in the profiled step (per step{share})", 4, width)
    lines += layout.rows(table, "llrrr", 4, width, shorten=_shorten)
    if len(shown) < len(blame):
        lines.append(f"      and {len(blame) - len(shown)} more (-vv)")
    return lines


def _memory_lines(result: Result, run: Run, verbosity: int, width: int) -> list[str]:
    """Whose the memory at the peak is that was not there before, and what accumulates."""
    lines: list[str] = []
    for change in result.judgement.memory:
        if change.causes or verbosity > 0:
            lines += layout.paragraph(memory.peak_sentence(change), 4, width)
        shown = change.causes if verbosity > 1 else change.causes[: memory.CAUSES_SHOWN]
        for cause in shown:
            size = format_quantity(cause.bytes, "B", signed=True)
            lines += layout.paragraph(f"{size}  {memory_causes.cause_name(cause)}", 6, width)
            where = memory.cause_place(cause, change, lambda line: frame_place(line, result, run))
            lines += layout.paragraph(where, 10, width)
        if len(shown) < len(change.causes):
            rest = sum(cause.bytes for cause in change.causes[len(shown) :])
            lines.append(
                f"      and {plural(len(change.causes) - len(shown), 'more cause')}, "
                f"{format_quantity(rest, 'B', signed=True)} in total (-vv)"
            )
        lead = memory.advice_lead(change, result.judgement)
        for advice in change.advice[:1] if verbosity < 1 else change.advice:
            lines += layout.paragraph(f"{lead}: {memory.advice_sentence(advice, change, result.judgement)}", 6, width)
    return lines


def _definition_lines(result: Result, most: int, width: int) -> list[str]:
    """How the definition of the test differs between the two sides."""
    lines: list[str] = []
    for each in result.judgement.definition:
        code = [line for line in words.diff_lines(each) if not line.startswith("@")]
        lines += [f"    {words.source_title(each)}", *(f"      {line}" for line in code)]
    more = [f"      and {plural(len(lines) - most, 'more line')}"] if len(lines) > most + 1 else []
    return [layout.cut(line, max(width, layout.LEAST_NAME)) for line in (lines[:most] if more else lines)] + more


def _source_lines(diffs: Sequence[SourceDiff], verbosity: int, width: int) -> list[str]:
    """The changed lines, without the indentation that all of them have; long ones go on below, cut nowhere."""
    code = [words.diff_lines(each) for each in diffs]
    total = sum(map(len, code))
    room = total if verbosity > 0 else min(total, SOURCE_LINES_SHOWN)
    lines: list[str] = []
    left = total - room
    for each, text in zip(diffs, code, strict=True):
        if room:
            lines += layout.paragraph(words.source_title(each), 4, width)
            lines += [f"      {part}" for line in text[:room] for part in _wrapped_code(line, width - 6)]
            room = max(0, room - len(text))
    return [*lines, f"      and {plural(left, 'more line')} (-v)"] if left else lines


def _wrapped_code(line: str, width: int) -> list[str]:
    """A line of a diff in pieces of a width, at most `CODE_PIECES`; a sign begins the first of them only."""
    width = max(width, layout.LEAST_NAME)
    pieces: list[str] = []
    rest, indent = line, 0
    while rest and len(pieces) < CODE_PIECES:
        room = width - indent
        space = rest.rfind(" ", room // 2, room) + 1 if len(rest) > room else 0
        pieces.append(" " * indent + rest[: space or room].rstrip())
        rest, indent = rest[space or room :], CODE_INDENT
    return [*pieces[:-1], layout.cut(pieces[-1] + "...", width)] if rest else pieces


def _suggestion_lines(result: Result, width: int) -> list[str]:
    suggestion = first_suggestion(result)
    if suggestion is None:
        return []
    how, gain = suggestion
    return layout.paragraph(f"advice: {words.visible(how)}, {gain}", 4, width)


def _cause_name(cause: Cause) -> str:
    call = f"{words.visible(cause.call)}: " if cause.call else ""
    return f"{figures.cause_sign(cause)} {call}{name_words(cause.name)}"


def _shorten(name: str, width: int) -> str:
    """A name cut in its middle; of a function of Python the path that it is in first."""
    function, at, path = name.partition(" (")
    room = width - layout.cells_wide(function) - 2
    if not at or layout.cells_wide(name) <= width:
        return layout.shorten(name, width)
    return f"{function} ({layout.cut_front(path, room)}" if room >= _LEAST_PATH else layout.shorten(function, width)


def _legend(shown: Sequence[Result], verbosity: int, width: int) -> list[str]:
    metrics = [metric for result in shown for metric in result.judgement.metrics]
    text = []
    if any(figures.interval(metric) for metric in metrics):
        text.append(figures.INTERVAL_LEGEND)
    if verbosity > 0 and any(figures.excluded(metric) for metric in metrics):
        text.append(figures.DETECTABLE_LEGEND)
    return layout.paragraph("; ".join(text), 0, width) if text else []


def _main_reason(result: Result, about: Story) -> str:
    """Why the verdict is what it is, less what the table of metrics below it says of the others."""
    first, reason = about.headline, _reason(result)
    if (
        first is None
        or not first.reason
        or not reason.startswith(f"{words.visible(first.name)} {words.visible(first.reason)}")
    ):
        return reason
    others = [words.visible(each.name) for each in about.also if each.of_step]
    also = f"; also {', '.join(others[:3])}" + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"{words.visible(first.name)} {words.visible(first.reason)}" + (also if others else "")


def _reason(result: Result) -> str:
    return words.visible(result.judgement.reason) or f"{result.judgement.verdict} without a stated reason"


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
