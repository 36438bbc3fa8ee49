"""What each host thread did when, as far as the trace tells: its activity, its gaps, and which threads matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import Launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.threads import Thread, input_rows, operator_threads, thread_of
from pytest_perfdl.analysis.waiting.device_order import by_track
from pytest_perfdl.trace.model import I64, LAUNCH_CATEGORIES, Category, Rows, Trace

_NONE = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class HostThread:
    """One host thread."""

    thread: Thread
    rows: Rows
    """Its operators and calls, ordered as `Trace.rows`."""
    activity: Intervals
    """Time inside its operators, calls and input annotations."""
    is_engine: bool
    """Whether it is a thread of the autograd engine, which works only while another waits in `backward`."""

    def gaps(self, end: int | None) -> tuple[I64, I64]:
        """Where the gaps between activity begin and end; with `end` also the one that reaches there."""
        since, until = self.activity.end[:-1], self.activity.start[1:]
        if end is not None:
            before = int(np.searchsorted(self.activity.start, end, side="left")) - 1
            if before >= 0 and self.activity.end[before] < end:
                return np.append(since, self.activity.end[before]), np.append(until, end)
        return since, until


def host_threads(trace: Trace, steps: Steps, joined: Launches) -> tuple[HostThread, ...]:
    """The threads that can hold up a step: the steps' own first, then by their first event.

    A thread counts if it runs operators or launches device work; one that only asks the driver for its state, like
    NCCL's watchdog, does not.
    """
    if not steps.windows:
        return ()
    owner = thread_of(steps.windows[0])
    busy = trace.rows(Category.CPU_OP, *LAUNCH_CATEGORIES)
    waits = input_rows(trace)
    busy_on, waits_on = by_track(trace, busy), by_track(trace, waits)
    launching = np.zeros(len(trace), dtype=bool)
    launching[joined.call[joined.linked]] = True
    engine = set(operator_threads(trace, owner)) - {owner}
    found = []
    for key in {owner: None, **dict.fromkeys(busy_on)}:
        rows = busy[busy_on.get(key, _NONE)]
        if key != owner and not ((trace.category[rows] == Category.CPU_OP) | launching[rows]).any():
            continue
        active = np.concatenate((rows, waits[waits_on.get(key, _NONE)]))
        activity = Intervals.union_of(trace.start[active], trace.end[active])
        found.append(HostThread(key, rows, activity, key in engine))
    return tuple(sorted(found, key=lambda thread: (thread.thread != owner, _first(trace, thread))))


def _first(trace: Trace, thread: HostThread) -> tuple[int, Thread]:
    return (int(trace.start[thread.rows[0]]) if len(thread.rows) else 0), thread.thread
