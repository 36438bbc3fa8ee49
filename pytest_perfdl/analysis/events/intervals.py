"""Sets of points in time as sorted disjoint half-open intervals, and the windows of steps as a function of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.record import Finding
from pytest_perfdl.trace.model import I64, Rows

# Sets of points in time, as sorted disjoint half-open intervals of integer nanoseconds.


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A union of half-open intervals [start, end), sorted, disjoint, none empty, none touching."""

    start: I64
    end: I64

    @classmethod
    def union_of(cls, start: I64, end: I64) -> Intervals:
        """The union of any intervals, in any order; empty ones vanish."""
        keep = end > start
        start, end = start[keep], end[keep]
        if len(start) == 0:
            return cls(start, end)
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order])
        first = np.concatenate(([True], start[1:] > reach[:-1]))
        last = np.concatenate((first[1:], [True]))
        return cls(start[first], reach[last])

    @classmethod
    def between(cls, start: int, end: int) -> Intervals:
        """One interval, or nothing when it is empty."""
        return cls.union_of(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        """Total nanoseconds covered."""
        return int((self.end - self.start).sum())

    def covered_before(self, time: I64) -> I64:
        """Nanoseconds covered before each point in time: the integral from which `within` takes differences."""
        total = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, time, side="right")
        inside = np.zeros(len(time), dtype=np.int64)
        some = index > 0
        inside[some] = np.maximum(self.end[index[some] - 1] - time[some], 0)
        return np.asarray(total[index] - inside, dtype=np.int64)

    def within(self, start: I64, end: I64) -> I64:
        """Nanoseconds covered inside each interval [start, end)."""
        return self.covered_before(end) - self.covered_before(start)

    def contains(self, time: I64) -> npt.NDArray[np.bool_]:
        """Whether each point in time is covered."""
        index = np.searchsorted(self.start, time, side="right") - 1
        found: npt.NDArray[np.bool_] = index >= 0
        found[found] = time[found] < self.end[index[found]]
        return found

    def union(self, other: Intervals) -> Intervals:
        """Covered by either."""
        return Intervals.union_of(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def intersection(self, other: Intervals) -> Intervals:
        """Covered by both."""
        return self._select(other, inside=True)

    def difference(self, other: Intervals) -> Intervals:
        """Covered by this one and not by the other."""
        return self._select(other, inside=False)

    def shifted(self, by: int) -> Intervals:
        """The same at other times."""
        return Intervals(self.start + by, self.end + by)

    def clip(self, start: int, end: int) -> Intervals:
        """What of it is in [start, end)."""
        return Intervals.union_of(np.maximum(self.start, start), np.minimum(self.end, end))

    def _select(self, other: Intervals, *, inside: bool) -> Intervals:
        """Cut at every bound of both, then keep the pieces of this one that are in or out of the other."""
        bounds = np.sort(np.concatenate((self.start, self.end, other.start, other.end)), kind="stable")
        if len(bounds) == 0:
            return self
        start, end = bounds[:-1], bounds[1:]
        keep = self.contains(start) & (other.contains(start) == inside)
        return Intervals.union_of(start[keep], end[keep])


# The steps of a trace as a function of time: windows, and whose each moment is.


LEAST_STEPS = 2
"""Undamaged steps that a comparison needs of a damaged trace."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One step: its annotation on the host, and the window that its device work extends. Nanoseconds."""

    number: int
    """N of `ProfilerStep#N`, of steps by another name their place by time from 0; -1 for the one window of a trace
    without steps."""
    host_start: int
    host_end: int
    start: int
    """Start of the window [C_{N-1}, C_N); that of a first step is C_0, see `steps_of`."""
    end: int
    """C_N: the annotation's end or that of the last device event launched in N, whichever is later."""
    host_ns: int
    """Duration of the annotation without the setup in it."""
    window_ns: int
    """Duration of the window without the setup in it; windows tile, so their mean is the period."""
    pid: int
    tid: int
    """Process and thread that own the step."""
    name: str = ""
    """Name of the annotation; empty without steps."""
    group: str = ""
    """What `Trace.step_name` captures of the name (`step_groups`): steps of one kind."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace as a function of time."""

    windows: tuple[StepWindow, ...]
    """By time; without those that are left out."""
    setup: Intervals
    """Time on the steps' thread that belongs to no step."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Number and reason of each step of the file that no figure is made of."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the steps and the record of the device: `invalid` for damage."""

    lost: bool = False
    """Whether work of no step may be among the steps': their annotations are missing, or name only a part."""
    damage: bool = False
    """Whether damage is why a step is left out."""

    @property
    def damaged(self) -> bool:
        """Whether damage has left less of the trace than a comparison needs: fewer than two steps."""
        return self.damage and len(self.windows) < LEAST_STEPS

    @property
    def groups(self) -> dict[str, list[StepWindow]]:
        """The steps of each kind; first the kind with most steps, of equally many that with most time."""
        found: dict[str, list[StepWindow]] = {}
        for window in self.windows:
            found.setdefault(window.group, []).append(window)
        order = sorted(found, key=lambda group: (-len(found[group]), -sum(each.window_ns for each in found[group])))
        return {group: found[group] for group in order}

    @property
    def thread(self) -> tuple[int, int]:
        """Process and thread id of the thread that owns the steps, of which there is at least one."""
        return self.windows[0].pid, self.windows[0].tid

    @property
    def starts(self) -> I64:
        """Start of each window."""
        return np.array([window.start for window in self.windows], dtype=np.int64)

    @property
    def ends(self) -> I64:
        """End of each window."""
        return np.array([window.end for window in self.windows], dtype=np.int64)

    @property
    def time(self) -> Intervals:
        """The time of all windows, without the setup."""
        return Intervals.union_of(self.starts, self.ends).difference(self.setup)

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

    @property
    def skipped(self) -> Intervals:
        """Time between windows that is in none: pauses, steps that are left out, and steps of another kind."""
        if not self.windows:
            return Intervals.between(0, 0)
        covered = Intervals.union_of(self.starts, self.ends)
        return Intervals.between(self.windows[0].start, self.windows[-1].end).difference(covered)

    def of_host_time(self, time: I64) -> Rows:
        """Index of the step whose time on the host holds each moment, -1 for none."""
        starts = np.array([window.host_start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(starts, time, side="right") - 1
        index[~self.host.contains(time)] = -1
        return index

    def of_window_time(self, time: I64) -> Rows:
        """Index of the step whose window holds each moment, -1 for none."""
        index = np.searchsorted(self.starts, time, side="right") - 1
        if len(index) and self.windows:
            index[(time >= self.ends[index]) | self.setup.contains(time)] = -1
        return index
