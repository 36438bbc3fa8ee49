"""Shapley shares against their definition: what each player adds, over all orders."""

import itertools
import random

import pytest

from pytest_perfdl.diff.shapley import shapley


def game(players, seed):
    """Worths at random for all coalitions."""
    chance = random.Random(seed)
    return [chance.uniform(-10, 10) for _ in range(2**players)]


def by_definition(players, worth):
    shares = [0.0] * players
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            shares[player] += worth[coalition | 1 << player] - worth[coalition]
            coalition |= 1 << player
    return [share / len(orders) for share in shares]


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_exact_shares_are_the_mean_over_all_orders(players):
    worth = game(players, players)
    found, exact = shapley(players, worth.__getitem__, 2**players)
    assert exact
    assert found == pytest.approx(by_definition(players, worth))


@pytest.mark.parametrize("most", [1, 60, 200])
def test_sampled_shares_add_up_and_are_the_same_again(most):
    worth = game(8, 1)
    asked = []

    def value(coalition):
        asked.append(coalition)
        return worth[coalition]

    found, exact = shapley(8, value, most)
    assert not exact
    assert sum(found) == pytest.approx(worth[-1] - worth[0])
    assert len(asked) == len(set(asked)) <= max(most, 16)
    assert shapley(8, worth.__getitem__, most)[0] == found


def test_sampled_shares_come_near_the_exact_ones():
    """Three of ten hide behind the longest of them; the others add up."""
    lengths = [3, 5, 8, 1, 1, 1, 2, 2, 4, 4]

    def value(coalition):
        active = [length if coalition >> player & 1 else 0 for player, length in enumerate(lengths)]
        return max(active[:3]) + sum(active[3:])

    exact, _ = shapley(10, value, 2**10)
    assert exact[:3] == pytest.approx([1, 2, 5])
    sampled, _ = shapley(10, value, 300)
    assert sampled[3:] == pytest.approx(lengths[3:])
    assert sampled[:3] == pytest.approx([1, 2, 5], abs=0.8)
