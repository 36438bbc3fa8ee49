"""Budgets: absolute bounds, which need no baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pytest_perfdl.judge import reasons, waivers
from pytest_perfdl.model.metrics import is_utilization
from pytest_perfdl.results.verdict import worst
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from pytest_perfdl.model.limits import Budget, Limits
    from pytest_perfdl.model.record import Series
    from pytest_perfdl.results.verdict import Judgement, MetricVerdict, Verdict


def hold(metric: MetricVerdict, series: Series, limits: Limits) -> MetricVerdict:
    """The worse of what a metric's limit and its budget say: it is past its budget when every repeat or round is.

    How well the machine is used varies with it: past its budget is then a mean whose 97.5 % bound is. A waiver allows
    to exceed the budget by its limit.
    """
    budget = limits.budget_for(metric.name)
    if budget is None:
        return metric

    def against(bound: Budget) -> MetricVerdict:
        verdict, reason = (_of_mean if is_utilization(metric.name) else _verdict)(series, bound, shown=metric.new)
        return replace(
            metric,
            limit=bound.phrase(series.better),
            verdict=verdict,
            reason=reason,
            times_over=_times_over(series, bound, metric.new) if verdict == "regressed" else None,
            in_every_round=False,
            waiver=None,
        )

    held = against(budget)
    if metric.outcome is not None and worst([metric.outcome, held.verdict or "unchanged"]) == metric.outcome:
        return metric
    return waivers.applied(held, limits, lambda slack: against(replace(budget, slack=slack)))


def fails_utilization(metric: MetricVerdict) -> bool:
    """Whether a utilization metric is outside its budget."""
    return metric.outcome == "regressed" and metric.is_held_to_budget and is_utilization(metric.name)


def doubted(found: Judgement, why: str) -> Judgement:
    """The judgement if the machine is below its recorded peak rates: utilization budgets do not fail the test.

    Parameters
    ----------
    why
        Which rates it does not reach, in one line.
    """
    metrics = tuple(
        replace(each, verdict="suspect", reason=f"{each.reason}; {why}", times_over=None)
        if fails_utilization(each)
        else each
        for each in found.metrics
    )
    others = {each.outcome for each in (*metrics, *found.environment)}
    if found.verdict != "regressed" or "regressed" in others:
        return replace(found, metrics=metrics)
    return replace(found, metrics=metrics, verdict="suspect", reason=reasons.of_test("suspect", metrics, None, ""))


def past(series: Series, budget: Budget) -> int:
    """Number of processes outside the budget."""
    return sum(_exceeds(value, series, budget) for value in series.values)


def _verdict(series: Series, budget: Budget, *, shown: float | None) -> tuple[Verdict, str]:
    held = f"budget {budget.phrase(series.better)}"
    number = past(series, budget)
    size = "" if shown is None else f"{reasons.value(shown, series.unit)}, "
    if number == len(series.values):
        return "regressed", f"{size}outside the {held}" + (" in all processes" if number > 1 else "")
    if number:
        return "inconclusive", f"{size}outside the {held} in {number} of {len(series.values)} processes"
    return "unchanged", f"{size}within the {held}"


def _of_mean(series: Series, budget: Budget, *, shown: float | None) -> tuple[Verdict, str]:
    """Student's bound on the mean of the processes, one-sided with 97.5 % confidence."""
    held = f"budget {budget.phrase(series.better)}"
    size = "" if shown is None else f"{reasons.value(shown, series.unit)}, "
    count, mean = len(series.values), fmean(series.values)
    if not _exceeds(mean, series, budget):
        return "unchanged", f"{size}within the {held}"
    if count < _LEAST_VALUES:
        few = f"at least {_LEAST_VALUES} processes are needed, but the run measured only {count}"
        return "inconclusive", f"{size}outside the {held}; {few}"
    width = student(_BOUND, count - 1) * stdev(series.values) / math.sqrt(count)
    bound = mean - width if series.better == "lower" else mean + width
    if _exceeds(bound, series, budget):
        return "regressed", f"{size}outside the {held} (97.5% confidence)"
    return (
        "inconclusive",
        f"{size}outside the {held}; however, a mean of {reasons.value(bound, series.unit)} cannot be excluded",
    )


_BOUND = 0.975
_LEAST_VALUES = 3


def _exceeds(value: float, series: Series, budget: Budget) -> bool:
    bound = budget.bound(series.unit, series.better)
    return value > bound if series.better == "lower" else value < bound


def _times_over(series: Series, budget: Budget, shown: float | None) -> float | None:
    bound = budget.bound(series.unit, series.better)
    above, below = (shown, bound) if series.better == "lower" else (bound, shown)
    return above / below if above and below else None
