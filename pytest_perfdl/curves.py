"""Tests that differ in a size only, judged as one curve once the last of them is measured.

Which tests: those whose marker names the sizes (`scaling=`), and those that call `perf.assert_scaling(...)` with a
parameter of theirs. The curve of this run is held against that of the baselines (`predict.scaling.growth`): what was
added, of which kind, with an interval; and against the bounds that the test itself states. Its verdict is part of the
last test's.

Each size was judged by itself before. So the curve's evidence is what that gave: ratios of paired rounds where there
were some, else fresh repeats against stored ones, with what the machine may have changed meanwhile (`OCCASION_SD`,
which all sizes share). A curve that grew is regressed where a size was found regressed by itself, where all sizes were
measured in pairs, or where further repeats show the same again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge.expectation import bounded
from pytest_perfdl.judge.timed import ASSUMED_SD, SD_FLOOR
from pytest_perfdl.judge.verdict import MetricVerdict, Verdict, worst
from pytest_perfdl.record import Finding, Record, Series
from pytest_perfdl.units import format_percent, format_quantity, parse_quantity

if TYPE_CHECKING:
    from pytest_perfdl.bench import Bench
    from pytest_perfdl.collect import PerfTest
    from pytest_perfdl.fixture import CurveExpectation
    from pytest_perfdl.limits import Limits
    from pytest_perfdl.predict.scaling.growth import Estimate, Growth, Shape
    from pytest_perfdl.trial import Trial

LEAST_SIZES = 3
"""Two sizes are no curve."""
OCCASION_SD = 0.03
"""Standard deviation of what the machine alone changes between two occasions, in the logarithm of all times alike."""
CONFIRMING_REPEATS = 3
"""Fresh repeats of every size that a curve draws which is suspected, or undecided about a bound."""
SUSPICION = 1.2816 / 1.96
"""Share of half a 95 % interval that a growth must reach to be suspected: one-sided p of 0.1 (`timed.SCREEN_ALPHA`)."""
_SAMPLES = frozenset({"batch", "batch_size", "samples"})
"""Parameters of which one more is one more sample."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a curve, for one metric."""

    size: float
    base: Series | None
    new: Series
    judged: MetricVerdict | None
    """What was said of it by itself."""


class Curves:
    """The curves of a run; `judge` is told of every test that was measured."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._trials: dict[str, Trial] = {}

    def judge(self, trial: Trial) -> None:
        """Judge the curves of which this test is the last, and join that with the test's own result."""
        test = trial.test
        self._trials[test.item.nodeid] = trial
        if trial.result is None or trial.result.new is None:
            return
        try:
            axes = _axes(trial)
        except ValueError as error:
            _join(trial, [], Finding("invalid", "curve", str(error)), self._bench.fail_on)
            return
        for axis, expectations in axes.items():
            members = _members(test, axis, self._bench.tests)
            if members and members[-1] is test:
                _join(trial, *self._judged(axis, expectations, members), self._bench.fail_on)

    def _judged(
        self, axis: str, expectations: Sequence[CurveExpectation], members: Sequence[PerfTest]
    ) -> tuple[list[MetricVerdict], Finding | None]:
        trials = {
            _sizes(member)[axis]: found
            for member in members
            if (found := self._trials.get(member.item.nodeid))
            and found.result is not None
            and found.result.new
            # A measurement that broke is no point of a curve.
            and found.result.judgement.verdict != "invalid"
        }
        metrics: list[MetricVerdict] = []
        if len(trials) < LEAST_SIZES:
            said = f"the curve over {axis} was not judged: {len(trials)} of {len(members)} sizes were measured"
            return metrics, Finding("note", "curve", said)
        records = {size: trial.result.new for size, trial in trials.items() if trial.result and trial.result.new}
        limits = members[-1].limits
        for name in (each for each in records[max(records)].metrics() if each.rpartition(".")[2] == "step_time"):
            curve = _Curve(f"{name} over {axis}", axis, name, trials)
            points = curve.points(records)
            if len(points) < LEAST_SIZES:
                continue
            if all(point.base is not None for point in points):
                metrics += self._growth(curve, points, limits)
            metrics += _bounds(curve, points, expectations)
        return metrics, None

    def _growth(self, curve: _Curve, points: Sequence[Point], limits: Limits) -> list[MetricVerdict]:
        """The curve against the baselines'; suspected by what there is, confirmed by further repeats."""
        settings = self._bench.settings
        paired = settings.against is not None
        limit = (limits if paired else limits.unpaired()).for_metric(curve.metric)
        share = math.inf if limit is None or limit.relative is None else limit.relative
        growth, evidence = _grown(points)
        verdict = _verdict(growth, share)
        if paired:
            verdict = "regressed" if growth.effect.low > share else verdict
        elif _suspected(growth, share) and settings.update is None:
            known = any(point.judged is not None and point.judged.verdict == "regressed" for point in points)
            points = curve.sharpened(points) if known else curve.points(curve.fresh(point.size for point in points))
            growth, evidence = _grown(points, unpaired=not known)
            verdict = _verdict(growth, share)
            if verdict == "suspect" and (known or growth.effect.low > share):
                verdict = "regressed"
        base_ns = _base_ns(points)[growth.size]
        judged = MetricVerdict(
            name=curve.title,
            kind="timed",
            unit="ns",
            better="lower",
            base=base_ns,
            new=base_ns * (1 + growth.effect.value),
            effect=growth.effect.value,
            ci95=(growth.effect.low, growth.effect.high),
            limit=None if limit is None else limit.text,
            verdict=None if limit is None else verdict,
            reason=_reason(growth, curve.axis, verdict, evidence),
            times_over=growth.effect.value / share if verdict == "regressed" and share > 0 else None,
            evidence="paired" if paired else "unpaired" if verdict == "regressed" else "screen",
        )
        return [judged, *_shapes(curve, points)]


@dataclass(frozen=True, slots=True)
class _Curve:
    """A metric of tests that differ in one parameter."""

    title: str
    axis: str
    metric: str
    trials: Mapping[float, Trial]
    """By size."""

    def points(self, records: Mapping[float, Record]) -> list[Point]:
        """The sizes in their order, as measured in these records; without those that have no time."""
        found = []
        for size in sorted(records):
            result, new = self.trials[size].result, records[size].metrics().get(self.metric)
            if result is None or new is None or min(new.values) <= 0:
                continue
            # What was measured of another test is nothing to hold this one's curve against.
            stored = result.base if result.judgement.verdict != "outdated" else None
            base = stored.metrics().get(self.metric) if stored is not None else None
            judged = next((each for each in result.judgement.metrics if each.name == self.metric), None)
            found.append(Point(size, base, new, judged))
        return found

    def fresh(self, sizes: Iterable[float]) -> dict[float, Record]:
        """Further repeats of some sizes."""
        return {size: self.trials[size].fresh(CONFIRMING_REPEATS) for size in sizes}

    def sharpened(self, points: Sequence[Point]) -> list[Point]:
        """The points with further repeats where few were measured: which kind it is hangs on the small sizes too."""
        few = [
            point.size for point in points if _in_pairs(point) is None and len(point.new.values) < CONFIRMING_REPEATS
        ]
        drawn = {point.size: point for point in self.points(self.fresh(few))}
        return [drawn.get(point.size, point) for point in points]


def _bounds(curve: _Curve, points: Sequence[Point], expectations: Sequence[CurveExpectation]) -> list[MetricVerdict]:
    """The curve against what the test states; with further repeats where that is undecided."""
    found = _bounded(curve, expectations, points)
    if any(each.verdict == "inconclusive" for each in found):
        found = _bounded(curve, expectations, curve.points(curve.fresh(point.size for point in points)))
    return found


def _axes(trial: Trial) -> dict[str, list[CurveExpectation]]:
    """The parameters along which a test is a point of a curve, with what is expected of each.

    Raises
    ------
    ValueError
        An expectation names no parameter with numbers.
    """
    marked = list(trial.test.options.scaling or {})
    axes: dict[str, list[CurveExpectation]] = {name: [] for name in marked}
    for each in trial.curves:
        axis = each.axis or (marked[0] if len(marked) == 1 else "")
        if axis not in _sizes(trial.test):
            what = f"the test has no parameter {axis!r} with a number above 0" if axis else "axis is missing"
            raise ValueError(f"perf.assert_scaling({each.axis!r}): {what}")
        axes.setdefault(axis, []).append(each)
    return axes


def _sizes(test: PerfTest) -> dict[str, float]:
    """Parameters of a test that are numbers above zero."""
    params: Mapping[str, object] = getattr(getattr(test.item, "callspec", None), "params", {})
    return {
        name: float(value)
        for name, value in params.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    }


def _members(test: PerfTest, axis: str, tests: Sequence[PerfTest]) -> list[PerfTest]:
    """The tests that differ from one in a parameter only, in the order of the run."""
    return [each for each in tests if axis in _sizes(each) and _rest(each, axis) == _rest(test, axis)]


def _rest(test: PerfTest, axis: str) -> tuple[str, frozenset[tuple[str, str]]]:
    params: Mapping[str, object] = getattr(getattr(test.item, "callspec", None), "params", {})
    others = frozenset((name, repr(value)) for name, value in params.items() if name != axis)
    return test.item.nodeid.partition("[")[0], others


def _spread(series: Sequence[Series]) -> tuple[float, int]:
    """Standard deviation of log times between processes, pooled over sizes, with its degrees of freedom."""
    logs = [[math.log(value) for value in each.values] for each in series]
    freedom = sum(len(values) - 1 for values in logs)
    if not freedom:
        return ASSUMED_SD, 1000
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in logs if len(values) > 1)
    return max(math.sqrt(squares / freedom), SD_FLOOR), freedom


def _mean(series: Series) -> float:
    return statistics.fmean(math.log(value) for value in series.values)


def _base_ns(points: Sequence[Point]) -> dict[float, float]:
    return {point.size: math.exp(_mean(point.base)) for point in points if point.base is not None}


def _grown(points: Sequence[Point], *, unpaired: bool = False) -> tuple[Growth, str]:
    """What was added to the baselines' curve, and what that rests on."""
    import numpy as np

    from pytest_perfdl.predict.scaling.growth import grown

    bases = [point.base for point in points if point.base is not None]
    spread, freedom = _spread(bases)
    ratios, errors, common = [], [], []
    rounds = 0
    for point, base in zip(points, bases, strict=True):
        found = None if unpaired else _in_pairs(point)
        if found is not None:
            ratio, error = found
            rounds += 1
        else:
            ratio = _mean(point.new) - _mean(base)
            error = spread * math.sqrt(1 / len(base.values) + 1 / len(point.new.values))
        ratios.append(ratio)
        errors.append(error)
        common.append(0.0 if found is not None else OCCASION_SD)
    sizes, base_ns = np.array([point.size for point in points]), np.array(list(_base_ns(points).values()))
    growth = grown(sizes, base_ns, np.array(ratios), np.array(errors), freedom, np.array(common))
    evidence = f"{rounds} of {len(points)} sizes in paired rounds" if rounds else "unpaired"
    return growth, evidence


def _in_pairs(point: Point) -> tuple[float, float] | None:
    """What paired rounds said of a size: the logarithm of the ratio and its standard error; None without them."""
    found = point.judged
    if found is None or found.evidence != "paired" or found.effect is None or found.ci95 is None:
        return None
    if not -1 < found.ci95[0] <= found.ci95[1] < math.inf:
        return None
    low, high = map(math.log1p, found.ci95)
    return math.log1p(found.effect), max((high - low) / (2 * 1.96), SD_FLOOR / 2)


def _suspected(growth: Growth, limit: float) -> bool:
    """Whether further repeats are worth their time: as improbable as a time that the screen of one size suspects."""
    effect = growth.effect
    return effect.value > limit and effect.value > SUSPICION * (effect.value - effect.low)


def _verdict(growth: Growth, limit: float) -> Verdict:
    effect = growth.effect
    if effect.value > limit:
        return "suspect" if effect.low > 0 else "inconclusive"
    return "improved" if effect.high < -limit else "unchanged"


def _shape(points: Sequence[Point], series: Sequence[Series]) -> Shape:
    import numpy as np

    from pytest_perfdl.predict.scaling.growth import shape

    spread, freedom = _spread(series)
    sizes, ns = np.array([point.size for point in points]), np.exp([_mean(each) for each in series])
    return shape(sizes, ns, np.array([spread / len(each.values) ** 0.5 for each in series]), freedom)


def _bounded(curve: _Curve, expectations: Sequence[CurveExpectation], points: Sequence[Point]) -> list[MetricVerdict]:
    if not expectations:
        return []
    found = _shape(points, [point.new for point in points])
    metrics = []
    for each in expectations:
        demands = (
            ("largest exponent", "1", found.exponent, None if each.exponent is None else f"{each.exponent:g}"),
            ("largest fixed part", "ns", found.fixed, each.fixed),
            (f"most per {_unit(curve.axis)}", "ns", found.slope, each.per_unit),
        )
        for part, unit, estimate, text in demands:
            if text is not None:
                # What the machine does to all times alike, it does not do to their ratios.
                scale = 0.0 if unit == "1" else 1.96 * OCCASION_SD * estimate.value
                low, high = (math.hypot(end - estimate.value, scale) for end in (estimate.low, estimate.high))
                ends = estimate.value - low, estimate.value + high
                name = f"{curve.title}, {part}"
                metrics.append(bounded(name, unit, estimate.value, ends, parse_quantity(text, unit), text))
    return metrics


def _shapes(curve: _Curve, points: Sequence[Point]) -> list[MetricVerdict]:
    """Both curves in three figures, shown only: what does not scale, what one more costs, how steep it is."""
    bases = [point.base for point in points if point.base is not None]
    base, new = _shape(points, bases), _shape(points, [point.new for point in points])
    parts = (
        ("fixed part", "ns", base.fixed, new.fixed),
        (f"per {_unit(curve.axis)}", "ns", base.slope, new.slope),
        ("exponent", "1", base.exponent, new.exponent),
    )
    return [
        MetricVerdict(
            name=f"{curve.title}, {part}",
            kind="timed",
            unit=unit,
            better="lower",
            base=before.value,
            new=now.value,
            reason=f"{_estimate(before, unit)} -> {_estimate(now, unit)} (95% intervals)",
        )
        for part, unit, before, now in parts
    ]


def _reason(growth: Growth, axis: str, verdict: Verdict, evidence: str) -> str:
    effect = growth.effect
    low, high = format_percent(effect.low), format_percent(effect.high)
    text = f"{format_percent(effect.value)} [{low}, {high}] at {axis} {growth.size:g} (95% interval, {evidence})"
    if verdict == "inconclusive":
        return f"{text}: nothing is certain"
    if verdict not in ("regressed", "suspect"):
        return text
    name, amount = {
        "overhead": ("overhead regression", f"{_estimate(growth.amount, 'ns')} more at every size"),
        "per unit": (
            f"per-{_unit(axis)} regression",
            f"{_estimate(growth.amount, 'ns')} more per {axis}" + (f"^{growth.term}" if (growth.term or 1) > 1 else ""),
        ),
        "complexity": ("complexity regression", f"{_estimate(growth.amount, 'ns')} more per {axis}^{growth.term}"),
        "every size alike": (
            "every size alike",
            "the same share more at every size: one cause for all, or the machine",
        ),
    }[growth.kind]
    power = growth.power
    grows = f"what was added grows like {axis}^{power.value:.1f} [{power.low:.1f}, {power.high:.1f}]"
    return f"{name}: {text}: {amount}; {grows}"


def _unit(axis: str) -> str:
    return "sample" if axis in _SAMPLES else axis


def _estimate(found: Estimate, unit: str) -> str:
    if unit == "1":
        return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    value, low, high = (format_quantity(each, unit) for each in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _join(trial: Trial, metrics: Sequence[MetricVerdict], finding: Finding | None, fail_on: frozenset[Verdict]) -> None:
    """Add what was said of curves to a test's result."""
    result = trial.result
    assert result is not None
    known = result.judgement
    verdicts = [metric.verdict for metric in metrics if metric.verdict is not None]
    if finding is not None and finding.level == "invalid":
        verdicts.append("invalid")
    verdict = worst([*verdicts, known.verdict])
    telling = [f"{metric.name}: {metric.reason}" for metric in metrics if metric.verdict == verdict]
    if finding is not None and finding.level == verdict:
        telling.append(finding.message)
    reasons = [*telling, *([known.reason] if verdict == known.verdict or not telling else [])]
    judgement = replace(
        known,
        verdict=verdict,
        reason="; ".join(filter(None, reasons)) if verdict != "unchanged" else known.reason,
        metrics=(*known.metrics, *metrics),
        integrity=(*known.integrity, *([finding] if finding is not None else [])),
    )
    fails = verdict in fail_on and not (result.updated and verdict != "invalid")
    trial.result = replace(result, judgement=judgement, fails=fails)
