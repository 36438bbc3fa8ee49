"""The steps of a trace as a function of time: windows, and whose each moment is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.model.record import Finding
from pytest_perfdl.trace.model import I64, Rows

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
    """Start of the window [C_{N-1}, C_N); that of a first step is C_0, see `step_windows`."""
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
        starts = np.array([window.start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(starts, time, side="right") - 1
        ends = np.array([window.end for window in self.windows], dtype=np.int64)
        if len(index) and self.windows:
            index[(time >= ends[index]) | self.setup.contains(time)] = -1
        return index
