"""Forks pytest runs, and what these fork workers from, from processes that have imported what takes them longest.

That is pytest for the one, what every test loads for the other, and torch where the project uses it. A run whose test
is about processes, signals or imports is started instead (`Project.start`).
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pytest_perfdl.workers import forks, process
from pytest_perfdl.workers.channel import NO_PLUGINS, LoadModules
from pytest_perfdl.workers.forks import USED_BY_WORKERS, ForkedProcess, ForkParent, unsupported

READ_AT_START = ("KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
"""Variables that loaders, the interpreter and torch read before anything of a run is executed."""
_LOOK_EVERY_SECONDS = 5.0
"""How soon a process notices that the session is gone that it forks for."""


class Warm:
    """A process that others are forked from, of this process or of its children.

    Parameters
    ----------
    address
        Of its socket.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def fork(self, message: Mapping[str, object], descriptors: Sequence[int]) -> ForkedProcess:
        """Fork a process: its environment and folder, with what else it gets, and the descriptors, its output first."""
        return ForkedProcess(self._ask(message, descriptors), self)

    def reap(self, pid: int) -> int:
        """Exit code of one that has ended."""
        return self._ask(pid)

    def _ask(self, message: object, descriptors: Sequence[int] = ()) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"\0{self.address}")
            socket.send_fds(connection, [json.dumps(message).encode()], descriptors)
            return int(connection.recv(100))


@functools.cache
def shared(kind: str, *modules: str) -> Warm:
    """The process of this session that forks one kind of process, and has loaded some modules in their order."""
    # Containers may share a network, and with it these names.
    address = f"perfdl-tests-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{address}")
        listening.listen(16)
        started = subprocess.Popen(
            [sys.executable, "-m", "plugin.warm", str(listening.fileno()), str(os.getpid()), kind, *modules],
            cwd=Path(__file__).parents[1],
            env=process.environment(1),
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(started.wait)
    atexit.register(started.kill)
    return Warm(address)


def warm(root: Path) -> Warm | None:
    """The process for a project's runs; `None` where this system cannot fork."""
    if unsupported():
        return None
    uses_torch = any("torch" in file.read_text(errors="replace") for file in root.rglob("*.py"))
    return shared("pytest", "numpy", *(["torch"] if uses_torch else []))


def run(warm: Warm, command: Sequence[str], root: Path, log: int, env: Mapping[str, str]) -> ForkedProcess:
    """Fork a process that runs `python -m pytest`; `command` begins with the interpreter and these two."""
    parents = shared("workers.fork_server", *(f"{name}={file}" for name, file in _least()))
    message = {
        "arguments": command[3:],
        "root": str(root),
        "env": dict(env),
        "parents": parents.address,
        "parents_have": _at_start(process.environment(1)),
    }
    return warm.fork(message, [log])


@functools.cache
def _least() -> tuple[tuple[str, str], ...]:
    """What every test loads, with its files."""
    from pytest_perfdl.run.processes import least_loaded

    least = least_loaded()
    assert least is not None
    return least.modules


def _serve(descriptor: str, parent: str, kind: str, *modules: str) -> None:
    run = _fork_server(modules) if kind == "workers.fork_server" else _pytest(modules)
    listening = socket.socket(fileno=int(descriptor))
    listening.settimeout(_LOOK_EVERY_SECONDS)
    while os.getppid() == int(parent):
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        with connection:
            text, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 4)
            message = json.loads(text)
            if isinstance(message, int):
                answer = os.waitstatus_to_exitcode(os.waitpid(message, 0)[1])
            elif not (answer := os.fork()):
                listening.close()
                connection.close()
                _be(run, descriptors, **message)
            for each in descriptors:
                os.close(each)
            connection.send(str(answer).encode())


def _be(run: Callable[..., None], descriptors: list[int], root: str, env: Mapping[str, str], **more: Any) -> None:
    """Be a process that writes to the first of the descriptors, to its end."""
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output, *others = descriptors
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.chdir(root)
        os.environ.clear()
        os.environ.update(env)
        try:
            run(*others, **more)
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


def _pytest(modules: Sequence[str]) -> Callable[..., None]:
    """Import pytest and modules; what then is a run of pytest in a fork, whose parents of workers are forked."""
    for name in ("pytest", *modules):
        importlib.import_module(name)

    def run(arguments: Sequence[str], parents: str, parents_have: Mapping[str, str]) -> None:
        forks.ForkParent = functools.partial(_parent, Warm(parents), parents_have)
        sys.path[:1] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv[1:] = arguments
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)

    return run


def _parent(
    warm: Warm, has: Mapping[str, str], wanted: forks.Common, variables: Mapping[str, str], *more: Any
) -> ForkParent:
    """A parent of workers; it is forked if what it loads begins with what that process loaded, and in the same way."""
    begins = wanted.modules[:1] == _least()[:1] and {*_least()} <= {*wanted.modules}
    forks.boot = functools.partial(_boot, warm) if begins and _at_start(variables) == has else process.boot
    return ForkParent(wanted, variables, *more)


def _boot(
    warm: Warm,
    module: str,
    arguments: Sequence[int],
    path: Sequence[str],
    *,
    folder: str | None,
    variables: Mapping[str, str],
    output: IO[bytes],
    passing: Sequence[int],
) -> ForkedProcess:
    """As `process.boot`, of a fork server."""
    message = {"root": str(folder or Path.cwd()), "env": dict(variables), "path": list(path)}
    return warm.fork(message, [output.fileno(), *passing])


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(READ_AT_START) and name != "PYTHONDONTWRITEBYTECODE"
    }


def _fork_server(modules: Sequence[str]) -> Callable[..., None]:
    """Load modules as a parent of workers does; what then is one in a fork."""
    from pytest_perfdl.workers import fork_server

    before: dict[str, tuple[str, ...]] = {}
    load = fork_server._load
    wanted = tuple((name, file) for name, _, file in (each.partition("=") for each in modules))
    load(LoadModules(wanted, None, USED_BY_WORKERS, NO_PLUGINS), before)

    def load_more(wanted: LoadModules, groups: dict[str, tuple[str, ...]]) -> str:
        groups.update(before)
        return load(wanted, groups)

    def run(channel: int, path: list[str]) -> None:
        fork_server._load = load_more
        os.setsid()
        sys.path[:] = path
        importlib.invalidate_caches()
        # As of `python -c`; this file would be taken for one of the repository.
        sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")
        sys.modules.pop("plugin", None)
        fork_server.main(channel, os.getppid())

    return run


if __name__ == "__main__":
    _serve(*sys.argv[1:])
