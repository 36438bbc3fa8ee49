"""Several traces as the ranks of one job: who starts collectives late, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.communication import collective_annotation_rows, communication_kernels, covered
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.trace.model import I64, Category, Rows, Trace

OFFSETS = 101
"""Differences of collectives' ends that are tried as the offset between two clocks, spread over all of them."""

SHIFTS = 4
"""Collectives that one rank may have recorded and another not, at the beginning, when numbers differ."""

OVERLAP = 2
"""A collective runs on all ranks for at least one part in so many of the shortest rank's time; pairs that do not are
not the same one."""

SKEW_ABOVE_NS = 10_000
"""A skew below this is no straggling: ranks never start to the microsecond."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's own figures. Nanoseconds, unions over streams; `waiting_ns` over the matched collectives."""

    rank: int
    source: str
    span_ns: int
    """From the first start to the last end of device events; of operators and annotations where there are none."""
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    """Communication while no kernel computes; without device events the collectives' time on the host."""
    steps: int
    step_mean_ns: float
    """Mean window of the steps, 0 without any."""
    clock_offset_ns: int
    """What to add to this rank's times to get the first rank's."""
    waiting_ns: int
    """Time in matched collectives beyond the shortest rank's: waiting for others."""
    last: int
    """Matched collectives that this rank started last, by more than the clocks' residual."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on all ranks, in the order of the ranks."""

    name: str
    group: str
    """Process group; where the trace does not name it the number of the stream among those with communication, or
    `host`."""
    start_ns: tuple[int, ...]
    """Starts, on the first rank's clock."""
    duration_ns: tuple[int, ...]

    @property
    def skew_ns(self) -> int:
        """Latest start less earliest."""
        return max(self.start_ns) - min(self.start_ns)


@dataclass(frozen=True, slots=True)
class RankFigures:
    """The ranks of one job, in the order of their numbers."""

    ranks: tuple[Rank, ...]
    collectives: tuple[Collective, ...]
    """Those found on all ranks, running at the same time on all of them, in the order of time."""
    unmatched: int
    """Collectives, summed over ranks, that are not among `collectives`: of other groups, or cut off."""
    residual_ns: int
    """Median disagreement of matched collectives' ends after aligning the clocks, the worst rank's; skews below
    say nothing."""
    skew_median_ns: int
    skew_max_ns: int
    straggler: int | None
    """The rank that is last most often; `None` if none is, or two are equally often."""
    findings: tuple[str, ...]
    """One line each on what limits these figures."""


class _Group(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="Process Group Name", default="")
    sequence: int = msgspec.field(name="Seq", default=-1)


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Collectives of one kind in one group of one rank, by start, on the rank's own clock."""

    start: I64
    end: I64
    sequence: tuple[int, ...]
    """`Seq` of each, empty if one is missing or occurs twice."""


_Key = tuple[str, str]


def ranks(traces: Sequence[Trace]) -> RankFigures:
    """Compare the ranks of one job.

    A rank's number is `distributedInfo`'s where all have one and no two the same, else its place among `traces`.
    Collectives are the communication kernels (on ranks without device events the collectives' annotations). They are
    matched by process group (else by stream), name and `Seq` where they have it, else by order.

    `baseTimeNanoseconds` ties a trace to a host's clock, and hosts agree only to milliseconds. A collective ends
    on all ranks nearly at once, so clocks are aligned on ends: by the difference that lets most pairs overlap, then by
    the median over the pairs that do. Pairs that then hardly overlap are not the same collective, and are not matched.
    What the ends still disagree by is `residual_ns`. A rank's waiting in a collective is its duration less that
    of the shortest rank, which came last.

    Raises
    ------
    ValueError
        No trace was given.
    """
    if not traces:
        raise ValueError("no traces to compare")
    numbers = rank_numbers(traces)
    order = sorted(range(len(traces)), key=lambda index: numbers[index])
    traces = [traces[index] for index in order]
    numbers = [numbers[index] for index in order]
    calls = [_collectives(trace) for trace in traces]
    total = sum(len(found.start) for own in calls for found in own.values())
    candidates = _matched(calls)
    offsets = [0, *(_offset(candidates, rank) for rank in range(1, len(traces)))]
    collectives, residual = _aligned(candidates, offsets)
    starts = np.array([each.start_ns for each in collectives], dtype=np.int64).reshape(-1, len(traces))
    durations = np.array([each.duration_ns for each in collectives], dtype=np.int64).reshape(-1, len(traces))
    skews = starts.max(axis=1) - starts.min(axis=1)
    waiting = (durations - durations.min(axis=1, keepdims=True)).sum(axis=0)
    late = skews > max(residual, SKEW_ABOVE_NS)
    last = np.bincount(starts[late].argmax(axis=1), minlength=len(traces))
    most = np.flatnonzero(last == last.max())
    return RankFigures(
        ranks=tuple(
            _rank(trace, number, offset, wait, count)
            for trace, number, offset, wait, count in zip(
                traces, numbers, offsets, waiting.tolist(), last.tolist(), strict=True
            )
        ),
        collectives=collectives,
        unmatched=total - len(collectives) * len(traces),
        residual_ns=residual,
        skew_median_ns=int(np.median(skews)) if len(skews) else 0,
        skew_max_ns=int(skews.max()) if len(skews) else 0,
        straggler=numbers[most[0]] if late.any() and len(most) == 1 else None,
        findings=_findings(traces, len(collectives), total),
    )


def rank_numbers(traces: Sequence[Trace]) -> list[int]:
    """The rank of each: as `distributedInfo` says where all have one and no two the same, else its place."""
    found = [info.get("rank") if isinstance(info, dict) else None for info in map(_distributed, traces)]
    numbers = [number for number in found if isinstance(number, int)]
    return numbers if len(set(numbers)) == len(traces) else list(range(len(traces)))


def _distributed(trace: Trace) -> object:
    return trace.metadata.get("distributedInfo")


def _collectives(trace: Trace) -> dict[_Key, _Calls]:
    rows = trace.rows(Category.KERNEL)
    rows = rows[communication_kernels(trace)[rows]]
    on_device = len(trace.device_rows()) > 0
    if not on_device:
        rows = collective_annotation_rows(trace)
        rows = rows[trace.category[rows] == Category.USER_ANNOTATION]
    groups = trace.decode_args(rows, _Group)
    streams = {tid: str(number) for number, tid in enumerate(dict.fromkeys(trace.tid[rows].tolist()))}
    found: defaultdict[_Key, list[tuple[int, int]]] = defaultdict(list)
    for row, group, tid in zip(rows.tolist(), groups, trace.tid[rows].tolist(), strict=True):
        # Which thread of the host runs a collective is chance.
        place = f"stream {streams[tid]}" if on_device else "host"
        label = group.name or place
        found[label, trace.name_of(row).partition("(")[0]].append((row, group.sequence))
    return {key: _calls(trace, own) for key, own in found.items()}


def _calls(trace: Trace, found: list[tuple[int, int]]) -> _Calls:
    rows: Rows = np.array([row for row, _ in found], dtype=np.intp)
    sequence = tuple(number for _, number in found)
    known = min(sequence) >= 0 and len(set(sequence)) == len(sequence)
    return _Calls(trace.start[rows] + trace.base_ns, trace.end[rows] + trace.base_ns, sequence if known else ())


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Collectives of one key that may be the same: starts and ends, one row per collective, one column per rank."""

    key: _Key
    start: I64
    end: I64


def _matched(calls: list[dict[_Key, _Calls]]) -> list[_Candidates]:
    """What all ranks have, paired up by `Seq` or by order."""
    found = []
    for key, first in calls[0].items():
        own = [rank[key] for rank in calls if key in rank]
        if len(own) < len(calls):
            continue
        if all(each.sequence for each in own):
            common = sorted(set(first.sequence).intersection(*(each.sequence for each in own)))
            places = [[place[number] for number in common] for place in map(_places, own)]
        else:
            places = _by_order(own)
        pairs = list(zip(own, places, strict=True))
        start = np.stack([each.start[place] for each, place in pairs], axis=1)
        found.append(_Candidates(key, start, np.stack([each.end[place] for each, place in pairs], axis=1)))
    return found


def _places(calls: _Calls) -> dict[int, int]:
    return {number: place for place, number in enumerate(calls.sequence)}


def _by_order(own: list[_Calls]) -> list[list[int]]:
    """Places that belong together: the nth with the nth, where numbers differ shifted so that ends agree best."""
    count = min(len(each.start) for each in own)
    shortest = next(each for each in own if len(each.start) == count)
    places = []
    for each in own:
        shifts = range(min(SHIFTS, len(each.start) - count) + 1)
        spread = [_spread(each.end[shift : shift + count] - shortest.end) for shift in shifts]
        best = spread.index(min(spread))
        places.append(list(range(best, best + count)))
    return places


def _spread(values: I64) -> float:
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def _offset(candidates: list[_Candidates], rank: int) -> int:
    """What to add to a rank's times to get the first rank's."""
    if not candidates or not any(len(each.start) for each in candidates):
        return 0
    start = np.concatenate([each.start[:, [0, rank]] for each in candidates])
    end = np.concatenate([each.end[:, [0, rank]] for each in candidates])
    # Differences to one of the collectives are small enough for exact floats.
    difference = end[:, 0] - end[:, 1]
    tried = np.unique(difference)
    tried = tried[np.unique(np.linspace(0, len(tried) - 1, OFFSETS).astype(np.intp))]
    best: int = max(
        tried.tolist(),
        key=lambda offset: (
            np.count_nonzero(_overlapping(start, end, offset)),
            -_typical(np.abs(difference - offset)[_overlapping(start, end, offset)]),
        ),
    )
    return best + _typical(difference[_overlapping(start, end, best)] - best)


def _overlapping(start: I64, end: I64, offset: int) -> npt.NDArray[np.bool_]:
    """Which collectives run at the same time on two ranks if the second's clock is moved."""
    move = np.array([0, offset], dtype=np.int64)
    return _together(start + move, end + move)


def _together(start: I64, end: I64) -> npt.NDArray[np.bool_]:
    """Which collectives run on all ranks at once long enough to be one: see `OVERLAP`."""
    shared = end.min(axis=1) - start.max(axis=1)
    found: npt.NDArray[np.bool_] = (shared * OVERLAP >= (end - start).min(axis=1)) & (shared >= 0)
    return found


def _typical(values: I64) -> int:
    return round(float(np.median(values))) if len(values) else 0


def _aligned(candidates: list[_Candidates], offsets: list[int]) -> tuple[tuple[Collective, ...], int]:
    """The collectives that overlap on all ranks, and how far the ends of the worst rank are off typically."""
    moved = np.array(offsets, dtype=np.int64)
    found: list[Collective] = []
    apart = [np.zeros((0, len(offsets)), dtype=np.int64)]
    for each in candidates:
        start, end = each.start + moved, each.end + moved
        same = _together(start, end)
        apart.append((end - end[:, :1])[same])
        for begins, ends in zip(start[same].tolist(), end[same].tolist(), strict=True):
            lengths = tuple(end - start for start, end in zip(begins, ends, strict=True))
            found.append(Collective(each.key[1], each.key[0], tuple(begins), lengths))
    disagreement = np.abs(np.concatenate(apart))
    residual = int(np.median(disagreement, axis=0).max()) if len(disagreement) else 0
    return tuple(sorted(found, key=lambda each: (min(each.start_ns), each.group, each.name))), residual


def _rank(trace: Trace, number: int, offset: int, waiting: int, last: int) -> Rank:
    joined = launches(trace)
    windows = steps_of(trace, joined).windows
    is_communication = communication_kernels(trace)[joined.device]
    is_kernel = trace.category[joined.device] == Category.KERNEL
    compute = covered(trace, joined.device[is_kernel & ~is_communication])
    communication = covered(trace, joined.device[is_communication])
    busy = covered(trace, joined.device)
    rows = joined.device
    if len(rows) == 0:
        communication = covered(trace, collective_annotation_rows(trace))
        rows = trace.rows(Category.CPU_OP, Category.USER_ANNOTATION)
    return Rank(
        rank=number,
        source=trace.source,
        span_ns=int(trace.end[rows].max() - trace.start[rows].min()) if len(rows) else 0,
        busy_ns=busy.length,
        compute_ns=compute.length,
        communication_ns=communication.length,
        exposed_communication_ns=communication.difference(compute).length,
        steps=len(windows),
        step_mean_ns=sum(window.window_ns for window in windows) / len(windows) if windows else 0.0,
        clock_offset_ns=offset,
        waiting_ns=waiting,
        last=last,
    )


def _findings(traces: Sequence[Trace], matched: int, total: int) -> tuple[str, ...]:
    found = []
    sizes = [info.get("world_size") for info in map(_distributed, traces) if isinstance(info, dict)]
    worlds = sorted({size for size in sizes if isinstance(size, int)})
    if len(worlds) > 1:
        found.append(f"the traces are from jobs of different sizes: {', '.join(map(str, worlds))} ranks")
    elif worlds and worlds[0] > len(traces):
        found.append(f"only {len(traces)} of {worlds[0]} ranks are given: a missing rank may be the slowest")
    told = [info.get("rank") for info in map(_distributed, traces) if isinstance(info, dict)]
    told = [rank for rank in told if isinstance(rank, int)]
    if len(told) < len(traces):
        found.append("not all traces have a rank number, so ranks are numbered in the order of the traces")
    elif len(set(told)) < len(traces):
        found.append("several traces have the same rank number, so ranks are numbered in the order of the traces")
    if total and not matched and len(traces) > 1:
        found.append("the skew between ranks is unknown, because no collective runs on all ranks")
    elif matched * len(traces) < total and len(traces) > 1:
        found.append(f"{total - matched * len(traces)} of {total} collectives were not found on all ranks")
    return tuple(found)
