"""Whether the ends of a search differ, and by which metric: of two commits, or of two environments."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from pytest_perfdl.bisect.answer import Effect
from pytest_perfdl.bisect.measurements import Measurement
from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.model.metrics import METRICS, CountedMetric, better, general, is_utilization
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.stats.evidence import Estimate, evidence

COUNTS = ("ops", "kernels", "launches", "flops", "h2d_bytes", "allocations", "alloc_bytes")
"""Counted metrics that explain time, the one that decides first."""
END_MEASUREMENTS = 4
"""Most measurements of the ends, as long as they leave open whether these differ."""
EVIDENCE = 200.0
"""Evidence (`stats.evidence`) at which the ends differ: equal ends do so in at most 1 of 200 searches."""
SURE_OVER = 0.95
"""Probability of being over the limit from which an end counts as slower, and below which of the rest as not."""


def is_counted(metric: str) -> bool:
    """Whether a metric is compared exactly.

    >>> is_counted("ops"), is_counted("forward.step_time")
    (True, False)
    """
    return isinstance(METRICS.get(general(metric)), CountedMetric)


def is_searchable(metric: str) -> bool:
    """Whether a commit can be searched for by a metric."""
    return general(metric) in METRICS and not is_utilization(metric)


def worse_count(ends: Measurement, wanted: str | None) -> str | None:
    """The counted metric that got worse between the ends; of several, the first of `COUNTS`."""
    worse = [name for name, value in ends.counts.items() if value > ends.base_counts.get(name, math.inf)]
    if wanted is not None:
        return next((name for name in worse if wanted in (name, general(name))), None)
    return min(
        (name for name in worse if general(name) in COUNTS), key=lambda n: COUNTS.index(general(n)), default=None
    )


def pooled_rounds(found: Sequence[Measurement], wanted: str) -> tuple[str, tuple[float, ...]]:
    """The full name of a time, and its rounds; of the calls of a test, the one that got slower most."""
    rounds: dict[str, list[float]] = defaultdict(list)
    for each in found:
        for name in each.rounds:
            if wanted in (name, general(name)):
                rounds[name] += each.differences(name)
    if not any(rounds.values()):
        raise RunFailed(f"the test has no rounds of {wanted}: name a time that it measures with --metric")
    name = max(rounds, key=lambda each: sum(rounds[each]) / max(len(rounds[each]), 1))
    return name, tuple(rounds[name])


def compared_ends(
    measure: Callable[[], Measurement], wanted: str, limit: float
) -> tuple[Measurement, str, tuple[float, ...]]:
    """Measure the ends by rounds until these tell whether they differ.

    Parameters
    ----------
    measure
        Measures the bad end against the good one.
    wanted
        A time by its general or full name.
    limit
        Smallest slowdown (a fraction) that counts.

    Returns
    -------
    tuple
        The last measurement, the full name of the time, and log(bad / good) of all rounds, above zero for worse.

    Raises
    ------
    RunFailed
        The test has no such time.
    """
    found: list[Measurement] = []
    while True:
        found.append(measure())
        metric, pooled = pooled_rounds(found, wanted)
        told = is_slower(pooled, limit) or Estimate(pooled).over(math.log1p(limit)) < 1 - SURE_OVER
        if told or len(found) == END_MEASUREMENTS:
            return found[-1], metric, pooled


def is_slower(differences: Sequence[float], limit: float) -> bool:
    """Whether the ends differ: the evidence of fair coins, and an estimate over the limit."""
    bound = math.log1p(limit)
    return Estimate(tuple(differences)).over(bound) >= SURE_OVER and evidence(differences, bound) >= EVIDENCE


def sign_of(metric: str) -> int:
    """The sign of a change for the worse: -1 for metrics of which more is better."""
    return 1 if better(metric) == "lower" else -1


def effect_in_words(effect: Effect) -> str:
    """An effect with its 95 % interval: "+5.1% [+4.2%, +6.0%]"."""
    low, high = effect.interval
    return f"{format_percent(effect.ratio)} [{format_percent(low)}, {format_percent(high)}]"
