"""The device that steps run on: the one module that names a backend of torch.

torch has a module for every type of device (`torch.get_device_module`): `torch.cuda`, which is also that of ROCm,
`torch.xpu`, `torch.mps`, and those of backends outside torch. They share most names of `torch.cuda`, and a build of
torch has at most one of them that works (`torch.accelerator`). What one lacks is `None` here or said in a note:
`torch.mps` does not count allocations, knows no peak and cannot be traced; events of `torch.xpu` have no time before
oneAPI 2025.0.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.model.record import Scalar

_REPORTED = re.compile(r"\b(CUDA|HIP|XPU|MPS|SYCL) (error|out of memory)|UR error|device-side assert")
"""Messages of errors that a device has reported."""
HOST = "cpu"
"""What torch calls the host, beside the types of devices."""
_BUILT_IN = ("cuda", "xpu", "mps")
"""Types that torch may be built for. Before 2.6 torch does not say for which it is."""
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_kept: list[Any] = []
"""Tensors that keep a device in use whose module has no other way to tell."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the allocators of devices counted in this process until a moment; `None` where they do not count that."""

    allocated: int
    """Bytes of all tensors."""
    peak: int | None = None
    """Most bytes at a time since `Device.forget_peak`; of several devices the sum of their peaks."""
    allocations: int | None = None
    """All since the start, also those that were freed."""
    allocated_bytes: int | None = None
    """Bytes of these."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is; `None` where torch does not say."""

    name: str
    count: int
    """Devices that this process may use."""
    multiprocessors: int | None
    memory_bytes: int | None
    cache_bytes: int | None
    """Of the last-level cache."""


@dataclass(frozen=True, slots=True)
class Device:
    """The devices that this process uses, the current one among them.

    Methods raise what torch raises: after an error on the device that is a `RuntimeError` from every one of them.
    """

    type: str
    """As torch calls it: "cuda", also for ROCm."""
    index: int
    used: tuple[int, ...]
    """Indices of the devices that hold memory of this process, the current one included."""
    _module: Any

    @property
    def name(self) -> str:
        """The device as tensors name it: "cuda:0"."""
        return f"{self.type}:{self.index}"

    def synchronize(self) -> None:
        """Wait until everything that was launched on any stream of all used devices has ended."""
        if self.used == (self.index,):
            self._module.synchronize()
            return
        for index in self.used:
            self._module.synchronize(index)

    # Time

    @property
    def times_events(self) -> bool:
        """Whether events have times, as a pair of them shows; tells of errors on the device as `synchronize` does."""
        self.synchronize()
        try:
            first, second = self.record_event(), self.record_event()
            self.synchronize()
            return self.elapsed_ns(first, second) >= 0
        except (AttributeError, NotImplementedError, RuntimeError):
            self.synchronize()
            return False

    def record_event(self) -> Any:
        """An event on the current stream: its moment is when all that was launched there before has ended."""
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def elapsed_ns(first: Any, second: Any) -> int:
        """Nanoseconds between two events whose moments have come; torch tells milliseconds."""
        return round(float(first.elapsed_time(second)) * 1e6)

    # Memory

    def memory(self) -> Memory:
        """What the allocators of all used devices have counted, added up.

        Devices may reach their peaks at different moments: the sum is the memory that a step needs on all of them.
        """
        read = getattr(self._module, "memory_stats", None)
        if read is None:
            return Memory(int(self._module.current_allocated_memory()))
        found = [read(index) for index in self.used]
        allocated, peak, allocations, allocated_bytes = (
            sum(int(each.get(name, 0)) for each in found)
            for name in (
                "allocated_bytes.all.current",
                "allocated_bytes.all.peak",
                "allocation.all.allocated",
                "allocated_bytes.all.allocated",
            )
        )
        if peak and not allocations:
            # CUDA's own allocator (backend:cudaMallocAsync) leaves what torch's counts at 0.
            return Memory(allocated, peak)
        return Memory(allocated, peak, allocations, allocated_bytes)

    def forget_peak(self) -> None:
        """Let the peak of every used device begin at what is allocated there now."""
        if hasattr(self._module, "reset_peak_memory_stats"):
            for index in self.used:
                self._module.reset_peak_memory_stats(index)

    # What it is

    def properties(self) -> Properties:
        """What the current device is."""
        read = getattr(self._module, "get_device_properties", None)
        count = int(self._module.device_count())
        if read is None:
            return self._described(count)
        found = read(self.index)

        def number(*names: str) -> int | None:
            return next((int(value) for name in names if (value := getattr(found, name, None))), None)

        return Properties(
            str(found.name),
            count,
            number("multi_processor_count", "gpu_subslice_count"),
            number("total_memory"),
            number("L2_cache_size", "last_level_cache_size"),
        )

    def _described(self, count: int) -> Properties:
        """What `torch.backends` says of a device that has no properties."""
        import torch

        backend = getattr(torch.backends, self.type, None)
        name = getattr(backend, "get_name", lambda: self.type)()
        cores = getattr(backend, "get_core_count", int)()
        return Properties(str(name), count, int(cores) or None, None, None)

    def versions(self) -> dict[str, Scalar]:
        """The software below torch, by name; it decides on times and is no part of the machine ID."""
        import torch

        found: dict[str, Scalar] = {"device": self.type}
        if self.type == "cuda":
            found |= {
                "device": "hip" if torch.version.hip else "cuda",
                "cuda": torch.version.cuda or torch.version.hip,
                "cudnn": torch.backends.cudnn.version(),
                "driver": _driver(),
            }
        settings = [os.environ[name] for name in _ALLOCATOR_SETTINGS if os.environ.get(name)]
        return found | ({"allocator": " ".join(settings)} if settings else {})

    def flags(self) -> dict[str, bool]:
        """Switches of the backend that choose other kernels."""
        import torch

        if self.type != "cuda":
            return {}
        return {"cudnn": torch.backends.cudnn.enabled, "benchmark": torch.backends.cudnn.benchmark}


def hides(raised: Any) -> bool:
    """Whether pytest leaves this package out of a traceback (`__tracebackhide__`): a device reported the error.

    It does so at some call after the one that caused it, which may be one of ours: the test's own call is shown.
    """
    return isinstance(raised.value, RuntimeError) and _REPORTED.search(str(raised.value)) is not None


__tracebackhide__ = hides


def current() -> Device | None:
    """The device that this process uses, `None` as long as it uses none; asking initializes none."""
    for kind in _types():
        module = sys.modules.get(f"torch.{kind}")
        if module is not None and _is_used(module):
            index = int(module.current_device()) if hasattr(module, "current_device") else 0
            others = [each for each in range(module.device_count()) if each != index]
            return Device(kind, index, tuple(sorted({index, *_holding_memory(module, others)})), module)
    return None


def synchronize() -> None:
    """Wait for the device, if this process uses one."""
    if (used := current()) is not None:
        used.synchronize()


def activity() -> Any:
    """What torch.profiler calls tracing the used device; `None` where there is none, or it cannot be traced."""
    if (used := current()) is None:
        return None
    import torch
    from torch.profiler import ProfilerActivity, supported_activities

    outside = torch._C._get_privateuse1_backend_name()
    found = getattr(ProfilerActivity, "PrivateUse1" if used.type == outside else used.type.upper(), None)
    return found if found in supported_activities() else None


def available() -> str:
    """Type of the devices that this process could use; empty without any."""
    import torch

    return next((kind for kind in _types() if torch.get_device_module(kind).is_available()), "")


def initialize(kind: str) -> None:
    """Let this process use the current device of a type.

    Raises
    ------
    RuntimeError
        It is not available, or busy.
    """
    import torch

    module = torch.get_device_module(kind)
    if hasattr(module, "init"):
        module.init()
    else:
        _kept.append(torch.zeros(1, device=kind))


def select(kind: str, local_rank: int) -> None:
    """Make the device with the number of a rank, of those on its machine, this process's current one."""
    import torch

    module = torch.get_device_module(kind)
    module.set_device(local_rank % module.device_count())


def sdpa_kernels() -> str:
    """Which kernels of scaled dot product attention are allowed: flash, memory-efficient, math, by first letters."""
    import torch

    switches = torch.backends.cuda
    allowed = {
        "f": switches.flash_sdp_enabled(),
        "m": switches.mem_efficient_sdp_enabled(),
        "n": switches.math_sdp_enabled(),
    }
    return "".join(letter for letter, enabled in allowed.items() if enabled)


def switches() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Switches of the backends that choose kernels: for each, how it is read and how it is written."""
    import torch

    def attribute(module: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        return lambda: getattr(module, name), lambda value: setattr(module, name, value)

    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        yield attribute(torch.backends.cudnn, name)
    yield attribute(torch.backends.cuda.matmul, "allow_tf32")
    for kind in ("flash", "mem_efficient", "math"):
        switch = torch.backends.cuda
        yield getattr(switch, f"{kind}_sdp_enabled"), getattr(switch, f"enable_{kind}_sdp")
    if (used := current()) is not None:
        kind = used.type
        yield lambda: torch.is_autocast_enabled(kind), lambda value: torch.set_autocast_enabled(kind, value)


def _types() -> Sequence[str]:
    """Types of devices that this build of torch may use; at most one from torch 2.6 on."""
    accelerator = sys.modules.get("torch.accelerator")
    if accelerator is None:
        return _BUILT_IN if "torch" in sys.modules else ()
    found = accelerator.current_accelerator()
    return () if found is None else (found.type,)


def _is_used(module: Any) -> bool:
    if hasattr(module, "is_initialized"):
        return bool(module.is_initialized())
    # torch.mps does not say: steps that use it have parameters or inputs there.
    return bool(module.is_available() and module.current_allocated_memory() > 0)


def _holding_memory(module: Any, indices: Sequence[int]) -> list[int]:
    """Those of the devices that hold memory of this process; asking opens none."""
    reserved = getattr(module, "memory_reserved", None)
    return [index for index in indices if reserved is not None and reserved(index) > 0]


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    return match[1] if match else ""
