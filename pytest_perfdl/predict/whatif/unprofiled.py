"""A graph as it would be without the profiler, whose work on every event is part of the trace's times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_perfdl.predict.whatif.model import TaskGraph, TaskKind, of_kinds
from pytest_perfdl.predict.whatif.simulate import simulate
from pytest_perfdl.trace.model import I64

_ROUNDS = 24
"""Halvings of the interval of the overhead: to less than a nanosecond from 10 ms."""


def unprofiled(graph: TaskGraph, step_ns: float) -> TaskGraph:
    """The graph whose mean step takes `step_ns`, the time measured without the profiler.

    The profiler costs every event of the host about the same (0.2 us for an operator, with its shapes 0.5 us), so one
    and the same time is taken off for each: as much as makes the simulated mean step take `step_ns`. An operator's time
    begins after the profiler's work on it and ends before the rest of that, so it is taken off the piece before it, of
    the operator around it or of Python, as far as that has so much; where there is none, and of calls of the runtime,
    off its own. Without this, what removes or adds operators is predicted with the profiler's share of them. Where even
    no time for events would not do, or the step takes longer without the profiler, host tasks are scaled.

    Raises
    ------
    ValueError
        If `step_ns` is not positive, or the graph has no steps.
    """
    measured = simulate(graph).steps_ns
    if step_ns <= 0 or not measured.any():
        raise ValueError(f"expected a positive time of a trace with steps, not {step_ns:.0f} ns")
    events = _events_paid(graph)

    def without(overhead: int) -> I64:
        duration: I64 = np.maximum(graph.tasks.duration - overhead * events, 0)
        return np.where(events > 0, duration, graph.tasks.duration)

    low, high = 0, 10_000_000
    if step_ns < measured.mean():
        for _ in range(_ROUNDS):
            middle = (low + high) // 2
            low, high = (middle, high) if simulate(graph, without(middle)).steps_ns.mean() > step_ns else (low, middle)
    duration = without(high if step_ns < measured.mean() else 0)
    left = float(simulate(graph, duration).steps_ns.mean())
    if abs(left - step_ns) > 0.001 * step_ns:
        duration = np.where(graph.is_device, duration, np.rint(duration * (step_ns / left))).astype(np.int64)
    return replace(graph.with_durations(duration), measured=graph)


def _events_paid(graph: TaskGraph) -> I64:
    """How many events' overhead is part of each task."""
    tasks = graph.tasks
    own = np.flatnonzero(of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL))
    _, first = np.unique(tasks.row[own], return_index=True)
    begins = own[first]
    before = np.maximum(begins - 1, 0)
    host = of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.INPUT, TaskKind.GAP)
    outside = (tasks.kind[begins] == TaskKind.OPERATOR) & host[before] & (tasks.track[before] == tasks.track[begins])
    return np.bincount(np.where(outside & (begins > 0), before, begins), minlength=len(graph)).astype(np.int64)
