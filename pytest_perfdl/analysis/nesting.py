"""Who owns a moment of a thread: self times of nested events, as an exact partition of the time they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.model import I64, Rows


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


def ownership(start: I64, end: I64) -> Ownership:
    """Cut the time of one thread among its events, which come by start, the longer first among equal starts.

    A moment belongs to the event that started last among those running then. For events that nest this is the
    innermost one, so that an event's total is its self time; for events that overlap without nesting nothing is
    counted twice or lost: the sum over all events is the length of their union.
    """
    pieces_start: list[int] = []
    pieces_end: list[int] = []
    owners: list[int] = []
    open_events: list[tuple[int, int]] = []
    now = 0
    overlapping = 0

    def advance(until: int | None) -> int:
        """Hand out the time up to `until` (all of it for None) and return the new present."""
        moment = now
        while open_events:
            owner, its_end = open_events[-1]
            if its_end <= moment:
                open_events.pop()
                continue
            if until is not None and moment >= until:
                break
            reach = its_end if until is None or its_end < until else until
            pieces_start.append(moment)
            pieces_end.append(reach)
            owners.append(owner)
            moment = reach
        return moment if until is None else until

    for index, (its_start, its_end) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        now = advance(its_start)
        if open_events and open_events[-1][1] < its_end:
            overlapping += 1
        open_events.append((index, its_end))
    advance(None)
    return Ownership(
        np.array(pieces_start, dtype=np.int64),
        np.array(pieces_end, dtype=np.int64),
        np.array(owners, dtype=np.intp),
        overlapping,
    )
