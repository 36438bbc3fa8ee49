"""The account as people ask for it: which kernel, operator, module or line the change is, the largest first.

Changes of one name are one cause, however many shapes and places it has; where most of it happened is said with it:
the innermost module and the line that hold at least `MOSTLY` of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.diff.account import AccountLine
from pytest_perfdl.diff.bound import of_cause, regions
from pytest_perfdl.diff.cause_names import by_name, columns
from pytest_perfdl.diff.changes import EXCHANGED, DiffCause, excludes_zero
from pytest_perfdl.diff.effects import NOTHING, Effects, summed
from pytest_perfdl.model.step_part import ANY, any_number, common_module, is_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_perfdl.diff.account import Diff
    from pytest_perfdl.diff.changes import Change, Key
    from pytest_perfdl.model.step_part import Part

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
        _cause(key, members if everything else _evident(diff, key, members), diff.intervals.get(key))
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
        or (cause.kind != "idle" and _recounted(cause))
    ]
    way = -1 if diff.delta_ns < 0 else 1
    chosen.sort(key=lambda cause: (cause.own_ns * way < 0, -abs(cause.own_ns), cause.kind, cause.name))
    sides = regions(diff.base), regions(diff.new)
    return tuple(replace(cause, bound=of_cause(cause, *sides)) for cause in chosen)


def remainder(diff: Diff, cause: DiffCause) -> DiffCause | None:
    """What of the changes of a cause's name is not part of the cause; `None` where all of them are."""
    left = [
        change
        for key, members in by_name(diff.changes).items()
        if key == (cause.kind, cause.name, cause.status)
        for change in members
        if not any(change is own for own in cause.changes)
    ]
    return _cause((cause.kind, cause.name, cause.status), left, None) if left else None


def likeliest(diff: Diff, change_ns: float) -> DiffCause | None:
    """The likeliest cause of a change of the step that is certain, where none of its parts changed for certain.

    A single interruption of the few profiled steps can widen every interval. So the name is taken whose differences,
    column by column, have the largest median over their median absolute deviation; it must go the step's way and hold
    at least `LIKELY_SHARE` of the change. `None` where there is none, or the sides' columns are no pairs.

    Parameters
    ----------
    change_ns
        By how much the step changed without the profiler.
    """
    if diff.base.columns != diff.new.columns or diff.base.columns < LIKELY_COLUMNS:
        return None
    best: tuple[float, Key, Sequence[Change]] | None = None
    for key, members in by_name(diff.changes).items():
        before, after = columns(members, diff.base, diff.new)
        towards = (after - before) * (1 if change_ns > 0 else -1)
        middle = float(np.median(towards))
        spread = float(np.median(np.abs(towards - middle)))
        if middle >= LIKELY_SHARE * abs(change_ns):
            weight = middle / max(spread, _LEAST_SPREAD * middle)
            best = max(best or (weight, key, members), (weight, key, members), key=lambda each: each[0])
    return None if best is None else _cause(*best[1:], diff.intervals.get(best[1]))


def places(diff: Diff, kind: Literal["module", "line"]) -> tuple[AccountLine, ...]:
    """Time by module (with the modules inside it) or by line, the largest change first."""
    base: dict[str, int] = defaultdict(int)
    new: dict[str, int] = defaultdict(int)
    for change in diff.changes:
        for total, parts, ns in ((base, change.base_parts, change.base_ns), (new, change.new_parts, change.new_ns)):
            for name in _around(_where(parts or (*change.base_parts, *change.new_parts), kind), kind):
                total[name] += ns
    found = [AccountLine(name, base[name], new[name]) for name in dict.fromkeys((*base, *new))]
    return tuple(sorted(found, key=lambda place: (-abs(place.delta_ns), place.name)))


def _evident(diff: Diff, key: Key, members: Sequence[Change]) -> Sequence[Change]:
    """The changes of a name that show, where all of them together are not certain; else all.

    Those are the certain ones, and those that went the same way as these in nearly all columns: one hit column makes
    the interval of a change useless, not its signs.
    """
    if excludes_zero(diff.intervals.get(key)) or any(map(_recounted, members)):
        return members
    told = [change for change in members if change.certain or _reshaped(change)]
    way = sum(change.own_ns for change in told)
    return [change for change in members if change in told or _steady(diff, change, way)] if told else members


def _steady(diff: Diff, change: Change, way: float) -> bool:
    """Whether a change goes a way in at least `STEADY` of the columns, where these are pairs.

    Idle time is what is left of the step: it goes any way that its neighbors go.
    """
    before, after = columns([change], diff.base, diff.new)
    if change.kind == "idle" or len(before) != len(after) or len(before) < LIKELY_COLUMNS:
        return False
    return bool(np.count_nonzero((after - before) * way > 0) >= STEADY * len(before))


def _recounted(change: Change | DiffCause) -> bool:
    return abs(change.new.count - change.base.count) > 1e-9


def _reshaped(change: Change) -> bool:
    """Whether the same operator works on tensors of other shapes: other work, like another number."""
    before, after = ({part.shapes for part in parts} for parts in (change.base_parts, change.new_parts))
    return bool(before) and bool(after) and before != after


def _cause(key: Key, members: Sequence[Change], interval: tuple[float, float] | None) -> DiffCause:
    kind, name, status = key
    own = sum(change.own_ns for change in members)
    heavy = [change for change in members if abs(change.own_ns) >= 0.1 * abs(own)]
    return DiffCause(
        kind=kind,
        name=name,
        status=status,
        module=_mostly(members, "module"),
        line=_mostly(members, "line"),
        graph=_graph(members),
        base=sum((change.base for change in members), NOTHING),
        new=sum((change.new for change in members), NOTHING),
        delta_ns=sum(change.delta_ns for change in members),
        own_ns=own,
        effects=sum((change.effects for change in members), Effects())
        if status in EXCHANGED
        else summed((change.base, change.new, change.effects) for change in members),
        certain=excludes_zero(interval) or any(change.certain or _reshaped(change) for change in members),
        confidence=min((change.group.confidence for change in heavy), default=1.0),
        changes=tuple(sorted(members, key=lambda change: -abs(change.own_ns))),
    )


def _mostly(members: Sequence[Change], kind: Literal["module", "line"]) -> str:
    """The innermost place that holds `MOSTLY` of what goes the way of the whole; empty where none does.

    Where a number or a shape changed, that is what is looked for: the noise of all that stayed would lead away from
    it. A module that a model has several times, in each of its blocks, is one place: "GPT.h.*.attn".
    """
    members = [*filter(_recounted, members)] or [*filter(_reshaped, members)] or members
    total = sum(change.own_ns for change in members)
    held: dict[str, float] = defaultdict(float)
    towards = [
        (_where((*change.new_parts, *change.base_parts), kind), abs(change.own_ns))
        for change in members
        if change.own_ns * total > 0
    ]
    for place, ns in towards:
        for name in {*_around(place, kind), *(_around(_in_any(place), kind) if kind == "module" else ())}:
            held[name] += ns
    whole = sum(ns for _, ns in towards)
    enough = [name for name, ns in held.items() if name and ns >= MOSTLY * whole and not name.endswith(f".{ANY}")]
    if kind == "line":
        return max(enough, key=lambda name: (held[name], name), default="")
    # Where one block holds enough by itself it is named, not all of them.
    best = max(enough, key=lambda name: (name.count("."), -name.count(ANY), held[name], name), default="")
    if ANY not in best:
        return best
    depth = best.count(".") + 1
    inside = {".".join(place.split(".")[:depth]) for place, _ in towards if is_inside(place, best)}
    return common_module(sorted(inside))


def _graph(members: Sequence[Change]) -> str:
    """The node of a graph that holds `MOSTLY` of what goes the way of the whole, or else the graph."""
    total = sum(change.own_ns for change in members)
    held: dict[str, float] = defaultdict(float)
    whole = 0.0
    for change in members:
        if change.own_ns * total > 0:
            ns = abs(change.own_ns)
            whole += ns
            node = next((part.node_name for part in (*change.new_parts, *change.base_parts) if part.node_name), "")
            for name in {node, node.partition(",")[0]}:
                held[name] += ns
    enough = [name for name, ns in held.items() if name and ns >= MOSTLY * whole]
    return max(enough, key=len, default="")


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
