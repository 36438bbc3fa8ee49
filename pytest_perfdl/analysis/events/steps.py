"""Which time belongs to which step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.enclosing import threads_of
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import Launches, kernel_launch_rows, launches
from pytest_perfdl.trace.annotations import SETUP, step_annotations
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I64, Category, Rows, Trace


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One step: its annotation on the host, and the window that its device work extends. Nanoseconds."""

    number: int
    """N of `ProfilerStep#N`; -1 for the one window of a trace without steps."""
    host_start: int
    host_end: int
    start: int
    """Start of the window [C_{N-1}, C_N); the first begins with its annotation."""
    end: int
    """C_N: the annotation's end or that of the last device event launched in N, whichever is later."""
    host_ns: int
    """Duration of the annotation without the setup in it."""
    window_ns: int
    """Duration of the window without the setup in it; windows tile, so their mean is the period."""
    pid: int
    tid: int
    """Process and thread that own the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace as a function of time."""

    windows: tuple[StepWindow, ...]
    setup: Intervals
    """Time on the steps' thread that belongs to no step."""

    @property
    def host(self) -> Intervals:
        """The time of the steps on the host: their annotations without the setup."""
        starts = np.array([window.host_start for window in self.windows], dtype=np.int64)
        ends = np.array([window.host_end for window in self.windows], dtype=np.int64)
        return Intervals.union_of(starts, ends).difference(self.setup)

    def host_time(self, index: int) -> Intervals:
        """The time of one step on the host."""
        window = self.windows[index]
        return Intervals.between(window.host_start, window.host_end).difference(self.setup)

    def window_time(self, index: int) -> Intervals:
        """The time of one step's window."""
        window = self.windows[index]
        return Intervals.between(window.start, window.end).difference(self.setup)

    def of_host_time(self, time: I64) -> Rows:
        """Index of the step whose time on the host holds each moment, -1 for none."""
        starts = np.array([window.host_start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(starts, time, side="right") - 1
        index[~self.host.contains(time)] = -1
        return index

    def of_window_time(self, time: I64) -> Rows:
        """Index of the step whose window holds each moment, -1 for none."""
        edges = np.array([window.start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(edges, time, side="right") - 1
        if len(index) and self.windows:
            index[(time >= self.windows[-1].end) | self.setup.contains(time)] = -1
        return index


def step_windows(trace: Trace) -> tuple[StepWindow, ...]:
    """The steps of a trace, by time.

    Host step N is the `ProfilerStep#N` annotation on its host thread, never its projection on the device. What
    starts inside it, on whichever host thread, belongs to N, and so do the device events that it launches.
    Completion C_N is the later of the annotation's end and the end of the last device event launched in N, and
    window N is [C_{N-1}, C_N). On a trace without device events windows begin and end with the annotations, so
    that time between steps belongs to none. Time inside a `perfdl.setup` annotation on the step's thread, and
    what starts there, belongs to no step.

    A trace without ProfilerStep has one window, numbered -1, over all host operators, calls and device events;
    its thread is the one with most of these on the host. A last step in which no operator and no launch runs, after
    one that had some, and under a tenth as long as any other, is what a profiler without a schedule leaves when
    it stops, and is not a step. No events, no windows.
    """
    return steps_of(trace, launches(trace)).windows


@once
def steps_of(trace: Trace, joined: Launches) -> Steps:
    """The steps as `step_windows` defines them, ready to be asked what belongs to them."""
    rows, numbers = step_annotations(trace)
    if _leftover(trace, rows):
        rows, numbers = rows[:-1], numbers[:-1]
    if len(rows) == 0:
        bounds = _whole(trace)
        if bounds is None:
            return Steps((), _setup(trace, (0, 0)))
        return _made(trace, (-1,), *bounds)
    starts, ends = trace.start[rows].tolist(), trace.end[rows].tolist()
    completions = _completions(trace, joined, starts, ends)
    opens = [starts[0], *completions[:-1]] if len(joined.device) else starts
    thread = int(trace.pid[rows[0]]), int(trace.tid[rows[0]])
    return _made(trace, numbers, thread, starts, ends, opens, completions)


def _made(
    trace: Trace,
    numbers: tuple[int, ...],
    thread: tuple[int, int],
    starts: list[int],
    ends: list[int],
    opens: list[int],
    completions: list[int],
) -> Steps:
    setup = _setup(trace, thread)
    windows = []
    for number, start, end, first, last in zip(numbers, starts, ends, opens, completions, strict=True):
        windows.append(
            StepWindow(
                number=number,
                host_start=start,
                host_end=end,
                start=first,
                end=last,
                host_ns=end - start - setup.clip(start, end).length,
                window_ns=last - first - setup.clip(first, last).length,
                pid=thread[0],
                tid=thread[1],
            )
        )
    return Steps(tuple(windows), setup)


def _setup(trace: Trace, thread: tuple[int, int]) -> Intervals:
    rows = trace.matching(lambda name: name == SETUP, trace.rows(Category.USER_ANNOTATION))
    rows = rows[(trace.pid[rows] == thread[0]) & (trace.tid[rows] == thread[1])]
    return Intervals.union_of(trace.start[rows], trace.end[rows])


def _leftover(trace: Trace, rows: Rows) -> bool:
    """Whether the last annotation is only what was left to record when the profiler was stopped."""
    if len(rows) < 2 or trace.duration[rows[-1]] * 10 > trace.duration[rows[:-1]].min():
        return False
    start, end = trace.start[rows], trace.end[rows]
    work = np.concatenate((trace.rows(Category.CPU_OP), kernel_launch_rows(trace)))
    runs = [((trace.end[work] > start[at]) & (trace.start[work] < end[at])).any() for at in (-2, -1)]
    return bool(runs[0] and not runs[1])


def _completions(trace: Trace, joined: Launches, starts: list[int], ends: list[int]) -> list[int]:
    linked = joined.linked
    launched_at = trace.start[joined.call[linked]]
    order = np.argsort(launched_at, kind="stable")
    finished = trace.end[joined.device[linked]][order]
    first, last = np.searchsorted(launched_at[order], (starts, ends))
    completions: list[int] = []
    for end, since, until in zip(ends, first.tolist(), last.tolist(), strict=True):
        completions.append(max([int(finished[since:until].max(initial=end)), *completions[-1:]]))
    return completions


def _whole(trace: Trace) -> tuple[tuple[int, int], list[int], list[int], list[int], list[int]] | None:
    """Thread and bounds of the one window of a trace without steps."""
    host = np.concatenate((trace.rows(Category.CPU_OP), trace.launch_rows()))
    everything = np.concatenate((host, trace.device_rows()))
    if len(everything) == 0:
        return None
    host = host if len(host) else everything
    # Of equally busy threads the one that comes first.
    pid, tid, _ = max(threads_of(trace.pid[host], trace.tid[host]), key=lambda thread: (len(thread[2]), -thread[2][0]))
    end = trace.end
    return (
        (pid, tid),
        [int(trace.start[host].min())],
        [int(end[host].max())],
        [int(trace.start[everything].min())],
        [int(end[everything].max())],
    )
