"""How long the steps of a simulated graph take."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import Mask, TaskGraph

MIN_STEPS = 3
"""Steps from which on their mean is a period."""


def step_times(graph: TaskGraph, start: I64, end: I64) -> I64:
    """Length of each step, nanoseconds, given the start and end of every task; see `Simulation.steps_ns`.

    A step without a task of its own takes no time.
    """
    count = len(graph.steps)
    found = np.zeros(count, dtype=np.int64)
    if not len(graph) or not count:
        return found
    if graph.steps[0].number < 0:
        found[0] = end.max() - start.min()
        return found
    first, step, on_host = _runs(graph)
    begins, ends = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
    own, host = np.flatnonzero(step >= 0), np.flatnonzero((step >= 0) & on_host)
    opens, closes = np.full(count, end.max()), np.full(count, start.min())
    np.minimum.at(opens, step[host], begins[host])
    np.maximum.at(closes, step[own], ends[own])
    hosted, run = np.bincount(step[host], minlength=count) > 0, np.bincount(step[own], minlength=count) > 0
    setup = _setup(graph, start)
    carried = _carried(graph)
    before = int(start.min()) if graph.windowed else None
    for index in np.flatnonzero(run).tolist():
        if index in carried and not (index == 0 and graph.windowed):
            before = None
        if graph.on_device and before is not None:
            begin = before
        elif hosted[index]:
            # Ranks do not begin a step together: of a job it begins when the last has completed the one before.
            begin = int(opens[index]) if graph.job is None or before is None else max(int(opens[index]), before)
        else:
            continue
        until = max(int(closes[index]), begin)
        if before is None and graph.on_device and index in carried:
            earlier = end[carried[index]]
            begin = max(begin, int(earlier[earlier <= until].max(initial=begin)))
        found[index] = until - begin - sum(max(min(closed, until) - max(opened, begin), 0) for opened, closed in setup)
        before = until
    return found


def _runs(graph: TaskGraph) -> tuple[Rows, Rows, Mask]:
    """Runs of neighboring tasks of one track that complete the same step; remembered for graphs of equal structure.

    The first task of each, its step (-1 for none), and whether the steps' thread runs it.
    """
    step, track = graph.tasks.step, graph.tasks.track
    known = graph.edges.derived.get("steps")
    if known is None or known[0] is not step or known[1] is not track:
        on_host = np.isin(track, graph.owners) if graph.job is not None else track == graph.owner
        completes = on_host | graph.is_device if graph.on_device else on_host
        step_of = np.where(completes, step, -1)
        first = np.flatnonzero((step_of[1:] != step_of[:-1]) | (track[1:] != track[:-1])) + 1
        first = np.concatenate(([0], first))
        known = graph.edges.derived["steps"] = step, track, (first, step_of[first], on_host[first])
    found: tuple[Rows, Rows, Mask] = known[2]
    return found


def _carried(graph: TaskGraph) -> dict[int, Rows]:
    """Device tasks from before each step that begins a run of consecutive numbers; see `step_windows`.

    Remembered for graphs of equal structure.
    """
    step, measured = graph.tasks.step, graph.tasks.start
    known = graph.edges.derived.get("carried")
    if known is None or known[0] is not step or known[1] is not measured:
        begins = [
            index for index, span in enumerate(graph.steps) if index == 0 or span.start != graph.steps[index - 1].end
        ]
        found = {
            index: np.flatnonzero(graph.is_device & (step < index) & (measured < graph.steps[index].start))
            for index in begins
        }
        known = graph.edges.derived["carried"] = step, measured, found
    carried: dict[int, Rows] = known[2]
    return carried


def _setup(graph: TaskGraph, start: I64) -> list[tuple[int, int]]:
    """When the steps' thread is in its setup: up to the first task behind that. In a job the first rank's."""
    own = graph.tasks.on_track(graph.owner)
    inside = np.concatenate(([False], graph.tasks.setup[own], [False]))
    opens = np.flatnonzero(inside[1:] & ~inside[:-1])
    closes = np.flatnonzero(~inside[1:] & inside[:-1])
    at = start[own]
    closes = np.minimum(closes, len(at) - 1)
    return list(zip(at[opens].tolist(), at[closes].tolist(), strict=True)) if len(at) else []
