"""A graph as it would be without the profiler, whose work on every event is part of the trace's times."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.predict.whatif.model import TaskGraph, TaskKind, of_kinds
from pytest_perfdl.predict.whatif.simulate import simulate
from pytest_perfdl.trace.model import I64

_ROUNDS = 24
"""Halvings of the interval of the overhead: to less than a nanosecond from 10 ms."""


def unprofiled(graph: TaskGraph, step_ns: float) -> TaskGraph:
    """The graph whose mean step takes `step_ns`, the time measured without the profiler.

    The profiler costs every event of the host about the same (0.4 to 1.2 us for an operator), so one and the same time
    is taken off each event's first piece, as far as it has that much: as much as makes the simulated mean step take
    `step_ns`. Without this, what removes or adds operators is predicted with the profiler's share of them. Where even
    no time for events would not do, or the step takes longer without the profiler, host tasks are scaled.

    Raises
    ------
    ValueError
        If `step_ns` is not positive, or the graph has no steps.
    """
    measured = simulate(graph).steps_ns
    if step_ns <= 0 or not measured.any():
        raise ValueError(f"expected a positive time of a trace with steps, not {step_ns:.0f} ns")
    tasks = graph.tasks
    host = of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL)
    own = np.flatnonzero(host)
    _, first = np.unique(tasks.row[own], return_index=True)
    begins = own[first]

    def without(overhead: int) -> I64:
        duration: I64 = tasks.duration.copy()
        duration[begins] = np.maximum(duration[begins] - overhead, 0)
        return duration

    low, high = 0, 10_000_000
    if step_ns < measured.mean():
        for _ in range(_ROUNDS):
            middle = (low + high) // 2
            low, high = (middle, high) if simulate(graph, without(middle)).steps_ns.mean() > step_ns else (low, middle)
    duration = without(high if step_ns < measured.mean() else 0)
    left = float(simulate(graph, duration).steps_ns.mean())
    if abs(left - step_ns) > 0.001 * step_ns:
        duration = np.where(graph.is_device, duration, np.rint(duration * (step_ns / left))).astype(np.int64)
    return graph.with_durations(duration)
