"""What a test's step is made of on both sides: the rows of the table, and the bars of the waterfall.

From the profiled steps of paired rounds where there were any, else from both records. Rows that are parts of the step,
and the bars, add up to what it gained.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge.blame import recorded, step_breakdown
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.model.units import plural
from pytest_perfdl.results.verdict import BreakdownRow, StepBreakdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.model.record import Call, Row
    from pytest_perfdl.results.run import Result
    from pytest_perfdl.results.verdict import Judgement

BARS = 9
"""Rows that the waterfall names; the others are one bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the waterfall, in nanoseconds per step."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A call's step on both sides."""

    call: str
    base_ns: int
    """Step time: as timed where both sides were, else as profiled."""
    new_ns: int
    bars: tuple[Bar, ...]
    """They add up to the difference."""
    timed: bool
    """Whether both ends are times without the profiler, whose overhead is then a bar too."""


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


def waterfall(breakdown: StepBreakdown, judgement: Judgement) -> Waterfall:
    """How the step of a call came from its baseline's time to its current one."""
    largest = sorted((row for row in breakdown.rows if row.delta_ns), key=lambda row: -abs(row.delta_ns))
    first = sorted(largest[:BARS], key=lambda row: -row.delta_ns)
    bars = [Bar(row.name, row.delta_ns) for row in first]
    rest = breakdown.delta_ns - sum(bar.ns for bar in bars)
    if rest or len(largest) > BARS:
        bars.append(Bar(plural(max(0, len(largest) - BARS), "smaller change"), rest))
    timed = timed_sides(judgement, breakdown.call)
    if timed is None:
        return Waterfall(breakdown.call, breakdown.base_ns, breakdown.new_ns, tuple(bars), False)
    base, new = map(round, timed)
    bars.append(Bar("Profiler overhead", new - base - breakdown.delta_ns))
    return Waterfall(breakdown.call, base, new, tuple(bars), True)


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
    parts = step_breakdown(new.name, recorded(base, new))
    # On a device operators only launch what the step is made of: the table has them all the same.
    known = {(row.kind, name) for row in parts.rows for name in (row.name, *row.members)}
    others = [row for row in by_name.rows if (row.kind, row.name) not in known]
    return replace(parts, rows=_by_time([*parts.rows, *others]))


def _joined(base: Call | None, new: Call | None) -> StepBreakdown:
    """Both sides' rows joined by their kind and name."""
    sides = [{} if call is None else {(row.kind, row.name): row for row in call.rows} for call in (base, new)]
    rows = [_row(sides[0].get(place), sides[1].get(place)) for place in {**sides[1], **sides[0]}]
    steps = [round(statistics.fmean(call.profiled_ns)) if call and call.profiled_ns else 0 for call in (base, new)]
    either = new or base
    return StepBreakdown(either.name if either else "", steps[0], steps[1], _by_time(rows))


def _row(base: Row | None, new: Row | None) -> BreakdownRow:
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
