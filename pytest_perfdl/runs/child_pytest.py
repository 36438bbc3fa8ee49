"""Runs `pytest --perf` in a process of its own, which ends with this one and which Ctrl-C reaches."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.system import clocks, folders, processes
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command

GRACE_SECONDS = 10.0
"""How long an interrupted pytest may take to tear down before it is killed."""
_TELLING = re.compile(r"\S.*: error: |ERROR: (?!usage:)|ERROR |perf: no perf test")
"""How the line begins in which pytest says why it ran nothing."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended, with what it wrote into its scratch folder."""

    code: int
    """pytest's exit code."""
    seconds: float
    folder: Path

    @property
    def run_file(self) -> Path | None:
        """The file with the results; `None` if pytest did not come to its end."""
        path = run_file(self.folder)
        return path if self.code in (0, 1) and path.is_file() else None

    @property
    def reason(self) -> str:
        """The line in which pytest says why it ran nothing, or its last."""
        lines = [line.strip() for line in self._output.splitlines() if line.strip()]
        internal = [line for line in lines if line.startswith("INTERNALERROR>")]
        telling = [line for line in lines if _TELLING.match(line)]
        return (internal[-1:] or telling or lines[-1:] or ["no output"])[0]

    @property
    def raised(self) -> str:
        """The first exception that pytest shows: `ModuleNotFoundError: No module named 'x'`; empty if there is none."""
        lines = (line for line in self._output.splitlines() if line.startswith("E   "))
        return next((text for line in lines if (text := line[1:].strip())), "")

    @property
    def _output(self) -> str:
        return _output(self.folder).read_text(errors="replace")


def command(scratch: Path, *arguments: str, interpreter: str = sys.executable) -> tuple[str, ...]:
    """The command line of a run whose report and run file go into its scratch folder."""
    return (
        *module_command(interpreter, "pytest", *arguments, path=LIBRARY_FIRST),
        # A waiver would hide what is looked for.
        *("--perf", "--perf-traces=none", "--perf-github=off", "--override-ini=perfdl_waivers=off"),
        *(f"--perf-json={run_file(scratch)}", f"--perf-report={report(scratch)}"),
    )


def run_file(scratch: Path) -> Path:
    """The file for the results of a run with this scratch folder."""
    return scratch / "run.json"


def report(scratch: Path) -> Path:
    """The report folder of a run with this scratch folder."""
    return scratch / "report"


@contextlib.contextmanager
def run(
    words: Callable[[Path], Sequence[str]],
    purpose: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Ended]:
    """Run pytest to its end; what it left is there for as long as the context is.

    Parameters
    ----------
    words
        Makes the command line, for a given scratch folder.
    purpose
        What the scratch folder is for; part of its name.
    folder, environment
        Working directory and environment, if they are not this process's.

    Raises
    ------
    KeyboardInterrupt
        After pytest has ended too.
    """
    with folders.for_a_while(purpose) as scratch:
        started = clocks.monotonic()
        code = _run(words(scratch), _output(scratch), folder, environment)
        yield Ended(code, round(clocks.monotonic() - started, 3), scratch)


def _run(words: Sequence[str], output: Path, folder: Path | None, environment: Mapping[str, str] | None) -> int:
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


def _output(scratch: Path) -> Path:
    """File that takes what a run prints."""
    return scratch / "output.txt"
