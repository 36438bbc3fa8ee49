"""Budgets: absolute bounds, judged with and without a baseline, before and after confirmation."""

import pytest
from making import counted, record, timed

from pytest_perfdl.judge.confirm import confirm, settled
from pytest_perfdl.judge.screen import screen
from pytest_perfdl.limits import BUILT_IN, Limits

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
    judgement = screen(record({"ops": counted(*values, better=better)}), None, (), budgets(ops=budget))
    metric = judgement.metrics[0]
    assert metric.verdict == verdict
    assert metric.limit == f"{'<=' if better == 'lower' else '>='} {budget}"
    assert metric.times_over == (None if times_over is None else pytest.approx(times_over))
    assert judgement.verdict == ("regressed" if verdict == "regressed" else "missing")


def test_the_reason_says_the_value_and_the_budget():
    judgement = screen(record({"ops": counted(12)}), None, (), budgets(ops=10))
    assert judgement.reason == "ops 12, past its budget <= 10; no baseline under any key"


@pytest.mark.parametrize("value, verdict", [(45, "unchanged"), (45.001, "suspect")])
def test_one_fresh_repeat_past_a_time_budget_is_only_suspect(value, verdict):
    judgement = screen(of(value), None, (), budgets(step_time="45ms"))
    assert judgement.metrics[0].verdict == verdict
    assert judgement.suspects == (("step_time",) if verdict == "suspect" else ())
    assert judgement.verdict == "missing"


@pytest.mark.parametrize("fresh, verdict, reason", [
    ((46, 47, 48), "regressed", "46.99 ms, past its budget <= 45ms in every repeat"),
    ((46, 44, 48), "inconclusive", "45.97 ms, past its budget <= 45ms in 2 of 3 repeats"),
    ((45, 44, 43), "unchanged", "43.99 ms, within its budget <= 45ms"),
])  # fmt: skip
def test_every_fresh_repeat_has_to_break_a_time_budget(fresh, verdict, reason):
    limits = budgets(step_time="45ms")
    screened = screen(of(50), None, (), limits)
    judgement = confirm(screened, None, of(*fresh), limits)
    assert judgement.metrics[0].verdict == verdict
    assert judgement.metrics[0].reason == reason
    assert judgement.verdict == ("regressed" if verdict == "regressed" else "missing")


def test_a_budget_is_settled_by_one_repeat_that_keeps_it():
    limits = budgets(step_time="45ms")
    screened = screen(of(50), None, (), limits)
    assert not settled(screened, None, of(46, 47), 3, limits)
    assert settled(screened, None, of(46, 44), 3, limits)


def test_the_worse_of_limit_and_budget_holds():
    limits = Limits.parse({"step_time": "10%"}, {"step_time": "45ms"})
    within = screen(of(40), BASE, (), limits).metrics[0]
    assert (within.verdict, within.limit) == ("unchanged", "10%")
    slower = screen(of(44), BASE, (), limits).metrics[0]
    assert (slower.verdict, slower.limit) == ("suspect", "10%")
    wide = Limits.parse({"step_time": "50%"}, {"step_time": "39ms"})
    past = screen(of(40), BASE, (), wide).metrics[0]
    assert (past.verdict, past.limit) == ("suspect", "<= 39ms")
    assert past.reason == "40.00 ms, past its budget <= 39ms"


def test_a_suspect_of_both_is_confirmed_for_both():
    limits = Limits.parse({"step_time": "10%"}, {"step_time": "45ms"})
    screened = screen(of(60), BASE, (), limits)
    assert confirm(screened, BASE, of(46, 47, 46, 47, 46), limits).metrics[0].limit == "10%"
    cheap = confirm(screened, BASE, of(42, 42.1, 42.2, 42, 42.1), limits)
    assert cheap.metrics[0].verdict == "suspect"
    loose = Limits.parse({"step_time": "50%"}, {"step_time": "45ms"})
    assert confirm(screened, BASE, of(46, 47, 46, 47, 46), loose).metrics[0].limit == "<= 45ms"


def test_a_budget_holds_while_the_test_is_outdated_or_incomparable():
    limits = budgets(step_time="45ms").over(UNPAIRED)
    old = record({"step_time": timed(40.0 * MS)}, test_hash="other")
    for base, others, standing in ((old, (), "outdated"), (None, (BASE,), "incomparable")):
        screened = screen(of(50), base, others, limits)
        assert screened.suspects == ("step_time",)
        bad = confirm(screened, base, of(50, 51), limits)
        assert bad.verdict == "regressed"
        good = confirm(screened, base, of(40, 41), limits)
        assert good.verdict == standing


def test_a_budget_that_is_off_is_no_budget():
    judgement = screen(record({"ops": counted(12)}), None, (), budgets(ops="off"))
    assert judgement.metrics[0].verdict is None
