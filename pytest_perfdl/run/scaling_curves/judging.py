"""The flow for curves: when a curve is complete, which repeats it needs, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import waivers
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Finding
from pytest_perfdl.run.expectations import joined
from pytest_perfdl.run.scaling_curves.compared import Compared, compared
from pytest_perfdl.run.scaling_curves.points import Family, MeasuredTest, SizePoint
from pytest_perfdl.run.scaling_curves.shown import figures, shown
from pytest_perfdl.run.scaling_curves.sizes import axes, members, sizes, without_parameters
from pytest_perfdl.run.scaling_curves.verdicts import of_bounds, of_figures, of_growth, suspected, verdict_on

if TYPE_CHECKING:
    from pytest_perfdl.fixture.requests import CurveExpectation
    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.results.run import Result
    from pytest_perfdl.results.verdict import MetricVerdict
    from pytest_perfdl.run.collection import PerfTest
    from pytest_perfdl.run.context import RunContext
    from pytest_perfdl.run.measurement import Measurement

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
            return self._joined(result, [], Finding("invalid", "curve", str(error)))
        for axis, expectations in found.items():
            tests = members(test, axis, self._context.tests)
            if self._are_over(tests):
                result = self._with_curves(known, axis, expectations, tests)
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

    def _with_curves(
        self, last: MeasuredTest, axis: str, expectations: Sequence[CurveExpectation], tests: Sequence[PerfTest]
    ) -> Result:
        measured = self._points(axis, tests)
        if len(measured) < LEAST_SIZES:
            said = f"the curve over {axis} was not compared: {len(measured)} of {len(tests)} sizes measured"
            return self._joined(last.result, [], Finding("note", "curve", said))
        self._judged.add(_ids(tests))
        records = {size: each.result.new for size, each in measured.items() if each.result.new}
        result = last.result
        for name in (each for each in records[max(records)].metrics() if general(each) == "step_time"):
            family = Family(name, axis, measured)
            points = family.points(records)
            if len(points) >= LEAST_SIZES:
                result = self._with_curve(last.measurement.test, result, family, points, expectations)
        return result

    def _with_curve(
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
            result = self._joined(result, [growth, *of_figures(family, figures(points, found))], of_baseline=True)
        bounds = of_bounds(family, expectations, points)
        if any(each.verdict == "inconclusive" for each in bounds):
            drawn = family.fresh(points)
            bounds = of_bounds(family, expectations, drawn)
            points = points if found is not None else drawn
        result = self._joined(result, bounds)
        return replace(result, curves=(*result.curves, shown(family, points, found)))

    def _growth(self, family: Family, points: Sequence[SizePoint], limits: Limits) -> tuple[Compared, MetricVerdict]:
        """The curve against the baselines'; suspected by what there is, confirmed by further repeats."""
        found = compared(points)
        paired = found.paired == len(points)
        limit, share = _limit(limits if paired else limits.unpaired(), family)
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
        return found, waivers.by_interval(growth, limits, name=family.metric)

    def _joined(
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


def _limit(limits: Limits, family: Family) -> tuple[Limit | None, float]:
    """What the curve is held to, and that as a share: infinite where nothing limits it."""
    limit = limits.for_metric(family.metric)
    return limit, math.inf if limit is None or limit.relative is None else limit.relative
