"""How much of the memory that this process may use is free (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def free_memory(system: Path = Path("/")) -> float:
    """Share of the memory that is available, of the machine's or of a container's limit, whichever is less.

    1 where nothing is known.

    Parameters
    ----------
    system
        Root of the file system that holds `proc` and `sys`.
    """
    shares = [_of_machine(system), *_of_groups(system)]
    return min((share for share in shares if share is not None), default=1.0)


def _of_machine(system: Path) -> float | None:
    known = _table(system / "proc/meminfo")
    return known["MemAvailable"] / known["MemTotal"] if {"MemAvailable", "MemTotal"} <= known.keys() else None


def _of_groups(system: Path) -> Iterator[float | None]:
    """For each control group that this process is in, from its own outwards: any of them may have the limit."""
    for line in _text(system / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, limit, used, cached = system / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top = system / "sys/fs/cgroup/memory"
            limit, used, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # Within a container the group's own path may not be there, but its files are at the top.
        own = top / name.strip("/")
        for folder in [own, *(parent for parent in own.parents if parent.is_relative_to(top))]:
            most, taken = _text(folder / limit).strip(), _text(folder / used).strip()
            if most.isdigit() and taken.isdigit() and int(most):
                # Cached files are given back when memory runs short.
                given_back = _table(folder / "memory.stat").get(cached, 0)
                yield 1 - (int(taken) - given_back) / int(most)


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
