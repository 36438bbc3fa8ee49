"""Operators that were recorded twice: once as the user called them, once below a dispatch mode or tensor subclass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.nesting import nest
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.operator_time import operator_time
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Trace

DISPATCHERS = frozenset({"PythonDispatchMode", "PythonSubclass"})
"""What torch records, since 2.13 at the latest, between the two; as operators, though no operator runs."""

LARGE_SHARE = 0.05
"""Plain training steps of torch 2.13 have up to 2.8 % (`aten::div` by a number calls itself), steps under a mode 10 to
25 %."""
FEW = 3
"""Fewer than this are no pattern."""


@dataclass(frozen=True, slots=True)
class DoubledOperators:
    """Counts over a whole trace."""

    equal: int
    """Operators directly inside an operator of equal name and input shapes."""
    others: int
    """All other operators, without `DISPATCHERS`."""
    dispatchers: int
    """Entries of `DISPATCHERS`."""

    @property
    def line(self) -> str:
        """What a reader must know of counts of operators; empty unless many are doubled."""
        if self.equal < max(FEW, LARGE_SHARE * self.others):
            return ""
        marks = f", and {self.dispatchers} more only mark a dispatch" if self.dispatchers else ""
        return (
            f"{self.equal} of {self.others} operators contain an equal operator{marks}: counts of operators may be "
            "twice the real ones (a dispatch mode, or tensor subclasses such as DTensor)"
        )


@once
def doubled_operators(trace: Trace) -> DoubledOperators:
    """Count operators that contain an equal operator, with at most an entry of `DISPATCHERS` between the two.

    Under a `TorchDispatchMode`, and on tensor subclasses, torch records an operator when it is called, and again when
    the mode or subclass calls it (https://github.com/pytorch/pytorch/issues/195746). Where shapes were not recorded,
    names alone must be equal.
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
    return DoubledOperators(equal, operators - equal, marks)
