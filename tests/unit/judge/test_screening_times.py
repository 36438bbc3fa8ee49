"""The screen of timed metrics: figures by hand and by scipy.stats, verdicts at their boundaries."""

import math
import statistics

import pytest
from making import record, timed
from scipy.stats import norm, t

from pytest_perfdl.judge.screen import screen
from pytest_perfdl.judge.timed import ASSUMED_SD, compare
from pytest_perfdl.limits import Limits

BASE = (100.0, 102.0, 98.0, 101.0, 99.0, 103.0, 97.0, 100.0, 101.0, 99.0)


def judge(new, base=BASE, limit="10%", better="lower", **rest):
    new = (new,) if isinstance(new, (int, float)) else new
    limits = Limits.parse({"speed": limit} if limit else {})
    fresh = record({"speed": timed(*new, better=better, unit="x")}, **rest)
    stored = record({"speed": timed(*base, better=better, unit="x")}) if base else None
    judgement = screen(fresh, stored, (), limits)
    return judgement, judgement.metrics[0]


def test_effect_interval_and_detectable_effect_are_those_of_the_t_formula():
    _, metric = judge(103.0)
    logs = [math.log(value) for value in BASE]
    error = statistics.stdev(logs) * math.sqrt(1 / 10 + 1)
    shift = math.log(103) - statistics.fmean(logs)
    assert metric.effect == pytest.approx(math.exp(shift) - 1)
    assert metric.effect == pytest.approx(metric.new / metric.base - 1)
    half = t.ppf(0.975, 9) * error
    assert metric.ci95 == pytest.approx((math.exp(shift - half) - 1, math.exp(shift + half) - 1))
    assert metric.mde == pytest.approx(math.exp((t.ppf(0.9, 9) + t.ppf(0.8, 9)) * error) - 1)


def test_p_values_are_those_of_the_t_distribution():
    found = compare(BASE, (103.0, 104.0))
    error = statistics.stdev(map(math.log, BASE)) * math.sqrt(1 / 10 + 1 / 2)
    assert found.error == pytest.approx(error)
    assert found.p_above(1) == pytest.approx(t.sf(found.log_ratio / error, 9))
    assert found.p_above(-1) == pytest.approx(t.cdf(found.log_ratio / error, 9))


def test_a_baseline_without_spread_is_not_taken_at_its_word():
    _, metric = judge(100.5, base=(100.0,) * 10)
    assert metric.verdict == "unchanged"
    half = t.ppf(0.975, 9) * 0.01 * math.sqrt(1.1)
    assert metric.ci95[1] == pytest.approx(1.005 * math.exp(half) - 1)


def test_one_baseline_repeat_has_an_assumed_spread_and_says_so():
    _, metric = judge(104.0, base=(100.0,))
    half = norm.ppf(0.975) * ASSUMED_SD * math.sqrt(2)
    assert metric.ci95 == pytest.approx((1.04 * math.exp(-half) - 1, 1.04 * math.exp(half) - 1))
    assert metric.verdict == "inconclusive"
    assert "spread of the one baseline repeat assumed to be 10%" in metric.reason


def test_two_baseline_repeats_give_a_wide_finite_interval():
    _, metric = judge(100.0, base=(1.0, 1e6))
    assert metric.verdict == "inconclusive"
    assert all(map(math.isfinite, (*metric.ci95, metric.mde)))


@pytest.mark.parametrize(
    "value, verdict",
    [
        (100, "unchanged"),
        (102, "unchanged"),
        (104, "unchanged"),
        (109, "suspect"),
        (140, "suspect"),
        (96, "unchanged"),
        (80, "improved"),
    ],
)
def test_verdicts_of_the_screen(value, verdict):
    judgement, metric = judge(value)
    assert metric.verdict == judgement.verdict == verdict
    assert judgement.suspects == (("speed",) if verdict == "suspect" else ())
    assert metric.limit == "10%"


def test_suspicion_begins_where_the_p_value_falls_below_ten_percent():
    logs = [math.log(value) for value in BASE]
    error = statistics.stdev(logs) * math.sqrt(1.1)
    edge = math.exp(statistics.fmean(logs) + t.ppf(0.9, 9) * error)
    assert judge(edge * (1 - 1e-9), limit="0%")[1].verdict == "inconclusive"
    assert judge(edge * (1 + 1e-9), limit="0%")[1].verdict == "suspect"


def test_what_is_slower_but_surely_within_the_limit_draws_no_more_repeats():
    assert judge(104.0, limit="3%")[1].verdict == "suspect"
    assert judge(104.0, limit="10%")[1].verdict == "unchanged"


def test_unchanged_ends_where_the_one_sided_bound_reaches_the_limit():
    logs = [math.log(value) for value in BASE]
    error = statistics.stdev(logs) * math.sqrt(1.1)
    upper = math.exp(math.log(100.0) - statistics.fmean(logs) + t.ppf(0.95, 9) * error) - 1
    assert judge(100.0, limit=f"{upper * 100 * 1.001:.6f}%")[1].verdict == "unchanged"
    judged = judge(100.0, limit=f"{upper * 100 * 0.999:.6f}%")[1]
    assert judged.verdict == "inconclusive"
    assert f"smallest detectable {judged.mde * 100:.1f}%" in judged.reason


def test_faster_within_the_limit_is_unchanged_and_past_it_needs_certainty():
    assert judge(91.0)[1].verdict == "unchanged"
    assert judge(89.0)[1].verdict == "improved"
    noisy = (100.0, 130.0, 75.0, 110.0, 90.0)
    assert judge(80.0, base=noisy)[1].verdict == "inconclusive"  # faster past the limit, but p is not < .01


def test_where_more_is_better_the_signs_turn():
    assert judge(96.0, better="higher")[1].verdict == "unchanged"
    assert judge(91.0, better="higher")[1].verdict == "suspect"
    judged = judge(80.0, better="higher")[1]
    assert judged.verdict == "suspect"
    assert judged.effect == pytest.approx(-0.2, abs=2e-3)
    assert judged.ci95[0] < judged.effect < judged.ci95[1] < 0
    assert judge(104.0, better="higher")[1].verdict == "unchanged"
    assert judge(120.0, better="higher")[1].verdict == "improved"


def test_the_detectable_effect_is_a_loss_where_more_is_better():
    lower, higher = judge(100.0)[1].mde, judge(100.0, better="higher")[1].mde
    assert (1 + lower) * (1 - higher) == pytest.approx(1)


def test_a_limit_of_a_whole_throughput_is_never_exceeded():
    assert judge(99.0, better="higher", limit="100%")[1].verdict == "unchanged"


def test_absolute_part_holds_where_it_is_the_larger():
    noisy = (90.0, 110.0, 95.0, 105.0, 100.0)
    assert judge(100.0, base=noisy, limit="1%")[1].verdict == "inconclusive"
    assert judge(100.0, base=noisy, limit="1%+40")[1].verdict == "unchanged"


def test_without_a_limit_a_time_is_only_shown():
    judgement, metric = judge(200.0, limit=None)
    assert (metric.verdict, metric.limit, metric.reason) == (None, None, "")
    assert metric.effect == pytest.approx(1.0, abs=2e-3)
    assert metric.ci95 is not None
    assert (judgement.verdict, judgement.reason) == ("unchanged", "nothing is held to a limit")


@pytest.mark.parametrize("base, new", [((0.0, 1.0), 1.0), ((1.0, 2.0), 0.0), ((1.0, 1.0), -3.0), ((0.0,), 0.0)])
def test_values_without_a_logarithm_are_refused_not_judged(base, new):
    _, metric = judge(new, base=base)
    assert metric.verdict == "inconclusive"
    assert metric.reason == "has values of zero or below: no ratio can be judged"
    assert judge(new, base=base, limit=None)[1].verdict is None


def test_more_fresh_repeats_narrow_the_interval():
    one, three = judge(100.0)[1], judge((100.0, 101.0, 99.0))[1]
    assert three.ci95[1] - three.ci95[0] < one.ci95[1] - one.ci95[0]
    assert "3 fresh repeats" in three.reason


def test_a_mode_that_the_baseline_never_was_in_is_named():
    judgement, metric = judge(140.0, modes={"page_faults": ("many",), "clock": ()})
    assert metric.reason.endswith("; page faults: a mode not seen in the baseline (many)")
    assert judgement.reason == f"speed {metric.reason}"
    assert "mode" not in judge(100.0, modes={"page_faults": ("many",)})[1].reason


def test_the_reason_is_one_plain_line():
    judgement, metric = judge(112.0)
    low, high = (f"{end * 100:+.1f}%" for end in metric.ci95)
    assert judgement.reason.startswith(
        f"speed +12.0% [{low}, {high}] (95% interval, 1 fresh repeat), limit 10%: "
        "worse than the baseline's repeats (p = "
    )
