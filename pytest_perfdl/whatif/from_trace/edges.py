"""What tasks wait for: those of host threads, and those of streams and channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.waiting.device_order import RESIDUAL_NS, Wait
from pytest_perfdl.analysis.waiting.waits import EARLY_NS, RETURN_NS, WaitReason
from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.collectives import completing_gradients
from pytest_perfdl.whatif.facts import gradients, optimizer_steps
from pytest_perfdl.whatif.from_trace.layout import COLLECTIVE, TaskLayout
from pytest_perfdl.whatif.model import EdgeKind, Edges, Mask, TaskKind, Tasks
from pytest_perfdl.whatif.simulation.simulate import CONFIDENCE, Usual

# What the tasks of host threads wait for: program order, and what `host_waits` found.


_KIND = {
    WaitReason.SYNC: EdgeKind.SYNC,
    WaitReason.FREE: EdgeKind.SYNC,
    WaitReason.COPY: EdgeKind.COPY,
    WaitReason.QUEUE: EdgeKind.QUEUE,
    WaitReason.SPIN: EdgeKind.SPIN,
    WaitReason.JOIN: EdgeKind.JOIN,
    COLLECTIVE: EdgeKind.COMMUNICATION,
}


def host_edges(layout: TaskLayout, tasks: Tasks, queue_depth: int) -> tuple[list[Edges], Usual, I64]:
    """Edges into the tasks of host threads, how long calls take to return, and the unexplained time of each task.

    Waits for room in the queue are left out where `queue_depth` says when there are any: see `structure.rederive`.
    """
    unexplained = np.zeros(len(tasks), dtype=np.int64)
    sources = [_sources_of_waits(layout, number) for number in range(len(layout.hosts))]
    returning = []
    for number, waits in enumerate(layout.waits):
        source, target = sources[number], layout.of_return[number][: len(waits.until)]
        blocked = np.isin(waits.cause, (WaitReason.SYNC, WaitReason.COPY)) & (source >= 0)
        returning.append(waits.until[blocked] - tasks.end[source[blocked]])
        lost = np.maximum(waits.until - waits.release - RETURN_NS, 0)
        unexplained[target] = np.where(np.isin(waits.cause, (WaitReason.SYNC, WaitReason.COPY)), lost, 0)
    usual = Usual.of(np.concatenate([np.zeros(0, dtype=np.int64), *returning]))
    found = []
    for number in range(len(layout.hosts)):
        found.append(_program_order(layout, number, tasks, usual))
        found += _edges_of_waits(layout, number, tasks, sources[number], usual, queue_depth)
    return found, usual, unexplained


def _sources_of_waits(layout: TaskLayout, number: int) -> Rows:
    """The task that each wait of a thread waited for, -1 for none."""
    waits = layout.waits[number]
    collective = waits.cause == COLLECTIVE
    joins = waits.cause == WaitReason.JOIN
    source = np.full(len(waits.until), -1, dtype=np.intp)
    events = ~collective & ~joins
    source[events] = layout.of_position[waits.event[events]]
    if collective.any():
        rows = layout.channel_rows
        place = np.argsort(rows)
        index = place[np.searchsorted(rows, waits.event[collective], sorter=place)]
        source[collective] = layout.first[-1] - len(rows) + index
    for other in np.unique(waits.thread[joins]).tolist():
        own = joins & (waits.thread == other)
        source[own] = layout.on_host(other, layout.hosts[other].ended_by(waits.release[own]))
    return source


def _program_order(layout: TaskLayout, number: int, tasks: Tasks, usual: Usual) -> Edges:
    """Each task after the one before it; where the thread had waited, the wait's own edges say for how long."""
    target = np.arange(layout.first[number] + 1, layout.first[number + 1])
    residual = tasks.start[target] - tasks.end[target - 1]
    least = residual.copy()
    waits = layout.waits[number]
    after = layout.of_return[number][: len(waits.until)] - layout.first[number] - 1
    calls = np.isin(waits.cause, (WaitReason.SYNC, WaitReason.COPY))
    inside = after >= 0
    least[after[inside]] = np.minimum(residual[after[inside]], np.where(calls, max(usual.least, 0), 0)[inside])
    return Edges.of(EdgeKind.THREAD, target - 1, target, least)


def _edges_of_waits(
    layout: TaskLayout, number: int, tasks: Tasks, source: Rows, usual: Usual, queue_depth: int
) -> list[Edges]:
    waits = layout.waits[number]
    target = layout.of_return[number][: len(waits.until)]
    lag = tasks.start[target] - np.where(source >= 0, tasks.end[source], 0)
    found = []
    for cause, kind in _KIND.items():
        if cause == WaitReason.QUEUE and queue_depth:
            continue
        some = (waits.cause == cause) & (source >= 0)
        for inferred in (False, True):
            own = np.flatnonzero(some & (waits.inferred == inferred))
            constant = usual.median if cause in (WaitReason.SYNC, WaitReason.COPY) else lag[own]
            sure = CONFIDENCE.get(kind, 1.0) if inferred else 1.0
            found.append(Edges.of(kind, source[own], target[own], lag[own], constant, confidence=sure))
    synchronized = np.isin(waits.cause, (WaitReason.SYNC, WaitReason.FREE))
    known = set(zip(source[synchronized].tolist(), target[synchronized].tolist(), strict=True))
    found.append(_other_streams(layout, number, tasks, usual, known))
    return found


def _other_streams(layout: TaskLayout, number: int, tasks: Tasks, usual: Usual, known: set[tuple[int, int]]) -> Edges:
    """What synchronizing calls would have had to wait for, had it not been ready long before."""
    waits, waiting = layout.waits[number], layout.found.waiting
    sync = np.concatenate(
        (np.isin(waits.cause, (WaitReason.SYNC, WaitReason.FREE)), np.ones(len(waits.idle_at), dtype=bool))
    )
    calls = np.concatenate((waits.call, waits.idle_call))
    of_call = dict(zip(calls[sync].tolist(), layout.of_return[number][sync].tolist(), strict=True))
    pairs = [
        (source, of_call[call])
        for call, source in zip(
            waiting.sync_call.tolist(), layout.of_position[waiting.sync_event].tolist(), strict=True
        )
        if call in of_call and (source, of_call[call]) not in known
    ]
    both = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    source, target = both[:, 0], both[:, 1]
    residual = tasks.start[target] - tasks.end[source]
    return Edges.of(
        EdgeKind.SYNC, source, target, np.minimum(residual, usual.least), np.minimum(residual, usual.median)
    )


# What the tasks of streams and channels wait for: the order of the stream, their launch, other streams.


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEdges:
    """Edges into the tasks of streams, and what is left over."""

    parts: tuple[Edges, ...]
    released: Rows
    """Tasks that were launched earlier than the window, or whose launch is not in the trace, and that no task held
    up: they keep their measured start."""
    unexplained: I64
    """Nanoseconds of delay before each task that nothing explains."""
    launch: Usual
    gap: Usual


def device_edges(layout: TaskLayout, tasks: Tasks) -> DeviceEdges:
    """Edges from what `bindings` says: for each device event the constraint that was satisfied last, and the others.

    Launches and kernel gaps of events that were launched with others by one call, as graphs are, have constants of
    their own.
    """
    found, order, bound = layout.found, layout.found.order, layout.found.bound
    task = layout.of_position
    if len(order) == 0:
        return DeviceEdges((), np.zeros(0, dtype=np.intp), np.zeros(len(tasks), dtype=np.int64), Usual(), Usual())
    delay = order.start - bound.explained
    unexplained = np.zeros(len(tasks), dtype=np.int64)
    lost = (delay > RESIDUAL_NS) & (bound.kind != Wait.NOTHING)
    unexplained[task[lost]] = delay[lost]
    carried = (layout.launcher < 0) & (delay > RESIDUAL_NS) & (bound.kind < Wait.OTHER_STREAM)
    in_graph = _in_graph(order.call)
    parts = []
    gaps, launching = Usual(), Usual()
    for together in (True, False):
        launches, launch = _edges_of_launches(layout, tasks, np.flatnonzero(in_graph == together))
        streams, gap = _edges_of_streams(layout, tasks, np.flatnonzero((in_graph == together) & ~carried), carried)
        parts += [launches, *streams]
        # What is launched alone tells what is usual, if anything is.
        launching, gaps = (launch if launch.known else launching), (gap if gap.known else gaps)
    # What was launched before the trace began keeps its start, unless its stream is later than it was.
    parts.append(_behind_neighbors(tasks, task[np.flatnonzero(carried & (order.previous >= 0))], gaps))
    binding = (bound.kind[found.event_waiter] == Wait.EVENT) & (bound.source[found.event_waiter] == found.event_source)
    waiter, source = task[found.event_waiter], task[found.event_source]
    residual = tasks.start[waiter] - tasks.end[source]
    parts += _by_purpose(
        tasks, EdgeKind.EVENT, source, waiter, gaps.lags(residual, binding), np.minimum(residual, gaps.median)
    )
    for wait, kind in ((Wait.OTHER_STREAM, EdgeKind.OTHER_STREAM), (Wait.CONTENTION, EdgeKind.CONTENTION)):
        own = np.flatnonzero(bound.kind == wait)
        waiter, source = task[own], task[bound.source[own]]
        lag = tasks.start[waiter] - tasks.end[source]
        parts += _by_purpose(tasks, kind, source, waiter, lag, lag)
    parts += _edges_of_collectives(layout, tasks, gaps)
    return DeviceEdges(tuple(parts), task[carried | (bound.kind == Wait.NOTHING)], unexplained, launching, gaps)


def _in_graph(call: Rows) -> Mask:
    """Which events were launched by a call that launched several."""
    found = np.zeros(len(call), dtype=bool)
    known = call >= 0
    found[known] = np.bincount(call[known])[call[known]] > 1
    return found


def _edges_of_launches(layout: TaskLayout, tasks: Tasks, positions: Rows) -> tuple[Edges, Usual]:
    own = positions[layout.launcher[positions] >= 0]
    target, source = layout.of_position[own], layout.launcher[own]
    residual = tasks.start[target] - tasks.start[source]
    binding = layout.found.bound.kind[own] == Wait.LAUNCH
    usual = Usual.of(residual[binding])
    lag = usual.lags(residual, binding)
    return Edges.of(EdgeKind.LAUNCH, source, target, lag, usual.median if binding.any() else lag, at_start=True), usual


def _edges_of_streams(layout: TaskLayout, tasks: Tasks, positions: Rows, carried: Mask) -> tuple[list[Edges], Usual]:
    """Each event after the one before it, and after the one that ended last before it if that is another.

    An event may begin before the one before it ends, by as much as a launch is early under programmatic dependent
    launch. What overlaps further only begins in the order of the stream.
    """
    order, bound = layout.found.order, layout.found.bound
    task = layout.of_position
    own = positions[order.previous[positions] >= 0]
    last, target = task[order.previous[own]], task[own]
    residual = tasks.start[target] - tasks.end[last]
    binding = (bound.kind[own] == Wait.STREAM) & ~carried[own]
    usual = Usual.of(residual[binding & (residual >= -RESIDUAL_NS)])
    ended = residual >= -RESIDUAL_NS
    next_to = last == target - 1
    found = []
    since = np.where(binding, tasks.start[target] - tasks.start[last], 0)
    gaps = usual.lags(residual, binding), np.full(len(own), usual.median, dtype=np.int64)
    for some, (lag, constant), at_start in ((ended, gaps, False), (next_to & ~ended, (since, since), True)):
        found.append(Edges.of(EdgeKind.STREAM, last[some], target[some], lag[some], constant[some], at_start=at_start))
    # What ended last is further back.
    found.append(_behind_neighbors(tasks, target[~next_to], usual))
    return found, usual


def _behind_neighbors(tasks: Tasks, target: Rows, usual: Usual) -> Edges:
    """Each task after the one before it on its stream, which has only to have begun, or ended as early as it did."""
    gap = tasks.start[target] - tasks.end[target - 1]
    overlaps = gap < -RESIDUAL_NS
    lag = np.where(overlaps, 0, np.minimum(gap, usual.least))
    return Edges.of(EdgeKind.STREAM, target - 1, target, lag, at_start=overlaps)


def _edges_of_collectives(layout: TaskLayout, tasks: Tasks, usual: Usual) -> list[Edges]:
    """What collectives wait for and what waits for them by the rules of torch, where they were not what decided.

    A collective begins after the kernels that its thread launched before it (`ProcessGroupNCCL::collective` lets its
    stream wait for the current one), and the first kernel of an update after the collectives that were launched before
    it. Both hold only for kinds of kernels that never began earlier: those that prefetch are asked for on a stream of
    their own.
    """
    order = layout.found.order
    positions = np.argsort(order.launched, kind="stable")
    positions = positions[order.call[positions] >= 0]
    task = layout.of_position[positions]
    is_collective = tasks.kind[task] == TaskKind.COMMUNICATION
    if not is_collective.any():
        return []
    number = np.arange(len(task))
    computed = np.maximum.accumulate(np.where(is_collective, -1, number))
    source, target = task[computed], task
    chosen = is_collective & (computed >= 0)
    found = _never_earlier(tasks, source[chosen], target[chosen], usual)
    rows, _ = optimizer_steps(layout.found.trace)
    begins = layout.found.trace.start[rows]
    first = np.searchsorted(order.launched[positions], begins, side="left")
    first, began = first[first < len(task)], begins[first < len(task)]
    sent = np.maximum.accumulate(np.where(is_collective, number, -1))[np.maximum(first - 1, 0)]
    chosen = (sent >= 0) & ~is_collective[first] & (order.launched[positions[first]] >= began)
    return [*found, *_never_earlier(tasks, task[sent[chosen]], task[first[chosen]], usual)]


def _never_earlier(tasks: Tasks, source: Rows, target: Rows, usual: Usual) -> list[Edges]:
    """Edges between kernels, without those of a pair of a name and a stream of which one began too early."""
    residual = tasks.start[target] - tasks.end[source]
    across = tasks.track[source] != tasks.track[target]
    keys = tasks.name[target].astype(np.int64) * (int(tasks.track.max(initial=0)) + 1) + tasks.track[target]
    early = np.unique(keys[across & (residual < -EARLY_NS)])
    kept = across & ~np.isin(keys, early)
    lag = np.minimum(residual, max(usual.least, 0))[kept]
    sure = CONFIDENCE[EdgeKind.COMMUNICATION]
    return [Edges.of(EdgeKind.COMMUNICATION, source[kept], target[kept], lag, confidence=sure)]


def _by_purpose(tasks: Tasks, kind: EdgeKind, source: Rows, target: Rows, lag: I64, constant: I64) -> list[Edges]:
    """Edges between streams: those from or to communication are `COMMUNICATION`."""
    sure = CONFIDENCE.get(kind, 1.0)
    is_communication = tasks.kind == TaskKind.COMMUNICATION
    across = is_communication[source] != is_communication[target]
    return [
        Edges.of(label, source[chosen], target[chosen], lag[chosen], constant[chosen], confidence=sure)
        for chosen, label in ((across, EdgeKind.COMMUNICATION), (~across, kind))
    ]


def channel_edges(layout: TaskLayout, tasks: Tasks) -> list[Edges]:
    """Collectives beside the host: in the order of their channel, each after the operator that asked for it.

    If the steps' thread has as many collective operators as there are collectives, they belong together in their
    order. Else those that exchange gradients belong to the gradients that complete their buckets, and any other to the
    last task of that thread that ended before it began. One that had to wait for its channel was asked for at least as
    long before as is usual.
    """
    count = len(layout.channel_rows)
    if count == 0 or not layout.hosts:
        return []
    every = np.arange(layout.first[-1] - count, layout.first[-1])
    in_order = every[np.argsort(tasks.start[every], kind="stable")]
    host, source = layout.hosts[0], _asking_tasks(layout, tasks, in_order)
    at_start = source >= 0
    asked = np.full(len(tasks), np.iinfo(np.int64).max)
    asked[in_order[at_start]] = host.start[source[at_start]]
    behind = every[1:][tasks.track[every[1:]] == tasks.track[every[:-1]]]
    gap = tasks.start[behind] - tasks.end[behind - 1]
    after = (gap <= RESIDUAL_NS) | (asked[behind] < tasks.end[behind - 1])
    parts = [Edges.of(EdgeKind.STREAM, behind - 1, behind, np.where(after, gap, np.minimum(gap, 0)))]
    late = np.isin(in_order, behind[after])
    source = np.where(at_start, source, host.ended_by(tasks.start[in_order]))
    lag = tasks.start[in_order] - np.where(at_start, host.start[source], host.end[source])
    usual = Usual.of(lag[at_start & ~late])
    lag = np.where(late, np.minimum(lag, np.where(at_start, usual.least, 0)), lag)
    known = source >= 0
    parts.append(
        Edges.of(
            EdgeKind.COMMUNICATION,
            source[known] + layout.first[0],
            in_order[known],
            lag[known],
            at_start=at_start[known],
            confidence=CONFIDENCE[EdgeKind.COMMUNICATION],
        )
    )
    return parts


def _asking_tasks(layout: TaskLayout, tasks: Tasks, collectives: Rows) -> Rows:
    """The task of the steps' thread in which each collective was asked for, -1 where that is not known."""
    trace, host = layout.found.trace, layout.hosts[0]
    source = host.at(trace.start[layout.found.asking])
    if len(source) == len(collectives) and (host.start[source] <= tasks.start[collectives]).all():
        return source
    completed = completing_gradients(trace, tasks.row[collectives])
    found, own = np.full(len(collectives), -1, dtype=np.intp), completed >= 0
    found[own] = host.at(trace.start[gradients(trace).row[completed[own]]])
    return found
