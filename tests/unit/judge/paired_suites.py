"""Synthetic suites of unchanged or slowed tests, judged as the plugin does: thousands at once.

A suite has `TESTS` tests of two summaries and `KERNELS` kernels each. All of them are confirmed, as with
`--perf-against`, so every test gets the same share of the alphas. The code that decides is the judge's own.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtr, ndtri

from pytest_perfdl.judge import sequential, signflip
from pytest_perfdl.judge.spending import Spending

TESTS, KERNELS = 10, 10
SUMMARIES = ("step_time", "block_time")
ROUNDS = sequential.LOOKS[-1]
NULLS = ("normal", "t1.5", "bimodal", "neighbour", "order drift", "random walk")
MUTANTS = ("fixed order", "steps pooled", "minima of unequal n", "looks not split")
POOLED = 3
"""Blocks of steps a process that the mutant takes for replicates."""


def most_alarms(suites, rate=0.01):
    """The 97.5 % bound of a binomial count: 29 of 2000 at 1 %."""
    count = 0
    while bdtr(count, suites, rate) < 0.975:
        count += 1
    return count


def processes(null, rng, lanes, rounds=ROUNDS):
    """What moves a whole process: log factors of the first and of the second process of every round."""
    shape = (2, lanes, rounds)

    def normal(spread):
        return spread * rng.standard_normal(shape, np.float32)

    if null == "normal":
        moved = normal(0.05)
    elif null == "t1.5":
        moved = 0.03 * student(rng, shape)
    elif null == "bimodal":
        moved = math.log(1.6) * (rng.random(shape, np.float32) < 0.5) + normal(0.02)
    elif null == "neighbour":
        # A neighbour who doubles the time comes and goes; one time in ten he leaves or comes within a round.
        here = rng.random((lanes, rounds), np.float32) < 0.4
        switched = rng.random((lanes, rounds), np.float32) < 0.1
        moved = math.log(2) * np.stack([here, here ^ switched]) + normal(0.02)
    elif null == "order drift":
        moved = normal(0.02)
        moved[1] += math.log(1.05)
    else:
        steps = np.cumsum(0.02 * rng.standard_normal((lanes, 2 * rounds), np.float32), axis=1)
        moved = np.moveaxis(steps.reshape(lanes, rounds, 2), -1, 0) + normal(0.01)
    return moved


def student(rng, shape, freedom=1.5):
    scaled = rng.standard_gamma(freedom / 2, shape, np.float32) * (2 / freedom)
    return rng.standard_normal(shape, np.float32) / np.sqrt(np.maximum(scaled, 1e-30))


@dataclass(frozen=True)
class Suites:
    """Log times of many suites; lanes are tests, those of a suite beside each other."""

    base: np.ndarray
    """(lanes, summaries, rounds)"""
    head: np.ndarray
    kernels_base: np.ndarray
    """(rounds, lanes, kernels)"""
    kernels_head: np.ndarray


def unchanged(null, suites, seed, *, fixed_order=False, kernels=KERNELS):
    """Suites whose sides run the same code, and whose orders were drawn by a coin."""
    rng = np.random.default_rng((NULLS.index(null), seed))
    lanes = suites * TESTS
    moved = processes(null, rng, lanes)
    own = 0.005 * rng.standard_normal((2, lanes, ROUNDS), np.float32)
    spikes = 0.01 * rng.standard_exponential((2, lanes, ROUNDS), np.float32)
    timed = np.stack([moved + own, moved + spikes], axis=2)
    shape = (2, ROUNDS, lanes, kernels)
    noise = 0.02 * student(rng, shape) if null == "t1.5" else 0.04 * rng.standard_normal(shape, np.float32)
    noise += np.swapaxes(moved, 1, 2)[..., None]
    head_first = np.zeros((lanes, ROUNDS), bool) if fixed_order else rng.random((lanes, ROUNDS)) < 0.5
    base, head = exchanged(timed, head_first[:, None])
    return Suites(base, head, *exchanged(noise, head_first.T[..., None]))


def exchanged(sides, head_first):
    """(base, head) of (first, second)."""
    first, second = sides
    return np.where(head_first, second, first), np.where(head_first, first, second)


def alarms(suites, *, delta=0.0, split=True):
    """Which suites call anything slower: by each summary, by kernels, shape (suites, 3)."""
    alpha = Spending(TESTS, screened=False).level(())
    plan = sequential.Plan.of(alpha, len(SUMMARIES))
    by_kernels = sequential.Plan.of(alpha, 1)
    if not split:
        plan, by_kernels = unsplit(alpha, len(SUMMARIES)), unsplit(alpha, 1)
    found = regressed(suites.head - suites.base - math.log1p(delta), plan)
    if suites.kernels_base.shape[-1]:
        slow = slow_kernels(suites.kernels_base, suites.kernels_head, by_kernels, delta)
        found = np.concatenate([found, slow[:, None]], axis=1)
    return found.reshape(-1, TESTS, found.shape[-1]).any(axis=1)


def unsplit(alpha, suspects):
    return replace(sequential.Plan.of(alpha, suspects), level=alpha)


def regressed(worse, plan, looks=None):
    """Which summaries are regressed; what is above zero is too slow."""
    looks = plan.until(worse.shape[-1]) if looks is None else looks
    # Clearing only takes alarms away: what is counted here is the most there can be.
    looks = [replace(look, clears=False) for look in looks if look.rejects]
    return sequential.replay(worse, -worse, plan, looks)[0] == sequential.REGRESSED


def slow_kernels(base, head, plan, delta):
    """In which lanes any kernel is slower."""
    found = np.zeros(base.shape[1], bool)
    for look in plan.rejecting:
        scored = signflip.scores(base[:look], head[:look], delta)
        found |= signflip.least_p(scored, plan.level) <= plan.level
    return found


def mutant_alarms(mutant, suites, seed):
    """Which suites a mistaken procedure calls slower, shape (suites, ...), under a null that it cannot bear."""
    if mutant == "fixed order":
        return alarms(unchanged("order drift", suites, seed, fixed_order=True, kernels=0))
    if mutant == "looks not split":
        return alarms(unchanged("normal", suites, seed), split=False)
    rng = np.random.default_rng((len(NULLS), seed))
    lanes = suites * TESTS
    plan = sequential.Plan.of(Spending(TESTS, screened=False).level(()), 1)
    moved = np.subtract(*processes("normal", rng, lanes))
    if mutant == "steps pooled":
        steps = 0.04 * rng.standard_normal((2, lanes, ROUNDS, POOLED), np.float32)
        worse = (moved[..., None] + steps[1] - steps[0]).reshape(lanes, 1, -1)
        looks = [replace(look, rounds=look.rounds * POOLED) for look in plan.until(ROUNDS)]
    else:
        # The least of n values is the quantile of the least of n uniform ones.
        uniform = rng.random((2, lanes, ROUNDS))
        least = ndtri(1 - (1 - uniform) ** (1 / np.array([400, 40])[:, None, None]))
        worse = (moved + 0.05 * (least[1] - least[0]))[:, None]
        looks = None
    return regressed(worse, plan, looks).reshape(suites, -1)
