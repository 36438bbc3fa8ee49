"""Which step a device event belongs to, and which belong to none because they were launched before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.launches import UNSET, Launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Category, Rows, Trace


@once
def device_steps(trace: Trace, steps: Steps, joined: Launches) -> Rows:
    """Index of the step that launched each device event of `joined`, -1 for none.

    Where the launch is not known it is the step in whose window the event runs, unless it is `carried_over`.
    """
    starts = trace.start[joined.device]
    step = steps.of_host_time(np.where(joined.linked, trace.start[joined.call], starts))
    unlinked = ~joined.linked
    step[unlinked] = steps.of_window_time(starts[unlinked])
    step[carried_over(trace, joined)] = -1
    return step


def streams_of(trace: Trace, device: Rows) -> Rows:
    """Number of each device event's stream, counted from 0 over all devices: by device, then by stream."""
    _, process = np.unique(trace.pid[device], return_inverse=True)
    _, thread = np.unique(trace.tid[device], return_inverse=True)
    both = process.astype(np.intp) * (int(thread.max(initial=0)) + 1) + thread
    stream: Rows = np.unique(both, return_inverse=True)[1].astype(np.intp)
    return stream


@once
def carried_over(trace: Trace, joined: Launches) -> npt.NDArray[np.bool_]:
    """Unlinked device events ahead of the first linked one of their stream, in each recording of the file.

    A stream runs in the order of launches, so they were launched before profiling began. A recording of its own begins
    where the numbers of the steps do not go on. Of an event whose correlation was never set, and of one that was
    refused, it is not known.
    """
    rows, numbers = step_annotations(trace)
    again = np.flatnonzero(np.diff(numbers) != 1) + 1 if len(numbers) > 1 else np.zeros(0, dtype=np.intp)
    stream = streams_of(trace, joined.device)
    order = np.argsort(stream, kind="stable")
    session = np.searchsorted(trace.start[rows[again]], trace.start[joined.call], side="right")[order]
    linked = np.flatnonzero(joined.linked[order])
    place = np.searchsorted(linked, np.arange(len(order)))
    before, after = linked[np.maximum(place - 1, 0)] if len(linked) else linked, np.append(linked, 0)[place]
    carried = np.zeros(len(order), dtype=bool)
    if len(linked):
        own = stream[order]
        has_before = (place > 0) & (own[before] == own)
        has_after = (place < len(linked)) & (own[after] == own)
        first = ~has_before | (session[before] < session[after])
        carried[order] = has_after & first & ~joined.linked[order]
    carried &= ~np.isin(trace.correlation[joined.device], UNSET) & ~joined.refused
    own = np.flatnonzero(carried)
    if len(own):
        # One whose operator is in the file was launched in it, by a call that is lost.
        asked = trace.external_ids(joined.device[own])
        operators = trace.rows(Category.CPU_OP)
        operators = operators[trace.start[operators] < trace.end[joined.device[own]].max()]
        carried[own[(asked > 0) & np.isin(asked, trace.external_ids(operators))]] = False
    return carried
