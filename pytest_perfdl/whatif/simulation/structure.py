"""A task graph compiled for simulation: its chains contracted to the tasks at which something can happen.

A task with nothing to wait for but the task before it starts a known time after that one. So only *heads* need to be
looked at: tasks with another edge, a release, or no chain edge. Between heads a prefix sum does.

A graph that an edit made of another one takes over what is known of that: see `inherit`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import NO_RELEASE, Edges, Mask, TaskGraph
from pytest_perfdl.whatif.simulation.chains import Chains, apart

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
        known = graph.edges.derived["structure"] = released, _compiled(graph, released)
    found: Structure = known[1]
    return found


def inherit(before: TaskGraph, edges: Edges, origin: Rows) -> None:
    """Let a graph be compiled from what is known of the one that an edit made it of.

    Parameters
    ----------
    before
        The graph before the edit.
    edges
        The edges of the graph after it.
    origin
        Which task of the graph before each task was, -1 for new ones.
    """
    known = before.edges.derived.get("structure")
    if known is not None:
        edges.derived["made of"] = known[1], origin
    elif "made of" in before.edges.derived:
        older, its_origin = before.edges.derived["made of"]
        edges.derived["made of"] = older, np.where(origin >= 0, its_origin[origin], -1)


def _compiled(graph: TaskGraph, released: Mask) -> Structure:
    chains, others = apart(graph.edges, len(graph))
    is_head = released | ~chains.there
    is_head[others.target] = True
    heads = np.flatnonzero(is_head)
    of = np.cumsum(is_head, dtype=np.intp)
    of -= 1
    before = np.where(chains.there[heads], np.arange(len(heads)) - 1, -1)
    source, target = of[others.source], of[others.target]
    level = _raised(graph, heads, before, source, target)
    if level is None:
        order = _topological(graph, heads, before, source, target)
        level = _levels(order, before, source, target)
    # Level by level, along each chain: the new numbers of heads.
    narrow = _narrow(level)
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


def _narrow(level: Rows) -> Rows | npt.NDArray[np.uint16]:
    """In 16 bits if they fit, which are sorted in linear time."""
    return level.astype(np.uint16) if level.max(initial=0) < 2**16 else level


def _raised(graph: TaskGraph, heads: Rows, before: Rows, source: Rows, target: Rows) -> Rows | None:
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
