"""What the parts of a test's step did, from both records: the rows of the table and the bars of the waterfall.

Both close: the rows of a call without a device, and the bars of every call, add up to what its profiled step gained.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.diff import causes, diff, of_call
from pytest_perfdl.diff.causes import LEAST_SHARE
from pytest_perfdl.report.operators import ComparedOperator, operators

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause
    from pytest_perfdl.model.record import Call, RowKind
    from pytest_perfdl.results.run import Result

BARS = 9
"""Parts that the waterfall names; what is left is one bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the waterfall, in nanoseconds a step."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Account:
    """A call's step on both sides."""

    base_ns: int
    """Mean time of a step: as timed where both sides were, else as profiled."""
    new_ns: int
    bars: tuple[Bar, ...]
    """They add up to the difference."""
    timed: bool
    """Whether both ends are times without the profiler, whose part is then a bar too."""


def accounts(found: Mapping[str, Accounted]) -> dict[str, Account]:
    """The waterfall of each call."""
    return {call: _account(each) for call, each in found.items()}


@dataclass(frozen=True, slots=True)
class Accounted:
    """A call's change with all of its causes."""

    whole: Diff
    causes: tuple[DiffCause, ...]


def diffs(result: Result) -> dict[str, Accounted]:
    """By call, for those whose profiled steps both records have."""
    if result.base is None or result.new is None:
        return {}
    before = {call.name: call for call in result.base.calls}
    return {
        call.name: _accounted(before[call.name], call)
        for call in result.new.calls
        if call.name in before and _profiled(call) and _profiled(before[call.name])
    }


@dataclass(frozen=True, slots=True)
class PartRow:
    """A row of the table: an operator, kernel or idle class with how its change came about."""

    row: ComparedOperator
    matched_by: str = ""
    """What told that both sides are the same work; empty where there is one side only."""
    confidence: float | None = None
    """How sure that is, from 0 to 1."""
    effects: tuple[int, ...] = ()
    """Count, duration, mix and exposure, in nanoseconds; empty for what hardly changed."""


def _accounted(base: Call, new: Call) -> Accounted:
    whole = diff(of_call("baseline", base), of_call("this run", new))
    return Accounted(whole, causes(whole, everything=True))


def part_rows(result: Result, accounted: Mapping[str, Accounted]) -> list[PartRow]:
    """Every operator, kernel and idle class of the test; matched ones of other names stand in one row."""
    rows = {(row.call, row.kind, row.name): row for row in operators(result)}
    found: list[PartRow] = []
    for call, each in accounted.items():
        for cause in each.causes:
            found += _of_cause(call, cause, each.whole, rows)
    found += [PartRow(row) for row in rows.values()]
    return sorted(found, key=lambda one: (-max(one.row.new_ns or 0, one.row.base_ns or 0), one.row.name))


def _of_cause(
    call: str, cause: DiffCause, each: Diff, rows: dict[tuple[str, RowKind, str], ComparedOperator]
) -> list[PartRow]:
    """The row of a cause, whose members are taken out of `rows`; none for what no row is of."""
    names = dict.fromkeys(part.name for change in cause.changes for part in (*change.base_parts, *change.new_parts))
    members = [found for name in names if (found := rows.pop((call, cause.kind, name), None)) is not None]
    if not members:
        return []
    whole = (
        members[0]
        if len(members) == 1
        else ComparedOperator(
            call,
            members[0].kind,
            cause.name,
            base_count=_sum([row.base_count for row in members]),
            new_count=_sum([row.new_count for row in members]),
            base_ns=_sum([row.base_ns for row in members]),
            new_ns=_sum([row.new_ns for row in members]),
        )
    )
    both = whole.base_ns is not None and whole.new_ns is not None
    told = abs(cause.delta_ns) >= LEAST_SHARE * max(each.base_ns, each.new_ns)
    return [
        PartRow(
            whole,
            matched_by=cause.changes[0].group.by if both and cause.kind != "idle" else "",
            confidence=cause.confidence if both and cause.kind != "idle" else None,
            effects=tuple(round(ns) for ns in asdict(cause.effects).values()) if told else (),
        )
    ]


def _sum(values: Sequence[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


def _profiled(call: Call) -> bool:
    return bool(call.rows) and bool(call.profiled_ns) and statistics.fmean(call.profiled_ns) > 0


def _account(accounted: Accounted) -> Account:
    each = accounted.whole
    named = [cause for cause in accounted.causes if abs(cause.own_ns) >= 1]
    largest = sorted(named, key=lambda cause: -abs(cause.own_ns))
    first = sorted(largest[:BARS], key=lambda cause: -cause.own_ns)
    bars = [Bar(cause.name, round(cause.own_ns)) for cause in first]
    if each.drift.applied and round(each.drift.ns):
        bars.append(Bar("the machine's drift", round(each.drift.ns)))
    rest = each.delta_ns - sum(bar.ns for bar in bars)
    if rest or len(largest) > BARS:
        bars.append(Bar(f"{max(0, len(largest) - BARS)} smaller changes", rest))
    if each.unprofiled_ns is None or each.base.timed_ns is None or each.new.timed_ns is None:
        return Account(each.base_ns, each.new_ns, tuple(bars), False)
    base, new = round(each.base.timed_ns), round(each.new.timed_ns)
    unprofiled = new - base - each.delta_ns
    return Account(base, new, (*bars, Bar("what the profiler hides or adds", unprofiled)), True)
