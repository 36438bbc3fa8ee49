"""Which task is which while a graph is built: tasks numbered by track, and found again from rows and positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import communication_kernels
from pytest_perfdl.analysis.waiting.waits import WaitReason
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace
from pytest_perfdl.whatif.from_trace.analyses import TraceEvidence
from pytest_perfdl.whatif.from_trace.host_tasks import ThreadTasks, ThreadWaits, joined_at, thread_tasks, thread_waits
from pytest_perfdl.whatif.model import NO_RELEASE, NO_SCOPE, WHOLE_DEVICE, TaskKind, Tasks, Track, TrackKind


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
        start[own], end[own], kind[own], row[own], submitted[own] = (
            host.start,
            host.end,
            host.kind,
            host.row,
            host.start,
        )
        _synchronizing(layout, number, submitted, scope)
    place = layout.of_position
    start[place], end[place], row[place], kind[place] = (
        order.start,
        order.end,
        order.row,
        _device_kinds(trace, order.row),
    )
    launcher[place] = layout.launcher
    submitted[place] = order.launched
    beside = slice(count - len(layout.channel_rows), count)
    rows = layout.channel_rows
    start[beside], end[beside], row[beside], submitted[beside] = (
        trace.start[rows],
        trace.end[rows],
        rows,
        trace.start[rows],
    )
    kind[beside] = TaskKind.COMMUNICATION
    name = np.full(count, -1, dtype=np.int32)
    name[row >= 0] = trace.name[row[row >= 0]]
    for each in (TaskKind.GAP, TaskKind.WAIT, TaskKind.RETURN):
        name[(row < 0) & (kind == each)] = len(trace.names) + names.setdefault(_NAMES[each], len(names))
    step = np.full(count, -1, dtype=np.int32)
    setup = np.zeros(count, dtype=bool)
    if found.steps.windows:
        step = _steps(found, submitted)
        own = slice(0, int(layout.first[1]) if hosts else 0)
        setup[own] = found.steps.setup.contains(start[own])
    return Tasks(
        kind=kind,
        track=np.repeat(np.arange(len(layout.tracks)), np.diff(layout.first)).astype(np.int32),
        name=name,
        row=row,
        start=start,
        duration=end - start,
        release=np.full(count, NO_RELEASE, dtype=np.int64),
        submitted=submitted,
        launcher=launcher,
        step=step,
        scope=scope,
        setup=setup,
        unexplained=np.zeros(count, dtype=np.int64),
    )


_NAMES = {TaskKind.GAP: "Python and host", TaskKind.WAIT: "wait", TaskKind.RETURN: "wait"}
"""Names of tasks without an event."""


def _steps(found: TraceEvidence, submitted: I64) -> I32:
    """Index of the step during which the host submitted each task, setup included; -1 for none."""
    windows = found.steps.windows
    starts = np.array([window.host_start for window in windows], dtype=np.int64)
    ends = np.array([window.host_end for window in windows], dtype=np.int64)
    index = np.searchsorted(starts, submitted, side="right") - 1
    return np.where((index >= 0) & (submitted < ends[index]), index, -1).astype(np.int32)


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
