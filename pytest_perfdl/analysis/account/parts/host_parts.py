"""The parts of steps without device events: whose each moment of the step's thread is."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.account.host_account import COPIES, HOST_IDLE_CLASSES, OPERATOR_CLASSES
from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.analysis.account.parts.sums import StepParts, TimeEntries
from pytest_perfdl.analysis.events.communication import covered, waits_for_collectives
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.analysis.events.operator_time import operator_time
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.threads import input_rows, on_thread, operator_threads, thread_of
from pytest_perfdl.trace.model import Category, Rows, Trace

_NOWHERE: Rows = np.full(1, -1, dtype=np.intp)


def host_parts(trace: Trace, steps: Steps) -> StepParts:
    """Operators' self time on the step's thread, input, communication, and Python by what it was in.

    Classes are those of `host_accounts`; an operator's is that of where it begins. What runs inside input belongs to
    the input. The rest of the step goes to the innermost Python frame or annotation on its thread.
    """
    marks = labels(trace)
    ledger = TimeEntries(trace, marks, (*OPERATOR_CLASSES, *HOST_IDLE_CLASSES))
    thread = thread_of(steps.windows[0])
    waiting = covered(trace, on_thread(trace, input_rows(trace), thread))
    communicating = waits_for_collectives(trace, thread)
    copying = trace.named(COPIES.__contains__)
    for other in operator_threads(trace, thread):
        rows, owned = operator_time(trace).get(other, (np.zeros(0, dtype=np.intp), None))
        if owned is None:
            continue
        step = steps.of_host_time(trace.start[rows])
        began = (step >= 0) & ~waiting.contains(trace.start[rows])
        of_class = {
            name: (marks.phase[rows] == PHASES.index(name)) & ~copying[trace.name[rows]]
            for name in ("forward", "backward", "optimizer")
        }
        of_class["copies"] = copying[trace.name[rows]]
        for name, mine in of_class.items():
            chosen = began & mine
            ledger.add("operator", name, rows[chosen], step[chosen], count=1)
        for index in range(len(steps.windows)):
            whole = steps.host_time(index).difference(waiting)
            works = whole.difference(communicating) if other == thread else whole
            time = works.within(owned.start, owned.end)
            for name, mine in of_class.items():
                pieces = np.flatnonzero(mine[owned.owner] & (time > 0))
                own = time[pieces]
                at = np.full(len(pieces), index)
                ledger.add("operator", name, rows[owned.owner[pieces]], at, ns=own if other == thread else 0, busy=own)
    _idle(trace, steps, ledger, waiting, communicating)
    return ledger.close(False, np.array([window.host_ns for window in steps.windows], dtype=np.int64))


def _idle(trace: Trace, steps: Steps, ledger: TimeEntries, waiting: Intervals, communicating: Intervals) -> None:
    thread = thread_of(steps.windows[0])
    busy = covered(trace, on_thread(trace, trace.rows(Category.CPU_OP), thread))
    around = on_thread(trace, trace.rows(Category.PYTHON_FUNCTION, Category.USER_ANNOTATION), thread)
    owned = ownership(trace.start[around], trace.end[around])
    for index in range(len(steps.windows)):
        time = steps.host_time(index)
        at = np.full(1, index)
        ledger.add("idle", "input", _NOWHERE, at, ns=waiting.intersection(time).length)
        ledger.add("idle", "communication", _NOWHERE, at, ns=communicating.intersection(time).length)
        gaps = time.difference(waiting).difference(busy).difference(communicating)
        inside = gaps.within(owned.start, owned.end)
        pieces = np.flatnonzero(inside)
        rows, own = around[owned.owner[pieces]], inside[pieces]
        ledger.add("idle", "Python and host", rows, np.full(len(pieces), index), ns=own)
        ledger.add("idle", "Python and host", _NOWHERE, at, ns=gaps.length - int(own.sum()))
