"""The order in which a stream takes its tasks when it may choose: another policy than first come, first served."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace.model import F64, I64
from pytest_perfdl.whatif.editing.surgery import apart_from_chains, rebuilt
from pytest_perfdl.whatif.model import EdgeKind, Mask, TaskGraph, TrackKind

Policy = Callable[[TaskGraph], "I64 | F64"]
"""One number per task: of the tasks that could start, the one with the lowest goes first."""


def scheduled(graph: TaskGraph, tracks: Mask, policy: Policy) -> TaskGraph:
    """A graph in which the tasks of some streams run in the order that a policy leads to: see `Plan.schedule`.

    List scheduling without preemption: whenever a stream is free it starts, of the tasks that wait for nothing else,
    the one of lowest priority value (then the one ready first, then in the order before); if there is none, the next
    that becomes ready. Between two tasks of such a stream passes the usual kernel gap.

    Parameters
    ----------
    graph
        The graph.
    tracks
        One boolean per track.
    policy
        Gives each task its priority value.

    Raises
    ------
    CycleError
        If tasks wait for each other in a circle.
    ValueError
        If host threads are to be scheduled, whose program order is fixed.
    """
    for number in np.flatnonzero(tracks).tolist():
        if graph.tracks[number].kind == TrackKind.THREAD:
            raise ValueError(
                f"the order of tasks on the host thread {graph.tracks[number]} cannot be changed, because the program "
                "determines this order"
            )
    priority = np.asarray(policy(graph), dtype=np.float64)
    if priority.shape != (len(graph),):
        raise ValueError(f"expected priorities of {len(graph)} tasks, got an array of shape {priority.shape}")
    start = _List(graph, tracks, priority).run()
    own = tracks[graph.tasks.track]
    place: F64 = np.arange(len(graph), dtype=np.float64)
    tasks = np.flatnonzero(own)
    order = tasks[np.lexsort((tasks, start[tasks], graph.tasks.track[tasks]))]
    place[order] = np.sort(place[tasks])
    # The lag of a task behind its neighbor was that of the old order.
    origin = np.where(own, -1, np.arange(len(graph)))
    return rebuilt(graph, graph.tasks, origin, place, apart_from_chains(graph))


class _List:
    """List scheduling, one event after the other."""

    def __init__(self, graph: TaskGraph, tracks: Mask, priority: F64) -> None:
        self.graph, self.priority = graph, priority.tolist()
        edges, tasks = graph.edges, graph.tasks
        self.free_order = tracks[tasks.track]
        # The edges that hold: without the order of the streams in question.
        dropped = self.free_order[edges.target] & (edges.source == edges.target - 1) & (edges.kind == EdgeKind.STREAM)
        self.edges = edges.take(~dropped)
        self.gap = graph.constants.kernel_gap

    def run(self) -> I64:
        """Start of every task."""
        graph, edges = self.graph, self.edges
        tasks, count = graph.tasks, len(self.graph)
        waiting = np.bincount(edges.target, minlength=count).tolist()
        by_source = np.argsort(edges.source, kind="stable")
        first = np.concatenate(([0], np.cumsum(np.bincount(edges.source, minlength=count)))).tolist()
        targets, lags = edges.target[by_source].tolist(), edges.lag[by_source].tolist()
        at_start = edges.at_start[by_source].tolist()
        origin = graph.begin
        ready = np.maximum(tasks.release, origin).tolist()
        duration, track, free_order = tasks.duration.tolist(), tasks.track.tolist(), self.free_order.tolist()
        idle_from = [origin] * len(graph.tracks)
        queue: list[list[tuple[float, int, int]]] = [[] for _ in graph.tracks]
        start = np.zeros(count, dtype=np.int64)
        # Events: a task becomes ready (0), or a track looks for its next task (1), in that order at one moment.
        events: list[tuple[int, int, int]] = [(ready[task], 0, task) for task in range(count) if not waiting[task]]
        events.sort()
        done = 0
        while events:
            now, looks, which = heappop(events)
            if not looks and free_order[which]:
                heappush(queue[track[which]], (self.priority[which], now, which))
                heappush(events, (max(now, idle_from[track[which]]), 1, track[which]))
                continue
            if looks:
                if idle_from[which] > now or not queue[which]:
                    continue
                task = heappop(queue[which])[2]
                idle_from[which] = now + duration[task] + self.gap
                if queue[which]:
                    heappush(events, (idle_from[which], 1, which))
            else:
                task = which
            start[task] = now
            done += 1
            for at in range(first[task], first[task + 1]):
                target = targets[at]
                moment = now + lags[at] + (0 if at_start[at] else duration[task])
                ready[target] = max(ready[target], moment)
                waiting[target] -= 1
                if not waiting[target]:
                    heappush(events, (ready[target], 0, target))
        if done < count:
            raise CycleError("the tasks cannot be scheduled, because they wait for each other in a cycle")
        return start
