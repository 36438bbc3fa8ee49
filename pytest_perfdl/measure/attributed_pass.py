"""The attributed pass: a breakdown of peak memory by tensor, and of memory that grows from step to step.

It runs in a separate process, which records every allocation from before the import of the test module (`begin`); it
runs few steps, which are slower.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_perfdl.analysis.account.peak import GROWING_STEPS, Recorded, Window, peak_account
from pytest_perfdl.measure import compiling
from pytest_perfdl.measure.commands import Attribute, Attributed
from pytest_perfdl.measure.memory_lines import MOST_LINES
from pytest_perfdl.measure.module_ranges import module_ranges
from pytest_perfdl.measure.timed_pass import synchronize, uses_device
from pytest_perfdl.model.record import Finding

if TYPE_CHECKING:
    from pytest_perfdl.measure.memory_recorder import MemoryRecorder
    from pytest_perfdl.measure.steps import Aside

WARM_UP = 2
"""Periods before the one whose peak is accounted for: the first makes the optimizer's state, the second is as all."""

_GAVE_UP = (
    f"source lines of later allocations are missing, because only the first {MOST_LINES:,} executed lines were recorded"
)

_recorder: MemoryRecorder | None = None


def begin() -> None:
    """Record every allocation of this process from now on."""
    import torch  # noqa: F401  (what it allocates by itself while it is imported is none of the test's)

    from pytest_perfdl.measure.memory_recorder import MemoryRecorder

    global _recorder
    if _recorder is None:
        _recorder = MemoryRecorder()
        _recorder.start()
        # An interpreter that ends while the profiler records may crash.
        atexit.register(end)


def end() -> None:
    """Record no longer."""
    global _recorder
    if _recorder is not None:
        _recorder.stop()
        _recorder = None


def run(command: Attribute) -> Generator[bool, Aside | None, Attributed]:
    """Run periods of steps, and account for the peak of the last one; recording ends with it.

    Where memory grows they are as many as tell what accumulates, and garbage is collected after each.
    """
    from pytest_perfdl.measure.tensor_roles import held_storages, with_roles

    begin()
    recorder = _recorder
    assert recorder is not None
    notes: list[Finding] = []
    before = WARM_UP if not command.growth else GROWING_STEPS + 1
    for _ in range(command.steps):
        yield from _step(last=False)
    with contextlib.ExitStack() as around:
        # What is compiled is compiled in the first period, without them.
        around.enter_context(module_ranges(notes))
        if not compiling.has_compiled():
            recorder.watch()
            around.callback(recorder.unwatch)
        for _ in range(1, before):
            for _ in range(command.steps):
                yield from _step(last=False)
            if command.growth:
                gc.collect()
        held = with_roles(held_storages())
        # Gradients and tensors that the steps before made are leaves now.
        for index in range(command.steps):
            yield from _step(last=index == command.steps - 1)
        if command.growth:
            gc.collect()
        synchronize()
    end()
    periods = tuple(
        Window(recorder.steps[at][0], recorder.steps[at + command.steps - 1][1])
        for at in range(0, len(recorder.steps) - command.steps + 1, command.steps)
    )
    device = _device()
    recorded = Recorded(recorder.allocations, recorder.foreign.get(device, ()), periods, recorder.lines)
    account = peak_account(recorded, held, device, growth=command.growth)
    said = [note.message for note in notes] + ([_GAVE_UP] if recorder.gave_up else [])
    return Attributed(replace(account, notes=(*account.notes, *said)))


def _step(*, last: bool) -> Generator[bool, Aside | None, None]:
    from pytest_perfdl.measure.memory_recorder import BEGIN, END, mark

    mark(BEGIN)
    yield last
    synchronize()
    mark(END)


def _device() -> str:
    """Where the steps compute."""
    if not uses_device():
        return "cpu"
    import torch

    torch_cuda: Any = torch.cuda
    return f"cuda:{torch_cuda.current_device()}"
