"""The parts of steps with device events: whose each moment of a step's window is."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.account.device_account import BUSY_CLASSES, IDLE_CLASSES, idle_time
from pytest_perfdl.analysis.account.parts.labels import labels
from pytest_perfdl.analysis.account.parts.sums import StepParts, TimeEntries
from pytest_perfdl.analysis.events.communication import communication_kernels, covered
from pytest_perfdl.analysis.events.device_steps import device_steps
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import Launches
from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.trace.model import Category, Rows, Trace


def device_parts(trace: Trace, steps: Steps, joined: Launches) -> StepParts:
    """Device events by the time that they alone account for, and idle time by cause and by what ends it.

    Classes are those of `device_accounts`. A moment at which several events of a class run belongs to the one that
    started last. Idle time has the labels of the call that launched what ends it.
    """
    ledger = TimeEntries(trace, labels(trace), (*BUSY_CLASSES, *IDLE_CLASSES))
    is_communication = communication_kernels(trace)
    is_kernel = trace.category == Category.KERNEL
    step = np.full(len(trace), -1, dtype=np.intp)
    step[joined.device] = device_steps(trace, steps, joined)
    rows = trace.device_rows()
    kinds = (
        (rows[is_kernel[rows] & ~is_communication[rows]], None),
        (rows[is_communication[rows]], rows[is_kernel[rows] & ~is_communication[rows]]),
        (rows[~is_kernel[rows]], rows[is_kernel[rows]]),
    )
    for name, (own, above) in zip(BUSY_CLASSES, kinds, strict=True):
        launched = own[step[own] >= 0]
        ledger.add("kernel", name, launched, step[launched], busy=trace.duration[launched], count=1)
        _exposed(trace, steps, ledger, name, own, covered(trace, above) if above is not None else None)
    found = idle_time(trace, steps, joined)
    for name, ns in found.by_cause.items():
        some = np.flatnonzero(ns)
        ledger.add("idle", name, found.call[some], found.window[some], ns=ns[some])
    return ledger.close(True, np.array([window.window_ns for window in steps.windows], dtype=np.int64))


def _exposed(trace: Trace, steps: Steps, ledger: TimeEntries, name: str, rows: Rows, behind: Intervals | None) -> None:
    """Time of these events in the windows that does not hide behind the others."""
    owned = ownership(trace.start[rows], trace.end[rows])
    for index in range(len(steps.windows)):
        window = steps.windows[index]
        first = int(np.searchsorted(owned.end, window.start, side="right"))
        own = slice(first, max(first, int(np.searchsorted(owned.start, window.end))))
        time = steps.window_time(index)
        if behind is not None:
            time = time.difference(behind.clip(window.start, window.end))
        ns = time.within(owned.start[own], owned.end[own])
        some = np.flatnonzero(ns)
        ledger.add("kernel", name, rows[owned.owner[own][some]], np.full(len(some), index), ns=ns[some])
