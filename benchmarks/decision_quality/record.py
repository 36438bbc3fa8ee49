"""Records step times to replay: processes by themselves and rounds of two that take turns, unchanged and slowed.

Everything is measured as the plugin does it: fresh processes under its pinned environment, one torch thread, its
own commands, the order of every round drawn by a coin. What is slowed busy-waits after every step for a share of
what the step just took. All runs come in one random order, so that the machine's drift meets all alike. Each is
kept as soon as it ends; started again, the script does only what is missing.

    python benchmarks/decision_quality/record.py             # half an hour and more, shows the time left
    python benchmarks/decision_quality/record.py --pack      # writes data/recorded.json.gz from what there is
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from measured import READY  # noqa: E402
from recording import PLUGIN_STEPS, Measured, Process, Round, Run, append_line, pack, read_lines  # noqa: E402

from pytest_perfdl.isolate.channel import pair  # noqa: E402
from pytest_perfdl.isolate.process import environment  # noqa: E402
from pytest_perfdl.judge.rounds import orders  # noqa: E402
from pytest_perfdl.measure.commands import MOST_WARMUP, TURNS, Finish, Settle, Settled, Time, Timed  # noqa: E402

WORKLOADS = ("transformer", "convnet")
SHARES = (0.03, 0.05, 0.10, 0.20)
LINES = ROOT / "perf-report" / "decision-quality.jsonl"
PACKED = HERE / "data" / "recorded.json.gz"
WARMUP = 15
BLOCK = 10
"""Steps of a block in a process by itself, so that four blocks are what the plugin times in a repeat."""
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """One run to be made."""

    kind: str
    workload: str
    share: float
    number: int

    @property
    def sort(self) -> tuple[str, str]:
        """What takes about the same time."""
        return self.kind, self.workload

    def __str__(self) -> str:
        return f"{self.kind} {self.workload} {self.share:+.0%} #{self.number + 1}"


def plan(options: argparse.Namespace) -> list[Task]:
    """Every run wanted, in an order that the seed decides."""
    wanted = {("process", 0.0): options.processes, ("round", 0.0): options.rounds}
    wanted |= {("process", share): options.slowed_processes for share in SHARES}
    wanted |= {("round", share): options.slowed_rounds for share in SHARES}
    tasks = [
        Task(kind, workload, share, number)
        for (kind, share), count in wanted.items()
        for workload in WORKLOADS
        for number in range(count)
    ]
    # Each has a key of its own, so that asking for more of them later does not change the others' order.
    return sorted(tasks, key=lambda task: random.Random(f"{options.seed} {task}").random())


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


def round_of(task: Task, seed: int) -> Round:
    """Measure two processes that take turns, in the plugin's blocks."""
    at, started = time.time(), time.monotonic()
    order = orders(random.Random(f"{seed} {task}").getrandbits(32), 1)[0]
    names = ("base", "head") if order == "base first" else ("head", "base")
    with contextlib.ExitStack() as both:
        sides = {
            name: both.enter_context(subject(task.workload, task.share if name == "head" else 0.0)) for name in names
        }
        warmup = {}
        for name, side in sides.items():
            assert side.ask() == READY
            warmup[name] = side.settle()
        timed: dict[str, list[Timed]] = {name: [] for name in names}
        for _ in range(TURNS):
            for name, side in sides.items():
                timed[name].append(side.time(1, PLUGIN_STEPS // TURNS))
        for side in sides.values():
            side.finish()
    seconds = time.monotonic() - started
    base, head = (Measured.of(warmup[name], timed[name]) for name in ("base", "head"))
    return Round(task.workload, task.share, task.number, at, order, seconds, base, head)


def task_of(run: Run) -> Task:
    """The task that a run fulfils."""
    return Task(type(run).__name__.lower(), run.workload, run.share, run.number)


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
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def left(todo: list[Task], runs: list[Run]) -> str:
    """The time that the rest will take, from runs of the same kind."""
    known: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        known[task_of(run).sort].append(run.seconds)
    means = {sort: sum(seconds) / len(seconds) for sort, seconds in known.items()}
    default = max(means.values(), default=6.0)
    return f"{sum(means.get(task.sort, default) for task in todo) / 60:.0f} min left"


def main() -> int:
    """Do what is missing, then pack."""
    options = arguments()
    runs = read_lines(options.out)
    if not options.pack:
        done = {task_of(run) for run in runs}
        todo = [task for task in plan(options) if task not in done]
        for position, task in enumerate(todo):
            run = process(task, options.steps) if task.kind == "process" else round_of(task, options.seed)
            append_line(options.out, run)
            runs.append(run)
            print(f"[{position + 1}/{len(todo)}] {task}: {run.seconds:.1f} s, {left(todo[position + 1 :], runs)}")
            sys.stdout.flush()
    size = pack(runs, machine(), options.packed)
    print(f"{options.packed}: {len(runs)} runs, {size / 1000:.0f} kB")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=60, metavar="N", help="unchanged processes a workload (60)")
    parser.add_argument("--slowed-processes", type=int, default=20, metavar="N", help="of each slowdown (20)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="unchanged rounds a workload (30)")
    parser.add_argument("--slowed-rounds", type=int, default=15, metavar="N", help="of each slowdown (15)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="timed steps of a process (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=LINES, metavar="FILE", help="where runs are kept")
    parser.add_argument("--packed", type=Path, default=PACKED, metavar="FILE", help="where they are packed")
    parser.add_argument("--pack", action="store_true", help="only pack what was recorded so far")
    options = parser.parse_args()
    if options.steps < PLUGIN_STEPS or options.steps % BLOCK:
        parser.error(f"--steps must be {PLUGIN_STEPS} or more, in tens")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; started again, it goes on from here")
