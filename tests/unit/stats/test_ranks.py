"""Exact rank statistics against enumeration of every order and against scipy.stats."""

import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from scipy.stats import mannwhitneyu

from pytest_perfdl.stats import quantiles

SIZES = [(1, 1), (1, 5), (5, 1), (2, 3), (3, 3), (4, 5), (5, 5)]


@pytest.mark.parametrize("fresh, base", SIZES)
def test_the_null_distribution_is_that_of_all_orders(fresh, base):
    counted = Counter()
    for places in itertools.combinations(range(fresh + base), fresh):
        others = [place for place in range(fresh + base) if place not in places]
        counted[quantiles.pairs_above(places, others)] += 1
    assert quantiles.orders(fresh, base) == tuple(counted[u] for u in range(fresh * base + 1))


@pytest.mark.parametrize("fresh, base", [*SIZES, (5, 10), (7, 3), (12, 20)])
def test_p_values_are_scipys(fresh, base):
    rng = random.Random(fresh * 100 + base)
    for shift in (-1, 0, 1, 3):
        new, old = [rng.gauss(shift, 1) for _ in range(fresh)], [rng.gauss(0, 1) for _ in range(base)]
        expected = mannwhitneyu(new, old, alternative="greater", method="exact").pvalue
        assert quantiles.p_at_least(quantiles.pairs_above(new, old), fresh, base) == pytest.approx(expected, rel=1e-12)


def test_the_ends_of_the_p_value():
    assert quantiles.p_at_least(0, 5, 10) == 1
    assert quantiles.p_at_least(-3, 5, 10) == 1
    assert quantiles.p_at_least(50, 5, 10) == 1 / math.comb(15, 5) == quantiles.least_p(5, 10)
    assert quantiles.p_at_least(51, 5, 10) == 0


def test_a_tie_counts_for_the_null():
    assert quantiles.pairs_above([3, 3], [3, 2]) == 2
    assert quantiles.pairs_above([1, 1], [1, 1]) == 0


@pytest.mark.parametrize("base, needed", [(1, 99), (2, 13), (3, 7), (4, 5), (5, 4), (10, 3), (14, 2), (99, 1)])
def test_how_many_fresh_repeats_a_level_of_one_percent_takes(base, needed):
    # By hand: the least m with binomial(base + m, m) >= 100, such as binomial(10, 3) = 120 for 3 and 7.
    assert quantiles.needed(base, 0.01) == needed
    assert math.comb(base + needed, needed) >= 100 > math.comb(base + needed - 1, needed - 1)


@pytest.mark.parametrize("fresh, base, place", [(5, 5, 3), (4, 4, 1), (10, 10, 24), (5, 10, 9)])
def test_the_interval_takes_the_tabulated_order_statistics(fresh, base, place):
    # Hollander, Wolfe and Chicken, table of U: the largest c with P(U <= c) <= .025 is place - 1.
    differences = list(range(fresh * base))
    assert quantiles.shift_interval(differences, fresh, base) == (place - 1, fresh * base - place)
    assert 1 - quantiles.p_at_least(place, fresh, base) <= 0.025 < 1 - quantiles.p_at_least(place + 1, fresh, base)


@pytest.mark.parametrize("fresh, base", [(1, 10), (2, 5), (3, 3)])
def test_too_few_repeats_have_no_interval(fresh, base):
    assert quantiles.shift_interval([0.0] * (fresh * base), fresh, base) is None


def test_the_interval_covers_the_true_shift_at_least_as_often_as_it_says():
    rng, covered, rounds = random.Random(3), 0, 2000
    for _ in range(rounds):
        old, new = [rng.gauss(0, 1) for _ in range(8)], [rng.gauss(0.7, 1) for _ in range(5)]
        low, high = quantiles.shift_interval(sorted(x - y for x in new for y in old), 5, 8)
        covered += low <= 0.7 <= high
    assert covered / rounds >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / rounds)


def test_the_interval_is_what_the_test_does_not_reject():
    rng = random.Random(5)
    old, new = [rng.gauss(0, 1) for _ in range(7)], [rng.gauss(1, 1) for _ in range(5)]
    low, high = quantiles.shift_interval(sorted(x - y for x in new for y in old), 5, 7)
    for shift in (low - 1e-9, low + 1e-9, statistics.fmean((low, high)), high - 1e-9, high + 1e-9):
        p = mannwhitneyu([x - shift for x in new], old, alternative="two-sided", method="exact").pvalue
        assert (p > 0.05) == (low < shift < high)
