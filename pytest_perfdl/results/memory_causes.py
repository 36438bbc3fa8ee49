"""What the causes of a memory change are, in words and as entries of the run file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_perfdl.model.json import plain
from pytest_perfdl.model.memory import (
    OF_PARAMETERS,
    Category,
    MemoryCause,
    MemoryChange,
    MemoryRow,
    Movement,
    RowChange,
)
from pytest_perfdl.model.metrics import is_memory
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.verdict import Judgement

_COUNTER = 8
"""Bytes of a state that an optimizer counts its steps in: it is not counted in words."""
_NAMED: dict[Category, str] = {
    "parameters": "parameter",
    "gradients": "gradient",
    "optimizer state": "optimizer state",
    "activations": "activation",
    "temporaries": "temporary",
    "inputs": "input",
    "other": "tensor",
    "allocator": "rounding",
}
_MOVED: dict[Movement, str] = {
    "new": "new",
    "gone": "gone",
    "more": "more of them",
    "fewer": "fewer of them",
    "larger": "larger",
    "smaller": "smaller",
    "dtype": "different dtype",
    "longer": "freed later than in the baseline, so still alive at the current peak",
    "shorter": "freed before the current peak, unlike in the baseline",
    "moment": "allocated in both steps, but alive at only one of the two peaks",
}


def comes_first(judgement: Judgement) -> bool:
    """Whether memory is what there is to explain: of the step it changed for the worse, and no time did."""
    moved = [each for each in judgement.metrics if each.verdict == judgement.verdict and each.verdict != "unchanged"]
    # A single operator that got slower beside a step that did not is less news than the step's memory.
    of_step = [each for each in moved if each.of_step] or moved
    return (
        bool(judgement.memory)
        and any(is_memory(each.name) for each in of_step)
        and not any(each.kind == "timed" for each in of_step)
    )


def cause_name(cause: MemoryCause) -> str:
    """What the tensors are, and what became of them.

    "1 parameter of 2.0 MiB, its gradient and 2 optimizer states, new"
    """
    families = {change.row.category for change in cause.changes}
    if families <= OF_PARAMETERS and any(c.row.parameters for c in cause.changes):
        what = _describe_parameters(cause)
    else:
        what = _describe_line(cause)
    if cause.shared:
        return f"{what}, {'no longer' if cause.bytes > 0 else 'now'} shared with {visible(cause.shared)}"
    return f"{what}, {_became(cause)}"


def _describe_parameters(cause: MemoryCause) -> str:
    counts = {category: _tensors(cause.changes, category) for category in ("parameters", "gradients")}
    states = _tensors(cause.changes, "optimizer state")
    names = list(dict.fromkeys(name for change in cause.changes for name in change.row.parameters))
    count = counts["parameters"]
    parts = []
    if count:
        size = sum(abs(change.bytes) for change in cause.changes if change.row.category == "parameters") / count
        each = f" of {_size(size)}" if count == 1 else ""
        parts.append(f"{plural(count, 'parameter')}{each}")
    if counts["gradients"]:
        own = "its gradient" if count == 1 else "their gradients" if count else ""
        parts.append(own or plural(counts["gradients"], "gradient"))
    if states:
        parts.append(plural(states, "optimizer state"))
    what = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    shown = ", ".join(visible(name) for name in names[:2])
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    left = " of an earlier step" if all(change.new and _is_left(change.new) for change in cause.changes) else ""
    return f"{what}{left} ({shown}{more})"


def _tensors(changes: Sequence[RowChange], category: Category) -> int:
    """How many tensors of a category are concerned, without the counters of optimizers."""
    found = 0
    for change in changes:
        row = change.row
        counts_steps = category == "optimizer state" and row.bytes <= _COUNTER * row.tensors
        if row.category == category and not counts_steps:
            before, after = (0 if each is None else each.tensors for each in (change.base, change.new))
            found += abs(after - before) or after
    return found


def _describe_line(cause: MemoryCause) -> str:
    row = cause.row
    tensors = sum(_tensors(cause.changes, category) for category in {each.row.category for each in cause.changes})
    shape = _shape(cause)
    if row.kept:
        return f"{plural(tensors, 'tensor')}{shape} of an earlier step"
    role = _NAMED[row.category]
    if row.category == "other":
        return "memory allocated before the recording"
    if row.category == "activations":
        return f"{plural(tensors, 'tensor')}{shape} saved for the backward pass"
    if row.category == "temporaries":
        return f"{plural(tensors, 'temporary', 'temporaries')}{shape}"
    return f"{plural(tensors, role)}{shape}"


def _shape(cause: MemoryCause) -> str:
    """Of what shape and type the tensors are; of several, the largest."""
    rows = [change.row for change in cause.changes]
    kinds = {(row.shape, row.dtype) for row in rows}
    largest = max(rows, key=lambda row: row.bytes // max(row.tensors, 1))
    what = f"{largest.shape} {largest.dtype}".strip() if largest.shape else largest.dtype
    if len(kinds) == 1:
        return f" {what}" if what else ""
    size = _size(largest.bytes / max(largest.tensors, 1))
    return f" (the largest: {what}, {size})" if what else f" (the largest: {size})"


def _became(cause: MemoryCause) -> str:
    change = cause.changes[0]
    base, new = change.base, change.new
    sides = [(each.base, each.new) for each in cause.changes]
    if new is not None and change.movement in ("new", "more", "longer", "moment") and _is_left(new):
        return "still held"
    if change.movement == "dtype" and base is not None and new is not None:
        return f"{new.dtype} instead of {base.dtype}"
    if change.movement in ("larger", "smaller") and base is not None and new is not None and base.shape != new.shape:
        return f"{base.shape or 'unknown shape'} -> {new.shape or 'unknown shape'}"
    if change.movement in ("more", "fewer") and base is not None and new is not None:
        before, after = (sum(row.tensors for row in rows if row is not None) for rows in zip(*sides, strict=True))
        return f"{after} instead of {before}"
    return _MOVED[change.movement]


def _is_left(row: MemoryRow) -> bool:
    """Whether what a step made has outlived it."""
    return row.kept or (row.category == "gradients" and row.lives_from < 0)


def to_json(changes: Sequence[MemoryChange]) -> list[dict[str, Any]]:
    """The accounts as plain data, in bytes and nanoseconds, with what their rows add up to."""
    found = []
    for change in changes:
        data = plain(change)
        for side, account in (("base", change.base), ("new", change.new)):
            if account is not None:
                data[side] |= {"residual": account.residual, "by_category": account.by_category()}
        found.append(data)
    return found


def causes_to_json(changes: Sequence[MemoryChange]) -> list[dict[str, Any]]:
    """The causes as entries of `blame` of kind `memory`."""
    return [
        {
            "kind": "memory",
            "call": change.call,
            "name": cause_name(cause),
            "module": cause.module,
            "line": cause.row.line,
            "callers": list(cause.row.callers),
            "category": cause.row.category,
            "tensors": sum(_tensors(cause.changes, each) for each in {row.row.category for row in cause.changes}),
            "movement": cause.movement,
            "phase": cause.row.phase,
            "operator": cause.row.operator,
            "dtype": cause.row.dtype,
            "shape": cause.row.shape,
            "bytes": cause.bytes,
            "base_tensors": sum(each.base.tensors for each in cause.changes if each.base),
            "new_tensors": sum(each.new.tensors for each in cause.changes if each.new),
            "lives_from": cause.row.lives_from,
            "lives_to": cause.row.lives_to,
            "parameters": list(cause.row.parameters),
            "shared": cause.shared,
        }
        for change in changes
        for cause in change.causes
    ]


def _size(size: float) -> str:
    return format_quantity(size, "B")
