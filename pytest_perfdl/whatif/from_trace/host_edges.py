"""What the tasks of host threads wait for: program order, and what `host_waits` found."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.waiting.waits import RETURN_NS, WaitReason
from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.from_trace.host_tasks import COLLECTIVE
from pytest_perfdl.whatif.from_trace.layout import TaskLayout
from pytest_perfdl.whatif.model import EdgeKind, Edges, Tasks
from pytest_perfdl.whatif.simulation.lags import CONFIDENCE, Usual

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

    Waits for room in the queue are left out where `queue_depth` says when there are any: see `rederive`.
    """
    unexplained = np.zeros(len(tasks), dtype=np.int64)
    sources = [_sources(layout, number) for number in range(len(layout.hosts))]
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
        found += _waits(layout, number, tasks, sources[number], usual, queue_depth)
    return found, usual, unexplained


def _sources(layout: TaskLayout, number: int) -> Rows:
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


def _waits(layout: TaskLayout, number: int, tasks: Tasks, source: Rows, usual: Usual, queue_depth: int) -> list[Edges]:
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
