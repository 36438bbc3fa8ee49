"""Which operator each moment of a host thread belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_perfdl.analysis.events.enclosing import threads_of
from pytest_perfdl.analysis.events.nesting import Ownership, ownership
from pytest_perfdl.analysis.events.tree import by_thread
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I64, Category, Rows, Trace


@once
def operator_time(trace: Trace) -> Mapping[tuple[int, int], tuple[Rows, Ownership]]:
    """For each process and thread its operators, ordered as `Trace.rows`, and which of them owns which moment."""
    found = {}
    for rows in by_thread(trace, np.flatnonzero(trace.category == Category.CPU_OP)):
        owned = ownership(trace.start[rows], trace.end[rows])
        found[int(trace.pid[rows[0]]), int(trace.tid[rows[0]])] = rows, owned
    return found


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
