"""A stand-in for a GPU: what `pytest_perfdl.measure.device` and the steps of tests call, on a simulated device.

`install()` puts it into `torch.cuda` of this process, so that `device="cuda"` works where there is no GPU. Tensors stay
on the host. An operator with a tensor that was made for the device launches a kernel, whose time follows from its
FLOPs and bytes and passes on the clock of a stream. Streams, events, copies, graphs, the allocator's statistics, errors
and the trace of torch.profiler (in Kineto's form) behave as those of CUDA: `tests/gpu/test_contract.py` holds for both.

It is set up by a JSON object in the environment variable `STAND_IN_GPU` (see `Setup`); processes with the same
`folder` share the device, its memory and its faults.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import math
import os
import random
import struct
import time
import types
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDERS = (Path(__file__).parent, Path(__file__).parent / "site-packages")
"""Where processes find this module, and stand-ins for nvidia-ml-py (torch imports that) and amdsmi as if installed."""
LATENCY_NS = 4_000
"""From a launch to the begin of a kernel on an idle stream."""
LEAST_KERNEL_NS = 2_000
ROUNDED_TO = 512
"""The allocator's blocks are multiples of so many bytes."""
CALLS = (
    "is_available",
    "is_initialized",
    "init",
    "device_count",
    "current_device",
    "set_device",
    "synchronize",
    "get_device_properties",
    "memory_stats",
    "memory_reserved",
    "reset_peak_memory_stats",
    "Event",
)
"""Names of `torch.cuda` that `measure/device.py` uses."""
OF_STEPS = (
    *("Stream", "stream", "current_stream", "default_stream", "set_stream", "CUDAGraph", "graph", "manual_seed_all"),
    *("empty_cache", "memory_allocated", "max_memory_allocated", "get_device_name"),
)
"""Names that only the steps of tests use, and torch itself."""
ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


@dataclass
class Card:
    """A device, as `torch.cuda.get_device_properties` describes it, and its speed.

    It is slow, so that small tensors, which the host computes in microseconds, keep it busy: launches run ahead.
    """

    name: str = "Stand-in GPU"
    multi_processor_count: int = 108
    total_memory: int = 2**33
    L2_cache_size: int = 40 * 2**20
    flops_per_s: float = 1e9
    bytes_per_s: float = 0.2e9
    cache_gain: float = 1.0
    """How many times faster the bytes of tensors are that the last-level cache holds."""


@dataclass
class Setup:
    """What is simulated."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    folder: str = ""
    """Shared by processes that use the same devices; empty for none."""
    exclusive: bool = False
    """Whether a device accepts one process at a time (exclusive-process mode)."""
    lacks: list[str] = field(default_factory=list)
    """Names that a backend does not have, such as "memory_stats"; "timing" are the times of events, "tracing" Kineto's
    part for the device."""
    lose_kernels: int = 0
    """Kernels that are missing at the start of every trace."""
    vendor: str = "NVIDIA"
    """Whose driver answers: that of "NVIDIA" or "AMD"."""
    reasons: int = 0
    """Bits of NVML's reasons for a reduced clock."""
    celsius: int = 50
    milliwatts: int = 120_000
    """What the sensors show."""
    slow: float = 1.0
    """How much longer kernels take than they should: reduced clocks."""
    jitter: float = 0.002
    """By which share the times of kernels vary."""

    @classmethod
    def read(cls) -> Setup:
        given = json.loads(os.environ.get("STAND_IN_GPU", "{}"))
        cards = [Card(**each) for each in given.pop("cards", [{}])]
        return cls(cards=cards, **given)

    def dump(self) -> str:
        return json.dumps(asdict(self))


class HostClock:
    """The host's own clock: waiting takes the time that it takes."""

    @staticmethod
    def now() -> int:
        return time.perf_counter_ns()

    @staticmethod
    def wait_until(moment: int) -> None:
        while (left := moment - time.perf_counter_ns()) > 0:
            if left > 200_000:
                time.sleep(min((left - 100_000) / 1e9, 1.0))


class ManualClock:
    """A clock that only moves when told to, and while somebody waits: every time is known exactly."""

    def __init__(self) -> None:
        self.moment = 1_000_000

    def now(self) -> int:
        return self.moment

    def wait_until(self, moment: int) -> None:
        self.moment = max(self.moment, moment)


@dataclass
class Launched:
    """Something that a stream does."""

    name: str
    category: str
    device: int
    stream: int
    start: int
    ns: int
    correlation: int
    bytes: int = 0


class Gpu:
    """All devices of this process."""

    def __init__(self, setup: Setup | None = None, clock: Any = None) -> None:
        self.setup = setup or Setup.read()
        self.clock = clock or HostClock()
        self.random = random.Random()
        self.cards = self._visible()
        self.initialized = False
        self.device = 0
        self.free: dict[tuple[int, int], int] = defaultdict(int)
        """When each stream of a device has nothing left to do."""
        self.stream = 0
        self.numbers = itertools.count(1)
        self.correlations = itertools.count(1)
        self.memory = [Allocator(index, self) for index in range(len(self.cards))]
        self.recorded: list[Launched] | None = None
        """What the profiler has seen; `None` while it does not record."""
        self.captured: list[tuple[str, int, str, int]] | None = None
        self.error = ""
        """An error of a kernel, raised by every call once the kernel has run."""
        self.error_at = 0
        self.busy: list[tuple[int, int, int]] = []
        self.reduced_ns = 0
        """How long kernels ran with reduced clocks (`Setup.slow`)."""

    def _visible(self) -> list[Card]:
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return self.setup.cards
        return [self.setup.cards[int(each)] for each in wanted.split(",") if each.strip().isdigit()]

    # The context

    def init(self) -> None:
        if self.initialized:
            return
        if not self.cards:
            raise RuntimeError("No CUDA GPUs are available")
        if self.setup.folder:
            others = self._processes()
            if self.setup.exclusive and others:
                raise accelerator_error("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
            self._own("context").write_text("0")
        self.initialized = True

    def _own(self, what: str) -> Path:
        return Path(self.setup.folder) / f"{what}-{os.getpid()}"

    def _processes(self) -> list[Path]:
        """Files of other living processes that have a context."""
        found = []
        for path in Path(self.setup.folder).glob("context-*"):
            pid = int(path.name.partition("-")[2])
            if pid != os.getpid() and alive(pid):
                found.append(path)
        return found

    def check(self) -> None:
        """Raise what a kernel has done, if it has run by now."""
        self.init()
        if self.error and self.clock.now() >= self.error_at:
            raise accelerator_error(f"{self.error}\n{ASYNCHRONOUS}")

    # Work

    def launch(
        self, name: str, ns: int, *, stream: int | None = None, category: str = "kernel", size: int = 0, call: str = ""
    ) -> int:
        """Have a stream do something that takes so long; when it ends."""
        self.check()
        if self.captured is not None:
            self.captured.append((name, ns, category, size))
            return 0
        correlation = next(self.correlations)
        with self.called(call or ("cudaMemcpyAsync" if size else "cudaLaunchKernel"), correlation):
            return self._run(name, ns, stream, category, size, correlation)

    def _run(self, name: str, ns: int, stream: int | None, category: str, size: int, correlation: int) -> int:
        where = self.device, self.stream if stream is None else stream
        ns = max(LEAST_KERNEL_NS, round(ns * self.setup.slow * self.random.uniform(1, 1 + self.setup.jitter)))
        start = max(self.clock.now() + LATENCY_NS, self.free[where])
        self.free[where] = start + ns
        self.busy.append((self.device, start, start + ns))
        if self.recorded is not None:
            self.recorded.append(Launched(name, category, *where, start, ns, correlation, size))
        return self.free[where]

    @contextlib.contextmanager
    def called(self, name: str, correlation: int = 0) -> Any:
        """A call of the runtime, which the profiler records."""
        if self.recorded is None:
            yield
            return
        from torch._C._profiler import _RecordFunctionFast

        with _RecordFunctionFast(f"stand-in:{name}:{correlation}:{self.clock.now()}"):
            yield

    def wait_for(self, moment: int, call: str) -> None:
        """Let the host wait."""
        self.init()
        with self.called(call):
            self.clock.wait_until(moment)
        self.check()
        self.log()

    def log(self) -> None:
        """Tell other processes when this one kept the devices busy."""
        if self.setup.folder and self.busy:
            with self._own("busy").open("a") as file:
                file.writelines(f"{device} {start} {end}\n" for device, start, end in self.busy)
            if self.setup.slow > 1:
                self.reduced_ns += sum(end - start for _, start, end in self.busy)
                self._own("reduced").write_text(str(self.reduced_ns))
        self.busy.clear()

    def fault(self, error: str = "CUDA error: an illegal memory access was encountered", after_ns: int = 0) -> None:
        """A kernel that fails: nothing works in this process once it has run."""
        self.error_at = self.launch("void faulty_kernel(float*)", max(after_ns, LEAST_KERNEL_NS))
        self.error = error

    def forever(self) -> None:
        """A kernel that never ends."""
        self.launch("void endless_kernel()", 2**62)

    @contextlib.contextmanager
    def on(self, device: int) -> Any:
        """Launch on another device, on its default stream, as operators do whose tensors are there."""
        before = self.device, self.stream
        if device != self.device:
            self.device, self.stream = device, 0
        try:
            yield
        finally:
            self.device, self.stream = before

    def idle_at(self, device: int) -> int:
        return max((moment for (of, _), moment in self.free.items() if of == device), default=0)

    def index_of(self, device: Any) -> int:
        import torch

        if device is None:
            return self.device
        number = device if isinstance(device, int) else torch.device(device).index
        number = self.device if number is None else number
        if not 0 <= number < len(self.cards):
            raise accelerator_error("CUDA error: invalid device ordinal")
        return int(number)


class Allocator:
    """Counts what is allocated on a device, as torch's caching allocator does."""

    def __init__(self, index: int, gpu: Gpu) -> None:
        self.index, self.gpu = index, gpu
        self.live: list[tuple[Any, int]] = []
        self.current = self.peak = self.count = self.total = self.reserved = 0

    def allocate(self, storage: Any) -> None:
        """Count a storage for as long as it lives."""
        from torch.multiprocessing.reductions import StorageWeakRef

        size = ROUNDED_TO * math.ceil(storage.nbytes() / ROUNDED_TO)
        self.sweep()
        self.fit(size)
        self.live.append((StorageWeakRef(storage), size))
        self.current += size
        self.count += 1
        self.total += size
        self.peak = max(self.peak, self.current)
        self.reserved = max(self.reserved, self.current)

    def fit(self, size: int) -> None:
        """Raise where there is no room for so many bytes."""
        import torch

        gpu, capacity = self.gpu, self.gpu.cards[self.index].total_memory
        taken = 0
        if gpu.setup.folder:
            taken = sum(int(path.read_text() or 0) for path in gpu._processes())
        if self.current + size + taken > capacity:
            free = max(0, capacity - taken - self.current)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {self.index} has a total capacity "
                f"of {capacity / 2**30:.2f} GiB of which {free / 2**20:.2f} MiB is free."
            )
        if gpu.setup.folder and self.current + size > self.reserved:
            gpu._own("context").write_text(str(self.current + size))

    def sweep(self) -> None:
        """Forget storages that are gone."""
        kept = []
        for entry in self.live:
            if entry[0].expired():
                self.current -= entry[1]
            else:
                kept.append(entry)
        self.live = kept

    def stats(self) -> dict[str, int]:
        self.sweep()
        return {
            "allocated_bytes.all.allocated": self.total,
            "allocated_bytes.all.current": self.current,
            "allocated_bytes.all.peak": self.peak,
            "allocation.all.allocated": self.count,
            "reserved_bytes.all.current": self.reserved,
        }


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def accelerator_error(text: str) -> RuntimeError:
    """An error as torch raises it for CUDA's; a class of its own since torch 2.8."""
    import torch

    return getattr(torch, "AcceleratorError", RuntimeError)(text)  # type: ignore[no-any-return]


# What stands in `torch.cuda`


def cuda_names(gpu: Gpu) -> dict[str, Any]:
    """All names that are replaced, with what stands for them."""
    import torch

    class Event:
        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self.timed = enable_timing and "timing" not in gpu.setup.lacks
            self.moment: int | None = None
            self.device = 0

        def record(self, stream: Any = None) -> None:
            gpu.check()
            number = gpu.stream if stream is None else stream.number
            self.device = gpu.device if stream is None else stream.device_index
            self.moment = max(gpu.clock.now() + LATENCY_NS, gpu.free[self.device, number])
            gpu.free[self.device, number] = self.moment

        def wait(self, stream: Any = None) -> None:
            number = gpu.stream if stream is None else stream.number
            if self.moment is not None:
                gpu.free[gpu.device, number] = max(gpu.free[gpu.device, number], self.moment)

        def query(self) -> bool:
            gpu.check()
            return self.moment is None or gpu.clock.now() >= self.moment

        def synchronize(self) -> None:
            gpu.wait_for(self.moment or 0, "cudaEventSynchronize")

        def elapsed_time(self, end_event: Any) -> float:
            gpu.check()
            if not self.timed or not end_event.timed:
                raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
            if self.moment is None or end_event.moment is None:
                raise RuntimeError("Both events must be recorded before calculating elapsed time.")
            if not self.query() or not end_event.query():
                raise accelerator_error("CUDA error: device not ready")
            # The driver tells milliseconds as a 32-bit float.
            elapsed = (end_event.moment - self.moment) / 1e6
            return float(struct.unpack("f", struct.pack("f", elapsed))[0])

    class Stream:
        def __init__(self, device: Any = None, priority: int = 0, number: int | None = None) -> None:
            gpu.init()
            self.device_index = gpu.index_of(device)
            self.number = next(gpu.numbers) if number is None else number

        def synchronize(self) -> None:
            gpu.wait_for(gpu.free[self.device_index, self.number], "cudaStreamSynchronize")

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            where = self.device_index, self.number
            gpu.free[where] = max(gpu.free[where], gpu.free[stream.device_index, stream.number])

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def query(self) -> bool:
            gpu.check()
            return gpu.clock.now() >= gpu.free[self.device_index, self.number]

    class Graph:
        def __init__(self) -> None:
            self.work: list[tuple[str, int, str, int]] = []

        def replay(self) -> None:
            gpu.check()
            correlation = next(gpu.correlations)
            with gpu.called("cudaGraphLaunch", correlation):
                for name, ns, category, size in self.work:
                    gpu._run(name, ns, None, category, size, correlation)

    @contextlib.contextmanager
    def graph(cuda_graph: Any, **_: Any) -> Any:
        gpu.captured = []
        try:
            yield
            cuda_graph.work = gpu.captured
        finally:
            gpu.captured = None

    @contextlib.contextmanager
    def stream(stream: Any) -> Any:
        before = gpu.device, gpu.stream
        gpu.device, gpu.stream = stream.device_index, stream.number
        try:
            yield
        finally:
            gpu.device, gpu.stream = before

    def is_available() -> bool:
        return bool(gpu.cards)

    def is_initialized() -> bool:
        return gpu.initialized

    def init() -> None:
        gpu.init()

    def device_count() -> int:
        return len(gpu.cards)

    def current_device() -> int:
        gpu.init()
        return gpu.device

    def set_device(device: Any) -> None:
        number = gpu.index_of(device)
        gpu.init()
        gpu.device = number

    def synchronize(device: Any = None) -> None:
        gpu.check()
        gpu.wait_for(gpu.idle_at(gpu.index_of(device)), "cudaDeviceSynchronize")

    def get_device_properties(device: Any = None) -> Any:
        gpu.check()
        card = asdict(gpu.cards[gpu.index_of(device)])
        return types.SimpleNamespace(**card, major=8, minor=0)

    def memory_stats(device: Any = None) -> dict[str, int]:
        gpu.check()
        return gpu.memory[gpu.index_of(device)].stats()

    def memory_reserved(device: Any = None) -> int:
        return memory_stats(device)["reserved_bytes.all.current"]

    def memory_allocated(device: Any = None) -> int:
        return memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(device: Any = None) -> int:
        return memory_stats(device)["allocated_bytes.all.peak"]

    def reset_peak_memory_stats(device: Any = None) -> None:
        allocator = gpu.memory[gpu.index_of(device)]
        allocator.sweep()
        allocator.peak = allocator.current

    def set_stream(stream: Any) -> None:
        gpu.stream = stream.number

    def current_stream(device: Any = None) -> Any:
        return Stream(device, number=gpu.stream)

    def default_stream(device: Any = None) -> Any:
        return Stream(device, number=0)

    def manual_seed_all(seed: int) -> None:
        pass

    def empty_cache() -> None:
        for allocator in gpu.memory:
            allocator.sweep()
            allocator.reserved = allocator.current

    def get_device_name(device: Any = None) -> str:
        return gpu.cards[gpu.index_of(device)].name

    named = dict(locals()) | {"CUDAGraph": Graph}
    del torch
    return {name: named[name] for name in (*CALLS, *OF_STEPS) if name not in gpu.setup.lacks}


def profile_class(gpu: Gpu) -> Any:
    """torch's profiler of the host, whose trace gets what the device did."""
    import torch
    from torch.autograd.profiler_util import Interval
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as real

    class Profile(real):  # type: ignore[misc, valid-type]
        def __init__(self, *, activities: Any = None, **rest: Any) -> None:
            self.traces_device = activities is None or ProfilerActivity.CUDA in activities
            super().__init__(activities=[ProfilerActivity.CPU], **rest)

        def start_trace(self) -> None:
            super().start_trace()
            if self.traces_device and gpu.initialized:
                gpu.recorded = []

        def stop_trace(self) -> None:
            self.launched, gpu.recorded = gpu.recorded or [], None
            super().stop_trace()

        def events(self) -> Any:
            """Those of the host, and what the device did, the ranges around it among that, as torch has them."""
            found = list(super().events())
            calls = {}
            for event in found:
                if event.name.startswith("stand-in:"):
                    _, correlation, began = event.name.removeprefix("stand-in:").split(":")
                    calls[int(correlation)] = event.time_range.start - int(began) / 1e3
            device = torch.autograd.DeviceType.CUDA
            own = [
                types.SimpleNamespace(
                    name=each.name,
                    device_type=device,
                    is_user_annotation=False,
                    time_range=Interval(
                        each.start / 1e3 + calls[each.correlation],
                        (each.start + each.ns) / 1e3 + calls[each.correlation],
                    ),
                )
                for each in self.launched
            ]
            for event in [each for each in found if each.is_user_annotation]:
                inside = [each.time_range for each in own if event.time_range.start <= each.time_range.start]
                inside = [each for each in inside if each.start <= event.time_range.end]
                if inside:
                    around = Interval(inside[0].start, inside[-1].end)
                    annotation = types.SimpleNamespace(
                        name=event.name, device_type=device, is_user_annotation=True, time_range=around
                    )
                    own.append(annotation)
            return [*found, *own]

        def export_chrome_trace(self, path: str) -> None:
            super().export_chrome_trace(path)
            file = Path(path)
            file.write_text(json.dumps(with_device(json.loads(file.read_text()), self.launched, gpu)))

    return Profile


def with_device(trace: dict[str, Any], launched: list[Launched], gpu: Gpu) -> dict[str, Any]:
    """A trace of the host with the calls of the runtime, and what the device did, as Kineto writes them."""
    events, shift = [], None
    for event in without_dispatch(trace["traceEvents"]):
        kind, _, rest = str(event.get("name", "")).partition(":")
        if kind == "stand-in":
            name, correlation, began = rest.split(":")
            shift = event["ts"] - int(began) / 1e3 if shift is None else shift
            event |= {"name": name, "cat": "cuda_runtime"}
            event["args"] = {"correlation": int(correlation), "cbid": 0}
        elif event.get("name") == "[memory]":
            event["args"] |= {"Device Type": 1, "Device Id": 0}
        events.append(event)
    for each in launched[gpu.setup.lose_kernels :]:
        args: dict[str, Any] = {"device": each.device, "stream": each.stream + 7, "correlation": each.correlation}
        if each.bytes:
            args["bytes"] = each.bytes
        events.append(
            {
                "ph": "X",
                "cat": each.category,
                "name": each.name,
                "pid": each.device,
                "tid": each.stream + 7,
                "ts": round(each.start / 1e3 + (shift or 0.0), 3),
                "dur": round(each.ns / 1e3, 3),
                "args": args,
            }
        )
    for index, card in enumerate(gpu.cards):
        for name, args in (("process_name", {"name": "python"}), ("process_labels", {"labels": f"GPU {index}"})):
            events.append({"name": name, "ph": "M", "ts": 0, "pid": index, "tid": 0, "args": args})
        trace.setdefault("deviceProperties", []).append(
            {
                "id": index,
                "name": card.name,
                "totalGlobalMem": card.total_memory,
                "numSms": card.multi_processor_count,
            }
        )
    return trace | {"traceEvents": events}


def without_dispatch(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without those that the modes of the stand-in add: a range, and the operator again inside of it."""
    inside = [
        (event["tid"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("name") == "PythonDispatchMode"
    ]
    inside.sort()
    kept = []
    for event in events:
        if event.get("cat") == "cpu_op" and not str(event["name"]).startswith("stand-in:"):
            place = bisect.bisect_right(inside, (event["tid"], event["ts"], math.inf)) - 1
            if place >= 0 and inside[place][0] == event["tid"] and event["ts"] <= inside[place][2]:
                continue
        kept.append(event)
    return kept


# Tensors of the device, which are tensors of the host that are known to be the device's


class Tensors:
    """Which storages are the device's; what is computed from one of them is, too."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.known: dict[int, tuple[Any, int]] = {}
        self.cached: dict[tuple[int, int], int] = {}
        """Bytes of the storages that the last-level cache of each device holds, the ones used last at the end."""

    def holds(self, tensor: Any) -> bool:
        return self.device_of(tensor) is not None

    def device_of(self, tensor: Any) -> int | None:
        reference, device = self.known.get(tensor.untyped_storage()._cdata, (None, 0))
        return None if reference is None or reference.expired() else device

    def add(self, tensor: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        if not self.holds(tensor):
            self.gpu.memory[self.gpu.device].allocate(storage)
            self.known[storage._cdata] = StorageWeakRef(storage), self.gpu.device

    def bytes_moved(self, used: list[Any]) -> float:
        """Bytes of some tensors that a kernel uses on the current device; those in its cache count for less."""
        card, total = self.gpu.cards[self.gpu.device], 0.0
        for tensor in used:
            storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
            key = self.gpu.device, storage._cdata
            hit = self.cached.pop(key, None) is not None
            total += size / card.cache_gain if hit else size
            if card.cache_gain > 1:
                self.cached[key] = storage.nbytes()
                while sum(self.cached.values()) > card.L2_cache_size:
                    del self.cached[next(iter(self.cached))]
        return total


def modes(gpu: Gpu) -> list[Any]:
    """What makes operators launch kernels, and `device="cuda"` mean the stand-in."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
    from torch.utils._pytree import tree_leaves

    tensors = Tensors(gpu)

    def plain(value: Any) -> list[Any]:
        return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]

    def on_device(place: Any) -> bool:
        return isinstance(place, (str, torch.device)) and str(place).startswith("cuda")

    def moved(tensor: Any, direction: str, *, waits: bool) -> None:
        size = tensor.numel() * tensor.element_size()
        ns = round(size / gpu.cards[gpu.device].bytes_per_s * 1e9)
        end = gpu.launch(f"Memcpy {direction}", ns, category="gpu_memcpy", size=size)
        if waits:
            gpu.wait_for(end, "cudaStreamSynchronize")

    class Placing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            if name in ("cuda", "to", "cpu") and args and isinstance(args[0], torch.Tensor):
                return self.move(func, name, args, kwargs)
            if name == "pin_memory":
                return args[0]
            made = on_device(kwargs.get("device"))
            if made:
                gpu.check()
                index = gpu.index_of(kwargs["device"])
                kwargs["device"] = "cpu"
            out = func(*args, **kwargs)
            if made:
                with gpu.on(index):
                    for tensor in plain(out):
                        tensors.add(tensor)
            return out

        def move(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
            tensor, places = args[0], [*args[1:], kwargs.get("device")]
            wanted = name == "cuda" or any(map(on_device, places))
            leaves = name == "cpu" or any(str(place) == "cpu" for place in places if place is not None)
            rest = [each for each in args[1:] if isinstance(each, torch.dtype)]
            held = tensors.device_of(tensor)
            given = args[1:2] if name == "cuda" else filter(on_device, places)
            index = gpu.index_of(next(iter(given), None)) if wanted else held
            if wanted and held is None:
                gpu.check()
                with torch.no_grad():
                    out = tensor if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()
                with gpu.on(index):
                    tensors.add(out)
                    moved(out, "HtoD (Pageable -> Device)", waits=not kwargs.get("non_blocking"))
            elif wanted and held != index:
                with _disable_current_modes():
                    out = tensor.detach().clone()
                with gpu.on(index):
                    tensors.add(out)
                    moved(out, "PtoP", waits=False)
            elif leaves and held is not None:
                with gpu.on(held):
                    moved(tensor, "DtoH (Device -> Pageable)", waits=True)
                with _disable_current_modes():
                    out = tensor.detach().clone()
            else:
                out = tensor
            return out.to(*rest) if rest else out

    class Launching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = [each for each in plain((args, kwargs)) if tensors.holds(each)]
            if not given:
                return func(*args, **(kwargs or {}))
            gpu.check()
            with gpu.on(tensors.device_of(given[0])):
                return self.launched(func, given, args, kwargs)

        def launched(self, func: Any, given: Any, args: Any, kwargs: Any) -> Any:
            name = func.overloadpacket.__name__
            if name == "_local_scalar_dense":
                moved(given[0], "DtoH (Device -> Pageable)", waits=True)
                return func(*args, **(kwargs or {}))
            out = func(*args, **(kwargs or {}))
            results = plain(out)
            if not func.is_view and name != "_unsafe_view":
                for tensor in results:
                    tensors.add(tensor)
                gpu.launch(f"void stand_in::{name}_kernel(float*)", self.cost_ns(func, given, args, kwargs, out))
            return out

        @staticmethod
        def cost_ns(func: Any, given: Any, args: Any, kwargs: Any, out: Any) -> int:
            from torch.utils.flop_counter import flop_registry

            card = gpu.cards[gpu.device]
            size = tensors.bytes_moved([*given, *plain(out)])
            formula = flop_registry.get(func.overloadpacket)
            flops = formula(*args, **(kwargs or {}), out_val=out) if formula else 0
            return round(max(flops / card.flops_per_s, size / card.bytes_per_s) * 1e9)

    # torch keeps Dynamo from tracing the method, and imports all of it to do so.
    wrapped = getattr(Launching.__torch_dispatch__, "__wrapped__", None)
    if wrapped is not None:
        setattr(wrapped, "__dynamo_disable", wrapped)
    return [Placing(), Launching()]


@dataclass
class Installed:
    """A stand-in in its place, until it is removed."""

    gpu: Gpu
    undo: contextlib.ExitStack

    def remove(self) -> None:
        self.undo.close()


def install(gpu: Gpu | None = None, *, operators: bool = True) -> Installed:
    """Put it into torch of this process.

    Parameters
    ----------
    operators
        Whether operators launch kernels; otherwise only `Gpu.launch` does.
    """
    import torch
    from torch.profiler import ProfilerActivity

    gpu = gpu or Gpu()
    undo = contextlib.ExitStack()

    def replace(module: Any, name: str, value: Any) -> None:
        undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    for name, value in cuda_names(gpu).items():
        replace(torch.cuda, name, value)
    for name in gpu.setup.lacks:
        if hasattr(torch.cuda, name):
            undo.callback(setattr, torch.cuda, name, getattr(torch.cuda, name))
            delattr(torch.cuda, name)
    known = {ProfilerActivity.CPU} if "tracing" in gpu.setup.lacks else {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    replace(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    replace(torch.profiler, "supported_activities", lambda: known)
    replace(torch.profiler, "profile", profile_class(gpu))
    undo.callback(gpu.log)
    if operators:
        for mode in modes(gpu):
            undo.enter_context(mode)
    return Installed(gpu, undo)
