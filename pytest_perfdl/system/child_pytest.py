"""Runs pytest in a process of its own, which ends with this one and which Ctrl-C reaches."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_perfdl.system import processes

GRACE_SECONDS = 10.0
"""How long an interrupted pytest may take to tear down before it is killed."""
CAME_TO_ITS_END = (0, 1)
"""pytest's exit codes of a run that came to its end."""
_TELLING = re.compile(r"\S.*: error: |ERROR: (?!usage:)|ERROR |perf: no perf test")
"""How the line begins in which pytest says why it ran nothing."""


def run(
    words: Sequence[str], output: Path, *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Run a command line of pytest to its end; its exit code.

    Parameters
    ----------
    output
        File that takes what it prints.
    folder, environment
        Working directory and environment, if they are not this process's.

    Raises
    ------
    KeyboardInterrupt
        After pytest has ended too.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            processes.guard(process.pid)
            return process.wait()
        except BaseException:
            # As Ctrl-C does, so that it can tear down.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            raise
        finally:
            processes.end_and_wait(process)


def reason(output: Path) -> str:
    """The line in which pytest says why it ran nothing, or its last."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    internal = [line for line in lines if line.startswith("INTERNALERROR>")]
    telling = [line for line in lines if _TELLING.match(line)]
    return (internal[-1:] or telling or lines[-1:] or ["no output"])[0]


def raised(output: Path) -> str:
    """The first exception that pytest shows, as `ModuleNotFoundError: No module named 'x'`; empty if it shows none."""
    lines = (line for line in output.read_text(errors="replace").splitlines() if line.startswith("E   "))
    return next((text for line in lines if (text := line[1:].strip())), "")
