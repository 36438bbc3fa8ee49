"""The counted pass: allocations, bytes, peak memory and FLOPs, which need no clock."""

from __future__ import annotations

import gc
import itertools
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.analysis.account.peak import GROWING_STEPS
from pytest_perfdl.measure import flops, process_group, profiled_pass
from pytest_perfdl.measure.commands import Count, Counted
from pytest_perfdl.measure.optional import Optional
from pytest_perfdl.measure.tensor_roles import held_storages
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
    with Optional("no-static-memory", "static memory", notes):
        static = _static_bytes()
    memory = _NOTHING
    growth: float | None = None
    complete = False
    with Optional("no-memory", "memory", notes):
        measuring = _device_memory(command, notes) if uses_device() else _host_memory(command, static or 0.0, notes)
        memory = yield from measuring
        complete = not command.flops
    # Ranks that take other steps than each other would wait forever: where one has to look closer, all do.
    counted, keeps = process_group.current().agree(every=memory.kept is not None, some=(memory.kept or 0) > 0)
    if command.flops and counted:
        growth = 0.0
        if keeps:
            with Optional("no-growth", "memory growth", notes):
                growth = yield from _growth(command, notes)
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
    return Counted(
        flops=total,
        uncounted=uncounted,
        allocations=memory.allocations,
        alloc_bytes=memory.alloc_bytes,
        peak_memory=None if memory.peak is None or static is None else static + memory.peak,
        static_memory=static,
        growth=growth,
        findings=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Of a window of steps; `None` where it could not be counted."""

    allocations: float | None
    """Per step."""
    alloc_bytes: float | None
    """Per step."""
    peak: float | None
    """Bytes above the static ones."""
    kept: float | None
    """Bytes that are allocated at its end and were not at its beginning, garbage included."""


_NOTHING = _Memory(None, None, None, None)


def _host_memory(command: Count, static: float, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    figures = yield from _recorded(command, static, notes, last=not command.flops)
    if figures is None:
        return _NOTHING
    steps = command.steps
    kept = figures.kept_bytes[-steps:]
    # A step of a period begins with what those before it have left.
    peaks = (sum(kept[:index]) + peak for index, peak in enumerate(figures.peak_bytes[-steps:]))
    return _Memory(
        allocations=sum(figures.allocations[-steps:]) / steps,
        alloc_bytes=sum(figures.alloc_bytes[-steps:]) / steps,
        peak=max(peaks),
        kept=sum(kept),
    )


def _growth(command: Count, notes: list[Finding]) -> Generator[bool, Aside | None, float]:
    """Bytes that each period of further steps keeps once garbage is collected, a step; 0 unless all of them do."""
    count = GROWING_STEPS + 1
    if uses_device():
        held = []
        for _ in range(count):
            yield from _window(command, last=False)
            held.append(_held_on_device())
        kept = [after - before for before, after in itertools.pairwise(held)]
    else:
        figures = yield from _recorded(command, 0, notes, last=False, periods=count)
        steps = () if figures is None else figures.kept_bytes
        kept = [sum(steps[at : at + command.steps]) for at in range(0, len(steps), command.steps)]
    last = kept[-GROWING_STEPS:]
    grows = len(last) == GROWING_STEPS and all(each > 0 for each in last)
    return sum(last) / GROWING_STEPS / command.steps if grows else 0.0


def _held_on_device() -> int:
    import torch

    gc.collect()
    synchronize()
    return int(torch.cuda.memory_allocated())


def _recorded(
    command: Count, held: float, notes: list[Finding], *, last: bool, periods: int = 0
) -> Generator[bool, Aside | None, MemoryFigures | None]:
    """Run two windows under the profiler; figures of both, the memory of the second is added to the exemplar.

    The profiler does not tell of the end of what was allocated before it began: what a step keeps for the next one to
    free is known in the second window alone. The host held `held` bytes when it began. If `periods` is positive, run so
    many windows instead, collect garbage after each of their steps, and add nothing to the exemplar.
    """
    from pytest_perfdl.analysis import memory_figures
    from pytest_perfdl.trace import with_memory

    path = Path(command.scratch) / f"memory-{uuid.uuid4().hex}.json"
    steps = (periods or 2) * command.steps
    yield from profiled_pass.record(
        path, 0, steps, memory=True, keep_last_result=last, after_step=gc.collect if periods else None
    )
    try:
        trace = profiled_pass.read_written(path)
    finally:
        delete_file(path, Path(command.scratch))
    figures = memory_figures(trace)
    # All ranks take the same steps and get the same path, but the exemplar is of the first one.
    own = process_group.current().rank == 0
    if figures is not None and command.exemplar is not None and not periods and own:
        with Optional("no-memory-picture", "the memory timeline", notes):
            peaks = [max(each) for each in zip(*(device.peak_bytes for device in figures.devices), strict=True)]
            highest = max(range(command.steps, len(peaks)), key=peaks.__getitem__)
            stored = Path(command.exemplar)
            picture = with_memory(stored.read_bytes(), trace, highest, round(held))
            if picture is not None:
                stored.write_bytes(picture)
    return figures


def _device_memory(command: Count, notes: list[Finding]) -> Generator[bool, Aside | None, _Memory]:
    import torch

    if command.exemplar is None:
        yield from _window(command, last=False)
    else:
        with Optional("no-memory-picture", "the memory timeline", notes):
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

    return _Memory(
        allocations=per_step("allocation.all.allocated"),
        alloc_bytes=per_step("allocated_bytes.all.allocated"),
        peak=float(torch.cuda.max_memory_allocated() - static),
        kept=float(torch.cuda.memory_allocated() - static),
    )


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
    return float(sum(held.bytes for held in held_storages().values()))
