"""False and found change points on noise that we recorded: processes and rounds of unchanged code.

    python benchmarks/history/change_points.py                    # all: minutes
    python benchmarks/history/change_points.py --points 20000     # fewer

The recording is that of benchmarks/decision_quality: 60 unchanged processes of each of three workloads within an hour,
and 80 unchanged rounds of each cell. Both are shorter than the history of a year, so longer series are made of them in
blocks (Kunsch 1989: the moving-block bootstrap, circular), which keeps the autocorrelation within blocks.

Its nights have a fixed number of rounds, so that their combinations of settings can be compared. The nights of the
gate, which measures until it has an answer, are those of `detection.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from common.tables import table
from decision_quality.recording import Process, Round, unpack

from pytest_perfdl.stats.change_points import ChangePoint, change_points
from pytest_perfdl.stats.evidence import Estimate
from pytest_perfdl.stats.quantiles import Rate

Floats = NDArray[np.float64]
Logs = dict[str, Floats]

DATA = ROOT / "benchmarks" / "decision_quality" / "data" / "recorded.json.gz"
LIMIT = 0.03
STEP = 1.5 * LIMIT
"""A planted step."""
WITHIN = 5
"""Points after a step with which it has to be found, and how far from it."""
ROUNDS = 8
"""Rounds of a night, in one block."""
NIGHTS = 60
LENGTHS = (60, 240, 1000)
BLOCKS = (5, 20)


def processes() -> dict[str, Floats]:
    """Log step times of unchanged processes by workload, in the order of their measurement."""
    found: dict[str, list[float]] = {}
    for run in unpack(DATA)[1]:
        if isinstance(run, Process) and run.share == 0:
            found.setdefault(run.workload, []).append(run.measured.metrics()["step_time"])
    return {name: np.log(values) for name, values in sorted(found.items())}


def rounds() -> dict[str, Floats]:
    """Log ratios of the sides of unchanged rounds by workload and cell, in the order of their measurement."""
    found: dict[str, list[float]] = {}
    for run in unpack(DATA)[1]:
        if isinstance(run, Round) and run.share == 0:
            name = "step_time" if "step_time" in run.head else "block_time"
            found.setdefault(f"{run.workload}, {run.cell}", []).append(np.log(run.head[name] / run.base[name]))
    return {name: np.array(values) for name, values in sorted(found.items())}


def resampled(values: Floats, length: int, block: int, draw: np.random.Generator) -> Floats:
    """A series of blocks that follow one another as they were measured; the recording is a circle."""
    starts = draw.integers(0, len(values), -(-length // block))
    return np.concatenate([np.take(values, np.arange(start, start + block), mode="wrap") for start in starts])[:length]


@dataclass(frozen=True)
class Series:
    """Points on the log scale, and their standard errors if they are known."""

    logs: Floats
    errors: Floats | None = None

    def found(self, points: int | None = None) -> tuple[ChangePoint, ...]:
        """The change points of the first points."""
        return change_points(np.exp(self.logs[:points]), None if self.errors is None else self.errors[:points])


def nights(values: Floats, draw: np.random.Generator) -> Series:
    """A history whose points follow from paired rounds against one anchor, as the plugin estimates them."""
    made = [Estimate(tuple(resampled(values, ROUNDS, ROUNDS, draw).tolist())) for _ in range(NIGHTS)]
    errors = [(each.interval[1] - each.interval[0]) / 3.92 for each in made]
    return Series(np.array([each.center for each in made]), np.array(errors))


def of_ten(values: Floats, draw: np.random.Generator) -> Series:
    """A history of recorded baselines: each point is the mean of ten processes in a row."""
    return Series(np.array([resampled(values, 10, 10, draw).mean() for _ in range(NIGHTS)]))


def is_found(found: tuple[ChangePoint, ...], step: int) -> bool:
    return any(abs(change.index - step) <= WITHIN and change.effect > 0 for change in found)


def detection(make: Callable[[], Series], trials: int, draw: np.random.Generator) -> tuple[int, int, list[float]]:
    """How many of the planted steps are found with five points after them, and at the end; the estimated effects."""
    early = late = 0
    effects = []
    for _ in range(trials):
        series = make()
        step = int(draw.integers(10, NIGHTS - 10))
        series.logs[step:] += np.log1p(STEP)
        early += is_found(series.found(step + WITHIN), step)
        whole = series.found()
        late += is_found(whole, step)
        effects += [change.effect for change in whole if abs(change.index - step) <= WITHIN]
    return early, late, effects


def per_thousand(count: int, points: int) -> str:
    return f"{1000 * count / points:.2f} (below {1000 * Rate(count, points).upper:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=60_000, help="points of each row of the first table")
    parser.add_argument("--trials", type=int, default=100, help="planted steps of each row of the second table")
    parser.add_argument("--seed", type=int, default=23)
    options = parser.parse_args()
    draw = np.random.default_rng(options.seed)
    recorded, paired = processes(), rounds()
    head = ("unchanged series", "length", "blocks", "points", "false", "per 1,000 points")
    for line in table(head, unchanged(recorded, paired, options.points, draw)):
        print(line, flush=True)
    head = (f"steps of +{STEP:.1%}", "deviation of a point", f"found with {WITHIN} points after", "found in all")
    print()
    for line in table((*head, "median effect"), planted(recorded, paired, options.trials, draw)):
        print(line, flush=True)


def unchanged(recorded: Logs, paired: Logs, least: int, draw: np.random.Generator) -> Iterator[Sequence[object]]:
    """Change points of series of unchanged code, a row for each sort of series."""
    count = sum(len(change_points(np.exp(values))) for values in recorded.values())
    points = sum(map(len, recorded.values()))
    yield "processes as recorded", 60, "-", points, count, per_thousand(count, points)
    total = number = 0
    for length in LENGTHS:
        for block in BLOCKS:
            count = points = 0
            while points < least:
                for values in recorded.values():
                    count += len(change_points(np.exp(resampled(values, length, block, draw))))
                    points += length
            yield "single processes", length, block, points, count, per_thousand(count, points)
            total, number = total + count, number + points
    for name, make, sources in (
        ("ten processes a point", of_ten, recorded),
        ("nights of paired rounds", nights, paired),
    ):
        count = points = 0
        while points < least // 2:
            for values in sources.values():
                count += len(make(values, draw).found())
                points += NIGHTS
        yield name, NIGHTS, "-", points, count, per_thousand(count, points)
        total, number = total + count, number + points
    yield "all resampled", "", "", number, total, per_thousand(total, number)


def planted(recorded: Logs, paired: Logs, trials: int, draw: np.random.Generator) -> Iterator[Sequence[object]]:
    """Planted steps that are found, a row for each sort of series."""
    everything = [*paired.items()]
    early = late = total = 0
    for place, (_, values) in enumerate(everything):
        share = trials // len(everything) + (place < trials % len(everything))
        found = detection(lambda values=values: nights(values, draw), share, draw)
        early, late, total = early + found[0], late + found[1], total + share
    yield f"nights of {ROUNDS} rounds, all cells equally", "", f"{early} of {total}", f"{late} of {total}", ""
    for kind, make, sources in (
        (f"nights of {ROUNDS} rounds", nights, paired),
        ("ten processes a point", of_ten, recorded),
    ):
        for name, values in sources.items():
            deviation = float(np.std(make(values, draw).logs))
            found = detection(lambda make=make, values=values: make(values, draw), trials, draw)
            effect = f"{np.median(found[2]):+.1%}" if found[2] else "-"
            ours = f"{found[0]} of {trials}", f"{found[1]} of {trials}"
            yield f"{kind}: {name}", f"{deviation:.1%}", *ours, effect


if __name__ == "__main__":
    main()
