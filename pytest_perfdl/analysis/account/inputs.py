"""How long the steps waited for their data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import input_rows, on_thread, thread_of
from pytest_perfdl.trace.model import Trace


@dataclass(frozen=True, slots=True)
class InputFigures:
    """Waiting for data; the tuples have one value per step, in the order of the steps. Nanoseconds."""

    waiting_ns: tuple[int, ...]
    """Time inside a DataLoader's `__next__` or `perfdl.data_wait` on the step's thread."""
    exposed_ns: tuple[int, ...]
    """The part of it in which no device event ran: what the step cannot hide; all of it without a device."""
    step_ns: tuple[int, ...]
    """Duration of the step on the host, without its setup."""
    counts: tuple[int, ...]
    """Waits that began in each step."""
    largest_ns: int
    """The longest single wait that began in a step."""
    outside_ns: int
    """Waiting on the step's thread between steps, ahead of the first and after the last."""

    @property
    def share(self) -> float:
        """Exposed waiting as a share of the steps' time, 0 to 1."""
        total = sum(self.step_ns)
        return sum(self.exposed_ns) / total if total else 0.0

    @property
    def count(self) -> int:
        """Waits in all steps together."""
        return sum(self.counts)


def input_pipeline(trace: Trace) -> InputFigures:
    """Waiting for data in each step, on the host.

    A trace shows that a step waited for data, not why: the stall of fetching and that of preparing come apart only by
    runs with synthetic and with cached batches. What worker processes do is not in the trace.
    A trace without ProfilerStep has one step over all its host work (see `step_windows`); one without events none.
    """
    joined = launches(trace)
    steps = steps_of(trace, joined)
    if not steps.windows:
        return InputFigures((), (), (), (), 0, 0)
    rows = on_thread(trace, input_rows(trace), thread_of(steps.windows[0]))
    waiting = covered(trace, rows)
    exposed = waiting.difference(covered(trace, joined.device))
    step = steps.of_host_time(trace.start[rows])
    durations = trace.duration[rows[step >= 0]]
    times = [steps.host_time(index) for index in range(len(steps.windows))]
    return InputFigures(
        waiting_ns=_within(waiting, times),
        exposed_ns=_within(exposed, times),
        step_ns=tuple(window.host_ns for window in steps.windows),
        counts=tuple(np.bincount(step[step >= 0], minlength=len(times)).tolist()),
        largest_ns=int(durations.max()) if len(durations) else 0,
        outside_ns=waiting.length - waiting.intersection(steps.host).length,
    )


def _within(what: Intervals, times: list[Intervals]) -> tuple[int, ...]:
    return tuple(int(what.within(time.start, time.end).sum()) for time in times)
