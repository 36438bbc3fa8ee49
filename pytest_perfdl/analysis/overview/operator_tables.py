"""Operators in tables: how often, how long on the host, how long on the device, by name, shapes, module or line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.modules import module_paths, parent_path
from pytest_perfdl.analysis.events.nesting import Mask
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.operator_time import operator_time
from pytest_perfdl.analysis.events.source_lines import source_lines
from pytest_perfdl.analysis.events.tree import CallTree, call_tree, launching_operator
from pytest_perfdl.trace.model import I64, Category, Rows, Trace

Grouping = Literal["name", "shapes", "module", "line"]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A group of operators. What the table does not group by is empty, and so is what the trace does not know."""

    name: str
    shapes: str
    """`Input Dims` of the operator, as JSON."""
    module: str
    line: str
    count: int
    """Operators of the group; those that began in the window."""
    self_ns: int
    """Time on the host in these operators and not in operators inside them."""
    total_ns: int
    """Time on the host in these operators; one inside another of the same group counts once."""
    device_self_ns: int
    """Sum of durations of the device events that these operators launched themselves."""
    device_total_ns: int
    """The same with those launched by operators inside them; one inside another of the same group counts once."""
    kernels: int
    """Device events (kernels, copies, memsets) that these operators launched themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """The group of each row of the trace, -1 for rows that are no operator, and what the groups are called."""

    code: Rows
    labels: list[dict[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """Figures of each row of the trace, 0 for rows that are no operator."""

    around: Rows
    """Row of the innermost operator around each one; -1 for none."""
    begins: I64
    """1 for an operator that begins in the window."""
    self_ns: I64
    total_ns: I64
    device_self_ns: I64
    device_total_ns: I64
    kernels: I64


def operator_table(
    trace: Trace, by: Grouping = "name", window: tuple[int, int] | None = None
) -> tuple[OperatorRow, ...]:
    """The operators of a trace in groups, those with most time of their own on the device, else the host, first.

    `by="shapes"` groups by name and shapes, `"module"` and `"line"` by these alone (see `module_paths` and
    `source_lines`). The total of a module holds the modules inside it; a module has a row also if all its operators
    are in modules inside it. Operators without module or line share a row whose `module` or `line` is empty.

    With a `window` [start, end) in nanoseconds, operators count that begin in it, host time is clipped to it, and
    device events count whose launching call, or operator where the trace lacks the call, begins in it.

    Over all rows `self_ns` adds up to the time that operators cover on each thread, summed over threads, and
    `device_self_ns` with what no operator launched to the sum of durations of all device events.

    Raises
    ------
    ValueError
        When `by` is none of the four.
    """
    tree = call_tree(trace)
    return _table(trace, tree, _times(trace, tree, window), by)


def operator_tables(trace: Trace, window: tuple[int, int] | None = None) -> Mapping[Grouping, tuple[OperatorRow, ...]]:
    """All four tables of `operator_table`, for little more than the price of one."""
    tree = call_tree(trace)
    times = _times(trace, tree, window)
    return {by: _table(trace, tree, times, by) for by in get_args(Grouping)}


def _table(trace: Trace, tree: CallTree, times: _Times, by: Grouping) -> tuple[OperatorRow, ...]:
    keys = _keys(trace, tree, by)
    outer = _outermost_of_key(times.around, keys.code)
    if by == "module":
        total = _over_submodules(keys, _sum(keys, times.self_ns))
        device_total = _over_submodules(keys, _sum(keys, times.device_self_ns))
    else:
        total = _sum(keys, times.total_ns, outer)
        device_total = _sum(keys, times.device_total_ns, outer)
    columns = (
        _sum(keys, times.begins),
        _sum(keys, times.self_ns),
        total,
        _sum(keys, times.device_self_ns),
        device_total,
        _sum(keys, times.kernels),
    )
    rows = [
        OperatorRow(
            **label,
            count=count,
            self_ns=own,
            total_ns=all_ns,
            device_self_ns=device,
            device_total_ns=below,
            kernels=kernels,
        )
        for label, count, own, all_ns, device, below, kernels in zip(
            keys.labels, *(column.tolist() for column in columns), strict=True
        )
        if count or all_ns or below
    ]
    return tuple(sorted(rows, key=_largest_first))


def _largest_first(row: OperatorRow) -> tuple[int, int, int, str, str, str, str]:
    return -row.device_self_ns, -row.self_ns, -row.total_ns, row.name, row.shapes, row.module, row.line


def _sum(keys: _Keys, values: I64, mask: Mask | None = None) -> I64:
    chosen = keys.code >= 0 if mask is None else (keys.code >= 0) & mask
    total = np.zeros(len(keys.labels), dtype=np.int64)
    np.add.at(total, keys.code[chosen], values[chosen])
    return total


def _keys(trace: Trace, tree: CallTree, by: Grouping) -> _Keys:
    operators = np.flatnonzero(trace.category == Category.CPU_OP)
    code = np.full(len(trace), -1, dtype=np.intp)
    empty = {"name": "", "shapes": "", "module": "", "line": ""}
    if by == "name":
        code[operators] = trace.name[operators]
        return _Keys(code, [{**empty, "name": name} for name in trace.names])
    if by == "shapes":
        args = operator_args(trace)
        labels = [
            {**empty, "name": trace.names[name], "shapes": args.shapes(call)}
            for call, (name, _) in enumerate(args.calls)
        ]
        return _Keys(args.call, labels)
    if by in ("module", "line"):
        index, texts = module_paths(trace, tree) if by == "module" else source_lines(trace, tree)
        code[operators] = index[operators] + 1
        return _Keys(code, [{**empty, by: text} for text in ("", *texts)])
    raise ValueError(f"operators are grouped by name, shapes, module or line, not by {by!r}")


def _times(trace: Trace, tree: CallTree, window: tuple[int, int] | None) -> _Times:
    is_operator = trace.category == Category.CPU_OP
    start, end = trace.start, trace.end
    first, last = window or (int(start.min(initial=0)), int(end.max(initial=0)) + 1)
    begins = is_operator & (start >= first) & (start < last)
    total = np.where(is_operator, np.maximum(np.minimum(end, last) - np.maximum(start, first), 0), 0)
    self_ns = np.zeros(len(trace), dtype=np.int64)
    inside = Intervals.between(first, last)
    for rows, owned in operator_time(trace).values():
        np.add.at(self_ns, rows[owned.owner], inside.within(owned.start, owned.end))
    joined = launches(trace)
    operator = launching_operator(trace, tree, joined)[joined.device]
    launch = np.where(joined.linked, joined.call, operator)
    counts = (operator >= 0) & (start[launch] >= first) & (start[launch] < last)
    device_ns, kernels = np.zeros(len(trace), dtype=np.int64), np.zeros(len(trace), dtype=np.int64)
    np.add.at(device_ns, operator[counts], trace.duration[joined.device[counts]])
    np.add.at(kernels, operator[counts], 1)
    around = np.where(tree.parent >= 0, tree.nearest(is_operator)[tree.parent], -1)
    return _Times(around, begins.astype(np.int64), self_ns, total, device_ns, tree.subtree_sums(device_ns), kernels)


def _outermost_of_key(above: Rows, code: Rows) -> Mask:
    """Whether each operator is inside no other of its group; `above` is the operator around each."""
    outer = code >= 0
    rows = np.flatnonzero(outer)
    around = above[rows]
    while len(rows):
        rows, around = rows[around >= 0], around[around >= 0]
        same = code[around] == code[rows]
        outer[rows[same]] = False
        rows, around = rows[~same], above[around[~same]]
    return outer


def _over_submodules(keys: _Keys, values: I64) -> I64:
    """Sums of `values`, one per path, over each path and the paths inside it."""
    total: I64 = values.copy()
    index = {label["module"]: number for number, label in enumerate(keys.labels)}
    for path in sorted(filter(None, index), key=lambda path: -path.count(".")):
        around = parent_path(path)
        # A list of modules is never called itself, and has no row.
        while around and around not in index:
            around = parent_path(around)
        if around:
            total[index[around]] += total[index[path]]
    return total
