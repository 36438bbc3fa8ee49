"""Recordings made of numbers: the noise is known, and no clock is asked."""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "benchmarks" / "decision_quality"
sys.path.insert(0, str(HERE))

from recording import Measured, Process, Round  # noqa: E402 (the benchmarks are no package)

MILLISECOND = 1_000_000


def measured(step_ns, block=10):
    """Steps of these times; no other had the processor."""
    steps = [int(ns) for ns in step_ns]
    blocks = [
        (block, sum(part), sum(part), 0, 0, 0)
        for part in (steps[start : start + block] for start in range(0, len(steps), block))
    ]
    return Measured(15, tuple(steps), (0,) * len(steps), tuple(blocks), 0.0)


def noisy(rng, level_ms, spread, count=100):
    return measured(level_ms * MILLISECOND * np.exp(spread * rng.standard_normal(count)))


def recording(seed=0, *, unchanged=40, slowed=24, rounds=20, shares=(0.03, 0.05, 0.10, 0.20), spread=0.01):
    """Processes and rounds of one workload in random order, whose levels differ by `spread`."""
    rng = np.random.default_rng(seed)
    wanted = [("process", 0.0)] * unchanged + [("round", 0.0)] * rounds
    for share in shares:
        wanted += [("process", share)] * slowed + [("round", share)] * rounds
    runs = []
    for number, place in enumerate(rng.permutation(len(wanted))):
        kind, share = wanted[place]
        base, head = 10 * np.exp(spread * rng.standard_normal(2)) * (1, 1 + share)
        if kind == "process":
            runs.append(Process("numbers", share, number, 10.0 * number, 1.5, 3.0, noisy(rng, head, 0.02)))
        else:
            order = ("base first", "head first")[int(rng.integers(2))]
            sides = noisy(rng, base, 0.02, 40), noisy(rng, head, 0.02, 40)
            runs.append(Round("numbers", share, number, 10.0 * number, order, 5.0, *sides))
    return runs
