"""Dependencies that a program decides while it runs, worked out for the order of submission that a graph has.

Whatever is last on a stream when a thread synchronises is waited for (Lumos calls these run-time dependencies), and
a launch waits for the task that is as many submissions ahead as the queue is deep.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_perfdl.analysis.waits import EARLY_NS, QUEUE
from pytest_perfdl.predict.whatif.model import NO_SCOPE, WHOLE_DEVICE, EdgeKind, Edges, TaskGraph, Tasks, TrackKind
from pytest_perfdl.trace.model import Rows

_CONTRADICTED = 0.01
"""Share of launches that did not wait for room, where the queue should have been full, from which it is not."""


def queue_pairs(tasks: Tasks, streams: Rows, depth: int) -> tuple[Rows, Rows]:
    """Each launch on a stream that is `depth` submissions or more after the first, and what has to make room for it.

    The pairs are (source, target): the last task of the submission so far ahead, and the task that launches. A
    submission is one launching call, of however many tasks.
    """
    sources, targets = [], []
    for track in streams.tolist():
        first, last = np.searchsorted(tasks.track, (track, track + 1))
        launcher = tasks.launcher[first:last]
        if not depth or len(launcher) <= depth:
            continue
        opens = np.concatenate(([True], (launcher[1:] != launcher[:-1]) | (launcher[1:] < 0)))
        begin = np.flatnonzero(opens)
        end = np.concatenate((begin[1:], [len(launcher)])) - 1
        target, source = launcher[begin[depth:]], first + end[:-depth]
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


def rederived(graph: TaskGraph, new_tracks: Rows) -> TaskGraph:
    """The graph with what it decides at run time as its present order of submission has it.

    Synchronising calls wait for the last task ahead of them of the streams that they waited for before, and of
    `new_tracks` if they wait for the whole device. Pairs that were there before keep their lag.
    """
    edges, tasks = graph.edges, graph.tasks
    kind = edges.kind
    scope = tasks.scope[edges.target]
    synchronising = (kind == EdgeKind.SYNC) & (scope != NO_SCOPE)
    queued = kind == EdgeKind.QUEUE
    kept = edges.take(~synchronising & ~queued)
    streams = np.flatnonzero([track.kind == TrackKind.STREAM for track in graph.tracks])
    own = np.flatnonzero(synchronising)
    pairs = [(tasks.track[edges.source[own]].astype(np.intp), edges.target[own])]
    waiting = np.flatnonzero(tasks.scope == WHOLE_DEVICE)
    for track in streams[np.isin(streams, new_tracks)].tolist():
        pairs.append((np.full(len(waiting), track), waiting))
    source, target = _last_ahead(tasks, *(np.concatenate(column) for column in zip(*pairs, strict=True)))
    lag = graph.constants.sync_return
    parts = [kept, _with_lags_of(edges.take(own), EdgeKind.SYNC, source, target, lag)]
    if graph.constants.queue_depth:
        source, target = queue_pairs(tasks, streams, graph.constants.queue_depth)
        parts.append(_with_lags_of(edges.take(queued), EdgeKind.QUEUE, source, target, 0))
    else:
        parts.append(edges.take(queued))
    return replace(graph, edges=Edges.joined(*parts))


def _last_ahead(tasks: Tasks, track: Rows, waiting: Rows) -> tuple[Rows, Rows]:
    """The last task of each track that was submitted before each synchronising one, for those that have one."""
    found = np.full(len(track), -1, dtype=np.intp)
    for number in np.unique(track).tolist():
        own = np.flatnonzero(track == number)
        first, last = np.searchsorted(tasks.track, (number, number + 1))
        submitted = np.maximum.accumulate(tasks.submitted[first:last])
        index = np.searchsorted(submitted, tasks.submitted[waiting[own]], side="left") - 1
        found[own] = np.where(index >= 0, first + index, -1)
    known = found >= 0
    return found[known], waiting[known]


def _with_lags_of(before: Edges, kind: EdgeKind, source: Rows, target: Rows, lag: int) -> Edges:
    """Edges between these pairs; those that were there before as they were, the others with a lag."""
    count = 1 + max(
        (int(each.max()) for each in (source, target, before.source, before.target) if len(each)), default=0
    )
    wanted, first = np.unique(source * count + target, return_index=True)
    known, at = np.unique(before.source * count + before.target, return_index=True)
    found = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    there = known[found] == wanted if len(known) else np.zeros(len(wanted), dtype=bool)
    new = first[~there]
    return Edges.joined(before.take(at[found[there]]), Edges.of(kind, source[new], target[new], lag))
