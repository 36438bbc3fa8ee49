"""Where a step's window goes on the device: computing, exposed communication and copies, and idle by cause."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from pytest_perfdl.analysis.communication import communication_kernels, covered
from pytest_perfdl.analysis.intervals import Intervals
from pytest_perfdl.analysis.launches import Launches
from pytest_perfdl.analysis.steps import Steps
from pytest_perfdl.analysis.threads import Thread, input_rows, on_thread
from pytest_perfdl.trace.model import LAUNCH_CATEGORIES, Category, Trace

_BLOCKING = re.compile(
    r"(cuda|hip)(Device|Stream|Event)Synchronize|(cu|hip)(Ctx|Stream|Event)Synchronize"
    r"|(cuda|hip)Memcpy(WithStream|2D)?$|cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$"
    r"|aten::(item|_local_scalar_dense|is_nonzero)$"
)
"""Calls that return only when the device has caught up, and operators that consist of one."""

BUSY_CLASSES = ("compute", "exposed communication", "exposed copies")
IDLE_CLASSES = (
    "launch latency",
    "input",
    "synchronisation",
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
    did: *input* in a DataLoader annotation, else *synchronisation* in a blocking call, else *operator overhead*
    in any operator or call, else *Python and host*. Idle time that no event ends inside the window, or whose
    launch is not known, is *unattributed*.
    """
    is_communication = communication_kernels(trace)[joined.device]
    is_kernel = trace.category[joined.device] == Category.KERNEL
    compute = covered(trace, joined.device[is_kernel & ~is_communication])
    communication = covered(trace, joined.device[is_communication])
    transfers = covered(trace, joined.device[~is_kernel])
    exposed = communication.difference(compute)
    exposed_copies = transfers.difference(compute.union(communication))
    busy = compute.union(communication).union(transfers)
    host = _Host(trace)
    launch_of = _launch_by_start(trace, joined)
    accounts = []
    for index, window in enumerate(steps.windows):
        time = steps.window_time(index)
        account = dict.fromkeys((*BUSY_CLASSES, *IDLE_CLASSES), 0)
        for name, intervals in zip(BUSY_CLASSES, (compute, exposed, exposed_copies), strict=True):
            account[name] = intervals.intersection(time).length
        idle = time.difference(busy)
        for opens, closes in zip(idle.start.tolist(), idle.end.tolist(), strict=True):
            call = launch_of.get(closes, -1) if closes < window.end else -1
            for name, ns in host.explain(opens, closes, call).items():
                account[name] += ns
        accounts.append(account)
    return tuple(accounts)


def _launch_by_start(trace: Trace, joined: Launches) -> dict[int, int]:
    """Launching call of the device event that starts at each moment; of several the one launched first."""
    launch_of: dict[int, int] = {}
    starts = trace.start[joined.device].tolist()
    for start, call in zip(starts, joined.call.tolist(), strict=True):
        known = launch_of.get(start, -1)
        if known < 0 or (call >= 0 and trace.start[call] < trace.start[known]):
            launch_of[start] = call
    return launch_of


class _Host:
    """What each host thread did, one set of intervals for each cause, made when a thread is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.threads: dict[Thread, dict[str, Intervals]] = {}
        blocking = np.array([bool(_BLOCKING.match(name)) for name in trace.names], dtype=bool)
        self.busy = trace.rows(Category.CPU_OP, *LAUNCH_CATEGORIES)
        self.blocking = trace.matching(blocking, self.busy)
        self.input = input_rows(trace)

    def explain(self, opens: int, closes: int, call: int) -> dict[str, int]:
        """Split one idle interval, ended by the event that `call` launched (-1 for none), by cause."""
        if call < 0:
            return {"unattributed": closes - opens}
        launched = min(int(self.trace.start[call]), closes)
        if launched < opens:
            return {"device wait": closes - opens}
        found = {"launch latency": closes - launched}
        thread = int(self.trace.pid[call]), int(self.trace.tid[call])
        late = launched - opens
        for cause, intervals in self._causes(thread).items():
            found[cause] = int(intervals.within(np.array([opens]), np.array([launched]))[0])
            late -= found[cause]
        found["Python and host"] = late
        return found

    def _causes(self, thread: Thread) -> dict[str, Intervals]:
        if thread not in self.threads:
            waiting, blocking, busy = (
                covered(self.trace, on_thread(self.trace, rows, thread))
                for rows in (self.input, self.blocking, self.busy)
            )
            self.threads[thread] = {
                "input": waiting,
                "synchronisation": blocking.difference(waiting),
                "operator overhead": busy.difference(blocking.union(waiting)),
            }
        return self.threads[thread]
