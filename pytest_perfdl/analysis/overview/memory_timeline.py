"""Allocated and reserved memory over time, its peaks, and what was alive when most was allocated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.operators import operator_at
from pytest_perfdl.analysis.events.origins import module_paths
from pytest_perfdl.trace.model import I64, MemoryEvents, Rows, Trace

BEFORE = "allocated before the trace started"
"""`Alive.operator` of what was allocated before the first memory event and not freed since."""
UNRECORDED = "unrecorded"
"""`Alive.operator` of the difference between the allocator's total and its recorded events, if there is one."""
NO_OPERATOR = "(no operator)"
"""`Alive.operator` of what was allocated outside of all operators."""

_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuseone"}
"""c10::DeviceType."""


@dataclass(frozen=True, slots=True)
class Alive:
    """What one operator had allocated and not yet freed."""

    operator: str
    """The innermost operator on the allocating thread, or one of `BEFORE`, `UNRECORDED`, `NO_OPERATOR`."""
    module: str
    """Its module path; empty where none is known."""
    bytes: int
    count: int
    """Allocations; 0 where they are not known one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimeline:
    """Memory of one device: columns of equal length, one entry per allocation or free, by time."""

    device_type: int
    """c10::DeviceType: 0 CPU, 1 CUDA, 6 HIP."""
    device_id: int
    """Index among the visible devices, which may differ from the physical one in the kernels' pid; -1 for the CPU."""
    time_ns: I64
    allocated: I64
    """Bytes allocated after each event; on traces of 2021 only since the first, as is `peak_allocated_bytes`."""
    reserved: I64 | None
    """Bytes that the allocator holds after each event; `None` on traces of 2021."""
    base_bytes: int | None
    """Bytes allocated before the first event; `None` on traces of 2021, which do not know."""
    peak_allocated_bytes: int
    peak_allocated_at_ns: int
    """When the peak was first reached."""
    peak_reserved_bytes: int | None
    alive_at_peak: tuple[Alive, ...]
    """What `peak_allocated_bytes` consists of, the largest first; empty where addresses are unknown (2021).

    Where `base_bytes` is known the bytes add up to the peak exactly.
    """

    @property
    def device(self) -> str:
        """The device as torch names it: `cpu`, `cuda:0`, `hip:0`."""
        return device_name(self.device_type, self.device_id)


def device_name(device_type: int, device_id: int) -> str:
    """A device as torch names it, from c10::DeviceType and its index, which is -1 for the CPU.

    >>> device_name(0, -1), device_name(1, 2), device_name(99, 0)
    ('cpu', 'cuda:2', 'type99:0')
    """
    name = _DEVICES.get(device_type, f"type{device_type}")
    return name if device_id < 0 else f"{name}:{device_id}"


def memory_timeline(trace: Trace) -> tuple[DeviceTimeline, ...]:
    """Memory of each device from the profiler's `[memory]` events, by device; empty without such events.

    Allocated bytes are the allocator's own `Total Allocated`, and the static base is that of the first event less its
    size. Traces of 2021 know only sizes: there it is their running sum from 0.

    A free ends the latest allocation at its address that is not yet freed; a free without one ends memory from
    earlier than the window. What is alive at the peak goes to the innermost operator around the allocation on its
    thread.
    """
    memory = trace.memory
    kinds = sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True)))
    return tuple(
        _timeline(trace, np.flatnonzero((memory.device_type == kind) & (memory.device_id == index)))
        for kind, index in kinds
    )


def _timeline(trace: Trace, own: Rows) -> DeviceTimeline:
    memory = trace.memory
    time, sizes, totals, reserved = memory.time[own], memory.bytes[own], memory.allocated[own], memory.reserved[own]
    known, reserves = bool((totals >= 0).all()), bool((reserved >= 0).all())
    allocated = totals if known else np.cumsum(sizes)
    base = int(allocated[0] - sizes[0]) if known else None
    at = int(np.argmax(allocated))
    before_all = int(allocated[at]) <= (base or 0)
    peak = (base or 0) if before_all else int(allocated[at])
    return DeviceTimeline(
        device_type=int(memory.device_type[own[0]]),
        device_id=int(memory.device_id[own[0]]),
        time_ns=time,
        allocated=allocated,
        reserved=reserved if reserves else None,
        base_bytes=base,
        peak_allocated_bytes=peak,
        peak_allocated_at_ns=int(time[0 if before_all else at]),
        peak_reserved_bytes=int(reserved.max()) if reserves else None,
        alive_at_peak=_alive(trace, own[: 0 if before_all else at + 1], base, peak)
        if (memory.address[own] != -1).any()
        else (),
    )


def _alive(trace: Trace, until: Rows, base: int | None, peak: int) -> tuple[Alive, ...]:
    """What is alive after the memory events `until`, grouped; with a base it adds up to `peak`."""
    memory = trace.memory
    alive, foreign = _find_unfreed(memory, until)
    rows = operator_at(trace, memory.time[alive], memory.pid[alive], memory.tid[alive])
    module, paths = module_paths(trace)
    sizes, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row, size in zip(rows.tolist(), memory.bytes[alive].tolist(), strict=True):
        path = paths[module[row]] if row >= 0 and module[row] >= 0 else ""
        owner = (trace.name_of(row) if row >= 0 else NO_OPERATOR, path)
        sizes[owner] += size
        counts[owner] += 1
    found = [Alive(*owner, bytes=size, count=counts[owner]) for owner, size in sizes.items()]
    if base is not None:
        before = base - foreign
        rest = peak - before - sum(sizes.values())
        found += [Alive(name, "", size, 0) for name, size in ((BEFORE, before), (UNRECORDED, rest)) if size]
    return tuple(sorted(found, key=lambda entry: (-entry.bytes, entry.operator, entry.module)))


def _find_unfreed(memory: MemoryEvents, until: Rows) -> tuple[npt.NDArray[np.intp], int]:
    """Allocations that no later event frees, and the bytes freed that were allocated before."""
    open_at: dict[int, list[int]] = {}
    foreign = 0
    columns = (until, memory.address[until], memory.bytes[until])
    for event, address, size in zip(*(column.tolist() for column in columns), strict=True):
        if size > 0:
            open_at.setdefault(address, []).append(event)
        elif owners := open_at.get(address):
            owners.pop()
        else:
            foreign -= size
    return np.array(sorted(event for owners in open_at.values() for event in owners), dtype=np.intp), foreign
