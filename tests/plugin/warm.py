"""Forks pytest runs from a process that has imported what takes them longest: pytest, and torch where they use it.

A run whose test is about processes, signals or imports is started instead (`Project.start`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_perfdl.workers.forks import ForkedProcess, unsupported


class Warm:
    """A process that has imported some modules, and that runs are forked from; it ends with the one that made it."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            folder = Path(__file__).parents[1]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plugin.warm", str(theirs.fileno()), *modules],
                cwd=folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = ours.makefile("rw")
        atexit.register(self.close)

    def run(self, command: Sequence[str], root: Path, log: Path, env: Mapping[str, str]) -> ForkedProcess:
        """Fork a process that runs `python -m pytest`; `command` begins with the interpreter and these two."""
        asked = {"arguments": command[3:], "root": str(root), "log": str(log), "env": dict(env)}
        return ForkedProcess(self._ask(asked), self)

    def reap(self, pid: int) -> int:
        """Exit code of one that has ended."""
        return self._ask(pid)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._channel.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, message: object) -> int:
        self._channel.write(json.dumps(message) + "\n")
        self._channel.flush()
        return int(self._channel.readline())


@functools.cache
def shared(*modules: str) -> Warm:
    """The process of this session that has imported these modules, in their order."""
    return Warm(*modules)


def warm(root: Path) -> Warm | None:
    """The process for a project's runs; `None` where this system cannot fork."""
    if unsupported():
        return None
    uses_torch = any("torch" in file.read_text(errors="replace") for file in root.rglob("*.py"))
    return shared("pytest", "numpy", *(["torch"] if uses_torch else []))


def _serve(descriptor: str, *modules: str) -> None:
    for name in modules:
        importlib.import_module(name)
    connection = socket.socket(fileno=int(descriptor))
    channel = connection.makefile("rw")
    for line in channel:
        message = json.loads(line)
        if isinstance(message, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(message, 0)[1])
        elif not (answer := os.fork()):
            os.close(connection.fileno())
            _be_pytest(**message)
        channel.write(f"{answer}\n")
        channel.flush()


def _be_pytest(arguments: Sequence[str], root: str, log: str, env: Mapping[str, str]) -> None:
    """Be `python -m pytest` to the end of this process."""
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.chdir(root)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:1] = [root, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv[1:] = arguments
        try:
            runpy.run_module("pytest", run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = stop.code or 0
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
