"""Runs a tool on a file in a fresh process and keeps what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from common.processes import perfdl, timed

COMMAND = "perfdl trace"


@dataclass(frozen=True)
class Tool:
    """What is measured: a script of tools/ under an interpreter, or our command where there is no script."""

    name: str
    python: Path
    script: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        return self.script in ("", "run_ours.py")


@dataclass
class Timing:
    """All rounds of one stage of a tool on a file."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def cpu(self) -> float:
        """The least of the rounds; far below `best` it says that the machine had other work."""
        return min(self.cpu_seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass
class Outcome:
    """All rounds of a tool on a file."""

    stages: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Last line of the error by analysis; under "" when the tool failed as a whole."""
    about: dict[str, object] = field(default_factory=dict)

    def add(self, found: Mapping[str, Mapping[str, float]]) -> None:
        for name, values in found.items():
            timing = self.stages.setdefault(name, Timing())
            timing.seconds.append(values["seconds"])
            timing.cpu_seconds.append(values["cpu_seconds"])
            timing.peak_bytes = max(timing.peak_bytes, int(values["peak_bytes"]))


def measure(tool: Tool, path: Path, outcome: Outcome, timeout: float) -> None:
    """One more round; a tool that has failed on a file is not asked again."""
    if "" in outcome.failures:
        return
    if not tool.script:
        _command(path, outcome, timeout)
        return
    command = [tool.python, HERE / "tools" / tool.script, path, *tool.arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=_environment(tool))
    except (OSError, subprocess.TimeoutExpired) as error:
        outcome.failures[""] = str(error).splitlines()[-1]
        return
    try:
        found = json.loads(done.stdout)
    except ValueError:
        outcome.failures[""] = _last_line(done.stderr) or f"exit code {done.returncode}"
        return
    outcome.add(found.pop("stages"))
    outcome.failures |= found.pop("failures")
    outcome.about |= found


def has_command() -> bool:
    """Whether `perfdl trace` is there."""
    return timed(perfdl("trace", "--help"), env=_environment(None)).code == 0


def _command(path: Path, outcome: Outcome, timeout: float) -> None:
    """The whole command from start to end: its time, and the most that the process held."""
    try:
        took = timed(perfdl("trace", path), timeout=timeout, env=_environment(None))
    except subprocess.TimeoutExpired as error:
        outcome.failures[""] = str(error)
        return
    if took.code:
        outcome.failures[""] = _last_line(took.errors) or f"exit code {took.code}"
        return
    found = {"seconds": took.seconds, "cpu_seconds": took.cpu_seconds, "peak_bytes": took.peak_bytes}
    outcome.add({COMMAND: found})


def _environment(tool: Tool | None) -> dict[str, str]:
    """Ours finds this checkout; nobody else does."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if tool is None or tool.is_ours:
        environment["PYTHONPATH"] = str(ROOT)
    return environment


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""
