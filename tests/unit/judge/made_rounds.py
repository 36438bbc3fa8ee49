"""Rounds for tests: of given differences, in orders that a coin drew."""

import math
import random

from pytest_perfdl.judge.round_data import Round, head_second, orders
from pytest_perfdl.stats.evidence import Estimate

US = 1_000.0
SEED = 5


def of(*differences, name="step_time", base=10_000 * US, **others):
    """Rounds of these differences log(head / base), and of other metrics of theirs (one number: in every round)."""
    found = []
    for number, (order, own) in enumerate(zip(orders(SEED, len(differences)), differences, strict=True)):
        before = base * (1 + number / 1000)
        theirs = {
            each: values[number] if isinstance(values, (list, tuple)) else values for each, values in others.items()
        }
        logs = {name: own, **theirs}
        found.append(
            Round(order, dict.fromkeys(logs, before), {each: before * math.exp(log) for each, log in logs.items()})
        )
    return found


def estimate(differences):
    """The estimate after rounds of these differences."""
    logs = tuple(differences)
    return Estimate(logs, head_second(of(*logs)))


def noise(count, sd=0.01, seed=1, shift=0.0):
    """Differences around a shift."""
    rng = random.Random(seed)
    return [shift + rng.gauss(0, sd) for _ in range(count)]
