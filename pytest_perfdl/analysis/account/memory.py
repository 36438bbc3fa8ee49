"""Allocations of each step, from the profiler's `[memory]` events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.trace.model import Trace

CPU = 0
"""c10::DeviceType of the host."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one device allocated, one value per step, in the order of the steps."""

    device_type: int
    """c10::DeviceType: 0 CPU, 1 CUDA, 6 HIP."""
    device_id: int
    allocations: tuple[int, ...]
    """Number of allocations."""
    alloc_bytes: tuple[int, ...]
    """Bytes allocated; what is freed again counts in full."""
    peak_bytes: tuple[int, ...]
    """Most bytes held at once above what was held when the step began; at least 0."""
    base_bytes: tuple[int | None, ...]
    """`Total Allocated` when the step began, to which `peak_bytes` adds; `None` where the trace does not say."""
    kept_bytes: tuple[int, ...]
    """Bytes that the step allocated and did not free, less what it freed of earlier ones."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of each step by device; devices without an event are absent."""

    devices: tuple[DeviceMemory, ...]

    @property
    def cpu(self) -> DeviceMemory | None:
        """The host's memory."""
        return next((device for device in self.devices if device.device_type == CPU), None)

    @property
    def allocations(self) -> tuple[int, ...]:
        """The host's allocations of each step; empty if it has no memory event."""
        return self.cpu.allocations if self.cpu else ()

    @property
    def alloc_bytes(self) -> tuple[int, ...]:
        """The bytes that each step allocates on the host; empty if it has no memory event."""
        return self.cpu.alloc_bytes if self.cpu else ()

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The host's peak in each step, above what it held when the step began; empty if it has no event."""
        return self.cpu.peak_bytes if self.cpu else ()

    @property
    def kept_bytes(self) -> tuple[int, ...]:
        """By how many bytes more the host holds after each step than before it; empty if it has no event."""
        return self.cpu.kept_bytes if self.cpu else ()

    @property
    def accelerators(self) -> tuple[DeviceMemory, ...]:
        """Memory of every device that is not the host."""
        return tuple(device for device in self.devices if device.device_type != CPU)


def memory_figures(trace: Trace) -> MemoryFigures | None:
    """Allocations, allocated bytes and peak of each step; `None` without memory events or without steps.

    An event belongs to the step whose annotation [start, end) holds it, whichever thread it is on; what a
    `perfdl.setup` annotation holds is not counted, but what it leaves behind is part of the peak. The base of
    `peak_bytes` is what the device held when the step began: the running sum of `Bytes` starts there at 0, so
    memory from before the step that it frees makes room.
    """
    steps = steps_of(trace, launches(trace))
    if len(trace.memory) == 0 or not steps.windows:
        return None
    devices = sorted(set(zip(trace.memory.device_type.tolist(), trace.memory.device_id.tolist(), strict=True)))
    return MemoryFigures(tuple(_of_device(trace, steps, *device) for device in devices))


def _of_device(trace: Trace, steps: Steps, device_type: int, device_id: int) -> DeviceMemory:
    memory = trace.memory
    own = (memory.device_type == device_type) & (memory.device_id == device_id)
    time, sizes, totals = memory.time[own], memory.bytes[own], memory.allocated[own]
    allocations, alloc_bytes, peaks, kept = [], [], [], []
    bases: list[int | None] = []
    for window in steps.windows:
        first, last = np.searchsorted(time, (window.host_start, window.host_end))
        inside = sizes[first:last]
        grown = inside[(inside > 0) & ~steps.setup.contains(time[first:last])]
        allocations.append(len(grown))
        alloc_bytes.append(int(grown.sum()))
        peaks.append(max(0, int(np.cumsum(inside).max())) if len(inside) else 0)
        kept.append(int(inside.sum()))
        known = first < last and totals[first] >= 0
        bases.append(int(totals[first] - sizes[first]) if known else None)
    return DeviceMemory(
        device_type, device_id, tuple(allocations), tuple(alloc_bytes), tuple(peaks), tuple(bases), tuple(kept)
    )
