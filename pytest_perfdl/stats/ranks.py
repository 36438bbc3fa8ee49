"""Exact rank statistics of two small independent samples: no assumption about the shape of the noise.

Mann-Whitney's U counts the pairs in which the fresh value is above; its null distribution is that of all
orders being equally likely (Mann and Whitney 1947). The interval of a shift inverts the same test (Hodges
and Lehmann 1963; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section 4.3). A tie counts
for the null, so ties (stored values are rounded) can only make the test more careful. `scipy.stats` floors
such a U instead and takes a second to import.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@lru_cache(maxsize=256)
def orders(fresh: int, base: int) -> tuple[int, ...]:
    """In how many orders of `fresh` + `base` values U is 0, 1, ..., `fresh * base`.

    The coefficients of the Gaussian binomial, product over i of (1 - q^(base+i)) / (1 - q^i).
    """
    size = fresh * base + 1
    counts = [1] + [0] * (size - 1)
    for i in range(1, fresh + 1):
        for u in range(size - 1, base + i - 1, -1):
            counts[u] -= counts[u - base - i]
        for u in range(i, size):
            counts[u] += counts[u - i]
    return tuple(counts)


def p_at_least(u: int, fresh: int, base: int) -> float:
    """Probability, under the null, of a U of `u` or more."""
    return sum(orders(fresh, base)[max(u, 0) :]) / math.comb(fresh + base, base)


def pairs_above(fresh: Sequence[float], base: Sequence[float]) -> int:
    """U: the number of pairs in which the fresh value is strictly above."""
    return sum(value > other for value in fresh for other in base)


def least_p(fresh: int, base: int) -> float:
    """The smallest p-value that so many repeats can give."""
    return 1 / math.comb(fresh + base, base)


def needed(given: int, alpha: float) -> int:
    """The least number of repeats of one side that can give a p-value of `alpha` or less with those of the other."""
    number = 1
    while least_p(number, given) > alpha:
        number += 1
    return number


def shift_interval(differences: Sequence[float], fresh: int, base: int) -> tuple[float, float] | None:
    """Interval of at least 95 % for a shift, from the sorted pairwise differences.

    `None` when there are too few repeats for any.
    """
    total = math.comb(fresh + base, base)
    cut, below = 0, 0
    for count in orders(fresh, base):
        below += count
        if below > 0.025 * total:
            break
        cut += 1
    return (differences[cut - 1], differences[-cut]) if cut else None
