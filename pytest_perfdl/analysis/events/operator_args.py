"""What operators were called with, as far as several analyses ask for it: their arguments, decoded once."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace
from pytest_perfdl.trace.numbering import Numbering

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
        """Shapes of an entry of `calls`, with one space behind each comma, however the file has it."""
        return b"".join(self.calls[call][1].split()).replace(b",", b", ").decode(errors="replace")


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
