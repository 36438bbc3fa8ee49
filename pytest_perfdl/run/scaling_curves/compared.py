"""Compares both sides of a curve: ratio per size, added time, and parameters of both curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.judge.log_ratios import ASSUMED_SD, SD_FLOOR
from pytest_perfdl.model.record import Series
from pytest_perfdl.run.scaling_curves.points import Ratio, SizePoint
from pytest_perfdl.scaling.growth import Growth, IntervalEstimate, Shape, grown, shape
from pytest_perfdl.scaling.points import F64

OCCASION_SD = 0.03
"""Standard deviation of what the machine alone changes between two recordings, in the logarithm of all times alike."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A curve against the baselines'."""

    points: Sequence[SizePoint]
    ratios: Sequence[Ratio]
    """One for each point."""
    growth: Growth

    @property
    def paired(self) -> int:
        """How many sizes were measured in paired rounds."""
        return sum(not ratio.common for ratio in self.ratios)

    @property
    def evidence(self) -> str:
        """What it rests on."""
        return f"paired rounds at {self.paired} of {len(self.points)} sizes" if self.paired else "unpaired"

    @property
    def base_ns(self) -> float:
        """The baseline's time at the size where the growth weighs most."""
        return next(math.exp(mean(base)) for point, base in _bases(self.points) if point.size == self.growth.size)


def compared(points: Sequence[SizePoint]) -> Compared:
    """What was added to the baselines' curve, by paired rounds where there were any."""
    bases = _bases(points)
    deviation, freedom = spread([base for _, base in bases])
    ratios = []
    for point, base in bases:
        error = deviation * math.sqrt(1 / len(base.values) + 1 / len(point.new.values))
        fresh = Ratio(mean(point.new) - mean(base), error, OCCASION_SD)
        ratios.append(point.in_pairs() or fresh)
    growth = grown(
        np.array([point.size for point in points]),
        np.exp([mean(base) for _, base in bases]),
        np.array([ratio.log for ratio in ratios]),
        np.array([ratio.error for ratio in ratios]),
        freedom,
        np.array([ratio.common for ratio in ratios]),
    )
    return Compared(points, ratios, growth)


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """One side's time at each size."""

    logs: F64
    """Mean logarithm of nanoseconds."""
    errors: F64
    """Standard errors of those."""
    freedom: int
    """Degrees of freedom of the errors."""


def means(series: Sequence[Series]) -> Means:
    """Of repeats, with errors from the spread of all sizes between processes."""
    deviation, freedom = spread(series)
    errors = [deviation / math.sqrt(len(each.values)) for each in series]
    return Means(np.array([mean(each) for each in series]), np.array(errors), freedom)


def judged_means(found: Compared) -> tuple[Means, Means]:
    """Both sides as they were judged: a size that was measured in pairs has the ratio that rounds found.

    Where all sizes have one, the baseline's times are those of the rounds too.
    """
    bases = _bases(found.points)
    base, new = means([each for _, each in bases]), means([point.new for point in found.points])
    logs, errors, common = np.array([(each.log, each.error, each.common) for each in found.ratios]).T
    paired = common == 0
    if paired.all():
        told = [point.base_in_pairs() or (mean(each), len(each.values)) for point, each in bases]
        deviation, freedom = spread([each for _, each in bases])
        before, counts = np.array(told).T
        base = Means(before, deviation / np.sqrt(counts), freedom)
    together = np.hypot(base.errors, errors)
    now = Means(
        np.where(paired, base.logs + logs, new.logs),
        np.where(paired, together, new.errors),
        base.freedom if paired.all() else new.freedom,
    )
    return base, now


def shape_of(points: Sequence[SizePoint], side: Means) -> Shape:
    """What one side of a curve is like."""
    return shape(np.array([point.size for point in points]), np.exp(side.logs), side.errors, side.freedom)


def between_occasions(found: IntervalEstimate, unit: str) -> IntervalEstimate:
    """A figure with what the machine may change from one recording to another in its interval.

    What the machine does to all times alike, it does not do to their ratios (unit "1").
    """
    if unit == "1":
        return found
    common = 1.96 * OCCASION_SD * found.value
    return IntervalEstimate(
        found.value,
        found.value - math.hypot(found.value - found.low, common),
        found.value + math.hypot(found.high - found.value, common),
    )


def spread(series: Sequence[Series]) -> tuple[float, int]:
    """Standard deviation of log times between processes, pooled over sizes, with its degrees of freedom."""
    logs = [[math.log(value) for value in each.values] for each in series]
    freedom = sum(len(values) - 1 for values in logs)
    if not freedom:
        return ASSUMED_SD, 1000
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in logs if len(values) > 1)
    return max(math.sqrt(squares / freedom), SD_FLOOR), freedom


def mean(series: Series) -> float:
    """Mean of the logarithms of times."""
    return statistics.fmean(math.log(value) for value in series.values)


def _bases(points: Sequence[SizePoint]) -> list[tuple[SizePoint, Series]]:
    return [(point, point.base) for point in points if point.base is not None]
