"""Changing the tasks of a graph so that it stays a graph: new numbers, chains linked again, waits handed on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_perfdl.predict.whatif.model import (
    NO_RELEASE,
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    TaskKind,
    Tasks,
    Track,
    TrackKind,
    of_kinds,
)
from pytest_perfdl.predict.whatif.rederive import rederived
from pytest_perfdl.predict.whatif.structure import chain_edges
from pytest_perfdl.trace.model import F64, Rows

_HANDED_ON = (EdgeKind.EVENT, EdgeKind.OTHER_STREAM, EdgeKind.COMMUNICATION, EdgeKind.JOIN)
"""What a stream or thread waits for, not only the one task: without that task the next one waits."""

_CALLING = (TaskKind.CALL, TaskKind.WAIT, TaskKind.RETURN)


def rebuilt(graph: TaskGraph, tasks: Tasks, origin: Rows, place: F64, edges: Edges) -> TaskGraph:
    """A graph of other tasks, in their order, with chains linked and run-time dependencies worked out again.

    Parameters
    ----------
    graph
        The graph before; its tracks may have grown already.
    tasks
        The new tasks in any order; `launcher` and `edges` count in this order.
    origin
        Task of the graph that each one was, -1 for new ones.
    place
        Where each one belongs on its track: tasks are ordered by this, of equal ones as given.
    edges
        All edges except those from a task to the next of its track (`chain_edges`), which are made here: a task
        keeps the lag that it had after the task before it, a new one gets the usual kernel gap. Tasks whose order
        was dropped stay free.
    """
    order = np.lexsort((place, tasks.track))
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.arange(len(order))
    tasks, origin = tasks.take(order), origin[order]
    tasks = replace(tasks, launcher=np.where(tasks.launcher >= 0, number[tasks.launcher], -1))
    edges = replace(edges, source=number[edges.source], target=number[edges.target])
    chains = _chains(graph, tasks, origin)
    new_tracks = np.setdiff1d(tasks.track, graph.tasks.track).astype(np.intp)
    return rederived(replace(graph, tasks=tasks, edges=Edges.joined(chains, edges)), new_tracks)


def _chains(graph: TaskGraph, tasks: Tasks, origin: Rows) -> Edges:
    count = len(graph)
    chain = chain_edges(graph.edges, count)
    first = np.concatenate(([True], graph.tasks.track[1:] != graph.tasks.track[:-1]))[:count]
    target = np.flatnonzero(tasks.track[1:] == tasks.track[:-1]) + 1
    old = origin[target]
    moved = (old >= 0) & (graph.tasks.track[old] != tasks.track[target]) if count else old >= 0
    edge = np.where((old >= 0) & ~moved, chain[old], -1) if count else old
    free = (old >= 0) & ~moved & (edge < 0) & ~first[old] if count else old >= 0
    target, edge = target[~free], edge[~free]
    on_host = np.array([track.kind == TrackKind.THREAD for track in graph.tracks], dtype=bool)[tasks.track[target]]
    usual = np.where(on_host, 0, graph.constants.kernel_gap)
    kind = np.where(on_host, EdgeKind.THREAD, EdgeKind.STREAM).astype(np.int8)
    known = edge >= 0
    before = graph.edges
    lag, constant = usual.copy(), usual.copy()
    lag[known], constant[known] = before.lag[edge[known]], before.constant_lag[edge[known]]
    at_start = np.zeros(len(target), dtype=bool)
    at_start[known] = before.at_start[edge[known]]
    return Edges(target - 1, target, kind, at_start, lag, constant, np.ones(len(target)))


def apart_from_chains(graph: TaskGraph) -> Edges:
    """The edges that `rebuilt` wants."""
    chain = chain_edges(graph.edges, len(graph))
    others = np.ones(len(graph.edges), dtype=bool)
    others[chain[chain >= 0]] = False
    return graph.edges.take(others)


def without(graph: TaskGraph, removed: Mask) -> TaskGraph:
    """A graph without some tasks.

    What waited for a removed task waits for the last one before it on its track instead, as a synchronisation
    does; contention vanishes with it. What a removed task of a stream or thread waited for from another track, the
    next one there waits for. A thread that loses its first tasks begins when it did.
    """
    tasks, count = graph.tasks, len(graph)
    kept = np.flatnonzero(~removed)
    if len(kept) == count:
        return graph
    every = np.arange(count)
    last = np.maximum.accumulate(np.where(removed, -1, every))
    ahead = np.where((last >= 0) & (tasks.track[last] == tasks.track), last, -1)
    coming = np.minimum.accumulate(np.where(removed, count, every)[::-1])[::-1]
    coming = np.where(coming < count, coming, -1)
    behind = np.where((coming >= 0) & (tasks.track[coming] == tasks.track), coming, -1)
    edges = apart_from_chains(graph)
    gone_source, gone_target = removed[edges.source], removed[edges.target]
    handed_on = gone_target & of_kinds(edges, *_HANDED_ON)
    source, target = ahead[edges.source], np.where(gone_target, behind[edges.target], edges.target)
    good = (source >= 0) & (target >= 0) & (~gone_target | handed_on) & (source != target)
    good &= ~(gone_source & (gone_target | (edges.kind == EdgeKind.CONTENTION)))
    # A task can be handed a wait for what comes after it on its own track, which it must not keep.
    good &= (tasks.track[source] != tasks.track[target]) | (source < target)
    edges = replace(edges, source=source, target=target, at_start=edges.at_start & ~gone_source).take(good)
    release = tasks.release.copy()
    held = np.flatnonzero(removed & (ahead < 0) & (behind >= 0) & (release > NO_RELEASE))
    np.maximum.at(release, behind[held], release[held])
    number = np.full(count, -1, dtype=np.intp)
    number[kept] = np.arange(len(kept))
    left = replace(tasks, release=release).take(kept)
    launcher = np.where(left.launcher >= 0, ahead[left.launcher], -1)
    left = replace(left, launcher=np.where(launcher >= 0, number[launcher], -1))
    edges = replace(edges, source=number[edges.source], target=number[edges.target])
    return rebuilt(graph, left, kept, kept.astype(np.float64), edges)


def with_launches(graph: TaskGraph, removed: Mask) -> Mask:
    """What goes with removed tasks: what they launched, and launching calls that have nothing left to launch."""
    tasks = graph.tasks
    launched = tasks.launcher >= 0
    found = removed.copy()
    found[launched] |= removed[tasks.launcher[launched]]
    gone = np.unique(tasks.launcher[launched & found])
    needed = np.unique(tasks.launcher[launched & ~found])
    # A call without duration is no task: what stands for it is a piece of the operator around it, which stays.
    gone = gone[~np.isin(gone, needed, assume_unique=True) & of_kinds(tasks, *_CALLING)[gone]]
    found[gone] = True
    calls = tasks.row[gone]
    called = np.zeros(int(tasks.row.max(initial=-1)) + 2, dtype=bool)
    called[calls[calls >= 0]] = True
    found |= called[tasks.row] & ~graph.is_device
    return np.asarray(found, dtype=bool)


def with_track(graph: TaskGraph, kind: TrackKind, process: int, number: int) -> tuple[TaskGraph, int]:
    """A graph that has a track, and the number of it."""
    track = Track(kind, process, number)
    if track in graph.tracks:
        return graph, graph.tracks.index(track)
    return replace(graph, tracks=(*graph.tracks, track)), len(graph.tracks)
