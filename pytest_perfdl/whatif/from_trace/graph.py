"""A trace as a graph of tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.selection import with_largest_group
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.model import Trace, once
from pytest_perfdl.whatif.from_trace.edges import channel_edges, device_edges, host_edges
from pytest_perfdl.whatif.from_trace.layout import TaskLayout, evidence_of, layout_of, tasks_of
from pytest_perfdl.whatif.model import Constants, Edges, StepSpan, TaskGraph, Tasks, TrackKind
from pytest_perfdl.whatif.simulation.simulate import settle
from pytest_perfdl.whatif.simulation.structure import queue_edges, sorted_topologically


def task_graph(trace: Trace) -> TaskGraph:
    """The tasks of a trace and what each waits for, so that simulating the graph gives the measured times.

    *Tasks.* Each host thread that runs operators or launches is cut into pieces of the innermost operator, call or
    input annotation, and gaps between them; each device event is a task on its stream. What a thread spent waiting
    is taken out: a WAIT and a RETURN without duration are left, and edges into the RETURN. Annotations are no tasks;
    the steps' bounds and each launch cut the pieces.

    *Edges.* See `EdgeKind`: Daydream's five (program order, stream order, launch by correlation, synchronization,
    communication), and blocking copies, event waits, full launch queues, joins of threads, polling, waiting for
    another stream and contention. They rest on the same evidence as `critical_path`: `bindings` for device events,
    `host_waits` for threads. What only times suggest is marked by a confidence below 1.

    *Earlier than the trace.* Device events whose launch is not in the trace keep their measured start, unless what
    is ahead of them on their stream is late. On traces without device events, collectives that run beside the host's
    threads are tasks on channels.

    Edges that would lead in a circle, as times of broken clocks may, are left out and counted (`contradicted`).

    Raises
    ------
    TraceError
        When no step of the trace can be used (`Steps.left_out`). Where others can, the tasks of those that are left out
        are there, but in no step; so are those of other kinds of steps than the first of `Steps.groups`.
    """
    trace = with_largest_group(trace)
    steps = steps_of(trace)
    if steps.left_out and not steps.windows:
        raise TraceError(f"{trace.source} has no step to simulate: {steps.findings[-1].message}")
    return _whole(trace)


@once
def _whole(trace: Trace) -> TaskGraph:
    found = evidence_of(trace)
    layout = layout_of(found)
    names: dict[str, int] = {}
    tasks = tasks_of(layout, names)
    streams = np.flatnonzero([track.kind == TrackKind.STREAM for track in layout.tracks])
    all_names = (*trace.names, *names)
    queued, depth = queue_edges(tasks, streams, all_names)
    on_host, returning, lost = host_edges(layout, tasks, depth)
    on_device = device_edges(layout, tasks)
    release = tasks.release.copy()
    release[on_device.released] = tasks.start[on_device.released]
    tasks = replace(tasks, release=release, unexplained=lost + on_device.unexplained)
    edges = Edges.joined(*on_host, *on_device.parts, *channel_edges(layout, tasks), queued)
    edges, contradicted = _without_circles(tasks, edges)
    tasks, edges = settle(tasks, edges)
    return TaskGraph(
        tasks=tasks,
        edges=edges,
        tracks=layout.tracks,
        names=all_names,
        steps=_steps(layout),
        on_device=len(found.order) > 0,
        constants=Constants(
            launch_lag=on_device.launch.median,
            kernel_gap=on_device.gap.median,
            sync_return=returning.median,
            queue_depth=depth,
        ),
        trace=trace,
        contradicted=contradicted,
    )


def _steps(layout: TaskLayout) -> tuple[StepSpan, ...]:
    return tuple(StepSpan(window.number, window.start, window.end) for window in layout.found.steps.windows)


def _without_circles(tasks: Tasks, edges: Edges) -> tuple[Edges, int]:
    """Edges that tasks can satisfy in some order, the measured one where possible, and how many are left out."""
    order = np.argsort(tasks.start, kind="stable")
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    sane = edges.source != edges.target
    if not (rank[edges.source] < rank[edges.target]).all():
        _, kept = sorted_topologically(edges.source, edges.target, rank)
        sane &= kept
    return (edges, 0) if sane.all() else (edges.take(sane), int((~sane).sum()))
