"""Memory: whether there is enough of it, and how pages are handed out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_perfdl.machine.fitness.finding import MachineFinding, fields, read
from pytest_perfdl.model.units import format_quantity

_HUGE = "sys/kernel/mm/transparent_hugepage/enabled"
_LEAST_FREE = 0.1
_LEAST_FREE_BYTES = 2 * 2**30
_MUCH_SWAP_BYTES = 256 * 2**20


def memory(root: Path) -> Sequence[MachineFinding]:
    """How much memory is free, and how much lies on the disk (Linux)."""
    values = {name: int(text.split()[0]) * 1024 for name, text in fields(read(root / "proc/meminfo"), ":").items()}
    if not {"MemTotal", "MemAvailable"} <= values.keys():
        return []
    total, free = values["MemTotal"], values["MemAvailable"]
    swapped = values.get("SwapTotal", 0) - values.get("SwapFree", 0)
    found = f"{format_quantity(free, 'B')} of {format_quantity(total, 'B')} free"
    found += f", {format_quantity(swapped, 'B')} swapped out" if swapped > 0 else ""
    if free < min(_LEAST_FREE * total, _LEAST_FREE_BYTES):
        return [MachineFinding("warn", "memory", found, "a step may wait for memory to be freed", "end what holds it")]
    if swapped > _MUCH_SWAP_BYTES:
        why = "what was swapped out comes back in the middle of something"
        return [MachineFinding("note", "memory", found, why, "sudo swapoff -a && sudo swapon -a")]
    return [MachineFinding("ok", "memory", found)]


def huge_pages(root: Path) -> Sequence[MachineFinding]:
    """Whether the kernel makes huge pages of its own accord (Linux)."""
    match = re.search(r"\[(\w+)\]", read(root / _HUGE) or "")
    if match is None:
        return []
    if match[1] != "always":
        return [MachineFinding("ok", "huge pages", f"transparent huge pages: {match[1]}")]
    return [
        MachineFinding(
            "note",
            "huge pages",
            "transparent huge pages: always",
            "pages are merged while steps run, differently in each process",
            f"echo madvise | sudo tee /{_HUGE}",
        )
    ]


def allocator(here: Mapping[str, str], worker: Mapping[str, str], libc: str) -> Sequence[MachineFinding]:
    """Whether workers' allocator keeps its memory, so that steps take no page faults.

    glibc's allocator either keeps or returns large blocks, decided for the life of a process by what ran first:
    one and the same network took 2.6 or 4.4 ms a step. Workers fix that by their environment.

    Parameters
    ----------
    here, worker
        Environments of this process and of a worker.
    libc
        Name of the C library, `platform.libc_ver()[0]`.
    """
    replaced = re.search(r"jemalloc|tcmalloc|mimalloc|hoard|snmalloc", here.get("LD_PRELOAD", ""))
    why = "whether a step takes page faults may differ from process to process"
    if replaced:
        found = f"LD_PRELOAD brings {replaced[0]}, which the workers' settings of glibc do not reach"
        return [MachineFinding("warn", "page faults", found, why, "unset LD_PRELOAD, or keep it for every measurement")]
    if libc != "glibc":
        found = f"C library {libc or 'unknown'}: no setting of the allocator to fix"
        return [MachineFinding("note", "page faults", found, why)]
    pinned = " ".join(f"{name}={value}" for name, value in sorted(worker.items()) if name.startswith("MALLOC_"))
    return [MachineFinding("ok", "page faults", f"workers run with {pinned}")]
