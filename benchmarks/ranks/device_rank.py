"""A rank with a device: kernels in streams, and collectives of NCCL.

An operator launches a kernel and returns, a collective is a kernel of a stream of its own, and `wait` lets the stream
of kernels wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from discrete_events import Process, Queue, Signal
from job_rank import ELEMENT_BYTES, NCCL, Event, Job, Rank, lasting, operator_args

LAUNCH_NS = 5_000
"""From the end of a launch call to the earliest start of its kernel."""
KERNEL_GAP_NS = 800
"""Between two kernels of a stream."""
LONGEST_QUEUE = 1024
"""Kernels that CUDA lets wait; then a launch call blocks."""


class DeviceRank(Rank):
    """A rank with a device."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(job, number)
        self.streams: dict[object, tuple[int, Queue]] = {}
        self.correlation = 1000 * (number + 1)
        self.waiting = 0
        """Kernels in queues."""
        self.room = Signal()
        self.compute_stream = self._stream("compute")

    def _stream(self, key: object) -> tuple[int, Queue]:
        if key not in self.streams:
            number = 7 if key == "compute" else 16 + 4 * len(self.streams)
            self.streams[key] = (number, Queue(self.clock))
            self.clock.start(self.streams[key][1].serve(0))
        return self.streams[key]

    def _call(self, name: str, usual: int, kind: str = "host") -> Process:
        self.correlation += 1
        yield from self.within(
            "cuda_runtime", name, lasting(self.host_ns(usual, kind)), cbid=211, correlation=self.correlation
        )

    def _launch(
        self, stream: tuple[int, Queue], work: Process, call: str, note: tuple[str, str], **args: Any
    ) -> Process:
        """Call the runtime, which puts a kernel into a stream. `note` has its category and its name."""
        while self.waiting >= LONGEST_QUEUE:
            yield self.room
        yield from self._call(call, 4_000)
        number, queue = stream
        earliest = self.clock.now + LAUNCH_NS
        told = {"device": 0, "context": 1, "stream": number, "correlation": self.correlation, **args}
        step = self.step
        self.waiting += 1

        def served(_: int) -> Process:
            yield max(KERNEL_GAP_NS, earliest - self.clock.now)
            self.waiting -= 1
            room, self.room = self.room, Signal()
            self.clock.fire(room)
            begin = self.clock.now
            yield from work
            if self.job.recording and step >= 0:
                self.events.append(Event(*note, f"stream {number}", begin, self.clock.now, told))
            self.job.completed(step)

        queue.put(served)

    def _record(self, queue: Queue, signal: Signal) -> None:
        """Let a stream fire a signal once it has done all so far."""

        def served(_: int) -> Process:
            self.clock.fire(signal)
            yield from ()

        queue.put(served)

    def _let_wait(self, queue: Queue, signal: Signal) -> None:
        def served(_: int) -> Process:
            yield signal

        queue.put(served)

    def compute(self, kernel: str, taken: int) -> Process:
        grid = {"grid": [256, 4, 1], "block": [256, 1, 1], "blocks per SM": 9.5, "warps per SM": 75.9}
        work, note = lasting(taken), ("kernel", kernel)
        yield from self._launch(self.compute_stream, work, "cudaLaunchKernel", note, **grid)

    def collective(
        self, kind: str, members: tuple[int, ...], size: int, into: list[Signal], *, blocking: bool = False
    ) -> Process:
        del blocking  # the host never waits
        names = NCCL[kind]
        call, number = self.joined(kind, members, size)
        stream = self._stream(("nccl", members))
        ready, done = Signal(), Signal()
        args = self._told(kind, members, size, number)
        dims = {"Input Dims": [[args["In msg nelems"]]], "Input type": ["float"]}
        called = operator_args(kind, members, args["In msg nelems"], args["Out msg nelems"])
        title = f"nccl:{names.annotation}{self.peer(kind, members)}"

        def enqueue() -> Process:
            yield from self._call("cudaEventRecord", 900, "collective")
            self._record(self.compute_stream[1], ready)
            yield from self._call("cudaStreamWaitEvent", 700, "collective")
            self._let_wait(stream[1], ready)
            work, note = call.join(self.number), ("kernel", f"ncclDevKernel_{names.kernel}")
            if self.spec.format == "microseconds":
                yield from self._launch(stream, work, "cudaLaunchKernel", note)
            else:
                yield from self._launch(stream, work, "cudaLaunchKernelExC", note, title=title, **args)
            self._record(stream[1], done)

        annotated = self.within("user_annotation", title, enqueue(), **dims)
        told = dims if self.spec.format == "microseconds" else args
        recorded = self.within("cpu_op", "record_param_comms", annotated, **told)
        yield from self.within("cpu_op", f"c10d::{names.operator}", recorded, **called)
        into.append(done)

    def _told(self, kind: str, members: tuple[int, ...], size: int, number: int) -> dict[str, Any]:
        """What torch writes of a collective, with the names of its arguments."""
        group = members if kind not in ("send", "recv") else self.spec.inner(self.number)
        count = size // ELEMENT_BYTES
        told: dict[str, Any] = {
            "Collective name": NCCL[kind].argument,
            "In msg nelems": count // len(members) if kind == "all_gather" else count,
            "Out msg nelems": count // len(members) if kind == "reduce_scatter" else count,
            "Group size": len(group),
            "dtype": "Float",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": self.job.group_name(group),
            "Process Group Description": "default_pg" if len(group) == self.spec.ranks else "undefined",
            "Process Group Ranks": listed(group),
            "Rank": self.number,
            "Seq": number + 1,
        }
        if kind in ("send", "recv"):
            # Torch counts the transfers of a rank, whoever is the other one: the two sides have different numbers.
            self.calls["", group] += 1
            told["Seq"] = self.calls["", group]
            told["Dst Rank" if kind == "send" else "Src Rank"] = members[1 if kind == "send" else 0]
        return told

    def wait(self, signal: Signal) -> Process:
        yield from self._call("cudaStreamWaitEvent", 700, "collective")
        self._let_wait(self.compute_stream[1], signal)

    def copy_input(self) -> Process:
        size = ELEMENT_BYTES * self.spec.model.batch * self.spec.model.width
        note, work = ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"), lasting(self.kernel_ns(20_000, 1))

        def copy() -> Process:
            yield from self._launch(self.compute_stream, work, "cudaMemcpyAsync", note, bytes=size)

        inside = self.within("cpu_op", "aten::copy_", copy())
        yield from self.within("cpu_op", "aten::to", self.within("cpu_op", "aten::_to_copy", inside))

    def finish(self, backward: Process) -> Process:
        self.thread = "engine"
        yield from backward
        self.thread = "main"
        yield self.host_ns(20_000)

    def item(self) -> Process:
        note, done = ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)"), Signal()

        def synchronize() -> Process:
            yield done
            yield self.host_ns(4_000)

        def copy() -> Process:
            yield from self._launch(self.compute_stream, lasting(1_500), "cudaMemcpyAsync", note, bytes=ELEMENT_BYTES)
            self._record(self.compute_stream[1], done)
            self.correlation += 1
            waiting = self.within(
                "cuda_runtime", "cudaStreamSynchronize", synchronize(), cbid=131, correlation=self.correlation
            )
            yield from waiting

        inside = self.within("cpu_op", "aten::_local_scalar_dense", copy())
        yield from self.within("cpu_op", "aten::item", inside)


def listed(ranks: Sequence[int]) -> str:
    """Ranks of a group as torch writes them: of more than 30, the first 29 and the last one."""
    if len(ranks) > 30:
        return f"[{', '.join(map(str, ranks[:29]))}, ..., {ranks[-1]}]"
    return f"[{', '.join(map(str, ranks))}]"
