"""The exact signed-rank test against enumeration of all signs, against scipy.stats, and its properties."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from pytest_perfdl.judge import signedrank

Series = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=12)
Coarse = st.lists(st.integers(-4, 4), min_size=1, max_size=12)


def p(values):
    return float(signedrank.p_above(np.array(values, float)))


def test_t_counts_the_averages_above_zero():
    # By hand: 3, 1, -2 have the averages 3, 1, -2, 2, 0.5, -0.5; ranks 3, 1, 2, of which 3 + 1 are positive.
    assert signedrank.positive_averages(np.array([3.0, 1.0, -2.0])) == 4
    assert signedrank.averages(np.array([3.0, 1.0, -2.0])).tolist() == [-2, -0.5, 0.5, 1, 2, 3]


def test_the_tail_of_three_rounds():
    # By hand: subsets of {1, 2, 3} sum to 0, 1, 2, 3, 3, 4, 5, 6.
    assert signedrank.tail(3).tolist() == [1, 7 / 8, 6 / 8, 5 / 8, 3 / 8, 2 / 8, 1 / 8]


@pytest.mark.parametrize("rounds", range(1, 9))
def test_the_tail_is_that_of_all_signs(rounds):
    sums = [sum(itertools.compress(range(1, rounds + 1), signs)) for signs in itertools.product((0, 1), repeat=rounds)]
    expected = [sum(each >= t for each in sums) / 2**rounds for t in range(rounds * (rounds + 1) // 2 + 1)]
    assert signedrank.tail(rounds).tolist() == expected


@pytest.mark.parametrize("rounds", [1, 2, 5, 10, 15, 20, 30])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.5, 2.0])
def test_p_values_are_scipys(rounds, shift):
    series = np.random.default_rng(rounds).normal(shift, 1, (5, rounds))
    expected = [wilcoxon(each, alternative="greater", method="exact").pvalue for each in series]
    assert signedrank.p_above(series) == pytest.approx(expected, rel=1e-12)


def test_thirty_equal_signs_are_exact():
    assert p(range(1, 31)) == 2.0**-30
    assert p(range(-30, 0)) == 1


@given(Coarse)
def test_ties_and_zeros_count_for_the_null(values):
    """Never below the exact p-value under any way of breaking them, here both extreme ones."""
    jitter = np.linspace(0.01, 0.02, len(values))
    best = p(np.array(values) + jitter)
    assert p(values) >= best
    # A zero is worth as much as a loss too small to matter.
    assert p(values) == p([value or -1e-9 for value in values])


@given(Coarse, st.floats(0.01, 1))
def test_with_ties_the_level_is_kept_over_all_signs(values, level):
    size = np.abs(np.array(values, float))
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=min(len(values), 8))))
    flipped = signs * size[: signs.shape[1]]
    assert np.mean(signedrank.p_above(flipped) <= level) <= level


@given(Coarse, st.integers(0, 11), st.integers(1, 5))
def test_a_larger_difference_never_raises_the_p_value(values, place, more):
    raised = list(values)
    raised[place % len(values)] += more
    assert p(raised) <= p(values)


@given(Series, st.randoms(use_true_random=False))
def test_the_order_of_rounds_is_nothing(values, rng):
    mixed = list(values)
    rng.shuffle(mixed)
    assert p(mixed) == p(values)
    assert np.allclose(signedrank.averages(np.array(mixed)), signedrank.averages(np.array(values)))


@given(Series, st.floats(0.125, 8))
def test_the_scale_is_nothing(values, factor):
    whole = [round(value * 1024) for value in values]
    assert p([value * 2.0 ** round(math.log2(factor)) for value in whole]) == p(whole)


@given(st.lists(st.integers(-4000, 4000), min_size=1, max_size=12, unique_by=abs).filter(lambda found: 0 not in found))
def test_both_sides_mirror_each_other(values):
    series, size = np.array(values, float), len(values) * (len(values) + 1) // 2
    assert signedrank.positive_averages(series) + signedrank.positive_averages(-series) == size
    low, high = (signedrank.center(signedrank.averages(side)) for side in (series, -series))
    assert low == -high


def test_many_series_at_once_are_each_on_its_own():
    series = np.random.default_rng(2).normal(0.3, 1, (3, 4, 11))
    together = signedrank.p_above(series)
    assert together.shape == (3, 4)
    assert together.ravel().tolist() == [p(each) for each in series.reshape(-1, 11)]


@pytest.mark.parametrize("level, rounds", [(0.5, 1), (0.00125, 10), (2.0**-10, 10), (0.0009765, 11), (3e-5, 16)])
def test_how_many_rounds_a_level_takes(level, rounds):
    assert signedrank.least_rounds(level) == rounds
    assert 2.0**-rounds <= level < 2.0 ** (1 - rounds)


@pytest.mark.parametrize("rounds, level, t", [
    # Hollander, Wolfe and Chicken, table of T+: P(T+ >= 44) = .0527 and P(T+ >= 47) = .0244 for n = 10.
    (10, 0.0528, 44),
    (10, 0.0245, 47),
    (10, 2.0**-10, 55),
    (10, 0.0009, None),
    (3, 0.125, 6),
])  # fmt: skip
def test_critical_values(rounds, level, t):
    assert signedrank.critical(rounds, level) == t


def test_the_interval_takes_the_tabulated_averages():
    # n = 10, 95 %: P(T+ >= 47) = .0244, so the 9th smallest and the 9th largest of 55 averages.
    ends = signedrank.interval(np.arange(55.0), 0.95)
    assert ends is not None
    assert [float(end) for end in ends] == [8, 46]
    assert signedrank.interval(np.arange(15.0), 0.95) is None  # 2 / 2**5 > .05


def test_the_interval_is_what_the_test_does_not_reject():
    series = np.random.default_rng(4).normal(0.4, 1, 14)
    low, high = signedrank.interval(signedrank.averages(series), 0.95)
    for shift in (low - 1e-9, low + 1e-9, (low + high) / 2, high - 1e-9, high + 1e-9):
        inside = min(p(series - shift), p(shift - series)) > 0.025
        assert inside == (low < shift < high)


@pytest.mark.parametrize("confidence", [0.95, 0.9875])
def test_the_interval_covers_as_often_as_it_says(confidence):
    series = np.random.default_rng(6).standard_t(1.5, (4000, 12)) + 0.7
    low, high = signedrank.interval(signedrank.averages(series), confidence)
    covered = np.mean((low <= 0.7) & (high >= 0.7))
    assert covered >= confidence - 2 * math.sqrt(confidence * (1 - confidence) / 4000)


def test_the_estimate_is_the_median_average():
    values = [0.3, -0.1, 0.25, 0.9, 0.02]
    pairs = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    assert signedrank.center(signedrank.averages(np.array(values))) == pytest.approx(statistics.median(pairs))


@pytest.mark.parametrize("rounds, measured", [(12, 12), (30, 10), (30, 30)])
def test_what_is_said_to_be_within_reach_is_found_in_four_of_five(rounds, measured):
    rng, level = np.random.default_rng(8), 0.0005
    factor = signedrank.reach(rounds, level, measured)
    spread = rng.standard_normal((4000, measured)).std(axis=1, ddof=1)
    found = signedrank.p_above(rng.standard_normal((4000, rounds)) + (factor * spread)[:, None]) <= level
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_reach_tends_to_the_formula_and_has_an_end():
    formula = (3.290527 + 0.841621) * math.sqrt(math.pi / 3) / math.sqrt(60)
    assert signedrank.reach(60, 0.0005, 60) == pytest.approx(formula, rel=0.08)
    assert signedrank.reach(10, 0.0005, 10) is None
    assert signedrank.reach(30, 0.0005, 1) is None
