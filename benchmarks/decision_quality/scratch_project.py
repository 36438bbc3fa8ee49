"""The project that trials run in: a git repository with a package, perf tests and committed baselines."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEMPLATE = HERE / "scratch"
PLANT = Path("src/trial_package/plant.py")
TRIALS = "tests/test_speed.py"
"""The perf tests of trials; the others are those that rounds are recorded of."""
TIMEOUT_SECONDS = 3600.0
_STAMPS = itertools.count(int(time.time()) - 10**8)
_AUTHOR = ("-c", "user.name=trials", "-c", "user.email=trials@example.org", "-c", "commit.gpgsign=false")


class ProjectError(RuntimeError):
    """pytest did not measure, or git failed; the message holds what they said."""


class ScratchProject:
    """One such repository; a folder that holds one already is taken as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / ".git").exists():
            ignored = shutil.ignore_patterns("__pycache__", "gitignore")
            shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=ignored)
            shutil.copy(TEMPLATE / "gitignore", folder / ".gitignore")
            self.git("init", "--quiet")
            self.commit("The code")
        self.restore()

    def git(self, *arguments: str) -> str:
        """Run git in it.

        Raises
        ------
        ProjectError
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", *_AUTHOR, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProjectError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def commit(self, message: str) -> None:
        """Commit everything there is."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)

    def restore(self) -> None:
        """The code as it was committed."""
        self.git("checkout", "--quiet", "--", str(PLANT))
        self._age()

    def _age(self) -> None:
        """Give the planted file a time of its own: equal ones, and equal sizes, would pass for what was compiled."""
        stamp = next(_STAMPS)
        os.utime(self.folder / PLANT, (stamp, stamp))

    def plant(self, values: Mapping[str, float]) -> None:
        """Make the working tree slower than what is committed.

        Raises
        ------
        KeyError
            For a name that is not in the template.
        """
        text = (TEMPLATE / PLANT).read_text()
        for name, value in values.items():
            text, found = re.subn(rf"^( *){name} = .*$", rf"\g<1>{name} = {value!r}", text, flags=re.MULTILINE)
            if not found:
                raise KeyError(name)
        (self.folder / PLANT).write_text(text)
        self._age()

    @property
    def recorded(self) -> bool:
        """Whether it has baselines."""
        return any((self.folder / "baselines").rglob("*.json"))

    def record(self, repeats: int) -> None:
        """Write and commit baselines, or add repeats of this occasion to those that are there.

        Raises
        ------
        ProjectError
        """
        mode = "append" if self.recorded else "all"
        self.pytest(f"--perf-update={mode}", f"--perf-repeats={repeats}", TRIALS)
        self.commit("Baselines" if mode == "all" else "Baselines of another occasion")

    def pytest(self, *arguments: str) -> list[dict[str, Any]]:
        """Run pytest; the run file's tests.

        Raises
        ------
        ProjectError
            When it ended with anything but passed or failed tests, or wrote no run file.
        """
        with tempfile.TemporaryDirectory() as report:
            found = Path(report) / "run.json"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--perf-json={found}"]
            command += [f"--perf-report={report}", "--perf-traces=none", "--perf-github=off", *arguments]
            done = _run(command, self.folder)
            if done.returncode not in (0, 1) or not found.exists():
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
                raise ProjectError(f"{' '.join(command)}\nended with exit status {done.returncode}:\n{tail}")
            tests: list[dict[str, Any]] = json.loads(found.read_text())["tests"]
        return tests


class ExamplesProject(ScratchProject):
    """This repository's examples, and README's test, in a repository of their own.

    `plant` takes "commit", which commits a change of whitespace in modules that the examples load, and "forward",
    which gives README's step so many forward passes more.
    """

    readme = "tests/test_speed.py::test_train_step"
    examples = (
        "examples/test_gpt.py::test_train_step",
        "examples/test_convnet.py::test_classify",
        "examples/test_dlrm.py::test_train_step",
        "examples/test_transformers.py::test_train_step",
        "examples/test_transformers.py::test_decode",
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / ".git").exists():
            ignored = shutil.ignore_patterns("__pycache__", "baselines", "perf-report")
            shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
            (folder / "tests").mkdir()
            (folder / "tests" / "test_speed.py").write_text(_readmes_test())
            (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly\n")
            (folder / ".gitignore").write_text("__pycache__\n")
            self.git("init", "--quiet")
            self.commit("The code")

    def restore(self) -> None:
        """The code as it was committed last."""
        self.git("checkout", "--quiet", "--", ".")

    def plant(self, values: Mapping[str, float]) -> None:
        """Commit a change of whitespace, or make README's step slower.

        Raises
        ------
        KeyError
            For a name that is neither.
        """
        for name, value in values.items():
            if name == "commit":
                for path in sorted((self.folder / "examples" / "models").glob("*.py")):
                    path.write_text(path.read_text() + "\n")
                self.commit("Whitespace")
            elif name == "forward":
                path = self.folder / "tests" / "test_speed.py"
                old, passes = "model(batch)", " + ".join(["model(batch)"] * (1 + int(value)))
                path.write_text(path.read_text().replace(old, f"({passes})", 1))
            else:
                raise KeyError(name)

    def record(self, repeats: int) -> None:
        """Write and commit baselines, or add repeats of this occasion to those that are there.

        Raises
        ------
        ProjectError
        """
        mode = "append" if self.recorded else "all"
        self.pytest(f"--perf-update={mode}", f"--perf-repeats={repeats}", self.readme, *self.examples)
        self.commit("Baselines" if mode == "all" else "Baselines of another occasion")


def _readmes_test() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def test_train_step" in block)


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # Bytecode is kept: where pip compiled none, every worker process would compile torch again.
    left_out = ("PYTEST_", "GITHUB_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
