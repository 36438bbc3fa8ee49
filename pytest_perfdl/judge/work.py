"""Whether a slower step does more work, or the same less efficiently, and whether a faster one still does its work.

The operators' FLOPs, bytes and element types are known exactly from their shapes, on both sides; their times are from
the profiled steps of all rounds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import Bound, OperatorWork
from pytest_perfdl.model.units import format_percent, format_quantity, some
from pytest_perfdl.results.verdict import OperatorSides, WorkChange, WorkKind, WorkSide

K = TypeVar("K")

SAME_ARITHMETIC = 0.01
"""Share by which FLOPs may differ and be called the same."""
MORE = 0.05
"""Share by which the least time of the arithmetic, the bytes or the calls must grow to be why."""
LEAST_SHARE = 0.25
"""Part of what the operators' time grew by that one of them must hold to be named for it."""
LISTED = 1e-3
"""Share of the operators' time that calls of one kind must take on either side to be listed."""

_BITS = {
    "float64": 64,
    "complex64": 64,
    "float32": 32,
    "tf32": 19,
    "bfloat16": 16,
    "float16": 16,
    "float8": 8,
    "int8": 8,
}
"""Of element types: where no peak is known, more of them are dearer."""


@dataclass(slots=True)
class _Total:
    """Sums over the operators of some steps."""

    bytes: int = 0
    calls: int = 0
    time_ns: int = 0
    types: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """FLOPs by element type."""
    least_ns: float = 0.0
    bounds: dict[Bound, float] = field(default_factory=lambda: defaultdict(float))
    """The same by what it is bound by."""
    held_ns: int = 0
    """Time of what has a least time."""

    def add(self, work: OperatorWork, peaks: Peaks | None) -> None:
        self.calls += work.calls
        self.time_ns += work.time_ns
        if work.flops is None or work.bytes is None:
            return
        self.bytes += work.bytes
        self.types[work.dtype] += work.flops
        least = work.least_ns(peaks) if peaks else None
        bound = work.bound(peaks) if peaks else None
        if least is not None and bound is not None:
            self.least_ns += least
            self.bounds[bound] += least
            self.held_ns += work.time_ns

    def a_step(self, steps: int) -> WorkSide:
        flops = sum(self.types.values())
        return WorkSide(
            flops=flops / steps,
            bytes=self.bytes / steps,
            calls=self.calls / steps,
            time_ns=self.time_ns / steps,
            types={name: each / flops for name, each in self.types.items() if each},
            roofline=self.least_ns / self.held_ns if self.held_ns else None,
            bound=max(self.bounds.items(), key=lambda item: item[1])[0] if self.bounds else "",
        )


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the operators of some profiled steps had to do."""

    steps: int
    operators: tuple[OperatorWork, ...]


def work_change(
    call: str, base: Sequence[StepWork], new: Sequence[StepWork], peaks: Peaks | None = None, grown_ns: float = 0.0
) -> WorkChange | None:
    """What a slower step of a call does more, or worse; `None` without profiled operators on both sides.

    The first that holds, of the step as a whole: its FLOPs grew by more than 1 % (`more work`); they are done in
    element types that take 5 % more time at the machine's peaks (`dearer type`); 5 % more bytes or calls (`more traffic
    or calls`); else the same work is `done worse`. What is named for it is the operator whose time, or arithmetic, grew
    most, if it holds a quarter of that; none where the operators' time grew by less than a quarter of what the timed
    step did (`grown_ns`).
    """
    old, now = (_mean_step(side, peaks, lambda _: "").get("") for side in (base, new))
    if old is None or now is None:
        return None
    kind = _kind(old, now, peaks)
    inside = now.time_ns - old.time_ns >= LEAST_SHARE * grown_ns
    by_old, by_now = (_mean_step(side, peaks, lambda work: work.operator) for side in (base, new))
    operator, share = _largest_growth(kind, by_old, by_now) if inside or kind != "done worse" else ("", 0.0)
    if operator:
        nothing = WorkSide(0, 0, 0, 0, {}, None)
        sides = by_old.get(operator, nothing), by_now.get(operator, nothing)
        return WorkChange(kind, call, operator, *sides, old, now, share)
    return WorkChange(kind, call, "", old, now, old, now)


def operator_sides(
    call: str, base: Iterable[StepWork], new: Iterable[StepWork], peaks: Peaks | None = None
) -> list[OperatorSides]:
    """What the operators of a call's steps had to do on both sides, joined by operator, shapes and element type.

    Those that took the most time first; those with less than a thousandth of it on both sides are left out.
    """
    sides = [_mean_step(side, peaks, lambda work: (work.operator, work.shapes, work.dtype)) for side in (base, new)]
    least = [LISTED * sum(each.time_ns for each in side.values()) for side in sides]
    found = []
    for place in dict.fromkeys(key for side in sides for key in side):
        both = [side.get(place) for side in sides]
        if any(each is not None and each.time_ns > limit for each, limit in zip(both, least, strict=True)):
            found.append(OperatorSides(call, *place, *both))
    return sorted(found, key=lambda each: (-_longest_ns(each), each.operator, each.shapes, each.dtype))


def _longest_ns(sides: OperatorSides) -> float:
    return max(each.time_ns for each in (sides.base, sides.new) if each is not None)


def _mean_step(side: Iterable[StepWork], peaks: Peaks | None, key: Callable[[OperatorWork], K]) -> dict[K, WorkSide]:
    """The work of a mean step by key; empty without steps."""
    totals: dict[K, _Total] = defaultdict(_Total)
    steps = 0
    for each in side:
        steps += each.steps
        for work in each.operators:
            totals[key(work)].add(work, peaks)
    return {value: total.a_step(steps) for value, total in totals.items()} if steps else {}


def _kind(old: WorkSide, new: WorkSide, peaks: Peaks | None) -> WorkKind:
    if new.flops > (1 + SAME_ARITHMETIC) * old.flops:
        return "more work"
    if _cost(new.types, peaks) > (1 + MORE) * _cost(old.types, peaks):
        return "dearer type"
    if new.bytes > (1 + MORE) * old.bytes or new.calls > (1 + MORE) * old.calls:
        return "more traffic or calls"
    return "done worse"


def _cost(types: Mapping[str, float], peaks: Peaks | None) -> float:
    """What a FLOP takes on average: seconds at the peaks, or bits where one of them is not known."""
    rates = peaks.flops_per_s if peaks else {}
    if all(rates.get(name) for name in types):
        return sum(share / rates[name] for name, share in types.items())
    return sum(share * _BITS.get(name, 32) for name, share in types.items())


def _largest_growth(kind: WorkKind, old: Mapping[str, WorkSide], new: Mapping[str, WorkSide]) -> tuple[str, float]:
    """The operator that holds most of what grew, and its part of it; none where that is less than `LEAST_SHARE`."""

    def measure(side: WorkSide | None) -> float:
        return 0.0 if side is None else side.flops if kind == "more work" else side.time_ns

    grown = {name: measure(new.get(name)) - measure(old.get(name)) for name in (*old, *new) if name}
    whole = sum(each for each in grown.values() if each > 0)
    most = max(grown, key=lambda name: grown[name], default="")
    share = grown[most] / whole if whole > 0 else 0.0
    return (most, share) if share >= LEAST_SHARE else ("", 0.0)


def join_work(sides: Sequence[Mapping[str, StepWork]]) -> dict[str, list[StepWork]]:
    """The work of several rounds by call."""
    found: dict[str, list[StepWork]] = defaultdict(list)
    for side in sides:
        for call, work in side.items():
            found[call].append(work)
    return found


# Whether a faster step is faster than the machine can compute it.


IMPLAUSIBLE = 0.7
"""Part of its least time below which a time is implausible: measured peak rates are that close to the true ones."""
BEYOND_CACHE = 4
"""Times the size of the last-level cache from which on a call's data come from memory."""


def describe_implausible(work: Sequence[StepWork], peaks: Peaks, step_ns: float) -> str:
    """Why a time of a step is implausible, in words; empty if it is not.

    The least time of a step is that of its FLOPs, each at the rate of its element type, or that of its bytes at the
    bandwidth of the memory, whichever is longer (the roofline, see `Peaks.least_ns`). Bytes count only of calls whose
    data do not fit into a quarter of the last-level cache.

    Parameters
    ----------
    work
        Of the profiled steps of all rounds.
    step_ns
        What a timed step takes.
    """
    steps = sum(each.steps for each in work)
    least: dict[tuple[str, str], float] = defaultdict(float)
    taken: dict[tuple[str, str], int] = defaultdict(int)
    arithmetic = traffic = 0.0
    for operator in (operator for each in work for operator in each.operators):
        flops_ns, bytes_ns = _least_ns(operator, peaks)
        arithmetic, traffic = arithmetic + flops_ns, traffic + bytes_ns
        least[operator.operator, operator.shapes] += max(flops_ns, bytes_ns)
        taken[operator.operator, operator.shapes] += operator.time_ns
    if not steps:
        return ""
    bound = max(arithmetic, traffic) / steps
    if step_ns < IMPLAUSIBLE * bound:
        return _implausible("a step", step_ns, bound)
    place = max(least, key=lambda key: least[key] - taken[key], default=("", ""))
    if taken[place] < IMPLAUSIBLE * least[place]:
        return _implausible(f"{place[0]} {place[1]}".rstrip(), taken[place] / steps, least[place] / steps)
    return ""


def _least_ns(operator: OperatorWork, peaks: Peaks) -> tuple[float, float]:
    """Least time of the FLOPs and of the bytes of all calls; 0 where that is not known."""
    rate = peaks.flops_per_s.get(operator.dtype)
    flops_ns = (operator.flops or 0) / rate * 1e9 if rate else 0.0
    beyond = peaks.cache_bytes is not None and operator.working_set > BEYOND_CACHE * peaks.cache_bytes
    return flops_ns, (operator.bytes or 0) / peaks.bytes_per_s * 1e9 if beyond else 0.0


def _implausible(what: str, taken_ns: float, least_ns: float) -> str:
    return (
        f"{what} takes {format_quantity(taken_ns, 'ns')}, but its FLOPs and bytes need at least "
        f"{format_quantity(least_ns, 'ns')} at the peak rates of this machine: check whether the result is computed in "
        "the step (a kept result, a missing synchronization) and whether FLOPs are counted for work that is not done"
    )


# Whether a step that got faster still does its work: a result that is kept from the first step is no speed-up.
#
# The first step of a process builds what later steps use (tables, states of optimizers, compiled code, tuned kernels),
# so it may always do more. Its work vanished only if nearly all that the baseline's steps do is missing in the later
# steps, most of it was done by the first step, and nothing came in its place.


DONE = 0.5
"""Part of the baseline's work that the first step must have done, and the later ones not."""
KEPT_TIME, KEPT_CALLS, KEPT_FLOPS = 0.25, 0.1, 0.25
"""Parts of it that the later steps may still do, of its time, its calls and its FLOPs. A step that only keeps a table,
however large, still runs the operators that its input goes through; one that makes a single large call of many small
ones still does the arithmetic. Calls and FLOPs are exact, where times of profiled steps are not."""
REPLACED = 0.5
"""Part of the later steps' time in operators that the baseline does not have, from which on these replaced its work."""
LEAST_REPLACED = 0.05
"""Part of the baseline's time that these operators must take."""
_COMPILED = re.compile(r"Compiled|inductor|triton|_cpp_fused|TensorExpr|prim::|Graph", re.IGNORECASE)
"""Operators and kernels of compiled code."""
_KEEPING = re.compile(
    r"(?:aten::)?_?(?:clone|copy_?|to_copy|to|detach_?|alias|view|as_strided|empty\w*|resize\w*|fill_|zero_|equal|eq|ne|"
    r"all|any|allclose|isclose|is_nonzero|item|local_scalar_dense|lift_fresh|set_data)"
)
"""Operators that compare an input with the last one, or hand out a copy of a result: they replace no work."""

Rows = Mapping[str, tuple[float, float]]
"""By name of an operator or kernel, how often a step runs it and how long that takes, in nanoseconds."""


def find_vanished(base: Rows, first: Rows, later: Rows, flops: float | None = None) -> str:
    """What the first step did and the later ones do not, in words; empty if the later steps do their work.

    Parameters
    ----------
    base
        The baseline's steps, without their first ones.
    first, later
        The current code's first step of a process, and later steps. All three of kernels where a step has some, else of
        operators.
    flops
        Counted FLOPs of the later steps over those of the baseline's; `None` where these have none.
    """
    whole = sum(ns for _, ns in base.values())
    if not whole:
        return ""
    done: dict[str, float] = {}
    working = {name: count for name, (count, _) in base.items() if not _KEEPING.fullmatch(name)}
    kept = calls = 0.0
    for name, (count, ns) in base.items():
        left = min(later.get(name, (0.0, 0.0))[0], count)
        kept += ns * left / count
        calls += left if name in working else 0
        done[name] = ns * max(0.0, min(first.get(name, (0.0, 0.0))[0], count) - left) / count
    share = sum(done.values()) / whole
    is_kept = kept > KEPT_TIME * whole or calls > KEPT_CALLS * sum(working.values())
    is_kept = is_kept or (flops is not None and flops > KEPT_FLOPS)
    if share < DONE or is_kept or _is_replaced(base, later):
        return ""
    names = some([name for name in sorted(done, key=lambda each: -done[each]) if done[name] > 0])
    return (
        f"only the first step does {format_percent(share, signed=False)} of the baseline's work ({names}), so later "
        "steps may return a kept result: give each step a new input, or measure what a first call takes"
    )


def _is_replaced(base: Rows, later: Rows) -> bool:
    """Whether other operators do the work."""
    if any(_COMPILED.search(name) for name in later):
        return True
    new = sum(ns for name, (_, ns) in later.items() if name not in base and not _KEEPING.fullmatch(name))
    least = LEAST_REPLACED * sum(ns for _, ns in base.values())
    return new > max(least, REPLACED * sum(ns for _, ns in later.values()))
