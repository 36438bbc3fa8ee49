"""Makes the traces of devices beside this file: `python tests/unit/trace/data/generate.py`, without a device.

A training step as kineto writes it: input and a copy to the device, operators with modules' frames around them,
launches, kernels on several streams, backward on its own thread, an optimizer, and a synchronization; of a CUDA device,
of a ROCm one, and of two ranks that reduce their gradients. Times are drawn with a seed: the files are always the same.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOST, MAIN, ENGINE = 4000, 4000, 4100
"""Process and threads of the host."""
COMPUTE, COPIES, COLLECTIVES = 7, 13, 20
"""Streams."""
STEPS, LAYERS, BATCH, WIDTH = 3, 2, 16, 64
TRANSFER = 70.0
"""Microseconds that a collective takes once all have come."""


@dataclass(frozen=True)
class Vendor:
    """How a vendor's libraries call things."""

    launch: str
    copy: str
    synchronize: str
    gemm: str
    device: str


CUDA = Vendor(
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize", "ampere_sgemm_64x32_sliced1x4_nn", "NVIDIA A100"
)
ROCM = Vendor(
    "hipLaunchKernel", "hipMemcpyWithStream", "hipDeviceSynchronize", "Cijk_Ailk_Bljk_SB_MT64x32x16_SE", "AMD MI250"
)


@dataclass
class Timeline:
    """Events in microseconds, made in the order in which the host's threads run."""

    vendor: Vendor
    random: random.Random
    now: float = 1000.0
    thread: int = MAIN
    events: list[dict[str, Any]] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    """When each stream has nothing left to do."""
    correlation: int = 100
    sequence: int = 0
    frames: int = 0
    allocated: int = 1 << 20
    arrived: list[float] = field(default_factory=list)
    """When each collective began here."""
    last: list[float] = field(default_factory=list)
    """When it began on the last rank."""

    def spend(self, least: float, most: float) -> float:
        """Let time pass on the host."""
        taken = round(self.random.uniform(least, most), 3)
        self.now = round(self.now + taken, 3)
        return taken

    @contextmanager
    def within(self, name: str, category: str, **args: Any) -> Iterator[None]:
        """An event around what happens inside."""
        begin, place = self.now, len(self.events)
        self.spend(1, 3)
        yield
        self.spend(1, 3)
        event = {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": self.thread, "ts": begin}
        self.events.insert(place, {**event, "dur": round(self.now - begin, 3), "args": args})

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """A module's frame."""
        self.frames += 1
        with self.within(f"nn.Module: {name}", "python_function", **{"Python id": self.frames, "Python module id": 0}):
            yield

    def launch(
        self, name: str, dur: float, stream: int = COMPUTE, call: str = "", category: str = "kernel", **args: Any
    ) -> None:
        """A call of the runtime, and what it has the device do."""
        self.correlation += 1
        with self.within(call or self.vendor.launch, "cuda_runtime", correlation=self.correlation):
            self.spend(2, 4)
        begin = round(max(self.free.get(stream, 0.0), self.now + 2), 3)
        self.free[stream] = round(begin + dur, 3)
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": dur}
        told = {"device": 0, "stream": stream, "correlation": self.correlation, **args}
        self.events.append({**event, "args": told})

    def operator(self, name: str, dims: list[Any], inside: Callable[[], None] = lambda: None, **args: Any) -> None:
        """An operator of float tensors."""
        told = {"Input Dims": dims, "Input type": ["float"] * len(dims), **args}
        with self.within(name, "cpu_op", **told):
            inside()

    def memory(self, size: int) -> None:
        """A tensor on the device, made or freed."""
        self.allocated += size
        args = {
            "Total Allocated": self.allocated,
            "Total Reserved": 1 << 24,
            "Bytes": size,
            "Device Id": 0,
            "Device Type": 1,
            "Addr": 1 << 40,
        }
        place = {"name": "[memory]", "pid": HOST, "tid": self.thread, "ts": self.now}
        self.events.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", **place, "args": args})

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        with self.within(self.vendor.synchronize, "cuda_runtime", correlation=-1):
            self.now = max(self.now, round(max(self.free.values(), default=0.0) + 3, 3))


def layer(line: Timeline, number: int) -> None:
    """Forward of a linear layer and its activation."""
    dims = [[BATCH, WIDTH], [WIDTH, WIDTH], [WIDTH]]

    def product() -> None:
        line.memory(4 * BATCH * WIDTH)
        line.launch(line.vendor.gemm, round(line.random.uniform(30, 60), 3))

    def linear() -> None:
        line.operator("aten::addmm", [dims[2], dims[0], dims[1]], product)

    line.sequence += 1
    with line.module(f"Linear_{number}"):
        line.operator("aten::linear", dims, linear, **{"Sequence number": line.sequence, "Fwd thread id": 0})
    with line.module(f"ReLU_{number}"):
        line.operator(
            "aten::relu",
            [[BATCH, WIDTH]],
            lambda: line.launch("void at::native::vectorized_elementwise_kernel<4, relu>", 6.5),
        )


def backward(line: Timeline, rank: int | None) -> None:
    """On the autograd engine's thread, while the main one waits."""
    line.thread = ENGINE
    for number in reversed(range(LAYERS)):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        told = {"Sequence number": line.sequence - LAYERS + number + 1, "Fwd thread id": 1}
        with line.within(name, "cpu_op", **told):

            def product() -> None:
                line.launch(line.vendor.gemm, round(line.random.uniform(40, 80), 3))

            for _ in range(2):
                line.operator("aten::mm", [[WIDTH, BATCH], [BATCH, WIDTH]], product)
            line.memory(-4 * BATCH * WIDTH)
        if rank is not None:
            reduce_gradients(line)
    line.thread = MAIN


def reduce_gradients(line: Timeline) -> None:
    """A collective beside the computation: it ends on all ranks when the last one has come and all is sent."""
    number = len(line.arrived)
    args = {
        "Collective name": "allreduce",
        "In msg nelems": WIDTH * WIDTH,
        "Out msg nelems": WIDTH * WIDTH,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": [0, 1],
        "Seq": number,
    }
    with line.within("nccl:all_reduce", "user_annotation"):
        line.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", TRANSFER, COLLECTIVES, **args)
    event = line.events[-1]
    line.arrived.append(event["ts"])
    if number < len(line.last):
        event["dur"] = round(line.last[number] + TRANSFER - event["ts"], 3)
        line.free[COLLECTIVES] = round(event["ts"] + event["dur"], 3)


def step(line: Timeline, number: int, rank: int | None) -> None:
    """One training step."""
    with line.within(f"ProfilerStep#{number}", "user_annotation"):
        with line.within("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"):
            line.spend(20, 60)
        size = {"bytes": 4 * BATCH * WIDTH}

        def copy() -> None:
            line.launch("Memcpy HtoD (Pageable -> Device)", 12.25, COPIES, line.vendor.copy, "gpu_memcpy", **size)

        line.operator("aten::to", [[BATCH, WIDTH]], lambda: line.operator("aten::copy_", [[BATCH, WIDTH]], copy))
        with line.module("Net_0"):
            for number_of_layer in range(LAYERS):
                layer(line, number_of_layer)
        backward(line, rank)
        line.free[COMPUTE] = max(line.free[COMPUTE], line.free.get(COLLECTIVES, 0.0))
        with line.within("Optimizer.step#SGD.step", "user_annotation"):
            line.operator(
                "aten::_foreach_add_",
                [[WIDTH, WIDTH]],
                lambda: line.launch("void multi_tensor_apply_kernel<SGD>", 9.75),
            )
        line.wait()


def run(vendor: Vendor, seed: int, rank: int | None = None, last: list[float] | None = None) -> Timeline:
    """All steps of one process."""
    line = Timeline(vendor, random.Random(seed), last=last or [])
    for number in range(STEPS):
        step(line, number + 1, rank)
    return line


def run_ranks(seeds: tuple[int, ...]) -> list[Timeline]:
    """All steps of ranks that wait for each other: a step's collectives depend on those of the steps before."""
    last: list[float] = []
    for _ in range(STEPS * LAYERS + 1):
        lines = [run(CUDA, seed, rank, last) for rank, seed in enumerate(seeds)]
        last = [max(moments) for moments in zip(*(line.arrived for line in lines), strict=True)]
    return lines


def write(name: str, line: Timeline, rank: int | None = None) -> None:
    """Write one trace."""
    top: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": line.vendor.device, "numSms": 108, "totalGlobalMem": 1 << 35}],
        "record_shapes": 1,
        "profile_memory": 1,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    if rank is not None:
        top["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    text = json.dumps({**top, "traceEvents": line.events}, indent=0)
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Write all of them."""
    write("device_cuda", run(CUDA, 1))
    write("device_rocm", run(ROCM, 2))
    for rank, line in enumerate(run_ranks((3, 4))):
        write(f"device_rank{rank}", line, rank)


if __name__ == "__main__":
    main()
