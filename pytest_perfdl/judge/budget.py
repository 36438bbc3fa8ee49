"""Budgets, absolute bounds that need no baseline, and waivers, which accept a slowdown up to a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pytest_perfdl.judge import reasons
from pytest_perfdl.judge.log_ratios import middle
from pytest_perfdl.judge.stopping_rule import GateOutcome
from pytest_perfdl.model.limits import PER_KERNEL, limit_of, limit_words
from pytest_perfdl.model.metrics import is_utilization
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.waivers import EVERY, Waiver
from pytest_perfdl.results.verdict import SLOWER, worst
from pytest_perfdl.stats.quantiles import student

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.judge.stopping_rule import Gate, Spent
    from pytest_perfdl.model.limits import Budget, Limit, Limits
    from pytest_perfdl.model.record import Series
    from pytest_perfdl.results.verdict import Judgement, MetricVerdict, Verdict


# Applies waivers: a metric that is slower than its limit, but within the limit of a waiver, does not fail its test.
#
# The metric keeps its verdict and has the waiver beside it; the verdict of the test is then `waived`. Whether the
# metric is within the limit of the waiver is decided by the statistics that decide about its own limit, on the same
# values: the metric fails the test only if it would be `regressed` under the waiver's limit. So where an interval
# contains that limit, the test is waived, as it would be `suspect` or `inconclusive` under a limit of its own. Paired
# rounds go on until this is decided (`Gate`), or the time budget ends.


def phrase(waiver: Waiver) -> str:
    """What is allowed, by whom, why and until when.

    >>> phrase(Waiver("t.py::test_a", "", "12%", "2026-12-01", "new attention", "ana"))
    'waived up to 12% until 2026-12-01 by ana: new attention'
    """
    return f"waived up to {limit_words(waiver.limit)} until {waiver.until} by {waiver.who}: {waiver.why}"


def apply_waiver(
    metric: MetricVerdict, limits: Limits, under: Callable[[Limit], MetricVerdict], *, name: str = ""
) -> MetricVerdict:
    """A metric with the waiver that covers it, or with a remark on why that waiver does not apply.

    Under another limit the verdict on the same values is that of `under`. Waivers know the metric by `name`, if that is
    not its own.
    """
    if metric.verdict not in SLOWER:
        return metric
    name = name or metric.name
    if (waiver := limits.waiver_for(name, of_step=metric.of_step)) is not None:
        return _keep_waiver(metric, waiver, under(limit_of(waiver)))
    if (expired := limits.waiver_for(name, of_step=metric.of_step, expired=True)) is not None:
        return reasons.with_remark(metric, f"the waiver of {expired.who} expired on {expired.until} ({expired.why})")
    return metric


def _keep_waiver(metric: MetricVerdict, waiver: Waiver, loose: MetricVerdict) -> MetricVerdict:
    if loose.verdict == "regressed" or loose.in_every_round:
        limit = limit_words(waiver.limit)
        return reasons.with_remark(metric, f"worse than the waiver of {waiver.who} allows ({limit}, {waiver.until})")
    unsure = "" if loose.verdict not in (*SLOWER, "inconclusive") else " (more than that cannot be excluded)"
    return reasons.with_remark(replace(metric, waiver=waiver, in_every_round=False), f"{phrase(waiver)}{unsure}")


@dataclass(slots=True)
class WaivedGate:
    """A `Gate` whose rounds go on, for times that are slower and waived, under the limits of their waivers."""

    gate: Gate
    """The rule under the test's own limits."""
    limits: Limits
    """The test's, with its waivers."""
    _found: GateOutcome = field(default=GateOutcome(open=True), init=False)
    """The outcome under the test's own limits, which later rounds do not change."""
    _second: Gate | None = field(default=None, init=False)
    """The rule for times with a waiver."""

    def look(self, rounds: Sequence[Round], spent: Spent | None = None) -> GateOutcome:
        """Decide from the rounds measured so far, as `Gate.look`; to be called after every round."""
        if self._found.open:
            self._found = self.gate.look(rounds, spent)
            if self._found.open:
                return self._found
            self._second = self._under_waivers()
        loose = GateOutcome(open=False) if self._second is None else self._second.look(rounds, spent)
        return loose if loose.open else GateOutcome(False, verdicts=self._joined(loose.verdicts))

    def _under_waivers(self) -> Gate | None:
        held = [
            replace(each, limit=limit_of(waiver))
            for each in self.gate.held
            if self._found.verdicts[each.name].verdict in SLOWER and (waiver := self.limits.waiver_for(each.name))
        ]
        # Only what is excluded above a waiver's limit itself is surely within it.
        return replace(self.gate, held=tuple(held), resolution=0.0) if held else None

    def _joined(self, loose: Mapping[str, MetricVerdict]) -> dict[str, MetricVerdict]:
        """The verdicts under the test's own limits, with the numbers of all rounds where a waiver needed more."""
        return {
            name: apply_waiver(
                _of_all_rounds(metric, loose[name]) if name in loose else metric,
                self.limits,
                lambda _, name=name: loose[name],  # type: ignore[misc]
            )
            for name, metric in self._found.verdicts.items()
        }


def _of_all_rounds(metric: MetricVerdict, later: MetricVerdict) -> MetricVerdict:
    """A verdict with the numbers of all rounds, including those after it."""
    if metric.rounds == later.rounds or later.effect is None:
        return metric
    scale = later.effect / metric.effect if metric.effect else 1.0
    shown = replace(
        metric,
        base=later.base,
        new=later.new,
        effect=later.effect,
        ci95=later.ci95,
        excluded=later.excluded,
        rounds=later.rounds,
        times_over=None if metric.times_over is None else metric.times_over * scale,
    )
    return reasons.with_reason(shown, reasons.interval(shown, reasons.name_rounds(later.rounds or 0)))


def waive_rows(rows: Iterable[MetricVerdict], limits: Limits) -> tuple[MetricVerdict, ...]:
    """Kernels and operators with their waivers.

    A waiver of every metric covers them whatever their change, since that is part of the change of the step, to which
    its limit applies. A waiver of `per_kernel` has a limit for them.
    """
    return tuple(
        replace(row, waiver=waiver)
        if (waiver := limits.waiver_for(row.name, of_step=False)) is not None and waiver.metric == EVERY
        else waive_by_interval(row, limits)
        for row in rows
    )


def cover_rows(limits: Limits) -> bool:
    """Whether kernels and operators cannot fail the test, so that no rounds are needed for them."""
    waiver = limits.waiver_for(f"kernel {PER_KERNEL}", of_step=False)
    return waiver is not None and waiver.metric == EVERY


def waive_by_interval(metric: MetricVerdict, limits: Limits, *, name: str = "") -> MetricVerdict:
    """A metric with its waiver, where only its interval is known: worse than allowed if the whole interval is."""

    def under(limit: Limit) -> MetricVerdict:
        base = metric.base or 0.0
        allowed = limit.allowed(base, metric.unit)
        if metric.ci95 is None or not base:
            worse = abs((metric.new or 0.0) - base)
        else:
            worse = base * (metric.ci95[0] if metric.better == "lower" else -metric.ci95[1])
        return metric if worse > allowed else replace(metric, verdict="unchanged")

    return apply_waiver(metric, limits, under, name=name)


def hold(metric: MetricVerdict, series: Series, limits: Limits) -> MetricVerdict:
    """The worse of what a metric's limit and its budget say: it is past its budget when every repeat or round is.

    How well the machine is used varies with it: past its budget is then a mean whose 97.5 % bound is. A waiver allows
    to exceed the budget by its limit.
    """
    budget = limits.budget_for(metric.name)
    if budget is None:
        return metric

    def against(bound: Budget) -> MetricVerdict:
        verdict, why = (_judge_mean if is_utilization(metric.name) else _judge_processes)(series, bound)
        shown = fmean(series.values) if is_utilization(metric.name) else middle(series)
        where = "within" if verdict == "unchanged" else "outside"
        return replace(
            metric,
            limit=bound.related(series.better),
            verdict=verdict,
            reason=f"{format_quantity(shown, series.unit)}, {where} the budget {bound.related(series.better)}{why}",
            times_over=_times_over(series, bound, shown) if verdict == "regressed" else None,
            in_every_round=False,
            waiver=None,
        )

    held = against(budget)
    if metric.outcome is not None and worst([metric.outcome, held.verdict or "unchanged"]) == metric.outcome:
        return metric
    return apply_waiver(held, limits, lambda slack: against(replace(budget, slack=slack)))


def fails_utilization(metric: MetricVerdict) -> bool:
    """Whether a utilization metric is outside its budget."""
    return metric.outcome == "regressed" and metric.is_held_to_budget and is_utilization(metric.name)


def doubt_utilization(found: Judgement, why: str) -> Judgement:
    """The judgement if the machine is below its recorded peak rates: utilization budgets do not fail the test.

    Their reasons say `why`: which rates it does not reach.
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
    return replace(found, metrics=metrics, verdict="suspect", reason=reasons.explain_test("suspect", metrics, None, ""))


def count_past(series: Series, budget: Budget) -> int:
    """Number of processes outside the budget."""
    return sum(_exceeds(value, series, budget) for value in series.values)


def _judge_processes(series: Series, budget: Budget) -> tuple[Verdict, str]:
    """The verdict on every process, and what is said beside the budget."""
    number = count_past(series, budget)
    if number == len(series.values):
        return "regressed", " in all processes" if number > 1 else ""
    if number:
        return "inconclusive", f" in {number} of {len(series.values)} processes"
    return "unchanged", ""


def _judge_mean(series: Series, budget: Budget) -> tuple[Verdict, str]:
    """Student's bound on the mean of the processes, one-sided with 97.5 % confidence."""
    count, mean = len(series.values), fmean(series.values)
    if not _exceeds(mean, series, budget):
        return "unchanged", ""
    if count < _LEAST_VALUES:
        return "inconclusive", f"; at least {_LEAST_VALUES} processes are needed, but the run measured only {count}"
    width = student(_BOUND, count - 1) * stdev(series.values) / math.sqrt(count)
    bound = mean - width if series.better == "lower" else mean + width
    if _exceeds(bound, series, budget):
        return "regressed", " (97.5% confidence)"
    return "inconclusive", f"; however, a mean of {format_quantity(bound, series.unit)} cannot be excluded"


_BOUND = 0.975
_LEAST_VALUES = 3


def _exceeds(value: float, series: Series, budget: Budget) -> bool:
    bound = budget.bound(series.unit, series.better)
    return value > bound if series.better == "lower" else value < bound


def _times_over(series: Series, budget: Budget, shown: float) -> float | None:
    bound = budget.bound(series.unit, series.better)
    above, below = (shown, bound) if series.better == "lower" else (bound, shown)
    return above / below if above and below else None
