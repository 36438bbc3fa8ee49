"""What a task graph is built from: what the analyses say, the tasks of host threads, and which task is which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import collective_annotation_rows, communication_kernels
from pytest_perfdl.analysis.events.intervals import Intervals, Steps
from pytest_perfdl.analysis.events.launches import by_thread
from pytest_perfdl.analysis.events.nesting import nest, nesting_order, ownership
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import input_rows, on_thread
from pytest_perfdl.analysis.waiting.device_order import (
    NEVER,
    Bindings,
    DeviceOrder,
    bindings,
    device_order,
    event_waits,
)
from pytest_perfdl.analysis.waiting.waits import (
    GAP_NS,
    WAKE_NS,
    HostThread,
    HostWaits,
    WaitReason,
    Waits,
    full_queue,
    host_threads,
    host_waits,
)
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace
from pytest_perfdl.whatif.facts import step_at
from pytest_perfdl.whatif.model import NO_SCOPE, WHOLE_DEVICE, Mask, TaskKind, Tasks, Track, TrackKind

# What the analyses say about a trace and a task graph is built from, gathered once.


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
    steps = steps_of(trace)
    threads = host_threads(trace)
    order = device_order(trace)
    waiter, source = event_waits(trace)
    channels = () if len(order) else _channels(trace, threads)
    return TraceEvidence(
        trace=trace,
        steps=steps,
        threads=threads,
        order=order,
        bound=bindings(trace),
        waiting=host_waits(trace),
        event_waiter=waiter,
        event_source=source,
        channels=channels,
        collective_wait=_collective_waits(trace, threads, channels),
        queue_wait=_queue_waits(trace, order),
        asking=_asking_operators(trace, threads) if channels else _NONE,
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
    found = [full_queue(trace, own) for own in order.sequence]
    if not found:
        return _NONE, _NONE, order.end[:0]
    call, before, released = (np.concatenate(column) for column in zip(*found, strict=True))
    return call, before, released


def _asking_operators(trace: Trace, threads: tuple[HostThread, ...]) -> Rows:
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


# The tasks of host threads: their time cut into pieces of the innermost event, with the waiting taken out.


COLLECTIVE = -1
"""Stands beside the values of `WaitReason`: the thread waited for a collective that ran on another thread."""


@dataclass(frozen=True, slots=True, eq=False)
class ThreadWaits:
    """The waits of a thread in the order in which they end, none overlapping another; and calls that might wait."""

    since: I64
    until: I64
    """When the thread went on: where the call returned, or where what was waited for was there."""
    release: I64
    """When what it waited for was there."""
    cause: Rows
    """As `WaitReason`, or `COLLECTIVE`."""
    event: Rows
    """Position of the device event waited for, row of the collective, or -1."""
    thread: Rows
    """Index of the thread waited for, or -1."""
    call: Rows
    """Row of the waiting call, -1 in gaps."""
    inferred: Mask
    idle_call: Rows
    """Rows of synchronizing calls that found nothing to wait for."""
    idle_at: I64
    """When they would have gone on."""


@dataclass(frozen=True, slots=True, eq=False)
class ThreadTasks:
    """The tasks of one thread in their order."""

    start: I64
    end: I64
    kind: Rows
    """As `TaskKind`."""
    row: Rows
    wait: Rows
    """Index into `ThreadWaits` of what a RETURN waited for; that of an idle call counts on from there; else -1."""

    def at(self, time: I64) -> Rows:
        """The last task that starts at each moment; before it, where none does; the first before all."""
        return np.maximum(np.searchsorted(self.start, time, side="right") - 1, 0)

    def ended_by(self, time: I64) -> Rows:
        """The task that ended at each moment, the first of several; without one the last before it, -1 for none."""
        place = np.searchsorted(self.end, time, side="left")
        exact = (place < len(self.end)) & (np.append(self.end, 0)[place] == time)
        found: Rows = np.where(exact, place, place - 1)
        return found


def thread_waits(found: TraceEvidence, number: int) -> ThreadWaits:
    """The waits that `host_waits` found, fit to be taken out of a thread's time.

    A wait in a blocking call lasts until the call returns, which is the latency of the return; others until what
    they waited for was there. A wait begins after the launches inside it and after the end of the one before.
    """
    trace = found.trace
    waits: Waits = found.waiting.by_thread[number]
    until = waits.release.copy()
    in_call = (waits.call >= 0) & np.isin(waits.call, found.waiting.blocking)
    until[in_call] = np.maximum(until[in_call], trace.end[waits.call[in_call]])
    cause = waits.cause.astype(np.intp)
    parts = [(waits.since, until, waits.release, cause, waits.event, waits.thread, waits.call, waits.inferred)]
    for its_cause, (begins, ends, events, calls) in _more_waits(found, number, waits.call):
        none = np.full(len(begins), -1, dtype=np.intp)
        cause, guessed = np.full_like(none, its_cause), np.full(len(begins), its_cause == COLLECTIVE)
        parts.append((begins, ends, ends, cause, events, none, calls, guessed))
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    since, until, release, cause, event, thread, call, inferred = columns
    launched = _launch_starts(found, number)
    inside = np.searchsorted(launched, release, side="left") - 1
    since = np.where(inside >= 0, np.maximum(since, launched[np.maximum(inside, 0)]), since) if len(launched) else since
    later = np.searchsorted(launched, until, side="left") > np.searchsorted(launched, release, side="left")
    until[later] = release[later]
    order = np.lexsort((since, until))
    since, until, release = since[order], until[order], release[order]
    since = np.minimum(np.maximum(since, np.concatenate(([NEVER], until[:-1]))[: len(until)]), until)
    sync = np.unique(found.waiting.sync_call)
    idle = sync[(found.waiting.thread_of_row[sync] == number) & ~np.isin(sync, call)]
    # A call that frees memory waits first and works then; one that only synchronizes returns when it has waited.
    idle_at = np.where(np.isin(idle, found.waiting.blocking), trace.end[idle], trace.start[idle])
    taken = Intervals.union_of(since, until)
    free = ~taken.contains(idle_at) | np.isin(idle_at, since)
    return ThreadWaits(
        since=since,
        until=until,
        release=release,
        cause=cause[order],
        event=event[order],
        thread=thread[order],
        call=call[order],
        inferred=inferred[order],
        idle_call=idle[free],
        idle_at=idle_at[free],
    )


def _more_waits(found: TraceEvidence, number: int, known: Rows) -> list[tuple[int, tuple[I64, I64, Rows, Rows]]]:
    """Waits that `host_waits` does not have: cause; since, until, what for, and the calls."""
    call, before, released = found.queue_wait
    own = (found.waiting.thread_of_row[call] == number) & ~np.isin(call, known)
    more = [(int(WaitReason.QUEUE), (found.trace.start[call[own]], released[own], before[own], call[own]))]
    if number == 0:
        begins, ends, rows = found.collective_wait
        more.append((COLLECTIVE, (begins, ends, rows, np.full(len(rows), -1, dtype=np.intp))))
    return more


def _launch_starts(found: TraceEvidence, number: int) -> I64:
    calls = found.order.call[found.order.call >= 0]
    return np.unique(found.trace.start[calls[found.waiting.thread_of_row[calls] == number]])


def thread_tasks(found: TraceEvidence, number: int, waits: ThreadWaits, cuts: I64) -> ThreadTasks:
    """Cut one thread into tasks: at every event's bounds, every launch, wait and step, and at `cuts`.

    A wait leaves two tasks without duration: WAIT where it began, RETURN where the thread went on.
    """
    trace, thread = found.trace, found.threads[number]
    rows = np.concatenate((thread.rows, on_thread(trace, input_rows(trace), thread.thread)))
    rows = rows[nesting_order(trace.start[rows], trace.end[rows])]
    owned = ownership(trace.start[rows], trace.end[rows])
    bounds = [*_bounds(found, number, thread), *(waits.since[waits.since > NEVER]), *waits.until]
    if not bounds:
        nothing = np.zeros(0, dtype=np.int64)
        return ThreadTasks(nothing, nothing, *(nothing.astype(np.intp) for _ in range(3)))
    low, high = min(bounds), max(bounds)
    marks = (owned.start, owned.end, _launch_starts(found, number), cuts, waits.idle_at, np.array(bounds))
    cut = np.unique(np.clip(np.concatenate(marks), low, high))
    start, end = cut[:-1], cut[1:]
    working = ~Intervals.union_of(waits.since, waits.until).contains(start)
    start, end = start[working], end[working]
    place = owned.at(start)
    row = np.where(place >= 0, rows[place], -1) if len(rows) else np.full(len(start), -1, dtype=np.intp)
    kind = np.full(len(row), TaskKind.GAP, dtype=np.intp)
    category = trace.category[row]
    kind[row >= 0] = np.where(category == Category.CPU_OP, TaskKind.OPERATOR, TaskKind.CALL)[row >= 0]
    kind[(row >= 0) & (category == Category.USER_ANNOTATION)] = TaskKind.INPUT
    count = len(waits.since)
    begun = np.flatnonzero(waits.since > NEVER)
    times = np.concatenate((waits.since[begun], waits.until, waits.idle_at))
    ranks = np.concatenate((2 * begun, 2 * np.arange(count) + 1, 2 * count + np.arange(len(waits.idle_at))))
    returns = np.concatenate((np.arange(count), count + np.arange(len(waits.idle_at))))
    number_of = np.concatenate((np.full(len(begun), -1, dtype=np.intp), returns, np.full(len(start), -1)))
    kinds = np.concatenate((np.full(len(begun), TaskKind.WAIT), np.full(len(returns), TaskKind.RETURN), kind))
    its_row = np.concatenate((waits.call[begun], waits.call, waits.idle_call, row))
    starts, ends = np.concatenate((times, start)), np.concatenate((times, end))
    ranks = np.concatenate((ranks, np.full(len(start), np.iinfo(np.int64).max)))
    order = np.lexsort((ranks, starts))
    return ThreadTasks(
        starts[order],
        ends[order],
        kinds[order].astype(np.intp),
        its_row[order].astype(np.intp),
        number_of[order].astype(np.intp),
    )


def _bounds(found: TraceEvidence, number: int, thread: HostThread) -> list[int]:
    """Moments that a thread reaches at least: its activity, and on the steps' thread the steps."""
    bounds = [int(thread.activity.start[0]), int(thread.activity.end[-1])] if len(thread.activity) else []
    if number == 0:
        for window in found.steps.windows:
            if window.number >= 0:
                bounds += [window.host_start, window.host_end]
        setup = found.steps.setup
        bounds += [*setup.start.tolist(), *setup.end.tolist()]
    return bounds


def joined_at(found: TraceEvidence, waits: tuple[ThreadWaits, ...], number: int) -> I64:
    """Moments at which other threads wait for this one, and collectives begin: where it has to be cut."""
    moments = [each.release[(each.cause == WaitReason.JOIN) & (each.thread == number)] for each in waits]
    if number == 0:
        moments += [found.trace.start[rows] for rows in found.channels]
    return np.concatenate([np.zeros(0, dtype=np.int64), *moments])


# Which task is which while a graph is built: tasks numbered by track, and found again from rows and positions.


@dataclass(frozen=True, slots=True, eq=False)
class TaskLayout:
    """Tasks of host threads, then of streams, then of channels."""

    found: TraceEvidence
    waits: tuple[ThreadWaits, ...]
    hosts: tuple[ThreadTasks, ...]
    first: Rows
    """Number of the first task of each track, and of all tasks behind the last."""
    tracks: tuple[Track, ...]
    of_position: Rows
    """Task of each position of the device's order."""
    launcher: Rows
    """Task that launched each position, -1 if unknown."""
    of_return: tuple[Rows, ...]
    """For each thread the RETURN of each wait, then of each idle call."""

    def on_host(self, number: int, tasks: Rows) -> Rows:
        """Tasks of a thread, -1 for none, as tasks of the graph."""
        return np.where(tasks >= 0, tasks + self.first[number], -1)

    @property
    def channel_rows(self) -> Rows:
        """Rows of the collectives in the order of their tasks, which are the last of all."""
        return np.concatenate([np.zeros(0, dtype=np.intp), *self.found.channels])


def layout_of(found: TraceEvidence) -> TaskLayout:
    """Number the tasks of a trace."""
    order, threads = found.order, range(len(found.threads))
    waits = tuple(thread_waits(found, number) for number in threads)
    hosts = tuple(thread_tasks(found, n, waits[n], joined_at(found, waits, n)) for n in threads)
    counts = [len(host.start) for host in hosts]
    counts += [len(own) for own in order.sequence] + [len(rows) for rows in found.channels]
    first = np.concatenate(([0], np.cumsum(counts, dtype=np.intp))).astype(np.intp)
    of_position = np.zeros(len(order), dtype=np.intp)
    for number, own in enumerate(order.sequence):
        of_position[own] = first[len(hosts) + number] + np.arange(len(own))
    of_return = []
    for number, host in enumerate(hosts):
        tasks = np.zeros(len(waits[number].since) + len(waits[number].idle_at), dtype=np.intp)
        some = np.flatnonzero(host.wait >= 0)
        tasks[host.wait[some]] = some + first[number]
        of_return.append(tasks)
    trace = found.trace
    tracks = [Track(TrackKind.THREAD, *thread.thread) for thread in found.threads]
    tracks += [Track(TrackKind.STREAM, *stream) for stream in order.streams]
    tracks += [Track(TrackKind.CHANNEL, int(trace.pid[own[0]]), int(trace.tid[own[0]])) for own in found.channels]
    launcher = _launchers(found, waits, hosts, first, tuple(of_return))
    return TaskLayout(found, waits, hosts, first, tuple(tracks), of_position, launcher, tuple(of_return))


def _launchers(
    found: TraceEvidence,
    waits: tuple[ThreadWaits, ...],
    hosts: tuple[ThreadTasks, ...],
    first: Rows,
    of_return: tuple[Rows, ...],
) -> Rows:
    call = found.order.call
    launcher = np.full(len(call), -1, dtype=np.intp)
    thread = np.where(call >= 0, found.waiting.thread_of_row[call], -1)
    for number, host in enumerate(hosts):
        own = np.flatnonzero(thread == number)
        if len(host.start) == 0:
            continue
        launcher[own] = host.at(found.order.launched[own]) + first[number]
        # A launch that waited for room in the queue came after that.
        queued = np.flatnonzero(waits[number].cause == WaitReason.QUEUE)
        return_of = dict(zip(waits[number].call[queued].tolist(), of_return[number][queued].tolist(), strict=True))
        if return_of:
            late = [at for at in own.tolist() if int(call[at]) in return_of]
            launcher[late] = [return_of[int(call[at])] for at in late]
    return launcher


def tasks_of(layout: TaskLayout, names: dict[str, int]) -> Tasks:
    """The columns of all tasks; names that the trace does not have are numbered in `names`, behind its own."""
    found = layout.found
    trace, order = found.trace, found.order
    count, hosts = int(layout.first[-1]), len(layout.hosts)
    start, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kind, row = np.zeros(count, dtype=np.int8), np.full(count, -1, dtype=np.intp)
    submitted, launcher = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.intp)
    scope = np.full(count, NO_SCOPE, dtype=np.int32)
    for number, host in enumerate(layout.hosts):
        own = slice(int(layout.first[number]), int(layout.first[number + 1]))
        start[own], end[own], kind[own], row[own] = host.start, host.end, host.kind, host.row
        submitted[own] = host.start
        _synchronizing(layout, number, submitted, scope)
    place = layout.of_position
    start[place], end[place], row[place] = order.start, order.end, order.row
    kind[place], launcher[place] = _device_kinds(trace, order.row), layout.launcher
    submitted[place] = order.launched
    rows = layout.channel_rows
    beside = slice(count - len(rows), count)
    start[beside], end[beside], row[beside] = trace.start[rows], trace.end[rows], rows
    kind[beside], submitted[beside] = TaskKind.COMMUNICATION, trace.start[rows]
    name = np.full(count, -1, dtype=np.int32)
    name[row >= 0] = trace.name[row[row >= 0]]
    for each in (TaskKind.GAP, TaskKind.WAIT, TaskKind.RETURN):
        name[(row < 0) & (kind == each)] = len(trace.names) + names.setdefault(_NAMES[each], len(names))
    setup = np.zeros(count, dtype=bool)
    if found.steps.windows:
        own = slice(0, int(layout.first[1]) if hosts else 0)
        setup[own] = found.steps.setup.contains(start[own])
    return Tasks.of(
        kind,
        np.repeat(np.arange(len(layout.tracks)), np.diff(layout.first)),
        name,
        start,
        end - start,
        row=row,
        submitted=submitted,
        launcher=launcher,
        step=step_at(found.steps.windows, submitted),
        scope=scope,
        setup=setup,
    )


_NAMES = {TaskKind.GAP: "Python and host", TaskKind.WAIT: "wait", TaskKind.RETURN: "wait"}
"""Names of tasks without an event."""


def _synchronizing(layout: TaskLayout, number: int, submitted: I64, scope: I32) -> None:
    """When RETURNs were submitted, and what those of synchronizing calls wait for, in place."""
    found, waits = layout.found, layout.waits[number]
    calls = np.concatenate((waits.call, waits.idle_call))
    tasks = layout.of_return[number]
    known = calls >= 0
    submitted[tasks[known]] = found.trace.start[calls[known]]
    scope[tasks[known & np.isin(calls, found.waiting.whole_device)]] = WHOLE_DEVICE
    for call, stream in found.waiting.sync_stream:
        scope[tasks[calls == call]] = len(layout.hosts) + stream


def _device_kinds(trace: Trace, rows: Rows) -> Rows:
    kinds = np.full(len(rows), TaskKind.KERNEL, dtype=np.intp)
    kinds[trace.category[rows] == Category.GPU_MEMCPY] = TaskKind.COPY
    kinds[trace.category[rows] == Category.GPU_MEMSET] = TaskKind.MEMSET
    kinds[communication_kernels(trace)[rows]] = TaskKind.COMMUNICATION
    return kinds
