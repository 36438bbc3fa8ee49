"""Child processes that end with this one, however it ends, together with everything in their process groups.

A guard, a shell that is started with the first child, reads the list of living groups from a pipe that only this
process holds. When the pipe closes, it kills them. This needs no signal handler, so it works for SIGKILL as well, and
no cooperation of a child, so it works for one that hangs in native code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GUARD = """
trap '' HUP INT QUIT TERM
groups=
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_WHEN_GUARDED = 'read -r go && exec "$@" </dev/null'
"""Waits until its group is guarded; ends at once if this process has gone before."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What is left of a command."""

    code: int
    output: bytes
    errors: bytes


class _Guard:
    """The shell that kills the groups that are on its list when this process is gone."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._tell()

    def remove(self, group: int) -> None:
        self._groups.remove(group)
        self._tell()

    def holds(self, group: int) -> bool:
        return group in self._groups

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _tell(self) -> None:
        line = " ".join(map(str, sorted(self._groups))).encode() + b"\n"
        try:
            self._write(line)
        except BrokenPipeError:
            self.close()
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD],
                bufsize=0,
                cwd=os.sep,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(line)


_guard = _Guard()
atexit.register(_guard.close)


def guard(group: int) -> None:
    """Have a process group killed when this process is gone."""
    _guard.add(group)


def end(group: int) -> None:
    """Kill a guarded process group now, and guard it no longer; its leader is still to be waited for."""
    if not _guard.holds(group):
        # Ended before: its number may be another's by now.
        return
    # The group outlives its leader while a grandchild is alive.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    _guard.remove(group)


def run(command: Sequence[str], folder: Path, *, seconds: float, environment: Mapping[str, str]) -> Finished:
    """Run a command to its end, in a session of its own and without a terminal; what it leaves running is killed.

    Raises
    ------
    subprocess.TimeoutExpired
        When it takes longer; it has been killed, with all that it started.
    OSError
        When it cannot be started.
    """
    # Files, not pipes: a daemon that the command leaves behind would hold a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WHEN_GUARDED, "sh", *command],
            bufsize=0,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            guard(process.pid)
            assert process.stdin is not None
            with process.stdin as go, contextlib.suppress(BrokenPipeError):
                go.write(b"go\n")
            code = process.wait(seconds)
        finally:
            end(process.pid)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return Finished(code, output.read(), errors.read())
