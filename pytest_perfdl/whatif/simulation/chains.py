"""The edges from each task to the next of its track as columns of the tasks, and all others apart from them.

Nearly every edge is one of these. Edits and simulation work on the two parts, so that an edit does not sort, search or
renumber what only says that tasks of a track follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.model import CHAIN_KINDS, EDGE_COLUMNS, EdgeKind, Edges, Mask, of_kinds


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Of each task the edge from the one before it on its track; 0 and false where it has none."""

    there: Mask
    ended: Mask
    """Whether it counts from the end of the task before, not from its start."""
    lag: I64
    constant_lag: I64


def apart(edges: Edges, count: int) -> tuple[Chains, Edges]:
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
    return np.asarray(of_kinds(edges, *CHAIN_KINDS) & (edges.source == edges.target - 1), dtype=bool)


def linked(chains: Chains, others: Edges, on_host: Mask) -> Edges:
    """All edges ordered by target: into each task the one of its chain, then the others as given.

    Parameters
    ----------
    chains
        The chains.
    others
        All other edges, ordered by target.
    on_host
        Which tasks are of host threads.
    """
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
