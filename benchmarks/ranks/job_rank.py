"""A rank of a simulated job: its draws, its host, and what programs (`job_steps.py`) call.

They call `operator`, `collective` and `wait`, whether there is a device (`device_rank.py`) or not (`host_rank.py`).
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, NamedTuple, Protocol

from discrete_events import Clock, Collective, Process, Signal
from job_spec import Spec

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
