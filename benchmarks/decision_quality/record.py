"""Records step times to replay: rounds of two processes that take turns, and processes by themselves.

Rounds are those of `pytest --perf` itself (`lots.py`): forked or started, bound to a core or free, alone or beside a
neighbor that uses a processor for 30 % of the time; of one workload in all of these cells, of two more in the two
extremes. Processes by themselves are what other tools compare: fresh ones under the plugin's pinned environment, one
torch thread, timed by its own commands. Both are unchanged or slowed by a share of what a step takes.

All come in one random order, so that the machine's drift meets all alike, and a part of the recording is like the
whole: rounds in lots of some successive ones, as a test has them, and these in runs of pytest of some lots. Every round
is kept as soon as it ends; started again, the script does only what neither its lines nor the packed file have.

    python benchmarks/decision_quality/record.py --plan      # how much there is to do
    python benchmarks/decision_quality/record.py             # hours, shows the time left
    python benchmarks/decision_quality/record.py --pack      # writes data/recorded.json.gz from what there is so far
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from common import kept, projects
from lots import Jobs, Lot
from measured import READY
from recording import (
    PLUGIN_STEPS,
    RUN_SECONDS,
    Cell,
    First,
    Measured,
    Process,
    Round,
    Run,
    append_line,
    pack,
    read_lines,
    unpack,
)
from scratch_project import ScratchProject

from pytest_perfdl.judge.round_data import Start
from pytest_perfdl.measure.commands import Finish, Settle, Settled, Time, Timed
from pytest_perfdl.measure.sizes import MOST_WARMUP
from pytest_perfdl.workers.channel import pair
from pytest_perfdl.workers.process import environment

NEIGHBOR = 0.3
STARTS: tuple[Start, ...] = ("forked", "started")
CELLS = tuple(Cell(*each) for each in product(STARTS, (True, False), (0.0, NEIGHBOR)))
EXTREMES = (Cell("forked", True, 0.0), Cell("started", False, NEIGHBOR))
"""The best and the worst of them. Where the plugin would not bind a workload to a core, the first is free too."""
WORKLOADS: Mapping[str, tuple[Cell, ...]] = {"transformer": CELLS, "convnet": EXTREMES, "loader": EXTREMES}
"""What is recorded, and in which cells its rounds are."""
SHARES = (0.03, 0.05, 0.10)
LINES = ROOT / "perf-report" / "decision-quality.jsonl"
PACKED = HERE / "data" / "recorded.json.gz"
ROUNDS_OF_A_LOT = 4
"""What a test of unchanged code takes."""
LOTS_OF_A_RUN = 12
"""Of pytest, which begins with a process of each side and a checkout."""
WARMUP = 15
BLOCK = 10
"""Steps of a block in a process by itself, so that four blocks are what the plugin times in a repeat."""
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """A process or a round to be measured."""

    kind: str
    workload: str
    share: float
    number: int
    cell: Cell | None = None
    """Of a round."""

    @property
    def sort(self) -> tuple[object, ...]:
        """What takes about the same time."""
        return self.kind, self.workload, self.cell

    def __str__(self) -> str:
        where = f" ({self.cell})" if self.cell else ""
        return f"{self.kind} {self.workload}{where} {self.share:+.0%} #{self.number + 1}"


@dataclass(frozen=True)
class Batch:
    """What is measured in one go: lots of rounds of one workload, or one process."""

    tasks: tuple[Task, ...]
    number: int = 0
    """Of a run of pytest, among those of its workload."""


def plan(options: argparse.Namespace) -> list[Batch]:
    """Everything wanted, in an order that the seed decides."""
    batches = []
    for workload in options.workload:
        lots = [
            tuple(
                Task("round", workload, share, number, cell)
                for number in range(first, min(first + ROUNDS_OF_A_LOT, count))
            )
            for cell in WORKLOADS[workload]
            if str(cell).startswith(tuple(options.cell))
            for share, count in ((0.0, options.rounds), *((share, options.slowed_rounds) for share in options.share))
            for first in range(0, count, ROUNDS_OF_A_LOT)
        ]
        lots.sort(key=lambda lot: _random(options.seed, lot[0]).random())
        runs = [lots[start : start + LOTS_OF_A_RUN] for start in range(0, len(lots), LOTS_OF_A_RUN)]
        batches += [Batch(tuple(task for lot in run for task in lot), number) for number, run in enumerate(runs)]
        wanted = ((0.0, options.processes), *((share, options.slowed_processes) for share in options.share))
        batches += [
            Batch((Task("process", workload, share, number),)) for share, count in wanted for number in range(count)
        ]
    return sorted(batches, key=lambda batch: _random(options.seed, batch.tasks[0]).random())


def _random(seed: int, what: object) -> random.Random:
    return random.Random(f"{seed} {what}")


def lots_of(tasks: Sequence[Task], seed: int) -> tuple[Lot, ...]:
    """Rounds that are still to be measured as lots, in their order."""
    found: dict[Task, list[int]] = {}
    for task in tasks:
        within = task.number % ROUNDS_OF_A_LOT
        first = Task(task.kind, task.workload, task.share, task.number - within, task.cell)
        found.setdefault(first, []).append(within + 1)
    return tuple(
        Lot(_cell(first), first.share, first.number, numbers, _random(seed, first).getrandbits(32), _plant(first))
        for first, numbers in found.items()
    )


def _cell(task: Task) -> Cell:
    assert task.cell is not None
    return task.cell


def _plant(task: Task) -> dict[str, float]:
    """What makes the scratch project slower by a task's share."""
    if not task.share:
        return {}
    return {"TRANSFORM": task.share} if task.workload == "loader" else {"EVERY": 1, "EXTRA": task.share}


def measure_rounds(batch: Sequence[Task], number: int, project: Path, options: argparse.Namespace) -> None:
    """Run pytest once for some rounds of one workload; it keeps them.

    Raises
    ------
    SystemExit
        When it did not measure all of them; what there is stays.
    """
    workload = batch[0].workload
    lots = lots_of(batch, options.seed)
    jobs = Jobs(workload, f"tests/test_recorded.py::test_{workload}", number, str(project), str(options.out), lots)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(asdict(jobs), file)
        file.flush()
        variables = projects.environment("PYTEST_", "GITHUB_", "PYTHONDONTWRITEBYTECODE")
        command = [sys.executable, str(HERE / "lots.py"), file.name]
        done = subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=False, timeout=RUN_SECONDS
        )
    missing = {*batch} - {task_of(run) for run in read_lines(options.out)}
    if missing:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        sys.exit(f"{' '.join(command)} left out {len(missing)} of {len(batch)} rounds:\n{tail}")


class Subject:
    """A measured process, from start to end."""

    def __init__(self, workload: str, share: float) -> None:
        self._channel, theirs = pair()
        self.started = time.monotonic()
        command = [sys.executable, str(HERE / "measured.py"), workload, str(share), str(theirs.fileno())]
        with theirs:
            # A group of its own, like the plugin's workers: what others did is told from what the group did.
            self._process = subprocess.Popen(
                command, env=environment(1), pass_fds=(theirs.fileno(),), start_new_session=True
            )

    def ask(self, command: object = None) -> Any:
        """Send a command, unless there is none, and wait for the answer."""
        if command is not None:
            self._channel.send(command)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        return self._channel.receive(alive=lambda: self._process.poll() is None, deadline=deadline)

    def settle(self) -> int:
        """Warm up as the plugin does; the number of steps that this took."""
        answer = self.ask(Settle(WARMUP, WARMUP * MOST_WARMUP, 5))
        assert isinstance(answer, Settled)
        return answer.steps

    def time(self, blocks: int, block: int) -> Timed:
        """Time so many blocks of steps."""
        answer = self.ask(Time(blocks, block))
        assert isinstance(answer, Timed)
        return answer

    def finish(self) -> None:
        """End in good order."""
        self.ask(Finish())
        self._process.wait(TIMEOUT_SECONDS)

    def close(self) -> None:
        """End now."""
        self._process.kill()
        self._process.wait()
        self._channel.close()


@contextlib.contextmanager
def subject(workload: str, share: float) -> Iterator[Subject]:
    """A process that is gone afterwards, whatever happens."""
    made = Subject(workload, share)
    try:
        yield made
    finally:
        made.close()


def process(task: Task, steps: int) -> Process:
    """Measure one process by itself."""
    at = time.time()
    with subject(task.workload, task.share) as one:
        assert one.ask() == READY
        start_seconds = time.monotonic() - one.started
        warmup = one.settle()
        timed = one.time(steps // BLOCK, BLOCK)
        one.finish()
        seconds = time.monotonic() - one.started
    measured = Measured.of(warmup, [timed])
    return Process(task.workload, task.share, task.number, at, start_seconds, seconds, measured)


def task_of(run: Run) -> Task | None:
    """The task that a run fulfils, if it is one by itself."""
    if isinstance(run, First):
        return None
    cell = run.cell if isinstance(run, Round) else None
    return Task(type(run).__name__.lower(), run.workload, run.share, run.number, cell)


def recorded(options: argparse.Namespace) -> list[Run]:
    """What there is so far: what was packed, perhaps on another day, and what was kept since."""
    packed = unpack(options.packed)[1] if options.packed.exists() else []
    known = {(type(run), run.at) for run in packed}
    return [*packed, *(run for run in read_lines(options.out) if (type(run), run.at) not in known)]


def machine() -> dict[str, Any]:
    """Where this was recorded."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def left(todo: Sequence[Task], runs: Sequence[Run]) -> float:
    """Seconds that the rest will take, from what was measured of the same sort."""
    known: dict[tuple[object, ...], list[float]] = defaultdict(list)
    firsts: list[float] = []
    for run in runs:
        task = task_of(run)
        if task is not None and not isinstance(run, First):
            known[task.sort].append(run.seconds)
        elif isinstance(run, First):
            firsts.append(run.base_seconds + run.head_seconds)
    means = {sort: sum(seconds) / len(seconds) for sort, seconds in known.items()}
    default = max(means.values(), default=6.0)
    rounds = sum(task.kind == "round" for task in todo)
    # A run of pytest: the first processes, starting it, and the checkout.
    begun = (sum(firsts) / len(firsts) if firsts else 10.0) + 5.0
    begun = begun / LOTS_OF_A_RUN + 0.5
    return sum(means.get(task.sort, default) for task in todo) + rounds / ROUNDS_OF_A_LOT * begun


def main() -> int:
    """Do what is missing, then pack."""
    options = arguments()
    runs = recorded(options)
    done = {task_of(run) for run in runs}
    batches = [(tuple(task for task in batch.tasks if task not in done), batch.number) for batch in plan(options)]
    batches = [(tasks, number) for tasks, number in batches if tasks]
    todo = [task for tasks, _ in batches for task in tasks]
    if options.plan:
        kinds: dict[str, int] = defaultdict(int)
        for task in todo:
            kinds[
                f"{'rounds' if task.cell else 'processes'} of {task.workload}"
                + (f" ({task.cell})" if task.cell else "")
            ] += 1
        for kind, count in kinds.items():
            print(f"{count:6} {kind}")
        print(f"about {kept.duration(left(todo, runs))}, as far as what was recorded tells")
        return 0
    if not options.pack:
        measure(batches, options)
        runs = recorded(options)
    size = pack(runs, machine(), options.packed)
    print(f"{options.packed}: {len(runs)} runs, {size / 1000:.0f} kB")
    return 0


def measure(batches: Sequence[tuple[tuple[Task, ...], int]], options: argparse.Namespace) -> None:
    """Measure all batches, and say how far that is."""
    total, count = sum(len(tasks) for tasks, _ in batches), 0
    with tempfile.TemporaryDirectory(prefix="perfdl-recording-") as folder:
        project = ScratchProject(Path(folder) / "project")
        for position, (tasks, number) in enumerate(batches):
            if tasks[0].kind == "process":
                append_line(options.out, process(tasks[0], options.steps))
            else:
                measure_rounds(tasks, number, project.folder, options)
            count += len(tasks)
            rest = [task for later, _ in batches[position + 1 :] for task in later]
            more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
            print(
                f"[{count}/{total}] {tasks[0]}{more}, {kept.duration(left(rest, recorded(options)))} left", flush=True
            )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="only these")
    parser.add_argument("--cell", nargs="+", default=[""], metavar="NAME", help="only cells that begin so (--plan)")
    parser.add_argument(
        "--share", nargs="+", type=float, choices=SHARES, default=SHARES, help="only these slowdowns, beside unchanged"
    )
    parser.add_argument("--rounds", type=int, default=80, metavar="N", help="unchanged rounds of a cell (80)")
    parser.add_argument("--slowed-rounds", type=int, default=60, metavar="N", help="of each slowdown (60)")
    parser.add_argument("--processes", type=int, default=60, metavar="N", help="unchanged processes a workload (60)")
    parser.add_argument("--slowed-processes", type=int, default=20, metavar="N", help="of each slowdown (20)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="timed steps of a process (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=LINES, metavar="FILE", help="where runs are kept")
    parser.add_argument("--packed", type=Path, default=PACKED, metavar="FILE", help="where they are packed")
    parser.add_argument("--pack", action="store_true", help="only pack what was recorded so far")
    parser.add_argument("--plan", action="store_true", help="only say what is missing and how long it will take")
    options = parser.parse_args()
    if options.steps < PLUGIN_STEPS or options.steps % BLOCK:
        parser.error(f"--steps must be {PLUGIN_STEPS} or more, in tens")
    options.out = options.out.resolve()
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; started again, it goes on from here")
