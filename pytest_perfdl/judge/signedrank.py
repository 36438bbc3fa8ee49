"""The exact signed-rank test, its estimate and its interval, for one series or for many at once.

T is the number of Walsh averages (z_i + z_j) / 2, i <= j, that are above zero; without ties that is Wilcoxon's
sum of the ranks of the positive values (Tukey 1949; Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, sections 3.1 to 3.3). Under the null every z is as likely to have the other sign, and T is distributed
as the sum of a random subset of 1, ..., n.

Zeros and ties: an average of exactly zero counts for the null, and the distribution stays that of untied
values. This is exact in the careful direction: break the ties by symmetric jitter too small to turn any other
average, and T can only grow, while the jittered values have that distribution. Dropping zeros (Wilcoxon) or
dropping them after ranking (Pratt 1959) is not monotone: a larger difference could raise the p-value. Here it
cannot. Tests compare with `scipy.stats.wilcoxon`, which takes half a second to import.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

POWER = 0.80
_DRAWS = 4000
_SEED = 1945


def positive_averages(z: Floats) -> NDArray[np.intp]:
    """T of every series; rounds run along the last axis, which the result lacks."""
    rounds_first = np.ascontiguousarray(np.moveaxis(z, -1, 0))
    size = len(rounds_first)
    count = np.zeros(rounds_first.shape[1:], np.intp)
    for lag in range(size):
        count += np.count_nonzero(rounds_first[lag:] + rounds_first[: size - lag] > 0, axis=0)
    return count


@lru_cache(maxsize=64)
def tail(rounds: int) -> NDArray[np.float64]:
    """`tail(n)[t]` is the probability, under the null, of a T of `t` or more; the last entry is 2**-n."""
    subsets = [1]
    for rank in range(1, rounds + 1):
        subsets = [
            (subsets[t] if t < len(subsets) else 0) + (subsets[t - rank] if t >= rank else 0)
            for t in range(len(subsets) + rank)
        ]
    above, found = 0, []
    for count in reversed(subsets):
        above += count
        found.append(above / 2**rounds)
    table = np.array(found[::-1])
    table.flags.writeable = False
    return table


def p_above(z: Floats) -> NDArray[np.float64]:
    """One-sided p-value of every series for its centre being above zero; rounds run along the last axis."""
    return tail(z.shape[-1])[positive_averages(z)]


def critical(rounds: int, level: float) -> int | None:
    """The least T whose p-value is at most `level`; `None` when so few rounds cannot give one."""
    within = np.flatnonzero(tail(rounds) <= level)
    return int(within[0]) if within.size else None


def least_rounds(level: float) -> int:
    """The least number of rounds that can give a p-value of `level`: 2**-n is what all signs alike give."""
    rounds = max(0, math.ceil(-math.log2(level)))
    return rounds if 2.0**-rounds <= level else rounds + 1


def averages(z: Floats) -> Floats:
    """The Walsh averages of every series, sorted along the last axis: n (n + 1) / 2 of them."""
    first, second = np.triu_indices(z.shape[-1])
    return np.sort((z[..., first] + z[..., second]) / 2, axis=-1)


def center(sorted_averages: Floats) -> Floats:
    """The Hodges-Lehmann estimate: the median Walsh average."""
    return np.asarray(np.median(sorted_averages, axis=-1))


def interval(sorted_averages: Floats, confidence: float) -> tuple[Floats, Floats] | None:
    """The interval of a shift that inverts the test, of at least this confidence; `None` with too few rounds."""
    size = sorted_averages.shape[-1]
    rounds = (math.isqrt(8 * size + 1) - 1) // 2
    least = critical(rounds, (1 - confidence) / 2)
    if least is None:
        return None
    return sorted_averages[..., size - least], sorted_averages[..., least - 1]


@lru_cache(maxsize=64)
def reach(rounds: int, level: float, measured: int) -> float | None:
    """How many standard deviations above zero normal noise must lie to be found with probability `POWER`.

    The deviation is the one seen in `measured` rounds (at least 2), the series to be found one of `rounds` new
    ones. Shifted by s, a series is found when its c-th largest Walsh average is above -s, c being the critical T.
    So the answer is a quantile of that average over an independent estimate of the deviation, taken here over
    `_DRAWS` pairs of a fixed seed; what few rounds do not know about their spread is thereby in it. With many
    rounds it tends to `(z_(1-level) + z_.80) * sqrt(pi / 3) / sqrt(rounds)`, which for a level of 0.00016 is too
    hopeful by a third with 15 rounds and by a tenth with 30. `None` when so few rounds cannot reject.
    """
    least = critical(rounds, level)
    if least is None or measured < 2:
        return None
    noise = np.random.default_rng(_SEED)
    needed = -averages(noise.standard_normal((_DRAWS, rounds)))[:, -least]
    seen = noise.standard_normal((_DRAWS, measured)).std(axis=1, ddof=1)
    return float(np.quantile(needed / seen, POWER))
