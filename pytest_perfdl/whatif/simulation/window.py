"""A part of a graph: what happened between two moments, with the rest of the world as it was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.simulation.lags import anchors, settled


def between(graph: TaskGraph, start: int, end: int) -> TaskGraph:
    """The tasks that ran between two moments (nanoseconds), cut there.

    What a task waited for earlier than the window becomes its release. Steps are those that lie inside whole.

    Raises
    ------
    ValueError
        If the window is empty.
    """
    if end <= start:
        raise ValueError(f"the window from {start} to {end} ns is empty")
    tasks, edges = graph.tasks, graph.edges
    inside = (tasks.start < end) & ((tasks.end > start) | (tasks.start >= start))
    own = np.flatnonzero(inside)
    number = np.full(len(tasks), -1, dtype=np.intp)
    number[own] = np.arange(len(own))
    release = tasks.release.copy()
    outer = ~inside[edges.source] & inside[edges.target] & (tasks.start[edges.source] < start)
    moment = np.minimum(anchors(edges, tasks.start, tasks.end) + edges.lag, tasks.start[edges.target])
    np.maximum.at(release, edges.target[outer], np.maximum(moment[outer], start))
    release[tasks.start < start] = start
    cut = tasks.take(own)
    begins, ends = np.maximum(cut.start, start), np.minimum(cut.end, end)
    first_step = next((at for at, step in enumerate(graph.steps) if step.start >= start), len(graph.steps))
    kept = edges.take(inside[edges.source] & inside[edges.target])
    early = tasks.start[kept.source] < start
    shift = np.where(kept.at_start & early, start - tasks.start[kept.source], 0)
    shift = np.where(~kept.at_start, np.minimum(end - tasks.end[kept.source], 0), shift)
    kept = kept.with_(
        source=number[kept.source],
        target=number[kept.target],
        lag=kept.lag - shift,
        constant_lag=kept.constant_lag - shift,
    )
    steps = tuple(step for step in graph.steps if start <= step.start and step.end <= end)
    cut = replace(
        cut,
        start=begins,
        duration=ends - begins,
        release=release[own],
        launcher=np.where(cut.launcher >= 0, number[cut.launcher], -1),
        step=np.where(
            (cut.step >= first_step) & (cut.step < first_step + len(steps)), cut.step - first_step, -1
        ).astype(np.int32),
    )
    cut, kept = settled(cut, kept)
    return replace(graph, tasks=cut, edges=kept, steps=steps, windowed=True)
