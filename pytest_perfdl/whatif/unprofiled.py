"""A graph as it would be without the profiler, whose work on every event is part of the trace's times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.model import F64, I64, Category, Rows
from pytest_perfdl.whatif.facts import by_thread
from pytest_perfdl.whatif.from_trace.job import couple
from pytest_perfdl.whatif.model import Job, Mask, TaskGraph, TaskKind, are_of_kinds
from pytest_perfdl.whatif.simulation.simulate import simulate

OWN = 0.25
"""Share of the profiler's work on an operator that is part of the operator's own time: its shapes are read then."""
RANGE = 14.0
"""What our hooks and the range around a module cost in costs of an operator: with shapes about 10 us and 0.7 us in
steps of small operators (torch 2.13 on a CPU; least squares over eleven steps with 180 to 1,900 operators)."""

SHORT = 0.1
"""Share of the profiler's work that pieces may be too short for: what the profile took beyond that has other causes,
such as caches that it fills or other load, and slows everything."""

_ROUNDS = 24
"""Halvings of the interval of the overhead: to less than a nanosecond from 10 ms."""

_ROUNDS_OF_JOBS, _MOST, _LEAST_SCALE = 12, 100_000.0, 0.1
"""The same for the ranks of a job, each of which takes longer to simulate, from 100 us; and the least factor by which
host tasks are scaled."""


def unprofiled(graph: TaskGraph, step_ns: float) -> TaskGraph:
    """The graph whose mean step takes `step_ns`, the time measured without the profiler.

    The profiler costs every operator of the host about the same, so one and the same time is taken off for each, and
    more for ranges (`RANGE`): as much as makes the simulated mean step take `step_ns`. Most of that work (`OWN`) lies
    outside of the operator, so it is taken off the pieces before it and behind it, of the operator around it or of
    Python, as far as they have so much; where there are none, and of calls of the runtime, off its own. Without this,
    what removes or adds operators is predicted with the profiler's share of them. Where pieces are too short for that
    (`SHORT`), and where the step takes longer without the profiler, host tasks are scaled for the rest.

    Raises
    ------
    ValueError
        If `step_ns` is not positive, or the graph has no steps.
    """
    measured = simulate(graph).steps_ns
    if step_ns <= 0 or not measured.any():
        raise ValueError(f"expected a positive step time and a trace with steps, not {step_ns:.0f} ns")
    if graph.job is not None:
        return replace(couple(_unprofiled_ranks(graph.job, step_ns, float(measured.mean()))), measured=graph)
    paid, duration = _paid_costs(graph), graph.tasks.duration
    if step_ns < measured.mean():

        def enough(overhead: int) -> bool:
            left = simulate(graph, _without(graph, paid, overhead)).steps_ns.mean()
            return bool(left <= step_ns) or _is_too_short(graph.tasks.duration, overhead * paid)

        duration = _without(graph, paid, _least(enough))
    left = float(simulate(graph, duration).steps_ns.mean())
    if abs(left - step_ns) > 0.001 * step_ns:
        duration = _scale_host(duration, graph.is_device, step_ns / left)
    return replace(graph.with_durations(duration), measured=graph)


def _unprofiled_ranks(job: Job, step_ns: float, measured: float) -> Job:
    """The same of all ranks: one cost of an operator, then one factor, for the step of the whole job.

    What the factor makes up for slowed the host, and collectives of the host as well.
    """
    paid = [_paid_costs(part) for part in job.parts]

    def without(overhead: float) -> Job:
        each = zip(job.parts, paid, strict=True)
        return replace(job, parts=tuple(part.with_durations(_without(part, own, overhead)) for part, own in each))

    def lacking(overhead: float) -> bool:
        each = zip(job.parts, paid, strict=True)
        return any(_is_too_short(part.tasks.duration, overhead * own) for part, own in each)

    found = job
    if step_ns < measured:
        overhead = _root(lambda tried: _step_of(without(tried)) <= step_ns or lacking(tried), 0.0, _MOST)
        found = without(overhead)

    def scaled(factor: float) -> Job:
        parts = (
            part.with_durations(_scale_host(part.tasks.duration, part.is_device & part.on_device, factor))
            for part in found.parts
        )
        return replace(found, parts=tuple(parts))

    left = _step_of(found)
    if abs(left - step_ns) <= 0.001 * step_ns:
        return found
    if left > step_ns:
        return scaled(-_root(lambda factor: _step_of(scaled(-factor)) <= step_ns, -1.0, -_LEAST_SCALE))
    return scaled(_root(lambda factor: _step_of(scaled(factor)) >= step_ns, 1.0, 1 / _LEAST_SCALE))


def _without(graph: TaskGraph, paid: F64, overhead: float) -> I64:
    """Durations without the profiler's work, which costs an operator so much."""
    duration = graph.tasks.duration
    left: I64 = np.maximum(duration - np.rint(overhead * paid).astype(np.int64), 0)
    return np.where(paid > 0, left, duration)


def _scale_host(duration: I64, kept: Mask, factor: float) -> I64:
    return np.where(kept, duration, np.rint(duration * factor)).astype(np.int64)


def _step_of(job: Job) -> float:
    return float(simulate(couple(job)).steps_ns.mean())


def _root(enough: Callable[[float], bool], low: float, high: float) -> float:
    """Where something begins to hold, between two numbers, to a 4096th of their distance."""
    for _ in range(_ROUNDS_OF_JOBS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least(enough: Callable[[int], bool]) -> int:
    """The least whole number up to 10 ms from which on something holds; 10 ms where it never does."""
    low, high = 0, 10_000_000
    for _ in range(_ROUNDS):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _is_too_short(duration: I64, claimed: F64) -> bool:
    """Whether pieces are too short for what they would have to hold: so much cannot be the profiler's."""
    return float(np.minimum(duration, claimed).sum()) < (1 - SHORT) * float(claimed.sum())


def _paid_costs(graph: TaskGraph) -> F64:
    """How much of the profiler's work is part of each task, in costs of an operator."""
    tasks = graph.tasks
    own = np.flatnonzero(are_of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL))
    _, first = np.unique(tasks.row[own], return_index=True)
    _, last = np.unique(tasks.row[own][::-1], return_index=True)
    begins, ends = own[first], own[len(own) - 1 - last]
    share = np.where(tasks.kind[begins] == TaskKind.OPERATOR, OWN, 1.0)
    found: F64 = np.bincount(begins, share, minlength=len(graph)).astype(np.float64)
    for beside, piece in ((begins - 1, begins), (ends + 1, ends)):
        found += _costs_beside(graph, beside, piece, (1 - share) / 2)
    for pieces in _range_ends(graph):
        found += np.bincount(pieces, minlength=len(graph)) * (RANGE / 2)
    return found


def _costs_beside(graph: TaskGraph, beside: Rows, own: Rows, costs: F64) -> F64:
    """Costs by task: those of the pieces beside events, or of the events themselves where the host has none there."""
    tasks = graph.tasks
    there = np.clip(beside, 0, len(graph) - 1)
    host = are_of_kinds(tasks, TaskKind.OPERATOR, TaskKind.CALL, TaskKind.INPUT, TaskKind.GAP)
    usable = (there == beside) & host[there] & (tasks.track[there] == tasks.track[own])
    return np.bincount(np.where(usable, there, own), costs, minlength=len(graph)).astype(np.float64)


def _range_ends(graph: TaskGraph) -> list[Rows]:
    """The pieces in which our ranges around modules begin, and those in which they end."""
    trace, tasks = graph.trace, graph.tasks
    if trace is None:
        return []
    rows = trace.matching(lambda name: name.startswith(MODULE), trace.rows(Category.USER_ANNOTATION))
    return [
        np.maximum(np.searchsorted(tasks.start[thread], time, "right") - 1, 0) + thread.start
        for thread, places in by_thread(graph, rows)
        if thread.stop > thread.start
        for time in (trace.start[rows[places]], trace.end[rows[places]])
    ]
