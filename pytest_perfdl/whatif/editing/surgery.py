"""Changing the tasks of a graph so that it stays a graph: new numbers, chains linked again, waits handed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_perfdl.trace.model import F64, I32, Rows
from pytest_perfdl.whatif.columns import Column, taker
from pytest_perfdl.whatif.model import (
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
from pytest_perfdl.whatif.simulation.chains import Chains, apart, linked
from pytest_perfdl.whatif.simulation.rederive import rederived
from pytest_perfdl.whatif.simulation.structure import inherit

_HANDED_ON = (EdgeKind.EVENT, EdgeKind.OTHER_STREAM, EdgeKind.COMMUNICATION, EdgeKind.JOIN)
"""What a stream or thread waits for, not only the one task: without that task the next one waits."""

_CALLING = (TaskKind.CALL, TaskKind.WAIT, TaskKind.RETURN)


def rebuilt(
    graph: TaskGraph, tasks: Tasks, origin: Rows, place: F64, edges: Edges, new: Tasks | None = None
) -> TaskGraph:
    """A graph of other tasks, in their order, with chains linked and run-time dependencies worked out again.

    Parameters
    ----------
    graph
        The graph before; its tracks may have grown already.
    tasks
        Its tasks in any order; `launcher` and `edges` count in this order.
    origin
        Task of the graph that each one was, -1 for new ones.
    place
        Where each one belongs on its track: tasks are ordered by this, of equal ones as given.
    edges
        All edges except those from a task to the next of its track (`chains.apart`), which are made here: a task
        keeps the lag that it had after the task before it, a new one gets the usual kernel gap. Tasks whose order
        was dropped stay free.
    new
        Further tasks, which count behind the others; for `origin` and `place`, too.
    """
    order = np.lexsort((place, tasks.track if new is None else np.concatenate((tasks.track, new.track))))
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.arange(len(order))
    tasks, origin = tasks.take(order, new), origin[order]
    launched = np.flatnonzero(tasks.launcher >= 0)
    tasks.launcher[launched] = number[tasks.launcher[launched]]
    edges = edges.with_(source=number[edges.source], target=number[edges.target])
    return _linked_again(graph, tasks, origin, taker(np.maximum(origin, 0)), edges)


def _linked_again(
    graph: TaskGraph, tasks: Tasks, origin: Rows, take: Callable[..., Column], edges: Edges, left: Mask | None = None
) -> TaskGraph:
    """As `rebuilt`, of tasks in their order; `take` takes those of `origin` from columns of the graph before."""
    on_host = np.array([track.kind == TrackKind.THREAD for track in graph.tracks], dtype=bool)
    chains = _chains(graph, tasks, origin, take, on_host)
    new_tracks = np.flatnonzero(_used(graph, tasks) & ~_used(graph, graph.tasks))
    others = rederived(replace(graph, tasks=tasks), edges, new_tracks, left)
    found = linked(chains, others, on_host[tasks.track])
    inherit(graph, found, origin)
    return replace(graph, tasks=tasks, edges=found)


def _used(graph: TaskGraph, tasks: Tasks) -> Mask:
    """Which tracks have tasks."""
    bounds = np.arange(len(graph.tracks) + 1, dtype=tasks.track.dtype)
    return np.diff(np.searchsorted(tasks.track, bounds)) > 0


def _chains(graph: TaskGraph, tasks: Tasks, origin: Rows, take: Callable[..., Column], on_host: Mask) -> Chains:
    known, _ = apart(graph.edges, len(graph))
    track = graph.tasks.track
    there, ended, lag, constant_lag = map(take, (known.there, known.ended, known.lag, known.constant_lag))
    was_first = take(_first_of_tracks(track)) & ~there
    fresh = np.flatnonzero((origin < 0) | (take(track) != tasks.track) | was_first)
    usual = np.where(on_host[tasks.track[fresh]], 0, graph.constants.kernel_gap)
    first = np.flatnonzero(_first_of_tracks(tasks.track))
    for column, values in ((there, True), (ended, True), (lag, usual), (constant_lag, usual)):
        column[fresh] = values
        column[first] = 0
    return Chains(there, ended, lag, constant_lag)


def _first_of_tracks(track: I32) -> Mask:
    return np.concatenate((np.ones(min(len(track), 1), dtype=bool), track[1:] != track[:-1]))


def apart_from_chains(graph: TaskGraph) -> Edges:
    """The edges that `rebuilt` wants."""
    return apart(graph.edges, len(graph))[1]


def without(graph: TaskGraph, removed: Mask) -> TaskGraph:
    """A graph without some tasks.

    What waited for a removed task waits for the last one before it on its track instead, as a synchronization
    does; contention vanishes with it. What a removed task of a stream or thread waited for from another track, the
    next one there waits for. A thread that loses its first tasks begins when it did.
    """
    tasks, edges = graph.tasks, apart_from_chains(graph)
    stays = ~removed
    kept = np.flatnonzero(stays)
    if len(kept) == len(graph):
        return graph
    left = tasks.take(stays)
    if not len(kept):
        return replace(graph, tasks=left, edges=edges.take(kept))
    until = np.cumsum(stays)

    def neighbor(of: Rows, number: Rows) -> Rows:
        """Of the tasks that are left those with these numbers, -1 where they are of another track."""
        there = (number >= 0) & (number < len(kept))
        number = np.where(there, number, 0)
        return np.where(there & (left.track[number] == tasks.track[of]), number, -1)

    def ahead(of: Rows) -> Rows:
        return neighbor(of, until[of] - 1)

    def behind(of: Rows) -> Rows:
        return neighbor(of, until[of] - stays[of])

    source, target = until[edges.source] - 1, until[edges.target] - 1
    gone_source, gone_target = removed[edges.source], removed[edges.target]
    gone = np.flatnonzero(gone_source | gone_target)
    source[gone], target[gone] = ahead(edges.source[gone]), behind(edges.target[gone])
    good = (source >= 0) & (target >= 0) & (~gone_target | of_kinds(edges, *_HANDED_ON)) & (source != target)
    good &= ~(gone_source & (gone_target | (edges.kind == EdgeKind.CONTENTION)))
    # A task can be handed a wait for what comes after it on its own track, which it must not keep.
    good &= (left.track[source] != left.track[target]) | (source < target)
    edges = edges.with_(source=source, target=target, at_start=edges.at_start & ~gone_source)
    held = np.flatnonzero(removed & (tasks.release > NO_RELEASE))
    held = held[(ahead(held) < 0) & (behind(held) >= 0)]
    np.maximum.at(left.release, behind(held), tasks.release[held])
    launched = np.flatnonzero(left.launcher >= 0)
    left.launcher[launched] = ahead(left.launcher[launched])
    return _linked_again(graph, left, kept, taker(stays), edges, good)


def with_launches(graph: TaskGraph, removed: Mask) -> Mask:
    """What goes with removed tasks: what they launched, and launching calls that have nothing left to launch."""
    tasks = graph.tasks
    launched = np.flatnonzero(tasks.launcher >= 0)
    launcher = tasks.launcher[launched]
    found = removed.copy()
    found[launched] |= removed[launcher]
    goes = found[launched]
    idle = np.zeros(len(graph), dtype=bool)
    idle[launcher[goes]] = True
    idle[launcher[~goes]] = False
    # A call without duration is no task: what stands for it is a piece of the operator around it, which stays.
    gone = np.flatnonzero(idle)
    gone = gone[np.isin(tasks.kind[gone], _CALLING)]
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
