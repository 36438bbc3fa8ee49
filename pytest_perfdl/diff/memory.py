"""One account of a peak subtracted from another: which tensors make it higher, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.model.memory import (
    OF_PARAMETERS,
    Category,
    MemoryAccount,
    MemoryCause,
    MemoryRow,
    Movement,
    RowChange,
)

_LEADS: tuple[Category, ...] = ("parameters", "optimizer state", "gradients")
"""Of the rows of one parameter, that which says where it comes from."""
_ELSEWHERE: frozenset[Movement] = frozenset({"longer", "shorter", "moment"})


Placed = Callable[[MemoryRow], MemoryRow]
"""A row with the line of its stack that says most about a change."""


def _as_it_is(row: MemoryRow) -> MemoryRow:
    return row


def peak_causes(base: MemoryAccount, new: MemoryAccount, placed: Placed = _as_it_is) -> tuple[MemoryCause, ...]:
    """What makes one peak differ from another.

    Rows are matched from the most that two can have in common to the least (`_LIKENESS`); what is left has a row of one
    side alone. Of those, what the other side allocated too and had freed by its own peak, or allocated after it, lives
    longer where both peaks are reached at the same place of the program, and else belongs to another moment. The
    differences of all rows add up to that of the peaks.

    Parameters, their gradients and their optimizer state are one cause, and so are rows of one line that changed in the
    same way. First come causes that go the peak's way, of these what the other side does not allocate at all, and of
    these the largest. Rows that differ are grouped by the line that `placed` gives them, by default their own.
    """
    changes = [
        replace(each, base=each.base and placed(each.base), new=each.new and placed(each.new))
        for each in subtract_rows(base, new)
        if each.bytes
    ]
    groups: dict[object, list[RowChange]] = {}
    lines = _constructors(changes)
    for change in changes:
        groups.setdefault(_reason(change, lines), []).append(change)
    causes = [_cause(sorted(group, key=_leading), base, new) for group in groups.values()]
    way = new.peak_bytes - base.peak_bytes

    def order(cause: MemoryCause) -> tuple[object, ...]:
        row = cause.row
        elsewhere = all(change.movement in ("shorter", "moment") for change in cause.changes)
        return cause.bytes * (way or 1) < 0, elsewhere, -abs(cause.bytes), row.category, row.module, row.line

    return tuple(sorted((cause for cause in causes if cause.bytes), key=order))


def _cause(changes: Sequence[RowChange], base: MemoryAccount, new: MemoryAccount) -> MemoryCause:
    """A cause, with the parameter that the other side has in the place of its own."""
    row = changes[0].row
    shared = ""
    if row.category == "parameters" and len(row.parameters) == 1:
        for other in (base if changes[0].base is None else new).rows:
            if other.category == "parameters" and row.parameters[0] in other.parameters[1:]:
                shared = other.parameters[0]
    return MemoryCause(tuple(changes), shared)


class _Key(NamedTuple):
    """What two rows may have in common."""

    category: str = ""
    module: str = ""
    function: str = ""
    line: str = ""
    phase: str = ""
    operator: str = ""
    dtype: str = ""
    shape: str = ""
    kept: bool = False


_LIKENESS: tuple[Callable[[_Key], _Key], ...] = (
    lambda key: key,
    lambda key: key._replace(line=""),
    lambda key: key._replace(line="", shape=""),
    lambda key: key._replace(line="", shape="", dtype=""),
    lambda key: key._replace(line="", operator=""),
    lambda key: key._replace(line="", category=""),
    lambda key: key._replace(line="", function=""),
    lambda key: key._replace(line="", function="", module=""),
    lambda key: key._replace(line="", shape="", dtype="", operator="", category=""),
)
"""What two rows have in common that are matched, from the most to the least."""


def _key(row: MemoryRow) -> _Key:
    match = FRAME.fullmatch(row.line)
    function = f"{match['path']}: {match['function']}" if match else ""
    return _Key(row.category, row.module, function, row.line, row.phase, row.operator, row.dtype, row.shape, row.kept)


def subtract_rows(base: MemoryAccount, new: MemoryAccount) -> list[RowChange]:
    """Every row of two accounts with its counterpart; their bytes add up to the difference of the peaks."""
    pairs, gone, added = _match_rows(base.rows, new.rows)
    found = [RowChange(old, now, _find_movement(old, now)) for old, now in pairs]
    same_moment = _same_moment(base, new)
    before, after = ({_like(row) for row in side.passed} for side in (base, new))
    for row in added:
        passed = not row.kept and _like(row) in before
        found.append(RowChange(None, row, "new" if not passed else "longer" if same_moment else "moment"))
    for row in gone:
        passed = not row.kept and _like(row) in after
        found.append(RowChange(row, None, "gone" if not passed else "shorter" if same_moment else "moment"))
    return found


def _match_rows(
    base: Sequence[MemoryRow], new: Sequence[MemoryRow]
) -> tuple[list[tuple[MemoryRow, MemoryRow]], list[MemoryRow], list[MemoryRow]]:
    """Pairs, and what is left of either side."""
    left, right = list(base), list(new)
    pairs: list[tuple[MemoryRow, MemoryRow]] = []
    for likeness in _LIKENESS:
        waiting: dict[_Key, list[MemoryRow]] = {}
        for row in left:
            waiting.setdefault(likeness(_key(row)), []).append(row)
        unmatched = []
        for row in right:
            same = waiting.get(likeness(_key(row)))
            if same:
                # Of several, the nearest in size.
                nearest = min(same, key=lambda other, row=row: abs(other.bytes - row.bytes))  # type: ignore[misc]
                same.remove(nearest)
                pairs.append((nearest, row))
            else:
                unmatched.append(row)
        right = unmatched
        left = [row for rows in waiting.values() for row in rows]
    return pairs, left, right


def _find_movement(base: MemoryRow, new: MemoryRow) -> Movement:
    if base.dtype != new.dtype and base.dtype and new.dtype:
        return "dtype"
    if base.tensors != new.tensors and base.shape == new.shape:
        return "more" if new.tensors > base.tensors else "fewer"
    return "larger" if new.bytes > base.bytes else "smaller"


def _like(row: MemoryRow) -> _Key:
    """What a row has in common with one that is freed earlier or later: its category may differ with its lifetime."""
    return _key(row)._replace(line="", category="", kept=False)


def _same_moment(base: MemoryAccount, new: MemoryAccount) -> bool:
    """Whether both peaks are reached at the same place of the program."""
    if base.moment is None or new.moment is None:
        return base.moment is new.moment
    return _like(base.moment)._replace(shape="") == _like(new.moment)._replace(shape="")


def _constructors(changes: Sequence[RowChange]) -> dict[str, str]:
    """By parameter's name, the line that its own row comes from."""
    found: dict[str, str] = {}
    for change in sorted(changes, key=_leading, reverse=True):
        for name in change.row.parameters:
            found[name] = change.row.line
    return found


def _reason(change: RowChange, lines: dict[str, str]) -> object:
    row = change.row
    if row.category in OF_PARAMETERS and row.parameters:
        return "parameters", lines[row.parameters[0]], change.bytes > 0
    return row.kept or row.category, row.line, change.movement in _ELSEWHERE, change.bytes > 0


def _leading(change: RowChange) -> tuple[object, ...]:
    row = change.row
    rank = _LEADS.index(row.category) if row.category in _LEADS else len(_LEADS)
    return rank, -abs(change.bytes), row.module, row.line
