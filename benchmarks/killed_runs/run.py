"""Does a run that is killed at a random moment leave nothing behind, and lose nothing?

Each trial starts `pytest` with `--perf`, `--perf-update` or `--perf-against` on a small repository, and sends SIGKILL,
SIGTERM or SIGINT at a random moment to pytest, to a worker, to the setup command or to the guard of its processes.
See README.md for what must hold afterwards.

    python benchmarks/killed_runs/run.py --count 300 --log killed.jsonl
    python benchmarks/killed_runs/run.py --count 300 --log killed.jsonl     # goes on where it was stopped
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import kept

from pytest_perfdl.baseline import text
from pytest_perfdl.workers.checkout import clear, is_complete

GONE_SECONDS = 5.0
"""How long after a kill processes may still be there."""
END_SECONDS = 180.0
"""How long a run may go on that was not killed itself."""
MODES = {
    "perf": ("--perf",),
    "update": ("--perf-update=all",),
    "against": ("--perf-against=HEAD~1", "-o", "perf_against_setup=sh ./build.sh"),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TARGETS = {"pytest": 5, "worker": 3, "setup": 2, "guard": 1}
SHAPE = ("--perf-steps=4", "--perf-warmup=1", "--perf-repeats=1", "--perf-budget=1", "-q")
_UNTRACKED = ("__pycache__", ".pytest_cache", "perf-report", "baselines", ".git")

FILES = {
    "pytest.ini": "[pytest]\npythonpath = src\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\nperf-report/\n",
    "build.sh": "sleep 600 &\nsleep 1\necho built > built.txt\n",
    "src/demo/__init__.py": "def work():\n    import torch\n\n    return torch.ones({size}, {size}).sum()\n",
    "tests/perf/conftest.py": """
        import subprocess
        import pytest


        @pytest.fixture
        def helper():
            process = subprocess.Popen(["sleep", "600"])
            yield process
            process.kill()
            process.wait()
        """,
    "tests/perf/test_speed.py": """
        import pytest
        from demo import work


        @pytest.mark.perf(limits={"ops": 0})
        def test_work(perf, helper):
            perf(work)
        """,
}


@dataclass
class Trial:
    """What was done, and what was found wrong."""

    number: int
    mode: str
    target: str
    signal: str
    after: float
    """Seconds from the start to the signal."""
    hit: str = ""
    """What was hit: another than the target if that was not there."""
    code: int | None = None
    processes: int = 0
    """How many there were besides pytest."""
    gone: float = 0.0
    """Seconds until all of them were gone."""
    wrong: list[str] = field(default_factory=list)


class Project:
    """A repository with baselines, uncommitted work, and a worktree of its user's own."""

    def __init__(self, work: Path) -> None:
        self.root = work / "project"
        self.temporary = work / "tmp"
        self.temporary.mkdir(parents=True)
        self.root.mkdir()
        self._git("init", "--quiet")
        self._git("config", "user.email", "author@example.org")
        self._git("config", "user.name", "Author")
        for size in (8, 16):
            for name, content in FILES.items():
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(textwrap.dedent(content).lstrip().replace("{size}", str(size)))
            self._git("add", "--all")
            self._git("commit", "--quiet", "-m", f"size {size}")
        self._git("worktree", "add", "--quiet", "--detach", str(work / "of-the-user"), "HEAD~1")
        done = subprocess.run(self.command("update"), cwd=self.root, env=self.environment(""), check=False)
        assert done.returncode == 0, "the project cannot be measured"
        self._git("add", "--all")
        self._git("commit", "--quiet", "-m", "baselines")
        (self.root / "tests/perf/notes.txt").write_text("not committed\n")
        (self.root / "src/demo/__init__.py").open("a").write("# not committed\n")
        self._baselines = work / "baselines"
        shutil.copytree(self.root / "baselines", self._baselines)
        self.users = self._state()

    def command(self, mode: str, *more: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-pperfdl", *MODES[mode], *SHAPE, *more]

    def environment(self, mark: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GIT_"))}
        return kept | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "PERFDL_KILLED_RUN": mark,
        }

    def reset(self) -> None:
        """The baselines as they were."""
        shutil.rmtree(self.root / "baselines", ignore_errors=True)
        shutil.copytree(self._baselines, self.root / "baselines")

    def left(self) -> list[str]:
        """What a next start must have removed."""
        git_folder = self.root / ".git"
        found = [path for path in self.temporary.iterdir() if "pytest-of-" not in path.name]
        # A checkout that was set up to its end stays for later runs, on purpose.
        found += [path for path in (git_folder / "perfdl").glob("*") if not is_complete(path)]
        clear(self.root)
        found += [git_folder / "perfdl"] if (git_folder / "perfdl").exists() else []
        found += [path for path in (git_folder / "worktrees").iterdir() if path.name != "of-the-user"]
        found += git_folder.glob("*.lock")
        found += (self.root / "baselines").rglob(".*")
        return [f"left: {path}" for path in found]

    def changed(self) -> list[str]:
        """What of the user's is other than before."""
        now, before = self._state(), self.users
        return [f"changed: {name}" for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)]

    def torn(self) -> list[str]:
        """Baselines that are neither the old nor whole new ones."""
        found = []
        for old in self._baselines.rglob("*.*"):
            path = self.root / "baselines" / old.relative_to(self._baselines)
            try:
                data = path.read_bytes()
                if data != old.read_bytes():
                    json.loads(gzip.decompress(data)) if path.name.endswith(".gz") else text.parse(data)
            except Exception as error:
                found.append(f"torn: {path}: {error!r}")
        return found

    def _state(self) -> dict[str, str]:
        state = {
            "git worktree list": self._git("worktree", "list", "--porcelain"),
            "git status": self._git("status", "--porcelain", "--", ".", ":!baselines"),
            "git refs": self._git("for-each-ref"),
            "git head": self._git("rev-parse", "HEAD"),
            "git index": self._git("ls-files", "--stage"),
            "git folder": " ".join(sorted(path.name for path in (self.root / ".git").iterdir())),
        }
        for folder, names, files in os.walk(self.root):
            names[:] = [name for name in names if name not in _UNTRACKED]
            for path in (Path(folder, file) for file in files):
                state[str(path.relative_to(self.root))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return state

    def _git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same id by its start."""

    pid: int
    started: str
    parent: int = field(compare=False)
    command: str = field(compare=False)

    @property
    def role(self) -> str:
        if "pytest_perfdl.workers.worker" in self.command:
            return "worker"
        if "build.sh" in self.command:
            return "setup"
        return "guard" if "trap" in self.command else "other"


def processes() -> dict[int, Process]:
    """All that run, without those that have ended and are not waited for."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if fields[0] not in "ZX":
                found[int(folder.name)] = Process(int(folder.name), fields[19], int(fields[1]), command)
    return found


def descendants(of: int) -> set[Process]:
    """All that a process has started, as far as their parents still live."""
    every = processes()
    known = {of}
    while more := {each.pid for each in every.values() if each.parent in known} - known:
        known |= more
    return {every[pid] for pid in known - {of} if pid in every}


def marked(mark: str) -> set[Process]:
    """All whose environment bears a mark."""
    sign = f"PERFDL_KILLED_RUN={mark}\0".encode()
    found = set()
    for pid, each in processes().items():
        try:
            if sign in (Path(f"/proc/{pid}/environ").read_bytes() + b"\0"):
                found.add(each)
        except OSError:
            continue
    return found


def run(project: Project, trial: Trial, draw: random.Random, log: Path) -> None:
    """One trial, from a run's start to the look at what is left after the next."""
    mark = f"{os.getpid()}-{trial.number}-{draw.random()}"
    with log.with_suffix(".out").open("wb") as output:
        process = subprocess.Popen(
            project.command(trial.mode),
            cwd=project.root,
            env=project.environment(mark),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    seen: set[Process] = set()
    end = time.monotonic() + trial.after
    while time.monotonic() < end and process.poll() is None:
        time.sleep(min(0.1, max(0.0, end - time.monotonic())))
        seen |= descendants(process.pid)
    # A target that is not there yet is waited for.
    victim = None
    while process.poll() is None:
        seen |= descendants(process.pid)
        those = sorted((each for each in descendants(process.pid) if each.role == trial.target), key=lambda it: it.pid)
        if trial.target == "pytest" or those:
            victim = process.pid if trial.target == "pytest" else draw.choice(those).pid
            break
        time.sleep(0.02)
    trial.hit = trial.target if victim is not None else "nothing: it had ended"
    number = signal.Signals[trial.signal]
    if victim is not None:
        try:
            os.kill(victim, number)
        except ProcessLookupError:
            trial.hit = "nothing: it had ended"
    try:
        if not (victim == process.pid and number == signal.SIGKILL):
            limit = time.monotonic() + END_SECONDS
            while process.poll() is None and time.monotonic() < limit:
                seen |= descendants(process.pid)
                time.sleep(0.1)
        trial.code = process.wait(GONE_SECONDS)
    except subprocess.TimeoutExpired:
        trial.wrong.append("pytest does not end")
        process.kill()
        process.wait()
    trial.processes = len(seen)
    since = time.monotonic()
    while alive := marked(mark) | (seen & set(processes().values())):
        if time.monotonic() > since + GONE_SECONDS:
            trial.wrong += [f"alive: {each.pid} {each.command[:200]}" for each in alive]
            for each in alive:
                os.kill(each.pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    trial.gone = round(time.monotonic() - since, 2)
    trial.wrong += project.torn()
    after = subprocess.run(
        project.command("perf", "-k", "none_of_that_name"),
        cwd=project.root,
        env=project.environment(""),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if after.returncode != 5:
        trial.wrong.append(f"the next start ended with {after.returncode}: {after.stdout[-500:]}")
    trial.wrong += project.left() + project.changed()
    project.reset()


def main() -> int:
    """Run the trials that the log does not hold yet; 1 if anything was wrong in any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="trials in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (%(default)s)")
    parser.add_argument("--log", type=Path, default=Path("killed_runs.jsonl"), help="a line of JSON for each trial")
    parser.add_argument("--longest", type=float, default=8.0, help="latest moment of a signal, in seconds")
    arguments = parser.parse_args()
    done = kept.read(arguments.log)
    with tempfile.TemporaryDirectory(prefix="killed-runs-") as work:
        project = Project(Path(work))
        for number in range(len(done), arguments.count):
            draw = random.Random(f"{arguments.seed}-{number}")
            mode = draw.choice(list(MODES))
            targets = {name: weight for name, weight in TARGETS.items() if name != "setup" or mode == "against"}
            trial = Trial(
                number,
                mode,
                *draw.choices(list(targets), list(targets.values())),
                draw.choice(SIGNALS).name,
                round(draw.uniform(0, arguments.longest), 3),
            )
            run(project, trial, draw, arguments.log)
            done.append(asdict(trial))
            kept.keep(arguments.log, done[-1])
            if trial.wrong:
                print(json.dumps(done[-1]), flush=True)
                arguments.log.with_suffix(".out").replace(arguments.log.with_suffix(f".{number}.out"))
    for what in ("mode", "hit", "signal"):
        print(what, dict(Counter(each[what] for each in done)))
    wrong = [each for each in done if each["wrong"]]
    longest = max(each["gone"] for each in done)
    print(f"{len(wrong)} of {len(done)} trials found something wrong; gone after at most {longest} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
