"""Tests that differ only in size, compared as one curve when the last of them is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge import budget
from pytest_perfdl.judge.kernels import judge_bound
from pytest_perfdl.judge.log_ratios import ASSUMED_SD, SD_FLOOR
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Finding, Record, Series
from pytest_perfdl.model.units import format_percent, parse_quantity
from pytest_perfdl.report.scaling import estimate
from pytest_perfdl.results.curve import FIGURES, CurveTime, Figure, Fitted, JudgedCurve, Size
from pytest_perfdl.results.verdict import MetricVerdict, Verdict
from pytest_perfdl.run.context import RunContext, joined
from pytest_perfdl.scaling.growth import Growth, IntervalEstimate, Shape, fit_growth, shape, smooth
from pytest_perfdl.scaling.points import F64
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from pytest_perfdl.fixture.requests import CurveExpectation
    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.results.run import Result
    from pytest_perfdl.run.collection import PerfTest
    from pytest_perfdl.run.measurement import Measurement


# The points of a curve: the measurements of every size, and further repeats.


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


# Compares both sides of a curve: ratio per size, added time, and parameters of both curves.


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
    growth = fit_growth(
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


# A compared curve for reports: all sizes of both sides, the fitted curves, and three numbers.


SAMPLES = 33
"""Number of sizes at which fitted curves are drawn, in addition to the measured ones."""


def shown(family: Family, points: Sequence[SizePoint], found: Compared | None) -> JudgedCurve:
    """A curve for reports; `found` is its comparison with the baselines' curve, if there is one."""
    base, new = _sides(points, found)
    grid = _grid([point.size for point in points])
    squared = found is not None and "complexity" in found.growth.kinds and found.growth.effect.low > 0
    now = _fit(points, new, grid, bent=squared)
    before: Sequence[CurveTime | None] = [None] * len(grid) if base is None else _fit(points, base, grid)
    bases = [point.base for point in points if point.base is not None]
    stored = iter(_times(base or means(bases)) if bases else [])
    ratios: Sequence[Ratio | None] = found.ratios if found is not None else [None] * len(points)
    return JudgedCurve(
        name=family.title,
        metric=family.metric,
        axis=family.axis,
        unit=family.unit,
        sizes=tuple(
            Size(
                point.size,
                base=None if point.base is None else next(stored),
                new=time,
                change=None if ratio is None else _relative(ratio, spread(bases)[1]),
                paired=ratio is not None and not ratio.common,
            )
            for point, time, ratio in zip(points, _times(new), ratios, strict=True)
        ),
        fitted=tuple(map(Fitted, grid, before, now)),
        figures=figures(points, found),
        growth=None if found is None else found.growth,
        tests=tuple(family.measured[point.size].measurement.test.item.nodeid for point in points),
    )


def figures(points: Sequence[SizePoint], found: Compared | None) -> tuple[Figure, ...]:
    """What does not scale, what one more costs, and how steep it is; of both sides where both were judged."""
    base, new = _sides(points, found)
    now = _three(shape_of(points, new))
    before: Sequence[IntervalEstimate | None] = [None] * len(now) if base is None else _three(shape_of(points, base))
    return tuple(
        Figure(kind, unit, old, each, None if old is None else _difference(old, each, unit))
        for (kind, unit), old, each in zip(FIGURES.items(), before, now, strict=True)
    )


def _sides(points: Sequence[SizePoint], found: Compared | None) -> tuple[Means | None, Means]:
    return (None, means([point.new for point in points])) if found is None else judged_means(found)


def _three(found: Shape) -> tuple[IntervalEstimate, ...]:
    """In the order of `FIGURES`."""
    return found.fixed, found.slope, found.exponent


def _difference(base: IntervalEstimate, new: IntervalEstimate, unit: str) -> IntervalEstimate:
    """Of independent figures of two recordings."""
    now, value = between_occasions(new, unit), new.value - base.value
    return IntervalEstimate(
        value,
        value - math.hypot(now.value - now.low, base.high - base.value),
        value + math.hypot(now.high - now.value, base.value - base.low),
    )


def _relative(ratio: Ratio, freedom: int) -> IntervalEstimate:
    """The change of a size, by the evidence that the curve was judged by."""
    half = (student(0.975, freedom) if ratio.common else 1.96) * math.hypot(ratio.error, ratio.common)
    return IntervalEstimate(*(math.expm1(ratio.log + off) for off in (0.0, -half, half)))


def _times(side: Means) -> list[CurveTime]:
    half = student(0.975, side.freedom) * side.errors
    return [_time(*each) for each in zip(*(np.exp(side.logs + off).tolist() for off in (0, -half, half)), strict=True)]


def _fit(points: Sequence[SizePoint], side: Means, grid: Sequence[float], *, bent: bool = False) -> list[CurveTime]:
    sizes = np.array([point.size for point in points])
    found = smooth(sizes, np.exp(side.logs), side.errors, side.freedom, np.array(grid), bent=bent)
    return [_time(*each) for each in zip(*(column.tolist() for column in found), strict=True)]


def _grid(sizes: Sequence[float]) -> list[float]:
    """The sizes with others between them, evenly by their ratio."""
    between = (float(f"{size:.4g}") for size in np.geomspace(sizes[0], sizes[-1], SAMPLES).tolist())
    return sorted({*sizes, *(size for size in between if sizes[0] < size < sizes[-1])})


def _time(ns: float, low: float, high: float) -> CurveTime:
    return CurveTime(round(ns), round(low), round(high))


# Selects the tests that are the sizes of one curve, and its parameter.


def axes(test: PerfTest, expectations: Sequence[CurveExpectation]) -> dict[str, list[CurveExpectation]]:
    """The parameters along which a test is a point of a curve, with what is expected of each.

    Raises
    ------
    ValueError
        An expectation names no parameter with numbers.
    """
    marked = list(test.options.scaling or {})
    found: dict[str, list[CurveExpectation]] = {name: [] for name in marked}
    for each in expectations:
        axis = each.axis or (marked[0] if len(marked) == 1 else "")
        if axis not in sizes(test):
            what = (
                f"the test has no parameter {axis!r} that is a number above 0"
                if axis
                else ("the argument axis is missing")
            )
            raise ValueError(f"perf.assert_scaling({each.axis!r}): {what}")
        found.setdefault(axis, []).append(each)
    return found


def sizes(test: PerfTest) -> dict[str, float]:
    """Parameters of a test that are numbers above zero."""
    return {
        name: float(value)
        for name, value in _params(test).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    }


def members(test: PerfTest, axis: str, tests: Sequence[PerfTest]) -> list[PerfTest]:
    """The tests that differ from one in a parameter only, in the order of the run."""
    return [each for each in tests if axis in sizes(each) and curve_key(each, axis) == curve_key(test, axis)]


def curve_key(test: PerfTest, axis: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """What all tests of one curve over a parameter have in common: the name, and the other parameters."""
    others = frozenset((name, repr(value)) for name, value in _params(test).items() if name != axis)
    return without_parameters(test), others


def without_parameters(test: PerfTest) -> str:
    """A test's node id without its parameters; the names of folders may hold brackets, too."""
    file, colons, name = test.item.nodeid.partition("::")
    return f"{file}{colons}{name.partition('[')[0]}"


def _params(test: PerfTest) -> Mapping[str, object]:
    params: Mapping[str, object] = getattr(getattr(test.item, "callspec", None), "params", {})
    return params


# Verdicts on curves: growth relative to the baselines' curve, and bounds of `assert_scaling`.


SUSPICION = 1.2816 / 1.96
"""Share of half a 95 % interval that a growth must reach to be suspected: one-sided p of 0.1."""
_PARTS = {"overhead": "fixed part", "per unit": "per {unit}", "complexity": "exponent"}


def suspected(growth: Growth, limit: float) -> bool:
    """Whether to measure further repeats."""
    effect = growth.effect
    return effect.value > limit and effect.value > SUSPICION * (effect.value - effect.low)


def verdict_on(growth: Growth, limit: float) -> Verdict:
    """The verdict on a growth alone: `suspect` at worst."""
    effect = growth.effect
    if effect.value > limit:
        return "suspect" if effect.low > 0 else "inconclusive"
    return "improved" if effect.high < -limit else "unchanged"


def of_growth(
    family: Family, found: Compared, verdict: Verdict, limit: Limit | None, share: float, *, paired: bool
) -> MetricVerdict:
    """The verdict on a curve relative to the baselines' curve.

    Parameters
    ----------
    limit, share
        Limit of `step_time`, and its value as a fraction; without a limit the curve is only shown.
    paired
        Whether all sizes were measured in paired rounds.
    """
    growth, base_ns = found.growth, found.base_ns
    effect = growth.effect
    return MetricVerdict(
        name=family.title,
        kind="timed",
        unit="ns",
        better="lower",
        base=base_ns,
        new=base_ns * (1 + effect.value),
        effect=effect.value,
        ci95=(effect.low, effect.high),
        limit=limit,
        verdict=None if limit is None else verdict,
        reason=_reason(found, family, verdict),
        times_over=effect.value / share if verdict == "regressed" and share > 0 else None,
        evidence="paired" if paired else "unpaired",
    )


def of_figures(family: Family, figures: Sequence[Figure]) -> list[MetricVerdict]:
    """Both curves in three numbers, shown only: fixed part, time per unit, exponent."""
    return [
        MetricVerdict(
            name=f"{family.title}, {_PARTS[each.kind].format(unit=family.unit)}",
            kind="timed",
            unit=each.unit,
            better="lower",
            base=each.base.value,
            new=each.new.value,
            reason=f"{estimate(each.base, each.unit)} -> {estimate(each.new, each.unit)} (95% intervals)",
        )
        for each in figures
        if each.base is not None
    ]


def of_bounds(
    family: Family, expectations: Sequence[CurveExpectation], points: Sequence[SizePoint]
) -> list[MetricVerdict]:
    """The verdicts on the bounds of `assert_scaling`."""
    if not expectations:
        return []
    found = shape_of(points, means([point.new for point in points]))
    metrics = []
    for each in expectations:
        demands = (
            ("largest exponent", "1", found.exponent, None if each.exponent is None else f"{each.exponent:g}"),
            ("largest fixed part", "ns", found.fixed, each.fixed),
            (f"largest time per {family.unit}", "ns", found.slope, each.per_unit),
        )
        for part, unit, figure, text in demands:
            if text is not None:
                now = between_occasions(figure, unit)
                name, bound = f"{family.title}, {part}", parse_quantity(text, unit)
                metrics.append(judge_bound(name, unit, now.value, (now.low, now.high), bound, text))
    return metrics


def _reason(found: Compared, family: Family, verdict: Verdict) -> str:
    growth, effect, axis = found.growth, found.growth.effect, family.axis
    low, high = format_percent(effect.low), format_percent(effect.high)
    text = f"{format_percent(effect.value)} [{low}, {high}] at {axis} {growth.size:g} (95% interval, {found.evidence})"
    if verdict == "inconclusive":
        return f"{text}: the interval is too wide to decide"
    if verdict not in ("regressed", "suspect"):
        return text
    name = {
        "overhead": "overhead regression",
        "per unit": f"per-{family.unit} regression",
        "complexity": "complexity regression",
        "every size alike": "same change at every size",
    }[growth.kind]
    if growth.term is None:
        amount = "same relative change at every size" + ("" if found.paired else ", possibly machine drift")
    else:
        amount = _amount(growth.amount, growth.term, family)
    if growth.beside is not None:
        amount = f"{amount}, and {_amount(growth.beside.amount, growth.beside.term, family)}"
    power = growth.power
    grows = f"the added time grows like {axis}^{power.value:.1f} [{power.low:.1f}, {power.high:.1f}]"
    return f"{name}: {text}: {amount}; {grows}"


def _amount(found: IntervalEstimate, term: int, family: Family) -> str:
    sizes = {0: "at every size", 1: f"per {family.unit}"}
    return f"{estimate(found, 'ns')} more {sizes.get(term, f'per {family.axis}^{term}')}"


# The flow for curves: when a curve is complete, which repeats it needs, and its verdict.


LEAST_SIZES = 3
"""Two sizes are no curve."""


class Curves:
    """The curves of a run; `judge` is called for every measured test."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._measured: dict[str, MeasuredTest] = {}
        self._ended: set[str] = set()
        """Node ids of the tests that have ended, measured or not; pytest may run tests in any order."""
        self._judged: set[tuple[str, ...]] = set()
        """For each judged curve, the node ids of its tests."""

    def judge(self, measurement: Measurement, result: Result) -> Result:
        """A test's result, joined with the curves of which it is the last to run."""
        test = measurement.test
        known = self._measured[test.item.nodeid] = MeasuredTest(measurement, result)
        self._ended.add(test.item.nodeid)
        if result.new is None:
            return result
        try:
            found = axes(test, measurement.curves)
        except ValueError as error:
            return self._join(result, [], Finding("invalid", "curve", str(error)))
        for axis, expectations in found.items():
            tests = members(test, axis, self._context.tests)
            if self._are_over(tests):
                result = self._add_curves(known, axis, expectations, tests)
                known = self._measured[test.item.nodeid] = MeasuredTest(measurement, result)
        return result

    def note_end(self, test: PerfTest) -> None:
        """Take note that a test is over, for which a curve may have been waiting."""
        self._ended.add(test.item.nodeid)

    @property
    def left_out(self) -> list[str]:
        """Lines about curves of a marker that were not compared."""
        lines = {}
        for test in self._context.tests:
            for axis in test.options.scaling or {}:
                tests = members(test, axis, self._context.tests)
                count = len(self._points(axis, tests))
                if count and _ids(tests) not in self._judged:
                    why = (
                        f"at least {LEAST_SIZES} sizes are needed"
                        if count < LEAST_SIZES
                        else "the test of the last size has no result"
                    )
                    name = without_parameters(test)
                    lines[_ids(tests)] = (
                        f"the curve of {name} over {axis} was not compared: {count} of {len(tests)} sizes measured, "
                        f"{why}"
                    )
        return list(dict.fromkeys(lines.values()))

    def _points(self, axis: str, tests: Sequence[PerfTest]) -> dict[float, MeasuredTest]:
        """By size what was measured so far; a measurement that broke is no point of a curve."""
        return {
            sizes(test)[axis]: found
            for test in tests
            if (found := self._measured.get(test.item.nodeid))
            and found.result.new
            and found.result.judgement.verdict != "invalid"
        }

    def _are_over(self, tests: Sequence[PerfTest]) -> bool:
        return all(each.item.nodeid in self._ended for each in tests)

    def _add_curves(
        self, last: MeasuredTest, axis: str, expectations: Sequence[CurveExpectation], tests: Sequence[PerfTest]
    ) -> Result:
        measured = self._points(axis, tests)
        if len(measured) < LEAST_SIZES:
            said = f"the curve over {axis} was not compared: {len(measured)} of {len(tests)} sizes measured"
            return self._join(last.result, [], Finding("note", "curve", said))
        self._judged.add(_ids(tests))
        records = {size: each.result.new for size, each in measured.items() if each.result.new}
        result = last.result
        for name in (each for each in records[max(records)].metrics() if general(each) == "step_time"):
            family = Family(name, axis, measured)
            points = family.points(records)
            if len(points) >= LEAST_SIZES:
                result = self._add_curve(last.measurement.test, result, family, points, expectations)
        return result

    def _add_curve(
        self,
        last: PerfTest,
        result: Result,
        family: Family,
        points: Sequence[SizePoint],
        expectations: Sequence[CurveExpectation],
    ) -> Result:
        """With one metric's curve, against the baselines' where every size has one, and against the test's bounds."""
        found = None
        if all(point.base is not None for point in points):
            found, growth = self._growth(family, points, last.limits)
            points = found.points
            result = self._join(result, [growth, *of_figures(family, figures(points, found))], of_baseline=True)
        bounds = of_bounds(family, expectations, points)
        if any(each.verdict == "inconclusive" for each in bounds):
            drawn = family.fresh(points)
            bounds = of_bounds(family, expectations, drawn)
            points = points if found is not None else drawn
        result = self._join(result, bounds)
        return replace(result, curves=(*result.curves, shown(family, points, found)))

    def _growth(self, family: Family, points: Sequence[SizePoint], limits: Limits) -> tuple[Compared, MetricVerdict]:
        """The curve against the baselines'; suspected by what there is, confirmed by further repeats."""
        found = compared(points)
        paired = found.paired == len(points)
        limit, share = _limit(limits, family, paired=paired)
        verdict = verdict_on(found.growth, share)
        if paired:
            verdict = "regressed" if found.growth.effect.low > share else verdict
        elif suspected(found.growth, share) and not self._context.recording:
            known = any(point.judged is not None and point.judged.verdict == "regressed" for point in points)
            found = compared(family.sharpened(points) if known or found.paired else family.fresh(points))
            verdict = verdict_on(found.growth, share)
            if verdict == "suspect" and (known or found.growth.effect.low > share):
                verdict = "regressed"
        growth = of_growth(family, found, verdict, limit, share, paired=paired)
        return found, budget.waive_by_interval(growth, limits, name=family.metric)

    def _join(
        self,
        result: Result,
        metrics: Sequence[MetricVerdict],
        finding: Finding | None = None,
        *,
        of_baseline: bool = False,
    ) -> Result:
        findings = [finding] if finding is not None else []
        return joined(result, metrics, findings, fail_on=self._context.fail_on, of_baseline=of_baseline)


def _ids(tests: Sequence[PerfTest]) -> tuple[str, ...]:
    return tuple(test.item.nodeid for test in tests)


def _limit(limits: Limits, family: Family, *, paired: bool) -> tuple[Limit | None, float]:
    """What the curve is held to, and that as a share: infinite where no percentage limits it."""
    own = limits.for_metric(family.metric)
    limit = own if paired else limits.unpaired().for_metric(family.metric)
    # An absolute limit is of the times at a size, also where it is widened.
    return limit, math.inf if limit is None or own is None or own.relative is None else limit.relative or 0.0


# Tests that differ only in size, compared as one curve when the last of them is measured.
#
# These are tests whose marker lists sizes (`scaling=`), and tests that call `perf.assert_scaling(...)`. The current
# curve is compared with the baselines' curve (`scaling.growth`: kind and amount of the added time, with an interval)
# and with the bounds of the test. Its verdict is part of the last test's result.
#
# All sizes were compared before, so the curve uses their results: ratios of paired rounds if there are any, otherwise
# fresh repeats against recorded ones, with a common uncertainty for changes of the machine (`OCCASION_SD`). A slower
# curve is a regression if one of its sizes regressed, if all sizes were measured in paired rounds, or if further
# repeats confirm it.
#
# - `Curves` is the flow: it receives every measured test.
# - `members` selects the tests of one curve, `Family` has their measurements.
# - `compared` compares both sides of a curve, `of_growth` and `of_bounds` derive the verdict.
# - `shown` converts the result for reports.


__all__ = ["Curves"]
