"""Traces of steps of which everything is known, drawn with a seed: what a job does is chosen, and its file is written.

A job is simulated on a host with a queue for each stream of its devices, and every row keeps the step that it belongs
to (`_step`, which no file has). The true figures follow from that by the definitions of step windows, without reading
the file: a row's step is known, not found.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from unit.trace.data.generate import COLLECTIVES, COMPUTE, COPIES, CUDA, ENGINE, MAIN, ROCM, Timeline, Vendor

Row = dict[str, Any]
SIDE = 21
"""A second stream of computing kernels."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
HOSTED = ("cpu_op", "python_function", "user_annotation")
"""Categories of the host's rows that are no calls of the device's runtime."""
BEGIN = 5e10
"""Microseconds: kineto's times count from the begin of a quarter, so that no row is near 0."""
BETWEEN = 0.3
"""Microseconds between two annotations, less than 0.2 % of a step."""


@dataclass(frozen=True)
class Shape:
    """What a job does, and what its profiler writes."""

    name: str
    vendor: Vendor = CUDA
    device: bool = True
    steps: int = 6
    """Of each session."""
    sessions: int = 1
    """Cycles of the profiler's schedule."""
    ahead: float | None = None
    """Steps that the host runs ahead of the device; `None`: it waits for the device in every step."""
    layers: int = 2
    work: float = 1.0
    """Factor on the durations of kernels."""
    later_work: float = 1.0
    """The same, from the second session on."""
    noise: float = 0.01
    """Standard deviation of a kernel's duration, a share of it."""
    devices: int = 1
    streams: int = 1
    graph: int = 0
    """Kernels of the graph that each step replays."""
    captures: str = ""
    """Where the graph is captured: `before` the first step, or `inside` it."""
    collectives: bool = False
    accumulate: int = 1
    """Every so many steps the optimizer runs."""
    log_every: int = 0
    driver: bool = False
    """The driver's call lies inside the runtime's, with the same correlation."""
    pieces: bool = False
    """A copy is recorded as several device events."""
    cooperative: bool = False
    """The optimizer's kernel runs on all devices, from one call."""
    early: float = 0.0
    """Microseconds by which a kernel may begin before the one ahead of it has ended (programmatic dependent launch)."""
    branches: bool = False
    """Nodes of a graph run at once, and are drawn on one stream."""
    skew: float = 0.0
    """Microseconds by which the device's clock is ahead of the host's."""
    overhead: bool = False
    """Rows of the profiler's own work, which kineto gives to process -1."""
    phases: bool = False
    """The host's rows are written as begins and ends (B and E), which the format allows."""
    rank: int | None = None
    """The process's number in a job of two."""
    empty_copies: bool = False
    """Copies of no bytes, which the device does not record."""
    varied: bool = False
    """The number of operators differs from step to step."""
    engine: bool = True
    """Backward on a thread of its own."""
    stacks: bool = False
    shapes: bool = True
    projected: bool = False
    """Annotations are also drawn on the device, as kineto does."""
    grouped: bool = False
    """Rows by category, as kineto writes those of one activity buffer, else by time."""
    first: int = 1


@dataclass(frozen=True)
class Truth:
    """What is true of the steps by construction: nanoseconds and counts, by the step's number."""

    walls: Mapping[int, int]
    kernel_ns: Mapping[int, int]
    kernels: Mapping[int, int]
    operators: Mapping[int, int]
    launches: Mapping[int, int]
    total_ns: int
    """Durations of all kernels of the file, those carried over included."""

    def mean(self, steps: Collection[int] | None = None) -> float:
        """The mean step time, of these or of all steps."""
        chosen = self.walls if steps is None else steps
        return sum(self.walls[number] for number in chosen) / len(chosen)


@dataclass(frozen=True, eq=False)
class Made:
    """A trace, and what is true of it."""

    shape: Shape
    rows: list[Row]
    truth: Truth
    signatures: Mapping[int, Mapping[str, int]]
    """How often each operator runs, by step."""

    def text(self, rows: Sequence[Row] | None = None, devices: int | None = None) -> str:
        """The file, of these or of all rows."""
        return file_text(self.rows if rows is None else rows, self.shape, devices)


def nanoseconds(microseconds: float) -> int:
    """Of a time in a file."""
    return round(microseconds * 1000)


def is_step(row: Row) -> bool:
    """Whether the row is a step's annotation on the host."""
    return bool(row.get("cat") == "user_annotation" and row["name"].startswith("ProfilerStep#"))


def number_of(row: Row) -> int:
    """Of a step's annotation."""
    return int(row["name"].partition("#")[2])


@dataclass
class Job(Timeline):
    """A host that launches, and devices that do what was launched, stream by stream."""

    shape: Shape = field(default_factory=lambda: Shape(""))
    device: int = 0
    factor: float = 1.0
    usual: dict[str, float] = field(default_factory=dict)
    """Microseconds that each kernel takes, but for noise."""
    done: list[float] = field(default_factory=list)
    """When the device had completed each step, unprofiled ones included."""
    mark: int = 0
    """Rows before it are those of earlier sessions."""
    nodes: int = 0

    def took(self, key: str, least: float, most: float) -> float:
        """How long this kernel takes now."""
        if key not in self.usual:
            self.usual[key] = self.random.uniform(least, most)
        noise = max(0.2, 1 + self.random.gauss(0, self.shape.noise))
        return round(self.usual[key] * self.factor * noise, 3)

    @contextmanager
    def call(self, name: str) -> Iterator[int]:
        """A call of the runtime, with the driver's inside it where the job has that; its correlation."""
        self.correlation += 1
        number = self.correlation
        with self.within(name, "cuda_runtime", correlation=number):
            if self.shape.driver and "Launch" in name:
                with self.within(
                    name.replace("cuda", "cu").replace("hip", "hipDrv"), "cuda_driver", correlation=number
                ):
                    self.spend(0.5, 1)
            else:
                self.spend(0.5, 2)
            yield number

    def put(self, name: str, dur: float, stream: int, category: str, correlation: int, **args: Any) -> None:
        """Have the device do something behind all that its stream has to do."""
        queue = 1000 * self.device + stream
        sooner = self.random.uniform(0, min(self.shape.early, dur / 2)) if self.shape.early else 0
        begin = round(max(self.free.get(queue, 0.0) - sooner, self.now + 2), 3)
        self.free[queue] = round(begin + dur, 3)
        told = {"device": self.device, "context": 1, "stream": stream, "correlation": correlation, **args}
        event = {"ph": "X", "cat": category, "name": name, "pid": self.device, "tid": stream, "ts": begin, "dur": dur}
        self.events.append({**event, "args": told})

    def kernel(
        self,
        name: str,
        least: float,
        most: float,
        key: str = "",
        stream: int = COMPUTE,
        call: str = "",
        **args: Any,
    ) -> None:
        """Launch a kernel; on a machine without a device the operator itself takes that long.

        A `call` that is given launches it on every device.
        """
        dur = self.took(f"{name} {key}", least, most)
        if not self.shape.device:
            self.now = round(self.now + dur, 3)
            return
        with self.call(call or self.vendor.launch) as correlation:
            pass
        geometry = {} if self.vendor is ROCM else {"grid": [64, 1, 1], "block": [128, 1, 1], "blocks per SM": 0.6}
        for device in range(self.shape.devices) if call else (self.device,):
            self.device = device
            self.put(name, dur, stream, "kernel", correlation, **geometry, **args)

    def copy(self, name: str, size: int, dur: float) -> None:
        """Copy between the host and a device, or to where no byte is."""
        if not self.shape.device:
            self.spend(2, 4)
            return
        with self.call(self.vendor.copy) as correlation:
            pass
        parts = 2 if self.shape.pieces else 1
        for _ in range(parts if size else 0):
            self.put(name, round(dur / parts, 3), COPIES, "gpu_memcpy", correlation, bytes=size // parts)

    def replay(self, count: int) -> None:
        """One launch of a graph, and its kernels."""
        with self.call("hipGraphLaunch" if self.vendor is ROCM else "cudaGraphLaunch") as correlation:
            pass
        for node in range(count):
            dur = self.took(f"node {node}", 8, 25)
            name = f"void captured_kernel_{node % 3}(float*)"
            begun, until = self.events[-1]["ts"], self.free.get(COMPUTE, 0.0)
            if self.shape.branches and node % 2:
                self.free[COMPUTE] = begun
            self.put(name, dur, COMPUTE, "kernel", correlation, **{"graph id": 5, "graph node id": 100 + node})
            self.free[COMPUTE] = max(self.free[COMPUTE], until)

    def capture(self, count: int) -> None:
        """Launches that the device does not see."""
        with self.call("cudaStreamBeginCapture"):
            pass
        for _ in range(count):

            def launched() -> None:
                with self.call(self.vendor.launch):
                    pass

            self.op("aten::mul", [[16, 64]], launched)
        for name in ("cudaStreamEndCapture", "cudaGraphInstantiate"):
            with self.call(name):
                pass

    def op(self, name: str, dims: list[Any], inside: Callable[[], None] = lambda: None, **args: Any) -> None:
        """An operator, with shapes where the profiler records them."""
        if self.shape.shapes:
            self.operator(name, dims, inside, **args)
        else:
            with self.within(name, "cpu_op", **args):
                inside()

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        """A module's frame, where the profiler records stacks."""
        if not self.shape.stacks:
            yield
            return
        with self.module(name):
            yield

    def synchronize(self) -> None:
        """Until the devices have nothing left to do, and about the time of that the call returns."""
        with self.call(self.vendor.synchronize):
            self.now = max(self.now, round(max(self.free.values(), default=0.0) + 1, 3))

    def throttle(self) -> None:
        """Wait until the device is at most `ahead` steps behind."""
        if self.shape.ahead is None or len(self.done) < 2:
            return
        until = round(self.done[-1] - self.shape.ahead * (self.done[-1] - self.done[-2]), 3)
        if until > self.now:
            with self.call("cudaEventSynchronize" if self.vendor is CUDA else "hipEventSynchronize"):
                self.now = max(self.now, until)

    def layer(self, number: int) -> None:
        """Forward of a layer."""
        dims = [[16, 64], [64, 64], [64]]
        self.device = number % self.shape.devices
        side = SIDE if self.shape.streams > 1 and number % 2 else COMPUTE
        with self.frame(f"Linear_{number}"):

            def product() -> None:
                self.op("aten::addmm", dims, lambda: self.kernel(self.vendor.gemm, 30, 60, f"{number}"))

            self.sequence += 1
            told = {"Sequence number": self.sequence, "Fwd thread id": 0}
            self.op("aten::linear", dims, product, **told)
        with self.frame(f"ReLU_{number}"):
            self.op("aten::relu", dims[:1], lambda: self.kernel("void relu_kernel", 6, 9, f"{number}", side))

    def backward(self, number: int) -> None:
        """Backward of a layer, and its gradient's collective."""
        self.device = number % self.shape.devices
        told = {"Sequence number": self.sequence - self.shape.layers + number + 1, "Fwd thread id": 1}
        with self.within("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", **told):
            for side in "ab":
                dims = [[64, 16], [16, 64]]
                self.op("aten::mm", dims, lambda key=side: self.kernel(self.vendor.gemm, 30, 70, f"{number}{key}"))
        if self.shape.collectives:
            args = {"Collective name": "allreduce", "In msg nelems": 4096, "Group size": 2, "dtype": "Float"}
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            with self.within("nccl:all_reduce", "user_annotation"):
                self.kernel(name, 40, 60, f"{number}", COLLECTIVES, **args)

    def work_of(self, number: int, first: bool) -> None:
        """What a step does between its bounds."""
        shape = self.shape
        self.throttle()
        if shape.overhead and first:
            row = {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0}
            self.events.append({**row, "ts": self.now, "dur": self.spend(3, 6), "args": {}})
        with self.within("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"):
            self.spend(5, 8)

        def copied() -> None:
            copy = "Memcpy HtoD (Pinned -> Device)"
            self.op("aten::copy_", [[16, 64]], lambda: self.copy(copy, 4096, self.took("copy", 3, 5)))

        self.op("aten::to", [[16, 64]], copied)
        if shape.empty_copies:
            self.op("aten::copy_", [[0, 64]], lambda: self.copy("", 0, 0))
        if shape.captures == "inside" and first:
            self.capture(shape.graph)
        if shape.graph:
            self.replay(shape.graph)
        layers = shape.layers
        if shape.varied:
            for _ in range(self.random.randrange(4)):
                self.op("aten::clamp", [[16, 64]], lambda: self.kernel("void clamp_kernel", 4, 6))
        with self.frame("Net_0"):
            for each in range(layers):
                self.layer(each)
        self.thread = ENGINE if shape.engine else MAIN
        for each in reversed(range(layers)):
            self.backward(each)
        self.thread = MAIN
        self.device = 0
        if number % shape.accumulate == 0:
            with self.within("Optimizer.step#SGD.step", "user_annotation"):
                for device in range(1 if shape.cooperative else shape.devices):
                    self.device = device
                    self.op("aten::_foreach_add_", [[64, 64]], self.update)
            self.device = 0
        if shape.log_every and number % shape.log_every == 0:
            self.op("aten::mean", [[16, 64]], lambda: self.kernel("void reduce_kernel", 5, 7))
            self.op("aten::item", [[]], self.logged)
        if shape.device and shape.ahead is None:
            self.synchronize()

    def update(self) -> None:
        """The optimizer's kernel."""
        call = "cudaLaunchCooperativeKernelMultiDevice" if self.shape.cooperative else ""
        self.kernel("void multi_tensor_apply_kernel<SGD>", 9, 12, call=call)

    def logged(self) -> None:
        """A value comes back."""
        self.copy("Memcpy DtoH (Device -> Pageable)", 4, 2.0)
        if self.shape.device:
            self.synchronize()

    def step(self, number: int | None, first: bool = False) -> None:
        """A step, or without a number one that is not profiled."""
        place = len(self.events)
        with self.within(f"ProfilerStep#{number}", "user_annotation"):
            self.work_of(1 if number is None else number, first)
        self.done.append(max(self.free.values(), default=self.now))
        for row in self.events[place:]:
            row["_step"] = number
        self.now = round(self.now + BETWEEN, 3)

    def start(self) -> None:
        """The profiler starts: of what ran before, it sees what the device has not completed."""
        seen = [row for row in self.events[self.mark :] if row["cat"] in DEVICE and row["ts"] + row["dur"] > self.now]
        self.events[self.mark :] = seen
        for row in seen:
            row["_step"] = None

    def stop(self) -> None:
        """The profiler stops, which waits for the device."""
        self.now = max(self.now, round(max(self.free.values(), default=0.0), 3))
        self.mark = len(self.events)


def make(shape: Shape, seed: int) -> Made:
    """The trace of a job."""
    job = Job(shape.vendor, random.Random(seed), now=BEGIN, shape=shape)
    number = shape.first
    warm = 1 if shape.ahead is None else 4 + math.ceil(2.5 * shape.ahead)
    for session in range(shape.sessions):
        if session:
            # Seconds of the job without the profiler, of which only the last steps are simulated.
            job.now = round(job.now + job.random.uniform(1e6, 3e6), 3)
            number += job.random.randrange(5, 50)
        job.factor = shape.work * (shape.later_work if session else 1)
        for _ in range(warm):
            job.step(None)
        job.start()
        place = len(job.events)
        if shape.captures == "before" and session == 0:
            job.capture(shape.graph)
        for row in job.events[place:]:
            row["_step"] = None
        for each in range(shape.steps):
            job.step(number, first=each == 0 and session == 0)
            number += 1
        job.stop()
    for row in job.events:
        if row["cat"] in DEVICE:
            row["ts"] = round(row["ts"] + shape.skew, 3)
    rows = [*job.events, *(_projections(job.events) if shape.projected and shape.device else ())]
    if shape.grouped:
        order = (*HOSTED, *CALLS, *DEVICE, "gpu_user_annotation", "overhead")
        rows.sort(key=lambda row: order.index(row["cat"]))
    return Made(shape, rows, truth_of(rows), _signatures(rows))


def _projections(rows: Sequence[Row]) -> Iterator[Row]:
    """The steps' annotations on the device, around what was launched in them."""
    for step in filter(is_step, rows):
        for device in sorted({row["pid"] for row in rows if row["cat"] in DEVICE}):
            of = [
                row
                for row in rows
                if row["cat"] == "kernel" and row["_step"] == step["_step"] and row["pid"] == device
                and row["tid"] == COMPUTE
            ]  # fmt: skip
            if of:
                begin, end = min(row["ts"] for row in of), max(row["ts"] + row["dur"] for row in of)
                place = {"pid": device, "tid": COMPUTE, "ts": begin, "dur": round(end - begin, 3)}
                named = {"ph": "X", "cat": "gpu_user_annotation", "name": step["name"]}
                yield {**named, **place, "args": {"stream": COMPUTE}, "_step": step["_step"]}


def truth_of(rows: Sequence[Row]) -> Truth:
    """The true figures of rows that know their steps.

    Completion C_N = max(end of the annotation, end of the last device event launched in it); window N begins at
    C_{N-1}, that of the first of a run of consecutive numbers at the later of its annotation's begin and the end of
    the last device event that no listed step launched and that began before the run's steps were over.
    """
    steps = sorted((nanoseconds(row["ts"]), nanoseconds(row["ts"]) + nanoseconds(row["dur"]), number_of(row))
                   for row in rows if is_step(row))  # fmt: skip
    device = [row for row in rows if row["cat"] in DEVICE]
    ends: dict[int | None, list[tuple[int, int]]] = {}
    for row in device:
        begin = nanoseconds(row["ts"])
        ends.setdefault(row["_step"], []).append((begin, begin + nanoseconds(row["dur"])))
    walls: dict[int, int] = {}
    before, last = 0, None
    for begin, end, number in steps:
        done = max([end, *(each for _, each in ends.get(number, ()))])
        if last != number - 1:
            opened = before if last is not None else -(10**18)
            carried = [each for start, each in ends.get(None, ()) if opened < start < done]
            before = max([begin, *carried])
        walls[number] = done - before if device else end - begin
        before, last = done, number
    kernels = [row for row in rows if row["cat"] == "kernel"]
    time = Counter(dict.fromkeys(walls, 0))
    for row in kernels:
        time[row["_step"]] += nanoseconds(row["dur"])
    total = sum(time.values())
    time.pop(None, None)  # type: ignore[call-overload]
    launched = [row for row in rows if row["cat"] == "cuda_runtime" and "Launch" in row["name"]]
    return Truth(
        walls=walls,
        kernel_ns=dict(time),
        kernels=_counted(kernels, walls),
        operators=_counted([row for row in rows if row["cat"] == "cpu_op"], walls),
        launches=_counted(launched, walls),
        total_ns=total,
    )


def _counted(rows: Sequence[Row], walls: Mapping[int, int]) -> dict[int, int]:
    found = Counter(row["_step"] for row in rows)
    return {number: found[number] for number in walls}


def _signatures(rows: Sequence[Row]) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = {}
    for row in rows:
        if row["cat"] == "cpu_op" and row["_step"] is not None:
            found.setdefault(row["_step"], Counter())[row["name"]] += 1
    return found


def file_text(rows: Sequence[Row], shape: Shape, devices: int | None = None) -> str:
    """A file of rows, with what kineto writes around them."""
    visible = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    count = shape.devices if devices is None else devices
    name = shape.vendor.device
    properties = [{"id": each, "name": name, "numSms": 108, "totalGlobalMem": 1 << 35} for each in range(count)]
    top: Row = {
        "schemaVersion": 1,
        "deviceProperties": properties if shape.device else [],
        "record_shapes": int(shape.shapes),
        "with_stack": int(shape.stacks),
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    if shape.rank is not None:
        top["distributedInfo"] = {"backend": "nccl", "rank": shape.rank, "world_size": 2}
    # The profiler's own row is that of its session, whatever has happened to other rows.
    session = [row for row in visible if row.get("cat") == "user_annotation"] or visible
    begin, end = min(row["ts"] for row in session), max(row["ts"] + row["dur"] for row in session)
    processes = {row["pid"] for row in visible if row.get("cat") in (*HOSTED, *CALLS)}
    about: list[Row] = [
        *(_meta(pid, "process_name", name="python3") for pid in sorted(processes, key=str)),
        *(_meta(pid, "process_labels", labels="CPU") for pid in sorted(processes, key=str)),
        *(_meta(each, "process_labels", labels=f"GPU {each}") for each in range(count if shape.device else 0)),
    ]
    around = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
    closing: list[Row] = [
        {**around, "ts": begin, "dur": round(end - begin, 3), "args": {"Op count": 0}},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end},
    ]
    written = list(_phases(visible)) if shape.phases else visible
    return json.dumps({**top, "traceEvents": [*about, *written, *closing]})


def _phases(rows: Sequence[Row]) -> Iterator[Row]:
    """The host's rows as begins and ends, thread by thread; the others as they are."""
    open_rows: dict[int, list[Row]] = {}

    def closed(thread: int, moment: float) -> Iterator[Row]:
        waiting = open_rows.setdefault(thread, [])
        while waiting and round(waiting[-1]["ts"] + waiting[-1]["dur"], 3) <= moment:
            row = waiting.pop()
            yield {"ph": "E", "pid": row["pid"], "tid": thread, "ts": round(row["ts"] + row["dur"], 3)}

    hosted = [row for row in rows if row.get("cat") in HOSTED]
    for row in sorted(hosted, key=lambda row: (row["ts"], -row["dur"])):
        yield from closed(row["tid"], row["ts"])
        open_rows[row["tid"]].append(row)
        yield {**{key: value for key, value in row.items() if key != "dur"}, "ph": "B"}
    for thread in list(open_rows):
        yield from closed(thread, float("inf"))
    yield from (row for row in rows if row.get("cat") not in HOSTED)


def _meta(pid: Any, name: str, /, **args: Any) -> Row:
    return {"ph": "M", "name": name, "pid": pid, "tid": 0, "ts": 0, "args": args}


SHAPES: tuple[Shape, ...] = (
    Shape("CPU only", device=False),
    Shape("synchronous"),
    Shape("pipelined", ahead=1.0, work=3.0),
    Shape("several streams", streams=2, ahead=1.0, work=3.0),
    Shape("graphs", graph=12),
    Shape("stream capture", graph=8, captures="inside"),
    Shape("communication", collectives=True),
    Shape("gradient accumulation", accumulate=2),
    Shape("periodic logging", log_every=3, ahead=1.0, work=3.0),
    Shape("several cycles", sessions=2, steps=4),
    Shape("driver calls", driver=True),
    Shape("ROCm", vendor=ROCM),
    Shape("copies of no bytes", empty_copies=True),
    Shape("varied operators", varied=True),
    Shape("two devices", devices=2),
    Shape("copies in pieces", pieces=True),
    Shape("cooperative launches", devices=2, cooperative=True),
    Shape("dependent launches", early=3.0),
    Shape("parallel graph nodes", graph=10, branches=True),
    Shape("clocks a little apart", skew=-5.0),
    Shape("a rank of two", collectives=True, rank=0),
    Shape("begins and ends", phases=True),
)
"""One of each kind of job, from which `drawn` takes its parameters."""


def drawn(base: Shape, draw: random.Random) -> Shape:
    """A job of a kind, with all that its kind leaves open drawn."""
    steps = draw.choice((2, 3, 4, 4, 5, 5, 6, 6, 7, 8, 10))
    if draw.random() < 0.03:
        steps = 20
    if base.sessions > 1:
        steps = max(2, steps // 2)
    made = replace(
        base,
        steps=steps,
        layers=draw.choice((1, 2, 2, 3)) if steps <= 10 else 1,
        engine=draw.random() < 0.7,
        stacks=draw.random() < 0.25,
        shapes=draw.random() < 0.7,
        projected=draw.random() < 0.4,
        grouped=draw.random() < 0.5,
        first=draw.choice((0, 1, 1, 3, 12, 1000)),
        noise=draw.choice((0.002, 0.01, 0.02)),
        driver=base.driver or draw.random() < 0.15,
        overhead=base.device and draw.random() < 0.3,
    )
    pipelined = base.device and (base.ahead is not None or (base.name != "synchronous" and draw.random() < 0.35))
    if pipelined:
        made = replace(made, ahead=draw.choice((0.5, 1.0, 1.5, 2.0, 3.0)), work=draw.uniform(2.5, 4.0))
    if base.accumulate > 1:
        made = replace(made, accumulate=draw.choice((2, 4)))
    if base.log_every:
        made = replace(made, log_every=draw.choice((2, 3, 5)))
    if base.skew:
        made = replace(made, skew=draw.choice((-7.0, -4.0, 4.0)))
    if base.captures:
        made = replace(made, captures=draw.choice(("before", "inside")))
    if base.devices == 2:
        made = replace(made, layers=2)
    if base.sessions > 1:
        made = replace(made, sessions=draw.choice((2, 3)))
    return made
