"""What the comparison of a job's ranks finds: plain frozen values, all times in integer nanoseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Cause = Literal["compute", "input", "communication", "host"]
"""What a straggler spends more time on than the other ranks do."""

LEAST_STEPS = 3
"""A rank that is late in fewer steps had a hiccup; a straggler is late from one step on in all that follow."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's own figures. Nanoseconds, unions over streams; `waiting_ns` over the matched collectives."""

    rank: int
    source: str
    span_ns: int
    """From the first start to the last end of device events; of operators and annotations where there are none."""
    busy_ns: int
    compute_ns: int
    """|U(compute)| over the whole trace; without device events 0."""
    communication_ns: int
    exposed_communication_ns: int
    """Communication while no kernel computes; without device events while the step's thread runs no operator."""
    steps: int
    step_mean_ns: float
    """Mean window of the steps, 0 without any."""
    clock_offset_ns: int
    """What to add to this rank's times to get the first rank's; in the middle of the trace where the clocks drift."""
    waiting_ns: int
    """Time in matched collectives until the last member came."""
    exposed_waiting_ns: int
    """The part of it in which nothing computes: what the waiting costs."""
    last: int
    """Matched collectives that this rank started last, by more than the clocks' residual."""
    overlap: float | None
    """Share of the communication that overlaps with computing, 0 to 1; `None` without communication."""
    bubble_share: float | None
    """Share of the steps in which this rank waits for what another sends it, or for the other to take what it sends,
    and computes nothing: the pipeline's bubble; `None` without messages between two ranks."""
    clock_drift: float
    """What the offset changes by per nanosecond: 1e-4 is 100 us per second; 0 where no drift shows."""
    own_ns: tuple[int, ...]
    """Own work in each common step (`RankFigures.step_numbers`): the window less exposed communication."""
    parts_ns: Mapping[Cause, float]
    """What a common step is made of on this rank, mean nanoseconds that add up to its window; "communication" is what
    nothing hides, waiting for other ranks included, and copies are "host"."""
    clock_at_ns: int
    """The moment, on this rank's own clock, at which `clock_offset_ns` holds; it matters where the clocks drift."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, or one message from rank to rank, on its members in the order of their numbers."""

    name: str
    """The kernel's or annotation's name, up to its first parenthesis."""
    group: str
    """Process group; where the trace does not name it the number of the stream among those with communication, or
    `host`."""
    start_ns: tuple[int, ...]
    """Starts, on the first rank's clock."""
    duration_ns: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    """Numbers of its members among the ranks that were given: two at least."""
    kind: str = ""
    """"all_reduce", "all_gather", "send", ...: see `calls.kind_of`. A message is of kind "send"; its ranks are sender
    and receiver, in this order."""
    bytes: int | None = None
    """As nccl-tests count them; `None` where the trace does not say: see `calls.Calls.bytes`."""
    group_size: int = 0
    """Ranks of the process group, whether their traces are given or not."""
    step: int | None = None
    """Number of the step that issued it on its first member, `None` outside of the steps."""
    row: tuple[int, ...] = ()
    """Row of each member's event in that rank's trace."""
    exposed_ns: tuple[int, ...] = ()
    """The part of each member's duration in which that rank computes nothing."""
    wait_ns: tuple[int, ...] = ()
    """How long each member waits for the last one to start; 0 for one that ends before that."""

    @property
    def last(self) -> int:
        """Number of the rank that starts last, the first of several."""
        return self.ranks[self.start_ns.index(max(self.start_ns))]

    @property
    def transfer_ns(self) -> int:
        """The shortest member's time after the last one started: what is left without the skew of arrivals."""
        arrived = max(self.start_ns)
        left = [start + length - arrived for start, length in zip(self.start_ns, self.duration_ns, strict=True)]
        return max(min(left), 0)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The nth collective of a kind in a group in every step, such as a bucket of gradients in DDP."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    """Its members among the ranks that were given."""
    index: int
    """Place among the collectives of this kind and group in the step, from 0, by order of issue."""
    steps: int
    """Steps that it was found in."""
    bytes: int | None
    transfer_ns: int
    """Median over the steps: see `Collective.transfer_ns`."""
    duration_ns: int
    """Median over steps and members: with waiting."""
    hidden_share: float
    """Share of its duration that overlaps with computing, over steps and members, 0 to 1."""
    bus_bandwidth: float | None
    """Bytes per second over the slowest link, as nccl-tests define it (its doc/PERFORMANCE.md): bytes / transfer times
    2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, 1 for others, n = size of the
    group; `None` where bytes are unknown or the transfer takes no measurable time."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for, step after step."""

    rank: int
    since_step: int
    """Number of the first step in which it is late (N of `ProfilerStep#N`)."""
    cause: Cause
    """Of which class of time the rank has most in excess of the other ranks in these steps."""
    cost_ns: int
    """How much shorter a step of the job would be without it, median over the steps since: see `compare.find`."""


@dataclass(frozen=True, slots=True)
class RankFigures:
    """The ranks of one job, in the order of their numbers."""

    ranks: tuple[Rank, ...]
    collectives: tuple[Collective, ...]
    """Those found on all of their members that are given, in the order of time; messages from rank to rank included."""
    unmatched: int
    """Communication calls, summed over ranks, that are not among `collectives`: of groups with one given member, cut
    off, or not at the same time."""
    residual_ns: int
    """Median disagreement of matched collectives' ends after aligning the clocks, the worst rank's; skews below
    say nothing."""
    skew_median_ns: int
    skew_max_ns: int
    waits_ns: tuple[tuple[int, ...], ...]
    """`waits_ns[i][j]`: time that rank i waited in collectives in which rank j came last; places, not numbers. Whether
    it computed meanwhile or not; `exposed_waits_ns` is what it cost."""
    exposed_waits_ns: tuple[tuple[int, ...], ...]
    """The same without the time in which rank i computed."""
    step_numbers: tuple[int, ...]
    """Steps that all ranks have, in order."""
    straggler: Straggler | None
    """`None` where the ranks are balanced, where what they differ by is below what the clocks and the noise allow to
    say, and where it is not `known`: see `compare.find`."""
    imbalance: float | None
    """Largest own work of a rank over the mean of all ranks, mean over the steps, at least 1; `None` without steps."""
    buckets: tuple[Bucket, ...]
    """In the order of the step."""
    findings: tuple[str, ...]
    """One line each on what limits these figures."""

    @property
    def known(self) -> bool:
        """Whether there is enough in common to the ranks for a straggler to be found."""
        return bool(self.collectives) and len(self.step_numbers) >= LEAST_STEPS

    @property
    def overlap(self) -> tuple[float | None, ...]:
        """Of each rank: see `Rank.overlap`."""
        return tuple(rank.overlap for rank in self.ranks)

    @property
    def most_often_last(self) -> int | None:
        """The rank that starts most collectives last; `None` if none does, or several equally many."""
        most = max((rank.last for rank in self.ranks), default=0)
        found = [rank.rank for rank in self.ranks if rank.last == most]
        return found[0] if most and len(found) == 1 else None


# The collectives of a step in their order, over all steps: how large, how long, how well hidden.


def find_buckets(collectives: Sequence[Collective]) -> tuple[Bucket, ...]:
    """The nth collective of each kind, group and set of members in every step, in the order of the step.

    Parameters
    ----------
    collectives
        By time; those outside of steps are left out.
    """
    counts: defaultdict[tuple[int | None, str, str, tuple[int, ...]], int] = defaultdict(int)
    found: defaultdict[tuple[str, str, tuple[int, ...], int], list[Collective]] = defaultdict(list)
    first: dict[tuple[str, str, tuple[int, ...], int], int] = {}
    place: defaultdict[int | None, int] = defaultdict(int)
    for each in collectives:
        if each.step is None:
            continue
        key = each.kind, each.group, each.ranks
        here = (each.step, *key)
        of = (*key, counts[here])
        counts[here] += 1
        found[of].append(each)
        first.setdefault(of, place[each.step])
        place[each.step] += 1
    return tuple(_bucket(*key, found[key]) for key in sorted(found, key=lambda key: (first[key], key)))


def _bucket(kind: str, group: str, ranks: tuple[int, ...], index: int, found: Sequence[Collective]) -> Bucket:
    durations = [length for each in found for length in each.duration_ns]
    exposed = sum(length for each in found for length in each.exposed_ns)
    transfer = round(float(np.median([each.transfer_ns for each in found])))
    sizes = {each.bytes for each in found}
    size = sizes.pop() if len(sizes) == 1 else None
    members = max(max(each.group_size for each in found), len(ranks))
    return Bucket(
        kind=kind,
        group=group,
        ranks=ranks,
        index=index,
        steps=len(found),
        bytes=size,
        transfer_ns=transfer,
        duration_ns=round(float(np.median(durations))),
        hidden_share=max(1 - exposed / sum(durations), 0.0) if sum(durations) else 0.0,
        bus_bandwidth=bus_bandwidth(kind, size, members, transfer),
    )


def bus_bandwidth(kind: str, size: int | None, ranks: int, transfer_ns: int) -> float | None:
    """Bytes per second over the slowest link: nccl-tests, doc/PERFORMANCE.md.

    With n ranks, bytes / time times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, and
    1 for broadcast, reduce, send and receive. `None` where bytes or time are unknown or zero.

    >>> bus_bandwidth("all_reduce", 1000, 4, 500)
    3000000000.0
    """
    if not size or transfer_ns <= 0 or ranks < 2:
        return None
    factor = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}.get(kind)
    return size / transfer_ns * 1e9 * (factor * (ranks - 1) / ranks if factor is not None else 1.0)
