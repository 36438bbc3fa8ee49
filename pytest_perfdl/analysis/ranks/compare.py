"""All ranks of a job together: matched collectives, waits, overlap, imbalance, and the straggler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks import straggler
from pytest_perfdl.analysis.ranks.activity import RankActivity, activity, rank_of
from pytest_perfdl.analysis.ranks.buckets import buckets_of
from pytest_perfdl.analysis.ranks.clocks import clocks_of
from pytest_perfdl.analysis.ranks.figures import Cause, Collective, Rank, RankFigures
from pytest_perfdl.analysis.ranks.matching import Clock, Matched, candidates, confirmed
from pytest_perfdl.trace.model import I64, Trace

SKEW_ABOVE_NS = 10_000
"""A skew below this is no straggling: ranks never start to the microsecond."""


def ranks(traces: Sequence[Trace]) -> RankFigures:
    """Compare the ranks of one job, from their traces: `compare` of each one's `activity`.

    Raises
    ------
    ValueError
        No trace was given.
    """
    return compare([activity(trace) for trace in traces])


def rank_numbers(traces: Sequence[Trace]) -> list[int]:
    """The rank of each: as `distributedInfo` says where all have one and no two the same, else its place."""
    return numbered([rank_of(trace)[0] for trace in traces])


def numbered(told: Sequence[int | None]) -> list[int]:
    """Numbers of ranks from what their traces say, as `rank_numbers` does."""
    numbers = [number for number in told if number is not None]
    return numbers if len(set(numbers)) == len(told) else list(range(len(told)))


def compare(activities: Sequence[RankActivity]) -> RankFigures:
    """Compare the ranks of one job.

    A rank's number is `distributedInfo`'s where all have one and no two the same, else its place.
    Collectives are matched by process group (else by stream) and `Seq` where they have it, else by order, among the
    members of their group that are given, and messages by sender and receiver (`matching`). The clocks are aligned on
    their ends (`clocks`); what the ends still disagree by is `residual_ns`.

    *Skew and transfer.* A collective cannot transfer before its last member has started it. What a member spends in it
    before is waiting for that member; the transfer is what the shortest member spends after. A member that ends before
    the last one starts (the root of a broadcast, a message that was buffered) waits for nobody.

    *Own work* of a rank in a step is the step less the waiting during which it computes nothing; waiting that overlaps
    with computing costs nothing. From it come imbalance and straggler (`straggler.find`).

    Raises
    ------
    ValueError
        No rank was given.
    """
    if not activities:
        raise ValueError("no traces to compare")
    numbers = numbered([each.rank for each in activities])
    order = sorted(range(len(activities)), key=lambda index: numbers[index])
    given = [activities[index] for index in order]
    numbers = [numbers[index] for index in order]
    tried = candidates(given, numbers)
    clocks = clocks_of(given, tried)
    matched = [each for each in confirmed(tried, given, numbers, clocks) if len(each.call)]
    meetings = [_meeting(each, given, clocks) for each in matched]
    residual = _residual(meetings, len(given))
    collectives = sorted(
        (each for meeting in meetings for each in _collectives(meeting, given, numbers)),
        key=lambda each: (min(each.start_ns), each.group, each.name),
    )
    waits, exposed = _waits(meetings, len(given))
    skews = np.concatenate([np.zeros(0, dtype=np.int64), *(meeting.skew for meeting in meetings)])
    waiting = [_waiting(meetings, given, place) for place in range(len(given))]
    common = sorted(set.intersection(*(set(each.steps.number) for each in given)))
    times = _Times.of(given, waiting, common)
    total = sum(len(each.calls) for each in given)
    joined = sum(each.call.size for each in matched)
    last = _last(meetings, len(given), max(residual, SKEW_ABOVE_NS))
    messages = any(each.message for each in matched)
    return RankFigures(
        ranks=tuple(
            Rank(
                rank=number,
                source=each.source,
                span_ns=each.span_ns,
                busy_ns=each.busy_ns,
                compute_ns=each.compute_ns,
                communication_ns=each.communication_ns,
                exposed_communication_ns=each.exposed_communication_ns,
                steps=len(each.steps),
                step_mean_ns=float(each.steps.window_ns.mean()) if len(each.steps) else 0.0,
                clock_offset_ns=clocks[place].offset,
                clock_drift=clocks[place].drift,
                waiting_ns=int(waits[place].sum()),
                exposed_waiting_ns=waiting[place].all.length,
                last=last[place],
                overlap=each.overlap,
                bubble_share=_share(waiting[place].messages, each) if messages else None,
                own_ns=tuple(times.own[:, place].tolist()),
            )
            for place, (number, each) in enumerate(zip(numbers, given, strict=True))
        ),
        collectives=tuple(collectives),
        unmatched=total - joined,
        residual_ns=residual,
        skew_median_ns=int(np.median(skews)) if len(skews) else 0,
        skew_max_ns=int(skews.max()) if len(skews) else 0,
        waits_ns=tuple(map(tuple, waits.tolist())),
        exposed_waits_ns=tuple(map(tuple, exposed.tolist())),
        step_numbers=tuple(common),
        straggler=straggler.find(times.own, times.window, common, numbers, times.classes, residual) if joined else None,
        imbalance=_imbalance(times.own),
        buckets=buckets_of(collectives),
        findings=_findings(given, joined, total),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Meeting:
    """The collectives of one `Matched` in time: one line each, one column per member, on the first rank's clock."""

    matched: Matched
    start: I64
    end: I64
    wait: I64
    """How long each waits for the last to start."""
    exposed: I64
    """The part of it in which it computes nothing."""

    @property
    def skew(self) -> I64:
        """Latest start less earliest."""
        return np.asarray(self.start.max(axis=1) - self.start.min(axis=1))


def _meeting(matched: Matched, ranks_: Sequence[RankActivity], clocks: Sequence[Clock]) -> _Meeting:
    start, end = matched.times(ranks_, clocks)
    arrived = start.max(axis=1, keepdims=True)
    wait = np.where(end >= arrived, arrived - start, 0)
    exposed = np.zeros_like(wait)
    for column, place in enumerate(matched.places):
        own = ranks_[place]
        since = own.calls.start[matched.call[:, column]]
        exposed[:, column] = Intervals(own.exposed_start, own.exposed_end).within(since, since + wait[:, column])
    return _Meeting(matched, start, end, wait, exposed)


def _residual(meetings: Sequence[_Meeting], count: int) -> int:
    """Median disagreement of each rank's ends with those of the others in the same collectives, the worst rank's."""
    apart: list[list[I64]] = [[] for _ in range(count)]
    for meeting in meetings:
        if not meeting.matched.message:
            middle = meeting.end[:, :1] if meeting.end.shape[1] == 2 else np.median(meeting.end, axis=1, keepdims=True)
            for column, place in enumerate(meeting.matched.places):
                apart[place].append(np.abs(meeting.end[:, column] - middle[:, 0]).astype(np.int64))
    return max((int(np.median(np.concatenate(own))) for own in apart if own), default=0)


def _collectives(meeting: _Meeting, ranks_: Sequence[RankActivity], numbers: Sequence[int]) -> Iterator[Collective]:
    matched = meeting.matched
    first = ranks_[matched.places[0]]
    members = [ranks_[place].calls for place in matched.places]
    given = tuple(numbers[place] for place in matched.places)
    calls = matched.call.tolist()
    columns = (calls, meeting.start.tolist(), (meeting.end - meeting.start).tolist(), meeting.wait.tolist())
    for own, starts, lengths, waits in zip(*columns, strict=True):
        at = own[0]
        size, step = int(first.calls.bytes[at]), int(first.calls.step[at])
        pairs = list(zip(members, own, strict=True))
        yield Collective(
            name=first.calls.name[at],
            group=matched.group,
            start_ns=tuple(starts),
            duration_ns=tuple(lengths),
            ranks=given,
            kind=matched.kind,
            bytes=size if size >= 0 else None,
            group_size=max(int(first.calls.group_size[at]), len(given)),
            step=first.steps.number[step] if step >= 0 else None,
            row=tuple(int(calls.row[index]) for calls, index in pairs),
            exposed_ns=tuple(int(calls.exposed_ns[index]) for calls, index in pairs),
            wait_ns=tuple(waits),
        )


def _waits(meetings: Sequence[_Meeting], count: int) -> tuple[I64, I64]:
    """Who waited for whom, in all and while computing nothing, shape (ranks, ranks)."""
    whole, exposed = (np.zeros((count, count), dtype=np.int64) for _ in range(2))
    for meeting in meetings:
        places = np.array(meeting.matched.places, dtype=np.intp)
        last = places[meeting.start.argmax(axis=1)]
        for column, place in enumerate(places.tolist()):
            np.add.at(whole, (place, last), meeting.wait[:, column])
            np.add.at(exposed, (place, last), meeting.exposed[:, column])
    return whole, exposed


def _last(meetings: Sequence[_Meeting], count: int, above: int) -> list[int]:
    last = np.zeros(count, dtype=np.int64)
    for meeting in meetings:
        places = np.array(meeting.matched.places, dtype=np.intp)
        np.add.at(last, places[meeting.start.argmax(axis=1)], meeting.skew > above)
    found: list[int] = last.tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """When one rank waits for others and computes nothing, on its own clock: no moment twice."""

    all: Intervals
    messages: Intervals
    """In messages from rank to rank."""


def _waiting(meetings: Sequence[_Meeting], ranks_: Sequence[RankActivity], place: int) -> _Waiting:
    own = ranks_[place]
    exposed = Intervals(own.exposed_start, own.exposed_end)

    def union(chosen: Sequence[_Meeting]) -> Intervals:
        columns = [(meeting, meeting.matched.places.index(place)) for meeting in chosen]
        none = np.zeros(0, dtype=np.int64)
        calls = [own.calls.start[meeting.matched.call[:, column]] for meeting, column in columns]
        start = np.concatenate([none, *calls])
        wait = np.concatenate([none, *(meeting.wait[:, column] for meeting, column in columns)])
        return Intervals.union_of(start, start + wait).intersection(exposed)

    mine = [meeting for meeting in meetings if place in meeting.matched.places]
    return _Waiting(union(mine), union([meeting for meeting in mine if meeting.matched.message]))


def _share(waiting: Intervals, own: RankActivity) -> float:
    """Of a rank's steps."""
    total = int(own.steps.window_ns.sum())
    return int(waiting.within(own.steps.start, own.steps.end).sum()) / total if total else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """The steps that all ranks have, shape (steps, ranks)."""

    window: I64
    own: I64
    classes: Mapping[Cause, I64]
    """What own work consists of."""

    @classmethod
    def of(cls, ranks_: Sequence[RankActivity], waiting: Sequence[_Waiting], common: Sequence[int]) -> _Times:
        """Of ranks and their waiting."""
        columns: list[list[I64]] = []
        for each, waits in zip(ranks_, waiting, strict=True):
            steps = each.steps
            at = np.array([steps.number.index(number) for number in common], dtype=np.intp)
            idle = waits.all.within(steps.start, steps.end)
            transfer = steps.exposed_communication_ns - idle
            host = steps.host_ns + steps.exposed_copies_ns
            columns.append([each_[at] for each_ in (steps.window_ns, steps.compute_ns, steps.input_ns, transfer, host)])
        window, compute, input_, transfer, host = (
            np.stack(own, axis=1).reshape(len(common), len(ranks_)) for own in zip(*columns, strict=True)
        )
        own = compute + input_ + transfer + host
        return cls(window, own, {"compute": compute, "input": input_, "communication": transfer, "host": host})


def _imbalance(own: I64) -> float | None:
    means = own.mean(axis=1) if len(own) else np.zeros(0)
    return float((own.max(axis=1) / means).mean()) if len(own) and means.min() > 0 else None


def _findings(ranks_: Sequence[RankActivity], matched: int, total: int) -> tuple[str, ...]:
    found = []
    worlds = sorted({each.world_size for each in ranks_ if each.world_size is not None})
    if len(worlds) > 1:
        found.append(f"the traces are from jobs of different sizes: {', '.join(map(str, worlds))} ranks")
    elif worlds and worlds[0] > len(ranks_):
        found.append(f"only {len(ranks_)} of {worlds[0]} ranks are given: a missing rank may be the slowest")
    told = [each.rank for each in ranks_ if each.rank is not None]
    if len(told) < len(ranks_):
        found.append("not all traces have a rank number, so ranks are numbered in the order of the traces")
    elif len(set(told)) < len(ranks_):
        found.append("several traces have the same rank number, so ranks are numbered in the order of the traces")
    if total and not matched and len(ranks_) > 1:
        found.append("the skew between ranks is unknown, because no collective runs on all ranks")
    elif matched < total and len(ranks_) > 1:
        found.append(f"{total - matched} of {total} collectives were not found on all ranks")
    return tuple(found)
