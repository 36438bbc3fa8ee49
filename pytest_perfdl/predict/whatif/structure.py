"""A task graph compiled for simulation: its chains contracted to the tasks at which something can happen.

A task with nothing to wait for but the task before it starts a known time after that one. So only *heads* need to be
looked at: tasks with another edge, a release, or no chain edge. Between heads a prefix sum does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.predict.whatif.model import CHAIN_KINDS, NO_RELEASE, Edges, Mask, TaskGraph, of_kinds
from pytest_perfdl.trace.model import I64, Rows


class CycleError(ValueError):
    """The tasks of a graph wait for each other in a circle; the message names one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """What a graph's edges make of it, whatever its durations. Heads are numbered level by level."""

    chain_edge: Rows
    """Edge from the task before on its track, -1 for none; of each task."""
    head_of: Rows
    """Number of the head from which each task follows."""
    task: Rows
    """Task of each head."""
    previous: Rows
    """Number of the head before on the same chain, -1 for none."""
    edge: Rows
    """The edges into heads that are no chain edges, ordered by head."""
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


def chain_edges(edges: Edges, count: int) -> Rows:
    """Of each task the edge from the one before on its track, -1 for none."""
    found = np.full(count, -1, dtype=np.intp)
    own = np.flatnonzero(of_kinds(edges, *CHAIN_KINDS) & (edges.source == edges.target - 1))[::-1]
    found[edges.target[own]] = own
    return found


def _compiled(graph: TaskGraph, released: Mask) -> Structure:
    edges, count = graph.edges, len(graph)
    chain = chain_edges(edges, count)
    others = np.ones(len(edges), dtype=bool)
    others[chain[chain >= 0]] = False
    other = np.flatnonzero(others)
    is_head = released | (chain < 0)
    is_head[edges.target[other]] = True
    heads = np.flatnonzero(is_head)
    of = np.cumsum(is_head) - 1
    before = np.where(chain[heads] >= 0, np.arange(len(heads)) - 1, -1)
    source, target = of[edges.source[other]], of[edges.target[other]]
    order = _topological(graph, heads, before, source, target)
    level = _levels(order, before, source, target)
    # Level by level, along each chain: the new numbers of heads.
    renumbered = np.lexsort((heads, level))
    number = np.empty(len(heads), dtype=np.intp)
    number[renumbered] = np.arange(len(heads))
    by_head = np.argsort(number[target], kind="stable")
    before = before[renumbered]
    counts = np.bincount(number[target], minlength=len(heads))
    return Structure(
        chain_edge=chain,
        head_of=number[of],
        task=heads[renumbered],
        previous=np.where(before >= 0, number[np.maximum(before, 0)], -1),
        edge=other[by_head],
        source=number[source[by_head]],
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.intp),
        levels=np.concatenate(([0], np.cumsum(np.bincount(level)))).astype(np.intp),
    )


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
        raise CycleError(f"task {task} ({graph.name_of(task)}) waits for itself in a circle of edges")
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


def offsets(graph: TaskGraph, compiled: Structure, lag: I64, duration: I64) -> I64:
    """By how much each task starts after the first of its chain at least; only differences within a chain count."""
    edges = graph.edges
    own = np.flatnonzero(compiled.chain_edge >= 0)
    edge = compiled.chain_edge[own]
    step = np.zeros(len(duration), dtype=np.int64)
    step[own] = np.where(edges.at_start[edge], 0, duration[own - 1]) + lag[edge]
    found: I64 = np.cumsum(step)
    return found
