"""The account as people ask for it: which kernel, operator, module or line the change is, the largest first.

Changes of one name are one cause, however many shapes and places it has; where most of it happened is said with it:
the innermost module and the line that hold at least `MOSTLY` of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.diff.account import NOTHING, AccountLine, Effects, by_name, columns, sum_effects, sum_lines
from pytest_perfdl.diff.side import EXCHANGED, DiffCause, excludes_zero
from pytest_perfdl.model.step_part import ANY, any_number, common_module, is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_perfdl.diff.account import Diff
    from pytest_perfdl.diff.side import Change, Floats, Key, Side
    from pytest_perfdl.model.step_part import Part
    from pytest_perfdl.results.verdict import Bound


# Launch-bound or kernel-bound: what a region of a step on a device would have to do less of to be faster.
#
# A *region* is what one side's step spends in some modules: K, the time of kernels, copies and memsets launched there
# that nothing hides, and the idle time of the device that ends with one of them, by class. F is the idle time of the
# classes `FED_LATE`. It is all of the time in which nothing ran on any device *and nothing was queued*: the launch that
# ended it came after it had begun ("device wait" is idle time with work queued), and until then the host neither waited
# for data nor for the device ("input" and "synchronization" are the account's to tell). So F grows with every kernel
# that finds an empty queue, and is 0 while the host is ahead.
#
#     launch   F >= LAUNCH_SHARE * (F + K): faster kernels would wait longer for the next launch
#     kernel   F is less: the device seldom waits for its host
#     (empty)  F + K is less than `LEAST_TOLD` of the region's time, which waits for something else; or nothing of it
#              is on a device
#
# On a CPU-only step there are no launches: of its causes, Python's own time is bound by the *host*.


FED_LATE = frozenset({"launch latency", "operator overhead", "Python and host"})
"""Classes of idle time in which the device had nothing queued and the host was on its way to the next launch."""
LAUNCH_SHARE = 0.2
"""A host that is ahead leaves the device idle at a step's edges and after copies to the host: well below this."""
LEAST_TOLD = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """The time of one side's step by module."""

    on_device: bool
    by_module: Mapping[str, Floats]
    """F, K, and all time of the module, nanoseconds per step."""

    def inside(self, module: str) -> list[str]:
        """A module and those in it; all of them for an empty name."""
        return [name for name in self.by_module if is_inside(name, module)]

    def launch_share(self, modules: Iterable[str] | None = None) -> float | None:
        """F / (F + K) of some modules, by default of the whole step; `None` without either."""
        late, kernels, _ = self._spent(modules)
        return late / (late + kernels) if self.on_device and late + kernels > 0 else None

    def bound(self, modules: Iterable[str] | None = None) -> Bound:
        """What bounds some modules, by default the whole step."""
        late, kernels, whole = self._spent(modules)
        total = late + kernels
        if not self.on_device or total <= 0 or total < LEAST_TOLD * whole:
            return ""
        return "launch" if late >= LAUNCH_SHARE * total else "kernel"

    def _spent(self, modules: Iterable[str] | None) -> list[float]:
        names = self.by_module if modules is None else modules
        spent = (self.by_module[name] for name in names if name in self.by_module)
        total: list[float] = sum(spent, np.zeros(3)).tolist()
        return total


def regions(side: Side) -> Regions:
    """Means over a side's runs or steps."""
    by_module: dict[str, Floats] = defaultdict(lambda: np.zeros(3))
    for part, name, ns in zip(side.parts, side.classes, side.ns.mean(axis=1).tolist(), strict=True):
        by_module[part.module] += (part.kind == "idle" and name in FED_LATE) * ns, (part.kind == "kernel") * ns, ns
    return Regions(any(part.kind == "kernel" for part in side.parts), by_module)


def find_bound(cause: DiffCause, base: Regions, new: Regions) -> Bound:
    """What bounds the region of a cause, on the new side or, for what is gone, on the base's.

    It is the cause's module with those inside it; without one the modules that its parts are in, and what is outside
    of all modules is a region too. Idle time of the device is its own region: launch-bound if it is of `FED_LATE`.
    """
    there = any(change.new_parts for change in cause.changes)
    side = new if there else base
    name_class = cause.changes[0].name_class
    if not side.on_device:
        return "host" if cause.kind == "idle" and name_class == "Python and host" else ""
    if cause.kind == "idle":
        return "launch" if name_class in FED_LATE else ""
    if cause.module:
        return side.bound(side.inside(cause.module))
    parts = (part for change in cause.changes for part in (change.new_parts if there else change.base_parts))
    return side.bound({part.module for part in parts})


MOSTLY = 0.8
"""Share of a cause's change that a module or a line must hold to be named for it."""
LEAST_SHARE = 0.002
"""Causes below this part of the step's time are not named."""
LEAST_SHARE_RECORDED = 0.005
"""The same of two records, whose processes differ by more than those of rounds."""
LEAST_SHARE_UNREPEATED = 0.01
"""The same where these have no repeats that show by how much."""
LIKELY_SHARE = 0.25
"""Part of the step's change that the likeliest cause must hold, where no cause is certain."""
LIKELY_COLUMNS = 5
"""Fewer columns have no middle that interruptions leave alone."""
STEADY = 0.9
"""Share of the columns in which a change that is not certain must go the way of those that are to be one of them."""
_LEAST_SPREAD = 0.05
"""Floor of a spread, as a share of the change: a few equal readings are no certainty."""


def causes(diff: Diff, *, everything: bool = False) -> tuple[DiffCause, ...]:
    """The causes of a change: those in the same direction as the step first, then by what it costs beyond the drift.

    Without `everything` only those are given whose interval excludes zero (or that were not tested for want of
    repeats, or are other work than before), and that cost at least `LEAST_SHARE` of the step; what came or went in
    number is always given. Where a name's changes are not certain together, those of them that are make its cause.
    """
    found = [
        _make_cause(key, members if everything else _select_evident(diff, key, members), diff.intervals.get(key))
        for key, members in by_name(diff.changes).items()
    ]
    step = max(diff.base_ns, diff.new_ns)
    untested = diff.detectable_ns is None
    least = LEAST_SHARE
    if diff.recorded:
        least = LEAST_SHARE_UNREPEATED if untested else LEAST_SHARE_RECORDED
    chosen = [
        cause
        for cause in found
        if everything
        or (abs(cause.own_ns) >= least * step and (cause.certain or untested or cause.status in EXCHANGED))
        or (cause.kind != "idle" and _is_recounted(cause))
    ]
    way = -1 if diff.delta_ns < 0 else 1
    chosen.sort(key=lambda cause: (cause.own_ns * way < 0, -abs(cause.own_ns), cause.kind, cause.name))
    sides = regions(diff.base), regions(diff.new)
    return tuple(replace(cause, bound=find_bound(cause, *sides)) for cause in chosen)


def remainder(diff: Diff, cause: DiffCause) -> DiffCause | None:
    """What of the changes of a cause's name is not part of the cause; `None` where all of them are."""
    key = cause.kind, cause.name, cause.status
    own = {id(change) for change in cause.changes}
    left = [change for change in by_name(diff.changes)[key] if id(change) not in own]
    return _make_cause(key, left, None) if left else None


def likeliest(diff: Diff, change_ns: float) -> DiffCause | None:
    """The likeliest cause of a certain change of the timed step, where none of its parts changed for certain.

    A single interruption of the few profiled steps can widen every interval. So the name is taken whose differences,
    column by column, have the largest median over their median absolute deviation; it must go the step's way and hold
    at least `LIKELY_SHARE` of the change. `None` where there is none, or the sides' columns are no pairs.
    """
    if diff.base.columns != diff.new.columns or diff.base.columns < LIKELY_COLUMNS:
        return None
    best: tuple[float, Key, Sequence[Change]] | None = None
    for key, members in by_name(diff.changes).items():
        before, after = columns([change.group for change in members], diff.base, diff.new)
        towards = (after - before) * (1 if change_ns > 0 else -1)
        middle = float(np.median(towards))
        spread = float(np.median(np.abs(towards - middle)))
        if middle >= LIKELY_SHARE * abs(change_ns):
            weight = middle / max(spread, _LEAST_SPREAD * middle)
            best = max(best or (weight, key, members), (weight, key, members), key=lambda each: each[0])
    return None if best is None else _make_cause(*best[1:], diff.intervals.get(best[1]))


def places(diff: Diff, kind: Literal["module", "line"]) -> tuple[AccountLine, ...]:
    """Time by module (with the modules inside it) or by line, the largest change first."""
    found = sum_lines(
        (name, base_ns, new_ns)
        for change in diff.changes
        for parts, base_ns, new_ns in ((change.base_parts, change.base_ns, 0), (change.new_parts, 0, change.new_ns))
        for name in _around(_where(parts or (*change.base_parts, *change.new_parts), kind), kind)
    )
    return tuple(sorted(found, key=lambda place: (-abs(place.delta_ns), place.name)))


def _select_evident(diff: Diff, key: Key, members: Sequence[Change]) -> Sequence[Change]:
    """The changes of a name that show, where all of them together are not certain; else all.

    Those are the certain ones, and those that went the same way as these in nearly all columns: one hit column makes
    the interval of a change useless, not its signs.
    """
    if excludes_zero(diff.intervals.get(key)) or any(map(_is_recounted, members)):
        return members
    told = [change for change in members if change.certain or _is_reshaped(change)]
    way = sum(change.own_ns for change in told)
    return [change for change in members if change in told or _goes_one_way(diff, change, way)] if told else members


def _goes_one_way(diff: Diff, change: Change, way: float) -> bool:
    """Whether a change goes a way in at least `STEADY` of the columns, where these are pairs.

    Idle time is what is left of the step: it goes any way that its neighbors go.
    """
    before, after = columns([change.group], diff.base, diff.new)
    if change.kind == "idle" or len(before) != len(after) or len(before) < LIKELY_COLUMNS:
        return False
    return bool(np.count_nonzero((after - before) * way > 0) >= STEADY * len(before))


def _is_recounted(change: Change | DiffCause) -> bool:
    return abs(change.new.count - change.base.count) > 1e-9


def _is_reshaped(change: Change) -> bool:
    """Whether the same operator works on tensors of other shapes: other work, like another number."""
    before, after = ({part.shapes for part in parts} for parts in (change.base_parts, change.new_parts))
    return bool(before) and bool(after) and before != after


def _make_cause(key: Key, members: Sequence[Change], interval: tuple[float, float] | None) -> DiffCause:
    kind, name, status = key
    own = sum(change.own_ns for change in members)
    heavy = [change for change in members if abs(change.own_ns) >= 0.1 * abs(own)]
    base = sum((change.base for change in members), NOTHING)
    new = sum((change.new for change in members), NOTHING)
    effects = sum((change.effects for change in members), Effects())
    return DiffCause(
        kind=kind,
        name=name,
        status=status,
        module=_find_place(members, "module"),
        line=_find_place(members, "line"),
        graph=_find_graph(members),
        base=base,
        new=new,
        delta_ns=sum(change.delta_ns for change in members),
        own_ns=own,
        effects=effects if status in EXCHANGED else sum_effects(base, new, effects),
        certain=excludes_zero(interval) or any(change.certain or _is_reshaped(change) for change in members),
        confidence=min((change.group.confidence for change in heavy), default=1.0),
        changes=tuple(sorted(members, key=lambda change: -abs(change.own_ns))),
    )


def _find_place(members: Sequence[Change], kind: Literal["module", "line"]) -> str:
    """The innermost place that holds `MOSTLY` of what goes the way of the whole; empty where none does.

    Where a number or a shape changed, that is what is looked for: the noise of all that stayed would lead away from
    it. A module that a model has several times, in each of its blocks, is one place: "GPT.h.*.attn".
    """
    members = [*filter(_is_recounted, members)] or [*filter(_is_reshaped, members)] or members

    def place_of(change: Change) -> str:
        return _where((*change.new_parts, *change.base_parts), kind)

    if kind == "line":
        held = _find_holders(members, lambda change: {place_of(change)})
        return max(held, key=lambda name: (held[name], name), default="")
    held = _find_holders(
        members, lambda change: {*_around(place := place_of(change), kind), *_around(_in_any(place), kind)}
    )
    enough = [name for name in held if not name.endswith(f".{ANY}")]
    # Where one block holds enough by itself it is named, not all of them.
    best = max(enough, key=lambda name: (name.count("."), -name.count(ANY), held[name], name), default="")
    if ANY not in best:
        return best
    depth = best.count(".") + 1
    inside = (place for place in map(place_of, _towards(members)) if is_inside(place, best))
    return common_module(sorted({".".join(place.split(".")[:depth]) for place in inside}))


def _find_graph(members: Sequence[Change]) -> str:
    """The node of a graph that holds `MOSTLY` of what goes the way of the whole, or else the graph."""

    def names(change: Change) -> set[str]:
        node = next((part.node_name for part in (*change.new_parts, *change.base_parts) if part.node_name), "")
        return {node, node.partition(",")[0]}

    return max(_find_holders(members, names), key=len, default="")


def _towards(members: Sequence[Change]) -> list[Change]:
    """The changes that go the way of the whole."""
    total = sum(change.own_ns for change in members)
    return [change for change in members if change.own_ns * total > 0]


def _find_holders(members: Sequence[Change], names: Callable[[Change], set[str]]) -> dict[str, float]:
    """By name what goes the way of the whole, of the names that hold at least `MOSTLY` of that."""
    held: dict[str, float] = defaultdict(float)
    towards = _towards(members)
    for change in towards:
        for name in names(change):
            held[name] += abs(change.own_ns)
    whole = sum(abs(change.own_ns) for change in towards)
    return {name: ns for name, ns in held.items() if name and ns >= MOSTLY * whole}


def _in_any(module: str) -> str:
    return ".".join(map(any_number, module.split(".")))


def _where(parts: Iterable[Part], kind: Literal["module", "line"]) -> str:
    return next((value for part in parts if (value := part.module if kind == "module" else part.line)), "")


def _around(name: str, kind: Literal["module", "line"]) -> tuple[str, ...]:
    """A place and those around it: "Net.Block" is in "Net" too."""
    if kind == "line" or not name:
        return (name,)
    levels = name.split(".")
    return tuple(".".join(levels[:depth]) for depth in range(1, len(levels) + 1))
