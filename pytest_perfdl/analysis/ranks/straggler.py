"""The rank that makes the others wait step after step, since when, and because of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from pytest_perfdl.analysis.ranks.figures import Cause, Straggler
from pytest_perfdl.trace.model import F64, I64

LEAST_STEPS = 3
"""A rank that is late in fewer steps had a hiccup; a straggler is late from one step on in all that follow."""

LEAST_SHARE = 0.02
"""Of a step; what costs less is no straggler, as ranks are never equally fast."""

LEAST_NS = 10_000
"""A skew below this is no straggling: ranks never start to the microsecond."""

NOISE = 5.0
"""How many standard errors a rank's lateness must be above zero: with 1024 ranks and 100 steps to begin at there are
10^5 chances for a false one, each less likely than 3e-7."""

MOSTLY = 0.75
"""Share of the steps since then in which the rank has most work of its own."""


def find(
    own: I64, step_ns: I64, numbers: Sequence[int], ranks: Sequence[int], classes: Mapping[Cause, I64], residual_ns: int
) -> Straggler | None:
    """The straggler, or `None` where the ranks are balanced or the figures do not allow to say.

    A rank's *own work* in a step is the step's window less the time in which it waits for others and computes nothing.
    Synchronous ranks have equally long steps, so the rank with most own work is the one that the others wait for, and
    the job's step would be shorter by what it has more than the next one: that is its cost (the what-if of Lin et al.,
    "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, with one rank replaced).

    The rule has three parts, like the detection of Greyhound (Wu et al., ATC 2025): the level of a rank's *lateness*
    (own work less the median of the other ranks') may change once, at the step that fits best (least absolute
    deviations); the change is verified, by its size against the noise of all ranks about their levels and against a
    least share of the step; and the slow part is pinned down by comparing the rank with the others: the cause is the
    class of own time that it has most in excess.

    Parameters
    ----------
    own
        Own work, shape (steps, ranks), nanoseconds.
    step_ns
        Windows, of the same shape.
    numbers, ranks
        Numbers of the steps and of the ranks.
    classes
        What own work consists of, each of the shape of `own`.
    residual_ns
        What the clocks disagree by.
    """
    steps, count = own.shape
    if steps < LEAST_STEPS or count < 2:
        return None
    late = own - _others(own, np.median)
    gap = own - _others(own, np.max)
    since = [_since(late[:, place]) for place in range(count)]
    left = np.concatenate([_about_levels(late[:, place], first) for place, first in enumerate(since)])
    # A level per rank, or two, is fitted: what is left is that much smaller than the noise.
    noise = 1.4826 * float(np.median(np.abs(left))) * np.sqrt(steps / max(steps - 1, 1))
    cost = [float(np.median(gap[first:, place])) for place, first in enumerate(since)]
    place = int(np.argmax(cost))
    first = since[place]
    behind = late[first:, place]
    error = 1.2533 * noise / np.sqrt(len(behind))
    least = max(LEAST_NS, LEAST_SHARE * float(np.median(step_ns)), residual_ns)
    if (
        len(behind) < LEAST_STEPS
        or cost[place] < least
        or np.median(behind) < NOISE * error
        or np.mean(gap[first:, place] > 0) < MOSTLY
    ):
        return None
    excess = {
        cause: float(np.median((classes[cause] - _others(classes[cause], np.median))[first:, place]))
        for cause in get_args(Cause)
    }
    cause: Cause = max(excess, key=lambda each: excess[each])
    return Straggler(ranks[place], numbers[first], cause, round(cost[place]))


def _others(values: I64, summary: np.ufunc | object) -> F64:
    """For each rank a summary of the other ranks' values in each step."""
    columns = range(values.shape[1])
    found = [summary(np.delete(values, column, axis=1), axis=1) for column in columns]  # type: ignore[operator]
    return np.stack(found, axis=1).astype(np.float64)


def _since(late: F64) -> int:
    """Step from which on the level is another, 0 where one level fits as well or the later one is not the higher.

    A second level has to reduce the absolute deviations by more than chance would: by a third.
    """
    steps = len(late)
    one = float(np.abs(late - np.median(late)).sum())
    best, first = one * 2 / 3, 0
    for split in range(1, steps - LEAST_STEPS + 1):
        before, after = np.median(late[:split]), np.median(late[split:])
        two = float(np.abs(late[:split] - before).sum() + np.abs(late[split:] - after).sum())
        if after > before and two < best:
            best, first = two, split
    return first


def _about_levels(late: F64, first: int) -> F64:
    parts = [late[:first], late[first:]]
    return np.concatenate([part - np.median(part) for part in parts if len(part)])
