"""Shares of a total among what brought it about together: what each adds, over the orders in which they could come.

    phi_i = mean over all orders of v(those before i, and i) - v(those before i)

Shares add up to v(all) - v(none), and what adds nothing in any order has none. Source: Shapley, "A Value for n-Person
Games", 1953; sampled as by Castro, Gomez and Tejada, "Polynomial calculation of the Shapley value based on sampling",
2009, each order with its reverse, which adds up as well.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Coalition = int
"""Bit i is set if player i is in it."""


def shapley(players: int, value: Callable[[Coalition], float], most: int) -> tuple[list[float], bool]:
    """The share of each player, and whether it is exact: of all coalitions, else of as many orders as can be had.

    The value of a coalition is asked for once, and of at most `most` coalitions. One order and its reverse are followed
    at least.
    """
    known: dict[Coalition, float] = {}

    def worth(coalition: Coalition) -> float:
        if coalition not in known:
            known[coalition] = value(coalition)
        return known[coalition]

    if 2**players <= most:
        return _find_exact(players, worth), True
    chance = random.Random(0)
    found = [0.0] * players
    followed = 0
    while not followed or len(known) + 2 * players <= most:
        order = chance.sample(range(players), players)
        for each in (order, order[::-1]):
            for player, added in zip(each, _find_added(each, worth), strict=True):
                found[player] += added
        followed += 2
    return [share / followed for share in found], False


def _find_added(order: Sequence[int], worth: Callable[[Coalition], float]) -> list[float]:
    """What each player adds to those before it."""
    coalition, before, found = 0, worth(0), []
    for player in order:
        coalition |= 1 << player
        after = worth(coalition)
        found.append(after - before)
        before = after
    return found


def _find_exact(players: int, worth: Callable[[Coalition], float]) -> list[float]:
    # A share of the orders has exactly these before a player: |S|! (n - |S| - 1)! / n!.
    weight = [1.0 / players] * players
    for size in range(1, players):
        weight[size] = weight[size - 1] * size / (players - size)
    found = []
    for player in range(players):
        own = 1 << player
        found.append(
            sum(
                weight[coalition.bit_count()] * (worth(coalition | own) - worth(coalition))
                for coalition in range(2**players)
                if not coalition & own
            )
        )
    return found
