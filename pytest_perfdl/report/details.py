"""What the page shows of a test when it is opened, as data: rows, charts and what they are made of.

A page of hundreds of tests holds hundreds of thousands of rows. They are in the page as JSON, short (`COLUMNS` says
what stands where; names are numbers into one list for the whole page), and become a table when a test is opened.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.analysis.overview.memory_timeline import BEFORE, memory_timeline
from pytest_perfdl.diff import diff, places, side_of_traces
from pytest_perfdl.judge.blame import diff_records, step_breakdown
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.model.units import plural
from pytest_perfdl.report import figures, memory, words
from pytest_perfdl.results.verdict import BreakdownRow, StepBreakdown
from pytest_perfdl.trace import Trace, loads
from pytest_perfdl.trace.annotations import step_annotations

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.model.record import Call, Record, Row
    from pytest_perfdl.report.traces import CallTraces
    from pytest_perfdl.results.run import Result
    from pytest_perfdl.results.verdict import Judgement, OperatorSides, WorkSide


# What a test's step is made of on both sides: the rows of the table, and the bars of the waterfall.
#
# From the profiled steps of paired rounds where there were any, else from both records. Rows that are parts of the
# step, and the bars, add up to what it gained.


BARS = 9
"""Rows that the waterfall names; the others are one bar."""


def breakdowns(result: Result, *, matched: bool = True) -> tuple[StepBreakdown, ...]:
    """The breakdown of each call, of the only side for a test without a baseline.

    Parameters
    ----------
    matched
        Whether to match the rows of both records, where there were no paired rounds; else they are joined by name,
        which takes no time.
    """
    if result.judgement.breakdowns:
        return result.judgement.breakdowns
    before = {} if result.base is None else {call.name: call for call in result.base.calls}
    after = {} if result.new is None else {call.name: call for call in result.new.calls}
    return tuple(_of_records(before.get(name), after.get(name), matched=matched) for name in {**after, **before})


def waterfall(breakdown: StepBreakdown, judgement: Judgement) -> dict[str, Any]:
    """How the step of a call came from its baseline's time to its current one, in nanoseconds per step.

    Both times are as timed where both sides were, else as profiled; where they are timed, the profiler's overhead is a
    bar too. Bars are names with times, which add up to the difference.
    """
    largest = sorted((row for row in breakdown.rows if row.delta_ns), key=lambda row: -abs(row.delta_ns))
    first = sorted(largest[:BARS], key=lambda row: -row.delta_ns)
    bars = [[words.visible(row.name), row.delta_ns] for row in first]
    rest = breakdown.delta_ns - sum(row.delta_ns for row in first)
    if rest or len(largest) > BARS:
        bars.append([plural(max(0, len(largest) - BARS), "smaller change"), rest])
    timed = timed_sides(judgement, breakdown.call)
    base, new = map(round, timed or (breakdown.base_ns, breakdown.new_ns))
    if timed is not None:
        bars.append(["Profiler overhead", new - base - breakdown.delta_ns])
    return {
        "call": words.visible(breakdown.call),
        "base_ns": base,
        "new_ns": new,
        "timed": timed is not None,
        "bars": bars,
    }


def timed_sides(judgement: Judgement, call: str) -> tuple[float, float] | None:
    """Both sides' mean step of a call without the profiler, nanoseconds; `None` where it was not timed on both."""
    metrics = {metric.name: metric for metric in judgement.metrics}
    for name in ("block_time", "step_time"):
        metric = metrics.get(metric_name(call, name))
        if metric is not None and metric.base and metric.new:
            return metric.base, metric.new
    return None


def _of_records(base: Call | None, new: Call | None, *, matched: bool) -> StepBreakdown:
    by_name = _joined(base, new)
    if base is None or new is None or not (matched and _is_profiled(base) and _is_profiled(new)):
        return by_name
    parts = step_breakdown(new.name, diff_records(base, new))
    # On a device operators only launch what the step is made of: the table has them all the same.
    known = {(row.kind, name) for row in parts.rows for name in (row.name, *row.members)}
    others = [row for row in by_name.rows if (row.kind, row.name) not in known]
    return replace(parts, rows=_by_time([*parts.rows, *others]))


def _joined(base: Call | None, new: Call | None) -> StepBreakdown:
    """Both sides' rows joined by their kind and name."""
    sides = [{} if call is None else {(row.kind, row.name): row for row in call.rows} for call in (base, new)]
    rows = [_bar_row(sides[0].get(place), sides[1].get(place)) for place in {**sides[1], **sides[0]}]
    steps = [round(statistics.fmean(call.profiled_ns)) if call and call.profiled_ns else 0 for call in (base, new)]
    either = new or base
    return StepBreakdown(either.name if either else "", steps[0], steps[1], _by_time(rows))


def _bar_row(base: Row | None, new: Row | None) -> BreakdownRow:
    either = new or base
    assert either is not None
    return BreakdownRow(
        kind=either.kind,
        name=either.name,
        base_count=None if base is None else base.count,
        new_count=None if new is None else new.count,
        base_ns=None if base is None else round(statistics.fmean(base.ns)),
        new_ns=None if new is None else round(statistics.fmean(new.ns)),
    )


def _by_time(rows: Sequence[BreakdownRow]) -> tuple[BreakdownRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-max(row.new_ns or 0, row.base_ns or 0), row.kind, row.name)))


def _is_profiled(call: Call) -> bool:
    return bool(call.rows) and bool(call.profiled_ns) and statistics.fmean(call.profiled_ns) > 0


COLUMNS = (
    "call",
    "kind",
    "name",
    "base_count",
    "new_count",
    "base_ns",
    "new_ns",
    "matched_by",
    "confidence",
    "effects_ns",
)
"""What a row holds, in order: call, kind, name and matched_by are numbers into the page's names; a side that has no
such row has null; effects are those of count, duration, mix and exposure. The last three are absent where they are
not known."""
EFFECTS = ("count", "duration", "mix", "exposure")
POINTS = 400
"""Most points of a memory curve; each is the highest value of its stretch of time."""
ALIVE = 12
"""Most rows of what is alive at the peak."""
HELD = "allocated before the step: parameters, optimizer state, inputs"
"""What the memory that was allocated before a step is called on the page."""
PLACES = 300
"""Most modules and lines of a test."""
OPERATORS = 300
"""Most operators, told apart by shapes, that a test's roofline shows."""


@dataclass(slots=True)
class Names:
    """One list of names for a page, each once."""

    known: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """The name's place in the list."""
        return self.known.setdefault(words.visible(name), len(self.known))

    def listed(self) -> list[str]:
        """All names, in the order of their numbers."""
        return list(self.known)


def details(
    result: Result,
    collected: Sequence[CallTraces],
    names: Names,
    *,
    embedded: Sequence[str],
    accounted: bool = True,
    peaks: Peaks | None = None,
) -> dict[str, Any]:
    """Plain data for one test.

    Parameters
    ----------
    embedded
        The trace files that the page holds.
    accounted
        Whether to match the rows of both records and draw the waterfall; else rows are joined by their names.
    peaks
        The limits of the machine that the test was measured on.
    """
    steps = breakdowns(result, matched=accounted)
    return {
        "compared": result.base is not None,
        "repeats": [0 if side is None else side.repeats for side in (result.base, result.new)],
        "rows": [_row(each.call, row, names) for each in steps for row in each.rows],
        "roofline": _roofline(result.judgement.operators, peaks, names),
        "accounts": [waterfall(each, result.judgement) for each in steps if accounted and each.base_ns and each.new_ns],
        "peaks": [memory.page_data(change) for change in result.judgement.memory],
        "calls": [told for call in collected if (told := _call(call, embedded))],
        "history": _history(result),
    }


def _row(call: str, row: BreakdownRow, names: Names) -> list[Any]:
    cells: list[Any] = [
        names.number(call),
        names.number(row.kind),
        names.number(row.name),
        row.base_count,
        row.new_count,
        row.base_ns,
        row.new_ns,
    ]
    if row.matched_by:
        cells += [names.number(row.matched_by), None if row.confidence is None else round(row.confidence, 2)]
        cells += [[row.effects.get(effect, 0) for effect in EFFECTS]] if row.effects else []
    return cells


def _roofline(operators: Sequence[OperatorSides], peaks: Peaks | None, names: Names) -> dict[str, Any]:
    """What operators had to do and took, and the roofs that this is held against.

    An operator is [call, operator, shapes, element type, base, new], the first four numbers into the page's names; a
    side [nanoseconds, calls, FLOPs, bytes, share of the roofline, what bounds it], all of a mean step, or null.
    """
    rows = [
        [*(names.number(text) for text in (each.call, each.operator, each.shapes, each.dtype)), *map(_work, sides)]
        for each in operators[:OPERATORS]
        for sides in [(each.base, each.new)]
    ]
    types = {each.dtype for each in operators}
    return {
        "rows": rows,
        "left_out": max(0, len(operators) - OPERATORS),
        "flops_per_s": {name: rate for name, rate in (peaks.flops_per_s if peaks else {}).items() if name in types},
        "bandwidths": [list(each) for each in peaks.bandwidths or ((0, peaks.bytes_per_s),)] if peaks else [],
    }


def _work(side: WorkSide | None) -> list[Any] | None:
    if side is None:
        return None
    share = None if side.roofline is None else round(side.roofline, 4)
    return [round(side.time_ns), side.calls, round(side.flops), round(side.bytes), share, side.bound]


def _history(result: Result) -> list[dict[str, Any]]:
    """Step times by recording, the oldest first: earlier runs, the baseline, the current one."""
    found = []
    for source, record in (
        *(("run", one) for one in result.history),
        ("baseline", result.base),
        ("current", result.new),
    ):
        if record is not None:
            found += _occasions(source, record)
    return found if len(found) > 1 else []


def _occasions(source: str, record: Record) -> list[dict[str, Any]]:
    series = {name: one for name, one in record.metrics().items() if general(name) == "step_time"}
    found, first = [], 0
    for occasion in record.occasions:
        found.append(
            {
                "source": source,
                "date": occasion.date,
                "commit": (occasion.commit or "")[:9],
                "step_time": {
                    words.visible(name): figures.finite(one.values[first : first + occasion.repeats])
                    for name, one in series.items()
                },
            }
        )
        first += occasion.repeats
    return found


def _call(call: CallTraces, embedded: Sequence[str]) -> dict[str, Any] | None:
    """What the traces of a call tell beside its records; `None` where it has none on this side."""
    by_role = {file.role: file for file in call.files}
    shown = next((by_role[role].name for role in ("diff", "new", "base") if role in by_role), "")
    traces: dict[str, Trace] = {}
    for role in ("base", "new") if "diff" in by_role else ():
        try:
            traces[role] = loads(by_role[role].data, by_role[role].name)
        except TraceError:
            return None
    return {
        "call": words.visible(call.call),
        "trace": shown if shown in embedded else "",
        "memory": {role: _memory(trace) for role, trace in traces.items() if len(trace.memory.time)},
        **(_places(traces) if len(traces) == 2 else {"modules": [], "lines": []}),
    }


def _places(traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Modules and lines of the two exemplar steps."""
    try:
        found = diff(*(side_of_traces(role, [step_parts(traces[role])]) for role in ("base", "new")))
    except ValueError:
        return {"modules": [], "lines": []}
    kinds: tuple[Literal["module", "line"], ...] = ("module", "line")
    return {
        f"{kind}s": [
            [words.visible(place.name), place.base_ns, place.new_ns] for place in places(found, kind) if place.name
        ][:PLACES]
        for kind in kinds
    }


def _memory(trace: Trace) -> list[dict[str, Any]]:
    """The curves of a step, on its clock; without a step on that of the first allocation."""
    steps, _ = step_annotations(trace)
    first = int(trace.start[steps[0]] if len(steps) else trace.memory.time[0])
    last = int(trace.end[steps[0]] if len(steps) else trace.memory.time[-1])
    found = memory_timeline(trace)
    return [_curve(device, first) | {"step_ns": last - first} for device in found]


def _curve(device: DeviceTimeline, start: int) -> dict[str, Any]:
    time = device.time_ns - start
    bucket = np.clip(time * POINTS // max(1, int(time[-1])), 0, POINTS - 1)
    first = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    return {
        "device": device.device,
        "time_ns": time[first].tolist(),
        "bytes": np.maximum.reduceat(device.allocated, first).tolist(),
        "peak_bytes": device.peak_allocated_bytes,
        "peak_at_ns": device.peak_allocated_at_ns - start,
        "alive": [
            [
                HELD if alive.operator == BEFORE else words.visible(alive.operator),
                words.visible(alive.module),
                alive.bytes,
                alive.count or None,
            ]
            for alive in device.alive_at_peak[:ALIVE]
        ],
        "alive_more": [len(rest := device.alive_at_peak[ALIVE:]), sum(alive.bytes for alive in rest)],
    }
