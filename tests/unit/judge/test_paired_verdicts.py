"""The paired confirmation of a test's suspects: every outcome, its figures and its words."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.judge import signedrank
from pytest_perfdl.judge.paired import PairedTest, Suspect
from pytest_perfdl.judge.rounds import Round, orders
from pytest_perfdl.limits import parse_limit

US = 1_000.0
ALPHA = 0.005


def suspect(name="step_time", limit="3%", **rest):
    return Suspect(name, parse_limit(name, limit), **rest)


def rounds(count=30, *, slower=0.0, sd=0.01, base=10_000 * US, seed=1, **also):
    """Rounds of `step_time` that is slower by a share, and of others by theirs."""
    rng = random.Random(seed)
    found = []
    for order in orders(seed, count):
        moment = math.exp(rng.gauss(0, 0.2))
        sides = [{}, {}]
        for name, more in {"step_time": slower, **also}.items():
            for side, change in zip(sides, (0.0, more), strict=True):
                side[name] = base * moment * (1 + change) * math.exp(rng.gauss(0, sd / math.sqrt(2)))
        found.append(Round(order, *sides))
    return found


def of(ratios, base=10_000 * US):
    """Rounds of given ratios, head to base."""
    drawn = orders(5, len(ratios))
    return [
        Round(order, {"step_time": base + n}, {"step_time": (base + n) * ratio})
        for n, (order, ratio) in enumerate(zip(drawn, ratios, strict=True))
    ]


def settle(measured, *suspects, alpha=ALPHA, **rest):
    test = PairedTest(suspects or (suspect(),), alpha)
    return test.look(measured, **rest)


def one(measured, *suspects, **rest):
    outcome = settle(measured, *suspects, **rest)
    (metric,) = outcome.decided.values()
    assert (outcome.undecided, outcome.next_look) == ((), None)
    return metric


def test_surely_past_the_limit_is_regressed_with_its_figures():
    measured = rounds(12, slower=0.08)
    metric = one(measured)
    assert (metric.verdict, metric.kind, metric.unit, metric.limit) == ("regressed", "timed", "ns", "3%")
    ratios = [math.log(each.head["step_time"] / each.base["step_time"]) for each in measured[:10]]
    averages = sorted((a + b) / 2 for i, a in enumerate(ratios) for b in ratios[i:])
    assert metric.effect == pytest.approx(math.exp(statistics.median(averages)) - 1)
    # Four looks: 98.75 % each. P(T+ >= 51) = 7/1024 > .00625 >= P(T+ >= 52) = 5/1024 for 10 rounds, by hand.
    assert metric.ci95 == pytest.approx((math.exp(averages[55 - 52]) - 1, math.exp(averages[52 - 1]) - 1))
    assert metric.times_over == pytest.approx(metric.effect / 0.03)
    assert metric.base == pytest.approx(statistics.geometric_mean(each.base["step_time"] for each in measured[:10]))
    assert metric.new == pytest.approx(statistics.geometric_mean(each.head["step_time"] for each in measured[:10]))
    low, high = (f"{end * 100:+.1f}%" for end in metric.ci95)
    assert metric.reason == (
        f"{metric.effect * 100:+.1f}% [{low}, {high}] (95% interval, 10 paired rounds), limit 3%"
    )  # fmt: skip


def test_what_is_always_shown_is_the_smallest_detectable_effect():
    for slower, verdict in ((0.08, "regressed"), (-0.08, "improved"), (0.0, "unchanged"), (0.03, "inconclusive")):
        metric = one(rounds(30, slower=slower))
        assert metric.verdict == verdict
        seen = 30 if verdict == "inconclusive" else 10
        ratios = [
            math.log(each.head["step_time"] / each.base["step_time"]) for each in rounds(30, slower=slower)[:seen]
        ]
        reach = signedrank.reach(30, ALPHA / 4, seen)
        assert metric.mde == pytest.approx(1.03 * math.exp(reach * statistics.stdev(ratios)) - 1)
        assert (metric.times_over is not None) == (verdict == "regressed")


def test_unchanged_takes_the_first_look():
    test = PairedTest((suspect(),), ALPHA)
    measured = rounds(10)
    assert test.look([]).next_look == 10
    waiting = test.look(measured[:9])
    assert (waiting.decided, waiting.undecided, waiting.next_look) == ({}, ("step_time",), 10)
    done = test.look(measured)
    assert done.decided["step_time"].verdict == "unchanged"
    assert done.decided["step_time"].reason.endswith("(95% interval, 10 paired rounds), limit 3%")
    assert done.next_look is None


def test_at_the_limit_rounds_go_on_to_the_last_look():
    test, measured = PairedTest((suspect(),), ALPHA), rounds(30, slower=0.03)
    assert [test.look(measured[:count]).next_look for count in (10, 14, 15, 20, 30)] == [15, 15, 20, 30, None]
    metric = test.look(measured).decided["step_time"]
    assert metric.verdict == "inconclusive"
    assert metric.reason.endswith(f"30 paired rounds), limit 3%: smallest detectable {metric.mde * 100:.1f}%")


def test_rounds_beyond_the_last_look_do_not_count():
    measured = rounds(30, slower=0.03)
    assert settle(measured + rounds(5, slower=9.0)) == settle(measured)


def test_a_budget_that_ends_is_judged_with_what_there_is():
    measured = rounds(12, slower=0.03)
    metric = one(measured, ended=True)
    assert metric.verdict == "inconclusive"
    assert "12 paired rounds" in metric.reason
    assert metric.mde > one(rounds(30, slower=0.03)).mde  # what 12 rounds could find, not what 30 could
    late = one(of([0.99] * 5 + [1.2 + n / 1000 for n in range(9)]), ended=True, alpha=0.1)
    assert late.verdict == "regressed"
    assert "14 paired rounds" in late.reason  # between the looks after 10 and 15


@pytest.mark.parametrize("count", [1, 3, 7])
def test_too_few_rounds_say_how_many_are_needed(count):
    metric = one(of([1.1 + n / 1000 for n in range(count)]), ended=True)
    assert metric.verdict == "inconclusive"
    plural = "" if count == 1 else "s"
    assert metric.reason == (
        f"{metric.effect * 100:+.1f}%, limit 3%: {count} paired round{plural} cannot prove it, 10 are needed"
    )
    assert metric.mde is None
    assert metric.ci95 is None


def test_with_an_interval_but_too_few_rounds_to_reject():
    metric = one(of([1.1 + n / 1000 for n in range(9)]), ended=True)
    assert metric.ci95 == pytest.approx((0.101, 0.107), abs=1e-4)
    assert metric.reason.endswith(
        "(95% interval, 9 paired rounds), limit 3%: 9 paired rounds cannot prove it, 10 are needed"
    )


def test_no_round_at_all():
    metric = one([], ended=True)
    assert (metric.verdict, metric.reason, metric.base) == ("inconclusive", "no round was measured", None)


def test_only_so_many_rounds_as_the_settings_allow():
    test = PairedTest((suspect(),), ALPHA, most_rounds=12)
    assert test.plan.all == (10, 12)
    assert test.look(rounds(12, slower=0.03)).decided["step_time"].verdict == "inconclusive"


@pytest.mark.parametrize("limit, verdict", [
    ("3%", "regressed"),
    ("3%+50us", "regressed"),
    ("3%+150us", "inconclusive"),
    ("3%+200us", "unchanged"),
    ("3%+2ms", "unchanged"),
    ("30%+1us", "unchanged"),
    ("50us", "regressed"),
    ("2ms", "unchanged"),
])  # fmt: skip
def test_both_parts_of_a_limit_have_to_be_exceeded(limit, verdict):
    by_a_tenth = [1.1 + (-1) ** n * (n + 1) * 1e-4 for n in range(30)]
    assert one(of(by_a_tenth, base=1_500 * US), suspect(limit=limit)).verdict == verdict


def test_a_limit_in_two_parts_is_taken_round_by_round():
    # Slow rounds exceed both parts, fast ones 3 % only: means would hide that half of them are within.
    fast, slow = (
        [
            Round(order, {"step_time": before * US + n}, {"step_time": after * US + n})
            for n, order in enumerate(orders(seed, 15))
        ]
        for seed, before, after in ((1, 100, 110), (2, 900, 1035))
    )
    mixed = [each for pair in zip(fast, slow, strict=True) for each in pair]
    assert one(mixed, suspect(limit="3%")).verdict == "regressed"
    assert one(mixed, suspect(limit="3%+20us")).verdict == "inconclusive"
    past = suspect(limit="3%+20us").past(np.array([100 * US, 900 * US]), np.array([120 * US, 990 * US]))
    assert past.tolist() == pytest.approx([0, math.log(990 / 927)])


def test_where_more_is_better_a_loss_is_regressed():
    higher = suspect("items_per_s", "3%", unit="1/s", better="higher")

    def of_items(change):
        return [
            Round(each.order, {"items_per_s": each.base["step_time"]}, {"items_per_s": each.head["step_time"]})
            for each in rounds(30, slower=change)
        ]

    worse = one(of_items(-0.08), higher)
    assert (worse.verdict, worse.effect < 0) == ("regressed", True)
    assert worse.times_over == pytest.approx(abs(worse.effect) / 0.03)
    assert 0.03 < worse.mde < 0.08
    assert one(of_items(0.08), higher).verdict == "improved"
    assert one(of_items(0.0), higher).verdict == "unchanged"


def test_a_limit_that_a_metric_cannot_pass_is_never_passed():
    higher = suspect("speed", "100%", unit="1", better="higher")
    ratios = [Round(order, {"speed": 10.0 + n}, {"speed": 0.1 + n}) for n, order in enumerate(orders(3, 30))]
    metric = one(ratios, higher)
    assert metric.verdict != "regressed"
    assert metric.mde is None


def test_a_limit_of_zero_tests_for_any_slowdown():
    metric = one(rounds(30, slower=0.03), suspect(limit="0%"))
    assert (metric.verdict, metric.times_over) == ("regressed", None)
    assert one(rounds(30), suspect(limit="0%")).verdict == "inconclusive"


def test_each_suspect_has_its_own_verdict_and_its_own_end():
    both = (suspect(), suspect("block_time"))
    test, measured = PairedTest(both, ALPHA), rounds(30, slower=0.0, block_time=0.045)
    first = test.look(measured[:10])
    assert {name: metric.verdict for name, metric in first.decided.items()} == {"step_time": "unchanged"}
    assert (first.undecided, first.next_look) == (("block_time",), 11)
    last = test.look(measured)
    assert last.decided["step_time"] == first.decided["step_time"]
    assert last.decided["block_time"].verdict == "regressed"


def test_nothing_left_to_decide_ends_the_test_early():
    # Past the limit by 1 % and within it by 1 % in turns: after 28 rounds no two more decide anything.
    test = PairedTest((suspect(),), ALPHA)
    measured = of([1.03 + (0.01 if n % 2 else -0.01) * (1 + n / 100) for n in range(28)])
    assert test.look(measured[:10]).next_look == 15
    outcome = test.look(measured)
    assert outcome.next_look is None
    assert outcome.decided["step_time"].verdict == "inconclusive"
    assert "28 paired rounds" in outcome.decided["step_time"].reason


def test_broken_rounds_are_invalid():
    measured = rounds(15, slower=0.5)
    fixed = [Round("base first", each.base, each.head) for each in measured]
    metric = one(fixed)
    assert metric.verdict == "invalid"
    assert metric.reason == "all 15 rounds ran base first: the order was not drawn by a coin"
    assert one([Round(each.order, each.base, each.base) for each in measured]).verdict == "invalid"
    assert one([*measured, Round("base first", {}, {})]).verdict == "invalid"


@pytest.mark.parametrize("suspects, alpha, message", [
    ((), ALPHA, "0 suspects"),
    ((suspect(limit="off"),), ALPHA, "step_time has no limit to confirm"),
    ((suspect(),), 0.0, "level 0"),
    ((Suspect("speed", parse_limit("speed", "3%+1us"), "1/s"),), ALPHA, "not a quantity"),
    ((Suspect("speed", parse_limit("speed", "-3%"), "1/s"),), ALPHA, "limits a decrease"),
], ids=["none", "off", "no level", "unit", "direction"])  # fmt: skip
def test_what_cannot_be_tested_is_refused(suspects, alpha, message):
    with pytest.raises(ValueError, match=message):
        PairedTest(suspects, alpha)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.03, 0.05, -0.04]), st.integers(1, 30))
def test_exchanging_the_sides_exchanges_the_verdicts(seed, slower, count):
    measured = rounds(count, slower=slower, sd=0.02, seed=seed)
    turned = [Round(each.order, each.head, each.base) for each in measured]
    mirror = {"regressed": "improved", "improved": "regressed"}
    one_way, other_way = (settle(each, ended=True).decided for each in (measured, turned))
    for name, metric in one_way.items():
        assert other_way[name].verdict == mirror.get(metric.verdict, metric.verdict)
        assert (1 + other_way[name].effect) * (1 + metric.effect) == pytest.approx(1)


@given(st.integers(0, 10**6), st.floats(0, 0.1))
def test_slower_heads_never_take_back_regressed(seed, more):
    measured = rounds(30, slower=0.05, sd=0.02, seed=seed)
    slower = [Round(each.order, each.base, {"step_time": each.head["step_time"] * (1 + more)}) for each in measured]
    before, after = (one(each, suspect(limit="3%")).verdict for each in (measured, slower))
    assert before != "regressed" or after == "regressed"


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_the_order_of_rounds_within_a_look_is_nothing(seed, rng):
    measured = rounds(10, slower=0.04, sd=0.02, seed=seed)
    mixed = list(measured)
    rng.shuffle(mixed)
    for one_way, other_way in zip(
        settle(measured, ended=True).decided.values(), settle(mixed, ended=True).decided.values(), strict=True
    ):
        assert one_way.verdict == other_way.verdict
        assert one_way.ci95 == pytest.approx(other_way.ci95)
        assert one_way.reason == other_way.reason


def test_a_series_can_be_replayed():
    test, measured = PairedTest((suspect(), suspect("block_time")), ALPHA), rounds(30, slower=0.05, block_time=0.02)
    seen = {}
    for count in range(31):
        for name, metric in test.look(measured[:count]).decided.items():
            if metric.verdict != "inconclusive":
                assert seen.setdefault(name, metric) == metric
    assert set(seen) == {"step_time", "block_time"}
