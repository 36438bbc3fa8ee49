"""How long the steps of a simulated graph take."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.predict.whatif.model import TaskGraph
from pytest_perfdl.trace.model import I64, Rows

MIN_STEPS = 3
"""Steps from which on their mean is a period."""


def step_times(graph: TaskGraph, start: I64, end: I64) -> I64:
    """Length of each step, nanoseconds, given the start and end of every task; see `Simulation.steps_ns`.

    A step without a task of its own takes no time.
    """
    found = np.zeros(len(graph.steps), dtype=np.int64)
    if not len(graph) or not graph.steps:
        return found
    if graph.steps[0].number < 0:
        found[0] = end.max() - start.min()
        return found
    setup = _setup(graph, start)
    before = int(start.min()) if graph.windowed else None
    for index, (tasks, host) in enumerate(_tasks_of_steps(graph)):
        tiles = graph.on_device and before is not None
        if not len(tasks) or not (len(host) or tiles):
            continue
        begin = before if tiles and before is not None else int(start[host].min())
        until = max(int(end[tasks].max()), begin)
        found[index] = until - begin - sum(max(min(closed, until) - max(opened, begin), 0) for opened, closed in setup)
        before = until
    return found


def _tasks_of_steps(graph: TaskGraph) -> list[tuple[Rows, Rows]]:
    """The tasks of each step, and those of them on the steps' thread; remembered for graphs of equal structure."""
    step, track = graph.tasks.step, graph.tasks.track
    known = graph.edges.derived.get("steps")
    if known is not None and known[0] is step and known[1] is track:
        remembered: list[tuple[Rows, Rows]] = known[2]
        return remembered
    on_host = track == graph.owner
    own = np.flatnonzero((step >= 0) & (on_host | (graph.is_device & graph.on_device)))
    own = own[np.argsort(step[own], kind="stable")]
    bounds = np.searchsorted(step[own], np.arange(len(graph.steps) + 1))
    found = [(tasks, tasks[on_host[tasks]]) for tasks in np.split(own, bounds[1:-1])[: len(graph.steps)]]
    graph.edges.derived["steps"] = step, track, found
    return found


def _setup(graph: TaskGraph, start: I64) -> list[tuple[int, int]]:
    """When the steps' thread is in its setup: up to the first task behind that."""
    own = np.flatnonzero(graph.tasks.track == graph.owner)
    inside = np.concatenate(([False], graph.tasks.setup[own], [False]))
    opens = np.flatnonzero(inside[1:] & ~inside[:-1])
    closes = np.flatnonzero(~inside[1:] & inside[:-1])
    closes[closes == len(own)] = len(own) - 1
    return list(zip(start[own[opens]].tolist(), start[own[closes]].tolist(), strict=True)) if len(own) else []
