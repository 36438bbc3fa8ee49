"""One comparison as somebody would make it: `pytest --perf --perf-against HEAD` on a repository with a change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from planted_change import PACKAGE  # noqa: E402
from scoring import SHOWN, Change, ComparingError, Comparison, Named, Task  # noqa: E402
from suite import MODELS, PLANTS  # noqa: E402

TEMPLATE = HERE / "scratch"
TIMEOUT_SECONDS = 3600.0
_AUTHOR = ("-c", "user.name=blame", "-c", "user.email=blame@example.org", "-c", "commit.gpgsign=false")


class Repository:
    """A git repository with the unchanged models committed; plants are changes of its working tree's source.

    Raises
    ------
    ComparingError
        When git fails.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "gitignore")
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=ignored)
        shutil.copy(TEMPLATE / "gitignore", folder / ".gitignore")
        for arguments in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "The code")):
            done = subprocess.run(
                ["git", *_AUTHOR, *arguments],
                cwd=folder,
                env=_environment("GIT_"),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ComparingError(f"git {' '.join(arguments)}: {done.stderr.strip()}")

    def plant(self, name: str) -> None:
        """Make this change in the working tree, and no other; no line moves."""
        for model in MODELS:
            path = Path("src", PACKAGE, f"{model}.py")
            (self.folder / path).write_text((TEMPLATE / path).read_text().replace(f'planted("{name}")', "True"))

    def compare(self, task: Task) -> Comparison:
        """Run pytest on the task's model.

        Raises
        ------
        ComparingError
            When it ended with anything but a passed or failed test, or wrote no run file.
        """
        self.plant(task.plant)
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as report:
            found = Path(report) / "run.json"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf", "--perf-against=HEAD"]
            command += [f"--perf-json={found}", f"--perf-report={report}", "--perf-traces=none", "--perf-github=off"]
            command.append(f"tests/test_speed.py::test_step[{task.model}]")
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={**_environment("PYTEST_", "GITHUB_", "BLAME_"), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
            )
            if done.returncode not in (0, 1) or not found.exists():
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
                raise ComparingError(f"{' '.join(command)}\nended with exit status {done.returncode}:\n{tail}")
            (test,) = json.loads(found.read_text())["tests"]
        return outcome(task, test, time.monotonic() - started)


def outcome(task: Task, test: Mapping[str, Any], seconds: float) -> Comparison:
    """What the run file's entry says; it holds no account of the profiled steps."""
    metric = next((test["metrics"][name] for name in ("step_time", "block_time") if name in test["metrics"]), None)
    timed = None
    if metric is not None and metric["effect"] is not None:
        ends = metric["ci95"]
        timed = Change(metric["base"], metric["new"], metric["effect"], ends and (ends[0], ends[1]))
    causes = [
        Named(
            kind=cause["kind"],
            name=cause["name"],
            module=cause["module"],
            line=cause["line"],
            delta_ns=cause["delta_ns"],
            share=cause["share"],
            effects=cause["effects"],
        )
        for cause in test["blame"]
    ]
    return Comparison(
        task=task,
        rounds=(metric or {}).get("rounds") or 0,
        timed=timed,
        profiled=None,
        verdict=test["verdict"],
        causes=tuple(causes[:SHOWN]),
        named=len(causes),
        certain=len(causes),
        coverage=None,
        residual_ns=None,
        detectable=None,
        wanted_line=PLANTS[task.plant].line if task.plant else "",
        seconds=seconds,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _environment(*without: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}
