"""What to add to the times of each rank so that all are on one clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.matching import Matched, together
from pytest_perfdl.trace.model import I64

OFFSETS = 101
"""Differences of collectives' ends that are tried as the offset between two clocks, spread over all of them."""

AS_GOOD = 0.9
"""Two ranks of one host share a clock if so large a part of the collectives that the best offset has running together
do so without any."""


def offsets_of(ranks: Sequence[RankActivity], matched: Sequence[Matched]) -> list[int]:
    """Nanoseconds to add to each rank's times to get the first rank's.

    `baseTimeNanoseconds` ties a trace to a host's clock, and hosts agree only to milliseconds. A collective ends
    on all ranks nearly at once, so clocks are aligned on ends: by the difference that lets most calls overlap, then by
    the median over the calls that do. Ranks are aligned one after the other, the one with most calls in common with
    those that are already aligned first; messages count only where ranks share no collective. Ranks of one host
    (`host_name`) have one clock, and no offset, unless their collectives say otherwise.

    A rank without anything in common with the others keeps its own clock.
    """
    offsets = [0] * len(ranks)
    done, left = [0] if ranks else [], list(range(1, len(ranks)))
    shared = np.zeros((2, len(ranks), len(ranks)), dtype=np.int64)
    for each in matched:
        grid = np.ix_([int(each.message)], each.places, each.places)
        shared[grid] += len(each.call)
    while left:
        counts = [(int(shared[0, place][done].sum()), int(shared[1, place][done].sum()), -place) for place in left]
        place = left[counts.index(max(counts))]
        offsets[place] = _offset(ranks, matched, offsets, done, place)
        done.append(place)
        left.remove(place)
    return offsets


def _offset(
    ranks: Sequence[RankActivity], matched: Sequence[Matched], offsets: Sequence[int], done: Sequence[int], place: int
) -> int:
    pairs = [_against(ranks, each, offsets, done, place) for each in matched if place in each.places]
    own = [pair for message, pair in pairs if pair is not None and not message]
    own = own or [pair for _, pair in pairs if pair is not None]
    if not own:
        return 0
    start, end = (np.concatenate(each) for each in zip(*own, strict=True))
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
    most = np.count_nonzero(_overlapping(start, end, best))
    for known in done:
        same_host = ranks[known].host and ranks[known].host == ranks[place].host
        if same_host and np.count_nonzero(_overlapping(start, end, offsets[known])) >= AS_GOOD * most:
            return offsets[known]
    return best + _typical(difference[_overlapping(start, end, best)] - best)


def _against(
    ranks: Sequence[RankActivity], each: Matched, offsets: Sequence[int], done: Sequence[int], place: int
) -> tuple[bool, tuple[I64, I64] | None]:
    """Starts and ends of what those aligned and this rank have in common, two columns each."""
    column = each.places.index(place)
    known = [at for at, other in enumerate(each.places) if other in done]
    if not known:
        return each.message, None
    start, end = each.times(ranks, offsets)
    latest, typical = start[:, known].max(axis=1), np.median(end[:, known] - end[:, known[:1]], axis=1)
    ends = end[:, known[0]] + typical.astype(np.int64)
    return each.message, (np.stack((latest, start[:, column]), axis=1), np.stack((ends, end[:, column]), axis=1))


def _overlapping(start: I64, end: I64, offset: int) -> npt.NDArray[np.bool_]:
    """Which collectives run at the same time on two ranks if the second's clock is moved."""
    move = np.array([0, offset], dtype=np.int64)
    return together(start + move, end + move)


def _typical(values: I64) -> int:
    return round(float(np.median(values))) if len(values) else 0
