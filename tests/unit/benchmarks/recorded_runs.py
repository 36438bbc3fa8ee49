"""Recordings made of numbers: the noise is known, and no clock is asked."""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "benchmarks" / "decision_quality"
sys.path.insert(0, str(HERE))

from recording import Cell, First, Measured, Process, Round  # noqa: E402 (the benchmarks are no package)

MILLISECOND = 1_000_000
USUAL = Cell("started", False, 0.0)


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


def sides(rng, base_ms, head_ms, own=0.002):
    """The times of both processes of a round."""
    return [
        {name: round(level * MILLISECOND * np.exp(own * rng.standard_normal())) for name in ("step_time", "block_time")}
        for level in (base_ms, head_ms)
    ]


def recording(
    seed=0,
    *,
    unchanged=40,
    slowed=24,
    rounds=20,
    shares=(0.03, 0.05, 0.10, 0.20),
    spread=0.01,
    cells=(USUAL,),
    firsts=0,
):
    """Processes and rounds of one workload in random order, whose levels differ by `spread`."""
    rng = np.random.default_rng(seed)
    wanted = [("process", 0.0, None)] * unchanged + [("first", 0.0, None)] * firsts
    wanted += [("process", share, None) for share in shares] * slowed
    wanted += [("round", share, cell) for share in (0.0, *shares) for cell in cells] * rounds
    runs = []
    for number, place in enumerate(rng.permutation(len(wanted))):
        kind, share, cell = wanted[place]
        base, head = 10 * np.exp(spread * rng.standard_normal(2)) * (1, 1 + share)
        if kind == "process":
            runs.append(Process("numbers", share, number, 10.0 * number, 1.5, 3.0, noisy(rng, head, 0.02)))
        elif kind == "first":
            runs.append(First("numbers", number, 10.0 * number, 3.0, 4.0))
        else:
            order = ("base first", "head first")[int(rng.integers(2))]
            seconds = 5.0 if cell.start == "started" else 1.0
            measured_sides = sides(rng, base, head)
            applied = (cell, cell.start, 0 if cell.pinned else None, 0.01, 0.02)
            runs.append(Round("numbers", share, number, 10.0 * number, order, seconds, *measured_sides, *applied))
    return runs
