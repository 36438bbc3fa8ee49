"""What the analyses say about a trace and a task graph is built from, gathered once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import collective_annotation_rows
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import nest
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import on_thread
from pytest_perfdl.analysis.events.tree import by_thread
from pytest_perfdl.analysis.waiting.device_order import (
    NEVER,
    Bindings,
    CallsByCorrelation,
    DeviceOrder,
    bindings,
    device_order,
    event_waits,
)
from pytest_perfdl.analysis.waiting.host_timeline import HostThread, host_threads
from pytest_perfdl.analysis.waiting.waits import GAP_NS, WAKE_NS, HostWaits, full_queue, host_waits
from pytest_perfdl.trace.model import I64, Category, Rows, Trace
from pytest_perfdl.whatif.model import Mask

_NONE = np.zeros(0, dtype=np.intp)

_COPY_BACK, _VIEW = "torch.distributed.ddp.reducer::copy_bucket_to_grad", "aten::as_strided"


@dataclass(frozen=True, slots=True, eq=False)
class TraceEvidence:
    """The trace as the analyses see it."""

    trace: Trace
    steps: Steps
    threads: tuple[HostThread, ...]
    order: DeviceOrder
    bound: Bindings
    waiting: HostWaits
    event_waiter: Rows
    """Positions that wait for a recorded event, one entry for each `cudaStreamWaitEvent`."""
    event_source: Rows
    """Positions of what they wait for."""
    channels: tuple[Rows, ...]
    """Collectives beside the host's threads, by thread; only of traces without device events."""
    collective_wait: tuple[I64, I64, Rows]
    """Waits of the steps' thread for them: since when, until when, and the row of the collective."""
    queue_wait: tuple[Rows, Rows, I64]
    """Calls that waited for room in a launch queue, positions of what made room, and when: those of `host_waits`, and
    others where most launches wait, so that waiting is the usual."""
    asking: Rows
    """Operators that ask for a collective: the outermost ones of the steps' thread that are named like one."""


def evidence_of(trace: Trace) -> TraceEvidence:
    """Ask the analyses."""
    joined = launches(trace)
    steps = steps_of(trace, joined)
    threads = host_threads(trace, steps, joined)
    order = device_order(trace, joined)
    calls = CallsByCorrelation(trace)
    ends = [int(thread.activity.end[-1]) for thread in threads if len(thread.activity)]
    ends += [int(order.end.max())] if len(order) else []
    ends += [window.host_end for window in steps.windows if window.number >= 0]
    bound = bindings(trace, order, calls)
    waiting = host_waits(trace, order, threads, calls, max(ends, default=0))
    waiter, source = event_waits(trace, order, calls)
    channels = () if len(order) else _channels(trace, threads)
    return TraceEvidence(
        trace=trace,
        steps=steps,
        threads=threads,
        order=order,
        bound=bound,
        waiting=waiting,
        event_waiter=waiter,
        event_source=source,
        channels=channels,
        collective_wait=_collective_waits(trace, threads, channels),
        queue_wait=_queue_waits(trace, order),
        asking=_asking(trace, threads) if channels else _NONE,
    )


def _channels(trace: Trace, threads: tuple[HostThread, ...]) -> tuple[Rows, ...]:
    """Collectives on threads of their own; of nested or overlapping annotations the outer, earlier one."""
    known = {thread.thread for thread in threads}
    found = []
    for rows in by_thread(trace, collective_annotation_rows(trace)):
        if (int(trace.pid[rows[0]]), int(trace.tid[rows[0]])) in known:
            continue
        forest = nest(trace.start[rows], trace.end[rows])
        outer = rows[forest.parent < 0]
        reach = np.maximum.accumulate(np.concatenate(([NEVER], trace.end[outer][:-1])))
        found.append(outer[trace.start[outer] >= reach])
    return tuple(found)


def _queue_waits(trace: Trace, order: DeviceOrder) -> tuple[Rows, Rows, I64]:
    found = [full_queue(trace, order, own) for own in order.sequence]
    if not found:
        return _NONE, _NONE, order.end[:0]
    call, before, released = (np.concatenate(column) for column in zip(*found, strict=True))
    return call, before, released


def _asking(trace: Trace, threads: tuple[HostThread, ...]) -> Rows:
    rows = on_thread(trace, collective_annotation_rows(trace), threads[0].thread) if threads else _NONE
    rows = rows[trace.category[rows] == Category.CPU_OP]
    found: Rows = rows[nest(trace.start[rows], trace.end[rows]).parent < 0]
    return found


def _collective_waits(
    trace: Trace, threads: tuple[HostThread, ...], channels: tuple[Rows, ...]
) -> tuple[I64, I64, Rows]:
    """Gaps of the steps' thread in which a collective ended that it waited for.

    Long gaps that end soon after a collective did; and gaps that end with DistributedDataParallel copying a bucket
    back to its gradients, however late the thread woke up: its reducer waits for the bucket then
    (`Reducer::finalize_backward` in torch/csrc/distributed/c10d/reducer.cpp).
    """
    none = np.zeros(0, dtype=np.int64)
    if not threads or not channels:
        return none, none, none.astype(np.intp)
    rows = np.concatenate(channels)
    rows = rows[np.argsort(trace.end[rows], kind="stable")]
    since, until = threads[0].gaps(None)
    last = np.searchsorted(trace.end[rows], until, side="right") - 1
    ended = np.where(last >= 0, trace.end[rows[np.maximum(last, 0)]], NEVER)
    soon = (until - since > GAP_NS) & (until - ended <= WAKE_NS)
    waits = (ended > since) & (soon | _copying_back(trace, threads[0], until))
    return since[waits], ended[waits], rows[last[waits]]


def _copying_back(trace: Trace, thread: HostThread, moments: I64) -> Mask:
    """Whether a thread begins at each moment to copy a bucket of gradients back, behind the views that this needs."""
    rows = thread.rows[trace.category[thread.rows] == Category.CPU_OP]
    rows = rows[~trace.named(_VIEW.__eq__)[trace.name[rows]]]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    if not len(rows):
        return np.zeros(len(moments), dtype=bool)
    place = np.searchsorted(trace.start[rows], moments, side="left")
    copies = trace.named(_COPY_BACK.__eq__)[trace.name[rows]]
    found: Mask = (place < len(rows)) & copies[np.minimum(place, len(rows) - 1)]
    return found
