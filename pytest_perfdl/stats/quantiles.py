"""Quantiles, exact intervals of a proportion, and exact rank statistics of small samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

# Quantiles of samples, and of the distributions that intervals use.


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile of a non-empty sample, with linear interpolation (Hyndman and Fan's type 7, as numpy's).

    >>> quantile([0.01, 0.03, 0.02], 0.99), quantile([40, 10, 30, 20, 50], 0.25)
    (0.0298, 20.0)
    """
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's distribution; of the normal one for infinite degrees of freedom.

    >>> round(student(0.975, 10), 3), round(student(0.975, math.inf), 3)
    (2.228, 1.96)
    """
    # Imported here: whoever only measures has no need of it.
    from scipy.special import ndtri, stdtrit

    return float(ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability))


# Exact intervals of a proportion (Clopper and Pearson).
#
# C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
# Biometrika 26 (1934): the ends are quantiles of beta distributions. They hold for independent trials; runs on one
# machine are correlated, so many runs in a short time are less certain than the interval.


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `of` trials."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        """The share itself; `None` without a trial."""
        return self.count / self.of if self.of else None

    @property
    def upper(self) -> float:
        """One-sided bound: the true share is above it with at most 5 %.

        >>> f"{Rate(0, 300).upper:.4f}"
        '0.0099'
        """
        return _upper(self.count, self.of, 1 - CONFIDENCE)

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided 95 % interval.

        >>> "{:.3f} {:.3f}".format(*Rate(8, 10).interval)
        '0.444 0.975'
        """
        return clopper_pearson(self.count, self.of)


def clopper_pearson(count: int, of: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact two-sided interval of a share; its upper end at 90 % is the one-sided bound at 95 %."""
    tail = (1 - confidence) / 2
    return 1 - _upper(of - count, of, tail), _upper(count, of, tail)


def _upper(count: int, of: int, tail: float) -> float:
    """The share under which `count` or fewer of `of` have probability `tail`."""
    if count == of:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(1 - tail, count + 1, of - count))


# Exact rank statistics of two small independent samples: no assumption about the shape of the noise.
#
# Mann-Whitney's U counts the pairs in which the fresh value is above; its null distribution is that of all
# orders being equally likely (Mann and Whitney 1947). The interval of a shift inverts the same test (Hodges
# and Lehmann 1963; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section 4.3). A tie counts
# for the null, so ties (stored values are rounded) can only make the test more careful. `scipy.stats` floors
# such a U instead and takes a second to import.


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
