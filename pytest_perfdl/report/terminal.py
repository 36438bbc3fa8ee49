"""The terminal: the run's summary, and the text of a test that fails.

`summary_lines` gives lines with their markup, which the plugin writes with pytest's own reporter: one to three lines
for a test, and with `-v` everything. pytest has shown `failure_text` of what fails before: what fails, its first cause,
and what to do. It may be all that a CI log or a JUnit viewer shows. The content of both comes from `story` and `words`:
here it is laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_perfdl.judge.kernels import is_expected
from pytest_perfdl.model.cases import LONGEST_ID
from pytest_perfdl.model.metrics import general, is_utilization
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.model.visible import harmless
from pytest_perfdl.report import cases, compared, figures, layout, memory, ranks, words
from pytest_perfdl.report.figures import name_words
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.story import Story, cause_line, frame_place, largest, story
from pytest_perfdl.results.run import Result, Run, first_suggestion
from pytest_perfdl.results.trace_files import kept, pattern
from pytest_perfdl.results.verdict import VERDICTS, Cause, Judgement, MetricVerdict, SourceDiff, Verdict

CAUSES_SHOWN = 5
"""Rows of the profiled step below its causes."""
SOURCE_LINES_SHOWN = 8
"""Of the changed functions' diffs together in the text of a failure."""
FAILING_SHOWN = 5
"""Metrics with the verdict of their test in the text of a failure."""
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


Line = str | TerminalLine
"""A line as it is laid out: most have no markup."""


def summary_lines(
    run: Run, verbosity: int, width: int, *, encoding: str = "utf-8", report: bool = True
) -> list[TerminalLine]:
    """The "perf summary" section: what fails or warns, worst first, a table of what passes, counts, commands.

    `verbosity` is pytest's: below 0 gives the counts and a sentence for each test that fails, 0 one to three lines for
    each test that fails, warns or improved, a line for each other one and the notes on those, 1 all metrics with a
    verdict, causes and source diffs of every test, 2 also every operator and metric. `encoding` is the terminal's: what
    it cannot carry is spelled in ASCII. `report` says whether the report files were written and may be named. Example:

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
    lines: list[Line] = [
        TerminalLine(text, _WARNS) for text in _texts(words.waiver_lines(run), width, indent=0, more=4)
    ]
    if verbosity < 0:
        lines += [line for result in ranked if result.fails for line in _name_test(result, width)]
        return _encode([*lines, counts, *_texts(run.notes, width, indent=0)], encoding)
    lines += _header(run, width)
    listed = [result for result in ranked if verbosity > 0 or words.notable(result)]
    for result in listed:
        lines += _block(result, run, verbosity, width, traces=report)
    if verbosity == 0:
        lines += _table([result for result in run.results if result not in listed], run, width)
        lines += _texts(words.notes_on_others(run), width, indent=0, more=4)
    else:
        lines += _legend(listed, width)
    lines.append(counts)
    if report and run.results:
        lines.append(f"report  {words.shown_path(run, run.report_dir / 'index.html')}")
    lines += [f"{label:6}  {command}" for label, command in words.run_commands(run)]
    return _encode([*lines, *layout.paragraph(words.recording_sentence(run), 0, width)], encoding)


def failure_text(result: Result, run: Run) -> str:
    """What `PerfRegression` says: what is wrong, how sure that is, the first cause, and what to do about it."""
    about, judgement = story(result, run), result.judgement
    lines: list[Line] = []
    lines += layout.paragraph(f"{words.word(result)}: {_main_reason(result, about)}", 0, FAILURE_WIDTH, more=4)
    lines += _definition_lines(result, DEFINITION_LINES, FAILURE_WIDTH)
    failing = [metric for metric in judgement.metrics if metric.outcome == judgement.verdict]
    failing = words.metrics_worst_first(failing, judgement.verdict)
    lines += _metric_lines(failing[:FAILING_SHOWN], judgement.verdict, 0, FAILURE_WIDTH)
    if len(failing) > FAILING_SHOWN:
        lines.append(f"    and {len(failing) - FAILING_SHOWN} more (-v)")
    lines += _first_cause(result, about, FAILURE_WIDTH)
    lines += _notes(result, 0, FAILURE_WIDTH)
    lines += _growth(result, FAILURE_WIDTH)
    lines += _texts(words.budget_notes(result), FAILURE_WIDTH)
    if not run.judged:
        return "\n".join(map(_text, lines))
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
    return "\n".join(map(_text, lines))


def _first_cause(result: Result, about: Story, width: int) -> Iterator[str]:
    """The first cause with its place and changed lines, and what to do."""
    judgement = result.judgement
    causes = [f"cause: {cause_line(group)}" for group in about.causes]
    if about.memory_first and about.memory:
        causes = [_memory_cause(about)]
    said = [f"ranks: {text}" for text in ranks.sentences(judgement)[:1]] + causes[:1]
    said += [
        f"{words.environment_words(each)}: {each.name} {each.reason}"
        for each in judgement.environment
        if words.judged(each)
    ]
    yield from _texts(said, width, more=6)
    yield from _source_lines(about.diffs[:1], SOURCE_LINES_SHOWN, width)
    yield from _todo_lines(about, width)
    yield from _advice_lines(result, width)


def _todo_lines(about: Story, width: int) -> Iterator[str]:
    return _texts([f"to do: {about.advice}"] if about.advice else [], width, more=6)


def _advice_lines(result: Result, width: int) -> Iterator[str]:
    suggestion = first_suggestion(result)
    return _texts([f"advice: {', '.join(suggestion)}"] if suggestion else [], width)


def _memory_cause(about: Story) -> str:
    place = f", allocated at {about.memory_place.text}" if about.memory_place else ""
    changed = f"; {about.memory_changed}" if about.memory_changed else ""
    return f"cause: {about.memory}{place}{changed}"


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
    return [*lines, *_texts(run.notes, width, indent=0)]


def _block(result: Result, run: Run, verbosity: int, width: int, *, traces: bool) -> Iterator[Line]:
    yield TerminalLine(_title(result), _markup(result))
    if verbosity == 0:
        yield from _in_brief(result, run, width)
        yield from _growth(result, width)
    else:
        yield from layout.paragraph(_reason(result), 4, width)
        yield from _details(result, story(result, run), run, verbosity, width, traces=traces)


def _growth(result: Result, width: int) -> list[Line]:
    """What each step keeps, of the calls whose memory grows."""
    return [TerminalLine(line, _WARNS) for line in _texts(words.growth_notes(result.judgement), width)]


def _in_brief(result: Result, run: Run, width: int) -> Iterator[str]:
    """One or two lines about a test: by how much, and why."""
    judgement = result.judgement
    if result.updated:
        yield f"    {words.recorded(result)}"
        yield from _texts(words.recording_notes(result), width)
        return
    about = story(result, run)
    unmeasured = about.headline is None or judgement.verdict in ("invalid", "missing", "outdated", "unmeasured")
    yield from layout.paragraph(_reason(result) if unmeasured else words.definition_sentence(judgement), 4, width)
    yield from _definition_lines(result, DEFINITION_LINES, width)
    if unmeasured:
        return
    yield from _texts([_change(about), *words.waiver_notes(judgement), *words.telling_notes(judgement)], width)
    if judgement.verdict == "improved":
        return
    causes = [_brief_cause(about)] if about.causes or about.memory else []
    environment = [each for each in judgement.environment if words.judged(each)]
    causes += [f"environment: {words.visible(each.name)} {words.visible(each.reason)}" for each in environment[:1]]
    yield from (f"    {layout.cut(text, max(width, layout.LEAST_NAME) - 4)}" for text in causes if text)


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
    if metric.verdict in ("suspect", "inconclusive") and metric.reason:
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
        return f"cause: {place}{'; '.join(filter(None, (about.memory, about.memory_changed)))}"
    group = about.causes[0]
    place = f"{group.place.text}: " if group.place else f"{words.visible(group.module)}: " if group.module else ""
    return f"cause: {place}{group.sentence} ({group.amount})"


def _table(results: Sequence[Result], run: Run, width: int) -> Iterator[str]:
    """The tests that pass: time, change, and which slowdown would have been detected."""
    if not run.judged:
        results = [result for result in results if result.judgement.metrics]
    shown = results[:TABLE_ROWS]
    columns = (
        Column(
            "Test",
            lambda row: row[0].id + ("" if row[1].name == "step_time" else f" {row[1].name}"),
            short="passed" if run.judged else "measured",
        ),
        Column("step_time", lambda row: figures.value(row[1].new, row[1]), "figure"),
        Column("change", lambda row: figures.effect(row[1]), "figure"),
        Column("detectable", lambda row: _detectable(row[1]), "figure"),
    )
    rows = [(result, metric) for result in shown for metric in words.step_times(result.judgement)]
    if rows:
        yield from layout.table(Table("", columns, rows), width, indent=0, shorten=layout.cut_front)
    if any(_detectable(metric) for _, metric in rows):
        yield from layout.paragraph(figures.DETECTABLE_LEGEND, 0, width)
    if len(shown) < len(results):
        yield f"and {plural(len(results) - len(shown), 'more test')} (-v)"
    expected = [metric for result in shown for metric in result.judgement.metrics if is_expected(metric)]
    yield from _texts((f"{each.name.rpartition('.')[0]}: {each.reason}" for each in expected), width, indent=0)


def _detectable(metric: MetricVerdict) -> str:
    return f"above {figures.excluded(metric)}" if figures.excluded(metric) else ""


def _name_test(result: Result, width: int) -> list[Line]:
    """A test with its main sentence: on one line where there is room."""
    title, reason = _title(result), _reason(result)
    whole = f"{title}  {reason}".rstrip()
    if layout.cells_wide(whole) <= width:
        return [TerminalLine(whole, _markup(result))]
    return [TerminalLine(title, _markup(result)), *layout.paragraph(reason, 4, width)]


def _title(result: Result) -> str:
    return f"{words.word(result).upper():{_WORD}}  {words.visible(result.id)}"


def _details(result: Result, about: Story, run: Run, verbosity: int, width: int, *, traces: bool) -> Iterator[Line]:
    judgement = result.judgement
    metrics, left_out = _shown_metrics(judgement, verbosity, run)
    yield from _definition_lines(result, None, width)
    yield from _metric_lines(metrics, judgement.verdict, verbosity, width)
    if judgement.cases:
        yield from _texts([cases.gist(judgement)], width)
        yield from layout.table(cases.group_table(judgement), width, indent=4)
        yield from layout.table(cases.case_table(judgement, cases.SHOWN), width, indent=4, least=LONGEST_ID)
        yield from _texts([cases.unknown_rooflines(judgement)], width)
    yield from _texts(_about_metrics(result, metrics, left_out, verbosity), width)
    if judgement.verdict != "unchanged" or judgement.counts_changed or verbosity > 1:
        yield from _why(result, about, run, verbosity, width)
    yield from _notes(result, verbosity, width)
    yield from _growth(result, width)
    yield from _texts(words.budget_notes(result), width)
    if traces and words.fails_or_warns(result):
        folder = words.shown_path(run, run.report_dir / "traces")
        shown = [exemplars for exemplars in kept(run, result) if exemplars.base or exemplars.new]
        yield from (f"    traces  {folder}/{pattern(result, exemplars)}" for exemplars in shown)


def _notes(result: Result, verbosity: int, width: int) -> Iterator[str]:
    """Remarks on the measurement that bear on the verdict; with verbosity the others too."""
    judgement, recording = result.judgement, words.recording_notes(result)
    said = [note if note in recording else f"note: {note}" for note in words.telling_notes(judgement)]
    for finding in words.told_findings(judgement):
        if finding.message in recording:
            said.append(finding.message)
        elif verbosity > 0 and not words.is_telling(finding, judgement):
            said.append(f"note ({finding.code}), does not affect the verdict: {finding.message}")
    yield from _texts(said, width)


def _shown_metrics(judgement: Judgement, verbosity: int, run: Run) -> tuple[list[MetricVerdict], int]:
    """The metrics that the table has, and how many kernels over their limits it leaves out without another reason."""
    metrics = [metric for metric in judgement.metrics if _metric_shown(metric, verbosity, run)]
    of_step = any(metric.of_step and metric.outcome == judgement.verdict for metric in metrics)
    kernels = [metric for metric in words.metrics_worst_first(metrics) if not metric.of_step]
    # What the step lost is explained by its kernels below; without that a slower kernel is the news.
    left_out = [] if verbosity > 1 else kernels if of_step else kernels[CAUSES_SHOWN:]
    metrics = [metric for metric in metrics if metric not in left_out]
    return metrics, 0 if of_step else len(left_out)


def _about_metrics(result: Result, metrics: Sequence[MetricVerdict], left_out: int, verbosity: int) -> Iterator[str]:
    """What is said below the table of metrics, a text each; some are empty."""
    judgement = result.judgement
    judged = [metric for metric in metrics if words.judged(metric)]
    yield words.metrics_explained(words.metrics_worst_first(metrics))
    yield words.verdicts_explained(each for each in metrics if each.outcome != judgement.verdict)
    if left_out:
        yield f"and {plural(left_out, 'more kernel')} over their limits (-vv)"
    reasons: dict[str, list[str]] = {}
    for metric in judged:
        reasons.setdefault(words.own_reason(metric, judgement), []).append(metric.name)
    yield from (f"{some(names)}: {why}" for why, names in reasons.items() if why)
    if any(is_utilization(metric.name) for metric in judged) or verbosity > 1:
        yield from words.coverage_notes(judgement)
    yield from (f"note of the baseline: {note}" for note in [words.baseline_note(result)] if note)
    yield judgement.rounds
    for metric in judgement.environment:
        yield f"{words.environment_words(metric)}: {metric.name} {metric.reason}"


def _why(result: Result, about: Story, run: Run, verbosity: int, width: int) -> list[str]:
    """Causes with their place and changed lines, whose the memory is, and what the operators did."""
    judgement = result.judgement
    causes = [*_texts((f"cause: {cause_line(group)}" for group in about.causes), width, more=6)]
    for rest in about.rest if len(judgement.blame) > 1 else ():
        call = f"{rest.call}: " if rest.call else ""
        size, share = format_quantity(rest.delta_ns, "ns", signed=True), format_percent(rest.share, signed=False)
        causes += _texts([f"{call}rest: {size} in smaller or uncertain changes, {share}"], width)
    causes += _texts((f"ranks: {text}" for text in ranks.sentences(judgement)), width, more=7)
    peaks = [*_memory_lines(result, run, verbosity, width)]
    if about.memory_first and about.memory:
        peaks = [*_texts([_memory_cause(about)], width, more=6), *peaks]
    source = _source_lines(about.diffs, None, width)
    todo = _todo_lines(about, width)
    work = _texts((words.work_sentence(change, judgement) for change in judgement.work), width)
    table = _cause_lines(judgement.blame, verbosity, width)
    advice = _advice_lines(result, width)
    if about.memory_first:
        # Times did not change: what differs in the profiled step is for who asks.
        return [*peaks, *source, *todo, *causes, *work, *table, *advice]
    return [*causes, *source, *todo, *work, *peaks, *table, *advice]


def _texts(texts: Iterable[str], width: int, *, indent: int = 4, more: int = 0) -> Iterator[str]:
    """A paragraph for each text that is not empty; further lines of each are indented by `more`."""
    for text in texts:
        yield from layout.paragraph(words.visible(text), indent, width, more=more)


def _metric_shown(metric: MetricVerdict, verbosity: int, run: Run) -> bool:
    return verbosity > 1 or not run.judged or metric.verdict is not None or general(metric.name) == "step_time"


def _metric_lines(metrics: Sequence[MetricVerdict], verdict: Verdict, verbosity: int, width: int) -> list[str]:
    if not metrics:
        return []
    columns = [
        Column("Metric", lambda metric: metric.name),
        Column("baseline -> current", figures.change, "figure"),
        Column("change", figures.effect, "figure"),
        Column("95% interval", figures.interval, "figure"),
        Column("limit", lambda metric: _limit(metric, verdict)),
        *[Column("detectable", _detectable, "figure")] * (verbosity > 0),
    ]
    return layout.table(Table("", columns, words.metrics_worst_first(metrics, verdict)), width, indent=4)


def _limit(metric: MetricVerdict, verdict: Verdict) -> str:
    """What a metric was compared with, and its verdict where that is another than its test's."""
    limit = figures.limit_cell(metric)
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


def _memory_lines(result: Result, run: Run, verbosity: int, width: int) -> Iterator[str]:
    """Whose the memory at the peak is that was not there before, and what accumulates."""
    for change in result.judgement.memory:
        yield from layout.paragraph(memory.peak_sentence(change), 4, width)
        most = None if verbosity > 1 else memory.CAUSES_SHOWN
        yield from memory.cause_lines(change, most, 6, width, "-vv", lambda line: frame_place(line, result, run))
        lead = memory.advice_lead(change, result.judgement)
        for advice in change.advice:
            said = memory.advice_sentence(advice, change, result.judgement)
            yield from layout.paragraph(f"{lead}: {said}", 6, width)


def _definition_lines(result: Result, most: int | None, width: int) -> list[str]:
    """How the definition of the test differs between the two sides; `most` bounds the lines."""
    lines: list[str] = []
    for each in result.judgement.definition:
        code = [line for line in words.diff_lines(each) if not line.startswith("@")]
        lines += [f"    {words.source_title(each)}", *(f"      {line}" for line in code)]
    more = []
    if most is not None and len(lines) > most + 1:
        more = [f"      and {plural(len(lines) - most, 'more line')} (-v)"]
    return [layout.cut(line, max(width, layout.LEAST_NAME)) for line in (lines[:most] if more else lines)] + more


def _source_lines(diffs: Sequence[SourceDiff], most: int | None, width: int) -> list[str]:
    """The changed lines, without the indentation that all of them have; long ones go on below, cut nowhere.

    Where there are more than `most`, unchanged ones are the first to be left out.
    """
    code = [words.diff_lines(each) for each in diffs]
    total = sum(map(len, code))
    if most is not None and total > most + 1:
        # An unchanged line that is empty does not begin with a space.
        code = [[line for line in text if line.startswith(("+", "-", "@"))] for text in code]
    changed = sum(map(len, code))
    room = changed if most is None or changed <= most + 1 else most
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


def _legend(shown: Sequence[Result], width: int) -> list[str]:
    metrics = [metric for result in shown for metric in result.judgement.metrics]
    text = []
    if any(figures.interval(metric) for metric in metrics):
        text.append(figures.INTERVAL_LEGEND)
    if any(figures.excluded(metric) for metric in metrics):
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


def _text(line: Line) -> str:
    return line if isinstance(line, str) else line.text


def _encode(lines: Iterable[Line], encoding: str) -> list[TerminalLine]:
    return [
        TerminalLine(harmless(_spell_out(_text(line), encoding)), {} if isinstance(line, str) else line.markup)
        for line in lines
    ]


def _spell_out(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.replace("µ", "u").replace("−", "-").replace("°", "")
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text
