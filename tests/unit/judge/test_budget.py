"""Budgets: absolute bounds, judged with and without a baseline, before and after confirmation."""

import statistics

import pytest
from making import counted, record, timed

from pytest_perfdl.judge.budget import doubt_utilization, fails_utilization
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.stored_repeats import confirm, is_settled
from pytest_perfdl.judge.untimed import open_times, standing
from pytest_perfdl.model.limits import BUILT_IN, Limits
from pytest_perfdl.model.units import format_quantity
from unit.judge import made_rounds

UNPAIRED = BUILT_IN.unpaired()

MS = 1_000_000
BASE = record({"step_time": timed(*(40.0 * MS,) * 5)})


def of(*milliseconds):
    return record({"step_time": timed(*(value * MS for value in milliseconds))})


def budgets(**named):
    return Limits.parse({}, named)


@pytest.mark.parametrize("better, budget, values, verdict, times_over", [
    ("lower", 10, (10,), "unchanged", None),
    ("lower", 10, (11,), "regressed", 1.1),
    ("lower", 0, (1,), "regressed", None),
    ("higher", 10, (10,), "unchanged", None),
    ("higher", 10, (8,), "regressed", 1.25),
    ("lower", 10, (11, 9), "inconclusive", None),
    ("lower", 10, (11, 12), "regressed", 1.15),
    ("lower", 10, (9, 8), "unchanged", None),
])  # fmt: skip
def test_a_counted_metric_needs_no_baseline_to_break_its_budget(better, budget, values, verdict, times_over):
    judgement = standing(record({"ops": counted(*values, better=better)}), None, (), budgets(ops=budget))
    metric = judgement.metrics[0]
    assert metric.verdict == verdict
    assert str(metric.limit) == f"{'<=' if better == 'lower' else '>='} {budget}"
    assert metric.times_over == (None if times_over is None else pytest.approx(times_over))
    assert judgement.verdict == ("regressed" if verdict == "regressed" else "missing")


def test_the_reason_says_the_value_and_the_budget():
    judgement = standing(record({"ops": counted(12)}), None, (), budgets(ops=10))
    assert judgement.reason == "ops 12, outside the budget <= 10; no baseline recorded yet"


@pytest.mark.parametrize("value", [45, 45.001])
def test_times_are_held_to_their_budget_by_what_judges_them(value):
    limits = budgets(step_time="45ms")
    judgement = standing(of(value), None, (), limits)
    assert judgement.metrics[0].verdict is None
    assert open_times(judgement, limits) == ("step_time",)
    assert judgement.verdict == "missing"
    kept = confirm(judgement, None, of(value), limits)
    assert kept.metrics[0].verdict == ("unchanged" if value == 45 else "regressed")


@pytest.mark.parametrize("fresh, verdict, reason", [
    ((46, 47, 48), "regressed", "47.00 ms, outside the budget <= 45ms in all processes"),
    ((46, 44, 48), "inconclusive", "46.00 ms, outside the budget <= 45ms in 2 of 3 processes"),
    ((45, 44, 43), "unchanged", "44.00 ms, within the budget <= 45ms"),
])  # fmt: skip
def test_every_fresh_repeat_has_to_break_a_time_budget(fresh, verdict, reason):
    limits = budgets(step_time="45ms")
    found = standing(of(50), None, (), limits)
    judgement = confirm(found, None, of(*fresh), limits)
    assert judgement.metrics[0].verdict == verdict
    assert judgement.metrics[0].reason == reason
    assert judgement.verdict == ("regressed" if verdict == "regressed" else "missing")


def test_a_budget_says_what_the_current_processes_took_whatever_the_baselines_did():
    limits = Limits.parse({"step_time": "500%"}, {"step_time": "11ms"})
    base, fresh = of(20, 20, 20, 2, 2), of(*(12,) * 5)
    (metric,) = confirm(standing(fresh, base, (), limits), base, fresh, limits).metrics
    assert metric.reason == "12.00 ms, outside the budget <= 11ms in all processes"
    assert metric.times_over == pytest.approx(12 / 11)


def test_a_budget_is_settled_by_one_repeat_that_keeps_it():
    limits = budgets(step_time="45ms")
    found = standing(of(50), None, (), limits)
    assert not is_settled(found, None, of(46, 47), 3, limits)
    assert is_settled(found, None, of(46, 44), 3, limits)


def test_the_worse_of_limit_and_budget_holds():
    def held(limit, budget, *fresh):
        limits = Limits.parse({"step_time": limit}, {"step_time": budget})
        found = confirm(standing(of(fresh[0]), BASE, (), limits), BASE, of(*fresh), limits)
        return found.metrics[0].verdict, str(found.metrics[0].limit)

    same, slower, slow = (40, 40.1, 39.9, 40.2, 40), (46, 47, 46.1, 47.1, 46.2), (60, 61, 62, 60.5, 61.5)
    assert held("10%", "45ms", *same) == ("unchanged", "10%")
    assert held("10%", "45ms", *slower) == ("regressed", "10%")
    assert held("50%", "45ms", *slower) == ("regressed", "<= 45ms")
    assert held("10%", "80ms", *slow) == ("regressed", "10%")
    assert held("50%", "40ms", *same) == ("inconclusive", "<= 40ms")


def test_a_budget_holds_while_the_test_is_outdated_or_incomparable():
    limits = budgets(step_time="45ms").over(UNPAIRED)
    old = record({"step_time": timed(40.0 * MS)}, test_hash="other")
    for base, others, stands in ((old, (), "outdated"), (None, (BASE,), "incomparable")):
        found = standing(of(50), base, others, limits)
        assert open_times(found, limits) == ("step_time",)
        bad = confirm(found, base, of(50, 51), limits, others=others)
        assert bad.verdict == "regressed"
        good = confirm(found, base, of(40, 41), limits, others=others)
        assert good.verdict == stands


def test_a_budget_is_held_by_the_heads_side_of_every_round():
    limits = Limits.parse({"step_time": "3%"}, {"step_time": "45ms"})
    found = standing(of(44), BASE, (), limits)
    for differences, verdict, limit in (
        ([0.001, -0.001, 0.002], "unchanged", "3%"),
        ([0.13, 0.131, 0.129], "regressed", "<= 45ms"),
        ([0.1, 0.13, 0.131], "suspect", "3%"),
    ):
        rounds = made_rounds.of(*differences, base=40.0 * MS)
        outcome = Gate(select_held(found, limits)).look(rounds, Spent(600, 300))
        (metric,) = settle(found, of(44), BASE, BASE, outcome.verdicts, rounds, limits).metrics
        assert (metric.verdict, str(metric.limit)) == (verdict, limit)


def test_a_budget_that_is_off_is_no_budget():
    judgement = standing(record({"ops": counted(12)}), None, (), budgets(ops="off"))
    assert judgement.metrics[0].verdict is None


@pytest.mark.parametrize(
    "values, verdict",
    [
        # Mean 38, s = 1, t(2) = 4.303: the bound is 38 + 4.303 / sqrt(3) = 40.48.
        ((37.0, 38.0, 39.0), "inconclusive"),
        ((36.9, 37.0, 37.1), "regressed"),
        ((39.0, 41.0, 43.0), "unchanged"),
        ((20.0, 41.0, 42.0), "inconclusive"),
        ((30.0, 30.1), "inconclusive"),
        ((30.0,), "inconclusive"),
    ],
)
def test_a_utilization_is_past_its_floor_by_the_bound_of_its_mean(values, verdict):
    limits = budgets(roofline=">=40%")
    new = record({"roofline": timed(*values, unit="%", better="higher")})
    kept = confirm(standing(new, None, (), limits), None, new, limits)
    (metric,) = kept.metrics
    assert (metric.verdict, str(metric.limit)) == (verdict, ">= 40%")
    # It says the mean, which it judges, also beside another median.
    assert metric.reason.startswith(format_quantity(statistics.fmean(values), "%"))
    if values[0] == 37.0:
        assert metric.reason.endswith("outside the budget >= 40%; however, a mean of 40.48 % cannot be excluded")


class TestDoubted:
    WHY = "the machine does not reach its recorded peak rates: float32 60 of 100 Gflop/s"

    def judged(self, **more):
        share = timed(30.0, 31.0, 30.5, better="higher", unit="%")
        series = {"flops_utilization": share, **more}
        limits = budgets(flops_utilization=">=40%", ops="<=10")
        return confirm(standing(record(series), None, (), limits), None, record(series), limits)

    def test_a_budget_of_utilization_is_suspect_where_the_machine_itself_is_slower(self):
        failed = self.judged()
        assert failed.verdict == "regressed"
        (metric,) = failed.metrics
        assert fails_utilization(metric)
        found = doubt_utilization(failed, self.WHY)
        (metric,) = found.metrics
        assert (found.verdict, metric.verdict, metric.times_over) == ("suspect", "suspect", None)
        assert not fails_utilization(metric)
        assert self.WHY in metric.reason
        assert self.WHY in found.reason

    def test_what_else_regressed_still_fails(self):
        found = doubt_utilization(self.judged(ops=counted(12, 12, 12)), self.WHY)
        assert found.verdict == "regressed"
        assert {each.name: each.verdict for each in found.metrics} == {
            "flops_utilization": "suspect",
            "ops": "regressed",
        }
