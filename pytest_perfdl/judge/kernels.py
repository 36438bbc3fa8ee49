"""Compares kernels and operators with the baseline one by one, however small their part of the step is.

A kernel may be 1.5 times slower and change the step by less than its noise. So every row of the step is also compared
with the limit `per_kernel`, using the profiled steps of the same rounds and the same statistics as for metrics
(`stopping_rule`): a row fails a test if its evidence is at least `tests * rows / ALPHA` and it is over its limit with a
probability of `stopping_rule.OVER`. Rows below functions with source changes have a separate level: they are fewer, so
they need fewer rounds. A row with another count is `changed`, and its time is not compared.

The rows to compare are fixed before the signs of the rounds are known, by their share of both sides together.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.judge import reasons
from pytest_perfdl.judge.reasons import name_rounds, same
from pytest_perfdl.judge.round_data import Round, head_second, profiled
from pytest_perfdl.judge.stopping_rule import LEAST_ROUNDS, OVER, Held, add_estimate
from pytest_perfdl.model.limits import PER_KERNEL, Budget, Expected, parse_limit
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import call_of_row, metric_name, row_name
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.stats.evidence import Estimate, evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_perfdl.judge.stopping_rule import Floats
    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.model.record import Call, Record, Row
    from pytest_perfdl.results.verdict import Verdict


ALPHA = 0.0025
"""Chance that any test of a run is called `regressed` for a row, were all code unchanged: once for the rows below
touched functions, and once for all others."""
LEAST_SHARE = 0.005
"""Rows with a smaller part of the step are not judged."""
PROMISING = 0.05
"""A row prolongs the rounds while it is not over its limit with less than this probability, shared by all rows."""
WATCHED = 0.9
"""Rounds go on to be profiled while a row is over its limit with this probability."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a test that rounds judge."""

    limits: Mapping[str, Limit]
    """By the row's full name (`model.record.row_name`)."""
    touched: frozenset[str] = frozenset()
    """Those of them below functions that the change of the source touches."""
    tests: int = 1
    """How many tests share the level."""

    def needed(self, name: str) -> float:
        """The evidence at which a row fails the test."""
        mine = name in self.touched
        return self.tests * sum((each in self.touched) == mine for each in self.limits) / ALPHA

    def regressed(self, rounds: Sequence[Round]) -> tuple[MetricVerdict, ...]:
        """The verdicts on rows that are slower in these rounds, largest effect first.

        Rows that a profiled round lacks on either side are left out; appearing or disappearing is a change of counts.
        """
        found = [verdict for verdict, fails in self._over(rounds, OVER) if fails]
        return tuple(sorted(found, key=lambda verdict: (-(verdict.effect or 0.0), verdict.name)))

    def promising(
        self, rounds: Sequence[Round], verdicts: Mapping[str, MetricVerdict] | None = None
    ) -> tuple[MetricVerdict, ...]:
        """Rows that look slower but have not failed the test; more rounds could decide.

        Rows of a call whose step has `improved`, by the `verdicts` on times, are left out: a kernel that takes longer
        is then the price of the others, such as a larger one that replaces many, unless it surely is slower.
        """
        improved = {
            name.rpartition(".")[0]
            for name, each in (verdicts or {}).items()
            if general(name) == "step_time" and each.verdict == "improved"
        }
        if len(profiled(rounds)) < LEAST_ROUNDS:
            return ()
        least = 1 - PROMISING / max(len(self.limits), 1)
        return tuple(
            reasons.with_remark(
                replace(verdict, verdict="suspect", times_over=None), "more paired rounds are needed", ": "
            )
            for verdict, fails in self._over(rounds, least)
            if not fails and call_of_row(verdict.name) not in improved
        )

    def watched(self, rounds: Sequence[Round]) -> bool:
        """Whether a row may turn out to be slower, so that the next round has to be profiled."""
        return any(
            # Estimates take milliseconds, and few rows come so far.
            statistics.median(estimate.differences) > _past(limit) and estimate.over(_past(limit)) >= WATCHED
            for _, limit, _, estimate in self._states(rounds)
        )

    def _over(self, rounds: Sequence[Round], least: float) -> Iterator[tuple[MetricVerdict, bool]]:
        """The rows that are over their limits with at least this probability, and whether each fails the test."""
        for name, limit, head, estimate in self._states(rounds):
            past = _past(limit)
            # Most rows are within their limits in every round, and estimates take milliseconds.
            if max(estimate.differences) > past and estimate.over(past) >= least:
                fails = evidence(estimate.differences, past) >= self.needed(name)
                yield _verdict(name, limit, head, estimate), fails

    def _states(self, rounds: Sequence[Round]) -> Iterator[tuple[str, Limit, Floats, Estimate]]:
        """Of each row that all profiled rounds have on both sides: the current times in ns, and the estimate."""
        rounds = profiled(rounds)
        second = head_second(rounds)
        for name, limit in self.limits.items():
            pairs = [(each.kernels_base.get(name, 0.0), each.kernels_head.get(name, 0.0)) for each in rounds]
            if pairs and min(map(min, pairs)) > 0:
                base, head = np.array(pairs).T
                yield name, limit, head, Estimate(tuple((np.log(head) - np.log(base)).tolist()), second)


def select_rows(new: Record, base: Record, limits: Limits) -> dict[str, Limit]:
    """The kernels and operators on both sides, as often, with at least `LEAST_SHARE` of the step on the mean of both.

    The mean of both sides does not depend on which of them is which.
    """
    found: dict[str, Limit] = {}
    before = {call.name: call for call in base.calls}
    for call in new.calls:
        limit, old = limits.for_metric(metric_name(call.name, PER_KERNEL)), before.get(call.name)
        if limit is None or old is None:
            continue
        rows = {(row.kind, row.name): row for row in old.rows}
        for row in call.rows:
            was = rows.get((row.kind, row.name))
            if row.kind == "idle" or was is None or not same(was.count, row.count):
                continue
            if (_share(was, old) + _share(row, call)) / 2 >= LEAST_SHARE:
                found[row_name(call.name, row.kind, row.name)] = limit
    return found


def _past(limit: Limit) -> float:
    return math.log1p(limit.relative or 0.0)


def _verdict(name: str, limit: Limit, head: Floats, estimate: Estimate) -> MetricVerdict:
    rounds = len(estimate.differences)
    found = MetricVerdict(
        name=name,
        kind="timed",
        unit="ns",
        better="lower",
        base=None,
        new=None,
        limit=limit,
        verdict="regressed",
        evidence="paired",
        rounds=rounds,
        of_step=False,
    )
    shown = add_estimate(found, head, estimate)
    if limit.relative and shown.effect is not None:
        shown = replace(shown, times_over=shown.effect / limit.relative)
    return reasons.with_reason(shown, reasons.interval(shown, reasons.name_rounds(rounds)))


def _share(row: Row, call: Call) -> float:
    return statistics.fmean(row.ns) / statistics.fmean(call.profiled_ns)


# Verdicts on `perf.compare`, with the same paired rounds as for a suspect; and on bounds of a curve (`judge_bound`).
#
# *Not slower within w* is the gate itself. *Faster by p* is the gate with exchanged sides: the first alternative takes
# longer than the second by more than `1 / (1 - p) - 1`. A difference is shown with the false-positive rate of the run,
# its size with a probability of 95 %; a refuted assertion fails, an undecided one is `inconclusive`.


def is_expected(metric: MetricVerdict) -> bool:
    """Whether a metric is of two alternatives of `perf.compare`, rather than of a baseline and the current code."""
    return isinstance(metric.limit, Expected)


def demand(metric: str, expected: Expected) -> Held:
    """The paired test that decides an assertion about a time."""
    limit = parse_limit(metric, expected.amount)
    if expected.kind == "faster":
        assert limit.relative is not None
        limit = replace(limit, relative=1 / (1 - limit.relative) - 1)
    return Held(metric, limit)


def order_sides(rounds: Sequence[Round], expected: Expected) -> list[Round]:
    """The rounds in the order that `demand` requires."""
    return list(rounds) if expected.kind == "not slower" else [_exchanged(each) for each in rounds]


def judge_comparison(found: MetricVerdict, expected: Expected, labels: tuple[str, str]) -> MetricVerdict:
    """The verdict on an assertion; `labels` name the first and the second alternative."""
    found = replace(found, limit=expected, times_over=None, in_every_round=False)
    if expected.kind == "faster":
        found = _turned(found)
    basis = name_rounds(found.rounds or 0)
    text = f"{labels[1]} compared with {labels[0]}: {_speed(found, basis)}".rstrip(": ")
    if found.verdict == "invalid":
        return replace(found, reason=f"{text}, expected {expected}: {found.reason}")
    if found.verdict in ("suspect", "inconclusive", None):
        why = "undecided when the time budget ended (--perf-budget)"
        return replace(found, verdict="inconclusive", reason=f"{text}, expected {expected}: {why}")
    holds = (found.verdict == "regressed") == (expected.kind == "faster")
    said: Verdict = "unchanged" if holds else "regressed"
    return replace(found, verdict=said, reason=f"{text}, expected {expected}")


def _speed(found: MetricVerdict, basis: str) -> str:
    """How fast the second alternative is as a multiple of the first, "1.35x as fast [1.31x, 1.39x] (...)"."""
    if found.effect is None or found.effect <= -1:
        return ""
    text = f"{1 / (1 + found.effect):.2f}x as fast"
    if found.ci95 is None or min(found.ci95) <= -1:
        return text
    low, high = sorted(1 / (1 + end) for end in found.ci95)
    return f"{text} [{low:.2f}x, {high:.2f}x] (95% interval, {basis})"


def judge_bound(
    name: str, unit: str, value: float, ci95: tuple[float, float], bound: float, text: str
) -> MetricVerdict:
    """The verdict on a bound of a curve: regressed or unchanged if the whole interval is on one side of the bound.

    `bound` is the largest allowed value, `text` how the test's author wrote it.
    """
    low, high = ci95
    verdict: Verdict = "regressed" if low > bound else "unchanged" if high <= bound else "inconclusive"
    found = f"{_number(value, unit)} [{_number(low, unit)}, {_number(high, unit)}] (95% interval), expected <= {text}"
    return MetricVerdict(
        name=name,
        kind="timed",
        unit=unit,
        better="lower",
        base=None,
        new=value,
        limit=Budget(text, "<="),
        verdict=verdict,
        reason=f"{found}: the interval contains the bound; use more processes (--perf-repeats)"
        if verdict == "inconclusive"
        else found,
        times_over=value / bound if verdict == "regressed" and bound > 0 else None,
    )


def _number(value: float, unit: str) -> str:
    return f"{value:.2f}" if unit == "1" else format_quantity(value, unit)


def _exchanged(each: Round) -> Round:
    order: Literal["base first", "head first"] = "head first" if each.order == "base first" else "base first"
    return Round(order=order, base=each.head, head=each.base)


def _turned(metric: MetricVerdict) -> MetricVerdict:
    """The verdict with exchanged sides, as the change from the first alternative to the second."""

    def turned(ratio: float) -> float:
        return 1 / (1 + ratio) - 1

    return replace(
        metric,
        base=metric.new,
        new=metric.base,
        effect=None if metric.effect is None else turned(metric.effect),
        ci95=None if metric.ci95 is None else (turned(metric.ci95[1]), turned(metric.ci95[0])),
        excluded=None,
    )
