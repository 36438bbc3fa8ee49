"""The coin, whose promise is checked over all signs there are; and the estimate, against a slow one of its own."""

import copy
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr

from pytest_perfdl.stats import evidence
from pytest_perfdl.stats.evidence import Coin, Estimate

LIMIT = math.log1p(0.03)
SIZES = {
    "alike": [0.1] * 10,
    "at the limit": [LIMIT] * 8,
    "growing": [0.001 * 2**n for n in range(10)],
    "shrinking": [0.5 / 2**n for n in range(10)],
    "two modes": [0.002, 0.47, 0.001, 0.47, 0.47, 0.003, 0.002, 0.47, 0.47, 0.001],
    "one far off": [0.01, 0.02, 0.01, 9.0, 0.01, 0.02, 0.015, 0.01],
    "noise": np.abs(np.random.default_rng(1).normal(0, 0.03, 10)).tolist(),
    "heavy noise": np.abs(0.02 * np.random.default_rng(2).standard_t(1.5, 10)).tolist(),
    "none": [0.0] * 6,
}


class Peeking(Coin):
    """A mutant that bets with what the current round shows, its sign included."""

    def toss(self, difference):
        before = copy.deepcopy(self)
        super().toss(difference)
        seen = self._log_weights
        self._log_weights, self._wealth = seen.copy(), before._wealth
        super().toss(difference)
        self._log_weights = seen


def paths(coin, sizes):
    """Wealth along every path of signs, (2 ** len(sizes), len(sizes) + 1)."""
    if not sizes:
        return [[coin.evidence]]
    found = []
    for sign in (1, -1):
        further = copy.deepcopy(coin)
        further.toss(sign * sizes[0])
        found += [[coin.evidence, *path] for path in paths(further, sizes[1:])]
    return found


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("limit", [LIMIT, 0.0])
def test_over_all_signs_the_mean_of_the_evidence_is_one(sizes, limit):
    """Given how large the differences are, unchanged code's signs are fair coins: no bet on them gains anything."""
    wealth = np.array(paths(Coin(limit), sizes))
    assert wealth.shape == (2 ** len(sizes), len(sizes) + 1)
    assert wealth.min() > 0
    assert wealth.mean(axis=0) == pytest.approx(np.ones(len(sizes) + 1), abs=1e-9)
    # Whatever was seen before: the mean over both signs of the next round is what there was.
    for seen in range(len(sizes)):
        nodes = wealth.reshape(2**seen, 2, -1, len(sizes) + 1)
        assert nodes[:, :, 0, seen + 1].mean(axis=1) == pytest.approx(nodes[:, 0, 0, seen], rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_wherever_one_stops_evidence_is_rarely_large(sizes):
    """Ville's inequality, by enumeration."""
    highest = np.array(paths(Coin(LIMIT), sizes)).max(axis=1)
    for bound in (1.5, 2, 5, 20, 100, 200):
        assert (highest >= bound).mean() <= 1 / bound


def test_the_bound_is_nearly_reached():
    """So that the enumeration would see a bet that pays too much."""
    highest = np.array(paths(Coin(LIMIT), SIZES["alike"])).max(axis=1)
    assert (highest >= 5).mean() > 0.5 / 5


@pytest.mark.long
@pytest.mark.parametrize("sizes", ["alike", "growing", "noise"])
def test_a_bet_that_knows_its_round_gains_from_nothing(sizes):
    wealth = np.array(paths(Peeking(LIMIT), SIZES[sizes]))
    assert wealth.mean(axis=0)[-1] > 1.05


def test_a_bet_does_not_depend_on_the_sign_that_it_is_on():
    """What a round multiplies the wealth by, with either sign, adds up to two for each of both bets."""
    for size in (0.001, 0.03, 0.2, 2.0):
        coin = Coin(LIMIT)
        for earlier in (0.02, 0.05, -0.01):
            coin.toss(earlier)
        ends = []
        for sign in (1, -1):
            further = copy.deepcopy(coin)
            further.toss(sign * size)
            ends.append(np.exp(further._wealth - coin._wealth))
        assert sum(ends) == pytest.approx([2, 2])


def test_rounds_that_agree_gain_up_to_the_most():
    for rounds in (1, 3, 9, 15):
        found = evidence.evidence([0.3] * rounds, LIMIT)
        assert 0.8 * evidence.most_evidence(rounds) < found <= evidence.most_evidence(rounds) * (1 + 1e-12)
        assert evidence.evidence([-0.3] * rounds, LIMIT) < 0.25
    coin = Coin(LIMIT)
    assert coin.evidence == 1


@pytest.mark.parametrize("wrong", range(9))
def test_one_round_of_the_wrong_sign_is_borne_wherever_it_comes(wrong):
    """The careful one of both bets bears it."""
    differences = [0.1] * 15
    differences[wrong] = -0.2
    assert evidence.evidence(differences, LIMIT) > 200


@pytest.mark.parametrize("needed, rounds", [(1, 0), (1.5, 1), (200, 9), (400, 10), (8000, 15), (80_000, 18)])
def test_how_many_rounds_some_evidence_takes(needed, rounds):
    assert evidence.least_rounds(needed) == rounds
    # By hand: e ** 1.5 and e ** 3.5 to one, laid by halves of the wealth.
    odds = [math.exp(cap) / (1 + math.exp(cap)) * 2 for cap in (1.5, 3.5)]
    assert evidence.most_evidence(rounds) == pytest.approx(sum(each**rounds for each in odds) / 2)
    assert rounds == 0 or evidence.most_evidence(rounds - 1) < needed


def test_wild_rounds_have_evidence():
    for differences in ([1e-12] * 5, [50.0, -50.0, 3.0], [0.0] * 5, [700.0] * 4):
        assert 0 < evidence.evidence(differences, LIMIT) < math.inf


@pytest.mark.parametrize("rounds", range(1, 25))
def test_the_brake_is_a_binomial_tail(rounds):
    for past in range(rounds + 1):
        differences = [0.04] * past + [0.02] * (rounds - past)
        assert evidence.rarely_so_few(differences, 0.03) == (bdtr(past, rounds, 0.5) <= 1 / 8)
    assert evidence.rarely_so_few([0.03] * rounds, 0.03) == evidence.rarely_so_few([0.0] * rounds, 0.03)


# The estimate

SCALES = np.exp(np.linspace(math.log(0.002), math.log(0.16), 12))
PRIOR = np.exp(-0.5 * ((np.log(SCALES) - math.log(0.02)) / 0.7) ** 2)
PERCENT = [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
WIDTHS = [2, 1.5, 1, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.75, 1, 1.5, 2]
"""Of what lies halfway to the neighbors; at the ends, as far as the one neighbor is."""
NORMAL = [math.exp(-((percent / 2) ** 2) / 2) * width for percent, width in zip(PERCENT, WIDTHS, strict=True)]
GAMMAS = {p / 100: 0.3 * each / sum(NORMAL) + 0.7 * (p == 0) for p, each in zip(PERCENT, NORMAL, strict=True)}
STEP = 1e-4


class Slow:
    """The posterior by its definition, on an even grid that is fine and wide enough for everything."""

    def __init__(self, differences, head_second=()):
        low, high = min(differences) - 2.5, max(differences) + 2.5
        self.deltas = np.arange(low, high, STEP)
        found = np.zeros(len(self.deltas))
        turns = [1 if second else -1 for second in head_second] or [0] * len(differences)
        seen = list(zip(differences, turns, strict=True))
        logs = {
            (scale, gamma): sum(
                -2 * np.log1p(((d - gamma * turn - self.deltas) / scale) ** 2 / 3) - math.log(scale) for d, turn in seen
            )
            for scale, gamma in itertools.product(SCALES, GAMMAS if head_second else [0.0])
        }
        highest = max(log.max() for log in logs.values())
        priors = dict(zip(SCALES, PRIOR, strict=True))
        for (scale, gamma), log in logs.items():
            found += priors[scale] * GAMMAS[gamma] * np.exp(log - highest)
        self.below = np.cumsum(found) - found / 2
        self.below /= found.sum()

    def over(self, bound):
        return 1 - np.interp(bound, self.deltas, self.below)

    def quantile(self, probability):
        return np.interp(probability, self.below, self.deltas)


SEEN = {
    "one round": [0.05],
    "two rounds": [0.01, 0.07],
    "three unchanged": [0.004, -0.006, 0.001],
    "equal rounds": [0.02] * 6,
    "at zero": [0.0] * 5,
    "usual": np.random.default_rng(3).normal(0.05, 0.02, 9).tolist(),
    "many": np.random.default_rng(4).normal(0.03, 0.02, 40).tolist(),
    "wide": np.random.default_rng(5).normal(0.0, 0.3, 12).tolist(),
    "two modes": [0.0, 0.47, 0.003, 0.468, 0.472, -0.002, 0.001, 0.47],
    "one mode seldom": [0.001, -0.47, 0.002, 0.0, -0.001, 0.003],
    "half as long again": [math.log(1.6) + x for x in (0.01, -0.02, 0.005, 0.0)],
    "ten times": [math.log(10) + x for x in (0.01, -0.02, 0.005, 0.0, 0.1)],
    "a tenth": [math.log(0.1) + x for x in (0.01, -0.02, 0.005)],
}


RNG = np.random.default_rng(8)
ORDERED = {
    **{f"{name}, without orders": (seen, ()) for name, seen in SEEN.items()},
    **{f"{name}, drawn orders": (seen, tuple((RNG.random(len(seen)) < 0.5).tolist())) for name, seen in SEEN.items()},
    "the second slower": ([0.024, -0.026, 0.03, 0.02, -0.02, 0.025], (True, False, True, True, False, True)),
    "the second faster": ([0.02, 0.08, 0.07, 0.015], (True, False, False, True)),
    "always second": ([0.03, 0.025, 0.035, 0.03], (True,) * 4),
    "one first": ([0.03, 0.025, -0.03, 0.03], (True, True, False, True)),
}


@pytest.mark.long
@pytest.mark.parametrize("differences, head_second", ORDERED.values(), ids=ORDERED)
def test_the_estimate_is_that_of_the_model(differences, head_second):
    found, slow = Estimate(tuple(differences), head_second), Slow(differences, head_second)
    for probability in (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975):
        exact = slow.quantile(probability)
        spread = slow.quantile(0.975) - slow.quantile(0.025)
        assert found.quantile(probability) == pytest.approx(exact, abs=0.01 * spread + 2 * STEP)
    for bound in (-0.05, 0.0, LIMIT, 2 * LIMIT, 0.1, 0.3, 0.5, *(slow.quantile(p) for p in (0.02, 0.5, 0.97))):
        assert found.over(bound) == pytest.approx(slow.over(bound), abs=0.006)
    assert found.center == found.quantile(0.5)
    assert found.interval == pytest.approx((found.quantile(0.025), found.quantile(0.975)))


@pytest.mark.parametrize("differences", SEEN.values(), ids=SEEN)
def test_probabilities_and_quantiles_agree(differences):
    found = Estimate(tuple(differences))
    for probability in (0.01, 0.3, 0.5, 0.975):
        assert found.over(found.quantile(probability)) == pytest.approx(1 - probability, abs=1e-6)
    assert (found.over(-math.inf), found.over(math.inf)) == (1, 0)
    assert (found.over(-99.0), found.over(99.0)) == (1, 0)


def test_an_effect_of_the_order_is_no_slowdown():
    """Alternating orders, the second of a round 5 % slower: the interval is that of a few rounds without it."""
    rng = np.random.default_rng(9)
    noise = rng.normal(0, 0.01, 8)
    head_second = tuple(bool(number % 2) for number in range(8))
    moved = tuple((noise + np.where(head_second, 0.05, -0.05)).tolist())
    plain, told, untold = Estimate(tuple(noise.tolist())), Estimate(moved, head_second), Estimate(moved)
    assert abs(told.center - plain.center) < 0.005
    assert np.ptp(told.interval) < 0.5 * np.ptp(untold.interval)
    assert told.over(0.03) < 0.01 < untold.over(0.03)


def test_orders_that_make_no_difference_cost_little():
    noise = tuple(np.random.default_rng(10).normal(0, 0.01, 8).tolist())
    told, untold = Estimate(noise, (True, False) * 4), Estimate(noise)
    assert np.ptp(told.interval) < 1.15 * np.ptp(untold.interval)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-3, 3))
def test_what_is_added_to_every_round_is_added_to_the_estimate(differences, shift):
    found, moved = Estimate(tuple(differences)), Estimate(tuple(each + shift for each in differences))
    # The grid is rounded, by ten millionths.
    width = found.interval[1] - found.interval[0]
    for probability in (0.025, 0.5, 0.975):
        expected = found.quantile(probability) + shift
        assert moved.quantile(probability) == pytest.approx(expected, abs=1e-3 * width + 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_exchanged_sides_mirror_the_estimate_and_the_order_of_rounds_is_nothing(differences, rng):
    found, turned = Estimate(tuple(differences)), Estimate(tuple(-each for each in differences))
    width = found.interval[1] - found.interval[0]
    assert turned.interval == pytest.approx(tuple(-end for end in found.interval[::-1]), abs=1e-3 * width + 1e-6)
    mixed = list(differences)
    rng.shuffle(mixed)
    assert Estimate(tuple(mixed)).interval == pytest.approx(found.interval, abs=1e-9)
    second = tuple(rng.random() < 0.5 for _ in differences)
    one = Estimate(tuple(differences), second)
    other = Estimate(tuple(-each for each in differences), tuple(not each for each in second))
    width = one.interval[1] - one.interval[0]
    assert other.interval == pytest.approx(tuple(-end for end in one.interval[::-1]), abs=1e-3 * width + 1e-6)


@pytest.mark.parametrize("spread, rounds, least", [
    (0.005, 3, 0.95),
    (0.005, 8, 0.92),
    (0.016, 3, 0.92),
    (0.016, 8, 0.92),
    (0.05, 8, 0.90),
    (0.05, 3, 0.80),  # three rounds do not show that they are noisier than most: the brake is for those
])  # fmt: skip
def test_intervals_hold_the_truth_about_as_often_as_they_say(spread, rounds, least):
    """Of 300, with noise that the model is not made of."""
    rng, held = np.random.default_rng(6), 0
    for _ in range(300):
        low, high = Estimate(tuple(rng.normal(0.02, spread, rounds))).interval
        held += low <= 0.02 <= high
    assert held >= least * 300


def test_more_rounds_narrow_the_interval():
    noise = list(itertools.islice(itertools.cycle([0.02, -0.01, 0.0, 0.01, -0.02]), 40))
    widths = [np.ptp(Estimate(tuple(noise[:count])).interval) for count in (5, 10, 20, 40)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.5 * widths[0]
