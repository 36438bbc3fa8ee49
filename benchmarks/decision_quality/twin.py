"""The gate's twin without a model, to compare with: exact signed-rank tests in the place of evidence and estimate.

Every metric's differences are tested for symmetry around 0, and for lying below the limit, by Wilcoxon's signed ranks.
A test is

- `regressed` at one of five looks when a metric's exact p is at most its part of the run's level (a tenth, by five
  looks and two metrics), and that of being within its limit at most .05;
- `unchanged` from five rounds on when the p of the step being past its limit is at most .05, and no metric's center is
  past its limit.

The budget ends it as it ends the gate, with the same p in the place of probabilities. Exact for symmetric noise
alone, where the gate's evidence needs the lots only: unchanged code's differences are symmetric by these.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from ours import Draw, Outcome

from pytest_perfdl.config.options import BUDGET_SECONDS
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import ALPHA, EVERY_ROUND
from pytest_perfdl.results.verdict import Verdict

LOOKS = (11, 14, 18, 23, 30)
"""Rounds after which a test may fail."""
LEAST_ROUNDS = 5
"""Rounds before anything is excluded."""
LEVEL = 0.05
"""Of what is said about the limit."""

Floats = NDArray[np.float64]


class Twin:
    """The rule for one of so many tests; `limit` is a share, of both metrics."""

    def __init__(self, *, tests: int = 1, limit: float = 0.03, budget: float = BUDGET_SECONDS) -> None:
        self._level = ALPHA / tests / len(LOOKS)
        self._every_round = math.ceil(EVERY_ROUND + math.log2(tests))
        self._limit, self._resolution = math.log1p(limit), math.log1p(2 * limit)
        self._budget = budget

    def decide(self, draw: Draw) -> Outcome:
        """Draw rounds until there is a verdict."""
        seen: list[tuple[float, ...]] = []
        seconds = 0.0
        while True:
            drawn, took = draw()
            seen.append(_differences(drawn))
            seconds += took
            found = self._look(np.array(seen).T, seconds)
            if found is not None:
                verdict, fails = found
                excluded = math.expm1(_upper(np.array(seen)[:, 0]))
                return Outcome(verdict, fails, seconds, len(seen), excluded)

    def _look(self, metrics: Floats, seconds: float) -> tuple[Verdict, bool] | None:
        """The verdict and whether it fails a test; `None` to go on."""
        step, rounds, limit = metrics[0], metrics.shape[1], self._limit
        level = self._level / len(metrics)
        if rounds in LOOKS and any(p_above(each) <= level and p_above(each - limit) <= LEVEL for each in metrics):
            return "regressed", True
        quiet = rounds >= LEAST_ROUNDS and all(center(each) < limit for each in metrics)
        if quiet and p_above(limit - step) <= LEVEL:
            return "unchanged", False
        if seconds < self._budget:
            return None
        if any(p_above(each - limit) <= LEVEL for each in metrics):
            if seconds < 2 * self._budget:
                return None
            return "suspect", rounds >= self._every_round and bool(step.min() > limit)
        if quiet and p_above(self._resolution - step) <= LEVEL:
            return "unchanged", False
        return "inconclusive", False


def p_above(differences: Floats) -> float:
    """Exact one-sided p of Wilcoxon's signed-rank test: small where differences are above zero.

    >>> p_above(np.array([0.1, 0.2, 0.3])), p_above(np.array([-0.1, 0.2, 0.3]))
    (0.125, 0.25)
    """
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1
    return float(_tail(len(differences))[int(ranks[differences > 0].sum())])


def center(differences: Floats) -> float:
    """The Hodges-Lehmann estimate: the median of all means of two.

    >>> center(np.array([0.0, 0.1, 0.5]))
    0.175
    """
    return float(np.median(_averages(differences)))


def _upper(differences: Floats, level: float = LEVEL) -> float:
    """Upper end of the interval that inverts the test; infinite where so few rounds give none."""
    beyond = int(np.searchsorted(-_tail(len(differences)), -level))
    averages = np.sort(_averages(differences))
    return float(averages[beyond - 1]) if beyond <= len(averages) else math.inf


def _averages(differences: Floats) -> Floats:
    first, second = np.triu_indices(len(differences))
    return np.asarray((differences[first] + differences[second]) / 2)


@lru_cache(maxsize=1024)
def _tail(rounds: int) -> Floats:
    """P(W >= w) for every w from 0 to n (n + 1) / 2, the last one 0 for none."""
    chances = np.ones(1)
    for rank in range(1, rounds + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return np.asarray(np.append(np.cumsum(chances[::-1])[::-1], 0.0))


def _differences(drawn: Round) -> tuple[float, ...]:
    return tuple(math.log(drawn.head[name] / drawn.base[name]) for name in drawn.base)
