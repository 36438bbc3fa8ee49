"""Noises of a round of two processes, from well-behaved to hostile, where the truth is known: seeded and vectorized.

A noise draws, for many tests at once, the log effects of the first and of the second process of each round. `rounds`
makes of it what a gate sees: differences log(head / base), whose signs a lot decides as it does in a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Floats]
"""From a generator, tests and rounds to log effects of the processes: (tests, rounds, 2), the first one's first."""

OWN_SD = 0.005
"""Of each metric: what it does not share with the others of its process, in the difference of a round."""


def normal(spread: float) -> Noise:
    """Independent processes; `spread` is the standard deviation of a round's difference."""
    return lambda rng, tests, count: spread / math.sqrt(2) * rng.standard_normal((tests, count, 2))


def heavy(scale: float, freedom: float) -> Noise:
    """Student's t of few degrees of freedom: no variance below 2, no mean at 1."""
    return lambda rng, tests, count: scale / math.sqrt(2) * rng.standard_t(freedom, (tests, count, 2))


def doubled(chance: float, spread: float = 0.02) -> Noise:
    """In some rounds one of the two takes twice as long."""

    def draw(rng: np.random.Generator, tests: int, count: int) -> Floats:
        struck = rng.random((tests, count, 1)) < chance
        which = rng.integers(2, size=(tests, count, 1)) == np.arange(2)
        return np.asarray(normal(spread)(rng, tests, count) + math.log(2) * (struck & which))

    return draw


def modes(chance: float, slowdown: float, spread: float = 0.02) -> Noise:
    """Every process is in a slow mode with some chance, and stays in it."""

    def draw(rng: np.random.Generator, tests: int, count: int) -> Floats:
        slow = rng.random((tests, count, 2)) < chance
        return np.asarray(normal(spread)(rng, tests, count) + math.log1p(slowdown) * slow)

    return draw


def second_slower(slowdown: float, spread: float = 0.02) -> Noise:
    """The process that is begun second is slower, in every round."""
    return lambda rng, tests, count: normal(spread)(rng, tests, count) + np.array([0.0, slowdown])


def random_walk(step: float, own: float = 0.01) -> Noise:
    """The machine drifts from process to process, and does not come back."""

    def draw(rng: np.random.Generator, tests: int, count: int) -> Floats:
        level = step * rng.standard_normal((tests, 2 * count)).cumsum(axis=1).reshape(tests, count, 2)
        return np.asarray(level + own * rng.standard_normal((tests, count, 2)))

    return draw


def lasting(correlation: float, spread: float) -> Noise:
    """The second process' disadvantage goes on from round to round (autoregressive of order one)."""

    def draw(rng: np.random.Generator, tests: int, count: int) -> Floats:
        fresh = spread * rng.standard_normal((tests, count))
        effects = np.zeros((tests, count, 2))
        state = fresh[:, 0] if count else np.zeros(tests)
        for number in range(count):
            if number:
                state = correlation * state + math.sqrt(1 - correlation**2) * fresh[:, number]
            effects[:, number, 1] = state
        return effects

    return draw


def spikes(mean: float) -> Noise:
    """Delays only, exponential."""
    return lambda rng, tests, count: mean * rng.standard_exponential((tests, count, 2))


NOISES: Mapping[str, Noise] = {
    "normal, 1.6 %": normal(0.016),
    "normal, 3 %": normal(0.03),
    "normal, 5 %": normal(0.05),
    "t with 1.5 degrees of freedom, 2 %": heavy(0.02, 1.5),
    "a neighbor doubles 1 process in 20": doubled(0.1),
    "15 % of processes +30 %": modes(0.15, 0.30),
    "50 % of processes +60 %": modes(0.5, 0.60),
    "the second of a round 5 % slower": second_slower(0.05),
    "random walk, 2 % a process": random_walk(0.02),
    "AR(1) .8 of the difference, 3 %": lasting(0.8, 0.03),
    "exponential delays, 3 %": spikes(0.03),
}
"""By what they are; spreads are those of a round's difference unless of a process is said."""


def rounds(
    noise: Noise,
    rng: np.random.Generator,
    tests: int,
    count: int,
    *,
    slowdown: float = 0.0,
    metrics: int = 2,
    lots: bool = True,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Rounds of many tests: their differences and the order of each.

    Parameters
    ----------
    slowdown
        Of the head, as a share.
    metrics
        How many are seen of a process; they share its noise, and each adds a little of its own.
    lots
        Whether a lot decides which of the two is the head; else the head is always begun second, which is a mistake.

    Returns
    -------
    tuple
        log(head / base), (tests, count, metrics); and whether the head was begun first, (tests, count).
    """
    effects = noise(rng, tests, count)
    head_first = rng.random((tests, count)) < 0.5 if lots else np.zeros((tests, count), bool)
    second_over_first = effects[..., 1] - effects[..., 0]
    shared = np.where(head_first, -second_over_first, second_over_first) + math.log1p(slowdown)
    return shared[..., None] + OWN_SD * rng.standard_normal((tests, count, metrics)), head_first
