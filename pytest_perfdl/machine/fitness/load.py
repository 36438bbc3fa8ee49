"""Other load on the machine: two samples of the kernel's counters, and their difference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.machine import proc
from pytest_perfdl.machine.fitness.finding import Level, MachineFinding, counted
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.system import clocks

NOTICED = 0.1
"""CPUs kept busy by others from which on it is reported; ticks of 10 ms show no less in a short window."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The kernel's counters (Linux) at a moment. Times are in ticks, `ticks_per_second` of them a second."""

    wall_s: float
    ticks_per_second: int
    busy: Mapping[int, int]
    """By CPU: all that is neither idle nor waiting for a disk, stolen time included."""
    stolen: int
    total: int
    """All CPU time since the start, idle included."""
    processes: Mapping[int, proc.ProcessState]
    swapped_pages: int | None
    throttled: int | None
    """Most times that any one core was slowed down for its temperature or power, since the start."""

    @classmethod
    def take(cls, root: Path, wall_s: float | None = None, ticks_per_second: int | None = None) -> Sample | None:
        """Read the counters below `root`; `None` where there are none."""
        times = proc.processor_times(root)
        together = times.pop("cpu", None)
        if together is None:
            return None
        return cls(
            clocks.monotonic() if wall_s is None else wall_s,
            os.sysconf("SC_CLK_TCK") if ticks_per_second is None else ticks_per_second,
            {int(name[3:]): time.busy for name, time in times.items()},
            together.stolen,
            together.busy + together.idle,
            dict(proc.processes(root)),
            proc.swapped_pages(root),
            max(proc.throttle_counts(root).values(), default=None),
        )


def others(before: Sample, after: Sample, allowed: frozenset[int], own_group: int) -> Sequence[MachineFinding]:
    """Which other processes use the allowed CPUs, and how much."""
    window = after.wall_s - before.wall_s
    per_processor = after.ticks_per_second * window
    shared = allowed & after.busy.keys() & before.busy.keys()
    if window <= 0 or not shared:
        return []
    groups = _busy_groups(before, after)
    busy = sum(after.busy[processor] - before.busy[processor] for processor in shared)
    taken = max(0.0, (busy - sum(ticks for ticks, _ in groups.pop(own_group, []))) / per_processor)
    found = f"other processes use {taken:.2f} of {counted(len(shared), 'CPU')}"
    if taken < NOTICED:
        return [MachineFinding("ok", "load now", found)]
    busiest = sorted(((sum(ticks for ticks, _ in of), max(of)[1]) for of in groups.values()), reverse=True)[:3]
    names = [
        f"{after.processes[pid].name} ({pid}) {ticks / per_processor:.2f}"
        for ticks, pid in busiest
        if ticks / per_processor > 0.02
    ]
    pids = ",".join(str(pid) for ticks, pid in busiest if ticks / per_processor > 0.02)
    return [
        MachineFinding(
            "bad" if taken > len(shared) - 1 + NOTICED else "warn",
            "load now",
            f"{found}; busiest: {', '.join(names)}" if names else found,
            "other processes preempt the step and evict its caches",
            f"stop these processes, or wait for their end: ps -o pid,etime,args -p {pids}"
            if pids
            else "stop other processes",
        )
    ]


def _busy_groups(before: Sample, after: Sample) -> dict[int, list[tuple[int, int]]]:
    """Process group -> (ticks in the window, process id) of its active members."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for pid, process in after.processes.items():
        earlier = before.processes.get(pid)
        ticks = process.ticks - (earlier.ticks if earlier else 0)
        if ticks > 0:
            groups.setdefault(process.group, []).append((ticks, pid))
    return groups


def average(root: Path, processors: int) -> Sequence[MachineFinding]:
    """How busy the machine was in the last minutes."""
    values = (proc.read(root / "proc/loadavg") or "").split()[:3]
    if len(values) < 3:
        return []
    last, five, fifteen = map(float, values)
    found = f"{last:.2f} in 1 min, {five:.2f} in 5, {fifteen:.2f} in 15, on {counted(processors, 'CPU')}"
    level: Level = "ok"
    why = ""
    if last > processors:
        level, why = "warn", "the run queue is longer than the CPU count"
    elif last > processors / 2:
        level, why = "note", "the machine was busy recently"
    return [MachineFinding(level, "load average", found, why)]


def stolen(root: Path, before: Sample, after: Sample) -> Sequence[MachineFinding]:
    """Time that a hypervisor gave to other virtual machines although this one was ready to run."""
    since_boot = after.stolen / max(after.total, 1)
    now = (after.stolen - before.stolen) / max(after.total - before.total, 1)
    virtual = any("hypervisor" in each.get("flags", "").split() for each in proc.processors(root))
    found = f"{format_percent(now, signed=False)} of CPU time now, "
    found += f"{format_percent(since_boot, signed=False)} since boot"
    if max(now, since_boot) > 0.01:
        return [
            MachineFinding(
                "bad" if now > 0.1 else "warn",
                "stolen time",
                found,
                "other virtual machines on the host preempt the step",
                "use a machine with dedicated CPUs, or compare on one machine: pytest --perf-against REF",
            )
        ]
    if virtual:
        why = "other virtual machines may share caches and memory bandwidth, which cannot be observed"
        return [MachineFinding("note", "stolen time", f"{found}; virtual machine", why)]
    return [MachineFinding("ok", "stolen time", found)]


def throttling(before: Sample, after: Sample) -> Sequence[MachineFinding]:
    """Whether CPUs were throttled because of temperature or power."""
    if before.throttled is None or after.throttled is None:
        return []
    now = after.throttled - before.throttled
    if now > 0:
        found = f"CPUs were throttled {counted(now, 'time')} during this check"
        return [
            MachineFinding(
                "bad", "throttling", found, "the clock changes during steps", "let the machine cool; check the fan"
            )
        ]
    if after.throttled:
        found = f"CPUs were throttled {counted(after.throttled, 'time')} since boot, but not during this check"
        return [MachineFinding("note", "throttling", found, "throttling may happen again under sustained load")]
    return [MachineFinding("ok", "throttling", "CPUs were never throttled since boot")]


def swapping(before: Sample, after: Sample, page_bytes: int) -> Sequence[MachineFinding]:
    """Whether pages go to and from the disk."""
    if before.swapped_pages is None or after.swapped_pages is None:
        return []
    moved = (after.swapped_pages - before.swapped_pages) * page_bytes
    if moved > 0:
        found = f"{format_quantity(moved, 'B')} were swapped during this check"
        return [
            MachineFinding("bad", "swapping", found, "steps may wait for the disk", "free memory, or sudo swapoff -a")
        ]
    return [MachineFinding("ok", "swapping", "none now")]
