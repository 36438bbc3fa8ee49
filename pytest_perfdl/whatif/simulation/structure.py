"""A task graph compiled for simulation: chains contracted, and dependencies that a program decides while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.waiting.waits import EARLY_NS, QUEUE
from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import (
    CHAIN_KINDS,
    EDGE_COLUMNS,
    NO_RELEASE,
    NO_SCOPE,
    WHOLE_DEVICE,
    Column,
    EdgeKind,
    Edges,
    Mask,
    TaskGraph,
    Tasks,
    TrackKind,
    are_of_kinds,
)

# The edges from each task to the next of its track as columns of the tasks, and all others apart from them.
#
# Nearly every edge is one of these. Edits and simulation work on the two parts, so that an edit does not sort, search
# or renumber what only says that tasks of a track follow each other.


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Of each task the edge from the one before it on its track; 0 and false where it has none."""

    there: Mask
    ended: Mask
    """Whether it counts from the end of the task before, not from its start."""
    lag: I64
    constant_lag: I64


def split_chains(edges: Edges, count: int) -> tuple[Chains, Edges]:
    """The chains of a graph of `count` tasks, and its other edges, ordered by target; remembered with the edges."""
    if "apart" not in edges.derived:
        edge = _chain_edges(edges, count)
        there = edge >= 0
        own = edge[there]
        ended = np.zeros(count, dtype=bool)
        lag, constant = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        ended[there], lag[there], constant[there] = ~edges.at_start[own], edges.lag[own], edges.constant_lag[own]
        others = np.ones(len(edges), dtype=bool)
        others[own] = False
        edges.derived["apart"] = Chains(there, ended, lag, constant), edges.take(others)
    found: tuple[Chains, Edges] = edges.derived["apart"]
    return found


def _chain_edges(edges: Edges, count: int) -> Rows:
    """Of each task the edge from the one before on its track, -1 for none; of several the first."""
    found = np.full(count, -1, dtype=np.intp)
    own = np.flatnonzero(_next_to(edges))[::-1]
    found[edges.target[own]] = own
    return found


def _next_to(edges: Edges) -> Mask:
    return np.asarray(are_of_kinds(edges, *CHAIN_KINDS) & (edges.source == edges.target - 1), dtype=bool)


def link_chains(chains: Chains, others: Edges, on_host: Mask) -> Edges:
    """All edges ordered by target: into each task the one of its chain, then the others, which are ordered so."""
    edges = Edges.later(partial(_columns, chains, others, on_host))
    # One that an edit has made an edge between neighbors counts as their chain's: those have to be looked for.
    if not (_next_to(others) & ~chains.there[others.target]).any():
        edges.derived["apart"] = chains, others
    return edges


def _columns(chains: Chains, others: Edges, on_host: Mask) -> list[npt.NDArray[Any]]:
    target = np.flatnonzero(chains.there)
    count = len(target) + len(others)
    place = np.cumsum(chains.there)[others.target] + np.arange(len(others))
    free = np.ones(count, dtype=bool)
    free[place] = False
    own = np.flatnonzero(free)
    kind = np.where(on_host[target], EdgeKind.THREAD, EdgeKind.STREAM)
    mine = (target - 1, target, kind, ~chains.ended[target], chains.lag[target], chains.constant_lag[target], 1.0)
    columns = []
    for name, values in zip(EDGE_COLUMNS, mine, strict=True):
        theirs = getattr(others, name)
        column = np.empty(count, dtype=theirs.dtype)
        column[own] = values
        column[place] = theirs
        columns.append(column)
    return columns


# A task graph compiled for simulation: its chains contracted to the tasks at which something can happen.
#
# A task with nothing to wait for but the task before it starts a known time after that one. So only *heads* need to be
# looked at: tasks with another edge, a release, or no chain edge. Between heads a prefix sum does.
#
# A graph that an edit made of another one takes over what is known of that: see `inherit`.


_ROUNDS = 24
"""How often the levels of an edited graph are raised before they are worked out anew, which costs about as much."""

_ABOVE = 2**32
"""More than any level."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What a graph's edges make of it, whatever its durations. Heads are numbered level by level."""

    chains: Chains
    head_of: Rows
    """Number of the head from which each task follows."""
    task: Rows
    """Task of each head."""
    previous: Rows
    """Number of the head before on the same chain, -1 for none."""
    others: Edges
    """The edges into heads that are no chain's, ordered by head."""
    source: Rows
    """Head from which the source of each of these edges follows."""
    first: Rows
    """The edges of head h are those from first[h] up to first[h + 1]."""
    levels: Rows
    """Heads of level l are those from levels[l] up to levels[l + 1]: they wait for lower levels, or along a chain."""

    def __len__(self) -> int:
        return len(self.task)


def structure(graph: TaskGraph) -> Structure:
    """Compile a graph, once for its edges.

    Raises
    ------
    CycleError
        If tasks wait for each other in a circle.
    """
    released = graph.tasks.release > NO_RELEASE
    known = graph.edges.derived.get("structure")
    if known is None or not np.array_equal(known[0], released):
        known = graph.edges.derived["structure"] = released, _compile(graph, released)
    found: Structure = known[1]
    return found


def inherit(before: TaskGraph, edges: Edges, origin: Rows) -> None:
    """Let a graph of these edges be compiled from what is known of the one that an edit made it of.

    `origin` is the task of the graph before that each task was, -1 for new ones.
    """
    known = before.edges.derived.get("structure")
    if known is not None:
        edges.derived["made of"] = known[1], origin
    elif "made of" in before.edges.derived:
        older, its_origin = before.edges.derived["made of"]
        edges.derived["made of"] = older, np.where(origin >= 0, its_origin[origin], -1)


def _compile(graph: TaskGraph, released: Mask) -> Structure:
    chains, others = split_chains(graph.edges, len(graph))
    is_head = released | ~chains.there
    is_head[others.target] = True
    heads = np.flatnonzero(is_head)
    of = np.cumsum(is_head, dtype=np.intp)
    of -= 1
    before = np.where(chains.there[heads], np.arange(len(heads)) - 1, -1)
    source, target = of[others.source], of[others.target]
    level = _raise_levels(graph, heads, before, source, target)
    if level is None:
        order = _topological(graph, heads, before, source, target)
        level = _levels(order, before, source, target)
    # Level by level, along each chain: the new numbers of heads.
    narrow = _in_few_bits(level)
    renumbered = np.argsort(narrow, kind="stable")
    number = np.empty(len(heads), dtype=np.intp)
    number[renumbered] = np.arange(len(heads))
    # Edges are ordered by task, and so by head within a level.
    by_head = np.argsort(narrow[target], kind="stable")
    before = before[renumbered]
    counts = np.bincount(number[target], minlength=len(heads))
    return Structure(
        chains=chains,
        head_of=number[of],
        task=heads[renumbered],
        previous=np.where(before >= 0, number[np.maximum(before, 0)], -1),
        others=others.take(by_head),
        source=number[source[by_head]],
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.intp),
        levels=np.concatenate(([0], np.cumsum(np.bincount(level)))).astype(np.intp),
    )


def _in_few_bits(level: Rows) -> Rows | npt.NDArray[np.uint16]:
    """In 16 bits if they fit, which are sorted in linear time."""
    return level.astype(np.uint16) if level.max(initial=0) < 2**16 else level


def _raise_levels(graph: TaskGraph, heads: Rows, before: Rows, source: Rows, target: Rows) -> Rows | None:
    """Levels of heads as they were before an edit, raised where its edges want that; `None` if that leads too far.

    Which levels heads have makes no difference to when tasks start, if only they rise along every edge and do not
    fall along a chain. Around a circle they would rise for ever.
    """
    known = graph.edges.derived.get("made of")
    if known is None:
        return None
    older: Structure = known[0]
    origin: Rows = known[1][heads]
    kept = np.flatnonzero(origin >= 0)
    level = np.zeros(len(heads), dtype=np.intp)
    level[kept] = np.repeat(np.arange(len(older.levels) - 1), np.diff(older.levels))[older.head_of[origin[kept]]]
    # One running maximum for all chains: each is put above the one before.
    above = np.cumsum(before < 0) * _ABOVE
    for _ in range(_ROUNDS):
        level = np.maximum.accumulate(level + above) - above
        wanted = level[source] + 1
        low = np.flatnonzero(level[target] < wanted)
        if not len(low):
            return np.asarray((np.cumsum(np.bincount(level) > 0) - 1)[level], dtype=np.intp)
        np.maximum.at(level, target[low], wanted[low])
    return None


def _topological(graph: TaskGraph, heads: Rows, before: Rows, source: Rows, target: Rows) -> Rows:
    """Heads in an order in which each comes after those it waits for: the measured one where that will do."""
    chained = np.flatnonzero(before >= 0)
    source, target = np.concatenate((before[chained], source)), np.concatenate((chained, target))
    order = np.argsort(graph.tasks.start[heads], kind="stable")
    rank = np.empty(len(heads), dtype=np.intp)
    rank[order] = np.arange(len(heads))
    if (rank[source] < rank[target]).all():
        return order
    order, kept = sorted_topologically(source, target, rank)
    if not kept.all():
        task = int(heads[target[np.argmin(kept)]])
        raise CycleError(f"task {task} ({graph.name_of(task)}) depends on itself through a cycle of edges")
    return order


def sorted_topologically(source: Rows, target: Rows, rank: Rows) -> tuple[Rows, Mask]:
    """Vertices in an order along the edges, and which edges hold in it.

    Where edges lead in a circle, the vertex of lowest rank that is still waiting goes first, and its edges from
    those still waiting are not kept.
    """
    count = len(rank)
    by_source = np.argsort(source, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count)))).tolist()
    targets = target[by_source].tolist()
    waiting = np.bincount(target, minlength=count).tolist()
    ready = [vertex for vertex in range(count - 1, -1, -1) if not waiting[vertex]]
    order: list[int] = []
    done = [False] * count
    by_rank = iter(np.argsort(rank).tolist())
    while len(order) < count:
        while ready:
            vertex = ready.pop()
            if done[vertex]:
                continue
            done[vertex] = True
            order.append(vertex)
            for at in range(first[vertex], first[vertex + 1]):
                behind = targets[at]
                waiting[behind] -= 1
                if not waiting[behind]:
                    ready.append(behind)
        stuck = next((vertex for vertex in by_rank if not done[vertex]), None)
        if stuck is not None:
            ready.append(stuck)
    place = np.empty(count, dtype=np.intp)
    found = np.array(order, dtype=np.intp)
    place[found] = np.arange(count)
    return found, place[source] < place[target]


def _levels(order: Rows, before: Rows, source: Rows, target: Rows) -> Rows:
    """One more than the highest level waited for; along a chain the level need not rise."""
    count = len(order)
    by_target = np.argsort(target, kind="stable")
    edges = np.bincount(target, minlength=count)
    first = np.concatenate(([0], np.cumsum(edges)))
    sources = source[by_target]
    # Nearly every head has one edge or none; what is behind the last level stands for none.
    only = np.full(count, count, dtype=np.intp)
    some = np.flatnonzero(edges)
    only[some] = sources[first[some]]
    more = {head: sources[first[head] + 1 : first[head + 1]].tolist() for head in np.flatnonzero(edges > 1).tolist()}
    level = [0] * count + [-1]
    previous = np.where(before >= 0, before, count)[order].tolist()
    for head, ahead, waited in zip(order.tolist(), previous, only[order].tolist(), strict=True):
        found = level[waited] + 1
        if level[ahead] > found:
            found = level[ahead]
        if head in more:
            found = max(found, 1 + max(level[each] for each in more[head]))
        level[head] = found
    return np.array(level[:count], dtype=np.intp)


def offsets(compiled: Structure, duration: I64, *, constant: bool) -> I64:
    """By how much each task starts after the first of its chain at least; only differences within a chain count."""
    chains = compiled.chains
    lag = chains.constant_lag if constant else chains.lag
    found = np.zeros(len(lag), dtype=np.int64)
    np.multiply(duration[:-1], chains.ended[1:], out=found[1:])
    found += lag
    return np.cumsum(found, out=found)


# Dependencies that a program decides while it runs, worked out for the order of submission that a graph has.
#
# Whatever is last on a stream when a thread synchronizes is waited for (Lumos calls these run-time dependencies), and
# a launch waits for the task that is as many submissions ahead as the queue is deep.


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


def rederive(graph: TaskGraph, edges: Edges, new_tracks: Rows, left: Mask | None = None) -> Edges:
    """Edges with what is decided at run time as a graph's present order of submission has it, ordered by target.

    Synchronizing calls wait for the last task ahead of them of the streams that they waited for before, and of
    `new_tracks`, which had no tasks before, if they wait for the whole device. Pairs that were there before keep their
    lag. Edges are those apart from chains, in any order, of which those `left` are still there; the graph's own are not
    looked at.
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
