"""Do commands that are killed at a random moment leave nothing behind, and lose nothing?

As `run.py`, for `perfdl bisect`, `bisect --environments`, `baseline rename`, `refresh`, `ci comment` and tests with
ranks. After the kill, what the command writes is old or new, never torn; after the next start of the same command
nothing is left, the user's files (and both environments) are as before, and the quick commands come to their end.

    python benchmarks/killed_runs/commands.py --count 200 --log commands.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [*(str(ROOT / name) for name in ("benchmarks/killed_runs", "benchmarks", "tests")), str(ROOT)]

from common import kept
from plugin.project import environment
from run import FILES, GONE_SECONDS, Project, descendants, marked, processes
from unit.ci.fake_github import REPOSITORY, TOKEN, FakeGitHub, running
from unit.report import runs as made
from unit.runs.refresh.nights import STORED, UPGRADED, night

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.results.run_file import dump, to_json
from pytest_perfdl.workers.checkout import clear

OPTIONS = ("--", "--perf-steps=4", "--perf-warmup=1", "--perf-budget=2")
LATEST = {"rename": 3.0, "refresh": 6.0, "comment": 5.0, "ranks": 12.0, "bisect": 15.0, "environments": 15.0}
"""Latest moment of a signal, in seconds."""
WEIGHTS = {"rename": 5, "refresh": 4, "comment": 4, "ranks": 3, "bisect": 3, "environments": 3}
QUICK = ("rename", "refresh", "comment")
MANY = 40
EVERY = 8
"""After so many kills of the slow commands, one runs to its end."""
RANKS = """
import pytest
import torch


@pytest.mark.perf(ranks=2)
def test_ranks(perf):
    import torch.distributed as dist

    x = torch.ones(64)

    def step():
        dist.all_reduce(x)

    perf(step)
"""
ENVIRONMENT = """
import pytest
import kernels
import torch


@pytest.mark.perf
def test_work(perf):
    x = torch.ones(64, 64)
    perf(lambda: kernels.work(x))
"""


@dataclass
class Trial:
    """What was done, and what was found wrong."""

    number: int
    mode: str
    after: float
    """Seconds from the start to the signal."""
    ended: bool = False
    """Whether the command had come to its end before."""
    wrong: list[str] = field(default_factory=list)


class Commands:
    """The commands of one project, and what must hold after each."""

    def __init__(self, work: Path, github: FakeGitHub) -> None:
        self.work, self.github = work, github
        self.project = Project(work)
        self.nights = work / "nights"
        self._many(self.nights)
        (self.project.root / "tests/ranks").mkdir()
        (self.project.root / "tests/ranks/test_ranks.py").write_text(RANKS)
        self.environments = work / "environments"
        self.environments.mkdir()
        for name, times in (("old", 1), ("new", 4)):
            source = f"import torch\n\ndef work(x):\n    for _ in range({times}):\n        x = x + 1\n    return x\n"
            environment(self.environments / name, kernels=(str(times), source))
        (self.project.root / "tests/env").mkdir()
        (self.project.root / "tests/env/test_env.py").write_text(ENVIRONMENT)
        self.project.users = self.project._state()
        self.before = self._hashes(self.environments)

    def _many(self, folder: Path) -> None:
        """A project with many baselines, and a night in another environment in which all of them are updated."""
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        store, results = Store(folder, "baselines"), []
        for number in range(MANY):
            test = f"tests/test_gpt.py::test_step[{number}]"
            store.save(replace(STORED, test=test), {"": b"\x1f\x8bno picture"} if number % 2 else {})
            result = night(1, 0.02, context=UPGRADED).result
            results.append(
                replace(
                    result,
                    id=test,
                    judgement=replace(result.judgement, test=test),
                    new=replace(result.new, test=test),
                    base=store.load(test, STORED.key.slug),
                    base_now=replace(result.base_now, test=test),
                )
            )
        (folder / "run.json").write_bytes(dump(to_json(made.run(*results))))
        shutil.copytree(folder / "baselines", self.work / "of-nights")

    @staticmethod
    def _hashes(folder: Path) -> dict[str, str]:
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def command(self, mode: str) -> tuple[list[str], Path]:
        """Its words, and where it runs."""
        perfdl = [sys.executable, "-m", "pytest_perfdl.cli"]
        old, new = (str(self.environments / name / "bin/python") for name in ("old", "new"))
        log = str(self.work / f"{mode}.jsonl")
        test = "tests/perf/test_speed.py::test_work"
        words: dict[str, list[str]] = {
            "rename": [*perfdl, "baseline", "rename", "tests/test_gpt.py", "tests/test_new.py"],
            "refresh": [*perfdl, "refresh", "run.json"],
            "comment": [*perfdl, "ci", "comment", "run.json", "--pr", "7"],
            "ranks": self.project.command("perf", "tests/ranks", "--perf-memory=off"),
            "bisect": [*perfdl, "bisect", "--log", log, "HEAD~2", "HEAD", test, *OPTIONS],
            "environments": [
                *(*perfdl, "bisect", "--environments", old, new),
                *("tests/env/test_env.py::test_work", *OPTIONS),
            ],
        }
        return words[mode], self.nights if mode in QUICK else self.project.root

    def start(self, mode: str, mark: str, output: Any) -> subprocess.Popen[bytes]:
        words, folder = self.command(mode)
        more = {"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": self.github.url}
        return subprocess.Popen(
            words,
            cwd=folder,
            env=self.project.environment(mark) | more,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def torn(self, mode: str) -> list[str]:
        """What the command left half-written, or lost."""
        if mode == "comment":
            whole = [each for each in self.github.comments if "\n" in each["body"]]
            bad = len(self.github.comments) > 1 or len(whole) != len(self.github.comments)
            return ["more than one comment, or a torn one"] if bad else []
        if mode in ("bisect", "environments"):
            log = self.work / f"{mode}.jsonl"
            lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
            for line in lines:
                json.loads(line)
        if mode == "environments":
            return [] if self._hashes(self.environments) == self.before else ["an environment was changed"]
        if mode not in ("rename", "refresh"):
            return self.project.torn()
        found, store = [], Store(self.nights, "baselines")
        for number in range(MANY):
            name = f"test_gpt.py::test_step[{number}]"
            records = [store.load(f"tests/{each}", STORED.key.slug) for each in (name, name.replace("gpt", "new"))]
            if not any(records):
                found.append(f"lost: {name}")
        pictures = list((self.nights / "baselines").rglob("*.trace.json.gz"))
        if mode == "rename" and len({path.name for path in pictures}) < MANY // 2:
            found.append("lost: a trace")
        return found

    def after_next(self, mode: str) -> list[str]:
        """What is wrong after the same command was started once more."""
        with (self.work / "next.out").open("wb") as output:
            code = self.start(mode, "", output).wait(600)
        found = []
        said = (self.work / "next.out").read_text(errors="replace")
        if code not in ((0,) if mode in ("refresh", "comment") else (0, 1, 2, 3)):
            found.append(f"the next start ended with {code}: {said[-300:]}")
        if "Traceback" in said:
            found.append(f"a traceback: {said[-600:]}")
        if mode == "comment" and len(self.github.comments) != 1:
            found.append(f"{len(self.github.comments)} comments")
        if mode == "rename":
            there = sorted(path.name for path in (self.nights / "baselines").rglob("*.json") if "test_gpt" in str(path))
            store = Store(self.nights, "baselines")
            new = [store.load(f"tests/test_new.py::test_step[{number}]", STORED.key.slug) for number in range(MANY)]
            if there or not all(new):
                found.append(f"renamed in part: {there}")
        if mode in ("rename", "refresh"):
            found += [f"left: {path}" for path in (self.nights / "baselines").rglob(".*")]
        return found

    def reset(self, mode: str) -> None:
        if mode in ("rename", "refresh"):
            shutil.rmtree(self.nights / "baselines", ignore_errors=True)
            shutil.copytree(self.work / "of-nights", self.nights / "baselines")
        self.github.comments.clear()
        if random.random() < 0.3:
            (self.work / f"{mode}.jsonl").unlink(missing_ok=True)


def trial(commands: Commands, one: Trial) -> None:
    """One kill, and the look at what is left."""
    mark = f"{os.getpid()}-{one.number}"
    with (commands.work / "out").open("wb") as output:
        process = commands.start(one.mode, mark, output)
    seen, end = set(), time.monotonic() + one.after
    while time.monotonic() < end and process.poll() is None:
        time.sleep(min(0.05, max(0.0, end - time.monotonic())))
        seen |= descendants(process.pid)
    one.ended = process.poll() is not None
    process.kill()
    process.wait()
    since = time.monotonic()
    while alive := marked(mark) | (seen & set(processes().values())):
        if time.monotonic() > since + 2 * GONE_SECONDS:
            one.wrong += [f"alive: {each.pid} {each.command[:200]}" for each in alive]
            for each in alive:
                os.kill(each.pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    one.wrong += commands.torn(one.mode)
    if one.mode in QUICK or one.number % EVERY == 0:
        one.wrong += commands.after_next(one.mode)
    if one.mode in QUICK:
        one.wrong += commands.project.left()
    else:
        # Each command removes what its own kind left, at the end below; and its checkouts may stay.
        clear(commands.project.root)
    one.wrong += commands.project.changed()
    commands.reset(one.mode)


def main() -> int:
    """Run the trials that the log does not hold yet; 1 if anything was wrong in any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="trials in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=sorted(WEIGHTS), help="these commands")
    parser.add_argument("--log", type=Path, default=Path("killed_commands.jsonl"), help="a line of JSON for each trial")
    arguments = parser.parse_args()
    done = kept.read(arguments.log)
    weights = {name: weight for name, weight in WEIGHTS.items() if name in (arguments.only or WEIGHTS)}
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="killed-commands-"))
        github = FakeGitHub()
        stack.enter_context(running(github))
        # Others that measure on this machine need not be waited for: nothing here is judged.
        FILES["pytest.ini"] += "perf_device_lock = off\n"
        commands = Commands(Path(work), github)
        for number in range(len(done), arguments.count):
            draw = random.Random(f"{arguments.seed}-{number}")
            (mode,) = draw.choices(list(weights), list(weights.values()))
            one = Trial(number, mode, round(draw.uniform(0.1, LATEST[mode]), 3))
            trial(commands, one)
            done.append(asdict(one))
            kept.keep(arguments.log, done[-1])
            if one.wrong:
                print(json.dumps(done[-1]), flush=True)
        last = [f"{mode}: {each}" for mode in weights for each in commands.after_next(mode)] + commands.project.left()
        print(f"after all commands ran to their ends: {last or 'nothing left'}")
    print(dict(Counter(each["mode"] for each in done)), f"{sum(each['ended'] for each in done)} had ended before")
    wrong = [each for each in done if each["wrong"]]
    print(f"{len(wrong)} of {len(done)} trials found something wrong")
    return bool(wrong or last)


if __name__ == "__main__":
    sys.exit(main())
