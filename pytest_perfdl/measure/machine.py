"""The machine's state around a measurement: processor time, page faults, other load, tracers."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """What this process had used up at a moment."""

    wall_ns: int
    cpu_ns: int
    system_ns: int
    run_delay_ns: int
    """How long this thread was ready to run and did not, because others had the processor."""
    minor_faults: int

    @classmethod
    def now(cls) -> Usage:
        """Read the clocks and counters."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time.perf_counter_ns(), time.process_time_ns(), int(usage.ru_stime * 1e9), _run_delay_ns(), usage.ru_minflt
        )


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
    """How busy all processors were, and of that what this process group did, which the step's helpers are in."""

    wall_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls) -> Load:
        """Read the kernel's counters; where there are none (not Linux) nothing is ever seen as busy."""
        try:
            fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return cls(time.monotonic(), 0.0, 0.0)
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        busy = user + nice + system + irq + softirq + steal
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), busy / ticks, _group_ticks() / ticks)

    def others_since(self, before: Load) -> float | None:
        """Processors that others kept busy on average, stolen time included; `None` where that is not known.

        The kernel counts in ticks of 10 ms, so a short window says nothing.
        """
        wall = self.wall_s - before.wall_s
        if wall < _LEAST_WINDOW_S or not self.busy_s:
            return None
        return max(0.0, ((self.busy_s - before.busy_s) - (self.own_s - before.own_s)) / wall)


_LEAST_WINDOW_S = 0.2


def _group_ticks() -> int:
    """Processor time of every process in this process group, ended children included."""
    group, total = os.getpgrp(), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; the fields behind it are numbers.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += sum(map(int, fields[11:15]))
    return total


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


def collect_garbage() -> None:
    """Collect, then set aside what is alive, so that the collector's later runs are short and alike."""
    gc.collect()
    gc.freeze()


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators, those that are loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
