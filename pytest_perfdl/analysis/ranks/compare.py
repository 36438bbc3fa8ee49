"""All ranks of a job together: matched collectives, waits, overlap, imbalance, and the straggler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks import straggler
from pytest_perfdl.analysis.ranks.activity import RankActivity, StepTimes, activity, rank_of
from pytest_perfdl.analysis.ranks.buckets import buckets_of
from pytest_perfdl.analysis.ranks.clocks import clocks_of
from pytest_perfdl.analysis.ranks.figures import Cause, Collective, Rank, RankFigures
from pytest_perfdl.analysis.ranks.matching import candidates, confirmed
from pytest_perfdl.analysis.ranks.meetings import (
    Meeting,
    Waiting,
    by_step,
    last_of,
    meeting_of,
    residual_of,
    roles_of,
    waiting_of,
    waits_of,
)
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
    matched = [each for each in confirmed(tried, given, clocks) if len(each.call)]
    meetings = [meeting_of(each, given, clocks) for each in matched]
    residual = residual_of(meetings, len(given))
    collectives = sorted(
        (each for meeting in meetings for each in _collectives(meeting, given, numbers)),
        key=lambda each: (min(each.start_ns), each.group, each.name),
    )
    waits, exposed = waits_of(meetings, given)
    skews = np.concatenate([np.zeros(0, dtype=np.int64), *(meeting.skew for meeting in meetings)])
    waiting = [waiting_of(meetings, given, place) for place in range(len(given))]
    common = sorted(set.intersection(*(set(each.steps.number) for each in given)))
    evidence = _evidence(given, meetings, waiting, common)
    total = sum(len(each.calls) for each in given)
    joined = sum(each.call.size for each in matched)
    unsure = max(residual, SKEW_ABOVE_NS)
    last = last_of(meetings, len(given), unsure)
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
                own_ns=tuple(evidence.own_ns[:, place].tolist()),
                parts_ns=_parts(evidence, place),
                clock_at_ns=clocks[place].at,
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
        straggler=straggler.find(evidence, common, numbers, least_ns=unsure) if joined else None,
        imbalance=_imbalance(evidence.own_ns),
        buckets=buckets_of(collectives),
        findings=_findings(given, joined, total),
    )


def _collectives(meeting: Meeting, ranks_: Sequence[RankActivity], numbers: Sequence[int]) -> Iterator[Collective]:
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


def _share(waiting: Intervals, own: RankActivity) -> float:
    """Of a rank's steps."""
    total = int(own.steps.window_ns.sum())
    return int(waiting.within(own.steps.start, own.steps.end).sum()) / total if total else 0.0


def _evidence(
    ranks_: Sequence[RankActivity], meetings: Sequence[Meeting], waiting: Sequence[Waiting], common: Sequence[int]
) -> straggler.Evidence:
    """What the straggler is found by, in the steps that all ranks have."""
    known = [{number: at for at, number in enumerate(each.steps.number)} for each in ranks_]
    places = [np.array([own[number] for number in common], dtype=np.intp) for own in known]

    def column(values: Callable[[StepTimes], I64]) -> I64:
        return np.stack([values(each.steps)[own] for each, own in zip(ranks_, places, strict=True)], axis=1)

    def late_host(place: int) -> I64:
        own, at = ranks_[place], places[place]
        late = Intervals(own.late_start, own.late_end).difference(waiting[place].all)
        return np.asarray(late.within(own.steps.start[at], own.steps.end[at]))

    held, late, excess = by_step(meetings, ranks_, common)
    return straggler.Evidence(
        window_ns=column(lambda steps: steps.window_ns),
        classes={
            "compute": column(lambda steps: steps.compute_ns),
            "input": column(lambda steps: steps.input_ns),
            "host": column(lambda steps: steps.host_ns + steps.exposed_copies_ns),
        },
        late_host_ns=np.stack([late_host(place) for place in range(len(ranks_))], axis=1),
        held_ns=held,
        link_late_ns=late,
        link_excess_ns=excess,
        roles=roles_of(ranks_),
    )


def _parts(evidence: straggler.Evidence, place: int) -> Mapping[Cause, float]:
    """Mean nanoseconds of a common step of one rank, by class."""
    if not len(evidence.window_ns):
        return {}
    parts: dict[Cause, float] = {name: float(ns[:, place].mean()) for name, ns in evidence.classes.items()}
    return parts | {"communication": float((evidence.window_ns - evidence.own_ns)[:, place].mean())}


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
