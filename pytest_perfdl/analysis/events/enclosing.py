"""What ran around a moment on a host thread: the innermost of the events that were open then."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.trace.model import I64, Rows, Trace


def threads_of(pid: I64, tid: I64) -> Iterator[tuple[int, int, Rows]]:
    """Each distinct process and thread of two columns, with its positions in ascending order."""
    order = np.lexsort((tid, pid))
    cuts = np.flatnonzero((np.diff(pid[order]) != 0) | (np.diff(tid[order]) != 0)) + 1
    for own in np.split(order, cuts):
        if len(own):
            yield int(pid[own[0]]), int(tid[own[0]]), own


def innermost(trace: Trace, rows: Rows, time: I64, pid: I64, tid: I64) -> Rows:
    """Which of `rows` was innermost at each moment on its thread, -1 where none was open.

    Parameters
    ----------
    trace
        The trace.
    rows
        Candidates, ordered as `Trace.rows` gives them; an event is open over [start, end).
    time, pid, tid
        The moments (nanoseconds) and their threads: columns of equal length, in any order.
    """
    found = np.full(len(time), -1, dtype=np.intp)
    for process, thread, asked in threads_of(pid, tid):
        own = rows[(trace.pid[rows] == process) & (trace.tid[rows] == thread)]
        if len(own) == 0:
            continue
        place = ownership(trace.start[own], trace.end[own]).at(time[asked])
        found[asked] = np.where(place >= 0, own[place], -1)
    return found
