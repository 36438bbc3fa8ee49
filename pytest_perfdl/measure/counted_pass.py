"""The counted pass: allocations, bytes, peak memory and FLOPs, which need no clock."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.measure import flops, profiled_pass
from pytest_perfdl.measure.commands import Count, Counted
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.measure.timed_pass import synchronize, uses_device
from pytest_perfdl.model.record import Finding
from pytest_perfdl.system.folders import delete_file

if TYPE_CHECKING:
    from pytest_perfdl.analysis import MemoryFigures
    from pytest_perfdl.measure.steps import Aside


def run(command: Count) -> Generator[bool, Aside | None, Counted]:
    """Count memory over the second of two windows (the first one's peak varies), then FLOPs over another."""
    notes: list[Finding] = []
    static: float | None = None
    with Optional("no-static-memory", "memory between steps", notes):
        static = _static_bytes()
    memory: _Memory = None, None, None
    complete = False
    with Optional("no-memory", "memory of a step", notes):
        measuring = _device_memory(command, notes) if uses_device() else _host_memory(command, static or 0.0, notes)
        memory = yield from measuring
        complete = not command.flops
    total: float | None = None
    uncounted: tuple[str, ...] = ()
    if command.flops:
        with Optional("no-flops", "FLOPs", notes):
            with flops.Counter() as counter:
                yield from _window(command, last=True)
                complete = True
            total = counter.total / command.steps
            uncounted = counter.uncounted
    if not complete:
        # The call's result is that of a last step, whatever came of counting.
        yield from _window(command, last=True)
    allocations, alloc_bytes, peak = memory
    return Counted(
        flops=total,
        uncounted=uncounted,
        allocations=allocations,
        alloc_bytes=alloc_bytes,
        peak_memory=None if peak is None or static is None else static + peak,
        static_memory=static,
        findings=tuple(notes),
    )


_Memory = tuple[float | None, float | None, float | None]
"""Allocations and allocated bytes per step, and the peak above the static bytes."""


def _host_memory(command: Count, static: float, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    figures = yield from _recorded(command, static, notes, last=not command.flops)
    if figures is None:
        return None, None, None
    steps = command.steps
    return (
        sum(figures.allocations[-steps:]) / steps,
        sum(figures.alloc_bytes[-steps:]) / steps,
        max(figures.peak_bytes[-steps:]),
    )


def _recorded(
    command: Count, held: float, notes: list[Finding], *, last: bool
) -> Generator[bool, Aside | None, MemoryFigures | None]:
    """Run two windows under the profiler; figures of the second, whose memory is added to the exemplar.

    The host held `held` bytes when it began.
    """
    from pytest_perfdl.analysis import memory_figures
    from pytest_perfdl.trace import with_memory

    path = Path(command.scratch) / f"memory-{uuid.uuid4().hex}.json"
    yield from profiled_pass.record(path, command.steps, command.steps, memory=True, keep_last_result=last)
    try:
        trace = profiled_pass.read_written(path)
    finally:
        delete_file(path, Path(command.scratch))
    figures = memory_figures(trace)
    if figures is not None and command.exemplar is not None:
        with Optional("no-memory-picture", "memory over the exemplar step", notes):
            peaks = [max(each) for each in zip(*(device.peak_bytes for device in figures.devices), strict=True)]
            stored = Path(command.exemplar)
            picture = with_memory(stored.read_bytes(), trace, peaks.index(max(peaks)), round(held))
            if picture is not None:
                stored.write_bytes(picture)
    return figures


def _device_memory(command: Count, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    import torch

    if command.exemplar is None:
        yield from _window(command, last=False)
    else:
        with Optional("no-memory-picture", "memory over the exemplar step", notes):
            yield from _recorded(command, 0, notes, last=False)
    synchronize()
    before = torch.cuda.memory_stats()
    static = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield from _window(command, last=not command.flops)
    synchronize()
    after = torch.cuda.memory_stats()

    def per_step(name: str) -> float:
        return float(after[name] - before[name]) / command.steps

    peak = torch.cuda.max_memory_allocated() - static
    return per_step("allocation.all.allocated"), per_step("allocated_bytes.all.allocated"), float(peak)


def _window(command: Count, *, last: bool) -> Generator[bool, Aside | None, None]:
    """One window of steps; of the last one that there is, the last step's result is the call's."""
    for index in range(command.steps):
        yield last and index == command.steps - 1


def _static_bytes() -> float:
    """Bytes alive between steps: parameters, gradients, optimizer state, inputs.

    The device's allocator knows; on the host the tensors that Python can reach are added up, each storage once.
    """
    import torch

    if uses_device():
        synchronize()
        return float(torch.cuda.memory_allocated())
    gc.unfreeze()
    seen: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter):
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is not None:
                _note_storage(tensor, seen)
    return float(sum(seen.values()))


def _note_storage(tensor: Any, seen: dict[int, int]) -> None:
    import torch

    if tensor.device.type == "meta":
        return
    if tensor.layout is torch.sparse_coo:
        _note_storage(tensor._values(), seen)
        _note_storage(tensor._indices(), seen)
        return
    if tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
