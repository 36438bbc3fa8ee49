"""Host threads of a step: its own, those of the autograd engine, and what waiting for input looks like."""

from __future__ import annotations

import re

from pytest_perfdl.trace.annotations import WAIT
from pytest_perfdl.trace.model import Category, Rows, Trace, once

Thread = tuple[int, int]
"""Process and thread id."""

_INPUT = re.compile(rf"enumerate\(DataLoader\)|{re.escape(WAIT)}$")
"""torch's annotation of a DataLoader's `__next__`, and ours around any iterable."""

_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
"""torch's annotation of `Optimizer.step` and `Optimizer.zero_grad`."""

AUTOGRAD = re.compile(r"autograd::engine::evaluate_function|torch::autograd::|\w+Backward\d*$")
"""Operators that only the autograd engine runs; the first form is missing in traces of 2021."""


def on_thread(trace: Trace, rows: Rows, thread: Thread) -> Rows:
    """Those of `rows` that ran on a thread, in the same order."""
    own: Rows = rows[(trace.pid[rows] == thread[0]) & (trace.tid[rows] == thread[1])]
    return own


@once
def input_rows(trace: Trace) -> Rows:
    """Annotations during which a thread waits for its next batch."""
    return trace.matching(is_input, trace.rows(Category.USER_ANNOTATION))


def is_input(annotation: str) -> bool:
    """Whether a thread waits for its next batch in an annotation of this name."""
    return _INPUT.match(annotation) is not None


def optimizer_rows(trace: Trace) -> Rows:
    """Annotations during which an optimizer updates, or resets gradients, on whichever thread."""
    return trace.matching(_OPTIMIZER.match, trace.rows(Category.USER_ANNOTATION))


def backward_rows(trace: Trace) -> Rows:
    """Operators that the autograd engine runs, on whichever thread."""
    return trace.matching(AUTOGRAD.match, trace.rows(Category.CPU_OP))


def operator_threads(trace: Trace, owner: Thread) -> list[Thread]:
    """The step's thread, then the threads of the autograd engine, in the order of their first operator.

    On accelerators the backward pass runs on threads of its own; on CPU it runs on the calling thread.
    """
    rows = backward_rows(trace)
    rows = rows[trace.pid[rows] == owner[0]]
    return list(dict.fromkeys([owner, *((owner[0], tid) for tid in dict.fromkeys(trace.tid[rows].tolist()))]))
