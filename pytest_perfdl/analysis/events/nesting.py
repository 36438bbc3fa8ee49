"""How the events of one thread nest: parents, owners of each moment, and what was open at a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.arrays import groups, sorted_by
from pytest_perfdl.trace.model import I32, I64, Rows, Trace

# How the events of one thread nest: parents by stack discipline, and who owns which moment of the thread.


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """The forest that the events of one thread form: columns as long as the events given."""

    parent: Rows
    """Position of the innermost event that contains each one, -1 for none."""
    depth: I32
    """How many ancestors each one has."""
    end: I64
    """Where each event ends, or where one begins that bleeds over its end: with these ends all events nest."""
    bled: Rows
    """Positions of the events that began inside the innermost event then running and ended after it."""


@dataclass(frozen=True, slots=True, eq=False)
class Ownership:
    """A thread's time cut into pieces, each owned by one event; pieces are disjoint and in the order of time."""

    start: I64
    end: I64
    owner: Rows
    """Position of the owning event among those given."""
    overlapping: int
    """Events that began inside another and ended after it."""

    def self_time(self, count: int) -> I64:
        """Nanoseconds that each of `count` events owns."""
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, self.owner, self.end - self.start)
        return total

    def at(self, time: I64) -> Rows:
        """Position of the event that owns each moment, -1 for none."""
        piece = np.searchsorted(self.start, time, side="right") - 1
        inside = piece >= 0
        inside[inside] = time[inside] < self.end[piece[inside]]
        found = np.full(len(time), -1, dtype=np.intp)
        found[inside] = self.owner[piece[inside]]
        return found


def nesting_order(start: I64, end: I64) -> Rows:
    """The order in which a parent comes before its children: by start, the longer first, then as given."""
    return sorted_by(start, -end)


def nest(start: I64, end: I64) -> Nest:
    """Parents among the events of one thread, which come in `nesting_order`.

    The parent of an event is the innermost one that fully contains it. Intervals are half-open: what begins where
    another ends is not inside it, and nothing is inside an event without duration. Of two equal intervals the
    first contains the second. An event that begins inside another and ends after it is not its child, but a
    child of what contains both, or a root.
    """
    return _nest(start, end)[0]


def ownership(start: I64, end: I64) -> Ownership:
    """Cut the time of one thread among its events, which come by start, the longer first among equal starts.

    A moment belongs to the event that started last among those running then. For events that nest this is the
    innermost one, so that an event's total is its self time; for events that overlap without nesting nothing is
    counted twice or lost: the sum over all events is the length of their union.
    """
    forest, swept = _nest(start, end)
    if swept is None or len(forest.bled):
        lasting = np.flatnonzero(end > start)
        swept = _Sweep.over(start[lasting], forest.end[lasting])
        owner_at_end, owner_at_start = forest.parent[lasting[swept.ender]], lasting
    else:
        owner_at_end, owner_at_start = forest.parent[swept.ender], np.arange(len(start))
    final = np.concatenate((swept.time[1:] != swept.time[:-1], [True]))[: len(swept.time)]
    cut, owner = swept.time[final], np.concatenate((owner_at_end, owner_at_start))[swept.order[final]]
    if len(owner_at_start) < len(start):
        # An event without duration owns nothing, yet it cuts the piece in which it lies.
        instants = np.setdiff1d(start[end == start], cut)
        place = np.searchsorted(cut, instants)
        place, instants = place[place > 0], instants[place > 0]
        cut, owner = np.insert(cut, place, instants), np.insert(owner, place, owner[place - 1])
    pieces = np.flatnonzero(owner >= 0)
    return Ownership(cut[pieces], cut[pieces + 1], owner[pieces], len(forest.bled))


def row_ownership(trace: Trace, rows: Rows) -> Ownership:
    """The same of rows of one thread, ordered as in `Trace.rows`; owners are rows of the trace."""
    owned = ownership(trace.start[rows], trace.end[rows])
    return replace(owned, owner=rows[owned.owner])


def by_level(depth: npt.NDArray[np.signedinteger]) -> tuple[Rows, Rows]:
    """Positions ordered by depth, equal depths as given, and where each depth begins in that order."""
    if len(depth) == 0:
        return np.zeros(0, dtype=np.intp), np.zeros(1, dtype=np.intp)
    # numpy sorts 16-bit integers by counting, ten times as fast as others.
    narrow = depth.astype(np.int16) if int(depth.max()) < 2**15 else depth
    counts = np.bincount(depth)
    return np.argsort(narrow, kind="stable"), np.concatenate(([0], np.cumsum(counts))).astype(np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class _Sweep:
    """The bounds of events that all have a duration, in the order of time; ends come before starts."""

    time: I64
    order: Rows
    """Which bound comes when: below the number of events the n-th end of `ender`, else the start of an event."""
    ender: Rows
    """Positions by end; of equal ends the inner, later, event first."""

    @classmethod
    def over(cls, start: I64, end: I64) -> _Sweep:
        ender = sorted_by(end, np.arange(len(end), 0, -1))
        both = np.concatenate((end[ender], start))
        order = np.argsort(both, kind="stable")
        return cls(both[order], order, ender)

    def depth(self) -> I32:
        """How many events run when each one starts."""
        place = np.flatnonzero(self.order >= len(self.ender))
        started = np.arange(len(place))
        # Ahead of a start there are as many starts as its number says; what else is ahead of it are ends.
        return (2 * started - place).astype(np.int32)


def _nest(start: I64, end: I64) -> tuple[Nest, _Sweep | None]:
    """The forest, and the sweep that it was made of if every event has a duration."""
    lasting = end > start
    if lasting.all():
        swept = _Sweep.over(start, end)
        depth = swept.depth()
        parent = _parents(depth)
    else:
        swept = None
        parent, depth = _with_instants(start, end, lasting)
    if ((end[parent] < end) & (parent >= 0)).any():
        return _one_by_one(start, end), swept
    return Nest(parent, depth, end, np.zeros(0, dtype=np.intp)), swept


def _parents(depth: I32) -> Rows:
    """The last event of the depth above, which contains each one if events nest, and fails to if they do not."""
    parent = np.full(len(depth), -1, dtype=np.intp)
    order, bounds = by_level(depth)
    above = order[: bounds[1]] if len(bounds) > 1 else order
    for level in range(1, len(bounds) - 1):
        own = order[bounds[level] : bounds[level + 1]]
        parent[own] = above[np.searchsorted(above, own) - 1]
        above = own
    return parent


def _with_instants(start: I64, end: I64, lasting: Mask) -> tuple[Rows, I32]:
    """Parents and depths where some events have no duration: nothing is inside those."""
    position = np.flatnonzero(lasting)
    instants = np.flatnonzero(~lasting)
    levels = _Sweep.over(start[position], end[position]).depth()
    depth = np.zeros(len(start), dtype=np.int32)
    depth[position] = levels
    closed = np.searchsorted(np.sort(end[position]), start[instants], side="right")
    depth[instants] = np.cumsum(lasting)[instants] - closed
    parent = np.full(len(start), -1, dtype=np.intp)
    found = _parents(levels)
    parent[position] = np.where(found >= 0, position[found], -1)
    order, bounds = by_level(levels)
    for level in np.unique(depth[instants]).tolist():
        if level:
            above = position[order[bounds[level - 1] : bounds[level]]]
            own = instants[depth[instants] == level]
            parent[own] = above[np.searchsorted(above, own) - 1]
    return parent, depth


def _one_by_one(start: I64, end: I64) -> Nest:
    """Parents with a stack, for events that do not all nest."""
    parents: list[int] = []
    depths: list[int] = []
    ends: list[int] = end.tolist()
    bled: list[int] = []
    stack = [-1]
    stack_ends = [2**63]
    top = stack_ends[0]
    for index, (its_start, its_end) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while top <= its_start:
            stack.pop()
            stack_ends.pop()
            top = stack_ends[-1]
        if top < its_end:
            bled.append(index)
            # From here on this event runs later than those it outlasts, so none of them can contain or own more.
            while top < its_end:
                ends[stack.pop()] = its_start
                stack_ends.pop()
                top = stack_ends[-1]
        parents.append(stack[-1])
        depths.append(len(stack) - 1)
        stack.append(index)
        stack_ends.append(its_end)
        top = its_end
    return Nest(
        np.array(parents, dtype=np.intp),
        np.array(depths, dtype=np.int32),
        np.array(ends, dtype=np.int64),
        np.array(bled, dtype=np.intp),
    )


# What ran around a moment on a host thread: the innermost of the events that were open then.


def threads_of(pid: I64, tid: I64) -> Iterator[tuple[int, int, Rows]]:
    """Each distinct process and thread of two columns, with its positions in ascending order."""
    for own in groups(pid, tid):
        yield int(pid[own[0]]), int(tid[own[0]]), own


def innermost(trace: Trace, rows: Rows, time: I64, pid: I64, tid: I64) -> Rows:
    """Which of `rows` was innermost at each moment on its thread, -1 where none was open.

    Parameters
    ----------
    trace
        The trace.
    rows
        Candidates, ordered as `Trace.rows` gives them; an event is open over [start, end).
    time, pid, tid
        The moments (nanoseconds) and their threads: columns of equal length, in any order.
    """
    found = np.full(len(time), -1, dtype=np.intp)
    for process, thread, asked in threads_of(pid, tid):
        own = rows[(trace.pid[rows] == process) & (trace.tid[rows] == thread)]
        if len(own):
            found[asked] = row_ownership(trace, own).at(time[asked])
    return found
