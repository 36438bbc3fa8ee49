"""Starts, monitors and ends a worker process; the stack of one that did not end in time.

Environment variables of a worker: `environment` takes those of this process without coverage's, `PYTEST_ADDOPTS` and
xdist's, and sets the allocator, the hash seed, no remote caches of compilers, the numbers of threads and
`PYTEST_PERFDL_WORKER`. `run.processes` adds the folders of compilers' caches and, for a checkout, that of C++
extensions and what `Checkout.environment` gives (`PYTHONPATH`), without what only the working tree's code has set
(`Checkout.unset`). Ranks also get their own (`RANK`, `MASTER_ADDR`, ...): from `launcher`, or with `--perf-launch` from
torch's elastic launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import _pytest
import pluggy
import pytest

import pytest_perfdl
from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout, WorkerDied, WorkerTimeout
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.system.import_path import LIBRARY_FIRST, importing, own_path
from pytest_perfdl.workers.channel import WorkerJob, pair
from pytest_perfdl.workers.interpreter import Interpreter

# Starts, monitors and ends a worker process.
#
# A worker leads a new process group, so Ctrl-C in the terminal reaches only the orchestrating process, and everything
# that the worker started can be ended with it. The group is killed when the orchestrating process exits, in whatever
# way (`system.processes`).


PINNED_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(
        (
            "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
            "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
            "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
            "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
            "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO",
        ),
        "0",
    ),
}
"""Removes glibc's page-fault modes, worth +63 % of a step's time, and the order of sets as a source of noise.

What other machines have compiled and tuned is not used.
"""

GRACE_SECONDS = 3.0
"""How long fixtures may take to tear down after SIGINT before the group is killed."""

_TAIL_BYTES = 20_000
"""How much of a dead worker's last output is shown."""

_BOOT = (
    f"{LIBRARY_FIRST}import json; sys.path[:], path = json.loads(sys.argv[1]); "
    f"{importing('pytest_perfdl.workers.{module}')}main(*map(int, sys.argv[2:]))"
)
"""This package comes from where it is here, on whichever side the worker is: both must speak the same protocol.

Under another interpreter it comes from that one's environment, in the same version (`interpreter.check_version`)."""


class Process(processes.Waited, Protocol):
    """A worker's process, whoever started it; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code, or `None` while it runs."""
        ...


class Parent(Protocol):
    """A process that workers are forked from."""

    def fork(
        self, descriptors: Sequence[int], import_path: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> Process:
        """Fork a worker; `descriptors` are of its channel, of its output, and of the file for its stacks."""
        ...


class AnyWorker(Protocol):
    """What runs a test and executes measuring commands: a `Worker`, or the ranks of a `Job`."""

    def send(self, message: object) -> None:
        """Send a message; a process that is gone is noticed by the next `receive`."""
        ...

    def receive(self) -> Any:
        """Wait for the next message; `None` once the test has ended in good order.

        Raises
        ------
        WorkerDied, WorkerTimeout
        """
        ...

    def interrupt(self) -> None:
        """End it as Ctrl-C would: fixtures tear down, then whatever is left is killed."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class Worker:
    """One fresh process that runs one test once, phase by phase, and executes measuring commands.

    Parameters
    ----------
    job
        What to run.
    variables
        Its environment (`environment`).
    timeout
        Seconds until `receive` gives up.
    inherit_output
        Whether the user sees what the process itself writes.
    import_path, folder
        `sys.path` and current folder of the process; by default this process's.
    interpreter
        The Python that runs it; by default this process's.
    parent
        What to fork the process from; by default it is started. A forked one's output is never the user's.
    """

    def __init__(
        self,
        job: WorkerJob,
        *,
        variables: Mapping[str, str],
        timeout: float,
        inherit_output: bool,
        import_path: Sequence[str] | None = None,
        folder: str | None = None,
        parent: Parent | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._deadline = clocks.monotonic() + timeout
        self._channel, theirs = pair()
        path = import_texts(sys.path if import_path is None else import_path)
        self._process: Process
        try:
            if parent is not None:
                descriptors = (theirs.fileno(), self._output.fileno(), self._stacks.fileno())
                self._process = parent.fork(descriptors, path, folder or str(Path.cwd()), variables)
            else:
                self._process = boot(
                    "worker",
                    (theirs.fileno(), os.getpid(), self._stacks.fileno()),
                    path,
                    folder=folder,
                    variables=variables,
                    output=None if inherit_output else self._output,
                    passing=(theirs.fileno(), self._stacks.fileno()),
                    interpreter=interpreter,
                )
        except OSError as error:
            self._release()
            raise WorkerDied(f"cannot start a worker process: {error.strerror or error}") from None
        except BaseException:
            self._release()
            raise
        finally:
            theirs.close()
        # Until it has its job, a worker starts no processes, and ends by itself when the channel is closed.
        processes.guard(self.pid)
        self.send(job)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the worker's process group."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message; a worker that is gone is noticed by the next `receive`."""
        with contextlib.suppress(ChannelClosed):
            self._channel.send(message)

    def receive(self) -> Any:
        """Wait for the worker's next message; `None` once it has ended in good order.

        Raises
        ------
        WorkerDied, WorkerTimeout
        """
        try:
            return self._channel.receive(alive=self._alive, deadline=self._deadline)
        except ChannelTimeout:
            where = self._where()
            self.kill()
            raise WorkerTimeout(where) from None
        except ChannelClosed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
            code = self._process.poll()
            text = "" if code == 0 else f"{describe_exit(code, 'the worker process')}{output_tail(self._output)}"
            self.kill()
            if not text:
                return None
            raise WorkerDied(text) from None

    def interrupt(self) -> None:
        """End the worker as Ctrl-C would: fixtures tear down, then whatever is left is killed."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGINT)
            deadline = clocks.monotonic() + GRACE_SECONDS
            while self._process.poll() is None and clocks.monotonic() < deadline:
                clocks.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """End the worker and everything in its process group now."""
        processes.end_and_wait(self._process)
        self._release()

    def _alive(self) -> bool:
        return self._process.poll() is None

    def _release(self) -> None:
        self._channel.close()
        self._output.close()
        self._stacks.close()

    def _where(self) -> str:
        """The stacks of all threads of the worker, from faulthandler on SIGUSR1."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = clocks.monotonic() + GRACE_SECONDS
        size = -1
        while clocks.monotonic() < deadline:
            clocks.sleep(0.2)
            before, size = size, self._stacks.seek(0, os.SEEK_END)
            if before == size > 0:
                break
        self._stacks.seek(0)
        text = self._stacks.read().decode(errors="replace").strip()
        return text or "(no stack: the process does not respond)"


def output_tail(output: IO[bytes]) -> str:
    """The last lines of what a process wrote to its own stdout and stderr, where a crash leaves its trace."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    lines = output.read().decode(errors="replace").strip().splitlines()
    # faulthandler's stacks of every thread fit; its list of all loaded extension modules only hides them.
    return "".join(f"\n{line}" for line in lines if not line.startswith("Extension modules:"))


def boot(
    module: str,
    arguments: Sequence[int],
    path: Sequence[str],
    *,
    folder: str | None,
    variables: Mapping[str, str],
    output: IO[bytes] | None,
    passing: Sequence[int],
    interpreter: Interpreter | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process of our own, which leads its process group.

    Parameters
    ----------
    module
        The one in this package whose `main` runs there.
    arguments
        Of `main`.
    path, folder, variables
        `sys.path`, current folder and environment of the process.
    output
        Where its stdout and stderr go; `None` for this process's.
    passing
        Descriptors that it inherits.
    interpreter
        The Python that runs it, with its own installation of this package; by default this process's.
    """
    executable, path_of_ours = sys.executable, own_path()
    if interpreter is not None:
        executable, path_of_ours = interpreter.executable, list(interpreter.path)
    return subprocess.Popen(
        [
            executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-c",
            _BOOT.format(module=module),
            json.dumps([path_of_ours, path]),
            *map(str, arguments),
        ],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=folder,
        env=variables,
        pass_fds=passing,
        start_new_session=True,
    )


def environment(threads: int, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables, by default the present ones, with allocator and thread counts pinned and coverage's hooks removed."""
    kept = {
        name: value
        for name, value in (os.environ if given is None else given).items()
        if not name.startswith(("COV_CORE_", "COVERAGE_")) and name not in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    }
    count = str(threads)
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
    return kept | PINNED_ENVIRONMENT | pinned | {"PYTEST_PERFDL_WORKER": "1"}


def import_texts(path: Sequence[object]) -> list[str]:
    """The entries of `sys.path` that Python heeds: it passes over a `pathlib.Path`, and so must a worker."""
    return [entry for entry in path if isinstance(entry, str)]


def describe_exit(code: int | None, what: str) -> str:
    """How a process ended; `None` if it has not."""
    if code is None:
        return f"{what} closed its connection but did not exit"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"{what} was killed by {signal.Signals(-code).name}"
        return f"{what} was killed by signal {-code}"
    return f"{what} exited with code {code}"


# The stack of a process that did not end in time, as its user wants to see it.


_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_MACHINERY = (
    "<",
    *(str(Path(str(module.__file__)).parent) + "/" for module in (_pytest, pluggy, pytest, pytest_perfdl)),
)
"""Where the frames begin that are the same around every test: pytest's, ours, and code without a file."""
_PACKAGES = {"site-packages", "dist-packages"}
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def user_stack(text: str, root: str) -> tuple[str, str]:
    r"""The place in the user's code, and the stacks without pytest's and our own frames.

    Parameters
    ----------
    text
        What `faulthandler` wrote: the stack of each thread, the most recent call first, the main thread's last.
    root
        Folder that the place is relative to.

    Returns
    -------
    tuple[str, str]
        "train.py:12 in step" (empty where no frame is the user's), and the stacks. Threads without other frames are
        left out; where nothing would be left, the text is returned as it is.

    >>> user_stack('Thread 1:\n  File "/p/t.py", line 3 in step\n  File "<string>", line 9 in run', "/p")
    ('t.py:3 in step', 'Thread 1:\n  File "/p/t.py", line 3 in step')
    """
    kept, place = [], ""
    for head, *lines in (thread.split("\n") for thread in re.split(r"\n\s*\n", text)):
        frames = [match for line in lines if (match := _FRAME.match(line))]
        own = [match for match in frames if not match["file"].startswith(_MACHINERY)]
        if own:
            kept.append("\n".join((head, *(match[0] for match in own))))
            users = (match for match in own if not _is_installed(match["file"]))
            place = next((_place(match, root) for match in users), place)
    return place, "\n\n".join(kept) or text


def _is_installed(file: str) -> bool:
    """Whether a file is the standard library's or an installed package's, of this environment or of one below it."""
    return file.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(Path(file).parts)


def _place(frame: re.Match[str], root: str) -> str:
    path = Path(frame["file"])
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return f"{shown}:{frame['line']} in {frame['function']}"
