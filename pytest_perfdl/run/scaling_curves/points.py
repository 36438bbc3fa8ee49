"""The points of a curve: the measurements of every size, and further repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.judge.log_ratios import SD_FLOOR

if TYPE_CHECKING:
    from pytest_perfdl.model.record import Record, Series
    from pytest_perfdl.results.run import Result
    from pytest_perfdl.results.verdict import MetricVerdict
    from pytest_perfdl.run.measurement import Measurement

CONFIRMING_REPEATS = 3
"""Fresh repeats of every size that a suspected curve draws without pairs, or for an undecided bound."""
_SAMPLES = frozenset({"batch", "batch_size", "samples"})
"""Parameters of which one more is one more sample."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer a size takes than in the baseline, as the logarithm of the ratio of times."""

    log: float
    error: float
    """Standard error of that."""
    common: float = 0.0
    """Standard error shared with other sizes, from machine drift; 0 in paired rounds."""


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One size of a curve, for one metric."""

    size: float
    base: Series | None
    new: Series
    judged: MetricVerdict | None
    """The verdict on this size alone."""

    def in_pairs(self) -> Ratio | None:
        """What paired rounds said of it; None without them."""
        found = self.judged
        if found is None or found.evidence != "paired" or found.effect is None or found.ci95 is None:
            return None
        if not -1 < found.ci95[0] <= found.ci95[1] < math.inf:
            return None
        return _ratio(*map(math.log1p, (found.effect, *found.ci95)))

    def base_in_pairs(self) -> tuple[float, int] | None:
        """Mean logarithm of the baseline's nanoseconds in those rounds, and how many they are."""
        if self.judged is None or not self.judged.base:
            return None
        return math.log(self.judged.base), self.judged.rounds or 1


def _ratio(log: float, low: float, high: float) -> Ratio:
    return Ratio(log, max((high - low) / (2 * 1.96), SD_FLOOR / 2))


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """A measured and compared test; more repeats of it may be measured."""

    measurement: Measurement
    result: Result


@dataclass(frozen=True, slots=True)
class Family:
    """A metric of tests that differ in one parameter."""

    metric: str
    axis: str
    measured: Mapping[float, MeasuredTest]
    """By size."""

    @property
    def title(self) -> str:
        """What its curve is called."""
        return f"{self.metric} over {self.axis}"

    @property
    def unit(self) -> str:
        """What one more of the size is."""
        return "sample" if self.axis in _SAMPLES else self.axis

    def points(self, records: Mapping[float, Record]) -> list[SizePoint]:
        """The sizes in their order, as measured in these records; without those that have no time."""
        found = []
        for size in sorted(records):
            result, new = self.measured[size].result, records[size].metrics().get(self.metric)
            if new is None or min(new.values) <= 0:
                continue
            # What was measured of another test is nothing to hold this one's curve against.
            stored = result.base if result.judgement.verdict != "outdated" else None
            base = stored.metrics().get(self.metric) if stored is not None else None
            judged = next((each for each in result.judgement.metrics if each.name == self.metric), None)
            found.append(SizePoint(size, base, new, judged))
        return found

    def fresh(self, points: Iterable[SizePoint]) -> list[SizePoint]:
        """The same sizes in further repeats alone."""
        drawn = {point.size: self.measured[point.size].measurement.fresh(CONFIRMING_REPEATS) for point in points}
        return self.points(drawn)

    def sharpened(self, points: Sequence[SizePoint]) -> list[SizePoint]:
        """The points with further repeats where few were measured: which kind it is hangs on the small sizes too."""
        few = [point for point in points if point.in_pairs() is None and len(point.new.values) < CONFIRMING_REPEATS]
        drawn = {point.size: point for point in self.fresh(few)}
        return [drawn.get(point.size, point) for point in points]
