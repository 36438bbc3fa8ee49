"""What rounds say about one time: how much slower the head is, and how surely it is slower at all.

Both follow from the same differences, d = log(head / base) of a round, above zero where the head is worse.

The *estimate* answers "how much": d = delta -+ gamma + s * t, with t Student's with three degrees of freedom, delta
flat, s log-normal around 2 %, and gamma what it costs a process to be the round's second: plus where that is the head,
minus where it is the base. Mostly (seven in ten) it costs nothing, else gamma is normal around 0 with a deviation of
2 %; without it, an effect of the order would be noise of two modes, and the interval of few rounds would miss delta.
Everything that is shown of a time is of the posterior of delta: its median, its 95 % interval, and the probability that
it is over a limit.

The *coin* answers "at all", and is what the false-alarm promise rests on. Both sides of a round are run alike and which
of them goes first is drawn at random, so for unchanged code the sign of d is a fair coin given |d| and everything
measured before: whatever the noise, its tails, its modes or its drift. What could tell the sides apart is where their
code lies. Before every toss a bet is laid on the sign, from the earlier rounds and |d| alone; the wealth E of that bet
then has a mean of at most 1 at all times, and ever exceeds T with a probability of at most 1 / T (Ville's inequality;
Shafer and Vovk 2019, ch. 2; Ramdas et al., Statistical Science 2023, "Game-theoretic statistics and safe anytime-valid
inference"). So it may be looked at after every round, and measuring may stop for any reason.

The bet is that of the model, u = log f(d) - log f(-d), with f the density that it predicts for the next round if the
head is slower by more than the limit. A factor of 2 / (1 + exp(-clip(u, -c, c))) has mean 1 for a fair sign, whatever u
is. A bold bet (c = 3.5) doubles its wealth nearly every round but is ruined by a few wrong signs, a careful one (c =
1.5) is not: E is the mean of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FREEDOM = 3.0
"""Degrees of freedom of the noise: heavy tails, since a round in four hundred sits on two processors."""
SCALE, SCALE_SD = 0.02, 0.7
"""Median of the noise's scale, and the standard deviation of its logarithm."""
_SCALES: Floats = np.exp(np.linspace(math.log(0.002), math.log(0.16), 12))
_SCALE_PRIOR: Floats = -0.5 * ((np.log(_SCALES) - math.log(SCALE)) / SCALE_SD) ** 2
NO_ORDER, ORDER_SD = 0.7, 0.02
"""Probability that it makes no difference to be the second of a round, and the deviation of gamma where it does."""
GAMMAS: Floats = np.array([-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]) / 100
GAMMA_PRIOR: Floats = np.exp(-0.5 * (GAMMAS / ORDER_SD) ** 2) * np.gradient(GAMMAS)
GAMMA_PRIOR *= (1 - NO_ORDER) / GAMMA_PRIOR.sum()
GAMMA_PRIOR[GAMMAS == 0] += NO_ORDER
CAPS = (1.5, 3.5)
"""Largest log odds of the careful and of the bold bet."""
EXCESS = 0.10
"""Mean excess over the limit, on the log scale, of what is bet on."""
INTERVAL = 0.95

_NEAR: Floats = np.array([-16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0]) * 0.0005
_AROUND: Floats = 0.0005 * np.sinh(np.arange(-90, 91) / 10)
"""Offsets of the grid around every difference and around their median, denser towards it: up to a factor of 7."""
_GRAIN = 0.0002
"""Points around differences are rounded to this, a tenth of the smallest scale, so that many differences share them."""
_EXCESSES: Floats = np.concatenate(
    [np.arange(0.0, 0.12, 0.002), np.arange(0.12, 0.3, 0.01), np.arange(0.3, 0.8, 0.04), np.arange(0.8, 3.01, 0.2)]
)


_FACTORS = 16
"""Of a product before its logarithm is taken: far from overflow, and cheaper than as many logarithms."""


def _log_likelihood(residuals: Floats) -> Floats:
    """Log likelihood of residuals (rounds, deltas) at every scale, up to a constant: (deltas, scales)."""
    squares = np.square(residuals)[:, :, None]
    logs = np.zeros((residuals.shape[1], len(_SCALES)))
    for at in range(0, len(squares), _FACTORS):
        logs += np.log((1 + squares[at : at + _FACTORS] / (FREEDOM * _SCALES**2)).prod(axis=0))
    return np.asarray(-(FREEDOM + 1) / 2 * logs - len(squares) * np.log(_SCALES))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The posterior of delta after some rounds, all on the log scale.

    Parameters
    ----------
    differences
        One a round, at least one.
    head_second
        Whether the head was the second process of each round. Without, the order is taken to make no difference.
    """

    differences: tuple[float, ...]
    head_second: tuple[bool, ...] = ()

    @cached_property
    def _cumulative(self) -> tuple[Floats, Floats]:
        """Deltas in order, and the probability of being at or below each."""
        seen, second = np.array(self.differences), np.array(self.head_second, bool)
        # Several modes are narrower than what lies between them: the grid is dense around every difference.
        points = [np.median(seen) + _AROUND, np.round((np.unique(seen)[:, None] + _NEAR).ravel() / _GRAIN) * _GRAIN]
        if 0 < second.sum() < len(second):
            # With an effect of the order, delta lies between what the rounds of either order say.
            points.append((np.median(seen[second]) + np.median(seen[~second])) / 2 + _AROUND)
        deltas = np.unique(np.round(np.concatenate(points), 7))
        signs = np.where(second, 1.0, -1.0) if self.head_second else np.zeros(len(seen))
        gammas, priors = (GAMMAS, GAMMA_PRIOR) if self.head_second else (np.zeros(1), np.ones(1))
        logs = np.stack(
            [_log_likelihood((seen - gamma * signs)[:, None] - deltas) + _SCALE_PRIOR for gamma in gammas.tolist()]
        )
        density = np.tensordot(priors, np.exp(logs - logs.max()), 1).sum(axis=1)
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(deltas))])
        return deltas, mass / mass[-1]

    def over(self, bound: float) -> float:
        """Probability that delta is above a bound."""
        deltas, below = self._cumulative
        return float(1 - np.interp(bound, deltas, below, left=0.0, right=1.0))

    def quantile(self, probability: float) -> float:
        """The delta that is not exceeded with a probability."""
        deltas, below = self._cumulative
        return float(np.interp(probability, below, deltas))

    @cached_property
    def center(self) -> float:
        """The median."""
        return self.quantile(0.5)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 2.5 and 97.5 % points: the second is what is excluded with 97.5 %."""
        return self.quantile((1 - INTERVAL) / 2), self.quantile((1 + INTERVAL) / 2)


class Coin:
    """The wealth of bets on the signs of differences, each laid before the sign is looked at.

    Parameters
    ----------
    limit
        What is bet on: that delta is above this. It sets how fast wealth grows, not whether the promise holds.
    shape
        Of several series that are bet on apart, such as the cases of a table; by default there is one.
    """

    def __init__(self, limit: float, shape: tuple[int, ...] = ()) -> None:
        deltas = max(limit, 0.0) + _EXCESSES
        weights = np.gradient(deltas) * np.exp(-_EXCESSES / EXCESS)
        self._deltas = deltas
        self._log_weights: Floats = np.zeros((*shape, 1, 1)) + np.log(weights)[:, None] + _SCALE_PRIOR
        self._wealth: Floats = np.zeros((len(CAPS), *shape))

    @property
    def evidence(self) -> Floats:
        """E of every series: 1 before the first round."""
        return np.asarray(np.exp(self._wealth).mean(axis=0))

    def toss(self, difference: float | Floats) -> None:
        """Bet on the sign of a round's difference by what the earlier ones showed, and settle the bet.

        Nothing is bet on a series whose difference is NaN: the round did not measure it.
        """
        seen = np.asarray(difference, np.float64)
        which = np.isfinite(seen)
        residuals = seen[which][:, None] - self._deltas, -seen[which][:, None] - self._deltas
        there, mirrored = map(_log_densities, residuals)
        known = self._log_weights[which]
        weights = np.exp(known - known.max(axis=(1, 2), keepdims=True))
        odds = np.log((weights * np.exp(there)).sum(axis=(1, 2))) - np.log(
            (weights * np.exp(mirrored)).sum(axis=(1, 2))
        )
        self._wealth[:, which] += [math.log(2) - np.log1p(np.exp(-np.clip(odds, -cap, cap))) for cap in CAPS]
        self._log_weights[which] = known + there


def _log_densities(residuals: Floats) -> Floats:
    """Log density of residuals (series, deltas) at every scale, up to a constant: (series, deltas, scales)."""
    logs = np.log1p(np.square(residuals)[:, :, None] / (FREEDOM * _SCALES**2))
    return np.asarray(-(FREEDOM + 1) / 2 * logs - np.log(_SCALES))


def evidence(differences: Iterable[float], limit: float) -> float:
    """E after these rounds.

    >>> round(evidence([0.1] * 9, math.log1p(0.03)))
    238
    """
    coin = Coin(limit)
    for each in differences:
        coin.toss(each)
    return float(coin.evidence)


def evidence_of_each(differences: Floats, limit: float) -> Floats:
    """E of every series after rounds (rounds, series), NaN where a round did not measure one: (series,).

    >>> evidence_of_each(np.array([[0.1, np.nan]] * 9), math.log1p(0.03)).round().tolist()
    [238.0, 1.0]
    """
    coin = Coin(limit, differences.shape[1:])
    for each in differences:
        coin.toss(each)
    return coin.evidence


def most_evidence(rounds: int) -> float:
    """The E that no series of so many rounds exceeds."""
    return float(np.mean([(2 / (1 + math.exp(-cap))) ** rounds for cap in CAPS]))


def least_rounds(needed: float) -> int:
    """The least number of rounds that can reach an E.

    >>> least_rounds(200), least_rounds(8000)
    (9, 15)
    """
    rounds = 0
    while most_evidence(rounds) < needed:
        rounds += 1
    return rounds


def rarely_so_few(differences: Sequence[float], bound: float) -> bool:
    """Whether so few rounds are past a bound that a fair coin gives as few in one of eight cases at most.

    The brake on what the estimate would clear: were delta at the bound, a round would be past it as often as not,
    whatever the noise, so that clearing it has a chance of 1/8 at a look even where the model is wrong.

    >>> [rarely_so_few([0.0] * n, 0.03) for n in (2, 3)], rarely_so_few([0.0] * 5 + [0.05], 0.03)
    ([False, True], True)
    """
    past = sum(each > bound for each in differences)
    rounds = len(differences)
    return 8 * sum(math.comb(rounds, k) for k in range(past + 1)) <= int(2**rounds)
