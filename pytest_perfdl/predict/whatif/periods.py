"""How long the steps of a simulated graph take."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.predict.whatif.model import TaskGraph
from pytest_perfdl.trace.model import I64

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
    step, on_host = graph.tasks.step, graph.tasks.track == graph.owner
    own = np.flatnonzero((step >= 0) & (on_host | (graph.is_device & graph.on_device)))
    own = own[np.argsort(step[own], kind="stable")]
    setup = _setup(graph, start)
    before = int(start.min()) if graph.windowed else None
    for index in range(len(graph.steps)):
        first, last = np.searchsorted(step[own], (index, index + 1))
        tasks = own[first:last]
        host = tasks[on_host[tasks]]
        tiles = graph.on_device and before is not None
        if not len(tasks) or not (len(host) or tiles):
            continue
        begin = before if tiles and before is not None else int(start[host].min())
        until = max(int(end[tasks].max()), begin)
        found[index] = until - begin - sum(max(min(closed, until) - max(opened, begin), 0) for opened, closed in setup)
        before = until
    return found


def _setup(graph: TaskGraph, start: I64) -> list[tuple[int, int]]:
    """When the steps' thread is in its setup: up to the first task behind that."""
    own = np.flatnonzero(graph.tasks.track == graph.owner)
    inside = np.concatenate(([False], graph.tasks.setup[own], [False]))
    opens = np.flatnonzero(inside[1:] & ~inside[:-1])
    closes = np.flatnonzero(~inside[1:] & inside[:-1])
    closes[closes == len(own)] = len(own) - 1
    return list(zip(start[own[opens]].tolist(), start[own[closes]].tolist(), strict=True)) if len(own) else []
