"""What each rank of a job does when, on one clock: the rows of a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.figures import Rank, RankFigures
from pytest_perfdl.analysis.ranks.matching import Clock
from pytest_perfdl.trace.model import I64

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
        exposed = Intervals(clock.moved(each.exposed_start), clock.moved(each.exposed_end))
        waits = waiting[place].intersection(exposed)
        known = {
            "compute": Intervals(clock.moved(each.compute_start), clock.moved(each.compute_end)),
            "input": Intervals(clock.moved(each.input_start), clock.moved(each.input_end)),
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
