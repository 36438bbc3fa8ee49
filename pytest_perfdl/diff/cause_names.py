"""What changes are called: groups of matched parts that have one name are one cause."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.diff.changes import Change, Key, Status
    from pytest_perfdl.diff.side import Side
    from pytest_perfdl.model.step_part import Part

    Floats = NDArray[np.float64]

_LISTED = 3
"""Members of a group that its name lists."""


def by_name(changes: Iterable[Change]) -> dict[Key, list[Change]]:
    """The changes of each name; what came in one place and changed in another is one cause: its count changed."""
    apart: dict[Key, list[Change]] = defaultdict(list)
    for change in changes:
        apart[change.kind, _name(change), _status(change)].append(change)
    found: dict[Key, list[Change]] = {}
    for (kind, name, status), members in apart.items():
        both = status in ("new", "gone") and (
            (kind, name, "changed") in apart or {(kind, name, "new"), (kind, name, "gone")} <= apart.keys()
        )
        found.setdefault((kind, name, "changed" if both else status), []).extend(members)
    return found


def columns(changes: Iterable[Change], base: Side, new: Side) -> tuple[Floats, Floats]:
    """Time of these changes in every column of both sides, nanoseconds."""
    groups = [change.group for change in changes]
    before = base.ns[[place for group in groups for place in group.base]].sum(axis=0)
    after = new.ns[[place for group in groups for place in group.new]].sum(axis=0)
    return np.asarray(before), np.asarray(after)


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
