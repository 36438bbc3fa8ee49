"""How much memory is free for this process, of the machine's and of a container's (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


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


def free_bytes(system: Path = Path("/")) -> int | None:
    """Bytes that this process and its children can take before the machine or a container's limit is reached.

    `None` where nothing is known.

    Parameters
    ----------
    system
        Root of the file system that holds `proc` and `sys`.
    """
    known = _table(system / "proc/meminfo")
    free = [1024 * known["MemAvailable"]] if "MemAvailable" in known else []
    free += [most - taken for most, taken in _limits(system)]
    return max(min(free), 0) if free else None


def kills_for_memory(system: Path = Path("/")) -> int:
    """How many processes the system has killed because a control group of this process was out of memory."""
    return sum(
        _table(folder / name).get("oom_kill", 0)
        for _, own, top in _groups(system)
        for folder in _outwards(own, top)
        for name in ("memory.events", "memory.oom_control")
    )


def _of_machine(system: Path) -> float | None:
    known = _table(system / "proc/meminfo")
    return known["MemAvailable"] / known["MemTotal"] if {"MemAvailable", "MemTotal"} <= known.keys() else None


def _of_groups(system: Path) -> Iterator[float]:
    yield from (1 - taken / most for most, taken in _limits(system))


def _limits(system: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, bytes, of each control group that this process is in, from its own outwards: any may limit it."""
    for names, own, top in _groups(system):
        for folder in _outwards(own, top):
            most, taken = _text(folder / names.limit).strip(), _text(folder / names.used).strip()
            if most.isdigit() and taken.isdigit() and int(most):
                # Cached files are given back when memory runs short.
                given_back = _table(folder / "memory.stat").get(names.cached, 0)
                yield int(most), int(taken) - given_back


class _Names(NamedTuple):
    """What the files of a control group's memory are called."""

    limit: str
    used: str
    cached: str
    """A line of `memory.stat`."""


_FIRST = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Names("memory.max", "memory.current", "inactive_file")


def _groups(system: Path) -> Iterator[tuple[_Names, Path, Path]]:
    """The control group of this process in each hierarchy with memory, and the top of that."""
    for line in _text(system / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top = system / "sys/fs/cgroup"
            yield _SECOND, top / name.strip("/"), top
        elif "memory" in controllers.split(","):
            top = system / "sys/fs/cgroup/memory"
            yield _FIRST, top / name.strip("/"), top


def _outwards(own: Path, top: Path) -> list[Path]:
    # Within a container the group's own path may not be there, but its files are at the top.
    return [own, *(parent for parent in own.parents if parent.is_relative_to(top))]


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
