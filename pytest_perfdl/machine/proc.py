"""What the kernel tells in small files (Linux): `/proc`, the clocks of `/sys` and control groups.

One reader a file. `root` is the root of the file system that holds `proc` and `sys`. What a system does not have, or
what cannot be read, is `None` or empty.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


def read(path: Path) -> str | None:
    """Stripped text of a small file; `None` if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in a file; `None` if there is none."""
    try:
        return int(read(path) or "")
    except ValueError:
        return None


def fields(text: str | None, separator: str | None = ":") -> dict[str, str]:
    """Lines of a name and a value; `None` as a separator is white space."""
    pairs = (line.split(separator, 1) for line in (text or "").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number in white space, as in `memory.stat`."""
    return {name: int(text) for name, text in fields(read(path), None).items() if text.isdigit()}


def memory(root: Path = ROOT) -> dict[str, int]:
    """`/proc/meminfo`, in bytes."""
    words = {name: text.split()[0] for name, text in fields(read(root / "proc/meminfo")).items() if text}
    return {name: 1024 * int(word) for name, word in words.items() if word.isdigit()}


def processors(root: Path = ROOT) -> list[dict[str, str]]:
    """`/proc/cpuinfo`: the fields of each CPU."""
    text = read(root / "proc/cpuinfo")
    return [fields(block) for block in text.split("\n\n")] if text else []


def swapped_pages(root: Path = ROOT) -> int | None:
    """Pages to and from the disk since the start, of all processes (`/proc/vmstat`)."""
    counters = numbers(root / "proc/vmstat")
    return counters["pswpin"] + counters["pswpout"] if {"pswpin", "pswpout"} <= counters.keys() else None


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """What one CPU, or all of them, did since the start, in the kernel's ticks."""

    busy: int
    """All that is neither idle nor waiting for a disk, stolen time included."""
    idle: int
    stolen: int
    """What a hypervisor gave to others although this system wanted to run."""


def processor_times(root: Path = ROOT) -> dict[str, ProcessorTime]:
    """`/proc/stat`: the times of each CPU ("cpu0"), and of all together ("cpu")."""
    found = {}
    try:
        for line in (read(root / "proc/stat") or "").splitlines():
            if line.startswith("cpu"):
                name, *ticks = line.split()[:9]
                user, nice, system, idle, wait, irq, softirq, stolen = map(int, ticks)
                found[name] = ProcessorTime(user + nice + system + irq + softirq + stolen, idle + wait, stolen)
    except ValueError:
        return {}
    return found


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process or thread at a moment (its file `stat`)."""

    name: str
    state: str
    """One letter: "R" if it has a CPU or waits for one."""
    group: int
    """Its process group."""
    ticks: int
    """CPU time."""
    children_ticks: int
    """CPU time of its ended children."""
    processor: str
    """The CPU that it ran on last."""


def process(folder: Path) -> ProcessState | None:
    """The state of the process or thread with this folder in `/proc`; `None` for one that is gone."""
    # The name, in parentheses, may hold anything; the fields behind it are numbers (proc(5)).
    head, _, tail = (read(folder / "stat") or "").rpartition(")")
    values = tail.split()
    if len(values) < 15:
        return None
    own, children = (int(values[at]) + int(values[at + 1]) for at in (11, 13))
    return ProcessState(head.partition("(")[2], values[0], int(values[2]), own, children, "".join(values[36:37]))


def descends(pid: int, ancestor: int, root: Path = ROOT) -> bool:
    """Whether a process is another one, or was started by it or by one that it started."""
    for _ in range(_MOST_ANCESTORS):
        if pid == ancestor:
            return True
        values = (read(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(values) < 2:
            return False
        pid = int(values[1])
    return False


_MOST_ANCESTORS = 100


def processes(root: Path = ROOT) -> Iterator[tuple[int, ProcessState]]:
    """All processes with their ids."""
    for path in (root / "proc").glob("[0-9]*/stat"):
        found = process(path.parent)
        if found is not None:
            yield int(path.parent.name), found


def tasks() -> list[int]:
    """Ids of this process's threads, the first one's first.

    Raises
    ------
    OSError
        Where the system does not tell.
    """
    found = (int(entry.name) for entry in Path("/proc/self/task").iterdir())
    # Numbers begin anew when the system has used them up, so a later thread may have a smaller one.
    return sorted(found, key=lambda task: (task != os.getpid(), task))


def throttle_counts(root: Path = ROOT) -> dict[str, int]:
    """How often each core was slowed down for its temperature or power since the start, by core and cause."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = ((f"{path.parts[-3]}/{path.name}", read_int(path)) for path in paths)
    return {name: count for name, count in counts if count is not None}


def clock_mhz(root: Path = ROOT) -> float | None:
    """Clock of the CPU that this thread runs on: cpufreq's figure, else that of `/proc/cpuinfo`."""
    state = process(root / "proc/thread-self")
    if state is None:
        return None
    clock = read_int(root / f"sys/devices/system/cpu/cpu{state.processor}/cpufreq/scaling_cur_freq")
    if clock is not None:
        return clock / 1000
    for known in processors(root):
        if known.get("processor") == state.processor:
            with contextlib.suppress(KeyError, ValueError):
                return float(known["cpu MHz"])
    return None


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group that this process is in, or one around it: any of them may limit it."""

    folder: Path
    is_unified: bool
    """Whether it is of the second version, whose files have other names."""


def control_groups(controller: str, root: Path = ROOT) -> Iterator[ControlGroup]:
    """The groups of this process that may have files of a controller, such as "memory", from its own outwards."""
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        controllers = names.split(",")
        if names and controller not in controllers:
            continue
        # In a container the file may name the host's path, while the mount shows the group's own folder.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        mounts = (names, ",".join(reversed(controllers)), controller) if names else ("", "unified")
        for mount in dict.fromkeys(mounts):
            for depth in range(len(parts), -1, -1):
                folder = (root / "sys/fs/cgroup" / mount).joinpath(*parts[:depth])
                if folder.is_dir():
                    yield ControlGroup(folder, is_unified=not names)


# How much memory is free for this process, of the machine's and of a container's (Linux).


def free_memory(root: Path = ROOT) -> float:
    """Share of the memory that is available, of the machine's or of a container's limit, whichever is less.

    1 where nothing is known.
    """
    known = memory(root)
    shares = [known["MemAvailable"] / known["MemTotal"]] if {"MemAvailable", "MemTotal"} <= known.keys() else []
    return min([*shares, *(1 - taken / most for most, taken in _limits(root))], default=1.0)


def free_bytes(root: Path = ROOT) -> int | None:
    """Bytes that this process and its children can take before the machine or a container's limit is reached.

    `None` where nothing is known.
    """
    known = memory(root)
    free = [known["MemAvailable"]] if "MemAvailable" in known else []
    free += [most - taken for most, taken in _limits(root)]
    return max(min(free), 0) if free else None


def kills_for_memory(root: Path = ROOT) -> int:
    """How many processes the system has killed because a control group of this process was out of memory."""
    return sum(
        numbers(group.folder / name).get("oom_kill", 0)
        for group in control_groups("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )


_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = ("memory.max", "memory.current", "inactive_file")
"""What the files of a control group's memory with its limit and its use are called, and a line of `memory.stat`."""


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, bytes, of each control group that this process is in: any may limit it."""
    for group in control_groups("memory", root):
        limit, used, cached = _SECOND if group.is_unified else _FIRST
        most, taken = read(group.folder / limit) or "", read(group.folder / used) or ""
        if most.isdigit() and taken.isdigit() and int(most):
            # Cached files are given back when memory runs short.
            yield int(most), int(taken) - numbers(group.folder / "memory.stat").get(cached, 0)
