"""Starts or forks the worker processes of a run, and ends all of them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_perfdl.config.settings import Settings
from pytest_perfdl.measure.commands import TIMING, CallInfo, DescribeCases, Profile
from pytest_perfdl.measure.sizes import TimeLimit
from pytest_perfdl.model.errors import ForkError
from pytest_perfdl.model.metrics import general
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.joined_ranks import joined
from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.system import clocks, folders
from pytest_perfdl.system.folders import Folder
from pytest_perfdl.workers.channel import Shown, WorkerJob
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.files_read import SEEDED
from pytest_perfdl.workers.forks import USED_BY_WORKERS, Common, ForkParent, Forks, common, keep_loaded
from pytest_perfdl.workers.job import Job, plugin_packages, worker_options
from pytest_perfdl.workers.process import AnyWorker, Worker, environment
from pytest_perfdl.workers.remote_test import RemoteTest, Script


def _caches(folder: Path) -> dict[str, str]:
    """Variables that have compilers keep in a folder what they have compiled and tuned.

    Inductor's folder holds its FX graphs, AOT autograd's, and the choices of its autotuning.
    """
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def undisturbed(script: Script, hold: Callable[[bool], object]) -> Script:
    """The same script; what loads meanwhile is held beside steps that are timed or profiled."""
    reply = None
    try:
        while True:
            command = script.send(reply)
            if command is not None:
                hold(isinstance(command, TIMING | Profile | DescribeCases))
            reply = yield command
    except StopIteration as stop:
        return stop.value


def least_loaded() -> Common | None:
    """What every test loads at least, before its first call; `None` where stubs stand for it."""
    try:
        specs = [find_spec(name) for name in ("torch", SEEDED)]
    except (ImportError, ValueError):
        return None
    found = tuple((spec.name, spec.origin) for spec in specs if spec is not None and spec.origin is not None)
    return Common(found, None) if len(found) == len(specs) else None


@dataclass(frozen=True, slots=True)
class Start:
    """How a process was started: see `Processes.start`."""

    nodeid: str
    parent: ForkParent | None
    unfrozen: bool


class Processes:
    """Starts the workers of a run, and ends those that are left.

    Parameters
    ----------
    revisions
        Where a side's code is imported from.
    folder
        For what is too large for a worker's channel, and for the workers' own temporary folders; by default a new one.
    forks
        What workers are forked from; by default nothing is there yet.
    began
        The environment before any code of the repository was loaded; by default as it is.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        revisions: Revisions,
        folder: Folder | None = None,
        forks: Forks | None = None,
        began: Mapping[str, str] | None = None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._revisions = revisions
        self._folder = folder or folders.temporary("scratch")
        self._forks = forks or Forks(USED_BY_WORKERS)
        self._began = began
        self._unset: dict[Path, dict[str, str | None]] = {}
        """Variables that code of a checkout does not set as the working tree's does, by its folder."""
        self._running: list[RemoteTest] = []
        self._numbers = itertools.count(1)
        self._last: Start | None = None
        self._last_start = 0.0
        self._compiled: dict[tuple[str, str], Path] = {}
        """What was compiled for each side of a test, by its node id and the folder of its code."""

    @property
    def scratch(self) -> Path:
        """Path of the folder."""
        return self._folder.path

    def timeout(self, test: PerfTest) -> TimeLimit:
        """How long one worker may take, and how much of that the one that was started last has taken."""
        elapsed = clocks.monotonic() - self._last_start
        if test.options.timeout:
            return TimeLimit(test.options.timeout, "timeout", elapsed)
        return TimeLimit(self._settings.timeout, elapsed=elapsed)

    def start(
        self,
        test: PerfTest,
        script: Callable[[CallInfo], Script],
        *,
        first: bool = False,
        checkout: Checkout | None = None,
        against: Checkout | None = None,
        side: str = "",
        parent: ForkParent | None = None,
        unfrozen: bool = False,
        attribute: bool = False,
        cold: bool = False,
    ) -> RemoteTest:
        """Start a worker on a test.

        What `--perf-inject` slows down is the working tree, and of a `perf.compare` its second alternative.

        Parameters
        ----------
        test, script
            What to run, and what to do in each of its calls.
        first
            Whether pytest's own reports are made of this worker.
        checkout
            The code to run instead of the working tree's.
        against
            The checkout whose code must not be loaded, while running the working tree's.
        side
            Which alternative of a `perf.compare` to run.
        parent
            What to fork the worker from; by default it is started.
        unfrozen
            Whether garbage collections of a forked worker walk over what it was forked with.
        attribute
            Whether the worker records every allocation, to say whose they are.
        cold
            Whether this is the first process of its side: it finds the compiler's caches empty (by default what earlier
            ones left there), and reports how its test loads and runs.

        Raises
        ------
        ForkError
            When the parent cannot fork it.
        """
        config, settings, top = self._config, self._settings, self._revisions.top
        capture = config.getoption("capture", "fd")
        self._last = Start(test.item.nodeid, parent, unfrozen)
        # pytest makes this folder when a test first asks for one, and removes what is there: no two workers share it.
        basetemp = self.scratch / f"basetemp-{next(self._numbers)}"
        packages = plugin_packages(config)
        self._last_start = clocks.monotonic()
        options = worker_options(vars(config.option), str(basetemp), config.rootpath, config.inipath, packages)
        own, foreign = "" if top is None else str(top), ""
        if checkout is not None:
            places = {name: options[name] for name in ("basetemp", "xmlpath") if name in options}
            options = checkout.options(options) | places
            own, foreign = str(checkout.root), str(checkout.working_tree) if checkout.is_other_code else ""
        elif against is not None:
            own, foreign = str(against.working_tree), str(against.root) if against.is_other_code else ""
        caches = self._caches_of(test, checkout, cold=cold)
        names, deeper = self._revisions.names(checkout)
        job = WorkerJob(
            options=options,
            path=str(test.item.path) if checkout is None else checkout.path(test.item.path),
            nodeid=test.item.nodeid,
            plan=test.plan,
            scratch=str(self.scratch),
            key_extra=settings.key_extra,
            preload=USED_BY_WORKERS,
            own=own,
            foreign=foreign,
            names=names,
            deeper=deeper,
            first=first,
            side=side,
            inject=settings.inject if checkout is None and not side.startswith("base") else 0.0,
            attribute=attribute,
            cold=not any(caches.iterdir()),
            rank_timeout=settings.launch.timeout,
            shows=cold,
            unfrozen=unfrozen,
            tests={case: each.item.nodeid for case, each in test.cases.items()},
            identity=test.hash if test.cases else "",
        )
        # What pytest does not capture is the user's to see; later repeats would only repeat it.
        inherit_output = first and capture != "fd"
        import_path = None if checkout is None else checkout.import_path()
        folder = None if checkout is None else checkout.folder(Path.cwd())
        unset = self._unset_of(checkout)
        if unset and parent is not None:
            listed = ", ".join(sorted(unset))
            raise ForkError(f"the current code and the baseline set environment variables differently: {listed}")
        given = {name: value for name, value in os.environ.items() if name not in unset}
        given |= {name: value for name, value in unset.items() if value is not None}
        variables = environment(test.plan.threads, given) | _caches(caches)
        if checkout is not None:
            # torch builds C++ extensions in one folder per name: who waits for the other side's build would load it.
            built = checkout.root.parent if checkout.is_other_code else self.scratch
            variables |= {**checkout.environment(), "TORCH_EXTENSIONS_DIR": str(built / "torch_extensions")}
        interpreter = None if checkout is None else checkout.interpreter
        worker: AnyWorker
        if test.plan.ranks:
            ranks_folder = self.scratch / f"ranks-{next(self._numbers)}"
            ranks_folder.mkdir()
            worker = Job(
                job,
                ranks=test.plan.ranks,
                launch=settings.launch,
                join=joined,
                folder=ranks_folder,
                root=str(config.rootpath),
                variables=variables,
                timeout=self.timeout(test).seconds,
                inherit_output=inherit_output,
                import_path=import_path,
                working_folder=folder,
                interpreter=interpreter,
            )
        else:
            worker = Worker(
                job,
                variables=variables,
                timeout=self.timeout(test).seconds,
                inherit_output=inherit_output,
                import_path=import_path,
                folder=folder,
                parent=parent,
                interpreter=interpreter,
            )
        remote = RemoteTest(
            test.item,
            worker,
            lambda call: undisturbed(script(call), self._forks.hold),
            forward=first,
            judge=partial(self._forks.judge, parent) if cold and parent is not None else bool,
        )
        self._running = [*(each for each in self._running if not each.over), remote]
        return remote

    def _unset_of(self, checkout: Checkout | None) -> dict[str, str | None]:
        """Variables of this process that processes of a side begin without: see `Checkout.unset`."""
        if checkout is None or self._began is None:
            return {}
        if checkout.root not in self._unset:
            self._unset[checkout.root] = checkout.unset(self._began)
        return self._unset[checkout.root]

    def _caches_of(self, test: PerfTest, checkout: Checkout | None, *, cold: bool) -> Path:
        """The folder of a side's compiler caches; a new one where it must be empty.

        The time of compiling is compared between processes that all found it empty, if it has a limit.
        """
        side = test.item.nodeid, "" if checkout is None else f"{checkout.root} {checkout.interpreter}"
        limited = any(general(name) == "compile_time" and not limit.off for name, limit in test.limits.limits.items())
        if cold or limited or side not in self._compiled:
            self._compiled[side] = self.scratch / f"compiled-{next(self._numbers)}"
            self._compiled[side].mkdir()
        return self._compiled[side]

    def prepare_parent(self, test: PerfTest, shown: Shown | None) -> None:
        """Have what rounds are forked from load what the head has shown, while the base's first process runs."""
        if shown is not None and self._settings.start != "fresh" and not test.plan.ranks:
            with contextlib.suppress(ForkError):
                self._forks.prepare(common(shown, shown), test.plan.threads)

    def first_parent(self, test: PerfTest, shown: Shown | None = None) -> ForkParent | None:
        """What to fork the first process of a side from; `None` where it must be started.

        It has loaded what the first process of the other side has shown, unless that loaded some of it during its
        calls: compiling would take a shorter time with it. Otherwise it has loaded what a test before loaded, or what
        every test loads. The process reports if a new one would not have loaded these before its first call.
        """
        if self._settings.start == "fresh" or test.plan.ranks or self._config.getoption("capture", "fd") != "fd":
            return None
        with contextlib.suppress(ForkError):
            if shown is not None and not shown.late:
                return self._forks.parent(common(shown, shown), test.plan.threads, first=True)
            return self._forks.present(least_loaded(), test.plan.threads)
        return None

    def parent(self, test: PerfTest, shown: tuple[Shown, Shown], *, wait: bool = False) -> ForkParent:
        """What to fork both workers of a round from, given what the first process of each side has shown.

        With `wait`, others have their turns after some rounds in any case; otherwise, once they have loaded.

        Raises
        ------
        ForkError
            When workers of this test are to be started.
        """
        return self._forks.parent(common(*shown), test.plan.threads, wait=wait)

    def last_fork(self, test: PerfTest) -> Start | None:
        """How the last process was forked, if it was one of this test, and if another one can be forked in this way."""
        last = self._last
        can = last is not None and last.nodeid == test.item.nodeid and last.parent is not None and last.parent.alive
        return last if can else None

    def end(self, *, gently: bool) -> None:
        """End every worker that is still alive; gently, as Ctrl-C would, with its fixtures torn down."""
        for remote in self._running:
            remote.end(gently=gently)
        self._running.clear()

    def close(self) -> None:
        """End every process of the run, and remove the scratch folder."""
        self.end(gently=False)
        keep_loaded(getattr(self._config, "cache", None), self._forks)
        self._forks.close()
        self._folder.remove()
