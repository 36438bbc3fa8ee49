"""Which run comes next, and how long all that are left will take."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_perfdl.runs.qualify.outcomes import Outcome


def next_run(done: Sequence[Outcome], wanted: Mapping[float, int]) -> float | None:
    """By how much the next run slows down; `None` when there are as many runs of each share as wanted.

    Runs of all shares are interleaved in proportion, so that drift of the machine over hours affects all of them,
    and a campaign that is ended early has some of each.
    """
    counts = Counter(outcome.inject for outcome in done)
    left = [share for share, number in wanted.items() if counts[share] < number]
    return min(left, key=lambda share: ((counts[share] + 0.5) / wanted[share], share), default=None)


def runs_left(done: Sequence[Outcome], wanted: Mapping[float, int]) -> dict[float, int]:
    """How many runs of each share are still to be made."""
    counts = Counter(outcome.inject for outcome in done)
    return {share: max(0, number - counts[share]) for share, number in wanted.items()}


def seconds_left(done: Sequence[Outcome], wanted: Mapping[float, int]) -> float | None:
    """How long the runs that are left will take, each as long as those of its share did; `None` before the first."""
    if not done:
        return None
    left = runs_left(done, wanted)
    return sum(number * expected_seconds(done, share) for share, number in left.items())


def expected_seconds(done: Sequence[Outcome], share: float) -> float:
    """How long a run of this share will take, as far as the runs so far (one at least) tell."""
    known = [outcome.seconds for outcome in done if outcome.inject == share]
    return statistics.fmean(known or [outcome.seconds for outcome in done])
