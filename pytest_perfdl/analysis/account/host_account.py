"""Where a step's time goes on a trace without device events: operators by class, input, communication, the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pytest_perfdl.analysis.events.communication import covered, waits_for_collectives
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.threads import backward_rows, input_rows, on_thread, optimizer_rows, thread_of
from pytest_perfdl.trace.model import Category, Rows, Trace

OPERATOR_CLASSES = ("forward", "backward", "optimizer", "copies")
HOST_IDLE_CLASSES = ("input", "communication", "Python and host")

COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_", "aten::_copy_from"})
"""Operators that move data themselves; `aten::to`, `aten::clone` and `aten::contiguous` call one of them."""


def host_accounts(trace: Trace, steps: Steps) -> tuple[Mapping[str, int], ...]:
    """Nanoseconds of each class in each step, on the step thread's timeline; they add up to `host_ns` exactly.

    *Input* is time inside a DataLoader's `__next__` or `perfdl.data_wait`, operators in it included. *Communication* is
    where the thread waits for collectives (`waits_for_collectives`), be it inside a frame of the autograd engine. Other
    time inside operators is *copies* where the operator moves data, else *optimizer* inside `Optimizer.step` or
    `zero_grad`, else *backward* under an operator of the autograd engine, else *forward*. What is left is *Python and
    host*.
    """
    if not steps.windows:
        return ()
    thread = thread_of(steps.windows[0])

    def own(rows: Rows) -> Intervals:
        return covered(trace, on_thread(trace, rows, thread))

    operators = trace.rows(Category.CPU_OP)
    waiting = own(input_rows(trace))
    communicating = waits_for_collectives(trace, thread)
    busy = own(operators).difference(waiting).difference(communicating)
    copying = own(_named(trace, operators, lambda name: name in COPIES)).intersection(busy)
    updating = own(optimizer_rows(trace)).intersection(busy)
    backward = own(backward_rows(trace)).intersection(busy)
    classes = {
        "forward": busy.difference(backward).difference(updating).difference(copying),
        "backward": backward.difference(updating).difference(copying),
        "optimizer": updating.difference(copying),
        "copies": copying,
        "input": waiting,
        "communication": communicating,
    }
    starts = np.array([window.host_start for window in steps.windows], dtype=np.int64)
    ends = np.array([window.host_end for window in steps.windows], dtype=np.int64)
    found = {name: own.difference(steps.setup).within(starts, ends).tolist() for name, own in classes.items()}
    accounts = []
    for index, window in enumerate(steps.windows):
        account = {name: times[index] for name, times in found.items()}
        account["Python and host"] = window.host_ns - sum(account.values())
        accounts.append(account)
    return tuple(accounts)


def _named(trace: Trace, rows: Rows, wanted: Callable[[str], bool]) -> Rows:
    return trace.matching(wanted, rows)
