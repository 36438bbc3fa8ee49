"""The state of the machine around a measurement: CPU time, page faults, other load, clocks, swapping, tracers."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import resource
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pytest_perfdl.machine import proc
from pytest_perfdl.system import clocks
from pytest_perfdl.system.import_path import own_imports


@dataclass(frozen=True, slots=True)
class Usage:
    """What this process had used up at a moment."""

    wall_ns: int
    cpu_ns: int
    system_ns: int
    run_delay_ns: int
    """How long this thread was ready to run and did not, because other processes used the CPU."""
    minor_faults: int

    @classmethod
    def now(cls) -> Usage:
        """Read the clocks and counters."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        wall_ns, cpu_ns = clocks.perf_counter_ns(), clocks.process_time_ns()
        return cls(wall_ns, cpu_ns, int(usage.ru_stime * 1e9), _run_delay_ns(), usage.ru_minflt)

    def since(self, before: Usage) -> Usage:
        """What was used up between two moments."""
        return Usage(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(Usage)))

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """What several used up together."""
        columns = [[getattr(part, each.name) for each in fields(cls)] for part in parts]
        return cls(*map(sum, zip(*columns, strict=True))) if columns else NO_USAGE


NO_USAGE = Usage(0, 0, 0, 0, 0)


_HELPING = 0.1
"""CPUs that other threads keep busy on average before they count as working for the step."""


_LEAST_HELP = 0.001
"""Seconds of other threads' work that count at least."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """Who works for this thread: child processes, and other threads of this process."""

    children: bool
    """Whether there are any now, at work or not."""
    ended: tuple[float, ...]
    """What those that have ended had used."""
    wall_s: float
    threads_s: float
    """CPU time of all threads but this one."""

    @classmethod
    def now(cls) -> Helpers:
        """Ask the system."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            _has_children(),
            (used.ru_utime, used.ru_stime, used.ru_minflt),
            clocks.monotonic(),
            clocks.process_time() - clocks.thread_time(),
        )

    def since(self, before: Helpers) -> tuple[bool, bool]:
        """Whether child processes, and whether other threads, worked between two moments."""
        used = self.threads_s - before.threads_s
        # Both clocks of a short while differ by what reading them takes.
        busy = used > _LEAST_HELP and used > _HELPING * (self.wall_s - before.wall_s)
        return self.children or before.children or self.ended != before.ended, busy


def _has_children() -> bool:
    """Whether this process has children that it has not waited for; they stay as they are."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except (AttributeError, OSError):  # not every system has it
        return True
    return True


_SCHEDULER = "/proc/thread-self/schedstat"


def _run_delay_ns() -> int:
    """The scheduler's account of this thread (Linux, `sched_info`); 0 where there is none."""
    with run_delay_reader() as read:
        return read()


@contextlib.contextmanager
def run_delay_reader() -> Iterator[Callable[[], int]]:
    """A way to read the same account often, in about 2 µs; for the thread that asks for it only."""
    try:
        descriptor = os.open(_SCHEDULER, os.O_RDONLY)
    except OSError:
        yield lambda: 0
        return
    try:
        yield lambda: int(os.pread(descriptor, 64, 0).split()[1])
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Load:
    """CPU time by user, over one window or several; the kernel counts in ticks of 10 ms."""

    wall_s: float
    others_s: float
    """What others used of the CPUs that this process may run on, stolen time included."""
    helpers_s: float
    """What the step's own helpers used: the processes and threads of this process group, and of those of other ranks
    on this machine, but the step's thread."""

    @classmethod
    def joined(cls, parts: Sequence[Load | None]) -> Load | None:
        """That of several windows together; `None` where one of them is not known."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        return cls(
            sum(part.wall_s for part in known),
            sum(part.others_s for part in known),
            sum(part.helpers_s for part in known),
        )

    @property
    def is_telling(self) -> bool:
        """Whether it is of long enough a time for the kernel's ticks to say something."""
        return self.wall_s >= _LEAST_WINDOW_S

    @property
    def others(self) -> float:
        """CPUs that others kept busy on average."""
        return max(0.0, self.others_s / self.wall_s)

    @property
    def helpers(self) -> float:
        """CPUs that the step's own helpers kept busy on average; what ticks may be wrong by is none."""
        return max(0.0, self.helpers_s / self.wall_s - _WRONG_BY)


_LEAST_WINDOW_S = 0.2
_WRONG_BY = 0.1
"""CPUs: two ticks in the shortest window."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The kernel's counters behind `Load` at a moment, in seconds."""

    wall_s: float
    all_s: float
    group_s: float
    thread_s: float

    @classmethod
    def now(cls, groups: Collection[int] = (), root: Path = proc.ROOT) -> Busy | None:
        """Read them; `None` where there are none (not Linux).

        Parameters
        ----------
        groups
            Process groups that work for the step; by default this process's.
        """
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
        total = sum(time.busy for name, time in proc.processor_times(root).items() if name in allowed)
        if not total:
            return None
        group, ticks = _group_ticks(groups or (os.getpgrp(),), root), os.sysconf("SC_CLK_TCK")
        return cls(clocks.monotonic(), total / ticks, group / ticks, clocks.thread_time())

    def since(self, before: Busy | None) -> Load | None:
        """Who used what between two moments."""
        if before is None:
            return None
        group = self.group_s - before.group_s
        return Load(
            self.wall_s - before.wall_s,
            (self.all_s - before.all_s) - group,
            group - (self.thread_s - before.thread_s),
        )


def _group_ticks(groups: Collection[int], root: Path) -> int:
    """CPU time of every process in these process groups, ended children included."""
    return sum(each.ticks + each.children_ticks for _, each in proc.processes(root) if each.group in groups)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the machine did during a timed pass besides the step; `None` where the system does not say."""

    clocks_mhz: tuple[float, ...] = ()
    """Clock of the CPU that the step ran on, before and after."""
    throttled: int | None = None
    """Most times that any one core was slowed down for its temperature or power."""
    swapped_pages: int | None = None
    """Pages to and from the disk, of all processes."""
    stolen_ticks: int | None = None
    """CPU time that a hypervisor gave to others although this system wanted to run."""
    busy_ticks: int | None = None
    """CPU time in which this system ran or wanted to; a tick is 10 ms on most systems."""
    major_faults: int = 0
    """Pages that this process waited for the disk for."""

    @classmethod
    def joined(cls, parts: Sequence[Surroundings]) -> Surroundings:
        """Those of several windows together."""
        return cls(
            clocks_mhz=tuple(clock for part in parts for clock in part.clocks_mhz),
            throttled=_total([part.throttled for part in parts]),
            swapped_pages=_total([part.swapped_pages for part in parts]),
            stolen_ticks=_total([part.stolen_ticks for part in parts]),
            busy_ticks=_total([part.busy_ticks for part in parts]),
            major_faults=sum(part.major_faults for part in parts),
        )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True)
class State:
    """The kernel's counters (Linux) at a moment; whatever a system does not have is `None` or empty."""

    clock_mhz: float | None
    throttled: Mapping[str, int]
    """By core and cause, since the start."""
    swapped_pages: int | None
    stolen_ticks: int | None
    busy_ticks: int | None
    major_faults: int

    @classmethod
    def now(cls, root: Path = proc.ROOT) -> State:
        """Read them below `root`, which takes a fraction of a millisecond and no special rights."""
        together = proc.processor_times(root).get("cpu")
        return cls(
            proc.clock_mhz(root),
            proc.throttle_counts(root),
            proc.swapped_pages(root),
            None if together is None else together.stolen,
            None if together is None else together.busy,
            resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        )

    def since(self, before: State) -> Surroundings:
        """What happened between two moments."""
        slowed = [count - before.throttled[name] for name, count in self.throttled.items() if name in before.throttled]
        return Surroundings(
            clocks_mhz=tuple(clock for clock in (before.clock_mhz, self.clock_mhz) if clock is not None),
            throttled=max(slowed, default=None),
            swapped_pages=_difference(before.swapped_pages, self.swapped_pages),
            stolen_ticks=_difference(before.stolen_ticks, self.stolen_ticks),
            busy_ticks=_difference(before.busy_ticks, self.busy_ticks),
            major_faults=self.major_faults - before.major_faults,
        )


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


class Binding:
    """Binds all tasks of this process to one CPU, until they are freed."""

    def __init__(self) -> None:
        self._before: dict[int, set[int]] = {}

    def bind(self, core: int) -> None:
        """Let every task run on this CPU only, those too that they start later.

        Raises
        ------
        OSError
            When this process may not run there.
        """
        self.free()
        for task in proc.tasks():
            with contextlib.suppress(ProcessLookupError):
                self._before[task] = os.sched_getaffinity(task)
                os.sched_setaffinity(task, {core})

    def free(self) -> None:
        """Let every task run where it might before, and those started meanwhile where this one might."""
        if not self._before:
            return
        own = next(iter(self._before.values()))
        for task in proc.tasks():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, self._before.get(task, own))
        self._before.clear()


_QUIET_LOOKS = 3
"""Looks in which all other threads sleep: one of them may sleep for a moment before it goes on."""


def wait_for_other_threads(seconds: float) -> bool:
    """Wait until all other threads of this process sleep, in `_QUIET_LOOKS` looks a millisecond apart; whether they do.

    A thread that another process displaced from its CPU does not sleep. Where the system does not say (not Linux), this
    waits a tenth of the time.

    Parameters
    ----------
    seconds
        Wait no longer.
    """
    deadline, quiet, own = clocks.monotonic() + seconds, 0, threading.get_native_id()
    while quiet < _QUIET_LOOKS:
        if clocks.monotonic() > deadline:
            return False
        try:
            quiet = 0 if any(_runs(task) for task in proc.tasks() if task != own) else quiet + 1
        except OSError:
            clocks.sleep(seconds / 10)
            return False
        # Threads that wait for the interpreter's lock sleep, too; now they can have it.
        clocks.sleep(0.001)
    return True


def _runs(task: int) -> bool:
    """Whether a thread has a CPU or waits for one; one that is gone does not."""
    found = proc.process(Path(f"/proc/self/task/{task}"))
    return found is not None and found.state == "R"


def active_tracer() -> str:
    """Name of a tracer that would slow Python down while measuring, or an empty text."""
    for what, function in (("trace", sys.gettrace()), ("profile", sys.getprofile())):
        if function is not None:
            module = getattr(function, "__module__", None) or type(function).__module__
            return f"a {what} function from {module}"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for tool in range(6):
            name = monitoring.get_tool(tool)
            if name is not None and monitoring.get_events(tool):
                return f"the monitoring tool {name!r}"
    return ""


_YOUNG = -1 if sysconfig.get_config_var("Py_GIL_DISABLED") else 0 if sys.version_info >= (3, 14) else 1
"""Oldest generation whose collections pass over what was alive long before.

Python without the interpreter's lock has a single generation, and since 3.14 collections of the second one walk over a
part of all others too (https://docs.python.org/3/library/gc.html#gc.collect).
"""
_walks: list[str] = []


def object_walks() -> int:
    """How often this process walked over its old objects since this was first asked.

    Garbage collections do; frozen objects are left out (`gc.freeze`). `gc.get_objects` and `gc.get_referrers` are
    noticed by the first process of a side alone: an audit hook would cost steps 0.2 µs for each `id()` in them.
    """
    _notice_walks()
    return len(_walks)


@functools.cache
def _notice_walks() -> None:
    def collecting(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] > _YOUNG:
            _walks.append("collection")

    gc.callbacks.append(collecting)


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators, those that are loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # numpy loads this part, and the library's `secrets` with it, when it is first used.
        with contextlib.nullcontext() if "numpy.random" in sys.modules else own_imports():
            numpy.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
