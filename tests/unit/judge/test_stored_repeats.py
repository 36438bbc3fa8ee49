"""The unpaired confirmation: p-values by scipy, every outcome, early stopping."""

import itertools
import math
import random
import statistics
from dataclasses import replace

import pytest
from making import counted, invalid, record, rows, timed
from scipy.stats import mannwhitneyu, t

from pytest_perfdl.judge.log_ratios import compare
from pytest_perfdl.judge.stored_repeats import confirm, is_settled, sensitivity
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN, Limits

UNPAIRED = BUILT_IN.unpaired()

BASE = (100.0, 102.0, 98.0, 101.0, 99.0, 103.0, 97.0, 100.5, 101.5, 99.5)
US = 1_000.0


def of(*values, better="lower", **rest):
    return record({"speed": timed(*values, better=better)}, **rest)


def settle(fresh, base=BASE, limit="10%", better="lower", remaining=0, **rest):
    limits = Limits.parse({"speed": limit})
    stored = of(*base, better=better)
    found = standing(of(fresh[0], better=better), stored, (), limits)
    judgement = confirm(found, stored, of(*fresh, better=better, **rest), limits, remaining=remaining)
    return judgement, judgement.metrics[0]


def test_surely_past_the_limit_is_regressed_with_hodges_lehmann_figures():
    fresh = (130.0, 131.0, 132.0, 133.0, 134.0)
    judgement, metric = settle(fresh)
    assert metric.verdict == judgement.verdict == "regressed"
    logs = sorted(math.log(new / old) for new, old in itertools.product(fresh, BASE))
    assert metric.effect == pytest.approx(math.exp(statistics.median(logs)) - 1)
    # The 9th smallest and largest of 50 differences: the table's value for 5 and 10.
    assert metric.ci95 == pytest.approx((math.exp(logs[8]) - 1, math.exp(logs[-9]) - 1))
    assert metric.times_over == pytest.approx(metric.effect / 0.10)
    assert metric.new == pytest.approx(metric.base * (1 + metric.effect))
    low, high = (f"{end * 100:+.1f}%" for end in metric.ci95)
    assert judgement.reason == (
        f"speed {metric.effect * 100:+.1f}% [{low}, {high}] (95% interval, unpaired, 5 processes vs. 10 "
        "recorded), limit 10%"
    )
    assert (metric.evidence, metric.excluded, metric.rounds) == ("unpaired", None, None)


@pytest.mark.parametrize("base, shown", [((10.0, 10.0, 10.0, 20.0), 10.0), ((20.0, 20.0, 20.0, 2.0, 2.0), 20.0)])
def test_what_is_shown_of_the_current_code_is_what_it_took(base, shown):
    metric = settle((12.0,) * 5, base=base)[1]
    assert (metric.new, metric.base) == (12.0, pytest.approx(shown))
    assert metric.effect == pytest.approx(12.0 / shown - 1)


@pytest.mark.parametrize("factor", [1.05, 1.09, 1.10, 1.11, 1.12, 1.13, 1.15])
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_regressed_is_the_shifted_mann_whitney_test_at_one_percent(factor, better):
    rise = factor if better == "lower" else 1 / factor
    fresh = tuple(value * rise for value in (98.3, 99.4, 100.2, 101.1, 102.6))
    bound = [value * (1.1 if better == "lower" else 0.9) for value in BASE]
    side = "greater" if better == "lower" else "less"
    p = mannwhitneyu(fresh, bound, alternative=side, method="exact").pvalue
    assert (settle(fresh, better=better)[1].verdict == "regressed") == (p <= 0.01)


def test_the_level_is_met_exactly_at_one_percent():
    # Against 99 stored repeats one fresh repeat above all of them has p = 1/100.
    base = tuple(100 + 0.01 * i for i in range(99))
    assert settle((120.0,), base=base)[1].verdict == "regressed"
    assert settle((120.0,), base=base[:-1])[1].verdict != "regressed"


def test_both_parts_of_a_limit_have_to_be_exceeded():
    base = tuple(value * US for value in BASE)
    by_ten = tuple(value * US * 1.2 for value in BASE[:5])
    assert settle(by_ten, base=base, limit="10%+5us")[1].verdict == "regressed"
    assert settle(by_ten, base=base, limit="10%+30us")[1].verdict != "regressed"
    assert settle(by_ten, base=base, limit="30%+5us")[1].verdict != "regressed"


def test_within_the_limit_and_hardly_slower_is_unchanged():
    judgement, metric = settle((100.0, 101.0, 99.0, 102.0, 100.2))
    assert metric.verdict == judgement.verdict == "unchanged"
    assert metric.ci95[0] < 0 < metric.ci95[1] < 0.10


def test_surely_slower_but_within_the_limit_is_unchanged():
    judgement, metric = settle((107.0, 107.5, 106.5, 107.2, 107.1))
    assert 0.03 < metric.ci95[0] < metric.ci95[1] < 0.10
    assert metric.verdict == judgement.verdict == "unchanged"


def test_surely_slower_and_perhaps_past_the_limit_is_suspect():
    judgement, metric = settle((107.0, 111.0, 106.5, 113.0, 107.1))
    assert 0.03 < metric.ci95[0] < 0.10 < metric.ci95[1]
    assert metric.verdict == judgement.verdict == "suspect"
    assert metric.reason.endswith(": worse than the baseline by more than 3.0%, but possibly within the limit")


def test_neither_within_nor_past_is_inconclusive_with_what_is_not_excluded():
    judgement, metric = settle((95.0, 100.0, 112.0, 118.0, 104.0))
    assert metric.verdict == judgement.verdict == "inconclusive"
    assert judgement.reason.endswith(f": a slowdown of up to {metric.ci95[1]:.1%} cannot be excluded")


def test_a_tight_limit_bounds_what_counts_as_hardly_slower():
    judgement, metric = settle((104.3, 103.0, 103.9, 102.4, 103.1), limit="1%")
    assert 0.01 < metric.ci95[0] < 0.03
    assert metric.verdict == "suspect"
    assert judgement.reason.endswith(": worse than the baseline by more than 1.0%, but possibly within the limit")


FIVE = (200.0, 201.0, 202.0, 203.0, 204.0)


@pytest.mark.parametrize("stored", range(1, 11))
def test_how_many_stored_repeats_can_decide(stored):
    """By hand: five fresh repeats against three stored ones have a p of 1/56 at best, against four 1/126."""
    judgement, metric = settle(FIVE, base=BASE[:stored])
    least = 1 / math.comb(5 + stored, 5)
    assert (metric.verdict == judgement.verdict == "regressed") == (least <= 0.01) == (stored >= 4)
    against = f"unpaired, 5 processes vs. {stored} recorded)"
    assert against in metric.reason
    if stored < 4:
        assert metric.verdict == "suspect"
        assert metric.reason.endswith(
            "limit 10%: worse than the baseline by more than 3.0%, but possibly within the limit; "
            f"at least 4 recorded processes are needed, but the baseline has {stored}"
        )
    else:
        assert "needed" not in metric.reason


@pytest.mark.parametrize("stored", [1, 2, 3])
def test_too_few_stored_repeats_are_said_whatever_they_show(stored):
    unsure = (100.0, 130.0, 90.0, 115.0, 96.0)
    metric = settle(unsure, base=BASE[:stored])[1]
    assert metric.verdict == "inconclusive"
    assert "at least 4 recorded processes are needed" in metric.reason


@pytest.mark.parametrize("drawn, stored, needed", [(1, 10, 99), (2, 10, 13), (3, 6, 7), (4, 4, 5), (7, 2, 3)])
def test_how_many_would_be_enough_hangs_on_what_was_drawn(drawn, stored, needed):
    metric = settle((*FIVE, 205.0, 206.0)[:drawn], base=BASE[:stored])[1]
    if math.comb(drawn + stored, drawn) >= 100:
        assert metric.verdict == "regressed"
    else:
        assert metric.reason.endswith(f"at least {needed} recorded processes are needed, but the baseline has {stored}")
        assert math.comb(drawn + needed, drawn) >= 100 > math.comb(drawn + needed - 1, drawn)


def test_repeats_that_were_left_undrawn_are_counted_in():
    metric = settle((200.0,), base=BASE[:3], remaining=4)[1]
    assert metric.reason.endswith("at least 4 recorded processes are needed, but the baseline has 3")


def test_enough_fresh_repeats_are_enough():
    assert settle(tuple(200.0 + i for i in range(7)), base=BASE[:3])[1].verdict == "regressed"


def test_too_few_repeats_may_still_show_that_nothing_happened():
    assert settle((100.0, 100.1, 99.9, 100.2, 99.8), base=BASE[:3])[1].verdict == "unchanged"


def test_a_short_confirmation_falls_back_on_the_interval_by_t():
    metric = settle((100.0,), remaining=4)[1]
    low, high = compare(BASE, (100.0,)).interval()
    assert metric.ci95 == pytest.approx((math.expm1(low), math.expm1(high)))
    assert metric.verdict == "unchanged"


def test_where_more_is_better_a_loss_is_regressed():
    _, metric = settle((70.0, 71.0, 69.0, 70.5, 70.2), better="higher")
    assert metric.verdict == "regressed"
    assert metric.effect == pytest.approx(-0.3, abs=0.01)
    assert metric.times_over == pytest.approx(3, abs=0.1)
    assert settle((110.0, 111.0, 112.0, 110.5, 110.2), better="higher")[1].verdict == "unchanged"


def test_a_limit_of_zero_tests_for_any_slowdown():
    metric = settle((104.0, 105.0, 106.0, 104.5, 105.5), limit="0%")[1]
    assert (metric.verdict, metric.times_over) == ("regressed", None)


def test_values_without_a_logarithm_are_refused():
    metric = settle((100.0, 0.0, 1.0))[1]
    assert metric.verdict == "inconclusive"
    assert "0 or below" in metric.reason


@pytest.mark.parametrize(
    "base, fresh, limit, better, verdict, reason",
    [
        (
            (0,) * 10,
            (100,) * 5,
            0,
            "lower",
            "regressed",
            "0 -> 100 (+100), unpaired, 5 processes vs. 10 recorded, limit 0",
        ),
        ((0,) * 10, (0,) * 5, 0, "lower", "unchanged", "0 -> 0 (0), unpaired, 5 processes vs. 10 recorded, limit 0"),
        ((0,), (0,), 0, "lower", "unchanged", "0 -> 0 (0), unpaired, 1 process vs. 1 recorded, limit 0"),
        ((0,) * 10, (4, 5, 3, 4, 5), 5, "lower", "unchanged", "limit 5"),
        ((3,) * 10, (0,) * 5, 5, "lower", "unchanged", "limit 5"),
        ((9,) * 10, (0,) * 5, 5, "lower", "improved", "limit 5"),
        ((9,) * 10, (0,) * 5, 5, "higher", "regressed", "limit 5"),
        ((0, -1) * 5, (-9,) * 5, "3%+5", "higher", "regressed", "limit 10% or 5, whichever is larger"),
        (
            (0,) * 10,
            (0, 0, 9, 9, 0),
            5,
            "lower",
            "inconclusive",
            "limit 5: past the limit in 20 of 50 pairs of processes",
        ),
        ((0,) * 3, (9,) * 5, 5, "lower", "suspect", "at least 4 recorded processes are needed, but the baseline has 3"),
        ((0,) * 10, (100,) * 5, "10%", "lower", "inconclusive", "a value is 0 or below, so no ratio can be computed"),
    ],
)
def test_an_absolute_limit_needs_no_ratio(base, fresh, limit, better, verdict, reason):
    limits = Limits.parse({"misses": limit}).unpaired()

    def misses(values):
        return record({"misses": timed(*map(float, values), better=better, unit="1")})

    found = standing(misses(fresh[:1]), misses(base), (), limits)
    (metric,) = confirm(found, misses(base), misses(fresh), limits).metrics
    assert metric.verdict == verdict
    assert metric.reason.endswith(reason)
    assert (metric.effect, metric.ci95) == (None, None)


@pytest.mark.parametrize("stored, limit, stop", [(10, "5ns", False), (3, "5ns", True), (10, "10%", True)])
def test_drawing_goes_on_while_it_can_decide_on_a_value_without_a_ratio(stored, limit, stop):
    limits = Limits.parse({"speed": limit})
    base, fresh = of(*(0.0,) * stored), of(9.0)
    assert is_settled(standing(fresh, base, (), limits), base, fresh, 4, limits) == stop


def test_an_unseen_mode_is_named_in_the_fresh_repeats_too():
    metric = settle((130.0, 131.0, 132.0), modes={"page_faults": ("many",)})[1]
    assert metric.verdict == "regressed"
    said = "; the page-fault rate is high now and was unknown in the baseline, which can change times although the code"
    assert metric.reason.endswith(f"{said} is the same")


def test_counts_are_kept_and_stand_beside():
    def both(*times, ops):
        return record({"step_time": timed(*times), "ops": counted(*(ops,) * len(times))})

    base = both(*BASE, ops=10)
    found = standing(both(100.0, ops=11), base, (), UNPAIRED)
    judgement = confirm(found, base, both(100.0, 101.0, 99.0, 100.5, 100.1, ops=11), UNPAIRED)
    assert {metric.name: metric.verdict for metric in judgement.metrics} == {"step_time": "unchanged", "ops": "changed"}
    assert judgement.verdict == "unchanged"
    assert judgement.reason.endswith("; counts changed: ops 10 -> 11 (+1)")


@pytest.mark.parametrize("again, verdict", [((11, 11), "regressed"), ((10, 11), "inconclusive")])
def test_a_count_that_varies_between_repeats_proves_nothing(again, verdict):
    limits = Limits.parse({"ops": 0}).over(UNPAIRED)
    base = record({"step_time": timed(*BASE), "ops": counted(*(10,) * len(BASE))})
    found = standing(record({"step_time": timed(100.0), "ops": counted(11)}), base, (), limits)
    fresh = record({"step_time": timed(100.0, 101.0, 99.0), "ops": counted(11, *again)})
    metrics = {metric.name: metric for metric in confirm(found, base, fresh, limits).metrics}
    assert metrics["ops"].verdict == verdict


def test_the_time_of_compiling_that_all_repeats_share_is_one_value():
    limits = Limits.parse({"compile_time": "10%"})
    shared = record({"compile_time": timed(*(100.0,) * 10)})
    fresh = record({"compile_time": timed(200.0, 201.0, 202.0, 203.0, 204.0)})
    found = confirm(standing(fresh, shared, (), limits), shared, fresh, limits)
    assert "the baseline has 1" in found.metrics[0].reason
    assert found.metrics[0].verdict != "regressed"
    own = record({"compile_time": timed(*(100.0 + n / 10 for n in range(10)))})
    assert confirm(standing(fresh, own, (), limits), own, fresh, limits).metrics[0].verdict == "regressed"


def test_a_broken_fresh_measurement_is_invalid():
    limits = Limits.parse({"speed": "10%"})
    found = standing(of(150.0), of(*BASE), (), limits)
    judgement = confirm(found, of(*BASE), replace(of(150.0), integrity=(invalid("throttled"),)), limits)
    assert (judgement.verdict, judgement.reason, judgement.blame) == ("invalid", "throttled", ())
    assert judgement.integrity == (invalid("throttled"),)


def test_a_time_that_was_not_measured_again_is_not_judged():
    limits = Limits.parse({"speed": "10%"})
    found = standing(of(150.0), of(*BASE), (), limits)
    (metric,) = confirm(found, of(*BASE), record({"other": timed(1.0)}), limits).metrics
    assert (metric.verdict, metric.reason) == (None, "not measured again")


def test_blame_is_of_the_fresh_repeats():
    limits = Limits.parse({"speed": "10%"})
    base = of(*BASE, rows=rows(mm=(1, *range(100, 110)), add=(1, *range(50, 60))))
    found = standing(of(150.0, rows=rows(mm=(1, 300), add=(1, 55))), base, (), limits)
    fresh = of(150.0, 151.0, 152.0, rows=rows(mm=(1, 104, 105, 106), add=(1, 120, 121, 122)))
    judgement = confirm(found, base, fresh, limits)
    assert [cause.name for cause in judgement.blame] == ["add"]


def undecided(drawn, limit="10%", base=BASE):
    limits = Limits.parse({"speed": limit})
    stored = of(*base)
    return standing(of(150.0), stored, (), limits), stored, of(*drawn), limits


@pytest.mark.parametrize("drawn, remaining, stop", [
    ((130.0,), 4, False),
    ((100.0,), 4, True),  # 40 of 50 pairs at best, 44 are needed
    ((109.9, 130.0), 3, False),
    ((108.0, 130.0), 3, True),
    ((130.0, 131.0, 132.0), 2, False),  # would already reject: that never stops the drawing
    ((130.0, 131.0, 132.0, 133.0, 134.0), 0, False),
])  # fmt: skip
def test_drawing_stops_only_when_rejection_is_out_of_reach(drawn, remaining, stop):
    found, stored, fresh, limits = undecided(drawn)
    assert is_settled(found, stored, fresh, remaining, limits) is stop


def test_settled_is_right_about_every_future():
    """By enumeration: the most extreme continuation rejects exactly when it says that some continuation might."""
    for drawn in itertools.product((100.0, 108.5, 110.3, 112.2, 130.0), repeat=2):
        found, stored, fresh, limits = undecided(drawn)
        best = confirm(found, stored, of(*drawn, 1e6, 1e6, 1e6), limits)
        assert is_settled(found, stored, fresh, 3, limits) == (best.verdict != "regressed")


def test_nothing_to_wait_for_is_settled():
    found, stored, fresh, limits = undecided((130.0,), base=BASE[:3])
    assert is_settled(found, stored, fresh, 4, limits)  # 5 against 3 can never reject
    assert is_settled(found, None, fresh, 4, limits)
    off = Limits.parse({"speed": "off"})
    assert is_settled(standing(of(150.0), stored, (), off), stored, fresh, 4, off)


@pytest.mark.parametrize("factor, verdict", [(0.8, "improved"), (1.2, "regressed"), (1.05, "unchanged")])
def test_both_directions_are_tested_alike(factor, verdict):
    assert settle(tuple(factor * value for value in (98.3, 99.4, 100.2, 101.1, 102.6)))[1].verdict == verdict


def test_p_values_of_the_comparison_are_those_of_the_t_distribution():
    found = compare(BASE, (103.0, 104.0))
    error = statistics.stdev(map(math.log, BASE)) * math.sqrt(1 / 10 + 1 / 2)
    assert found.error == pytest.approx(error)
    assert found.p_above(1) == pytest.approx(t.sf(found.log_ratio / error, 9))
    assert found.p_above(-1) == pytest.approx(t.cdf(found.log_ratio / error, 9))
    half = t.ppf(0.975, 9) * error
    assert found.interval() == pytest.approx((found.log_ratio - half, found.log_ratio + half))


def test_a_baseline_without_spread_is_not_taken_at_its_word():
    assert compare((100.0,) * 10, (100.5,)).error == pytest.approx(0.01 * math.sqrt(1.1))
    assert compare((100.0,), (104.0,)).error == pytest.approx(0.10 * math.sqrt(2))


def times(sd, processes=10, seed=1, **rest):
    """Processes that vary by so much."""
    draw = random.Random(seed)
    return record({"step_time": timed(*(1e6 * math.exp(draw.gauss(0, sd)) for _ in range(processes)), **rest)})


@pytest.mark.parametrize("sd, low, high", [(0.0, 0.10, 0.11), (0.01, 0.10, 0.13), (0.15, 0.25, 0.6)])
def test_what_a_baseline_will_be_able_to_show_follows_from_its_spread(sd, low, high):
    found = sensitivity(times(sd), BUILT_IN)

    assert (found.metric, found.processes, found.limit) == ("step_time", 10, 0.03)
    assert low <= found.detectable <= high
    assert found.spread == pytest.approx(sd, rel=0.5, abs=1e-9)


@pytest.mark.parametrize("sd", [0.02, 0.15])
def test_a_slowdown_of_that_size_is_regressed_in_four_of_five_cases(sd):
    """The number that people are shown is that of the rule that will judge them."""
    base = times(sd)
    stored = base.metrics()["step_time"].values
    slower = 1 + sensitivity(base, BUILT_IN).detectable
    draw = random.Random(2)
    verdicts = []
    for _ in range(300):
        fresh = record({"step_time": timed(*(slower * value for value in draw.choices(stored, k=5)))})
        found = confirm(standing(fresh, base, (), UNPAIRED), base, fresh, UNPAIRED)
        verdicts.append(found.verdict == "regressed")
    assert 0.72 <= statistics.fmean(verdicts) <= 0.88


def test_too_few_processes_show_nothing():
    few = sensitivity(times(0.01, processes=3), BUILT_IN)
    assert (few.detectable, few.processes, few.needed) == (None, 3, 4)
    assert sensitivity(times(0.01, processes=4), BUILT_IN).detectable is not None


def test_a_step_without_a_limit_has_no_sensitivity_and_the_worst_call_counts():
    assert sensitivity(times(0.01), Limits.parse({"step_time": "off"})) is None
    quiet, noisy = times(0.01).calls[0], times(0.2).calls[0]
    both = record(calls=(replace(quiet, name="a"), replace(noisy, name="b")), repeats=10)
    assert sensitivity(both, BUILT_IN).metric == "b.step_time"
    fed = record({"block_time": timed(*times(0.01).metrics()["step_time"].values)})
    assert sensitivity(fed, BUILT_IN).metric == "block_time"
