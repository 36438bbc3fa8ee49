"""The rule for a test's times: every end that it has, at its boundary, with its figures and words."""

import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import ALPHA, OWN_EVIDENCE, Gate, Held, Spent
from pytest_perfdl.model.limits import parse_limit
from pytest_perfdl.stats import evidence
from unit.judge.made_rounds import US, estimate, noise, of

LIMIT = math.log1p(0.03)


def held(name="step_time", limit="3%", **rest):
    return Held(name, parse_limit(name, limit), **rest)


STEP, BLOCK = held(), held("block_time")


def gate(*metrics, **rest):
    return Gate(metrics or (STEP,), **rest)


def one(rounds, *metrics, spent=None, **rest):
    """The only verdict there is."""
    outcome = gate(*metrics, **rest).look(rounds, spent)
    assert not outcome.open
    (metric,) = outcome.verdicts.values()
    return metric


def ended(seconds=300.0):
    """A budget that has just ended."""
    return Spent(seconds, seconds)


def twice(seconds=300.0):
    """A budget and its extension."""
    return Spent(2 * seconds, seconds)


def said(outcome):
    return {name: metric.verdict for name, metric in outcome.verdicts.items()}


def shares(*values):
    """Differences of shares: 0.1 is a tenth longer."""
    return [math.log1p(each) for each in values]


# Regressed


def test_surely_past_the_limit_is_regressed_with_its_figures():
    differences = noise(12, shift=0.08)
    measured = of(*differences)
    metric = one(measured)
    assert (metric.verdict, metric.kind, metric.unit, str(metric.limit)) == ("regressed", "timed", "ns", "3%")
    found = estimate(differences)
    assert metric.effect == pytest.approx(math.expm1(found.center))
    assert metric.ci95 == pytest.approx([math.expm1(end) for end in found.interval])
    assert metric.excluded == metric.ci95[1]
    assert metric.times_over == pytest.approx(metric.effect / 0.03)
    assert metric.new == statistics.median(each.head["step_time"] for each in measured)
    assert metric.new == pytest.approx(metric.base * (1 + metric.effect)), "both sides and the effect are one change"
    assert (metric.evidence, metric.rounds, metric.in_every_round) == ("paired", 12, False)
    low, high = (f"{end * 100:+.1f}%" for end in metric.ci95)
    assert metric.reason == f"{metric.effect * 100:+.1f}% [{low}, {high}] (95% interval, 12 paired rounds), limit 3%"


def test_what_is_shown_of_the_current_side_is_what_it_took():
    """Two disturbed processes of the baseline move neither the estimate nor what is shown."""
    rounds = of(*noise(9, sd=0.001, shift=0.2), base=10_000 * US)
    disturbed = [
        replace(each, base={"step_time": 3 * each.base["step_time"]}) if place in (3, 4) else each
        for place, each in enumerate(rounds)
    ]
    metric = one(disturbed, spent=twice())
    assert metric.new == statistics.median(each.head["step_time"] for each in rounds)
    assert metric.base == pytest.approx(10_000 * US, rel=0.02)
    assert metric.effect == pytest.approx(metric.new / metric.base - 1)


@pytest.mark.parametrize("rounds", [9, 11, 15, 18])
def test_it_takes_the_evidence_that_all_tests_of_the_run_need(rounds):
    """As many tests as the evidence is for fail, and one test more does not."""
    differences = noise(rounds, sd=0.02, seed=rounds, shift=0.12)
    gathered = evidence.evidence(differences, LIMIT)
    tests = int(gathered * 0.005)
    assert tests >= 1, "the sample has no evidence"
    assert one(of(*differences), tests=tests).verdict == "regressed"
    assert gate(tests=tests + 1).look(of(*differences)).open
    assert gate(tests=tests).needed == tests * 200


def test_it_takes_nine_rounds_at_least_and_fifteen_among_forty_tests():
    for tests, least in ((1, 9), (40, 15)):
        one_by_one = [gate(tests=tests).look(of(*[0.1] * count)).open for count in range(least + 1)]
        assert one_by_one == [True] * least + [False]
        assert gate(tests=tests).least_to_fail == least


@pytest.mark.parametrize("side, verdicts", [(-1, {"step_time": "regressed"}), (1, {})], ids=["below", "above"])
def test_it_takes_the_estimate_too(side, verdicts):
    """Code that is surely slower, and slower by more than the limit with 95 % or a little less."""
    differences = noise(20, shift=0.06)
    edge = math.expm1(estimate(differences).quantile(0.05))
    limit = held(limit=f"{100 * edge * (1 + side * 1e-4):.9f}%")
    assert evidence.evidence(differences, limit.bet) > 1e4
    assert said(gate(limit).look(of(*differences))) == verdicts


def test_only_what_has_evidence_of_its_own_is_named():
    clear = [0.15] * 13
    doubtful = [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, -0.2, -0.2, -0.2, 0.2, 0.2, 0.2]
    assert evidence.evidence(doubtful, LIMIT) < OWN_EVIDENCE
    assert estimate(doubtful).over(LIMIT) > 0.95
    outcome = gate(STEP, BLOCK).look(of(*clear, block_time=doubtful))
    assert said(outcome) == {"step_time": "regressed", "block_time": "suspect"}
    early = gate(STEP, BLOCK).look(of(*clear, block_time=doubtful), Spent(40, 300)).verdicts["block_time"]
    assert "stopped by" not in early.reason, "the other metric ended the rounds"
    outcome = gate(STEP, BLOCK).look(of(*doubtful, block_time=clear))
    assert said(outcome) == {"step_time": "suspect", "block_time": "regressed"}


@pytest.mark.parametrize("wrong", [1, 2])
def test_the_named_one_is_at_twenty(wrong, monkeypatch):
    clear, other = [0.15] * 15, [0.1] * (15 - wrong) + [-0.1] * wrong
    own = evidence.evidence(other, LIMIT)
    for needed, verdict in ((own * 0.999, "regressed"), (own * 1.001, "suspect")):
        monkeypatch.setattr("pytest_perfdl.judge.stopping_rule.OWN_EVIDENCE", needed)
        outcome = gate(STEP, BLOCK).look(of(*clear, block_time=other))
        assert said(outcome) == {"step_time": "regressed", "block_time": verdict}


def test_the_evidence_is_the_mean_over_metrics():
    """So none of them may use up what the others have, nor may their number."""
    slower = [0.1] * 9
    assert one(of(*slower)).verdict == "regressed"  # 238 of 200
    assert gate(STEP, BLOCK).look(of(*slower, block_time=noise(9))).open  # 119
    assert said(gate(STEP, BLOCK).look(of(*slower, block_time=slower))) == {
        "step_time": "regressed",
        "block_time": "regressed",
    }


def test_blocks_alone_can_fail_a_test():
    """One step of five got slower: the quartile of steps does not know."""
    outcome = gate(STEP, BLOCK).look(of(*noise(12), block_time=0.1))
    assert said(outcome) == {"step_time": "unchanged", "block_time": "regressed"}


# Unchanged


def test_nothing_is_excluded_before_the_third_round():
    quiet = noise(3, sd=0.002)
    assert [gate().look(of(*quiet[:count])).open for count in range(4)] == [True, True, True, False]
    metric = one(of(*quiet))
    assert metric.verdict == "unchanged"
    assert 0 < metric.excluded < 0.03
    assert metric.reason.endswith(
        f"(95% interval, 3 paired rounds), limit 3%: no slowdown detected; a slowdown above {metric.excluded:.1%} is "
        "excluded (97.5% confidence)"
    )


def test_two_rounds_are_enough_where_a_start_takes_long():
    quiet, limit = noise(2, sd=0.001), held(limit="10%")
    assert gate(limit).look(of(*quiet)).open
    assert [gate(limit, least=2).look(of(*quiet[:count])).open for count in range(3)] == [True, True, False]
    metric = one(of(*quiet), limit, least=2)
    assert (metric.verdict, metric.rounds) == ("unchanged", 2)
    short = one(of(*quiet[:1]), limit, least=2, spent=ended())
    assert short.reason.endswith(": at least 2 paired rounds are needed, but only 1 fit into --perf-budget")


@pytest.mark.parametrize("order", ["base first", "head first"])
def test_nothing_is_excluded_while_the_same_side_always_went_first(order):
    quiet = of(*noise(4, sd=0.002))
    same = [replace(each, order=order) for each in quiet]
    assert one(quiet).verdict == "unchanged"
    assert gate().look(same).open
    metric = one(same, spent=ended())
    assert metric.verdict == "inconclusive"
    assert metric.reason.endswith(
        "limit 3%: the same code ran first in all paired rounds, so more rounds are needed (--perf-budget)"
    )
    assert one([*same, *quiet]).verdict == "unchanged"


@pytest.mark.parametrize("side, open_", [(-1, True), (1, False)], ids=["below", "above"])
def test_what_is_excluded_is_excluded_with_975_in_a_thousand(side, open_):
    differences = noise(12, sd=0.02)
    edge = estimate(differences).quantile(0.975)
    limit = held(limit=f"{100 * math.expm1(edge) * (1 + side * 1e-4):.9f}%")
    assert evidence.rarely_so_few(differences, 0.9 * edge)
    assert gate(limit).look(of(*differences)).open == open_


def test_the_brake_holds_what_the_estimate_would_clear():
    differences = [0.001, -0.001, 0.0, 0.002, 0.05, 0.0015]
    assert estimate(differences[:5]).over(LIMIT) < 0.025
    # One round of five is past the limit: a coin shows so few in 6 of 32 cases; one of six in 7 of 64.
    assert gate().look(of(*differences[:5])).open
    assert one(of(*differences)).verdict == "unchanged"


def test_blocks_need_not_clear_a_test():
    outcome = gate(STEP, BLOCK).look(of(0.001, -0.001, 0.0005, block_time=[0.3, -0.4, 0.2 - 0.3]))
    assert said(outcome) == {"step_time": "unchanged", "block_time": None}
    assert outcome.verdicts["block_time"].effect is not None


def test_blocks_that_look_slower_hold_it():
    blocks = [0.08, -0.05, 0.06]
    assert 0.5 < estimate(blocks).over(LIMIT) < 0.95
    measured = of(0.001, -0.001, 0.0005, block_time=blocks)
    assert gate(STEP, BLOCK).look(measured).open
    # Not for longer than the budget.
    outcome = gate(STEP, BLOCK).look(measured, ended())
    assert said(outcome) == {"step_time": "unchanged", "block_time": None}


@pytest.mark.parametrize("name", ["block_time", "fwd.block_time"])
def test_blocks_clear_a_test_whose_steps_are_held_to_nothing(name):
    other = held("bwd.step_time")
    blocks = held(name)
    noisy, quiet = [0.3, -0.4, -0.1], [0.001, -0.001, 0.0005]
    assert gate(blocks).look(of(*noisy, name=name)).open
    assert gate(blocks, other).look(of(*noisy, name=name, **{"bwd.step_time": quiet})).open
    assert one(of(*noisy, name=name), blocks, spent=ended()).verdict == "inconclusive"
    assert one(of(*quiet, name=name), blocks).verdict == "unchanged"


def test_code_that_is_surely_faster_is_not_bounded_by_a_slowdown():
    metric = one(of(*shares(-0.02, -0.021, -0.019, -0.0205, -0.0195)))
    assert (metric.verdict, metric.excluded < 0) == ("unchanged", True)
    assert metric.reason.endswith("limit 3%: no slowdown")


def test_code_that_is_surely_slower_is_not_called_free_of_a_slowdown():
    differences = noise(12, sd=0.002, shift=0.02)
    metric = one(of(*differences))
    assert metric.verdict == "unchanged"
    assert metric.reason.endswith(
        f": slower than the baseline, but within the limit; a slowdown above {metric.excluded:.1%} is excluded "
        "(97.5% confidence)"
    )
    # Where the budget ends first, the limit itself is not excluded: the resolution is.
    differences = noise(12, sd=0.015, seed=3, shift=0.02)
    found = estimate(differences)
    assert 0 < found.interval[0] < found.center < LIMIT < found.interval[1] < 2 * LIMIT
    metric = one(of(*differences), spent=ended())
    assert metric.verdict == "unchanged"
    assert (
        f": slower than the baseline, possibly within the limit; a slowdown above {metric.excluded:.1%} is excluded"
        in metric.reason
    )


# Improved


def test_a_speed_up_takes_evidence_of_twenty():
    opened = [gate().look(of(*[-0.1] * count)).open for count in range(7)]
    assert opened == [True] * 6 + [False]  # the mirrored evidence of 5 rounds is 19.6, of 6 is 36
    metric = one(of(*[-0.1] * 6))
    assert (metric.verdict, metric.times_over) == ("improved", None)
    assert metric.reason.endswith("(95% interval, 6 paired rounds), limit 3%")


def test_a_speed_up_that_the_budget_cuts_short_is_unchanged():
    assert one(of(*[-0.1] * 4), spent=ended()).verdict == "unchanged"
    assert one(of(*[-0.1] * 6), spent=ended()).verdict == "improved"


def test_faster_within_the_limit_is_unchanged():
    assert one(of(*noise(12, sd=0.003, shift=-0.02))).verdict == "unchanged"


# The budget


def test_a_suspect_gets_twice_the_budget():
    slower = of(0.2, 0.22, 0.21, 0.23)
    for seconds in (0.5, 1.0, 1.99):
        assert gate().look(slower, Spent(120 * seconds, 120)).open
    metric = one(slower, spent=twice(120))
    assert metric.verdict == "suspect"
    # Ten rounds can fail it; four took 240 s.
    assert metric.reason.endswith(
        "limit 3%: over the limit in all 4 paired rounds; stopped by --perf-budget=120; "
        "a certain verdict needs about 600 s"
    )
    assert gate().look(slower).open


def test_some_rounds_past_the_limit_are_counted():
    metric = one(of(0.2, 0.21, 0.2, 0.21, 0.2, 0.01, 0.22), spent=twice())
    said = "over the limit in 6 of 7 paired rounds; stopped by --perf-budget=300; a certain verdict needs about 1200 s"
    assert said in metric.reason


@pytest.mark.parametrize("side, verdict", [(-1, "suspect"), (1, "inconclusive")], ids=["below", "above"])
def test_a_suspect_is_past_its_limit_with_95_percent(side, verdict):
    differences = noise(6, sd=0.02, shift=0.08)
    edge = math.expm1(estimate(differences).quantile(0.05))
    limit = held(limit=f"{100 * edge * (1 + side * 1e-4):.9f}%")
    assert one(of(*differences), limit, spent=twice()).verdict == verdict
    # Who is no suspect has no extension.
    assert gate(limit).look(of(*differences), ended()).open == (verdict == "suspect")


@pytest.mark.parametrize(
    "differences, least, verdict",
    [
        ([2.2], 3, "inconclusive"),
        ([2.2, 2.1], 3, "inconclusive"),
        ([2.2, 2.1, 2.0], 3, "suspect"),
        # Steps so slow that two rounds have to do.
        ([2.2], 2, "inconclusive"),
        ([2.2, 2.1], 2, "suspect"),
    ],
)
def test_few_rounds_make_no_suspect(differences, least, verdict):
    """A busy machine gave the same code +811 % [+725, +906] in one round: the interval is that of noise of 2 %."""
    assert estimate(differences).over(LIMIT) > 0.95
    outcome = Gate((STEP,), least=least).look(of(*differences), twice())
    metric = outcome.verdicts["step_time"]
    assert metric.verdict == verdict
    if len(differences) < least:
        assert metric.reason.endswith(
            f"at least {least} paired rounds are needed, but only {len(differences)} fit into --perf-budget"
        )


def test_in_the_extension_all_ordinary_ends_apply():
    spent = Spent(450, 300)
    assert one(of(*[0.1] * 9), spent=spent).verdict == "regressed"
    assert one(of(*noise(3, sd=0.002)), spent=spent).verdict == "unchanged"
    assert one(of(*[-0.1] * 6), spent=spent).verdict == "improved"
    # What does not look slower any more ends there.
    assert one(of(0.2, 0.21, 0.001, -0.001, -0.1), spent=spent).verdict == "inconclusive"


def test_only_the_budget_ends_a_test():
    at_the_limit = noise(60, sd=0.02, shift=LIMIT)
    assert gate().look(of(*at_the_limit)).open
    assert not gate().look(of(*at_the_limit), twice()).open


@pytest.mark.parametrize(
    "tests, steps, rounds", [(1, 1, 8), (2, 1, 9), (3, 1, 10), (32, 1, 13), (40, 1, 14), (40, 2, 15), (240, 1, 16)]
)
def test_a_suspect_past_its_limit_in_every_one_of_enough_rounds_fails(tests, steps, rounds):
    """2 ** -8 for the whole run: 8 + log2 of how many times of steps could do it, rounded up."""
    metrics = [held(f"call{n}.step_time") for n in range(steps)]
    chance = 2.0**-rounds * tests * steps
    assert chance <= 1 / 256 < 2 * chance
    assert chance + ALPHA < 0.01, "unchanged code of a run, even if the limit is far below the noise"
    for count, every in ((rounds - 1, False), (rounds, True)):
        slow = [0.035 + n / 1000 for n in range(count)]
        measured = of(*slow, name="call0.step_time", **{metric.name: 0.0 for metric in metrics[1:]})
        (metric, *_) = gate(*metrics, tests=tests).look(measured, twice()).verdicts.values()
        assert (metric.verdict, metric.in_every_round) == ("suspect", every)
    assert gate(*metrics, tests=tests).every_round == rounds


def test_one_round_within_the_limit_is_not_every_round():
    slow = [0.04] * 9
    assert one(of(*slow, 0.0301), tests=4, spent=twice()).in_every_round
    assert not one(of(*slow, 0.029), tests=4, spent=twice()).in_every_round


def test_every_round_is_for_times_of_steps_and_for_suspects_only():
    slow = [0.05 + n / 1000 for n in range(8)]
    outcome = gate(STEP, BLOCK, tests=4).look(of(*noise(8), block_time=slow), twice())
    assert outcome.verdicts["block_time"].verdict == "suspect"
    assert not outcome.verdicts["block_time"].in_every_round
    assert not one(of(*[0.1] * 15), spent=twice()).in_every_round


def test_within_the_resolution_the_budget_ends_well():
    differences = [0.039, -0.032, 0.026, 0.052, -0.026, 0.02]
    bound = math.expm1(estimate(differences).quantile(0.975))
    assert 0.04 < bound < 0.059
    measured = of(*differences)
    assert gate().look(measured, Spent(299, 300)).open
    metric = one(measured, spent=ended())
    assert (metric.verdict, metric.excluded) == ("unchanged", pytest.approx(bound))
    assert metric.reason.endswith(
        f"limit 3%: no slowdown detected; a slowdown above {bound:.1%} is excluded (97.5% confidence)"
    )
    for resolution, verdict in ((bound * 1.01, "unchanged"), (bound * 0.99, "inconclusive"), (0.0, "inconclusive")):
        metric = one(measured, resolution=resolution, spent=ended())
        assert metric.verdict == verdict
    assert metric.reason.endswith(f"limit 3%: a slowdown of up to {bound:.1%} cannot be excluded")


def test_a_test_far_noisier_than_its_limit_is_told_the_limit_that_ends_it_soon():
    # Sixty rounds of 5 s, 15 % to either side, in an order that favors no side.
    differences = [0.15, -0.15, -0.15, 0.15] * 15
    for resolution, verdict in ((1.0, "unchanged"), (0.0, "inconclusive")):
        metric = one(of(*differences), resolution=resolution, spent=ended())
        assert metric.verdict == verdict
        told = re.search(
            r"; stopped by --perf-budget=300: at this noise, a limit of (\d+)% needs about (\d+) s$", metric.reason
        )
        assert told, metric.reason
    limit, seconds = map(int, told.groups())
    low, high = estimate(differences).interval
    rounds = {share: 60 * ((high - low) / 2 / math.log1p(share)) ** 2 for share in (0.05, 0.1, 0.2)}
    assert rounds[0.1] > 12 > rounds[0.2], "the least of the limits that take a fifth of the time at most"
    assert (limit, seconds) == (20, 5 * math.ceil(rounds[0.2]))
    # So it is: held to that limit, the test is over after so many rounds, and held to its own it is not.
    first = of(*differences[: math.ceil(seconds / 5)])
    assert one(first, held(limit=f"{limit}%"), spent=Spent(seconds, 300)).verdict == "unchanged"
    assert gate().look(first, Spent(seconds, 300)).open
    # Nothing is said where the limit is reached at the end, or nearly so.
    assert "stopped by" not in one(of(*[0.015, -0.015, -0.015, 0.015] * 15), held(limit="2%"), spent=ended()).reason
    assert "stopped by" not in one(of(*noise(12)), spent=Spent(60, 300)).reason
    assert "stopped by" not in one(of(*noise(12)), resolution=0.0, spent=ended()).reason


def test_a_resolution_is_a_share_of_what_is_lost_where_more_is_better():
    differences = [-each for each in (0.039, -0.032, 0.026, 0.052, -0.026, 0.02)]
    measured = of(*differences, name="items_per_s")
    bound = one(measured, HIGHER, spent=ended()).excluded
    assert bound == pytest.approx(-math.expm1(-estimate(-each for each in differences).quantile(0.975)))
    for resolution, verdict in ((bound + 1e-4, "unchanged"), (bound - 1e-4, "inconclusive")):
        assert one(measured, HIGHER, resolution=resolution, spent=ended()).verdict == verdict


def test_a_resolution_below_the_limit_is_the_limit():
    assert one(of(*noise(4, sd=0.002)), resolution=0.001, spent=ended()).verdict == "unchanged"


def test_the_default_resolution_is_twice_the_limit_on_the_log_scale():
    differences = noise(8, sd=0.02, seed=6)
    edge = estimate(differences).quantile(0.975)
    for factor, verdict in ((0.499, "inconclusive"), (0.501, "unchanged")):
        limit = held(limit=f"{100 * math.expm1(edge * factor):.9f}%")
        assert estimate(differences).over(math.log1p(limit.limit.relative)) < 0.5
        assert one(of(*differences), limit, spent=ended()).verdict == verdict


def test_the_brake_holds_at_the_resolution_too():
    differences = [0.001, -0.001, 0.0, 0.002, 0.08]
    assert estimate(differences).over(2 * LIMIT) < 0.025
    assert one(of(*differences), spent=ended()).verdict == "inconclusive"


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_rounds_say_how_many_are_needed(count):
    metric = one(of(*noise(count, sd=0.001)), spent=ended())
    assert metric.verdict == "inconclusive"
    rounds = f"{count} paired round{'s' * (count > 1)}"
    assert metric.reason.endswith(
        f"{rounds}), limit 3%: at least 3 paired rounds are needed, but only {count} fit into --perf-budget"
    )


def test_no_round_at_all():
    assert gate().look([]).open
    metric = one([], spent=ended())
    assert (metric.verdict, metric.reason, metric.base) == ("inconclusive", "no paired round was measured", None)


# What rounds may be


def test_broken_rounds_are_invalid():
    measured = of(*noise(15, shift=0.4))
    fixed = [Round("base first", each.base, each.head) for each in measured]
    metric = one(fixed)
    assert metric.verdict == "invalid"
    assert metric.reason == "the baseline code ran first in all 15 paired rounds, so the order was not random"
    assert one([Round(each.order, each.base, each.base) for each in measured]).verdict == "invalid"
    lacking = one([*measured, Round("base first", {}, {})])
    assert lacking.reason == "paired round 16: the baseline code has no value of step_time"
    outcome = gate(STEP, BLOCK).look(measured)
    assert said(outcome) == {"step_time": "invalid", "block_time": "invalid"}


@pytest.mark.parametrize("limit, verdict", [
    ("3%", "regressed"),
    ("3%+50us", "regressed"),
    ("3%+120us", "regressed"),
    ("3%+150us", "inconclusive"),
    ("3%+200us", "unchanged"),
    ("3%+2ms", "unchanged"),
    ("30%+1us", "unchanged"),
    ("50us", "regressed"),
    ("2ms", "unchanged"),
])  # fmt: skip
def test_both_parts_of_a_limit_have_to_be_exceeded(limit, verdict):
    by_a_tenth = [math.log(1.1 + (-1) ** n * (n + 1) * 1e-4) for n in range(14)]
    metric = one(of(*by_a_tenth, base=1_490 * US), held(limit=limit), resolution=0.0, spent=ended())
    assert metric.verdict == verdict


def test_a_limit_in_two_parts_is_the_median_of_what_rounds_allow():
    values = (100 * US, 1000 * US, 400 * US)
    bound = held(limit="3%+20us").bound(np.array(values))
    assert bound == pytest.approx(math.log1p(0.05))  # 20 % of the first, 3 % of the second, 5 % of the third
    assert held(limit="3%").bound(np.array(values)) == pytest.approx(LIMIT)


@pytest.mark.parametrize("limit, better, bet", [
    ("3%", "lower", math.log1p(0.03)),
    ("3%+20us", "lower", math.log1p(0.03)),
    ("20us", "lower", 0.0),
    ("3%", "higher", -math.log1p(-0.03)),
    ("100%", "higher", -math.log1p(-0.99)),
])  # fmt: skip
def test_what_is_bet_on_does_not_depend_on_what_was_measured(limit, better, bet):
    assert held(limit=limit, better=better).bet == pytest.approx(bet)


HIGHER = held("items_per_s", "3%", unit="1/s", better="higher")


def test_where_more_is_better_a_loss_is_regressed():
    worse = one(of(*[-0.1] * 9, name="items_per_s"), HIGHER)
    assert (worse.verdict, worse.unit, worse.better) == ("regressed", "1/s", "higher")
    assert worse.effect == pytest.approx(math.expm1(-0.1), abs=2e-3)
    assert worse.ci95[0] < worse.effect < worse.ci95[1] < 0
    assert worse.times_over == pytest.approx(abs(worse.effect) / 0.03)
    assert worse.excluded == pytest.approx(-worse.ci95[0])
    assert one(of(*[0.1] * 6, name="items_per_s"), HIGHER).verdict == "improved"
    same = one(of(*noise(3, sd=0.002), name="items_per_s"), HIGHER)
    assert same.verdict == "unchanged"
    assert same.excluded == pytest.approx(-same.ci95[0])
    suspect = one(of(*[-0.1] * 5, name="items_per_s"), HIGHER, spent=twice())
    assert (suspect.verdict, suspect.in_every_round) == ("suspect", False)


def test_a_limit_that_a_metric_cannot_pass_is_never_passed():
    metric = one(
        of(*noise(20, shift=-4), name="speed"), held("speed", "100%", unit="1", better="higher"), spent=twice()
    )
    assert (metric.verdict, metric.times_over) == ("unchanged", None)


def test_a_limit_of_zero_asks_for_any_slowdown():
    metric = one(of(*noise(15, sd=0.005, shift=0.03)), held(limit="0%"))
    assert (metric.verdict, metric.times_over) == ("regressed", None)
    assert gate(held(limit="0%")).look(of(*noise(30))).open
    assert one(of(*noise(30)), held(limit="0%"), spent=twice()).verdict == "inconclusive"


@pytest.mark.parametrize("metrics, tests, message", [
    ((), 1, "cannot decide on 0 metrics of 1 tests"),
    ((STEP,), 0, "cannot decide on 1 metrics of 0 tests"),
    ((held(limit="off"),), 1, "step_time has no limit"),
    ((Held("speed", parse_limit("speed", "3%+1us"), "1/s"),), 1, "not a quantity"),
    ((Held("speed", parse_limit("speed", "-3%"), "1/s"),), 1, "limits a decrease"),
], ids=["none", "no test", "off", "unit", "direction"])  # fmt: skip
def test_what_cannot_be_judged_is_refused(metrics, tests, message):
    with pytest.raises(ValueError, match=message):
        Gate(metrics, tests)


def test_a_look_is_a_function_of_its_rounds():
    measured = of(*noise(30, sd=0.02, shift=0.05), block_time=noise(30, sd=0.03, seed=2))
    judge = gate(STEP, BLOCK)
    seen = [judge.look(measured[:count]) for count in range(20)]
    assert seen == [gate(STEP, BLOCK).look(list(measured[:count])) for count in range(20)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.1, -0.1]), st.integers(3, 14))
def test_exchanged_sides_exchange_figures(seed, slower, count):
    measured = of(*noise(count, sd=0.02, seed=seed, shift=slower))
    turned = [Round(each.order, each.head, each.base) for each in measured]
    there, back = (gate().look(each, twice()).verdicts["step_time"] for each in (measured, turned))
    assert (1 + there.effect) * (1 + back.effect) == pytest.approx(1, abs=1e-4)
    assert back.verdict != there.verdict or there.verdict in ("unchanged", "inconclusive")
    if there.verdict == "regressed":
        assert back.verdict == "improved"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.05))
def test_a_common_factor_of_both_sides_is_nothing(seed, factor):
    measured = of(*noise(8, sd=0.02, seed=seed, shift=0.02))
    louder = [
        Round(
            each.order,
            {"step_time": each.base["step_time"] * (1 + factor * n)},
            {"step_time": each.head["step_time"] * (1 + factor * n)},
        )
        for n, each in enumerate(measured)
    ]
    one_way, other_way = (gate().look(each, twice()).verdicts["step_time"] for each in (measured, louder))
    assert one_way.verdict == other_way.verdict
    assert one_way.effect == pytest.approx(other_way.effect, abs=1e-5)


# Utilization

ROOFLINE = held("roofline", "2pp", unit="%", better="higher")


def test_a_utilization_that_fell_with_a_slower_step_is_regressed():
    slower = noise(14, shift=0.08)
    lost = [-each for each in noise(14, shift=0.1, seed=2)]
    outcome = gate(STEP, ROOFLINE).look(of(*slower, base=60.0, roofline=lost))
    assert said(outcome) == {"step_time": "regressed", "roofline": "regressed"}
    assert outcome.verdicts["roofline"].effect == pytest.approx(-0.095, abs=0.01)


def test_a_utilization_that_fell_with_a_faster_step_is_not_judged():
    # Wasted arithmetic was removed: the step got faster, and the machine is used less.
    faster = noise(14, shift=-0.08)
    lost = [-each for each in noise(14, shift=0.1, seed=2)]
    outcome = gate(STEP, ROOFLINE).look(of(*faster, base=60.0, roofline=lost))
    assert said(outcome) == {"step_time": "improved", "roofline": "unchanged"}
    assert outcome.verdicts["roofline"].reason == "not compared, because step_time did not get slower"
    assert outcome.verdicts["roofline"].effect < -0.08


def test_a_utilization_of_another_call_is_judged_by_its_own_step():
    fwd, own = held("fwd.step_time"), held("fwd.roofline", "2pp", unit="%", better="higher")
    faster, slower = noise(14, shift=-0.08), noise(14, shift=0.08, seed=3)
    lost = [-each for each in noise(14, shift=0.1, seed=2)]
    rounds = of(*faster, base=60.0, **{"fwd.step_time": slower, "fwd.roofline": lost})
    assert said(gate(STEP, fwd, own).look(rounds))["fwd.roofline"] == "regressed"
    assert said(gate(STEP, held("roofline", "2pp", unit="%", better="higher")).look(
        of(*noise(14), base=60.0, roofline=noise(14, seed=4))
    ))["roofline"] == "unchanged"  # fmt: skip


@pytest.mark.parametrize("value", [0.0, None])
def test_a_utilization_that_a_process_lacks_keeps_nothing_else_from_being_judged(value):
    rounds = of(*noise(14, shift=0.08), base=60.0, roofline=noise(14, seed=4))
    left = {name: each for name, each in rounds[3].head.items() if name != "roofline"}
    rounds[3] = replace(rounds[3], head=left if value is None else {**left, "roofline": value})
    outcome = gate(STEP, ROOFLINE).look(rounds)
    assert said(outcome) == {"step_time": "regressed", "roofline": "inconclusive"}
    assert "not compared" in outcome.verdicts["roofline"].reason
    assert said(gate(ROOFLINE).look(rounds)) == {"roofline": "inconclusive"}


# What has no ratio


def counting(base, head, *, limit="5", shift=0.0, **spent):
    """The outcome of rounds in which a custom metric was `base` and `head` and steps changed by `shift`."""
    rounds = of(*noise(len(base), sd=0.001, shift=shift))
    rounds = [
        replace(each, base={**each.base, "misses": before}, head={**each.head, "misses": after})
        for each, before, after in zip(rounds, base, head, strict=True)
    ]
    return gate(STEP, held("misses", limit, unit="1")).look(rounds, **spent)


@pytest.mark.parametrize("limit, reason", [
    ("5", "3 -> 0 (-3), 3 paired rounds, limit 5"),
    ("10%", "the value is missing, 0 or below in some paired rounds, so it is not compared"),
])  # fmt: skip
def test_a_custom_metric_that_falls_to_0_keeps_no_time_from_being_judged(limit, reason):
    outcome = counting((3.0,) * 3, (0.0,) * 3, limit=limit)
    assert said(outcome) == {"step_time": "unchanged", "misses": "unchanged" if limit == "5" else "inconclusive"}
    assert outcome.verdicts["misses"].reason == reason
    slower = counting((3.0,) * 12, (0.0,) * 12, limit=limit, shift=0.2)
    assert said(slower)["step_time"] == "regressed"


def test_a_custom_metric_that_a_process_lacks_keeps_no_time_from_being_judged():
    lacking = [replace(each, base={**each.base, "misses": 1.0}) for each in of(*noise(3, sd=0.001))]
    found = gate(STEP, held("misses", "5", unit="1")).look(lacking)
    assert said(found) == {"step_time": "unchanged", "misses": "inconclusive"}


def test_an_absolute_limit_holds_from_0():
    """As a suspect that is past its limit in every round."""
    assert counting((0.0,) * 7, (100.0,) * 7).open
    outcome = counting((0.0,) * 8, (100.0,) * 8)
    assert said(outcome) == {"step_time": "unchanged", "misses": "regressed"}
    assert outcome.verdicts["misses"].reason == "0 -> 100 (+100), 8 paired rounds, limit 5"
    assert said(counting((0.0,) * 3, (0.0,) * 3, limit="0")) == {"step_time": "unchanged", "misses": "unchanged"}
    cut_short = counting((0.0,) * 7, (100.0,) * 7, spent=twice())
    assert said(cut_short) == {"step_time": "unchanged", "misses": "suspect"}


def test_a_value_that_is_past_its_limit_in_some_rounds_is_undecided():
    outcome = counting((0.0,) * 4, (100.0, 0.0, 100.0, 0.0))
    assert said(outcome) == {"step_time": "unchanged", "misses": "inconclusive"}
    assert outcome.verdicts["misses"].reason.endswith("limit 5: past the limit in 2 of them")
    assert counting((0.0,) * 2, (0.0,) * 2).open


def test_a_time_that_fails_waits_for_no_custom_metric():
    calls = [held(f"call{number}.step_time") for number in range(16)]
    rounds = of(*[0.15] * 10, **{each.name: 0.15 for each in calls})
    rounds = [replace(each, base={**each.base, "misses": 0.0}, head={**each.head, "misses": 9.0}) for each in rounds]
    rule = gate(STEP, *calls, held("misses", "5", unit="1"))
    assert rule.every_round > len(rounds)
    found = said(rule.look(rounds))
    assert (found.pop("misses"), {*found.values()}) == ("suspect", {"regressed"})
