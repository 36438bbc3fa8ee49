"""Sixty simulated nights of two hundred tests: what becomes of baselines under `perfdl refresh` and under other rules.

    python benchmarks/history/run.py --seed 1

Prints the table of README.md. Takes about four minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nights
import numpy as np
from common.tables import table_text
from nights import Story, Test
from other_rules import RULES

WITHIN = 3
"""Nights in which a change should have been followed."""
LAST = 3
"""Nights at the end in which a slowdown should still be reported."""


@dataclass
class Counts:
    """A row of the table."""

    moved: int = 0
    """Slowdowns after which the baseline is the slowed time, of 100."""
    reported: int = 0
    still: int = 0
    """Slowdowns that were reported at least once, and in the last nights."""
    improvements: int = 0
    environments: int = 0
    """Improvements and harmless changes of the environment that the baseline followed within `WITHIN` nights."""
    alarms: int = 0
    """Reports in nights of tests that never get slower."""
    quiet: int = 0
    """Such nights."""

    def row(self, name: str) -> Sequence[object]:
        """A row of the table."""
        cells = (self.moved, self.reported, self.still, self.improvements, self.environments)
        return (name, *cells, f"{1000 * self.alarms / self.quiet:.1f}")


def ours(tests: Sequence[Test]) -> Counts:
    """What `perfdl refresh` did."""
    counts = Counts()
    for test in tests:
        story = test.story
        if story.kind == "improvement":
            counts.improvements += _adopted(test, "improvement", story.changes[0].night)
            counts.environments += _adopted(test, "environment", story.changes[1].night)
            refused = [decision.kind == "refused" for decision in test.decisions]
            counts.alarms += sum(refused)
            counts.quiet += len(refused)
            continue
        told = [run.result.verdict in ("regressed", "suspect") for run in test.runs]
        begin = min(each.night for each in story.changes if each.code > 1)
        counts.moved += bool(test.swallowed)
        counts.reported += any(told[begin - 1 :])
        counts.still += any(told[-LAST:])
    return counts


def others(name: str, tests: Sequence[Test]) -> Counts:
    """What another rule did in the same nights."""
    counts, rule = Counts(), RULES[name]
    for test in tests:
        story = test.story
        alarms, bases = rule(test.values)
        if story.kind == "improvement":
            gain, change = (each.night for each in story.changes)
            counts.alarms += sum(alarms)
            counts.quiet += len(alarms)
            counts.improvements += _followed(bases, test.values, gain)
            counts.environments += not any(alarms[change - 1 : change - 1 + WITHIN])
            continue
        begin = min(each.night for each in story.changes if each.code > 1)
        fast, slow = story.code(begin - 1), story.code(nights.NIGHTS)
        before = np.median(test.values[: begin - 1]) * (fast / story.code(1) if _improves(story) else 1)
        counts.moved += bool(bases[-1] > before * (1 + slow / fast) / 2)
        counts.reported += any(alarms[begin - 1 :])
        counts.still += any(alarms[-LAST:])
    return counts


def _improves(story: Story) -> bool:
    return any(each.code < 1 for each in story.changes)


def _adopted(test: Test, change: str, night: int) -> bool:
    made = test.decisions[night - 1 : night - 1 + WITHIN]
    if change == "improvement":
        # Code from before the improvement is none.
        return any(each.change == change and _night(each) >= night for each in made)
    return any(each.change == change for each in made)


def _night(decision: nights.Decision) -> int:
    assert decision.record is not None
    assert decision.record.code is not None
    return int(decision.record.code.files["model.py"], 16)


def _followed(bases: Sequence[float], values: Sequence[float], night: int) -> bool:
    before, after = np.median(values[: night - 1]), np.median(values[night - 1 : night + 5])
    return bool(bases[night - 1 + WITHIN] < (before + after) / 2)


def main() -> int:
    """Simulate, and print the table; 1 when a slowdown became a baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outcomes", type=int, default=nights.OUTCOMES, help="draws of the gate for each true ratio")
    arguments = parser.parse_args()
    started = time.monotonic()
    tests = nights.run(arguments.seed, outcomes=arguments.outcomes)
    found = {"**perfdl refresh**": ours(tests), **{name: others(name, tests) for name in RULES}}
    head = ("rule", "baseline moved to the slowed time", "reported", "reported at the end", "improvements followed")
    head += ("environments followed", "false reports per 1,000")
    print(table_text(head, (counts.row(name) for name, counts in found.items()), numbers=True))
    spurious = sum(
        each.change == "improvement" and test.story.code(_night(each)) >= 1
        for test in tests
        for each in test.decisions
        if each.record is not None
    )
    print(f"\nupdates to code that is no faster than the first: {spurious}", file=sys.stderr)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if found["**perfdl refresh**"].moved else 0


if __name__ == "__main__":
    sys.exit(main())
