"""Memory: free memory, huge pages and the allocator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_perfdl.machine import proc
from pytest_perfdl.machine.fitness.finding import MachineFinding
from pytest_perfdl.model.units import format_quantity

_HUGE = "sys/kernel/mm/transparent_hugepage/enabled"
_LEAST_FREE = 0.1
_LEAST_FREE_BYTES = 2 * 2**30
_MUCH_SWAP_BYTES = 256 * 2**20


def memory(root: Path) -> Sequence[MachineFinding]:
    """Free memory and swap (Linux)."""
    values = proc.memory(root)
    if not {"MemTotal", "MemAvailable"} <= values.keys():
        return []
    total, free = values["MemTotal"], values["MemAvailable"]
    swapped = values.get("SwapTotal", 0) - values.get("SwapFree", 0)
    found = f"{format_quantity(free, 'B')} of {format_quantity(total, 'B')} free"
    found += f", {format_quantity(swapped, 'B')} swapped out" if swapped > 0 else ""
    if free < min(_LEAST_FREE * total, _LEAST_FREE_BYTES):
        return [
            MachineFinding(
                "warn", "memory", found, "steps may wait for memory to be freed", "stop processes that use much memory"
            )
        ]
    if swapped > _MUCH_SWAP_BYTES:
        why = "swapped pages may be read back during a step"
        return [MachineFinding("note", "memory", found, why, "sudo swapoff -a && sudo swapon -a")]
    return [MachineFinding("ok", "memory", found)]


def huge_pages(root: Path) -> Sequence[MachineFinding]:
    """Whether the kernel creates huge pages for all memory (Linux)."""
    match = re.search(r"\[(\w+)\]", proc.read(root / _HUGE) or "")
    if match is None:
        return []
    if match[1] != "always":
        return [MachineFinding("ok", "huge pages", f"transparent huge pages: {match[1]}")]
    return [
        MachineFinding(
            "note",
            "huge pages",
            "transparent huge pages: always",
            "the kernel merges pages during steps, differently in every process",
            f"echo madvise | sudo tee /{_HUGE}",
        )
    ]


def allocator(here: Mapping[str, str], worker: Mapping[str, str], libc: str) -> Sequence[MachineFinding]:
    """Whether workers' allocator keeps its memory, so that steps take no page faults.

    glibc's allocator either keeps or returns large blocks, decided for the life of a process by what ran first:
    the same network took 2.6 or 4.4 ms/step. Environment variables of workers make this deterministic.

    Parameters
    ----------
    here, worker
        Environments of this process and of a worker.
    libc
        Name of the C library, `platform.libc_ver()[0]`.
    """
    replaced = re.search(r"jemalloc|tcmalloc|mimalloc|hoard|snmalloc", here.get("LD_PRELOAD", ""))
    why = "the number of page faults per step may differ between processes"
    if replaced:
        found = f"LD_PRELOAD loads {replaced[0]}, which ignores the glibc settings of measured processes"
        return [MachineFinding("warn", "page faults", found, why, "unset LD_PRELOAD, or set it for all measurements")]
    if libc != "glibc":
        found = f"C library {libc or 'unknown'}: its allocator cannot be configured"
        return [MachineFinding("note", "page faults", found, why)]
    pinned = " ".join(f"{name}={value}" for name, value in sorted(worker.items()) if name.startswith("MALLOC_"))
    return [MachineFinding("ok", "page faults", f"measured processes run with {pinned}")]
