"""Repeats of two recordings as log ratios, and limits on the same scale.

The unit is the repeat (the steps of one process), and the quantity its logarithm.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.model.limits import Limit
    from pytest_perfdl.model.record import Series

SD_FLOOR = 0.01
"""Minimum standard deviation of log times between processes; smaller ones occur by chance."""
ASSUMED_SD = 0.10
"""Assumed standard deviation for a baseline of one process: the upper end on shared machines."""
NO_RATIO = "a value is 0 or below, so no ratio can be computed"


@dataclass(frozen=True, slots=True)
class LogRatio:
    """Fresh repeats against baseline repeats, as a log ratio of means with its standard error."""

    log_ratio: float
    error: float
    freedom: int
    """Degrees of freedom of the error; 0 when the spread is assumed, not measured."""

    def p_above(self, sign: int) -> float:
        """One-sided p-value of an increase (`sign` 1) or of a decrease (-1)."""
        # Imported here: rounds have no need of it, and it takes a sixth of a second.
        from scipy.special import ndtr, stdtr

        t = sign * self.log_ratio / self.error
        return float(stdtr(self.freedom, -t) if self.freedom else ndtr(-t))

    def interval(self) -> tuple[float, float]:
        """95 % interval of the log ratio."""
        half = student(0.975, self.freedom or math.inf) * self.error
        return self.log_ratio - half, self.log_ratio + half


def compare(base: Sequence[float], new: Sequence[float]) -> LogRatio:
    """Compare positive values, one per repeat, with the interval that is honest for new processes.

    The standard error is `max(sd(log base), SD_FLOOR) * sqrt(1/K + 1/m)` with K-1 degrees of freedom: the
    spread comes from the baseline alone, since fresh repeats share their moment.
    """
    log_base, log_new = [math.log(value) for value in base], [math.log(value) for value in new]
    spread = max(statistics.stdev(log_base), SD_FLOOR) if len(base) > 1 else ASSUMED_SD
    return LogRatio(
        log_ratio=statistics.fmean(log_new) - statistics.fmean(log_base),
        error=spread * math.sqrt(1 / len(base) + 1 / len(new)),
        freedom=len(base) - 1,
    )


def middle(series: Series) -> float:
    """The value that is shown for a series: the median of a timed one, which few disturbed processes hardly move."""
    return statistics.median(series.values) if series.kind == "timed" else statistics.fmean(series.values)


def make_metric(name: str, base: Series | None, new: Series | None) -> MetricVerdict:
    """A metric with the values of both sides, one of which has it, and without a verdict."""
    either = new or base
    assert either is not None
    before, after = (None if series is None else middle(series) for series in (base, new))
    return MetricVerdict(name, either.kind, either.unit, either.better, before, after)


def with_change(metric: MetricVerdict, new: float, change: float, interval: tuple[float, float]) -> MetricVerdict:
    """A metric with its current value, its change as a log ratio, and the ends of the change's interval.

    The change is an estimate, not the ratio of two values: for all three to agree, the baseline's value is that of the
    current code before the change.
    """
    low, high = interval
    return replace(
        metric,
        base=new * math.exp(min(-change, 700.0)),
        new=new,
        effect=as_ratio(change),
        ci95=(as_ratio(low), as_ratio(high)),
    )


def are_positive(*series: Series) -> bool:
    """Whether ratios of these values exist."""
    return all(min(part.values) > 0 for part in series)


def comparable(base: Series, new: Series, limit: Limit) -> bool:
    """Whether these values can be held to a limit: an absolute one needs no ratio."""
    return limit.absolute is not None or are_positive(base, new)


def log_limit(limit: Limit, base: float, series: Series) -> float:
    """The limit as a log ratio in the direction that is worse, for a baseline of value `base`.

    Infinite where no value could be past it: a limit of 100 % on a metric of which more is better.
    """
    share = limit.allowed(base, series.unit) / base
    if series.better == "lower":
        return math.log1p(share)
    return -math.log1p(-share) if share < 1 else math.inf


def as_ratio(log_ratio: float) -> float:
    """`exp(x) - 1`, finite for every x that a short baseline can give."""
    return math.expm1(min(log_ratio, 700.0))


def worsening(log_worse: float, sign: int) -> float:
    """Size of a worsening on the log scale as a positive ratio: a larger time, or a smaller throughput."""
    return sign * as_ratio(sign * log_worse)
