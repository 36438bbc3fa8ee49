"""How good are the decisions? Ours beside other tools' rules on one recording, as one table.

    python benchmarks/decision_quality/run.py                          # some minutes, prints Markdown
    python benchmarks/decision_quality/run.py --docs                   # puts the table into docs/
    python benchmarks/decision_quality/run.py --suites 1000            # false alarms of whole suites

`record.py` made the recording, `rules.py` holds the other tools' rules with their sources, `replay.py` says how
decisions are drawn. The same recording and seed give the same table.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from common.tables import table, write_between
from ours import Outcome, Perf
from recording import Cell, First, Process, Round, Run, unpack
from replay import (
    UNCHANGED,
    Decide,
    NotRecorded,
    Pool,
    Tally,
    by_rounds,
    other,
    our_unpaired,
    suites,
    tally,
)
from rules import RULES

from pytest_perfdl.model.limits import Limits

PACKED = HERE / "data" / "recorded.json.gz"
MARKERS = ("<!-- decision-quality -->", "<!-- /decision-quality -->")
STRICT = Limits.parse({"step_time": "1%", "block_time": "1%"})
MANY = 40
"""Tests of a larger run."""
USUAL = (UNCHANGED, 0.05)
"""Slowdowns whose seconds to a verdict are shown."""
QUIET = 0.05
"""Processors that others may keep busy where rounds are called quiet."""

Tallies = Mapping[str, Mapping[float, Tally]]


@dataclass(frozen=True)
class Recorded:
    """What the table is made of."""

    machine: Mapping[str, Any]
    runs: Sequence[Run]

    @property
    def workloads(self) -> list[str]:
        """All of them."""
        return sorted({run.workload for run in self.runs})

    @property
    def shares(self) -> tuple[float, ...]:
        """Slowdowns of its rounds, none of them first."""
        return tuple(sorted({run.share for run in self.runs if isinstance(run, Round)}))

    @property
    def cells(self) -> list[Cell]:
        """Those of its rounds, the default settings on a quiet machine first."""
        found = {run.cell for run in self.runs if isinstance(run, Round)}
        return sorted(found, key=lambda cell: (cell.start != "forked", not cell.pinned, cell.neighbor))

    def pools(self, cell: Cell | None) -> list[Pool]:
        """Of the workloads that have rounds in a cell."""
        with_it = {run.workload for run in self.runs if isinstance(run, Round) and run.cell == cell}
        return [Pool(self.runs, name, cell) for name in sorted(with_it)]

    def of(self, workload: str) -> Recorded:
        """Its part of one workload."""
        return Recorded(self.machine, [run for run in self.runs if run.workload == workload])


def deciders(recorded: Recorded) -> dict[str, tuple[Decide, Sequence[Pool]]]:
    """Every rule of the table, and what it decides on."""
    usual = recorded.pools(recorded.cells[0])
    found: dict[str, tuple[Decide, Sequence[Pool]]] = {}
    for cell in recorded.cells:
        found[f"**pytest-perfdl** ({cell})"] = by_rounds(Perf()), recorded.pools(cell)
    found[f"**pytest-perfdl**, one of {MANY} tests"] = by_rounds(Perf(tests=MANY)), usual
    found["**pytest-perfdl**, limit 1 %"] = by_rounds(Perf(limits=STRICT)), usual
    found["**pytest-perfdl**, unpaired"] = our_unpaired, usual
    return {**found, **{rule.name: (other(rule), usual) for rule in RULES}}


def shares_of(pools: Sequence[Pool]) -> list[float]:
    """Slowdowns that the rounds of all these have.

    Raises
    ------
    NotRecorded
        Without any.
    """
    if not pools:
        raise NotRecorded("no rounds of the cell that is asked for")
    return sorted(set.intersection(*(pool.shares for pool in pools)))


def decide_all(recorded: Recorded, decisions: int, seed: int, jobs: int = 1) -> dict[str, dict[float, Tally]]:
    """Every rule on every slowdown that all of its pools have.

    Raises
    ------
    NotRecorded
    """
    rules = deciders(recorded)
    wanted = [
        (name, share, number) for number, (name, (_, pools)) in enumerate(rules.items()) for share in shares_of(pools)
    ]
    found: dict[str, dict[float, Tally]] = {name: {} for name in rules}
    names, shares, numbers = zip(*wanted, strict=True)
    with ProcessPoolExecutor(jobs) as executor:
        seeds = [(seed, number) for number in numbers]
        made = executor.map(_tally, repeat(recorded), names, shares, repeat(decisions), seeds)
        for position, (name, share, each) in enumerate(zip(names, shares, made, strict=True)):
            print(f"[{position + 1}/{len(wanted)}] {name} {share:+.0%}", file=sys.stderr, flush=True)
            found[name][share] = each
    return found


def _tally(recorded: Recorded, name: str, share: float, decisions: int, seed: tuple[int, int]) -> Tally:
    decide, pools = deciders(recorded)[name]
    return tally(decide, pools, share, decisions, seed)


def shares_table(tallies: Tallies, *, intervals: bool) -> Iterator[str]:
    """Lines of the Markdown table."""
    shares = sorted({share for found in tallies.values() for share in found})
    found_at = (f"+{share:.0%} found" for share in shares[1:])
    heads = ("rule", "false alarms", *found_at, "`unchanged` on unchanged code", "bound", "seconds per test")
    rows = []
    for name, found in tallies.items():
        cells = (cell(found[share], intervals=intervals) if share in found else "" for share in shares)
        taken = seconds([found[share].seconds for share in USUAL if share in found])
        rows.append((name, *cells, *statement(found[UNCHANGED]), taken))
    return table(heads, rows, numbers=True)


def statement(unchanged: Tally) -> tuple[str, str]:
    """How often unchanged code is said to be no slower, and what is excluded then (the median)."""
    if unchanged.positive is None:
        return "", ""
    bound = "" if math.isnan(unchanged.excluded) else f"{100 * unchanged.excluded:.1f} %"
    return f"{percent(unchanged.positive / unchanged.decisions)} %", bound


def cell(found: Tally, *, intervals: bool) -> str:
    """A share, such as "31 %" or "31 % (28-34)"; what is not zero is not shown as zero."""
    text = percent(found.share) + " %"
    low, high = found.interval()
    return f"{text} ({percent(low)}-{percent(high)})" if intervals else text


def percent(share: float) -> str:
    """In whole percent, below one and above 99 with one decimal, where it is not exact."""
    hundredths = 100 * share
    return f"{hundredths:.1f}" if 0 < hundredths < 1 or 99 < hundredths < 100 else f"{hundredths:.0f}"


def seconds(usual: Sequence[float]) -> str:
    """On unchanged code and on slowed code, once where they are alike."""
    texts = list(dict.fromkeys(f"{each:.0f}" if each >= 10 else f"{each:.1f}" for each in usual))
    near = max(usual) < 1.25 * min(usual)
    return texts[0] if near else " to ".join(texts)


def caption(recorded: Recorded, tallies: Tallies) -> str:
    """What the table rests on."""
    processes = sum(isinstance(run, Process) for run in recorded.runs)
    rounds = [run for run in recorded.runs if isinstance(run, Round)]
    every = [found for each in tallies.values() for found in each.values()]
    widest = max(max(found.share - found.interval()[0], found.interval()[1] - found.share) for found in every)
    none = Tally(0, every[0].decisions, 0.0).interval()[1]
    kinds = Counter((run.workload, run.cell, bool(run.share), run.share) for run in rounds)
    counts = [min((n for kind, n in kinds.items() if kind[2] is slowed), default=0) for slowed in (False, True)]
    models = ", ".join(WORKLOADS.get(name, name) for name in recorded.workloads)
    rounds_each = f"{counts[0]} rounds of unchanged code and {counts[1]} of each slowdown"
    notes = [f"At least {rounds_each} were recorded for every workload and row.{quiet(rounds)}"]
    notes.append(f"Slower code is the same code with a busy wait of that share in every step.{arrived(recorded)}")
    notes.append(
        f"Each share is of {every[0].decisions} decisions or more, drawn from the recorded rounds and processes "
        f"with a fixed seed. The widest 95 % interval (Wilson) is ±{100 * widest:.0f} points. The interval of a "
        f"share of 0 % ends at {100 * none:.1f} % or below. The intervals do not include differences between days or "
        "machines."
    )
    notes.append(
        "The limit of pytest-perfdl is 3 % unless the row names another limit, so a slowdown of 3 % does not exceed "
        "it. *Bound* is the median of the smallest slowdown that is excluded with a probability of 97.5 %."
    )
    notes.append(
        "Every rule gets the times of warmed-up steps, measured in processes with the pinned environment of "
        "pytest-perfdl."
    )
    notes.append(
        "*Seconds per test* is the measured time of the fresh processes. If there are two numbers, the first is for "
        f"unchanged code and the second for a slowdown of 5 %. {ours_taken(recorded)}"
    )
    return (
        f"Recorded: {processes} processes, and {len(rounds)} rounds of two interleaved processes. Workloads: {models}"
        f"{place(recorded)}.\n\n" + "\n".join(f"- {note}" for note in notes)
    )


def arrived(recorded: Recorded) -> str:
    """By how much less than that the steps of a workload got slower in the first row, where it is much less."""
    usual = recorded.cells[0]
    found = []
    for name in recorded.workloads:
        medians = {}
        for share in recorded.shares[1:]:
            rounds = [run for run in recorded.runs if isinstance(run, Round) and run.cell == usual]
            ratios = [
                run.head[OF_ALL] / run.base[OF_ALL] for run in rounds if (run.workload, run.share) == (name, share)
            ]
            if ratios:
                medians[share] = statistics.median(ratios) - 1
        if any(seen < ARRIVED * share for share, seen in medians.items()):
            seen = ", ".join(f"{by:+.1%} at {share:+.0%}" for share, by in medians.items())
            found.append(
                f" The wait slows {WORKLOADS.get(name, name)} by less than that, because a part of it is hidden: in "
                f"the first row by {seen}."
            )
    return "".join(found)


OF_ALL = "block_time"
"""The time that every workload has."""
ARRIVED = 0.75
"""Part of a slowdown that the steps show, below which it is said."""


def ours_taken(recorded: Recorded) -> str:
    """What is in our seconds."""
    if any(isinstance(run, First) for run in recorded.runs):
        return "For pytest-perfdl, it includes the first process of each side and all rounds, and excludes checkouts."
    return "For pytest-perfdl, it excludes the profiled steps, some seconds for each test."


WORKLOADS: Mapping[str, str] = {
    "transformer": "a training step of a small transformer",
    "convnet": "inference of a small convolutional network",
    "loader": "steps fed by a data loader with one worker",
}


def quiet(rounds: Sequence[Round]) -> str:
    """What others did beside rounds that were to be quiet, where that is known."""
    known = [run.idle_load for run in rounds if not run.cell.neighbor and run.idle_load is not None]
    if not known:
        return " The load from other processes is not known."
    busy = sum(load >= QUIET for load in known)
    return (
        f" In {percent(busy / len(known))} % of the quiet rounds, other processes used at least {QUIET:.0%} of a CPU."
    )


def place(recorded: Recorded) -> str:
    """Where and when; nothing for runs that are not packed yet."""
    machine = recorded.machine
    if not machine:
        return ""
    hardware = f"{machine['cores']} cores of {machine['cpu']}"
    return f". Machine: {hardware}, torch {machine['torch']}, one thread, {dates(recorded.runs)}"


def dates(runs: Sequence[Run]) -> str:
    """The days on which these were recorded."""
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(run.at)) for run in runs})
    return days[0] if len(days) == 1 else f"{', '.join(days[:-1])} and {days[-1]}"


def report(recorded: Recorded, tallies: Tallies, *, intervals: bool) -> str:
    """Table and caption."""
    return "\n".join((*shares_table(tallies, intervals=intervals), "", caption(recorded, tallies)))


def alarmed_suites(recorded: Recorded, count: int, tests: int, seed: int, jobs: int = 1) -> Iterator[str]:
    """Whole suites of so many unchanged tests, in every cell."""
    heads = ("rounds", f"alarmed of {count} suites of {tests}", "alarms", "tests that end positive", "rounds a test")
    yield from table(heads, suite_rows(recorded, count, tests, seed, jobs), numbers=True)


def suite_rows(recorded: Recorded, count: int, tests: int, seed: int, jobs: int) -> Iterator[Sequence[object]]:
    """A row for each cell."""
    with ProcessPoolExecutor(jobs) as executor:
        made = executor.map(_suites, repeat(recorded), recorded.cells, repeat(count), repeat(tests), repeat(seed))
        for chosen, (alarmed, outcomes) in zip(recorded.cells, made, strict=True):
            positive = percent(sum(each.positive for each in outcomes) / len(outcomes))
            alarms = sum(each.fails for each in outcomes)
            rounds = sum(each.rounds for each in outcomes) / len(outcomes)
            yield chosen, alarmed, alarms, f"{positive} %", f"{rounds:.1f}"


def _suites(recorded: Recorded, chosen: Cell, count: int, tests: int, seed: int) -> tuple[int, list[Outcome]]:
    return suites(Perf(tests=tests), recorded.pools(chosen), count, tests, (seed, count))


def main() -> int:
    """Print the table, or put it into the documentation."""
    options = arguments()
    if not options.recorded.exists():
        print(f"{options.recorded} is not there: record.py makes it", file=sys.stderr)
        return 1
    recorded = Recorded(*unpack(options.recorded))
    try:
        for line in lines(recorded, options):
            print(line, flush=True)
    except NotRecorded as error:
        print(f"{options.recorded}: {error}", file=sys.stderr)
        return 1
    return 0


def lines(recorded: Recorded, options: argparse.Namespace) -> Iterator[str]:
    """What was asked for.

    Raises
    ------
    NotRecorded
    """
    if options.suites:
        yield from alarmed_suites(recorded, options.suites, options.tests, options.seed, options.jobs)
        return
    parts = [recorded.of(name) for name in recorded.workloads] if options.per_workload else [recorded]
    for part in parts:
        tallies = decide_all(part, options.decisions, options.seed, options.jobs)
        text = report(part, tallies, intervals=options.intervals)
        if options.docs:
            write_between(ROOT / "docs" / "explanation" / "benchmarks.md", *MARKERS, text)
        yield from ([f"## {part.workloads[0]}\n"] if options.per_workload else [])
        yield text


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=500, metavar="N", help="of a rule a workload (500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--recorded", type=Path, default=PACKED, metavar="FILE", help="packed, or .jsonl lines")
    parser.add_argument("--intervals", action="store_true", help="show every interval")
    parser.add_argument("--per-workload", action="store_true", help="one table for each workload")
    parser.add_argument("--docs", action="store_true", help="also replace the table in docs/explanation/benchmarks.md")
    parser.add_argument("--suites", type=int, default=0, metavar="N", help="only count suites that raise an alarm")
    parser.add_argument("--tests", type=int, default=MANY, metavar="N", help=f"in a suite ({MANY})")
    options = parser.parse_args()
    if options.docs and (options.per_workload or options.suites):
        parser.error("--docs takes the one table of all workloads")
    return options


if __name__ == "__main__":
    sys.exit(main())
