"""Commands in processes of their own, timed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-c", "import sys; from pytest_perfdl.cli import main; sys.exit(main())")
"""Begins a `perfdl` command."""


@dataclass(frozen=True)
class Took:
    """What a command took, with the processes that it waited for."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Most that one process held."""
    code: int
    errors: str
    """What it wrote to stderr."""


def perfdl(*arguments: str | Path) -> tuple[str, ...]:
    """A `perfdl` command of this checkout."""
    return (*CLI, *map(str, arguments))


def timed(command: Sequence[str | Path], *, timeout: float = 3600.0, **how: Any) -> Took:
    """Run a command to its end, with more arguments of `subprocess.Popen`; what it prints is dropped.

    Raises
    ------
    subprocess.TimeoutExpired
        The command was killed.
    """
    how.setdefault("env", {**os.environ, "PYTHONPATH": str(ROOT)})
    with tempfile.TemporaryFile() as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, **how)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - begun > timeout:
                process.kill()
                process.wait()
                raise subprocess.TimeoutExpired(list(map(str, command)), timeout)
            time.sleep(0.002)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    unit = 1 if sys.platform == "darwin" else 1024
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Took(seconds, cpu_seconds, usage.ru_maxrss * unit, process.returncode, text)


def checked(command: Sequence[str | Path], **how: Any) -> Took:
    """The same of a command that has to end well.

    Raises
    ------
    SystemExit
        With what it wrote to stderr.
    """
    took = timed(command, **how)
    if took.code:
        raise SystemExit(f"{' '.join(map(str, command[-3:]))} ended with {took.code}:\n{took.errors[-2000:]}")
    return took
