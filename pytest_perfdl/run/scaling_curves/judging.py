"""The story of a run's curves: which test ends one, what further repeats it draws, and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Finding
from pytest_perfdl.run.expectations import joined
from pytest_perfdl.run.scaling_curves.compared import Compared, compared
from pytest_perfdl.run.scaling_curves.points import Family, Point
from pytest_perfdl.run.scaling_curves.shown import figures, shown
from pytest_perfdl.run.scaling_curves.sizes import axes, members, sizes
from pytest_perfdl.run.scaling_curves.verdicts import of_bounds, of_figures, of_growth, suspected, verdict_on

if TYPE_CHECKING:
    from pytest_perfdl.fixture.perf import CurveExpectation
    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.results.verdict import MetricVerdict
    from pytest_perfdl.run.collection import PerfTest
    from pytest_perfdl.run.context import Bench
    from pytest_perfdl.run.perf_test import Trial

LEAST_SIZES = 3
"""Two sizes are no curve."""


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
            found = axes(trial)
        except ValueError as error:
            self._join(trial, [], Finding("invalid", "curve", str(error)))
            return
        for axis, expectations in found.items():
            tests = members(test, axis, self._bench.tests)
            if tests and tests[-1] is test:
                self._judge(trial, axis, expectations, tests)

    def _judge(
        self, last: Trial, axis: str, expectations: Sequence[CurveExpectation], tests: Sequence[PerfTest]
    ) -> None:
        trials = {
            sizes(test)[axis]: found
            for test in tests
            if (found := self._trials.get(test.item.nodeid))
            and found.result is not None
            and found.result.new
            # A measurement that broke is no point of a curve.
            and found.result.judgement.verdict != "invalid"
        }
        if len(trials) < LEAST_SIZES:
            said = f"the curve over {axis} was not judged: {len(trials)} of {len(tests)} sizes were measured"
            self._join(last, [], Finding("note", "curve", said))
            return
        records = {size: trial.result.new for size, trial in trials.items() if trial.result and trial.result.new}
        for name in (each for each in records[max(records)].metrics() if general(each) == "step_time"):
            family = Family(name, axis, trials)
            points = family.points(records)
            if len(points) >= LEAST_SIZES:
                self._judge_one(last, family, points, expectations)

    def _judge_one(
        self, last: Trial, family: Family, points: Sequence[Point], expectations: Sequence[CurveExpectation]
    ) -> None:
        """One metric's curve, against the baselines' where every size has one, and against the test's bounds."""
        found = None
        if all(point.base is not None for point in points):
            found, growth = self._growth(family, points, last.test.limits)
            points = found.points
            self._join(last, [growth, *of_figures(family, figures(points, found))], of_baseline=True)
        bounds = of_bounds(family, expectations, points)
        if any(each.verdict == "inconclusive" for each in bounds):
            drawn = family.fresh(points)
            bounds = of_bounds(family, expectations, drawn)
            points = points if found is not None else drawn
        self._join(last, bounds)
        assert last.result is not None
        last.result = replace(last.result, curves=(*last.result.curves, shown(family, points, found)))

    def _growth(self, family: Family, points: Sequence[Point], limits: Limits) -> tuple[Compared, MetricVerdict]:
        """The curve against the baselines'; suspected by what there is, confirmed by further repeats."""
        found = compared(points)
        paired = found.paired == len(points)
        limit, share = _limit(limits if paired else limits.unpaired(), family)
        verdict = verdict_on(found.growth, share)
        if paired:
            verdict = "regressed" if found.growth.effect.low > share else verdict
        elif suspected(found.growth, share) and self._bench.settings.update is None:
            known = any(point.judged is not None and point.judged.verdict == "regressed" for point in points)
            found = compared(family.sharpened(points) if known or found.paired else family.fresh(points))
            verdict = verdict_on(found.growth, share)
            if verdict == "suspect" and (known or found.growth.effect.low > share):
                verdict = "regressed"
        return found, of_growth(family, found, verdict, limit, share, paired=paired)

    def _join(
        self,
        trial: Trial,
        metrics: Sequence[MetricVerdict],
        finding: Finding | None = None,
        *,
        of_baseline: bool = False,
    ) -> None:
        assert trial.result is not None
        findings = [finding] if finding is not None else []
        trial.result = joined(trial.result, metrics, findings, fail_on=self._bench.fail_on, of_baseline=of_baseline)


def _limit(limits: Limits, family: Family) -> tuple[Limit | None, float]:
    """What the curve is held to, and that as a share: infinite where nothing limits it."""
    limit = limits.for_metric(family.metric)
    return limit, math.inf if limit is None or limit.relative is None else limit.relative
