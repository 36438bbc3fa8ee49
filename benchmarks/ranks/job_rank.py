"""A rank of a simulated job: its host's threads, and the streams of its device or the threads of gloo.

Programs (`job_steps.py`) call `operator`, `collective` and `wait`, whether there is a device or not. With a device, an
operator launches a kernel and returns, a collective is a kernel of a stream of its own, and `wait` lets the stream of
kernels wait. Without one, an operator takes its time on the step thread, a collective runs on threads of gloo, and
`wait` blocks the step thread.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from discrete_events import Clock, Collective, Process, Queue, Signal
from job_spec import Spec

LAUNCH_NS = 5_000
"""From the end of a launch call to the earliest start of its kernel."""
KERNEL_GAP_NS = 800
"""Between two kernels of a stream."""
LONGEST_QUEUE = 1024
"""Kernels that CUDA lets wait; then a launch call blocks."""
GLOO_THREADS = 2
"""Of each process group, as torch starts them."""
ELEMENT_BYTES = 4


class Event(NamedTuple):
    """What the profiler of a rank sees, in true nanoseconds."""

    category: str
    name: str
    place: str
    """"main", "engine", "stream N", or "gloo N"."""
    begin: int
    end: int
    args: dict[str, Any]


class Names(NamedTuple):
    """How a collective is called where it appears."""

    operator: str
    """After "c10d::"."""
    annotation: str
    """After "nccl:"."""
    kernel: str
    """After "ncclDevKernel_"."""
    argument: str


_ARGS = "(ncclDevKernelArgsStorage<4096ul>)"
NCCL = {
    "all_reduce": Names("allreduce_", "all_reduce", f"AllReduce_Sum_f32_RING_LL{_ARGS}", "allreduce"),
    "all_gather": Names("_allgather_base_", "_all_gather_base", f"AllGather_RING_LL{_ARGS}", "_allgather_base"),
    "reduce_scatter": Names(
        "_reduce_scatter_base_", "_reduce_scatter_base", f"ReduceScatter_Sum_f32_RING_LL{_ARGS}", "_reduce_scatter_base"
    ),
    "send": Names("send", "send", f"SendRecv{_ARGS}", "send"),
    "recv": Names("recv_", "recv", f"SendRecv{_ARGS}", "recv"),
}


class Job(Protocol):
    """What ranks share."""

    spec: Spec
    clock: Clock
    recording: bool

    def collective(self, kind: str, members: tuple[int, ...], size: int, number: int, step: int) -> Collective:
        """The call with this number of a group, the same for all of its members."""

    def completed(self, step: int) -> None:
        """Something of a step ended now."""

    def group_name(self, members: tuple[int, ...]) -> str:
        """Of a process group."""


class Rank(ABC):
    """One process. `step` counts from 0; the profiler records none below 0."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.spec, self.clock, self.number = job, job.spec, job.clock, number
        self.events: list[Event] = []
        self.thread = "main"
        self.calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self.lateness = 0
        """Nanoseconds of pauses of Python that are still to come, in the next gap of the forward."""
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Take the draws of a step."""
        spec = self.spec
        self.step = step
        self._random = {
            kind: random.Random(f"{spec.seed}/{self.number}/{step}/{kind}")
            for kind in ("kernel", "host", "collective", "input", "step")
        }
        speed = spec.speeds[self.number] if self.number < len(spec.speeds) else 1.0
        self._kernel_factor = speed * math.exp(spec.noise.step * self._random["step"].gauss(0, 1))
        self._host_factor = 1.0
        bad = spec.straggler
        self._bad = bad if bad and bad.rank == self.number and (step >= bad.since or bad.since == 0) else None
        if self._bad and self._bad.cause == "host":
            if self._bad.style == "pause":
                self.lateness += int(self._bad.size * 1e6)
            else:
                self._host_factor = 1 + self._bad.size
        self._extra = {"compute": 0, "input": 0}
        for hiccup in spec.hiccups:
            if (hiccup.rank, hiccup.step) == (self.number, step):
                if hiccup.cause == "host":
                    self.lateness += hiccup.lost_ns
                else:
                    self._extra[hiccup.cause] += hiccup.lost_ns

    # Durations.

    def kernel_ns(self, usual: int, layer: int) -> int:
        """What a kernel takes, or an operator without a device."""
        taken = usual * self._kernel_factor * math.exp(self.spec.noise.kernel * self._random["kernel"].gauss(0, 1))
        bad = self._bad
        if bad and bad.cause == "compute" and (bad.style == "all" or layer % 3 == 0):
            taken *= 1 + bad.size
        extra, self._extra["compute"] = self._extra["compute"], 0
        return max(1, round(taken) + extra)

    def host_ns(self, usual: int, kind: str = "host") -> int:
        """What a span of Python or of the runtime takes."""
        noise = math.exp(self.spec.noise.host * self._random[kind].gauss(0, 1))
        return max(1, round(usual * self._host_factor * noise))

    def input_ns(self) -> int:
        """What the loader takes."""
        taken = self.spec.model.input_ns * math.exp(self.spec.noise.input * self._random["input"].gauss(0, 1))
        if self._bad and self._bad.cause == "input":
            taken *= 1 + self._bad.size
        return round(taken) + self._extra["input"]

    # The host.

    def note(self, category: str, name: str, place: str, begin: int, **args: Any) -> None:
        """Record what ends now, if the profiler is on."""
        if self.job.recording and self.step >= 0:
            self.events.append(Event(category, name, place, begin, self.clock.now, args))

    def within(self, category: str, name: str, inside: Process, **args: Any) -> Process:
        """A frame around what happens inside."""
        begin, thread = self.clock.now, self.thread
        yield from inside
        self.note(category, name, thread, begin, **args)

    def gap(self) -> Process:
        """Between two operators."""
        engine = self.thread == "engine"
        yield self.host_ns(self.spec.model.python_ns // (3 if engine else 1))

    def pause(self) -> Process:
        """What Python does beside the model: nothing, unless this rank is slow there."""
        late, self.lateness = self.lateness, 0
        yield late

    def operator(self, names: tuple[str, ...], kernel: str, usual: int, layer: int = 0, **args: Any) -> Process:
        """Operators inside of each other, of which the innermost one computes."""
        yield from self.gap()
        begun = []
        for _ in names:
            begun.append(self.clock.now)
            yield self.host_ns(1_500)
        yield from self.compute(kernel, self.kernel_ns(usual, layer))
        for name, begin in zip(reversed(names), reversed(begun), strict=True):
            yield self.host_ns(700)
            self.note("cpu_op", name, self.thread, begin, **args)

    def load(self) -> Process:
        """The next batch."""

        def inside() -> Process:
            taken = self.input_ns()
            yield taken * 7 // 10
            yield from self.within("cpu_op", "aten::stack", lasting(taken - taken * 7 // 10))

        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        yield from self.within("user_annotation", name, inside())

    def joined(self, kind: str, members: tuple[int, ...], size: int) -> tuple[Collective, int]:
        """The collective that this rank calls next in a group, and its number there."""
        key = ("p2p" if kind in ("send", "recv") else "", members)
        number = self.calls[key]
        self.calls[key] += 1
        return self.job.collective(kind, members, size, number, self.step), number

    def peer(self, kind: str, members: tuple[int, ...]) -> str:
        """What the annotation of a point-to-point transfer says beside its name."""
        if kind == "send":
            return f" {members[0]}->{members[1]}"
        return f" {members[1]}<-{members[0]}" if kind == "recv" else ""

    # What differs between a device and none.

    @abstractmethod
    def compute(self, kernel: str, taken: int) -> Process:
        """Compute on the device, or here."""

    @abstractmethod
    def collective(
        self, kind: str, members: tuple[int, ...], size: int, into: list[Signal], *, blocking: bool = False
    ) -> Process:
        """Call a collective after all kernels so far, and append the signal of its end to `into`.

        `size` is of the whole tensor. Of point-to-point transfers, `members` are source and destination. A blocking
        one ends before its operator does, where there is no device.
        """

    @abstractmethod
    def wait(self, signal: Signal) -> Process:
        """Let what follows wait for a collective."""

    @abstractmethod
    def copy_input(self) -> Process:
        """Copy the batch to the device."""

    @abstractmethod
    def finish(self, backward: Process) -> Process:
        """Run the backward where it runs."""

    @abstractmethod
    def item(self) -> Process:
        """Read the loss, which waits for the device."""


def lasting(taken: int) -> Process:
    """A process that takes time."""
    yield taken


def listed(ranks: Sequence[int]) -> str:
    """Ranks of a group as torch writes them: of more than 30, the first 29 and the last one."""
    if len(ranks) > 30:
        return f"[{', '.join(map(str, ranks[:29]))}, ..., {ranks[-1]}]"
    return f"[{', '.join(map(str, ranks))}]"


def operator_args(kind: str, members: tuple[int, ...], given: int, received: int) -> dict[str, Any]:
    """What the profiler writes of the operator that calls a collective, for elements of its input and its output."""
    if kind == "all_reduce":
        return {
            "Concrete Inputs": ["", "", "", "", "True", "-1"],
            "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"],
            "Input Dims": [[[given]], [], [], [], [], []],
        }
    if kind in ("send", "recv"):
        return {
            "Concrete Inputs": ["", "", str(members[1 if kind == "send" else 0]), "0"],
            "Input type": ["TensorList", "", "Scalar", "Scalar"],
            "Input Dims": [[[given]], [], [], []],
        }
    return {
        "Concrete Inputs": ["", "", "", "False", "-1"],
        "Input type": ["float", "float", "", "Scalar", "Scalar"],
        "Input Dims": [[received], [given], [], [], []],
    }


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


class HostRank(Rank):
    """A rank without a device."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(job, number)
        self.queues: dict[tuple[int, ...], tuple[int, Queue]] = {}
        self.open: dict[Signal, tuple[str, int, dict[str, Any]]] = {}
        """Transfers that nobody has waited for."""

    def _queue(self, members: tuple[int, ...]) -> tuple[int, Queue]:
        if members not in self.queues:
            first = GLOO_THREADS * len(self.queues)
            self.queues[members] = (first, Queue(self.clock))
            for server in range(GLOO_THREADS):
                self.clock.start(self.queues[members][1].serve(first + server))
        return self.queues[members]

    def compute(self, kernel: str, taken: int) -> Process:
        del kernel  # the operator is all there is
        yield taken

    def collective(
        self, kind: str, members: tuple[int, ...], size: int, into: list[Signal], *, blocking: bool = False
    ) -> Process:
        # Gloo's reduce-scatter is an all-reduce in torch 2.13, of which each rank keeps its part.
        done, moved = Signal(), "all_reduce" if kind == "reduce_scatter" else kind
        into.append(done)
        call, _ = self.joined(moved, members, size)
        count, part = size // ELEMENT_BYTES, size // ELEMENT_BYTES // len(members)
        given = part if kind == "all_gather" else count
        dims = {"Input Dims": [[given]], "Input type": ["float"]}
        step = self.step

        def served(server: int) -> Process:
            yield self.host_ns(30_000, "collective")
            begin = self.clock.now
            yield from call.join(self.number)
            if kind not in ("send", "recv") and self.job.recording and step >= 0:
                name = f"gloo:{moved}"
                self.events.append(Event("user_annotation", name, f"gloo {server}", begin, self.clock.now, dims))
            self.clock.fire(done)

        def enqueue() -> Process:
            yield self.host_ns(25_000, "collective")
            if kind in ("send", "recv"):
                self.open[done] = (f"gloo:{kind}", self.clock.now, dims)
            self._queue(members)[1].put(served)
            if blocking:
                yield done

        called = operator_args(kind, members, given, part if kind == "reduce_scatter" else count)
        yield from self.within("cpu_op", f"c10d::{NCCL[kind].operator}", enqueue(), **called)

    def wait(self, signal: Signal) -> Process:
        yield signal
        yield self.host_ns(8_000, "collective")
        if signal in self.open:
            # Torch ends the annotation of a transfer when its caller has waited for it, on the caller's thread.
            name, begin, dims = self.open.pop(signal)
            self.note("user_annotation", name, self.thread, begin, **dims)

    def copy_input(self) -> Process:
        yield from ()

    def finish(self, backward: Process) -> Process:
        yield from backward

    def item(self) -> Process:
        inside = self.within("cpu_op", "aten::_local_scalar_dense", lasting(self.host_ns(1_000)))
        yield from self.within("cpu_op", "aten::item", inside)
