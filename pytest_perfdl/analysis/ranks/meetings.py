"""Matched collectives in time, and what each rank does when: who waited for whom, and whose link was slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.nesting import Mask
from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.calls import Calls
from pytest_perfdl.analysis.ranks.clocks import Clock, Matched
from pytest_perfdl.analysis.ranks.figures import Cause, Rank, RankFigures
from pytest_perfdl.trace.model import F64, I64, Rows

# Matched collectives in time: who waited for whom, who held the others up, and whose link was slow.


RING = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Collectives that a ring carries out: of which the ends tell the slow link."""


THREADS = 8
"""So many calls of a group may run at once, on threads of a back end without devices."""


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The collectives of one `Matched` in time: one line each, one column per member, on the first rank's clock."""

    matched: Matched
    start: I64
    end: I64
    wait: I64
    """How long each waits for the last to start."""
    queued: I64
    """How much earlier it could have started, had all members' queues been empty: one value per collective."""

    @property
    def skew(self) -> I64:
        """Latest start less earliest."""
        return np.asarray(self.start.max(axis=1) - self.start.min(axis=1))

    @property
    def arrival(self) -> I64:
        """Of messages: from the last start to the end on the receiver."""
        return np.asarray(np.maximum(self.end[:, 1] - self.start.max(axis=1), 0))


def make_meeting(matched: Matched, ranks_: Sequence[RankActivity], clocks: Sequence[Clock]) -> Meeting:
    """Matched collectives on the first rank's clock; who ends before the last one starts waits for nobody."""
    start, end = matched.times(ranks_, clocks)
    arrived = start.max(axis=1, keepdims=True)
    wait = np.where(end >= arrived, arrived - start, 0)
    columns = zip(matched.places, matched.call.T, strict=True)
    ready = [clocks[place].moved(ranks_[place].calls.ready[own]) for place, own in columns]
    queued = np.maximum(arrived[:, 0] - np.max(ready, axis=0), 0)
    return Meeting(matched, start, end, wait, queued)


def find_residual(meetings: Sequence[Meeting], count: int) -> int:
    """Median disagreement of each rank's ends with those of the others in the same collectives, the worst rank's."""
    apart: list[list[I64]] = [[] for _ in range(count)]
    for meeting in meetings:
        if not meeting.matched.message:
            middle = (
                meeting.end[:, :1]
                if meeting.end.shape[1] == 2
                else meeting.end[:, :1]
                + np.median(meeting.end - meeting.end[:, :1], axis=1, keepdims=True).astype(np.int64)
            )
            for column, place in enumerate(meeting.matched.places):
                apart[place].append(np.abs(meeting.end[:, column] - middle[:, 0]).astype(np.int64))
    return max((int(np.median(np.concatenate(own))) for own in apart if own), default=0)


def count_last(meetings: Sequence[Meeting], count: int, above: int) -> list[int]:
    """How many collectives each rank starts last, by more than `above` nanoseconds."""
    last = np.zeros(count, dtype=np.int64)
    for meeting in meetings:
        places = np.array(meeting.matched.places, dtype=np.intp)
        np.add.at(last, places[meeting.start.argmax(axis=1)], meeting.skew > above)
    found: list[int] = last.tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """When one rank waits for others, on its own clock: no moment twice."""

    all: Intervals
    """While it computes nothing."""
    messages: Intervals
    """The same in messages from rank to rank."""
    whole_ns: I64
    """How long it waits for each rank to start, whether it computes meanwhile or not."""
    exposed_ns: I64
    """The same while it computes nothing."""


def find_waiting(meetings: Sequence[Meeting], ranks_: Sequence[RankActivity], place: int) -> Waiting:
    """When one rank waits for others, and for whom. Several collectives may wait for one rank at once."""
    own = ranks_[place]
    columns = []
    for meeting in meetings:
        if place in (places := meeting.matched.places):
            column = places.index(place)
            last = np.array(places, dtype=np.intp)[meeting.start.argmax(axis=1)]
            message = np.full(len(last), meeting.matched.message)
            columns.append((own.calls.start[meeting.matched.call[:, column]], meeting.wait[:, column], last, message))
    nothing = np.zeros(0, dtype=np.int64)
    start, wait, last, message = map(np.concatenate, zip(*columns, strict=True)) if columns else (nothing,) * 4

    def union(which: Mask) -> Intervals:
        return Intervals.union_of(start[which], (start + wait)[which])

    whole, exposed = np.zeros((2, len(ranks_)), dtype=np.int64)
    for other in np.unique(last[wait > 0]).tolist():
        waits = union(last == other)
        whole[other], exposed[other] = waits.length, waits.intersection(own.exposed).length
    all_, messages = union(wait > 0).intersection(own.exposed), union(message > 0).intersection(own.exposed)
    return Waiting(all_, messages, whole, exposed)


def by_step(meetings: Sequence[Meeting], ranks: Sequence[RankActivity], common: Sequence[int]) -> tuple[I64, I64, I64]:
    """What each rank held up and what its link cost, in the steps that all have, each of shape (steps, ranks).

    *Held up*: by how much a rank starts a collective later than the last of the others.

    *Link late*: by how much a rank ends a collective later than the first to end; and by how much a message to it takes
    longer than messages of this size between other ranks do. In a ring each rank passes on what it got in the round
    before, so that the rank behind a slow link ends last, the next a round's delay earlier, and so on around the ring
    (rounds of a ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
    where all links are equal all ranks end together).

    *Link excess*: how much longer the slow link makes the collectives that a rank is the last to end: the delay of one
    round, by which neighbors' ends differ, times the rounds, 2(n-1) of an all-reduce and n-1 of an all-gather or
    reduce-scatter, which is twice or once the difference between last and first end; the part that is not hidden.
    """
    index = {number: at for at, number in enumerate(common)}
    held, late, excess = (np.zeros((len(common), len(ranks)), dtype=np.int64) for _ in range(3))
    steps = [np.array([index.get(number, -1) for number in [*each.steps.number, -2]], dtype=np.intp) for each in ranks]
    longer = [np.zeros(len(each.calls)) for each in ranks]
    exposed = [each.calls.exposed_ns.astype(np.float64) for each in ranks]
    queued = [np.zeros(len(each.calls), dtype=np.int64) for each in ranks]
    usual = _usual_messages(meetings, ranks)

    def add(total: I64, place: int, calls: Rows, values: F64 | I64) -> None:
        step = steps[place][ranks[place].calls.step[calls]]
        known = step >= 0
        np.add.at(total[:, place], step[known], np.rint(values[known]).astype(np.int64))

    for meeting in meetings:
        matched = meeting.matched
        for column, place in enumerate(matched.places):
            own = matched.call[:, column]
            others = np.delete(meeting.start, column, axis=1).max(axis=1)
            add(held, place, own, np.maximum(meeting.start[:, column] - others, 0))
            if matched.kind in RING:
                last = meeting.end[:, column] - meeting.end.min(axis=1)
                add(late, place, own, last)
                last[last < np.ptp(meeting.end, axis=1)] = 0
                longer[place][own] = last * (2 if matched.kind == "all_reduce" else 1)
            elif matched.message and column == 1:
                calls = ranks[place].calls
                more = _in_each(steps[place][calls.step[own]], meeting.arrival - usual(place, calls.bytes[own]))
                add(late, place, own, more)
                longer[place][own] = more
            else:
                continue
            transfer = meeting.end[:, column] - meeting.start.max(axis=1)
            queued[place][own] = meeting.queued
            exposed[place][own] = np.clip(exposed[place][own], 0, np.maximum(transfer, 0))
    for place, each in enumerate(ranks):
        add(
            excess,
            place,
            np.arange(len(each.calls)),
            _exposed_of(each.calls, longer[place], queued[place], exposed[place]),
        )
    return held, late, excess


def _exposed_of(calls: Calls, longer: F64, queued: I64, exposed: F64) -> F64:
    """The part of what calls take longer that is not hidden, by the call that exposes it.

    A call that takes longer moves the one that queues behind it by as much, at most by what that has queued, until it
    is exposed. No moment is exposed twice: of calls that run at once, the later one exposes what it lasts beyond the
    other.
    """
    found = np.zeros(len(calls))
    moved = [0.0] * len(calls)
    left: dict[str, deque[int]] = {}
    until = 0
    columns = (calls.start.tolist(), calls.end.tolist(), longer.tolist(), queued.tolist(), exposed.tolist())
    start, end, more, least, shown = columns
    for call in np.argsort(calls.start, kind="stable").tolist() if longer.any() else []:
        before = left.setdefault(calls.group[call], deque(maxlen=THREADS))
        freed = max((each for each in before if end[each] <= start[call]), key=lambda each: end[each], default=None)
        moved[call] = min(0.0 if freed is None else moved[freed], least[call]) + more[call]
        found[call] = min(moved[call], max(min(shown[call], end[call] - max(start[call], until)), 0))
        moved[call] -= found[call]
        before.append(call)
        until = max(until, end[call]) if found[call] else until
    return found


def _in_each(step: Rows, values: F64) -> F64:
    """The median of each step, at least 0: one message may wait behind something else."""
    found = np.zeros(len(values))
    for own in np.unique(step):
        found[step == own] = max(float(np.median(values[step == own])), 0.0)
    return found


def _usual_messages(meetings: Sequence[Meeting], ranks: Sequence[RankActivity]) -> Callable[[int, I64], F64]:
    """Median transfer of messages of each size that do not go to a rank; their own median where there are none."""
    known: list[tuple[int, I64, I64]] = []
    for meeting in meetings:
        if meeting.matched.message:
            place = meeting.matched.places[1]
            known.append((place, ranks[place].calls.bytes[meeting.matched.call[:, 1]], meeting.arrival))

    def usual(place: int, sizes: I64) -> F64:
        found = np.zeros(len(sizes))
        for size in np.unique(sizes):
            others = [arrival[bytes_ == size] for target, bytes_, arrival in known if target != place]
            times = np.concatenate([np.zeros(0, dtype=np.int64), *others])
            found[sizes == size] = np.median(times) if len(times) else np.inf
        return found

    return usual


def find_roles(ranks: Sequence[RankActivity]) -> dict[Cause, tuple[int, ...]]:
    """Numbers of what ranks do, by class of own work: those with the same number should take equally long.

    Without messages from rank to rank all ranks do the same, as data and tensor parallel ones should. Stages of a
    pipeline do not. They have equally much to compute if they run the same kernels, or operators, of the same sizes;
    input if both have some or none; and what their hosts do is alike if both are, as the first stage's Python is not
    hidden by waiting for the stage before.
    """
    if not any(kind in ("send", "recv") for each in ranks for kind in each.calls.kinds):
        return dict.fromkeys(("compute", "input", "host"), (0,) * len(ranks))
    loads = [bool(each.steps.input_ns.any()) for each in ranks]
    work = [each.work for each in ranks]
    keys: dict[Cause, Sequence[object]] = {
        "compute": work,
        "input": loads,
        "host": list(zip(work, loads, strict=True)),
    }
    return {cause: tuple(map(list(dict.fromkeys(own)).index, own)) for cause, own in keys.items()}


# What each rank of a job does when, on one clock: the rows of a chart.


CLASSES = ("compute", "input", "host", "communication", "waiting")
"""What a rank does in a step; "communication" and "waiting" (for other ranks) while it computes nothing."""

NOTHING = -1
"""Outside of the steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A stretch of all ranks, divided into bins of equal length; moments are nanoseconds on the first rank's clock."""

    start_ns: int
    end_ns: int
    steps: tuple[int, ...]
    """Numbers of the steps that it spans, in order."""
    opens_ns: I64
    """When each step begins on each rank, shape (steps, ranks)."""
    codes: npt.NDArray[np.int8]
    """Index into `CLASSES` of what takes most of each bin, `NOTHING` outside of the steps; shape (ranks, bins)."""


def clock_of(rank: Rank) -> Clock:
    """What turns a rank's times into those of the first rank."""
    return Clock(rank.clock_offset_ns, rank.clock_drift, rank.clock_at_ns)


def timeline(activities: Sequence[RankActivity], figures: RankFigures, steps: Sequence[int], bins: int) -> Timeline:
    """Draw some of the common steps.

    Parameters
    ----------
    activities
        In the order of `figures.ranks`.
    steps
        At least one of `figures.step_numbers`, in order.
    bins
        How many.
    """
    clocks = [clock_of(rank) for rank in figures.ranks]
    places = [[each.steps.number.index(number) for number in steps] for each in activities]
    columns = list(zip(activities, clocks, places, strict=True))
    opens = np.stack([clock.moved(each.steps.start[own]) for each, clock, own in columns], axis=1)
    closes = np.stack([clock.moved(each.steps.end[own]) for each, clock, own in columns], axis=1)
    start, end = int(opens.min()), int(closes.max())
    edges = start + np.linspace(0, end - start, bins + 1).astype(np.int64)
    waiting = _waiting(figures)
    codes = np.full((len(activities), bins), NOTHING, dtype=np.int8)
    for place, (each, clock, _) in enumerate(columns):
        own = Intervals.union_of(opens[:, place], closes[:, place])
        exposed = clock.moved_all(each.exposed)
        waits = waiting[place].intersection(exposed)
        known = {
            "compute": clock.moved_all(each.compute),
            "input": clock.moved_all(each.input),
            "communication": exposed.difference(waits),
            "waiting": waits,
        }
        parts = {name: _in_bins(intervals.intersection(own), edges) for name, intervals in known.items()}
        inside = _in_bins(own, edges)
        parts["host"] = inside - sum(parts.values())
        most = np.stack([parts[name] for name in CLASSES]).argmax(axis=0)
        codes[place] = np.where(2 * inside >= np.diff(edges), most, NOTHING)
    return Timeline(start, end, tuple(steps), opens, codes)


def _in_bins(intervals: Intervals, edges: I64) -> I64:
    return np.asarray(intervals.within(edges[:-1], edges[1:]))


def _waiting(figures: RankFigures) -> list[Intervals]:
    """When each rank is in a collective that another has not started."""
    place = {rank.rank: at for at, rank in enumerate(figures.ranks)}
    starts: list[list[int]] = [[] for _ in place]
    ends: list[list[int]] = [[] for _ in place]
    for each in figures.collectives:
        for rank, start, wait in zip(each.ranks, each.start_ns, each.wait_ns, strict=True):
            if wait:
                starts[place[rank]].append(start)
                ends[place[rank]].append(start + wait)
    return [
        Intervals.union_of(np.array(start, dtype=np.int64), np.array(end, dtype=np.int64))
        for start, end in zip(starts, ends, strict=True)
    ]
