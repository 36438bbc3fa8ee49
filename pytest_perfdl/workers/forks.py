"""Workers forked from a process with third-party modules already imported, seen from the orchestrating process.

Importing torch and similar packages takes most of a worker's start time. The first process of each side and the fork
server report whether a fork is equivalent to a newly started process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from pytest_perfdl.model.errors import ChannelClosed, ChannelTimeout, ForkError
from pytest_perfdl.system import clocks, processes
from pytest_perfdl.workers.channel import NO_PLUGINS, Fork, LoadModules, Plugins, Reap, Shown, pair
from pytest_perfdl.workers.process import boot, environment, import_texts

USED_BY_WORKERS = (
    "pytest_perfdl.analysis",
    "pytest_perfdl.analysis.account.parts",
    "pytest_perfdl.analysis.efficiency.roofline",
    "pytest_perfdl.analysis.overview.device",
    "pytest_perfdl.analysis.overview.findings",
    "pytest_perfdl.fixture",
    "pytest_perfdl.hookspecs",
    "pytest_perfdl.measure.counted_pass",
    "pytest_perfdl.measure.environment",
    "pytest_perfdl.measure.program",
    "pytest_perfdl.config.settings",
    "pytest_perfdl.plugin",
    "pytest_perfdl.trace",
)
"""Of our own, what measuring needs; importing them imports no torch."""
PARENTS = 3
"""Parents that the rounds of a test, or the repeats of a recording, are forked from, one after the other.

The forks of one parent share the places of everything in memory, which are worth a few percent of a step's time.
"""
ROUNDS_IN_A_ROW = 3
"""Rounds that are forked from one parent before the next one's turn."""
ROUNDS_OF_A_PARENT = 24
"""Rounds of tests that load the same after which a parent is replaced."""
_CACHE = "perfdl/modules"
_LOADING_SECONDS = 120.0
"""Longest that loading the modules may take."""
_ANSWER_SECONDS = 10.0
"""Longest that forking may take, or waiting for a process that has ended."""


@dataclass(frozen=True, slots=True)
class Common:
    """What both sides of a test load."""

    modules: tuple[tuple[str, str], ...]
    """Third-party modules with their files, in the order of loading."""
    allowed: tuple[tuple[str, str], ...] | None
    """Others that may be loaded by the way; `None` where that is not known yet."""


def common(base: Shown, head: Shown) -> Common:
    """What a parent of both sides' rounds is to load.

    Raises
    ------
    ForkError
        When a process that loads this beforehand would be another one than the test's.
    """
    if changed := sorted({*base.environment, *head.environment}):
        raise ForkError(
            f"the test changes environment variables before it imports third-party modules: {_listed(changed)}"
        )
    if hooks := sorted({*base.hooks, *head.hooks}):
        raise ForkError(f"the test uses import hooks: {_listed(hooks)}")
    if reads := sorted({*base.reads, *head.reads}):
        # The parent would read those of the folder that it loads modules in, for both sides.
        module, file = reads[0]
        raise ForkError(f"importing module {module} reads {Path(file).name}, a file of the repository")
    if tracer := next((call.tracer for side in (base, head) for call in side.calls if call.tracer), ""):
        raise ForkError(f"{tracer} traces the test")
    of_base, of_head = (dict((*side.modules, *side.besides)) for side in (base, head))
    for name in of_head:
        if of_base.get(name, of_head[name]) != of_head[name]:
            raise ForkError(
                f"module {name} is {of_base[name]} for the baseline, but {of_head[name]} for the current code"
            )
    both = set(base.modules)
    loaded = of_base.items() & of_head.items()
    modules = tuple(each for each in head.modules if each in both)
    return Common(modules, tuple(sorted(loaded.difference(modules))))


class Forks:
    """The parents that processes of a run are forked from; tests that load the same share them.

    There are some for rounds and one for the first processes of tests, which may be one of them. Those of rounds load
    while processes start and warm up: they are held while steps are timed (`hold`).

    Parameters
    ----------
    preload
        Our own modules that workers import.
    plugins
        Of pytest.
    """

    def __init__(self, preload: tuple[str, ...] = (), plugins: Plugins = NO_PLUGINS) -> None:
        self._preload = preload
        self._plugins = plugins
        self._pool: list[ForkParent] = []
        """Those of rounds; all of them load the same."""
        self._first: ForkParent | None = None
        self._unfit: dict[object, str] = {}
        """By kind of fork server, why this kind cannot be used."""
        self.roots: tuple[tuple[str, str], ...] | None = None
        """Modules, with their files, whose import loaded all that the last first process was forked with that was like
        a new one; empty if none was, `None` as long as none was forked."""

    def prepare(self, wanted: Common, threads: int) -> None:
        """Have a parent load what `parent` will probably be asked for, while something else is waited for.

        What is wrong with it `parent` will say.
        """
        with contextlib.suppress(ForkError):
            if not self._serving(wanted, threads):
                self._begin(wanted, threads)

    def parent(self, wanted: Common, threads: int, *, first: bool = False, wait: bool = False) -> ForkParent:
        """A parent for both sides of one round.

        Another one than in the last round has its turn after some rounds, once it has loaded.

        Parameters
        ----------
        wanted
            What both sides load.
        threads
            Intra-op threads of the workers.
        first
            Whether first processes are forked from it from now on, rather than a round.
        wait
            Whether the next one is waited for when it has its turn.

        Raises
        ------
        ForkError
        """
        serving = self._serving(wanted, threads) or [self._begin(wanted, threads)]
        ready = serving if wait else [each for each in serving if each.is_loaded] or serving
        parent = self._loaded(min(ready, key=_turns))
        if first:
            self._keep(first=parent)
            return parent
        all_loaded = all(each.is_loaded for each in serving)
        # Not in the last of these rounds: a test may end with it.
        in_turn = parent.rounds > 0 and parent.rounds % ROUNDS_IN_A_ROW == 0
        if len(serving) < PARENTS and all_loaded and (wait or in_turn):
            with contextlib.suppress(ForkError):
                self._begin(wanted, threads, beside=serving)
        parent.rounds += 1
        return parent

    def hold(self, held: bool) -> None:
        """Stop the parents that still load, or let them go on."""
        for parent in self._parents():
            parent.hold(held)

    def present(self, otherwise: Common | None, threads: int) -> ForkParent:
        """The parent for first processes that is there, if it fits this process as it is now; else another one.

        Raises
        ------
        ForkError
        """
        now = _surroundings(environment(threads))
        for parent in reversed(self._parents()):
            with contextlib.suppress(ForkError):
                if not parent.refused and parent.fits(now) and self._loaded(parent).roots:
                    self._keep(first=parent)
                    return parent
        if otherwise is None:
            raise ForkError("nothing is known of what the test loads")
        parent = self.parent(otherwise, threads, first=True)
        if parent.refused:
            raise ForkError("no first process that was forked from it was like a new one")
        return parent

    def judge(self, parent: ForkParent, like_new: bool) -> None:
        """Note whether a first process that was forked from a parent was like a new one."""
        if like_new:
            self.roots = parent.roots
        elif not self.roots:
            self.roots = ()
        parent.refused = not like_new and parent.refused is not False

    def close(self) -> None:
        """End the parents, and with them what is still forked from them."""
        for parent in self._parents():
            parent.close()
        self._first, self._pool = None, []

    def _loaded(self, parent: ForkParent) -> ForkParent:
        try:
            parent.load()
        except ForkError as error:
            parent.close()
            self._first = None if self._first is parent else self._first
            self._pool = [each for each in self._pool if each is not parent]
            if not self._pool:
                # Else it was this one's own trouble: the others load the same.
                self._unfit[parent.wanted, parent.surroundings] = str(error)
            raise
        return parent

    def _serving(self, wanted: Common, threads: int) -> list[ForkParent]:
        """Those that are there for rounds that load what is wanted."""
        now = _surroundings(environment(threads))
        if (wanted, now) in self._unfit:
            raise ForkError(self._unfit[wanted, now])
        return [each for each in self._parents() if each.rounds < ROUNDS_OF_A_PARENT and each.serves(wanted, now)]

    def _begin(self, wanted: Common, threads: int, *, beside: Sequence[ForkParent] = ()) -> ForkParent:
        """Start another one for rounds, beside those that serve already."""
        variables = environment(threads)
        try:
            parent = ForkParent(wanted, variables, self._preload, self._plugins)
        except ForkError as error:
            self._unfit[wanted, _surroundings(variables)] = str(error)
            raise
        self._keep(pool=[*beside, parent])
        return parent

    def _keep(self, *, first: ForkParent | None = None, pool: list[ForkParent] | None = None) -> None:
        """Keep parents for one of both purposes; those that serve none any more are closed."""
        former = self._parents()
        self._first, self._pool = first or self._first, self._pool if pool is None else pool
        for parent in former:
            if parent not in self._parents():
                parent.close()

    def _parents(self) -> list[ForkParent]:
        """Those that are there, those of rounds first."""
        return [parent for parent in dict.fromkeys((*self._pool, self._first)) if parent is not None]


def last_loaded(cache: pytest.Cache | None, threads: int, *, start: str, plugins: Plugins = NO_PLUGINS) -> Forks:
    """The parents of a run: the first one begins to load what the last run's tests loaded, as pytest's cache says."""
    forks = Forks(USED_BY_WORKERS, plugins)
    kept = cache.get(_CACHE, []) if cache is not None and start != "fresh" else []
    with contextlib.suppress(TypeError, ValueError):
        if modules := tuple((str(name), str(file)) for name, file in kept):
            forks.prepare(Common(modules, None), threads)
    return forks


def keep_loaded(cache: pytest.Cache | None, forks: Forks) -> None:
    """Note in pytest's cache what the tests of a run loaded."""
    if cache is not None and forks.roots is not None:
        cache.set(_CACHE, [list(each) for each in forks.roots])


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a parent has from the process that starts it."""

    environment: frozenset[tuple[str, str]]
    path: tuple[str, ...]
    folder: Path


def _surroundings(variables: Mapping[str, str]) -> _Surroundings:
    # pytest's note on which test runs is none of theirs.
    kept = {name: value for name, value in variables.items() if not name.startswith("PYTEST_CURRENT_TEST")}
    return _Surroundings(frozenset(kept.items()), tuple(import_texts(sys.path)), Path.cwd())


class ForkParent:
    """A process that loads some modules, and is forked from once it has loaded them, until it is closed.

    Raises
    ------
    ForkError
        When it cannot be started.
    """

    def __init__(
        self,
        wanted: Common,
        variables: Mapping[str, str],
        preload: tuple[str, ...],
        plugins: Plugins = NO_PLUGINS,
    ) -> None:
        if problem := unsupported():
            raise ForkError(problem)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the parent
        self._channel, theirs = pair()
        try:
            self._process = boot(
                "fork_server",
                (theirs.fileno(), os.getpid()),
                import_texts(sys.path),
                folder=None,
                variables=variables,
                output=self._output,
                passing=(theirs.fileno(),),
            )
        except OSError as error:
            self._release()
            raise ForkError(f"the fork server cannot be started: {error}") from None
        finally:
            theirs.close()
        processes.guard(self._process.pid)
        self.wanted = wanted
        self.rounds = 0
        """Rounds that were forked from it."""
        self.refused: bool | None = None
        """Whether first processes were forked from it and none was like a new one; `None` if none was forked."""
        self.surroundings = _surroundings(variables)
        self.roots: tuple[tuple[str, str], ...] = ()
        """Modules that were imported, with their files; the others that are loaded came with these."""
        self._is_read = False
        """Whether it is known what it has loaded."""
        self._is_held = False
        self._modules: frozenset[tuple[str, str]] = frozenset()
        self._in_step = True
        """Whether every message so far was answered."""
        # One that has ended already is noticed when its answer is waited for.
        with contextlib.suppress(ChannelClosed, OSError):
            self._tell(LoadModules(wanted.modules, wanted.allowed, preload, plugins))

    def load(self) -> None:
        """Wait until the modules are loaded.

        Raises
        ------
        ForkError
            When they cannot be, or the process is not fit to be forked.
        """
        if self._is_read:
            return
        self.hold(False)
        answer = self._answer(clocks.monotonic() + _LOADING_SECONDS, _LOADING_SECONDS)
        if answer.problem:
            raise ForkError(answer.problem)
        self._is_read, self._modules, self.roots = True, frozenset(answer.loaded), answer.roots

    @property
    def is_loaded(self) -> bool:
        """Whether `load` would not wait."""
        return self._is_read or bool(select.select([self._channel.fileno()], [], [], 0)[0])

    def hold(self, held: bool) -> None:
        """Stop the process while it loads, or let it go on."""
        if self._is_held != held and not self._is_read:
            self._is_held = held
            processes.stop(self._process.pid, held)

    def serves(self, wanted: Common, now: _Surroundings) -> bool:
        """Whether it loads what is wanted, and nothing beyond what may be loaded by the way."""
        if not self.fits(now):
            return False
        known = {*wanted.modules, *(wanted.allowed or ())}
        return wanted == self.wanted or (self._modules.issuperset(wanted.modules) and self._modules.issubset(known))

    def fits(self, now: _Surroundings) -> bool:
        """Whether a parent that is started now would load the same from the same places."""
        then = self.surroundings
        if not self.alive or (now.environment, now.folder) != (then.environment, then.folder):
            return False
        if now.path == then.path:
            return True
        with contextlib.suppress(ForkError):
            self.load()
            names = {name.partition(".")[0] for name, _ in self._modules}
            both = {*now.path} & {*then.path}
            in_order = [[each for each in path if each in both] for path in (now.path, then.path)]
            others = {*now.path, *then.path} - both
            return in_order[0] == in_order[1] and not any(_has_one_of(names, place) for place in others)
        return False

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fork(
        self, descriptors: Sequence[int], path: Sequence[str], folder: str, variables: Mapping[str, str]
    ) -> ForkedProcess:
        """Fork a worker; see `process.Parent`.

        Raises
        ------
        ForkError
            When the parent has ended, or does not answer.
        """
        forked = self._ask(Fork(tuple(path), folder, variables), descriptors)
        try:
            return ForkedProcess(forked.pid, self)
        except OSError as error:
            # It has no job, and ends when the channel that it waits at is closed.
            raise ForkError(f"a forked process cannot be monitored: {error.strerror}") from None

    def reap(self, pid: int) -> int:
        """Exit code of a forked process that has ended; that of SIGKILL, which it had from the system, if unknown."""
        try:
            code: int = self._ask(Reap(pid)).code
        except ForkError:
            return -signal.SIGKILL
        return code

    def close(self) -> None:
        """End the process; the system then ends what is still forked from it."""
        processes.end_and_wait(self._process)
        self._release()

    def _release(self) -> None:
        self._channel.close()
        self._output.close()

    def _ask(self, message: object, descriptors: Sequence[int] = ()) -> Any:
        if not self._in_step:
            raise ForkError("the fork server was stopped, because it did not answer")
        # Whatever interrupts this, Ctrl-C too, leaves an answer that would be taken for that to the next message.
        self._in_step = False
        with contextlib.suppress(ChannelClosed, OSError):
            self._tell(message, descriptors)
        answer = self._answer(clocks.monotonic() + _ANSWER_SECONDS, _ANSWER_SECONDS)
        self._in_step = True
        return answer

    def _tell(self, message: object, descriptors: Sequence[int] = ()) -> None:
        with socket.socket(fileno=os.dup(self._channel.fileno())) as connection:
            socket.send_fds(connection, [b"."], descriptors)
        self._channel.send(message)

    def _answer(self, deadline: float, seconds: float) -> Any:
        """The answer to the last message; `seconds` are what it was given until the deadline."""
        try:
            return self._channel.receive(alive=lambda: self.alive, deadline=deadline)
        except ChannelTimeout:
            processes.end(self._process.pid)
            raise ForkError(f"the fork server did not answer within {seconds:g} s") from None
        except (ChannelClosed, OSError):
            # No answer comes any more.
            self._in_step = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            said = self._last_line()
            raise ForkError(f"the fork server exited{f': {said}' if said else ''}") from None

    def _last_line(self) -> str:
        if self._output.closed:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class ForkedProcess:
    """A process that a parent has forked: what `subprocess.Popen` is for a child of one's own."""

    def __init__(self, pid: int, parent: ForkParent) -> None:
        self.pid = pid
        self._parent = parent
        self._code: int | None = None
        # Its number is its own until the parent has waited for it.
        self._descriptor: int | None = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, or `None` while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code.

        Raises
        ------
        subprocess.TimeoutExpired
        """
        if self._code is None:
            assert self._descriptor is not None
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(["fork"], timeout or 0.0)
            os.close(self._descriptor)
            self._descriptor = None
            # Also if asking is interrupted: then nobody asks again.
            self._code = -signal.SIGKILL
            self._code = self._parent.reap(self.pid)
        return self._code


def unsupported() -> str:
    """Why this system cannot fork workers, in one line; empty if it can."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return "forking is supported on Linux only"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"this system cannot monitor forked processes: {error.strerror}"
    return ""


def _turns(parent: ForkParent) -> int:
    """How many turns it has had."""
    return parent.rounds // ROUNDS_IN_A_ROW


def _has_one_of(names: Collection[str], place: str) -> bool:
    """Whether a place on the import path has a module or package of one of these names."""
    if os.path.isfile(place):  # noqa: PTH113 - the path has texts
        return True
    try:
        return any(entry.partition(".")[0] in names for entry in os.listdir(place or "."))  # noqa: PTH208
    except OSError:
        return False


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
