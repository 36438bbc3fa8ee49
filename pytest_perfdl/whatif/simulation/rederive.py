"""Dependencies that a program decides while it runs, worked out for the order of submission that a graph has.

Whatever is last on a stream when a thread synchronizes is waited for (Lumos calls these run-time dependencies), and
a launch waits for the task that is as many submissions ahead as the queue is deep.
"""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.waiting.waits import EARLY_NS, QUEUE
from pytest_perfdl.trace.model import Rows
from pytest_perfdl.whatif.columns import Column
from pytest_perfdl.whatif.model import (
    EDGE_COLUMNS,
    NO_SCOPE,
    WHOLE_DEVICE,
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    Tasks,
    TrackKind,
)

_CONTRADICTED = 0.01
"""Share of launches that did not wait for room, where the queue should have been full, from which it is not."""


def queue_pairs(tasks: Tasks, streams: Rows, depth: int) -> tuple[Rows, Rows]:
    """Each launch on a stream that is `depth` submissions or more after the first, and what has to make room for it.

    The pairs are (source, target): the last task of the submission so far ahead, and the task that launches. A
    submission is one launching call, of however many tasks.
    """
    sources, targets = [], []
    for track in streams.tolist():
        own = tasks.on_track(track)
        launcher = tasks.launcher[own]
        if not depth or len(launcher) <= depth:
            continue
        opens = np.concatenate(([True], (launcher[1:] != launcher[:-1]) | (launcher[1:] < 0)))
        begin = np.flatnonzero(opens)
        end = np.concatenate((begin[1:], [len(launcher)])) - 1
        target, source = launcher[begin[depth:]], own.start + end[:-depth]
        known = target >= 0
        sources.append(source[known])
        targets.append(target[known])
    none = np.zeros(0, dtype=np.intp)
    return np.concatenate([none, *sources]), np.concatenate([none, *targets])


def queue_edges(tasks: Tasks, streams: Rows, names: tuple[str, ...]) -> tuple[Edges, int]:
    """Back-pressure as measured, and the depth of the queue.

    A CUDA stream's queue holds `QUEUE` launches (measured): launch n waits until task n - 1023 has ended. Where
    more than 1 % of such launches began before that, and where no call of CUDA launches, no such queue is known:
    no edges, and depth 0.
    """
    callers = tasks.name[tasks.launcher[tasks.launcher >= 0]]
    on_cuda = any(names[name].startswith("cu") for name in np.unique(callers).tolist())
    source, target = queue_pairs(tasks, streams, QUEUE - 1 if on_cuda else 0)
    residual = tasks.start[target] - tasks.end[source]
    against = residual < -EARLY_NS
    if not on_cuda or against.sum() > _CONTRADICTED * len(residual):
        return Edges.of(EdgeKind.QUEUE, source[:0], target[:0], 0), 0
    holds = ~against
    return Edges.of(EdgeKind.QUEUE, source[holds], target[holds], np.minimum(residual[holds], 0)), QUEUE - 1


def rederived(graph: TaskGraph, edges: Edges, new_tracks: Rows, left: Mask | None = None) -> Edges:
    """Edges with what is decided at run time as a graph's present order of submission has it, ordered by target.

    Synchronizing calls wait for the last task ahead of them of the streams that they waited for before, and of
    `new_tracks` if they wait for the whole device. Pairs that were there before keep their lag.

    Parameters
    ----------
    graph
        The graph with its present tasks; its own edges are not looked at.
    edges
        Those apart from chains, in any order.
    new_tracks
        The tracks that had no tasks before.
    left
        Which of the edges there still are, if not all.
    """
    tasks = graph.tasks
    stays = np.ones(len(edges), dtype=bool) if left is None else left
    synchronizing = stays & (edges.kind == EdgeKind.SYNC) & (tasks.scope[edges.target] != NO_SCOPE)
    queued = stays & (edges.kind == EdgeKind.QUEUE)
    streams = np.flatnonzero([track.kind == TrackKind.STREAM for track in graph.tracks])
    own, full = np.flatnonzero(synchronizing), np.flatnonzero(queued)
    pairs = [(tasks.track[edges.source[own]].astype(np.intp), edges.target[own])]
    for track in streams[np.isin(streams, new_tracks)].tolist():
        waiting = np.flatnonzero(tasks.scope == WHOLE_DEVICE)
        pairs.append((np.full(len(waiting), track), waiting))
    source, target = _last_ahead(tasks, *(np.concatenate(column) for column in zip(*pairs, strict=True)))
    own, waits = _with_lags_of(edges, own, EdgeKind.SYNC, source, target, graph.constants.sync_return)
    room = waits.take(np.zeros(0, dtype=np.intp))
    if graph.constants.queue_depth:
        source, target = queue_pairs(tasks, streams, graph.constants.queue_depth)
        full, room = _with_lags_of(edges, full, EdgeKind.QUEUE, source, target, 0)
    count, new = len(edges), len(edges) + len(waits)
    kept = np.flatnonzero(stays & ~synchronizing & ~queued)
    rows = np.concatenate((kept, own, np.arange(count, new), full, np.arange(new, new + len(room))))
    return _by_target((edges, waits, room), rows)


def _by_target(parts: tuple[Edges, ...], rows: Rows) -> Edges:
    """Some of several sets of edges ordered by target; rows count on from one set to the next."""
    some = [part for part in parts if len(part)] or [parts[0]]

    def column(name: str) -> Column:
        found = [getattr(part, name) for part in some]
        return np.concatenate(found) if len(found) > 1 else found[0]

    rows = rows[np.argsort(column("target")[rows], kind="stable")]
    return Edges(*(column(name)[rows] for name in EDGE_COLUMNS))


def _last_ahead(tasks: Tasks, track: Rows, waiting: Rows) -> tuple[Rows, Rows]:
    """The last task of each track that was submitted before each synchronizing one, for those that have one."""
    found = np.full(len(track), -1, dtype=np.intp)
    for number in np.unique(track).tolist():
        own = np.flatnonzero(track == number)
        there = tasks.on_track(number)
        submitted = np.maximum.accumulate(tasks.submitted[there])
        index = np.searchsorted(submitted, tasks.submitted[waiting[own]], side="left") - 1
        found[own] = np.where(index >= 0, there.start + index, -1)
    known = found >= 0
    return found[known], waiting[known]


def _with_lags_of(edges: Edges, own: Rows, kind: EdgeKind, source: Rows, target: Rows, lag: int) -> tuple[Rows, Edges]:
    """Edges between these pairs: those of `own` that were there before, and new ones with a lag."""
    before = edges.source[own], edges.target[own]
    count = 1 + max((int(each.max()) for each in (source, target, *before) if len(each)), default=0)
    wanted, first = _unique(source * count + target)
    known, at = _unique(before[0] * count + before[1])
    found = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    there = known[found] == wanted if len(known) else np.zeros(len(wanted), dtype=bool)
    new = first[~there]
    return own[at[found[there]]], Edges.of(kind, source[new], target[new], lag)


def _unique(keys: Rows) -> tuple[Rows, Rows]:
    """Each key once, in order, and where it first is; keys in order, as most are, are not sorted again."""
    if (keys[1:] > keys[:-1]).all():
        return keys, np.arange(len(keys))
    return np.unique(keys, return_index=True)
