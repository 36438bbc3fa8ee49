"""When a host thread worked and when it waited: for what, since when, for the device or for another thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import Thread, input_rows, operator_threads
from pytest_perfdl.analysis.waiting.device_order import (
    NEVER,
    DeviceOrder,
    SyncArgs,
    by_track,
    calls_by_correlation,
    device_order,
)
from pytest_perfdl.trace.model import I64, LAUNCH_CATEGORIES, Category, Rows, Trace, once

# What each host thread did when, as far as the trace tells: its activity, its gaps, and which threads matter.


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


@once
def host_threads(trace: Trace) -> tuple[HostThread, ...]:
    """The threads that can hold up a step: the steps' own first, then by their first event.

    A thread counts if it runs operators or launches device work; one that only asks the driver for its state, like
    NCCL's watchdog, does not.
    """
    joined, steps = launches(trace), steps_of(trace)
    if not steps.windows:
        return ()
    owner = steps.thread
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


# When a host thread waited, for what, and since when: for the device, or for another thread.


SYNC_CALL = re.compile(
    r"(?:(cudaDeviceSynchronize|hipDeviceSynchronize|cuCtxSynchronize)"
    r"|((?:cuda|hip|cu)StreamSynchronize|urQueueFinish)"
    r"|((?:cuda|hip|cu)EventSynchronize|urEventWait))(?:_\w+)?$"
)
"""Calls that return when a device, a stream or an event is done: groups 1, 2 and 3."""

_FREE = re.compile(r"(cuda|hip)Free$")
"""Frees device memory, for which it waits until the device is idle."""

EARLY_NS = 2_000
"""Clocks of host and device agree no better: a wait may seem to return this long before what it waited for ended."""

RETURN_NS = 60_000
"""A blocking call returns this soon after the end of what it waited for: wake-up of the thread (public traces)."""

GAP_NS = 100_000
"""Gaps of a thread from here on are looked into; Python between two operators is shorter."""

WAKE_NS = 200_000
"""A thread goes on this soon after the one that it joined, with Python in between."""

SPIN_BEFORE_NS, SPIN_AFTER_NS = 100_000, 80_000
"""A thread that polls for its last kernel goes on this long before (signaled from inside) or after its end."""

QUEUE = 1024
"""Launches that a stream's queue holds; the next one blocks until there is room (measured on CUDA)."""

QUEUE_NEAR = 1_000
"""Outstanding launches from which a slow call is taken for one that waits for room."""

SLOW_CALL = 3
"""Such a call takes this many times the median."""


class WaitReason(IntEnum):
    """Why a thread waited."""

    SYNC = 0
    """A call that synchronizes."""
    COPY = 1
    """A copy's call that returned with its copy."""
    FREE = 2
    """Device memory was freed, for which the device had to be idle."""
    QUEUE = 3
    """The launch queue was full."""
    SPIN = 4
    """It polled for its last kernel."""
    JOIN = 5
    """Another thread had to finish or begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """The waits of one thread in the order of `release`: columns of equal length."""

    release: I64
    """When what it waited for was there."""
    since: I64
    """When it began to wait."""
    event: Rows
    """Position of the device event waited for, -1 for a thread."""
    thread: Rows
    """Index of the thread waited for, -1 for a device event."""
    inferred: npt.NDArray[np.bool_]
    """Whether only the times suggest the wait."""
    cause: npt.NDArray[np.int8]
    """As `WaitReason`."""
    call: Rows
    """Row of the call that waited, -1 for a wait in a gap."""


class _Found:
    """Collects the waits of all threads."""

    def __init__(self, trace: Trace) -> None:
        threads = host_threads(trace)
        self._by_thread: list[list[tuple[npt.NDArray[Any], ...]]] = [[] for _ in threads]
        self.thread_of_row = np.full(len(trace), -1, dtype=np.intp)
        """Index of the thread of each row of the trace; -1 for what is not on one of them."""
        for number, thread in enumerate(threads):
            self.thread_of_row[thread.rows] = number

    def in_calls(self, cause: WaitReason, call: Rows, release: I64, since: I64, event: Rows) -> None:
        """Waits in calls for device events."""
        waiter = self.thread_of_row[call]
        for number in np.unique(waiter[waiter >= 0]).tolist():
            own = waiter == number
            self.add(cause, number, release[own], since[own], event=event[own], call=call[own])

    def add(
        self,
        cause: WaitReason,
        waiter: int,
        release: I64,
        since: I64,
        *,
        event: Rows | int = -1,
        thread: Rows | int = -1,
        call: Rows | int = -1,
        inferred: bool = False,
    ) -> None:
        """Waits of one thread, for device events or for threads."""
        count = len(release)
        events, threads, calls = (np.full(count, each, dtype=np.intp) for each in (event, thread, call))
        flags, causes = np.full(count, inferred, dtype=bool), np.full(count, cause, dtype=np.int8)
        self._by_thread[waiter].append((release, since, events, threads, flags, causes, calls))

    def of_thread(self, waiter: int) -> Waits:
        """The waits of one thread."""
        none, rows = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.intp)
        nothing = none, none, rows, rows, np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int8), rows
        columns = [np.concatenate(column) for column in zip(nothing, *self._by_thread[waiter], strict=True)]
        release, since = columns[:2]
        keep = np.flatnonzero(release > since)
        keep = keep[np.lexsort((since[keep], release[keep]))]
        return Waits(*(column[keep] for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """The waits of all threads, in their order, and the calls that block."""

    by_thread: tuple[Waits, ...]
    thread_of_row: Rows
    """Index of the thread of each row of the trace; -1 for what is not on one of them."""
    blocking: Rows
    """Rows of calls whose time is waiting: the synchronizing ones, and copies that returned with their copy."""
    sync_call: Rows
    """Rows of synchronizing calls, one entry for each device event that they had to be ready for."""
    sync_event: Rows
    """Positions of these events: of every stream the last one ahead of a call that synchronizes with the device."""
    whole_device: Rows
    """Rows of the calls that synchronize with the device, those that free memory among them."""
    sync_stream: tuple[tuple[int, int], ...]
    """Rows of the calls that synchronize with a stream which is known, and the number of that stream."""


def span_of(trace: Trace) -> tuple[int, int] | None:
    """From the first start to the last end of what a path can lead through; `None` without any.

    Operators, runtime calls, input and step annotations, on threads that run operators or launch, and device events.
    """
    threads = host_threads(trace)
    rows = np.concatenate([device_order(trace).row, *(thread.rows for thread in threads)])
    # The one window of a trace without steps is made of its events.
    bounds = [(window.host_start, window.host_end) for window in steps_of(trace).windows if window.number >= 0]
    annotated = np.array(bounds, dtype=np.int64).reshape(-1, 2)
    starts = np.concatenate([trace.start[rows], annotated[:, 0], *(thread.activity.start for thread in threads)])
    ends = np.concatenate([trace.end[rows], annotated[:, 1], *(thread.activity.end for thread in threads)])
    return (int(starts.min()), int(ends.max())) if len(starts) else None


@once
def host_waits(trace: Trace) -> HostWaits:
    """Find where host threads waited; the steps' thread up to the end of `span_of`, which it may have reached in a gap.

    *Known*: a synchronizing call for the last event ahead of it (of the stream or event that `cuda_sync` names, else
    the one that ended last before the call returned); a copy's call that returned with its own copy; a launch into
    a full queue; the autograd engine's threads for their caller and the caller for them.
    *Inferred*: a long gap that ends with the thread's last kernel (polling), or soon after another thread went idle.
    """
    threads, span = host_threads(trace), span_of(trace)
    end = span[1] if span is not None else 0
    found = _Found(trace)
    syncs, kinds = _sync_calls(trace)
    named = _named_targets(trace, syncs, kinds)
    sync_call, sync_event = _add_synchronizations(trace, syncs, kinds, named, found)
    copies = _add_copies(trace, found)
    for own in device_order(trace).sequence:
        call, before, released = full_queue(trace, own)
        found.in_calls(WaitReason.QUEUE, call, released, trace.start[call], before)
    _add_spinning(trace, end, found)
    for waiter in range(len(threads)):
        _add_joins(threads, waiter, end, found)
    return HostWaits(
        by_thread=tuple(found.of_thread(waiter) for waiter in range(len(threads))),
        thread_of_row=found.thread_of_row,
        blocking=np.concatenate((syncs[kinds < _FREEING], copies)),
        sync_call=sync_call,
        sync_event=sync_event,
        whole_device=syncs[np.isin(kinds, (_DEVICE, _FREEING))],
        sync_stream=tuple((int(syncs[at]), stream) for at, _, stream in named if kinds[at] == _STREAM),
    )


_DEVICE, _STREAM, _EVENT, _FREEING = 1, 2, 3, 4


def _sync_calls(trace: Trace) -> tuple[Rows, Rows]:
    """Rows of the calls that synchronize, and what with."""
    matches = [SYNC_CALL.match(name) for name in trace.names]
    kind_of = np.array([match.lastindex or 0 if match else 0 for match in matches], dtype=np.intp)
    kind_of[trace.named(_FREE.match)] = _FREEING
    rows = np.concatenate([_NONE, *(thread.rows for thread in host_threads(trace))])
    rows = rows[(kind_of[trace.name[rows]] > 0) & (trace.category[rows] != Category.CPU_OP)]
    return rows, kind_of[trace.name[rows]]


def _add_synchronizations(
    trace: Trace, rows: Rows, kinds: Rows, named: list[tuple[int, int, int]], found: _Found
) -> tuple[Rows, Rows]:
    """Add the waits, and return the calls and the events that they had to be ready for."""
    order = device_order(trace)
    if len(rows) == 0 or len(order) == 0:
        return _NONE, _NONE
    since, until = trace.start[rows], trace.end[rows]
    event = np.full(len(rows), -1, dtype=np.intp)
    end = np.full(len(rows), NEVER, dtype=np.int64)
    pairs = []
    for stream in range(len(order.sequence)):
        last = order.last_before(stream, since)
        its_end = np.where(last >= 0, order.end[last], NEVER)
        done = (its_end > NEVER) & (its_end <= until + EARLY_NS)
        later = done & (its_end > end)
        event[later], end[later] = last[later], its_end[later]
        some = np.flatnonzero(done & np.isin(kinds, (_DEVICE, _FREEING)))
        pairs.append((rows[some], last[some]))
    by_end = np.argsort(order.end, kind="stable")
    for at in np.flatnonzero(kinds == _EVENT).tolist():
        event[at] = _ended_last(order, by_end, int(since[at]), int(until[at]) + EARLY_NS)
    for at, target, _ in named:
        event[at] = target
    end = np.where(event >= 0, order.end[event], NEVER)
    one = np.flatnonzero(np.isin(kinds, (_STREAM, _EVENT)) & (event >= 0) & (end <= until + EARLY_NS))
    pairs.append((rows[one], event[one]))
    waited = (end > since) & (end <= until + EARLY_NS)
    for freeing in (False, True):
        some = np.flatnonzero(waited & ((kinds == _FREEING) == freeing))
        release = np.minimum(end[some], until[some])
        cause = WaitReason.FREE if freeing else WaitReason.SYNC
        found.in_calls(cause, rows[some], release, since[some], event[some])
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _ended_last(order: DeviceOrder, by_end: Rows, since: int, until: int) -> int:
    """Position of the event launched before `since` that ended last up to `until`, -1 for none after `since`."""
    index = int(np.searchsorted(order.end, until, side="right", sorter=by_end)) - 1
    while index >= 0 and order.end[by_end[index]] > since:
        if order.launched[by_end[index]] < since:
            return int(by_end[index])
        index -= 1
    return -1


def _named_targets(trace: Trace, rows: Rows, kinds: Rows) -> list[tuple[int, int, int]]:
    """Calls whose target a `cuda_sync` event names: index, position of the target (-1 for none) and its stream."""
    order, events = device_order(trace), trace.rows(Category.CUDA_SYNC)
    place = {row: at for at, row in enumerate(rows.tolist())}
    targets = []
    args = trace.decode_args(events, SyncArgs)
    calls = calls_by_correlation(trace)
    callers = calls.find(trace.correlation[events]).tolist()
    records = calls.find(np.array([arg.record for arg in args], dtype=np.int64)).tolist()
    for event, arg, caller, record in zip(events.tolist(), args, callers, records, strict=True):
        at = place.get(caller, -1)
        if at < 0 or kinds[at] not in (_STREAM, _EVENT):
            continue
        is_stream = kinds[at] == _STREAM
        ahead = order.streams.get((int(trace.pid[event]), arg.stream if is_stream else arg.wait_on_stream), -1)
        if ahead >= 0 and (is_stream or record >= 0):
            before = trace.start[[caller if is_stream else record]]
            targets.append((at, int(order.last_before(ahead, before)[0]), ahead))
    return targets


def _add_copies(trace: Trace, found: _Found) -> Rows:
    """Copies whose calls returned with them; pinned ones by an asynchronous call do so only by accident."""
    order = device_order(trace)
    copy = np.flatnonzero((trace.category[order.row] == Category.GPU_MEMCPY) & (order.call >= 0))
    call: Rows = order.call[copy]
    pinned = trace.named(lambda name: "Pinned" in name)[trace.name[order.row[copy]]]
    asynchronous = trace.named(lambda name: "Async" in name)[trace.name[call]]
    start, end = trace.start[call], trace.end[call]
    lag = end - order.end[copy]
    blocks = (lag >= -EARLY_NS) & (lag <= RETURN_NS) & (order.end[copy] > start) & ~(pinned & asynchronous)
    copy, call, start, end = copy[blocks], call[blocks], start[blocks], end[blocks]
    found.in_calls(WaitReason.COPY, call, np.minimum(order.end[copy], end), start, copy)
    return call


def full_queue(trace: Trace, own: Rows) -> tuple[Rows, Rows, I64]:
    """Rows of the calls that waited for room in a stream's queue, positions of what made room, and when that was.

    `own` are the positions of the stream's events in their order. What a launch usually takes is told by those
    before the first that could have had to wait: of the later ones most may.
    """
    order = device_order(trace)
    free = order.call[own[: QUEUE - 1]]
    free = free[free >= 0]
    if len(own) < QUEUE or not len(free):
        return own[:0], own[:0], order.end[:0]
    usual_ns = float(np.median(trace.duration[free]))
    call, before = order.call[own[QUEUE - 1 :]], own[: 1 - QUEUE]
    linked = call >= 0
    call, before = call[linked], before[linked]
    start, end = trace.start[call], trace.end[call]
    number = np.flatnonzero(linked) + QUEUE - 1
    outstanding = number - np.searchsorted(order.start[own], start, side="left")
    released = np.minimum(order.end[before], end)
    full = (outstanding >= QUEUE_NEAR) & (end - start > SLOW_CALL * usual_ns) & (released > start)
    full &= (order.end[before] <= end + EARLY_NS) & (order.launched[before] < start)
    return call[full], before[full], released[full]


def _add_spinning(trace: Trace, span_end: int, found: _Found) -> None:
    order = device_order(trace)
    linked = np.flatnonzero(order.call >= 0)
    linked = linked[np.lexsort((order.end[linked], order.launched[linked]))]
    launcher = found.thread_of_row[order.call[linked]]
    for number, thread in enumerate(host_threads(trace)):
        own = linked[launcher == number]
        since, until = thread.gaps(span_end if number == 0 else None)
        long = until - since > GAP_NS
        since, until = since[long], until[long]
        last = np.searchsorted(order.launched[own], since, side="right") - 1
        since, until, event = since[last >= 0], until[last >= 0], own[last[last >= 0]]
        end = order.end[event]
        # The kernel must have run for most of the gap: a short one ends anywhere.
        polled = (end - until <= SPIN_BEFORE_NS) & (until - end <= SPIN_AFTER_NS) & (order.start[event] < until)
        polled &= (np.minimum(end, until) - since) * 2 >= until - since
        release = np.minimum(end, until)[polled]
        found.add(WaitReason.SPIN, number, release, since[polled], event=event[polled], inferred=True)


def _add_joins(threads: tuple[HostThread, ...], waiter: int, end: int, found: _Found) -> None:
    """Waits of one thread for others: the one that went idle last before it went on."""
    own = threads[waiter]
    if len(own.activity) == 0:
        return
    first = waiter > 0
    since, until = own.gaps(None if first else end)
    if first:
        since, until = np.insert(since, 0, NEVER), np.insert(until, 0, own.activity.start[0])
    release = np.full(len(until), NEVER, dtype=np.int64)
    source = np.full(len(until), -1, dtype=np.intp)
    sure = np.zeros(len(until), dtype=bool)
    for number, other in enumerate(threads):
        if number == waiter or len(other.activity) == 0:
            continue
        known = (own.is_engine and (number == 0 or other.is_engine)) or (waiter == 0 and other.is_engine)
        place = np.searchsorted(other.activity.end, until, side="right") - 1
        ended = np.where(place >= 0, other.activity.end[place], NEVER)
        accepted = (ended > since) & ~other.activity.contains(until)
        if not known:
            accepted &= (until - since > GAP_NS) & (until - ended <= WAKE_NS)
        elif number == 0:
            # The engine starts while its caller is inside an operator of its own, too.
            inside = other.activity.contains(until)
            ended, accepted = np.where(inside, until, ended), accepted | inside
        accepted &= ended > release
        release[accepted] = ended[accepted]
        source[accepted] = number
        sure[accepted] = known
    if first and source[0] < 0:
        _add_start(threads[0], int(until[0]), release, source)
    for flag in (True, False):
        some = (source >= 0) & (sure == flag)
        found.add(WaitReason.JOIN, waiter, release[some], since[some], thread=source[some], inferred=not flag)


def _add_start(owner: HostThread, start: int, release: I64, source: Rows) -> None:
    """A thread whose first work nothing else explains was started by the steps' thread, if that ran before."""
    activity = owner.activity
    if len(activity) and activity.start[0] < start:
        place = int(np.searchsorted(activity.start, start, side="right")) - 1
        release[0] = min(int(activity.end[place]), start)
        source[0] = 0
