"""Budgets: absolute bounds, which need no baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pytest_perfdl.judge import reasons
from pytest_perfdl.model.metrics import is_utilization
from pytest_perfdl.results.verdict import worst
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from pytest_perfdl.model.limits import Budget
    from pytest_perfdl.model.record import Series
    from pytest_perfdl.results.verdict import Judgement, MetricVerdict, Verdict


def hold(metric: MetricVerdict, series: Series, budget: Budget | None) -> MetricVerdict:
    """The worse of what a metric's limit and its budget say: it is past its budget when every repeat or round is.

    How well the machine is used varies with it: past its budget is then a mean whose 97.5 % bound is.
    """
    if budget is None:
        return metric
    by_mean = is_utilization(metric.name)
    verdict, reason = (_of_mean if by_mean else _verdict)(series, budget, shown=metric.new)
    if metric.verdict is not None and worst([metric.verdict, verdict]) == metric.verdict:
        return metric
    return replace(
        metric,
        limit=budget.phrase(series.better),
        verdict=verdict,
        reason=reason,
        times_over=_times_over(series, budget, metric.new) if verdict == "regressed" else None,
    )


def fails_utilization(metric: MetricVerdict) -> bool:
    """Whether a metric of how well the machine is used is past its budget."""
    return metric.verdict == "regressed" and metric.is_held_to_budget and is_utilization(metric.name)


def doubted(found: Judgement, why: str) -> Judgement:
    """The judgement where the machine no longer does what utilization is held against: budgets of it fail nothing.

    Parameters
    ----------
    why
        What it no longer does, in one line.
    """
    metrics = tuple(
        replace(each, verdict="suspect", reason=f"{each.reason}; {why}", times_over=None)
        if fails_utilization(each)
        else each
        for each in found.metrics
    )
    others = {each.verdict for each in (*metrics, *found.environment)}
    if found.verdict != "regressed" or "regressed" in others:
        return replace(found, metrics=metrics)
    return replace(found, metrics=metrics, verdict="suspect", reason=reasons.of_test("suspect", metrics, None, ""))


def past(series: Series, budget: Budget) -> int:
    """How many repeats are past the budget."""
    return sum(_exceeds(value, series, budget) for value in series.values)


def _verdict(series: Series, budget: Budget, *, shown: float | None) -> tuple[Verdict, str]:
    held = f"budget {budget.phrase(series.better)}"
    number = past(series, budget)
    size = "" if shown is None else f"{reasons.value(shown, series.unit)}, "
    if number == len(series.values):
        return "regressed", f"{size}past its {held}" + (" in every repeat" if number > 1 else "")
    if number:
        return "inconclusive", f"{size}past its {held} in {number} of {len(series.values)} repeats"
    return "unchanged", f"{size}within its {held}"


def _of_mean(series: Series, budget: Budget, *, shown: float | None) -> tuple[Verdict, str]:
    """Student's bound on the mean of the repeats or rounds, one-sided with 97.5 %."""
    held = f"budget {budget.phrase(series.better)}"
    size = "" if shown is None else f"{reasons.value(shown, series.unit)}, "
    count, mean = len(series.values), fmean(series.values)
    if not _exceeds(mean, series, budget):
        return "unchanged", f"{size}within its {held}"
    if count < _LEAST_VALUES:
        return "inconclusive", f"{size}past its {held} in {count} of {_LEAST_VALUES} repeats that are needed to say so"
    width = student(_BOUND, count - 1) * stdev(series.values) / math.sqrt(count)
    bound = mean - width if series.better == "lower" else mean + width
    if _exceeds(bound, series, budget):
        return "regressed", f"{size}past its {held} (97.5%)"
    return (
        "inconclusive",
        f"{size}past its {held}, not for certain: {reasons.value(bound, series.unit)} is not excluded",
    )


_BOUND = 0.975
_LEAST_VALUES = 3


def _exceeds(value: float, series: Series, budget: Budget) -> bool:
    bound = budget.bound(series.unit)
    return value > bound if series.better == "lower" else value < bound


def _times_over(series: Series, budget: Budget, shown: float | None) -> float | None:
    bound = budget.bound(series.unit)
    above, below = (shown, bound) if series.better == "lower" else (bound, shown)
    return above / below if above and below else None
