"""What a case of a table may change for the cases after it: settings of the process, which are put back.

What is not here stays changed: memory that a case leaks, files, modules that it patches. A case that only such a change
makes slower is found by measuring it alone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.measure import device

_Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""How a setting is read and written."""


@dataclass(frozen=True, slots=True)
class GlobalState:
    """The settings of this process at one moment."""

    environment: dict[str, str]
    folder: Path
    filters: list[Any]
    collects: bool
    thresholds: tuple[int, int, int]
    recursion: int
    of_torch: tuple[Any, ...]

    @classmethod
    def now(cls) -> GlobalState:
        """Read all settings; those of torch only where it is loaded."""
        return cls(
            dict(os.environ),
            Path.cwd(),
            list(warnings.filters),
            gc.isenabled(),
            gc.get_threshold(),
            sys.getrecursionlimit(),
            tuple(read() for read, _ in _torch_settings()),
        )

    def restore(self) -> None:
        """Write back what has changed, and nothing else: some settings cost more to write than a case takes."""
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        with contextlib.suppress(FileNotFoundError):
            if Path.cwd() != self.folder:
                os.chdir(self.folder)
        if list(warnings.filters) != self.filters:
            warnings.filters[:] = self.filters  # type: ignore[index]
        if gc.isenabled() != self.collects:
            (gc.enable if self.collects else gc.disable)()
        if gc.get_threshold() != self.thresholds:
            gc.set_threshold(*self.thresholds)
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        for (read, write), before in zip(_torch_settings(), self.of_torch, strict=False):
            if read() != before:
                write(before)


def _torch_settings() -> Iterator[_Setting]:
    """Settings of torch that change how operators run."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_default_device, torch.set_default_device
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield _deterministic(torch)
    yield torch.is_anomaly_enabled, torch.set_anomaly_enabled
    yield _autocast(torch)
    yield _attribute(torch.backends.mkldnn, "enabled")
    yield from device.switches()


def _deterministic(torch: Any) -> _Setting:
    def read() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def write(value: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])

    return read, write


def _autocast(torch: Any) -> _Setting:
    return (
        lambda: torch.is_autocast_enabled(device.HOST),
        lambda value: torch.set_autocast_enabled(device.HOST, value),
    )


def _attribute(module: Any, name: str) -> _Setting:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)
