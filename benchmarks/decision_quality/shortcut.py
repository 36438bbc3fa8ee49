"""Which looks of a gate are worth asking for: most leave a test open, and most of the time of a replay is theirs.

`Gate.look` judges all rounds anew, so that asking it after each of n rounds takes time with the cube of n. Here every
round adds to tables that stay: the gate's own evidence, exactly, and a coarse posterior of each metric and of what the
order of the processes does. Only where the gate could end a test by these, with room for the coarse one's error, is the
gate itself asked; what ends a test, and what is said of it, is the gate's alone. Tests hold the two against each other
round by round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import EXCLUDED, LEAST_ROUNDS, OVER, Gate, Held, Spent
from pytest_perfdl.stats.evidence import FREEDOM, GAMMA_PRIOR, GAMMAS, SCALE, SCALE_SD, Coin, rarely_so_few

FAR = 0.8
"""A difference beyond this, on the log scale, may be off the coarse grid: the gate is asked about every look then."""
ROOM = 0.006
"""For the coarse posterior's error, as a probability."""
_DELTAS = np.concatenate([np.arange(-1.0, -0.15, 0.01), np.arange(-0.15, 0.15, 0.001), np.arange(0.15, 1.01, 0.01)])
_NEAR = np.arange(-0.015, 0.015, 0.0002)
"""Around the limit: after a hundred rounds the posterior is narrower than a thousandth."""
_SCALES = np.exp(np.linspace(math.log(0.002), math.log(0.16), 12))
_SCALE_PRIOR = -0.5 * ((np.log(_SCALES) - math.log(SCALE)) / SCALE_SD) ** 2
_PRIOR = np.log(GAMMA_PRIOR)[:, None, None] + _SCALE_PRIOR
"""Its logarithm, flat in delta: (gammas, 1, scales)."""
_WEIGHTS = (1 / (FREEDOM * _SCALES**2)).astype(np.float32)


class _Metric:
    """What is known of one metric; its limit is relative."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.differences: list[float] = []
        self._coin = Coin(held.bet)
        self._deltas = np.union1d(_DELTAS, held.bet + _NEAR)
        self._log: NDArray[np.float32] = np.tile(_PRIOR, (1, len(self._deltas), 1)).astype(np.float32)

    def add(self, difference: float, *, head_second: bool) -> None:
        self.differences.append(difference)
        self._coin.toss(difference)
        residuals = difference - (GAMMAS if head_second else -GAMMAS)[:, None] - self._deltas
        squares = np.square(residuals).astype(np.float32)[:, :, None]
        self._log -= np.float32((FREEDOM + 1) / 2) * np.log1p(squares * _WEIGHTS) + np.log(_SCALES).astype(np.float32)
        self._log -= self._log.max()

    @property
    def evidence(self) -> float:
        return self._coin.evidence

    def over(self) -> float:
        """About the probability that the metric is over its limit."""
        density = np.exp(self._log).sum(axis=(0, 2))
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(self._deltas))])
        return float(1 - np.interp(self.held.bet, self._deltas, mass / mass[-1]))


class Shortcut:
    """Follows the rounds of one test beside its gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._metrics = [_Metric(each) for each in gate.held]
        self._orders: set[str] = set()
        self._odd = any(each.limit.absolute is not None for each in gate.held)
        """Whether this knows nothing that it could be sure of."""

    def add(self, measured: Round) -> None:
        """One more round."""
        self._orders.add(measured.order)
        for metric in self._metrics:
            name = metric.held.name
            difference = metric.held.sign * math.log(measured.head[name] / measured.base[name])
            self._odd |= abs(difference) > FAR or difference == 0
            metric.add(difference, head_second=measured.order == "base first")

    def surely_open(self, spent: Spent) -> bool:
        """Whether the gate leaves the test open after these rounds; where that is not sure, it must be asked."""
        gate, metrics = self._gate, self._metrics
        rounds = len(metrics[0].differences)
        if self._odd or spent.extension_ended or (len(self._orders) < 2 and rounds > LEAST_ROUNDS):
            return False
        over = [each.over() for each in metrics]
        enough = sum(each.evidence for each in metrics) / len(metrics) >= gate.needed * 0.999
        if enough and max(over) >= OVER - ROOM:
            return False
        if spent.ended and max(over) < OVER + ROOM:
            return False
        return rounds < gate.least or not self._may_clear(over)

    def _may_clear(self, over: Sequence[float]) -> bool:
        if max(over) >= 0.5 + ROOM:
            return False
        return all(
            share <= 1 - EXCLUDED + ROOM
            and (self._gate.least < LEAST_ROUNDS or rarely_so_few(metric.differences, metric.held.bet))
            for metric, share in zip(self._metrics, over, strict=True)
            if self._gate.decides(metric.held)
        )
