"""CPUs: clocks, sharing, and how much of them this process may use."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pytest_perfdl.machine.findings import Level, MachineFinding, as_list, listed
from pytest_perfdl.machine.proc import control_groups, numbers, read, read_int
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.system.clocks import perf_counter_ns

_CPU = "sys/devices/system/cpu"
_CLOCK = "sys/devices/system/clocksource/clocksource0"


def allowed() -> frozenset[int]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def last_cache_bytes(root: Path) -> int | None:
    """Size of the last-level cache that the first CPU has a part in (Linux); `None` where nothing says it."""
    found = []
    for folder in (root / _CPU / "cpu0/cache").glob("index[0-9]*"):
        size = re.fullmatch(r"(\d+)([KMG])", read(folder / "size") or "")
        if size and read(folder / "type") != "Instruction":
            found.append((read_int(folder / "level") or 0, int(size[1]) << {"K": 10, "M": 20, "G": 30}[size[2]]))
    return max(found)[1] if found else None


def last_caches(root: Path) -> int:
    """Number of last-level caches of this machine (Linux); 1 where nothing says it."""
    found = set()
    for folder in (root / _CPU).glob("cpu[0-9]*/cache/index[0-9]*"):
        found.add((read_int(folder / "level") or 0, read(folder / "shared_cpu_list")))
    last = max((level for level, _ in found), default=0)
    return max(1, sum(level == last for level, _ in found))


def frequency(root: Path) -> Sequence[MachineFinding]:
    """Frequency governors (Linux, cpufreq)."""
    paths = (root / _CPU).glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = Counter(text for text in map(read, sorted(paths)) if text)
    if not governors:
        return []
    total = sum(governors.values())
    if set(governors) == {"performance"}:
        return [MachineFinding("ok", "frequency", f"governor performance on {plural(total, 'CPU')}")]
    named = ", ".join(f"{name} on {count} of {plural(total, 'CPU')}" for name, count in governors.most_common())
    found = f"governor {named}"
    why = "the clock depends on the load, so step time depends on preceding work"
    do = "sudo cpupower frequency-set -g performance"
    return [MachineFinding("warn", "frequency", found, why, do)]


def turbo(root: Path) -> Sequence[MachineFinding]:
    """Whether CPUs may exceed their base clock (Linux, intel_pstate or cpufreq)."""
    for name, on, off in (("intel_pstate/no_turbo", 0, 1), ("cpufreq/boost", 1, 0)):
        value = read_int(root / _CPU / name)
        if value == on:
            found = "enabled: CPUs may exceed their base clock"
            why = "the clock depends on temperature and on the number of busy CPUs"
            do = f"echo {off} | sudo tee /{_CPU}/{name}"
            return [MachineFinding("note", "turbo", found, why, do)]
        if value == off:
            return [MachineFinding("ok", "turbo", "disabled")]
    return []


def power(root: Path) -> Sequence[MachineFinding]:
    """Whether a laptop runs from its battery (Linux)."""
    supplies = root / "sys/class/power_supply"
    mains = [read_int(folder / "online") for folder in sorted(supplies.glob("*")) if read(folder / "type") == "Mains"]
    if not mains:
        return [MachineFinding("ok", "power", "no battery")] if supplies.is_dir() else []
    if any(mains):
        return [MachineFinding("ok", "power", "on AC power")]
    return [MachineFinding("warn", "power", "on battery", "laptops reduce clocks on battery", "connect the charger")]


def online(root: Path, allowed: frozenset[int]) -> int:
    """How many CPUs the machine has; those that may be used where it does not say."""
    return len(listed(read(root / _CPU / "online") or "") or allowed)


def affinity(root: Path, allowed: frozenset[int]) -> Sequence[MachineFinding]:
    """How many of the CPUs this process may use."""
    present = online(root, allowed)
    found = f"{len(allowed)} of {plural(present, 'CPU')} available to this process"
    if len(allowed) == 1:
        why = "the system and helper threads interrupt the step"
        return [MachineFinding("warn", "affinity", found, why, "allow at least two CPUs (cpuset, taskset, --cpus)")]
    if len(allowed) < present:
        why = "baselines are comparable only with the same number of CPUs"
        return [MachineFinding("note", "affinity", f"{found}: {as_list(sorted(allowed))}", why)]
    return [MachineFinding("ok", "affinity", found)]


def siblings(root: Path, allowed: frozenset[int]) -> Sequence[MachineFinding]:
    """Whether CPUs are hardware threads that share a core (Linux)."""
    cores = set()
    for processor in sorted(allowed):
        text = read(root / _CPU / f"cpu{processor}/topology/thread_siblings_list")
        if not text:
            return []
        cores.add(min(listed(text) & allowed, default=processor))
    if len(cores) == len(allowed):
        return [MachineFinding("ok", "SMT", f"{plural(len(allowed), 'CPU')} on {plural(len(cores), 'core')}")]
    found = f"{plural(len(allowed), 'CPU')} on {plural(len(cores), 'core')}"
    why = "a busy sibling CPU slows down the step on the same core"
    do = f"taskset -c {as_list(sorted(cores))} pytest --perf"
    return [MachineFinding("note", "SMT", found, why, do)]


def quota(root: Path, processors: int) -> Sequence[MachineFinding]:
    """How much CPU time control groups allow (Linux containers, cgroup v1 and v2).

    A group may run for `quota` of every `period`, then all its threads stop until the next period begins; the
    least of a group's and its parents' ratios counts.
    """
    if read(root / "proc/self/cgroup") is None:
        return []
    found = _least(root)
    if found is None or found[0] >= processors:
        return [MachineFinding("ok", "CPU quota", "no quota below the number of CPUs")]
    allowed, period_ns, group = found
    counts = numbers(group / "cpu.stat")
    stopped = ""
    if counts.get("nr_periods"):
        stopped = f"; throttled in {counts.get('nr_throttled', 0)} of {counts['nr_periods']} periods"
    level: Level = "bad" if allowed < 1 else "warn"
    quota = (
        f"{allowed:g} of {plural(processors, 'CPU')} for this container, "
        f"period {format_quantity(period_ns, 'ns')}{stopped}"
    )
    why = "all threads stop when the quota of a period is used up"
    do = "start the container with a cpuset instead of a quota: docker run --cpuset-cpus=... (no --cpus)"
    return [MachineFinding(level, "CPU quota", quota, why, do)]


def least_quota(root: Path) -> float | None:
    """CPUs that control groups allow (see `quota`); `None` where they do not limit them."""
    found = _least(root)
    return None if found is None else found[0]


def _least(root: Path) -> tuple[float, int, Path] | None:
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[tuple[float, int, Path]]:
    """CPUs allowed, the period in nanoseconds and the folder of each control group with a quota."""
    for group in control_groups("cpu", root):
        limit = (read(group.folder / "cpu.max") or "").split() if group.is_unified else _limit_v1(group.folder)
        if len(limit) == 2 and limit[0] not in ("max", "-1"):
            yield int(limit[0]) / int(limit[1]), int(limit[1]) * 1000, group.folder


def _limit_v1(folder: Path) -> list[str]:
    return [text for text in (read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")) if text]


def clock(root: Path, resolution_ns: int, reading_ns: int) -> Sequence[MachineFinding]:
    """How well time can be read: the kernel's source (Linux), and what `clock_figures` saw."""
    source = read(root / _CLOCK / "current_clocksource")
    found = f"{f'clock source {source}, ' if source else ''}resolution {format_quantity(resolution_ns, 'ns')}, "
    found += f"{format_quantity(reading_ns, 'ns')} per reading"
    better = "tsc" in (read(root / _CLOCK / "available_clocksource") or "").split() and source != "tsc"
    do = f"echo tsc | sudo tee /{_CLOCK}/current_clocksource" if better else ""
    why = "reading the clock takes a relevant part of the measured time"
    if source in _SLOW_SOURCES or reading_ns >= 1000 or resolution_ns >= 100_000:
        return [MachineFinding("bad", "clock", found, why, do)]
    if source == "xen" or reading_ns >= 300 or resolution_ns >= 1000:
        return [MachineFinding("warn", "clock", found, why, do)]
    return [MachineFinding("ok", "clock", found)]


_SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"})
"""Sources outside the CPU, read through the kernel."""


def clock_figures(readings: int = 5000) -> tuple[int, int]:
    """Smallest step seen of `time.perf_counter_ns` and the time of one reading, both in nanoseconds."""
    seen = [perf_counter_ns() for _ in range(readings)]
    steps = [after - before for before, after in pairwise(seen) if after > before]
    return min(steps, default=10**9), (seen[-1] - seen[0]) // (readings - 1)
