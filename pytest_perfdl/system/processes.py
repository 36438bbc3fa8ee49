"""Child processes that end with this one, and signals that end this one in good order."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

# Child processes that end with this one, however it ends, together with everything in their process groups.
#
# A guard, a shell that is started with the first child, reads the list of living groups from a pipe that only this
# process holds. When the pipe closes, it kills them. This needs no signal handler, so it works for SIGKILL as well, and
# no cooperation of a child, so it works for one that hangs in native code. A forked child of this process closes its
# end of the pipe: otherwise the guard would wait for it.


_GUARD = """
trap '' HUP INT QUIT TERM
groups=
while read -r line; do groups=$line; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_WHEN_GUARDED = 'read -r go && exec "$@" </dev/null'
"""Waits until its group is guarded; ends at once if this process has gone before."""
_ENDING_SECONDS = 30.0
"""Longest that a killed process is waited for: while it is stuck in a device or a file system, it does not end."""


class Waited(Protocol):
    """A child process, whoever started it; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code.

        Raises
        ------
        subprocess.TimeoutExpired
        """
        ...


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

    def forget(self) -> None:
        """In a forked child: guard and groups are its parent's."""
        self._groups.clear()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            # Nothing to wait for, nor to warn of.
            self._process.returncode = 0
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
os.register_at_fork(after_in_child=_guard.forget)


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


def stop(group: int, stopped: bool) -> None:
    """Stop a guarded process group, or let it go on; one that has ended is left alone."""
    if _guard.holds(group):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGSTOP if stopped else signal.SIGCONT)


def end_and_wait(process: Waited) -> None:
    """Kill the guarded process group of a child now, and wait for the child, unless the system does not let it end."""
    end(process.pid)
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        sys.stderr.write(
            f"pytest-perfdl: process {process.pid} was killed, but did not end within {_ENDING_SECONDS:g} s: it is "
            "stuck in a device or a file system, and is left to the system\n"
        )


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
            end_and_wait(process)
        output.seek(0)
        errors.seek(0)
        return Finished(code, output.read(), errors.read())


# SIGTERM and SIGHUP end a run like Ctrl-C: fixtures are torn down, processes ended, directories removed.


_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Turns these signals into KeyboardInterrupt from now on, where nobody else handles or ignores them."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._held = False
        self._ours: list[int] = []
        if threading.current_thread() is threading.main_thread():
            self._ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
            for number in self._ours:
                signal.signal(number, self._handle)

    def hold(self) -> None:
        """From now on only remember a signal: the run is cleaning up already."""
        self._held = True

    def finish(self) -> None:
        """Restore what was before; if a signal came, this process ends by it, as its sender expects."""
        for number in self._ours:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        if self._received is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os.kill(os.getpid(), self._received)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._received is None:
            self._received = number
            if not self._held:
                raise KeyboardInterrupt(signal.Signals(number).name)
