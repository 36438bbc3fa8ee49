"""The rounds of `record.py`, measured as those of `pytest --perf` are: run by it, in the scratch project.

    python lots.py JOBS

JOBS is a JSON file: a perf test, the lots of rounds that are wanted of it, and where they are to be kept. One run of
pytest starts the first process of each side as for a test that is judged, then all rounds are those of
`pytest_perfdl.run.paired_rounds`: with the same forking, binding to a core, sizes, turns and profiled steps. In
the place of a gate that ends them there is a list: each lot has a cell, a slowdown of the working tree and a seed of
its own, and every round is kept as soon as it ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import pytest
from ours import NAMES
from recording import Cell, First, Round, append_line
from scratch_project import ScratchProject
from side_load import side_load

from pytest_perfdl.machine.state import Busy, Load
from pytest_perfdl.measure.commands import SideResult
from pytest_perfdl.model.record import Record
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run import comparison, perf_test
from pytest_perfdl.run.comparison import ComparisonResult, against_side
from pytest_perfdl.run.confirmation import PROFILED, Confirmation
from pytest_perfdl.run.measurement import Measurement
from pytest_perfdl.run.paired_rounds import Rounds, RoundSide
from pytest_perfdl.workers.channel import Shown
from pytest_perfdl.workers.checkout import Checkout

IDLE_SECONDS = 0.5
"""For which the machine is looked at before a lot."""


@dataclass(frozen=True)
class Lot:
    """Successive rounds of one cell and slowdown, as those of one test are."""

    cell: Cell
    share: float
    first: int
    """Number of its first round, among those of the workload, cell and slowdown."""
    numbers: Sequence[int]
    """Of the rounds that are still wanted, from 1 within the lot."""
    seed: int
    """Of its lots."""
    plant: dict[str, float]
    """What makes the working tree slower by this share."""


@dataclass(frozen=True)
class Jobs:
    """What one run of pytest measures."""

    workload: str
    test: str
    number: int
    project: str
    out: str
    lots: tuple[Lot, ...]

    @classmethod
    def read(cls, path: Path) -> Jobs:
        """From the file."""
        data = json.loads(path.read_text())
        lots = tuple(Lot(**{**each, "cell": Cell(**each["cell"])}) for each in data.pop("lots"))
        return cls(**data, lots=lots)


class Recorder(Confirmation):
    """What is asked to judge a test's times by rounds, and keeps them instead."""

    jobs: Jobs

    began = time.monotonic()
    """When the head's process had ended."""

    def of_code(
        self,
        found: Judgement,
        new: Record,
        base: Record,  # noqa: ARG002 (what is overridden has it)
        now: Record,  # noqa: ARG002
        checkout: Checkout,
        *,
        shown: tuple[Shown, Shown] | None,
        touched: frozenset[str] = frozenset(),  # noqa: ARG002
    ) -> Judgement:
        """Measure all lots; the judgement stays without one on times."""
        jobs, out = self.jobs, Path(self.jobs.out)
        # What came first: the head's process, then the base's, which ended just now.
        base_seconds = time.monotonic() - self.began
        head_seconds = new.occasions[-1].seconds or 0.0
        append_line(out, First(jobs.workload, jobs.number, time.time(), base_seconds, head_seconds))
        project = ScratchProject(Path(jobs.project))
        for lot in jobs.lots:
            self._measure_lot(lot, project, checkout, shown)
        return found

    def _measure_lot(
        self, lot: Lot, project: ScratchProject, checkout: Checkout, shown: tuple[Shown, Shown] | None
    ) -> None:
        settings = replace(
            self.context.settings,
            start="auto" if lot.cell.start == "forked" else "fresh",
            pin="auto" if lot.cell.pinned else "off",
        )
        context = replace(self.context, settings=settings)
        project.plant(lot.plant)
        try:
            idle = idle_load()
            with side_load(lot.cell.neighbor, lot.seed):
                sides = RoundSide("base", checkout), RoundSide("head", against=checkout)
                rounds = Rounds(context, self.test, *sides, seed=lot.seed, shown=shown)
                for number in lot.numbers:
                    self._keep(rounds, lot, number, idle)
        finally:
            project.restore()

    def _keep(self, rounds: Rounds, lot: Lot, number: int, idle: float | None) -> None:
        at, started, known = time.time(), time.monotonic(), len(rounds.results)
        measured = rounds.measure(number, profiled=number <= PROFILED)
        kept = Round(
            workload=self.jobs.workload,
            share=lot.share,
            number=lot.first + number - 1,
            at=at,
            order=measured.order,
            seconds=round(time.monotonic() - started, 4),
            base=_kept(measured.base),
            head=_kept(measured.head),
            cell=lot.cell,
            start=measured.start,
            core=measured.core,
            other_load=other_load(rounds.results[known:]),
            idle_load=idle,
        )
        append_line(Path(self.jobs.out), kept)


def _kept(metrics: Mapping[str, float]) -> dict[str, int]:
    """What is kept of a side's metrics: of steps that others feed no single one's time has a limit."""
    return {name: round(metrics[name]) for name in NAMES if name in metrics}


def other_load(results: Sequence[SideResult]) -> float | None:
    """Processors that others kept busy while these timed their steps, of those that they might use."""
    load = Load.joined([each.timed.load for each in results])
    return round(load.others, 3) if load is not None and load.is_telling else None


def idle_load() -> float | None:
    """Processors that others keep busy while nothing of this runs."""
    before = Busy.now()
    time.sleep(IDLE_SECONDS)
    after = Busy.now()
    load = after.since(before) if after is not None else None
    return None if load is None else round(load.others, 3)


def compared(measurement: Measurement) -> ComparisonResult:
    """The comparison of a test whose head's process has just ended."""
    Recorder.began = time.monotonic()
    return against_side(measurement)


def main(path: str) -> int:
    """Run pytest; its exit status."""
    jobs = Jobs.read(Path(path))
    Recorder.jobs = jobs
    # Trials make one of it where they judge times.
    setattr(comparison, "Confirmation", Recorder)  # noqa: B010 (a type checker would not have it)
    setattr(perf_test, "against_side", compared)  # noqa: B010
    report = Path(jobs.project).parent / "report"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--perf",
        "--perf-against=HEAD",
        "--perf-traces=none",
        "--perf-github=off",
    ]
    return pytest.main([*options, f"--perf-report={report}", jobs.test])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
