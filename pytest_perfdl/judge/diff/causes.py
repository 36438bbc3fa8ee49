"""The account as people ask for it: which kernel, operator, module or line the change is, the dearest first.

Changes of one name are one cause, however many shapes and places it has; where most of it happened is said with it:
the innermost module and the line that hold at least `MOSTLY` of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.judge.diff.account import Line
from pytest_perfdl.judge.diff.bound import of_cause, regions
from pytest_perfdl.judge.diff.effects import NOTHING, Amount, Effects, summed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_perfdl.judge.diff.account import Change, Diff
    from pytest_perfdl.judge.verdict import Bound
    from pytest_perfdl.part import Part, PartKind

MOSTLY = 0.8
"""Share of a cause's change that a module or a line must hold to be named for it."""
LEAST_SHARE = 0.002
"""Causes below this part of the step's time are not named."""
_LISTED = 3
"""Members of a group that its name lists."""

Status = Literal["new", "gone", "changed", "replaced", "fused", "split"]
_EXCHANGED: frozenset[Status] = frozenset({"replaced", "fused", "split"})
"""Of these the counts of both sides are of different things."""


@dataclass(frozen=True, slots=True)
class Cause:
    """All changes of one name. Nanoseconds per step."""

    kind: PartKind
    name: str
    status: Status
    module: str
    """The innermost module that holds most of the change; empty where no module does, or none is known."""
    line: str
    """The user's line that holds most of it; the same."""
    base: Amount
    new: Amount
    delta_ns: int
    own_ns: float
    """Without the machine's drift: what causes are ordered by."""
    effects: Effects
    certain: bool
    """Whether the interval of any of its changes excludes zero."""
    confidence: float
    """Of the matching it rests on: the least of its changes that matter."""
    changes: tuple[Change, ...]
    bound: Bound = ""
    """Whether launches or kernels bound the region that it is in; see `bound`."""


def causes(diff: Diff, *, everything: bool = False) -> tuple[Cause, ...]:
    """The causes of a change: what goes the step's way first, then by what it costs beyond the drift.

    Without `everything` only those are given whose interval excludes zero (or that were not tested for want of
    repeats, or are other work than before), and that cost at least `LEAST_SHARE` of the step; what came or went in
    number is always given.
    """
    by_name: dict[tuple[PartKind, str, Status], list[Change]] = defaultdict(list)
    for change in diff.changes:
        by_name[change.kind, _name(change), _status(change)].append(change)
    found = [_cause(kind, name, status, members) for (kind, name, status), members in _joined(by_name).items()]
    step = max(diff.base_ns, diff.new_ns)
    untested = diff.detectable_ns is None
    chosen = [
        cause
        for cause in found
        if everything
        or (abs(cause.own_ns) >= LEAST_SHARE * step and (cause.certain or untested or cause.status in _EXCHANGED))
        or (cause.kind != "idle" and abs(cause.new.count - cause.base.count) > 1e-9)
    ]
    way = -1 if diff.delta_ns < 0 else 1
    chosen.sort(key=lambda cause: (cause.own_ns * way < 0, -abs(cause.own_ns), cause.kind, cause.name))
    sides = regions(diff.base), regions(diff.new)
    return tuple(replace(cause, bound=of_cause(cause, *sides)) for cause in chosen)


def places(diff: Diff, kind: Literal["module", "line"]) -> tuple[Line, ...]:
    """Time by module (with the modules inside it) or by line, the largest change first."""
    base: dict[str, int] = defaultdict(int)
    new: dict[str, int] = defaultdict(int)
    for change in diff.changes:
        for total, parts, ns in ((base, change.base_parts, change.base_ns), (new, change.new_parts, change.new_ns)):
            for name in _around(_where(parts or (*change.base_parts, *change.new_parts), kind), kind):
                total[name] += ns
    found = [Line(name, base[name], new[name]) for name in dict.fromkeys((*base, *new))]
    return tuple(sorted(found, key=lambda place: (-abs(place.delta_ns), place.name)))


def _joined(
    by_name: Mapping[tuple[PartKind, str, Status], list[Change]],
) -> dict[tuple[PartKind, str, Status], list[Change]]:
    """What came in one place and changed in another is one cause: its count changed."""
    found: dict[tuple[PartKind, str, Status], list[Change]] = {}
    for (kind, name, status), members in by_name.items():
        both = status in ("new", "gone") and (
            (kind, name, "changed") in by_name or {(kind, name, "new"), (kind, name, "gone")} <= by_name.keys()
        )
        found.setdefault((kind, name, "changed" if both else status), []).extend(members)
    return found


def _cause(kind: PartKind, name: str, status: Status, members: Sequence[Change]) -> Cause:
    own = sum(change.own_ns for change in members)
    heavy = [change for change in members if abs(change.own_ns) >= 0.1 * abs(own)]
    return Cause(
        kind=kind,
        name=name,
        status=status,
        module=_mostly(members, "module"),
        line=_mostly(members, "line"),
        base=sum((change.base for change in members), NOTHING),
        new=sum((change.new for change in members), NOTHING),
        delta_ns=sum(change.delta_ns for change in members),
        own_ns=own,
        effects=sum((change.effects for change in members), Effects())
        if status in _EXCHANGED
        else summed((change.base, change.new, change.effects) for change in members),
        certain=any(change.certain for change in members),
        confidence=min((change.group.confidence for change in heavy), default=1.0),
        changes=tuple(sorted(members, key=lambda change: -abs(change.own_ns))),
    )


def _name(change: Change) -> str:
    """What a group is called: its part's name; of an exchange both sides'; of Python, what it ran."""
    before, after = (tuple(dict.fromkeys(map(_part_name, parts))) for parts in (change.base_parts, change.new_parts))
    if not before or not after or before == after:
        return _listed(after or before)
    if len(before) == len(after) == 1 and change.group.by in ("exact", "name"):
        return after[0]
    return f"{_listed(before)} -> {_listed(after)}"


def _part_name(part: Part) -> str:
    return part.function if part.kind == "idle" and part.function else part.name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _status(change: Change) -> Status:
    if not change.base_parts:
        return "new"
    if not change.new_parts:
        return "gone"
    if change.group.by in ("fused", "split"):
        return "fused" if change.group.by == "fused" else "split"
    return "replaced" if change.group.by in ("operator", "aligned") else "changed"


def _mostly(members: Sequence[Change], kind: Literal["module", "line"]) -> str:
    """The innermost place that holds `MOSTLY` of what goes the way of the whole; empty where none does.

    Where a number changed, that is what is looked for: the noise of all that stayed would lead away from it.
    """
    recounted = [change for change in members if abs(change.new.count - change.base.count) > 1e-9]
    members = recounted or members
    total = sum(change.own_ns for change in members)
    held: dict[str, float] = defaultdict(float)
    for change in members:
        if change.own_ns * total > 0:
            for name in _around(_where((*change.new_parts, *change.base_parts), kind), kind):
                held[name] += abs(change.own_ns)
    whole = sum(abs(change.own_ns) for change in members if change.own_ns * total > 0)
    enough = [name for name, ns in held.items() if name and ns >= MOSTLY * whole]
    return (
        max(enough, key=lambda name: (name.count("."), held[name], name), default="")
        if kind == "module"
        else max(enough, key=lambda name: (held[name], name), default="")
    )


def _where(parts: Iterable[Part], kind: Literal["module", "line"]) -> str:
    return next((value for part in parts if (value := part.module if kind == "module" else part.line)), "")


def _around(name: str, kind: Literal["module", "line"]) -> tuple[str, ...]:
    """A place and those around it: "Net.Block" is in "Net" too."""
    if kind == "line" or not name:
        return (name,)
    levels = name.split(".")
    return tuple(".".join(levels[:depth]) for depth in range(1, len(levels) + 1))
