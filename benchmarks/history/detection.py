"""Planted steps in simulated nights: how many `perfdl history` finds, and what it finds in nights of unchanged code.

    python benchmarks/history/detection.py --seed 1

The nights are those of `nights.py`: the gate measures paired rounds of the baseline's and tonight's code until it has
an answer. Each night is written as a run file; the run files of sixty nights are read as `perfdl history --runs` reads
them. A step of 1.5 times the limit stays: `refresh` adopts no slowdown, so all nights have rounds of the same baseline.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from common.tables import table_text
from nights import NIGHTS, RECORDING, TESTS, WINDOW, WORKLOADS, Bank, Change, Story, Test, first_test, measure

from pytest_perfdl.results.curve import TestHistory
from pytest_perfdl.results.run import Run
from pytest_perfdl.results.run_file import dump, to_json
from pytest_perfdl.runs.history import Measurement, histories, of_run
from pytest_perfdl.runs.refresh import decide
from pytest_perfdl.stats.change_points import change_points
from pytest_perfdl.stats.quantiles import Rate

LIMIT = 0.03
STEP = 1.5 * LIMIT
WITHIN = 5
"""Points after a step with which it has to be found, and how far from it."""
STEPS, UNCHANGED = 100, 300
"""Tests with a step, and without one."""


@dataclass
class Counts:
    """What was found in the nights of one workload."""

    steps: int = 0
    early: int = 0
    """Steps that are found when only `WITHIN` nights after them exist."""
    plain: int = 0
    """Those that would be found if the errors of the points were not used."""
    late: int = 0
    """Steps that are found in all nights."""
    extra: int = 0
    """Change points of tests with a step that are not the step."""
    points: int = 0
    false: int = 0
    """Points of unchanged tests, and change points among them."""

    def row(self, name: str) -> Sequence[object]:
        """A row of the table."""
        rate = Rate(self.false, self.points)
        per_thousand = "" if rate.share is None else f"{1000 * rate.share:.2f} (below {1000 * rate.upper:.2f})"
        false = f"{rate.count} of {self.points}", per_thousand
        found = (f"{number} of {self.steps}" for number in (self.early, self.plain, self.late))
        return (name, *found, self.extra, *false)


def simulated(story: Story, bank: Bank, rng: np.random.Generator, nights: int = NIGHTS) -> list[Measurement]:
    """What a history reads of the run files of all nights of one test.

    Raises
    ------
    AssertionError
        `refresh` would have adopted a slowdown.
    """
    test = first_test("tests/test_step.py::test_step", story, bank, rng)
    read: list[Measurement] = []
    for night in range(1, nights + 1):
        measure(test, night, bank, rng)
        if story.changes and night >= story.changes[0].night:
            assert decide(test.runs[-WINDOW:], test.stored).record is None
        read += of_run(dump(to_json(_run(test))))
    return read


def _run(test: Test) -> Run:
    """The run of the last night."""
    last = test.runs[-1]
    assert last.result.new is not None
    record = last.result.new
    # A run file has the paths of a project; nothing is read from them here.
    folder = Path("/project")
    return Run(
        folder, record.key, record.context, (last.result,), "baselines", folder / "perf-report", last.date,
        record.occasions[-1].commit,
    )  # fmt: skip


def history(read: Sequence[Measurement]) -> TestHistory:
    """The history of the time that is shown by default."""
    (found,) = histories(read, "", None)
    assert all(point.is_paired for point in found.points)
    return found


def finds(found: TestHistory, night: int) -> bool:
    """Whether a slowdown is found near a night."""
    at = _index(found, night)
    return any(abs(change.index - at) <= WITHIN and found.is_worse(change) for change in found.change_points)


def _index(found: TestHistory, night: int) -> int:
    """The first point of a night, or of the one after it where its rounds are invalid."""
    return sum(int(point.commit, 16) < night for point in found.points)


def planted(number: int, bank: Bank, rng: np.random.Generator, counts: Counts) -> None:
    """Plant a step, and count whether it is found."""
    night = int(rng.integers(11, NIGHTS - 9))
    story = Story("step", WORKLOADS[number % len(WORKLOADS)], (Change(night, 1 + STEP),))
    read = simulated(story, bank, rng)
    known = [each for each in read if int(each.commit, 16) < night + WITHIN]
    whole = history(read)
    counts.steps += 1
    first = history(known)
    counts.early += finds(first, night)
    without = change_points([point.value for point in first.points])
    counts.plain += finds(replace(first, change_points=without), night)
    counts.late += finds(whole, night)
    counts.extra += sum(abs(each.index - _index(whole, night)) > WITHIN for each in whole.change_points)


def unchanged(number: int, bank: Bank, rng: np.random.Generator, counts: Counts) -> None:
    """Count the change points of a test whose code never changes."""
    found = history(simulated(Story("step", WORKLOADS[number % len(WORKLOADS)], ()), bank, rng))
    counts.points += len(found.points)
    counts.false += len(found.change_points)


def main() -> None:
    """Simulate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="tests with a step (%(default)s)")
    parser.add_argument("--unchanged", type=int, default=UNCHANGED, help="tests without one (%(default)s)")
    options = parser.parse_args()
    started = time.monotonic()
    rng = np.random.default_rng(options.seed)
    # Every night is a new draw.
    bank = Bank(RECORDING, TESTS, count=0)
    counts = {name: Counts() for name in WORKLOADS}
    for number in range(options.steps):
        planted(number, bank, rng, counts[WORKLOADS[number % len(WORKLOADS)]])
    for number in range(options.unchanged):
        unchanged(number, bank, rng, counts[WORKLOADS[number % len(WORKLOADS)]])
    head = (f"steps of +{STEP:.1%}", f"found with {WITHIN} nights after", "without errors of points")
    head += (f"found in all {NIGHTS} nights", "other changes", "false, of unchanged code", "per 1,000 points")
    total = {each.name: sum(getattr(one, each.name) for one in counts.values()) for each in fields(Counts)}
    rows = (each.row(name) for name, each in {**counts, "**all**": Counts(**total)}.items())
    print(table_text(head, rows, numbers=True))
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
