"""How much memory is free for this process, of the machine's and of a container's (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_perfdl.machine import proc


def free_memory(root: Path = proc.ROOT) -> float:
    """Share of the memory that is available, of the machine's or of a container's limit, whichever is less.

    1 where nothing is known.
    """
    known = proc.memory(root)
    shares = [known["MemAvailable"] / known["MemTotal"]] if {"MemAvailable", "MemTotal"} <= known.keys() else []
    return min([*shares, *(1 - taken / most for most, taken in _limits(root))], default=1.0)


def free_bytes(root: Path = proc.ROOT) -> int | None:
    """Bytes that this process and its children can take before the machine or a container's limit is reached.

    `None` where nothing is known.
    """
    known = proc.memory(root)
    free = [known["MemAvailable"]] if "MemAvailable" in known else []
    free += [most - taken for most, taken in _limits(root)]
    return max(min(free), 0) if free else None


def kills_for_memory(root: Path = proc.ROOT) -> int:
    """How many processes the system has killed because a control group of this process was out of memory."""
    return sum(
        proc.numbers(group.folder / name).get("oom_kill", 0)
        for group in proc.control_groups("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )


_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = ("memory.max", "memory.current", "inactive_file")
"""What the files of a control group's memory with its limit and its use are called, and a line of `memory.stat`."""


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, bytes, of each control group that this process is in: any may limit it."""
    for group in proc.control_groups("memory", root):
        limit, used, cached = _SECOND if group.is_unified else _FIRST
        most, taken = proc.read(group.folder / limit) or "", proc.read(group.folder / used) or ""
        if most.isdigit() and taken.isdigit() and int(most):
            # Cached files are given back when memory runs short.
            yield int(most), int(taken) - proc.numbers(group.folder / "memory.stat").get(cached, 0)
