"""Operators of a host thread: their arguments, whose each moment is, and which were recorded twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.events.launches import by_thread
from pytest_perfdl.analysis.events.nesting import Ownership, nest, ownership, threads_of
from pytest_perfdl.trace.arrays import Numbering
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace, once

# What operators were called with, as far as several analyses ask for it: their arguments, decoded once.


_NO_NUMBER = 2**63
"""Numbers from here on are unsigned ones that stand for none."""


class _Args(msgspec.Struct, gc=False):
    # Any: what one of them should not be must not cost the others.
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=-1)
    hierarchy: Any = msgspec.field(name="Module Hierarchy", default="")
    stack: Any = msgspec.field(name="Call stack", default="")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorArgs:
    """Arguments of the operators as columns as long as the trace, -1 for what is no operator or has none.

    Texts are indices into the distinct ones, which come in the order of the file.
    """

    call: Rows
    """Index into `calls`."""
    calls: tuple[tuple[int, bytes], ...]
    """Index of the name in `Trace.names`, and `Input Dims` as the file has them, empty where it has none."""
    sequence: I64
    """`Sequence number`."""
    forward_thread: I64
    """`Fwd thread id`."""
    hierarchy: I32
    """Index into `hierarchies`."""
    hierarchies: tuple[str, ...]
    """`Module Hierarchy`."""
    stack: I32
    """Index into `stacks`."""
    stacks: tuple[str, ...]
    """`Call stack`."""

    def shapes(self, call: int) -> str:
        """Shapes of an entry of `calls`."""
        return shapes_text(self.calls[call][1])


def shapes_text(dims: bytes) -> str:
    """`Input Dims` as text with one space behind each comma, however the file has them."""
    return b"".join(dims.split()).replace(b",", b", ").decode(errors="replace")


@once
def operator_args(trace: Trace) -> OperatorArgs:
    """Decode the arguments of all operators."""
    call = np.full(len(trace), -1, dtype=np.intp)
    hierarchy, stack = (np.full(len(trace), -1, dtype=np.int32) for _ in range(2))
    sequence, forward_thread = (np.full(len(trace), -1, dtype=np.int64) for _ in range(2))
    calls, hierarchies, stacks = Numbering[tuple[int, bytes]](), Numbering[str](), Numbering[str]()
    for rows, args in trace.args_by_block(np.flatnonzero(trace.category == Category.CPU_OP), _Args):
        pairs = zip(trace.name[rows].tolist(), map(bytes, map(attrgetter("dims"), args)), strict=True)
        call[rows] = list(map(calls.__getitem__, pairs))
        sequence[rows] = _numbers([arg.sequence for arg in args])
        forward_thread[rows] = _numbers([arg.forward_thread for arg in args])
        _number_texts([arg.hierarchy for arg in args], hierarchies, hierarchy, rows)
        _number_texts([arg.stack for arg in args], stacks, stack, rows)
    return OperatorArgs(
        call, tuple(calls), sequence, forward_thread, hierarchy, tuple(hierarchies), stack, tuple(stacks)
    )


def _numbers(values: list[Any]) -> list[int]:
    return [value if type(value) is int and value < _NO_NUMBER else -1 for value in values]


def _number_texts(values: list[Any], known: Numbering[str], column: I32, rows: Rows) -> None:
    """Write the index of each text in `known`, which grows by new ones, into the column; none where there is none."""
    if any(values):
        column[rows] = [known[value] if value and isinstance(value, str) else -1 for value in values]


# Which operator each moment of a host thread belongs to.


@once
def operator_time(trace: Trace) -> Mapping[tuple[int, int], tuple[Rows, Ownership]]:
    """For each process and thread its operators, ordered as `Trace.rows`, and which of them owns which moment."""
    found = {}
    for rows in by_thread(trace, np.flatnonzero(trace.category == Category.CPU_OP)):
        owned = ownership(trace.start[rows], trace.end[rows])
        found[int(trace.pid[rows[0]]), int(trace.tid[rows[0]])] = rows, owned
    return found


@once
def operator_self_ns(trace: Trace) -> I64:
    """For each row of the trace nanoseconds in this operator and in none inside it; 0 for what is no operator."""
    time = np.zeros(len(trace), dtype=np.int64)
    for rows, owned in operator_time(trace).values():
        time[rows] = owned.self_time(len(rows))
    return time


def operator_at(trace: Trace, time: I64, pid: I64, tid: I64) -> Rows:
    """Row of the operator that was innermost at each moment on its thread, -1 where none was open."""
    found = np.full(len(time), -1, dtype=np.intp)
    threads = operator_time(trace)
    for process, thread, asked in threads_of(pid, tid):
        if (process, thread) in threads:
            rows, owned = threads[process, thread]
            place = owned.at(time[asked])
            found[asked] = np.where(place >= 0, rows[place], -1)
    return found


# Operators that were recorded twice: once as the user called them, once below a dispatch mode or tensor subclass.


DISPATCHERS = frozenset({"PythonDispatchMode", "PythonSubclass"})
"""What torch records, since 2.13 at the latest, between the two; as operators, though no operator runs."""

LARGE_SHARE = 0.05
"""Plain training steps of torch 2.13 have up to 2.8 % (`aten::div` by a number calls itself), steps under a mode 10 to
25 %."""
FEW = 3
"""Fewer than this are no pattern."""


@once
def doubled_operators(trace: Trace) -> str:
    """What a reader must know of counts of operators where many contain an equal one; empty where few do.

    At most an entry of `DISPATCHERS` is between the two, which is none of the operators. Under a `TorchDispatchMode`,
    and on tensor subclasses, torch records an operator when it is called, and again when the mode or subclass calls it
    (https://github.com/pytorch/pytorch/issues/195746). Where shapes were not recorded, names alone must be equal.
    """
    is_mark = trace.named(DISPATCHERS.__contains__)
    call = operator_args(trace).call
    equal = operators = marks = 0
    for rows, _ in operator_time(trace).values():
        own = rows[~is_mark[trace.name[rows]]]
        parent, calls = nest(trace.start[own], trace.end[own]).parent, call[own]
        equal += int(np.count_nonzero((parent >= 0) & (calls == calls[parent])))
        operators += len(own)
        marks += len(rows) - len(own)
    if equal < max(FEW, LARGE_SHARE * (operators - equal)):
        return ""
    marked = f", and {marks} more only mark a dispatch" if marks else ""
    return (
        f"{equal} of {operators - equal} operators contain an equal operator{marked}: counts of operators may be twice "
        "the real ones (a dispatch mode, or tensor subclasses such as DTensor)"
    )
