"""How a suite's alpha is shared between its tests."""

import itertools

import numpy as np
import pytest

from pytest_perfdl.judge.sequential import Plan
from pytest_perfdl.judge.spending import FAMILY_ALPHA, Spending

SIZES = (1, 2, 5, 20, 300)


@pytest.mark.parametrize("screened", [True, False], ids=["screened", "all"])
@pytest.mark.parametrize("tests", SIZES)
def test_the_weights_sum_to_one_and_never_grow(tests, screened):
    weights = [Spending(tests, screened).weight(number) for number in range(1, tests + 1)]
    assert sum(weights) == pytest.approx(1)
    assert all(one >= other for one, other in itertools.pairwise(weights))
    assert min(weights) >= 1 / (2 * tests)
    assert Spending(tests, screened).weight(tests + 1) == 0


def test_without_a_screen_every_test_has_the_same():
    assert {Spending(20, screened=False).level((False,) * past) for past in range(20)} == {FAMILY_ALPHA / 20}


def test_a_single_test_has_everything():
    assert Spending(1).level(()) == pytest.approx(FAMILY_ALPHA)


def test_by_hand_for_four_tests():
    # 1/8 + 5/4 * 1/(2j(j+1)): .125 + .3125, + .1042, + .0521, + .03125
    spending = Spending(4, alpha=1.0)
    assert [spending.weight(j) for j in (1, 2, 3, 4)] == pytest.approx([0.4375, 0.229167, 0.177083, 0.15625], abs=1e-6)
    assert spending.level((False, True, True)) == pytest.approx(0.15625 + 0.177083 + 0.229167, abs=1e-6)
    assert spending.level((True, True, False)) == pytest.approx(0.15625)
    assert spending.level((True, True, True)) == pytest.approx(1.0)


def test_more_tests_than_announced_are_refused():
    with pytest.raises(ValueError, match="a suite of 2 tests confirms no 3 of them: its alpha is spent"):
        Spending(2).level((False, False))
    with pytest.raises(ValueError, match="no level for a suite of 0 tests"):
        Spending(0)


@pytest.mark.parametrize("tests", [1, 20, 1000])
def test_every_test_can_be_found_slower(tests):
    spending = Spending(tests)
    least = [Plan.of(spending.level((False,) * past), 2).least for past in (0, tests // 2, tests - 1)]
    assert least == sorted(least)
    assert least[-1] <= 24


@pytest.mark.parametrize("screened", [True, False], ids=["screened", "all"])
@pytest.mark.parametrize("unchanged", [1, 3, 8])
def test_levels_of_unchanged_tests_never_exceed_alpha(unchanged, screened):
    """The heart of the proof, by brute force: whatever the slower ones bring, up to the first false alarm."""
    tests, spending = 8, Spending(8, screened, alpha=1.0)
    for truly in itertools.combinations(range(tests), unchanged):
        past, spent = [], 0.0
        for number in range(tests):
            if number in truly:
                spent += spending.level(past)
            past.append(number not in truly)  # everything slower is found, nothing else is: the most that is passed on
        assert spent <= 1 + 1e-12


@pytest.mark.parametrize("slower", [0.0, 0.5], ids=["all unchanged", "half slower"])
def test_false_alarms_of_suites(slower):
    rng, suites, tests, alpha = np.random.default_rng(3), 4000, 12, 0.05
    spending, alarmed = Spending(tests, alpha=alpha), 0
    for _ in range(suites):
        truth = rng.random(tests) < slower
        p = np.where(truth, 1e-9, rng.random(tests))
        past = []
        for value in p:
            past.append(bool(value <= spending.level(past)))
        alarmed += any(found and not true for found, true in zip(past, truth, strict=True))
    assert alarmed <= alpha * suites + 3.1 * (suites * alpha * (1 - alpha)) ** 0.5
