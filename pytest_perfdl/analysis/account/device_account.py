"""Where a step's window goes on the device: computing, exposed communication and copies, and idle by cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import communication_kernels, covered
from pytest_perfdl.analysis.events.enclosing import threads_of
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import Launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.threads import Thread, input_rows, on_thread
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I64, LAUNCH_CATEGORIES, Category, Rows, Trace

_BLOCKING = re.compile(
    r"(cuda|hip)(Device|Stream|Event)Synchronize|(cu|hip)(Ctx|Stream|Event)Synchronize"
    r"|urQueueFinish$|urEventWait$"
    r"|(cuda|hip)Memcpy(WithStream|2D)?$|cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$"
    r"|aten::(item|_local_scalar_dense|is_nonzero)$"
)
"""Calls that return only when the device has caught up, and operators that consist of one."""

BUSY_CLASSES = ("compute", "exposed communication", "exposed copies")
IDLE_CLASSES = (
    "launch latency",
    "input",
    "synchronization",
    "operator overhead",
    "Python and host",
    "device wait",
    "unattributed",
)


def device_accounts(trace: Trace, steps: Steps, joined: Launches) -> tuple[Mapping[str, int], ...]:
    """Nanoseconds of each class in each window without its setup; the classes of a window add up to it exactly.

    With U the union over all streams and devices: compute |U(compute)|; exposed communication
    |U(comm) minus U(compute)|; exposed copies |U(copies) minus U(compute) minus U(comm)|, memsets included; idle is the
    rest. An idle interval [a, b) ends with the event that starts at b, whose launching call starts at s on host
    thread h. With s < a it is *device wait*. Otherwise [s, b) is *launch latency*, and [a, s) goes by what h
    did: *input* in a DataLoader annotation, else *synchronization* in a blocking call, else *operator overhead*
    in any operator or call, else *Python and host*. Idle time that no event ends inside the window, or whose
    launch is not known, is *unattributed*.
    """
    is_communication = communication_kernels(trace)[joined.device]
    is_kernel = trace.category[joined.device] == Category.KERNEL
    compute = covered(trace, joined.device[is_kernel & ~is_communication])
    kernels = covered(trace, joined.device[is_kernel])
    busy = covered(trace, joined.device)
    pieces = _pieces(steps)
    within = [intervals.within(pieces.start, pieces.end) for intervals in (compute, kernels, busy)]
    busy_ns = np.diff(within, axis=0, prepend=0)
    idle = idle_time(trace, steps, joined)
    columns = [
        *(_by_window(pieces.window, ns, len(steps.windows)) for ns in busy_ns),
        *(_by_window(idle.window, ns, len(steps.windows)) for ns in idle.by_cause.values()),
    ]
    names = (*BUSY_CLASSES, *IDLE_CLASSES)
    return tuple(dict(zip(names, account, strict=True)) for account in zip(*columns, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class IdleTime:
    """The idle intervals of all windows: columns of equal length."""

    start: I64
    end: I64
    window: Rows
    call: Rows
    """Row of the call that launched what ends each one; -1 for none."""
    by_cause: Mapping[str, I64]
    """Nanoseconds of each class of `IDLE_CLASSES`."""


@once
def idle_time(trace: Trace, steps: Steps, joined: Launches) -> IdleTime:
    """When nothing runs on any device, by cause: see `device_accounts`."""
    idle = _idle(_pieces(steps), covered(trace, joined.device))
    call = _launching_call(trace, joined, idle.end)
    ends = np.array([window.end for window in steps.windows], dtype=np.int64)
    call[idle.end >= ends[idle.window]] = -1
    causes = _explain(trace, idle.start, idle.end, call)
    return IdleTime(idle.start, idle.end, idle.window, call, dict(zip(IDLE_CLASSES, causes, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Disjoint intervals by time, each of one window: columns of equal length."""

    start: I64
    end: I64
    window: Rows


def _by_window(window: Rows, ns: I64, windows: int) -> list[int]:
    total = np.zeros(windows, dtype=np.int64)
    np.add.at(total, window, ns)
    found: list[int] = total.tolist()
    return found


def _pieces(steps: Steps) -> _Pieces:
    """The windows without their setup."""
    times = [steps.window_time(index) for index in range(len(steps.windows))]
    return _Pieces(
        np.concatenate([np.empty(0, dtype=np.int64), *(time.start for time in times)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(time.end for time in times)]),
        np.repeat(np.arange(len(times)), np.array([len(time) for time in times], dtype=np.intp)),
    )


def _idle(pieces: _Pieces, busy: Intervals) -> _Pieces:
    """The maximal intervals of each piece in which nothing runs."""
    limits = np.iinfo(np.int64)
    gap_start = np.concatenate(([limits.min], busy.end))
    gap_end = np.concatenate((busy.start, [limits.max]))
    first = np.searchsorted(gap_end, pieces.start, side="right")
    count = np.searchsorted(gap_start, pieces.end, side="left") - first
    piece = np.repeat(np.arange(len(count)), count)
    gap = np.arange(len(piece)) + np.repeat(first - (np.cumsum(count) - count), count)
    start = np.maximum(gap_start[gap], pieces.start[piece])
    return _Pieces(start, np.minimum(gap_end[gap], pieces.end[piece]), pieces.window[piece])


def _launching_call(trace: Trace, joined: Launches, starts: I64) -> Rows:
    """Launching call of the device event that starts at each moment, -1 for none; of several the one first launched."""
    began = trace.start[joined.device]
    launched = np.where(joined.linked, trace.start[joined.call], np.iinfo(np.int64).max)
    order = np.lexsort((launched, began))
    call = np.full(len(starts), -1, dtype=np.intp)
    place = np.searchsorted(began[order], starts)
    some = place < len(order)
    some[some] = began[order[place[some]]] == starts[some]
    call[some] = joined.call[order[place[some]]]
    return call


def _explain(trace: Trace, opens: I64, closes: I64, call: Rows) -> list[I64]:
    """Nanoseconds of each idle interval by cause, in the order of `IDLE_CLASSES`; `call` launched what ends it."""
    length = closes - opens
    launched = np.where(call >= 0, np.minimum(trace.start[call], closes), opens)
    late = (call >= 0) & (launched >= opens)
    latency = np.where(late, closes - launched, 0)
    waiting, blocked, busy = (np.zeros(len(opens), dtype=np.int64) for _ in range(3))
    host = _Host(trace)
    asked = np.flatnonzero(late)
    for pid, tid, own in threads_of(trace.pid[call[asked]], trace.tid[call[asked]]):
        at = asked[own]
        for total, cause in zip((waiting, blocked, busy), host.causes((pid, tid)), strict=True):
            total[at] = cause.within(opens[at], launched[at])
    python = np.where(late, length - latency - waiting - blocked - busy, 0)
    device_wait = np.where((call >= 0) & ~late, length, 0)
    return [latency, waiting, blocked, busy, python, device_wait, np.where(call < 0, length, 0)]


class _Host:
    """What each host thread did."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.busy = trace.rows(Category.CPU_OP, *LAUNCH_CATEGORIES)
        self.blocking = trace.matching(_BLOCKING.match, self.busy)
        self.input = input_rows(trace)

    def causes(self, thread: Thread) -> tuple[Intervals, Intervals, Intervals]:
        """When a thread waited for input, was blocked otherwise, and was in any other operator or call."""
        waiting, blocking, busy = (
            covered(self.trace, on_thread(self.trace, rows, thread)) for rows in (self.input, self.blocking, self.busy)
        )
        return waiting, blocking.difference(waiting), busy.difference(blocking.union(waiting))
