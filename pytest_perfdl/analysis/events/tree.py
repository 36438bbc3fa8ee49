"""The call tree of the host: which operator, annotation, Python frame or runtime call runs inside which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.launches import Launches, launches
from pytest_perfdl.analysis.events.nesting import Mask, by_level, nest, nesting_order
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, I64, LAUNCH_CATEGORIES, Category, Rows, Trace

HOST_CATEGORIES = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION, *LAUNCH_CATEGORIES)
"""What a call tree is made of: events of host threads that nest as calls do."""


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """A forest over the rows of a trace; columns are as long as the trace."""

    parent: Rows
    """Row of the innermost host event that fully contains each one, on its thread; -1 for a root or no host event."""
    depth: I32
    """Number of ancestors; 0 for a root, -1 for what is no host event."""
    bled: Rows
    """Rows that began inside the innermost event then running and ended after it, in the order of rows.

    The parent of such an event is the innermost one that contains it, not the one it bled over.
    """
    levels: tuple[Rows, ...]
    """Rows that have a parent, those of one depth after the other."""

    def ancestors(self, row: int) -> Rows:
        """Rows around one row, the innermost first."""
        found = []
        above = int(self.parent[row])
        while above >= 0:
            found.append(above)
            above = int(self.parent[above])
        return np.array(found, dtype=np.intp)

    def children(self) -> tuple[Rows, Rows]:
        """Children grouped by parent: those of row r are `rows[first[r] : first[r + 1]]`, in file order."""
        below = np.flatnonzero(self.parent >= 0)
        rows = below[np.argsort(self.parent[below], kind="stable")]
        counts = np.bincount(self.parent[below], minlength=len(self.parent))
        return np.concatenate(([0], np.cumsum(counts))).astype(np.intp), rows

    def nearest(self, mask: Mask) -> Rows:
        """For each row the nearest of itself and its ancestors that satisfies `mask`, one boolean per row; or -1."""
        found = np.where(mask, np.arange(len(mask)), -1)
        for rows in self.levels:
            found[rows] = np.where(mask[rows], rows, found[self.parent[rows]])
        return found

    def outermost(self, mask: Mask) -> Rows:
        """For each row the farthest of itself and its ancestors that satisfies `mask`, one boolean per row; or -1."""
        found = np.where(mask, np.arange(len(mask)), -1)
        for rows in self.levels:
            above = found[self.parent[rows]]
            found[rows] = np.where(above >= 0, above, found[rows])
        return found

    def subtree_sums(self, values: I64) -> I64:
        """For each row the sum of `values`, one per row, over itself and everything below it."""
        total: I64 = values.copy()
        for rows in reversed(self.levels):
            np.add.at(total, self.parent[rows], total[rows])
        return total


@once
def call_tree(trace: Trace) -> CallTree:
    """Nest the host events of each thread (process and thread id) by stack discipline.

    The events are operators, annotations, Python frames, and runtime and driver calls. The longer of two events
    that start together contains the other, of two equal ones the first in the file. Intervals are half-open:
    what begins where another ends is not inside it, and nothing is inside an event without duration.
    """
    parent = np.full(len(trace), -1, dtype=np.intp)
    depth = np.full(len(trace), -1, dtype=np.int32)
    bled = []
    for rows in by_thread(trace, np.flatnonzero(np.isin(trace.category, HOST_CATEGORIES))):
        forest = nest(trace.start[rows], trace.start[rows] + trace.duration[rows])
        inner = forest.parent >= 0
        parent[rows[inner]] = rows[forest.parent[inner]]
        depth[rows] = forest.depth
        bled.append(rows[forest.bled])
    below = np.flatnonzero(parent >= 0)
    order, bounds = by_level(depth[below])
    levels = tuple(below[level] for level in np.split(order, bounds[1:-1])[1:])
    return CallTree(parent, depth, np.sort(np.concatenate(bled)) if bled else np.zeros(0, dtype=np.intp), levels)


def pair_codes(first: I64, second: I64) -> Rows:
    """One number for each distinct pair of values, in the order of pairs; not every number need occur."""
    firsts, seconds = np.unique(first), np.unique(second)
    return np.searchsorted(firsts, first) * len(seconds) + np.searchsorted(seconds, second)


@once
def launching_operator(trace: Trace, tree: CallTree, joined: Launches | None = None) -> Rows:
    """For each row that is a device event the row of the operator that launched it; -1 for all others.

    It is the innermost operator around the launching call, on the call's thread. Where the trace lacks the call, it
    is the operator that has the event's `External id`, unless it started after the event. `joined` are the
    trace's `launches`, if the caller has them.
    """
    joined = joined or launches(trace)
    is_operator = trace.category == Category.CPU_OP
    found = np.full(len(trace), -1, dtype=np.intp)
    linked = joined.linked
    if linked.any():
        found[joined.device[linked]] = tree.nearest(is_operator)[joined.call[linked]]
    alone = joined.device[~linked]
    if len(alone):
        found[alone] = _by_external_id(trace, np.flatnonzero(is_operator), alone)
    return found


def _by_external_id(trace: Trace, operators: Rows, device: Rows) -> Rows:
    wanted = trace.external_ids(device)
    found = np.full(len(device), -1, dtype=np.intp)
    if len(operators) and (wanted > 0).any():
        keys, first = np.unique(trace.external_ids(operators), return_index=True)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        match = np.flatnonzero((keys[place] == wanted) & (wanted > 0))
        operator = operators[first[place[match]]]
        known = trace.start[operator] <= trace.start[device[match]]
        found[match[known]] = operator[known]
    return found


def by_thread(trace: Trace, rows: Rows) -> Iterator[Rows]:
    """The given rows of each thread, in the order in which a parent comes before its children."""
    thread = pair_codes(trace.pid[rows], trace.tid[rows])
    order = np.argsort(thread, kind="stable")
    bounds = np.flatnonzero(np.diff(thread[order])) + 1
    for own in np.split(rows[order], bounds) if len(rows) else []:
        yield own[nesting_order(trace.start[own], trace.start[own] + trace.duration[own])]
