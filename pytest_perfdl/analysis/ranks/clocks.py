"""What to add to the times of each rank so that all are on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.matching import Clock, Matched, together
from pytest_perfdl.trace.model import F64, I64, Rows

Mask = npt.NDArray[np.bool_]

STRETCHES = 20
"""Parts of the trace between whose medians a drift's slopes are taken."""

OFFSETS = 101
"""Differences of collectives' ends that are tried as the offset between two clocks, spread over all of them."""

COMPARED = 1000
"""Calls that these are compared by, spread over all."""

AS_GOOD = 0.9
"""Two ranks of one host share a clock if so large a part of the collectives that the best offset has running together
do so without any."""


SMALL = 8
"""Calls whose bytes are less than the median's by this factor tell the clocks alone: over a slow link the ranks of a
large one do not end at once."""

LEAST_SMALL = 4
"""Fewer of them are too few to align clocks on."""

LEAST_DRIFTING = 12
"""Calls from which on a drift is looked for."""

FASTEST_DRIFT = 5e-4
"""Clocks of hosts drift by up to a few hundred microseconds per second; more is no drift."""

BETTER = 0.8
"""A drift is one if the ends disagree by at most so large a part of what they do without."""


def clocks_of(ranks: Sequence[RankActivity], matched: Sequence[Matched]) -> list[Clock]:
    """What turns each rank's times into those of the first rank.

    `baseTimeNanoseconds` ties a trace to a host's clock, and hosts agree only to milliseconds. A collective ends
    on all ranks nearly at once, so clocks are aligned on ends: by the difference that lets most calls overlap, then by
    the median over the calls that do, of small ones where there are some. Ranks are aligned one after the other, the
    one with most calls in common with those that are already aligned first; messages count only where ranks share no
    collective. A drift is fitted where it makes the ends agree better (median of the slopes between medians of
    stretches, after Theil and Sen). Ranks of one host (`host_name`) have one clock, unless their collectives say
    otherwise.

    A rank without anything in common with the others keeps its own clock.
    """
    clocks = [Clock()] * len(ranks)
    done, left = [0] if ranks else [], list(range(1, len(ranks)))
    shared = np.zeros((2, len(ranks), len(ranks)), dtype=np.int64)
    for each in matched:
        grid = np.ix_([int(each.message)], each.places, each.places)
        shared[grid] += len(each.call)
    while left:
        counts = [(int(shared[0, place][done].sum()), int(shared[1, place][done].sum()), -place) for place in left]
        place = left[counts.index(max(counts))]
        clocks[place] = _clock(ranks, matched, clocks, done, place)
        done.append(place)
        left.remove(place)
    return clocks


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """What aligned ranks (first column) and one that is not (second column) have in common."""

    start: I64
    end: I64
    bytes: I64
    certain: Mask
    own_end: I64
    """On the rank's own clock."""

    def overlapping(self, moved: I64) -> Mask:
        """Which run at the same time on both if this is added to the second's times."""
        move = np.stack((np.zeros_like(moved), moved), axis=1)
        return together(self.start + move, self.end + move) | self.certain

    def only(self, keep: Mask | Rows) -> _Pairs:
        """Some of them."""
        return _Pairs(self.start[keep], self.end[keep], self.bytes[keep], self.certain[keep], self.own_end[keep])


def _clock(
    ranks: Sequence[RankActivity], matched: Sequence[Matched], clocks: Sequence[Clock], done: Sequence[int], place: int
) -> Clock:
    mine = [each for each in matched if place in each.places and set(each.places).intersection(done)]
    chosen = [each for each in mine if not each.message] or mine
    if not chosen:
        return Clock()
    found = [_against(ranks, each, clocks, done, place) for each in chosen]
    pairs = _Pairs(*(np.concatenate([getattr(each, name) for each in found]) for name in _Pairs.__slots__))
    # Differences to one of the collectives are small enough for exact floats.
    difference = pairs.end[:, 0] - pairs.end[:, 1]
    every = np.ones_like(difference)
    best = _typical(difference - difference[0]) + int(difference[0])
    if not pairs.certain.all():
        some = np.unique(np.linspace(0, len(difference) - 1, COMPARED).astype(np.intp))
        best = _best(pairs.only(some), difference[some])
    most = np.count_nonzero(pairs.overlapping(every * best))
    for known in done:
        if ranks[known].host and ranks[known].host == ranks[place].host:
            moved = clocks[known].moved(pairs.own_end) - pairs.own_end
            if np.count_nonzero(pairs.overlapping(moved)) >= AS_GOOD * most:
                return clocks[known]
    keep = pairs.overlapping(every * best)
    return _fitted(pairs.only(keep), difference[keep], best)


def _best(pairs: _Pairs, difference: I64) -> int:
    """The offset that lets most calls overlap, and of several such the one that their ends agree best by."""
    tried = np.unique(difference)
    tried = tried[np.unique(np.linspace(0, len(tried) - 1, OFFSETS).astype(np.intp))]
    every = np.ones_like(difference)

    def quality(offset: int) -> tuple[int, int]:
        keep = pairs.overlapping(every * offset)
        return int(np.count_nonzero(keep)), -_typical(np.abs(difference - offset)[keep])

    best: int = max(tried.tolist(), key=quality)
    return best


def _fitted(pairs: _Pairs, difference: I64, about: int) -> Clock:
    known = pairs.bytes[pairs.bytes >= 0]
    small = (pairs.bytes >= 0) & (pairs.bytes * SMALL <= (np.median(known) if len(known) else 0))
    if np.count_nonzero(small) >= LEAST_SMALL:
        pairs, difference = pairs.only(small), difference[small]
    if not len(difference):
        return Clock(about)
    off = (difference - about).astype(np.float64)
    level = round(float(np.median(off)))
    at = int(pairs.own_end[0])
    time = (pairs.own_end - at).astype(np.float64)
    middle = float(np.median(time))
    if len(off) >= LEAST_DRIFTING and np.ptp(time) > 0:
        parts = np.array_split(np.argsort(time, kind="stable"), min(STRETCHES, len(off) // 3))
        x, y = (np.array([np.median(values[part]) for part in parts]) for values in (time, off))
        first, second = np.triu_indices(len(parts), 1)
        apart = x[second] > x[first]
        slopes = (y[second] - y[first])[apart] / (x[second] - x[first])[apart]
        slope = float(np.median(slopes)) if len(slopes) else 0.0
        fitted = off - slope * (time - middle)
        drifting = float(np.median(fitted))
        if abs(slope) <= FASTEST_DRIFT and _about(fitted, drifting) <= BETTER * _about(off, level):
            return Clock(about + round(drifting), slope, at + round(middle))
    return Clock(about + level, 0.0, at)


def _about(values: F64, middle: float) -> float:
    return float(np.median(np.abs(values - middle)))


def _against(
    ranks: Sequence[RankActivity], each: Matched, clocks: Sequence[Clock], done: Sequence[int], place: int
) -> _Pairs:
    column = each.places.index(place)
    known = [at for at, other in enumerate(each.places) if other in done]
    aligned = [clocks[other] if other in done else Clock() for other in range(len(ranks))]
    start, end = each.times(ranks, aligned)
    typical = np.median(end[:, known] - end[:, known[:1]], axis=1).astype(np.int64)
    own = each.call[:, column]
    return _Pairs(
        start=np.stack((start[:, known].max(axis=1), start[:, column]), axis=1),
        end=np.stack((end[:, known[0]] + typical, end[:, column]), axis=1),
        bytes=ranks[place].calls.bytes[own],
        certain=np.full(len(own), each.certain),
        own_end=ranks[place].calls.end[own],
    )


def _typical(values: I64) -> int:
    return round(float(np.median(values))) if len(values) else 0
