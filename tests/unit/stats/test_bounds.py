"""Clopper and Pearson's bounds against the binomial distribution that they invert."""

from math import comb

import pytest

from pytest_perfdl.stats.quantiles import Rate


def at_most(count, of, share):
    return sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count + 1))


@pytest.mark.parametrize(
    "count, of", [(0, 1), (0, 20), (1, 20), (7, 20), (19, 20)], ids=["0-1", "0-20", "1-20", "7-20", "19-20"]
)
def test_the_bounds_invert_the_binomial_distribution(count, of):
    rate = Rate(count, of)
    low, high = rate.interval

    assert at_most(count, of, rate.upper) == pytest.approx(0.05)
    assert at_most(count, of, high) == pytest.approx(0.025)
    if count:
        assert 1 - at_most(count - 1, of, low) == pytest.approx(0.025)
    else:
        assert low == 0
    assert low <= rate.share <= high
    assert rate.upper < high


def test_none_and_all_of_them():
    assert Rate(0, 20).upper == pytest.approx(1 - 0.05 ** (1 / 20))
    assert Rate(10, 10).interval == (pytest.approx(0.025 ** (1 / 10)), 1.0)
    assert Rate(10, 10).upper == 1.0


def test_without_a_trial_everything_is_possible():
    assert (Rate(0, 0).share, Rate(0, 0).upper, Rate(0, 0).interval) == (None, 1.0, (0.0, 1.0))
