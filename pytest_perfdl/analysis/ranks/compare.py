"""All ranks of a job together: matched collectives, waits, overlap, imbalance, and the straggler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks.activity import RankActivity, StepTimes, activity, rank_of
from pytest_perfdl.analysis.ranks.clocks import align_clocks, candidates, confirm
from pytest_perfdl.analysis.ranks.figures import (
    LEAST_STEPS,
    Cause,
    Collective,
    Rank,
    RankFigures,
    Straggler,
    find_buckets,
)
from pytest_perfdl.analysis.ranks.meetings import (
    Meeting,
    Waiting,
    by_step,
    count_last,
    find_residual,
    find_roles,
    find_waiting,
    make_meeting,
)
from pytest_perfdl.trace.model import F64, I64, Trace

# The rank that makes the others wait step after step, since when, and because of what.


LEAST_SHARE = 0.02
"""Of a step; what costs less is no straggler, as ranks are never equally fast."""

LONE_SHARE = 0.1
"""The same for one class of a rank that no other has equally much of, where it was no less before: a stage may have
more to do by its nature. From 10 % on Lin et al. call a job straggling."""

NOISE = 5.0
"""How many standard errors a rank's lateness must be above zero: with 1024 ranks and 100 steps to begin at there are
10^5 chances for a false one, each less likely than 3e-7."""

RISE = 2.0
"""By which factor the level has to rise for the rank not to have been a straggler before."""

SPLITS = 64
"""Steps at which a change of the level is looked for, spread over all; then those around the best one."""

MOSTLY = 0.6
"""Share of the steps since then in which the rank has most work of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What each rank did in each step, arrays of shape (steps, ranks), nanoseconds."""

    window_ns: I64
    classes: Mapping[Cause, I64]
    """Own work by class: time in which the rank computes, waits for input, or its host holds it up."""
    late_host_ns: I64
    """What the host has not launched while something is communicated, and no other rank is waited for. No class of the
    step: there it is exposed communication."""
    held_ns: I64
    """By how much it starts collectives later than the last of the others, summed over the step."""
    link_late_ns: I64
    """By how much it ends collectives later than the first, and messages to it take longer than others, summed."""
    link_excess_ns: I64
    """How much longer what it is the last to end is for it: see `meetings.by_step`."""
    roles: Mapping[Cause, tuple[int, ...]]
    """By class: ranks with the same number have equally much of it to do; stages of a pipeline may not."""

    @property
    def own_ns(self) -> I64:
        """Own work: the step without exposed communication."""
        return np.asarray(sum(self.classes.values()))


def find(evidence: Evidence, numbers: Sequence[int], ranks: Sequence[int], *, least_ns: int) -> Straggler | None:
    """The straggler, or `None` where the ranks are balanced or the figures do not allow to say.

    Synchronous ranks have equally long steps, so what tells the one that others wait for is not its step. Two series of
    each rank are looked at. Its *own work* (computing, input, and what the host or copies hold up), class by class less
    the median of the others that have equally much to do; the cause is then the class that it has most in excess. And
    by how much it ends collectives *later* than others, which is what a slow link does.

    The rule has three parts, like the detection of Greyhound (Wu et al., USENIX ATC 2025): the level of a series may
    change once, at the step that fits best (least absolute deviations); the change is verified for each rank, by its
    size against the noise of all ranks about their levels, by the share of the steps in which the rank is ahead of all
    others, and by its cost, against a least share of the step; and the slow part is told by comparing the rank with the
    others. Of several that are verified the costliest is named.

    *Cost* is what the step would be shorter with the next slowest rank in the straggler's place (a what-if of one rank,
    as in Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025): of own work
    what it has more than any other rank, at most by how much it holds up collectives; of a link its excess.

    Parameters
    ----------
    evidence
        Of the steps that all ranks have.
    numbers, ranks
        Numbers of the steps and of the ranks.
    least_ns
        A cost below this is no straggling, since clocks do not tell it.
    """
    steps, count = evidence.window_ns.shape
    if steps < LEAST_STEPS or count < 2:
        return None
    # The first stage of a pipeline launches late by its nature: no waiting for a stage before hides its Python.
    late_host = evidence.late_host_ns * (len(set(evidence.roles["host"])) == 1)
    own = evidence.own_ns + late_host
    classes: dict[Cause, I64] = {**evidence.classes, "host": evidence.classes["host"] + late_host}
    step_ns = float(np.median(evidence.window_ns))
    excess = {cause: _excess(each, evidence.roles[cause], LONE_SHARE * step_ns) for cause, each in classes.items()}
    late = np.asarray(sum(excess.values()))
    alike = all(len(set(evidence.roles[cause])) == 1 for cause in excess)
    cost = np.minimum(own - _others(own, np.max) if alike else late, evidence.held_ns)
    least_cost = max(least_ns, LEAST_SHARE * step_ns)
    work = _find_persistent(late, cost, least_cost)
    behind = evidence.link_late_ns - _others(evidence.link_late_ns, np.median)
    link = _find_persistent(behind, evidence.link_excess_ns.astype(np.float64), least_cost)
    found = max(work, link, key=lambda each: each[0])
    cost_ns, place, first = found
    if not cost_ns:
        return None
    cause: Cause = "communication"
    if found is work:
        cause = max(excess, key=lambda each: float(np.median(excess[each][first:, place])))
    return Straggler(ranks[place], numbers[first], cause, round(cost_ns))


def _excess(values: I64, roles: Sequence[int], least: float) -> F64:
    """What each rank has more of a class than the median of the others that have equally much of it to do.

    One that no other rank has as much as is compared with all others, less what it has by its nature.
    """
    found = np.empty(values.shape)
    for place, role in enumerate(roles):
        others = [other for other in range(len(roles)) if other != place]
        peers = [other for other in others if roles[other] == role]
        found[:, place] = values[:, place] - np.median(values[:, peers or others], axis=1)
        if not peers:
            found[:, place] -= _nature(found[:, place], least)
    return found


def _nature(excess: F64, least: float) -> float:
    """What a stage of its own has more than others because it has more to do: as much as before its level changed.

    From `least` on it is too much to be that. Fewer than `LEAST_STEPS` steps before do not show that it has less to do:
    in the first one, devices may still run what was launched before.
    """
    first = _since(excess, 1.0)
    level = float(np.median(excess[: first or None]))
    return 0.0 if level >= least else max(level, 0.0) if first < LEAST_STEPS else level


def _find_persistent(late: F64, cost: F64, least: float) -> tuple[float, int, int]:
    """The rank that is late from one step on in all that follow, by more than noise and at a cost; the costliest.

    Its cost, its place, and the index of that step; no cost without such a rank.
    """
    steps, count = late.shape
    since = [_since(late[:, place]) for place in range(count)]
    left = np.concatenate([_about_levels(late[:, place], first) for place, first in enumerate(since)])
    # A level per rank, or two, is fitted: what is left is that much smaller than the noise.
    noise = 1.4826 * float(np.median(np.abs(left))) * float(np.sqrt(steps / (steps - 1)))
    most = _others(late, np.max)
    found = []
    for place, first in enumerate(since):
        behind = late[first:, place]
        verified = (
            np.count_nonzero(behind * 2 > np.median(behind)) >= LEAST_STEPS
            and float(np.median(behind)) >= NOISE * 1.2533 * noise / float(np.sqrt(len(behind)))
            and float(np.mean(behind > most[first:, place])) >= MOSTLY
        )
        costs = float(np.median(cost[first:, place]))
        if verified and costs >= least:
            found.append((costs, place, first))
    return max(found, key=lambda each: each[0], default=(0.0, 0, 0))


def _others(values: npt.NDArray[Any], summary: Callable[..., Any]) -> F64:
    """For each rank a summary of the other ranks' values in each step."""
    columns = range(values.shape[1])
    found = [summary(np.delete(values, column, axis=1), axis=1) for column in columns]
    return np.stack(found, axis=1).astype(np.float64)


def _since(late: F64, rise: float = RISE) -> int:
    """Step from which on the level is another, 0 where one level fits as well, or the rank was late before.

    A second level has to reduce the absolute deviations by more than chance would: by a third. What is above the
    `LEAST_STEPS`-th largest value was there in fewer steps, so that it is no level, but a hiccup.
    """
    late = np.minimum(late, np.sort(late)[-LEAST_STEPS])
    most = len(late) - LEAST_STEPS
    apart = max(most // SPLITS, 1)
    tried = {split: _two_levels(late, split, rise) for split in range(1, most + 1, apart)}
    if tried and apart > 1:
        near = min(tried, key=lambda split: tried[split])
        around = range(max(near - apart + 1, 1), min(near + apart, most + 1))
        tried |= {split: _two_levels(late, split, rise) for split in around}
    best = min(tried, key=lambda split: tried[split], default=0)
    one = float(np.abs(late - np.median(late)).sum())
    return best if tried and tried[best] < one * 2 / 3 else 0


def _two_levels(late: F64, split: int, rise: float) -> float:
    """Absolute deviations from a level before and one after; infinite where it does not rise by a factor."""
    before, after = np.median(late[:split]), np.median(late[split:])
    if after <= max(rise * before, before, 0.0):
        return float("inf")
    return float(np.abs(late[:split] - before).sum() + np.abs(late[split:] - after).sum())


def _about_levels(late: F64, first: int) -> F64:
    parts = [late[:first], late[first:]]
    return np.concatenate([part - np.median(part) for part in parts if len(part)])


# All ranks of a job together: matched collectives, waits, overlap, imbalance, and the straggler.


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
    members of their group that are given, and messages by sender and receiver (`clocks.candidates`). The clocks
    are aligned on their ends (`clocks.align_clocks`); what the ends still disagree by is `residual_ns`.

    *Skew and transfer.* A collective cannot transfer before its last member has started it. What a member spends in it
    before is waiting for that member; the transfer is what the shortest member spends after. A member that ends before
    the last one starts (the root of a broadcast, a message that was buffered) waits for nobody.

    *Own work* of a rank in a step is the step less the waiting during which it computes nothing; waiting that overlaps
    with computing costs nothing. From it come imbalance and straggler (`compare.find`).

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
    clocks = align_clocks(given, tried)
    matched = [each for each in confirm(tried, given, clocks) if len(each.call)]
    meetings = [make_meeting(each, given, clocks) for each in matched]
    residual = find_residual(meetings, len(given))
    collectives = sorted(
        (each for meeting in meetings for each in _collectives(meeting, given, numbers)),
        key=lambda each: (min(each.start_ns), each.group, each.name),
    )
    skews = np.concatenate([np.zeros(0, dtype=np.int64), *(meeting.skew for meeting in meetings)])
    waiting = [find_waiting(meetings, given, place) for place in range(len(given))]
    common = sorted(set.intersection(*(set(each.steps.number) for each in given)))
    evidence = _evidence(given, meetings, waiting, common)
    total = sum(len(each.calls) for each in given)
    joined = sum(each.call.size for each in matched)
    unsure = max(residual, SKEW_ABOVE_NS)
    last = count_last(meetings, len(given), unsure)
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
                waiting_ns=int(waiting[place].whole_ns.sum()),
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
        waits_ns=tuple(tuple(each.whole_ns.tolist()) for each in waiting),
        exposed_waits_ns=tuple(tuple(each.exposed_ns.tolist()) for each in waiting),
        step_numbers=tuple(common),
        straggler=find(evidence, common, numbers, least_ns=unsure) if joined else None,
        imbalance=_find_imbalance(evidence.own_ns),
        buckets=find_buckets(collectives),
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
) -> Evidence:
    """What the straggler is found by, in the steps that all ranks have."""
    known = [{number: at for at, number in enumerate(each.steps.number)} for each in ranks_]
    places = [np.array([own[number] for number in common], dtype=np.intp) for own in known]

    def column(values: Callable[[StepTimes], I64]) -> I64:
        return np.stack([values(each.steps)[own] for each, own in zip(ranks_, places, strict=True)], axis=1)

    def late_host(place: int) -> I64:
        own, at = ranks_[place], places[place]
        late = own.late.difference(waiting[place].all)
        return np.asarray(late.within(own.steps.start[at], own.steps.end[at]))

    held, late, excess = by_step(meetings, ranks_, common)
    return Evidence(
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
        roles=find_roles(ranks_),
    )


def _parts(evidence: Evidence, place: int) -> Mapping[Cause, float]:
    """Mean nanoseconds of a common step of one rank, by class."""
    if not len(evidence.window_ns):
        return {}
    parts: dict[Cause, float] = {name: float(ns[:, place].mean()) for name, ns in evidence.classes.items()}
    return parts | {"communication": float((evidence.window_ns - evidence.own_ns)[:, place].mean())}


def _find_imbalance(own: I64) -> float | None:
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
