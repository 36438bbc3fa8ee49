"""Plays steps on two host threads and two streams, and writes what a profiler sees of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from synthesis import kineto
from synthesis.autograd import Autograd, Thread
from synthesis.device import STREAM_NUMBERS, Streams, allocators
from synthesis.kineto import DEVICE, HOST, SECTIONS, START_NS, Spool
from synthesis.model import Size
from synthesis.nodes import (
    Allocate,
    Annotation,
    Call,
    Copy,
    Frame,
    Free,
    Gradient,
    Join,
    Kernel,
    Launch,
    Memset,
    Node,
    Op,
    RunBackward,
    Stream,
    Synchronize,
    Tag,
    Work,
)

MAIN, ENGINE = HOST, HOST + 412
OUTER_FRAMES = ("train.py(161): <module>", "train.py(128): main")
_MOVED_PER_NS = {"HtoD (Pinned -> Device)": 24.0, "DtoH (Device -> Pinned)": 20.0}
_CBID = {"cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernelEx": 652, "cudaMemcpyAsync": 41}
_CBID |= {"cudaMemsetAsync": 51, "cudaStreamSynchronize": 131, "cudaMalloc": 20, "cudaEventRecord": 135}
_CBID |= {"cudaStreamWaitEvent": 147, "cudaEventQuery": 137, "cudaFuncSetAttribute": 273}
_CBID |= {"cudaOccupancyMaxActiveClusters": 429}


@dataclass(frozen=True)
class Numbers:
    """Rows of the sections that count in `Ev Idx`."""

    operators: int = 0
    memory: int = 0
    python: int = 0


class Job:
    """The job: call `step` as often as wanted, then `finish`."""

    def __init__(self, seed: int, spool: Spool, first: Numbers, size: Size) -> None:
        self.random = random.Random(seed)
        self.spool = spool
        self.rows: dict[str, list[str]] = {name: [] for name in SECTIONS}
        self.index = {"operators": first.operators, "memory": first.memory, "python": first.python}
        self.streams = Streams(START_NS)
        self.memory, self.host_memory = allocators(2 * size.parameters)
        self.live: dict[Tag, tuple[int, int, bool]] = {}
        self.main = Thread(MAIN, START_NS + 180_000)
        self.autograd = Autograd(self, Thread(ENGINE, START_NS + 180_000))
        self.external = self.correlation = self.sequence = self.links = 0
        self.python_id = len(OUTER_FRAMES)
        self.main.frame = str(self.python_id)
        self.number = 0
        self._play: dict[type, Callable[[Any, Thread], None]] = {
            Op: self.operator,
            Frame: self._frame,
            Annotation: self._annotation,
            Launch: self._launch,
            Copy: self._copy,
            Memset: self._memset,
            Call: self._call,
            Synchronize: self._synchronize,
            Join: self._join,
            Allocate: self._allocate,
            Gradient: self._gradient,
            Free: self._free,
            Work: self._work,
            RunBackward: self._backward,
        }

    def step(self, tree: Annotation) -> Numbers:
        """Play one step; how many rows it had."""
        self.main.now += self.some(35_000)
        self._annotation(replace(tree, name=tree.name.format(step=self.number)), self.main)
        self.number += 1
        if self.live or self.autograd.tape:
            raise RuntimeError(f"the step leaves {len(self.live)} allocations and {len(self.autograd.tape)} nodes")
        counts = Numbers(*(len(self.rows[name]) for name in ("operators", "memory", "python")))
        for name, rows in self.rows.items():
            self.spool.add(name, rows)
            rows.clear()
        return counts

    def finish(self, index: int) -> int:
        """Write the frames that were open all the time, with `Ev Idx` from `index` on; when all is done."""
        rows = []
        for number, name in enumerate(OUTER_FRAMES):
            start = START_NS + 40_000 + 1500 * number
            duration = self.main.now + 9000 - 1500 * number - start
            args = f'"Python parent id": {number or "null"}, "Python id": {number + 1}, "Ev Idx": {index + number}'
            rows.append(kineto.complete("python_function", name, HOST, MAIN, start, duration, args))
        self.spool.add("outer", rows)
        return max(self.main.now, *self.streams.free_at.values())

    def some(self, usual: int) -> int:
        """About the usual time, now and then much more, as hosts are."""
        u = self.random.random()
        return int(usual * (0.8 + 0.35 * u + 4.0 * u**60))

    def _on_device(self, usual: int) -> int:
        return int(usual * (0.97 + 0.06 * self.random.random()))

    def children(self, nodes: tuple[Node, ...], thread: Thread) -> None:
        for node in nodes:
            self._play[type(node)](node, thread)

    def reserve(self, section: str) -> tuple[int, int]:
        """A place for a row whose end is not known yet, and its `Ev Idx`."""
        rows = self.rows[section]
        rows.append("")
        self.index[section] += 1
        return len(rows) - 1, self.index[section] - 1

    def operator(self, op: Op, thread: Thread) -> None:
        thread.now += self.some(450)
        start = thread.now
        slot, index = self.reserve("operators")
        self.external += 1
        number, outer = self.external, thread.operator
        thread.operator = number
        sequence = f'"Sequence number": {self.sequence}, "Fwd thread id": 0, ' if op.grad else ""
        link = ""
        if op.backward is not None:
            self.links += 1
            link = kineto.flow("s", "fwdbwd", self.links, HOST, thread.tid, start)
            self.autograd.tape.append((self.sequence, self.links, op.backward))
            self.sequence += 1
        thread.now += self.some(900)
        self.children(op.children, thread)
        thread.now += self.some(300)
        thread.operator = outer
        extra = f"{op.extra}, " if op.extra else ""
        args = (
            f'"External id": {number},{sequence}"Record function id": 0, {extra}{kineto.inputs(op.inputs)}'
            f'"Ev Idx": {index}'
        )
        row = kineto.complete("cpu_op", op.name, HOST, thread.tid, start, thread.now - start, args)
        self.rows["operators"][slot] = row + link

    def _frame(self, frame: Frame, thread: Thread) -> None:
        thread.now += self.some(350)
        start = thread.now
        slot, index = self.reserve("python")
        self.python_id += 1
        number, outer = self.python_id, thread.frame
        thread.frame = str(number)
        thread.now += self.some(650)
        self.children(frame.children, thread)
        thread.now += self.some(250)
        thread.frame = outer
        module = "" if frame.module is None else f'"Python module id": {frame.module}, '
        args = f'"Python parent id": {outer}, "Python id": {number}, {module}"Ev Idx": {index}'
        row = kineto.complete("python_function", frame.name, HOST, thread.tid, start, thread.now - start, args)
        self.rows["python"][slot] = row

    def _annotation(self, annotation: Annotation, thread: Thread) -> None:
        thread.now += self.some(900)
        start = thread.now
        slot, index = self.reserve("operators")
        self.external += 1
        number, outer = self.external, thread.operator
        thread.operator = number
        thread.ranges.append({})
        self.children(annotation.children, thread)
        thread.now += self.some(700)
        thread.operator = outer
        args = f'"External id": {number},"Record function id": 0, "Ev Idx": {index}'
        row = kineto.complete("user_annotation", annotation.name, HOST, thread.tid, start, thread.now - start, args)
        self.rows["operators"][slot] = row
        for stream, (begins, ends) in thread.ranges.pop().items():
            # Kineto draws the range one nanosecond wider on both sides, so that its kernels lie inside.
            place = (DEVICE, STREAM_NUMBERS[stream], begins - 1, ends - begins + 2)
            args = f'"External id": {number}'
            self.rows["device"].append(kineto.complete("gpu_user_annotation", annotation.name, *place, args))

    def _runtime(self, api: str, usual: int, thread: Thread, until: int = 0) -> tuple[str, int, int]:
        """A call that ends not before `until`: its row, its start and its correlation."""
        thread.now += self.some(400)
        start = thread.now
        thread.now = max(start + self.some(usual), until)
        self.correlation += 1
        category = "cuda_driver" if api.startswith("cuL") else "cuda_runtime"
        args = f'"External id": {thread.operator},      "cbid": {_CBID[api]}, "correlation": {self.correlation}'
        row = kineto.complete(category, api, HOST, thread.tid, start, thread.now - start, args)
        return row, start, self.correlation

    def _submit(self, api: str, stream: Stream, ns: int, thread: Thread, row: Callable[[int, int, int], str]) -> None:
        """A call, and what it starts on a stream: `row` makes it of its start, duration and correlation."""
        call, called, number = self._runtime(api, 4200, thread, self.streams.room(stream, thread.now))
        duration = self._on_device(ns)
        earliest = thread.now + self.some(1400)
        begins = self.streams.start(stream, earliest, duration)
        # The device needs a moment between two kernels of a stream.
        self.streams.free_at[stream] += self._on_device(900)
        for open_range in thread.ranges:
            first, _ = open_range.get(stream, (begins, 0))
            open_range[stream] = first, begins + duration
        tid = STREAM_NUMBERS[stream]
        self.rows["device"] += (
            row(begins, duration, number),
            kineto.flow("f", "ac2g", number, DEVICE, tid, begins),
            call,
            kineto.flow("s", "ac2g", number, HOST, thread.tid, called),
        )

    def _launch(self, launch: Launch, thread: Thread) -> None:
        kernel: Kernel = launch.kernel
        tid = STREAM_NUMBERS[kernel.stream]
        before, after = kineto.kernel_args(kernel, tid)
        external = thread.operator

        def row(begins: int, duration: int, number: int) -> str:
            args = f'"External id": {external},      {before}{number}{after}'
            return kineto.complete("kernel", kernel.name, DEVICE, tid, begins, duration, args)

        self._submit(launch.api, kernel.stream, kernel.ns, thread, row)

    def _copy(self, copy: Copy, thread: Thread) -> None:
        ns = 1500 + int(copy.bytes / _MOVED_PER_NS[copy.kind])
        self._transfer("cudaMemcpyAsync", "gpu_memcpy", f"Memcpy {copy.kind}", copy.bytes, ns, thread)

    def _memset(self, memset: Memset, thread: Thread) -> None:
        self._transfer(
            "cudaMemsetAsync", "gpu_memset", "Memset (Device)", memset.bytes, 900 + memset.bytes // 2600, thread
        )

    def _transfer(self, api: str, category: str, name: str, size: int, ns: int, thread: Thread) -> None:
        tid = STREAM_NUMBERS["compute"]
        external = thread.operator

        def row(begins: int, duration: int, number: int) -> str:
            args = (
                f'"External id": {external},      "device": 0, "context": 1,      "stream": {tid}, '
                f'"correlation": {number},      "bytes": {size}, "memory bandwidth (GB/s)": {size / duration!r}'
            )
            return kineto.complete(category, name, DEVICE, tid, begins, duration, args)

        self._submit(api, "compute", ns, thread, row)

    def _call(self, call: Call, thread: Thread) -> None:
        self.rows["device"].append(self._runtime(call.api, call.ns, thread)[0])

    def _synchronize(self, _: Synchronize, thread: Thread) -> None:
        until = self.streams.free_at["compute"] + 2000
        self.rows["device"].append(self._runtime("cudaStreamSynchronize", 1500, thread, until)[0])

    def _join(self, join: Join, thread: Thread) -> None:
        self.rows["device"].append(self._runtime("cudaStreamWaitEvent", 1300, thread)[0])
        self.streams.wait(join.waiting)

    def _allocate(self, wanted: Allocate, thread: Thread) -> None:
        address, size = self._take(wanted.bytes, wanted.on_host, thread)
        if wanted.tag in self.live:
            self.autograd.again[wanted.tag] = address, size
        else:
            self.live[wanted.tag] = address, size, wanted.on_host

    def _gradient(self, wanted: Gradient, thread: Thread) -> None:
        self.autograd.made.append(self._take(wanted.bytes, False, thread))

    def _take(self, wanted: int, on_host: bool, thread: Thread) -> tuple[int, int]:
        memory = self.host_memory if on_host else self.memory
        address, size, segment = memory.take(wanted)
        if segment and not on_host:
            self.rows["device"].append(self._runtime("cudaMalloc", 140_000, thread)[0])
        self._memory_row(address, size, on_host, thread)
        return address, size

    def _free(self, free: Free, thread: Thread) -> None:
        self.give_back(*self.live.pop(free.tag), thread)

    def give_back(self, address: int, size: int, on_host: bool, thread: Thread) -> None:
        (self.host_memory if on_host else self.memory).give_back(address, size)
        self._memory_row(address, -size, on_host, thread)

    def _memory_row(self, address: int, size: int, on_host: bool, thread: Thread) -> None:
        thread.now += self.some(280)
        memory = self.host_memory if on_host else self.memory
        kind, device = (0, -1) if on_host else (1, 0)
        index = self.index["memory"]
        self.index["memory"] += 1
        args = (
            f'"Total Reserved": {0 if on_host else memory.reserved}, "Total Allocated": {memory.allocated}, '
            f'"Bytes": {size}, "Addr": {address}, "Device Id": {device}, "Device Type": {kind}, "Ev Idx": {index}'
        )
        self.rows["memory"].append(kineto.memory(thread.tid, thread.now, args))

    def _work(self, work: Work, thread: Thread) -> None:
        thread.now += self.some(work.ns)

    def _backward(self, node: RunBackward, thread: Thread) -> None:
        thread.now = self.autograd.run(thread.now + self.some(24_000), node.reduces) + self.some(18_000)
