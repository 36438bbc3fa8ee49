"""A trace in memory: columns of equal length, one row per complete event; what is computed once per trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import wraps
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.arrays import sorted_by
from pytest_perfdl.trace.raw_args import RawArgs

# A trace in memory: columns of equal length, one row per complete event.


I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

T = TypeVar("T")

_BLOCK = 4096
"""Rows whose args are decoded at a time."""


class Category(IntEnum):
    """The categories that analyses know, as codes in `Trace.category`; unknown ones get the codes after these.

    Legacy names are read as today's: `Operator` (2021) is `cpu_op`, `Kernel` is `kernel`, and so on.

    `mtia_ccp_events` are read as `kernel`: they are what an MTIA device ran ("MTIA ondevice CCP events" in kineto's
    ActivityType.h, an alias of its kernel type since 2026), their thread is the device's stream, and their
    correlation is that of an `mtia_runtime` call. `hpu_op` in turn is a call of the host ("HPU host side runtime
    event"); HPU, XPU and privateuse1 devices file their work under `kernel`, `gpu_memcpy` and `gpu_memset`.
    """

    CPU_OP = 0
    USER_ANNOTATION = 1
    PYTHON_FUNCTION = 2
    CUDA_RUNTIME = 3
    CUDA_DRIVER = 4
    KERNEL = 5
    GPU_MEMCPY = 6
    GPU_MEMSET = 7
    GPU_USER_ANNOTATION = 8
    CUDA_SYNC = 9
    OVERHEAD = 10
    XPU_RUNTIME = 11
    XPU_DRIVER = 12
    PRIVATEUSE1_RUNTIME = 13
    PRIVATEUSE1_DRIVER = 14
    MTIA_RUNTIME = 15
    GLOW_RUNTIME = 16
    NONE = 17
    HPU_OP = 18
    COLLECTIVE_COMM = 19
    """Collectives as a back end reports them, host side; the device's part is a kernel of its own."""
    CUDA_EVENT = 20
    XPU_SYNC = 21
    MTIA_INSIGHT = 22
    CPU_INSTANT_EVENT = 23
    EXTERNAL_CORRELATION = 24

    @property
    def label(self) -> str:
        """The name that kineto writes, empty for events without a category.

        >>> Category.GPU_MEMCPY.label
        'gpu_memcpy'
        """
        return "" if self is Category.NONE else self.name.lower()


DEVICE_CATEGORIES = (Category.KERNEL, Category.GPU_MEMCPY, Category.GPU_MEMSET)
"""Categories that run on a device; a stream is no criterion."""

LAUNCH_CATEGORIES = (
    Category.CUDA_RUNTIME,
    Category.CUDA_DRIVER,
    Category.XPU_RUNTIME,
    Category.XPU_DRIVER,
    Category.PRIVATEUSE1_RUNTIME,
    Category.PRIVATEUSE1_DRIVER,
    Category.MTIA_RUNTIME,
    Category.GLOW_RUNTIME,
    Category.HPU_OP,
)
"""CPU calls into a device's runtime or driver (ROCm's hip* calls are `cuda_runtime`)."""

FIRST_LABEL = -(2**62)
"""Process and thread ids that are text are numbered downwards from here, below all real ids."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvents:
    """The `[memory]` instants of a trace, in the order of time: columns of equal length.

    Traces of 2021 know only `bytes`, `device_type` and `device_id`; what is absent is -1.
    """

    time: I64
    """Nanoseconds, on the clock of `Trace.start`."""
    bytes: I64
    """Size of the allocation; negative for a free."""
    device_type: I64
    """c10::DeviceType: 0 CPU, 1 CUDA, 6 HIP; others as torch numbers them."""
    device_id: I64
    """Index of the visible device, -1 for the CPU."""
    address: I64
    allocated: I64
    """`Total Allocated` after the event, bytes."""
    reserved: I64
    """`Total Reserved` after the event, bytes."""
    pid: I64
    tid: I64

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One profiled window of one process: its complete events as columns of equal length, in file order.

    A "row" is an index into the columns. Times are integer nanoseconds relative to `base_ns`.
    """

    start: I64
    duration: I64
    name: I32
    """Index into `names`."""
    category: I32
    """Index into `categories`; the first codes are those of `Category`."""
    pid: I64
    """Process id; device index for device events. Text is interned: see `label`."""
    tid: I64
    """Thread id; stream for device events. Text is interned: see `label`."""
    correlation: I64
    """Links a device event to the runtime call that launched it (one call may launch many); -1 if absent.

    Set for device, runtime, driver and synchronization events; -1 for all others.
    """
    names: tuple[str, ...]
    categories: tuple[str, ...]
    labels: Mapping[int, str]
    """Text of the interned process and thread ids."""
    process_names: Mapping[int, str]
    thread_names: Mapping[tuple[int, int], str]
    memory: MemoryEvents
    metadata: Mapping[str, Any]
    """Everything at the top level of the file except the events."""
    base_ns: int
    """`baseTimeNanoseconds`: what to add to a time to get nanoseconds since 1970; 0 in files without it."""
    findings: tuple[str, ...]
    """Problems, repairs and skipped events of the file, one line each."""
    source: str
    """Name of the file, for messages."""
    raw_args: RawArgs = field(repr=False)
    """JSON text of the arguments of every row, `{}` if there are none; decoded by `args`."""
    step_name: re.Pattern[str] | None = None
    """What the whole name of an annotation must match to be a step; `None` for `ProfilerStep#N` (`annotations`)."""
    derived: dict[object, Any] = field(init=False, repr=False, default_factory=dict)
    """Cache of values derived from the columns (`once`)."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> I64:
        """Nanoseconds at which each event ended, `start + duration`. The array is shared and read-only."""
        if "end" not in self.derived:
            ends = self.start + self.duration
            ends.flags.writeable = False
            self.derived["end"] = ends
        end: I64 = self.derived["end"]
        return end

    def rows(self, *categories: Category) -> Rows:
        """Rows of these categories by start; among equal starts the longer first, then file order.

        In this order a parent comes before its children. The array is shared and read-only.
        """
        if categories not in self.derived:
            if len(categories) == 1:
                found = np.flatnonzero(self.category == categories[0])
            else:
                found = np.flatnonzero(np.isin(self.category, categories))
            found = found[sorted_by(self.start[found], -self.duration[found])]
            found.flags.writeable = False
            self.derived[categories] = found
        rows: Rows = self.derived[categories]
        return rows

    def device_rows(self) -> Rows:
        """Rows of kernels, copies and memsets, ordered as in `rows`."""
        return self.rows(*DEVICE_CATEGORIES)

    def launch_rows(self) -> Rows:
        """Rows of runtime and driver calls of any vendor, ordered as in `rows`."""
        return self.rows(*LAUNCH_CATEGORIES)

    def name_of(self, row: int) -> str:
        """Name of one event."""
        return self.names[int(self.name[row])]

    def named(self, predicate: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Which entries of `names` satisfy a predicate."""
        return np.array([bool(predicate(name)) for name in self.names], dtype=bool)

    def matching(self, predicate: Callable[[str], object], rows: Rows) -> Rows:
        """Those of `rows` whose name satisfies a predicate."""
        return rows[self.named(predicate)[self.name[rows]]]

    def args(self, row: int) -> dict[str, Any]:
        """Arguments of one event as plain data; empty where it has none or they are not an object."""
        try:
            return msgspec.json.decode(self.raw_args[row], type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return {}

    def decode_args(self, rows: Rows | Sequence[int], kind: type[T]) -> list[T]:
        """Arguments of many events as a msgspec Struct `kind`, which must be constructible without arguments.

        An event whose arguments do not fit yields `kind()`.
        """
        return [args for _, block in self.args_by_block(rows, kind) for args in block]

    def args_by_block(self, rows: Rows | Sequence[int], kind: type[T]) -> Iterator[tuple[Rows, list[T]]]:
        """As `decode_args`, in blocks of rows, to limit memory and to stay in the CPU cache."""
        wanted = np.asarray(rows, dtype=np.intp)
        for first in range(0, len(wanted), _BLOCK):
            block = wanted[first : first + _BLOCK]
            yield block, decode_args(self.raw_args.joined(block), kind)

    def external_ids(self, rows: Rows) -> I64:
        """`External id` of each row, which links a call or device event to its operator; -1 if absent."""
        found = self.decode_args(rows, _External)
        return whole_numbers([max(args.external, args.external_2021) for args in found])

    def label(self, number: int) -> str:
        """A process or thread id as the file wrote it: '4242', or 'PyTorch Profiler' for an interned one."""
        return self.labels.get(number, str(number))


class GraphNode(msgspec.Struct, gc=False):
    """Arguments of a device event that a graph launch ran: which graph, and which of its nodes; 0 for none."""

    graph: int = msgspec.field(name="graph id", default=0)
    node: int = msgspec.field(name="graph node id", default=0)


class _External(msgspec.Struct, gc=False):
    external: int = msgspec.field(name="External id", default=-1)
    external_2021: int = msgspec.field(name="external id", default=-1)


def whole_numbers(values: list[int]) -> I64:
    """Integers as a column; values above 64 bits (such as addresses) are wrapped."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([(value + 2**63) % 2**64 - 2**63 for value in values], dtype=np.int64)


def decode_args(text: bytes, kind: type[T]) -> list[T]:
    """Decode comma-separated JSON values in one call, which is many times faster than one call each.

    `kind` must be constructible without arguments: a value that does not fit yields `kind()`. Integers may be written
    as 1.0 or "1", as tools do that read a trace into a table and write it again.
    """
    text = b"[%b]" % text
    try:
        return msgspec.json.decode(text, type=list[kind], strict=False)  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError):
        decoder = msgspec.json.Decoder(kind, strict=False)
        return [_decode_one(raw, decoder) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]


def _decode_one(text: msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return decoder.type()


# What the file says of the job and its devices, in whichever form it may be.


def job_properties(trace: Trace) -> Mapping[str, Any]:
    """`distributedInfo`: the process's place in its job; empty where the file does not say."""
    found = trace.metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def device_properties(trace: Trace) -> list[Mapping[str, Any]]:
    """`deviceProperties`: an object for each device, with "id" and "name"."""
    found = trace.metadata.get("deviceProperties")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


# Functions of a trace that are computed once per trace.


Function = TypeVar("Function", bound=Callable[..., Any])


def remember(function: Callable[..., Any], trace: Trace, value: object) -> None:
    """Have a function that is computed once say this of a trace."""
    trace.derived[function.__wrapped__] = value  # type: ignore[attr-defined]


def once(function: Function) -> Function:
    """Remember what a pure function says of a trace, as long as the trace lives; what is returned is shared."""

    @wraps(function)
    def remembering(trace: Trace) -> object:
        if function not in trace.derived:
            trace.derived[function] = function(trace)
        return trace.derived[function]

    return cast("Function", remembering)


# Selected rows of a trace as a new trace.


def subset(trace: Trace, rows: Rows, memory: Rows | None = None) -> Trace:
    """The events of these rows, all or these `[memory]` instants, and everything else as it is."""
    instants = trace.memory
    if memory is not None:
        instants = MemoryEvents(*(getattr(instants, field.name)[memory] for field in fields(MemoryEvents)))
    return replace(
        trace,
        start=trace.start[rows],
        duration=trace.duration[rows],
        name=trace.name[rows],
        category=trace.category[rows],
        pid=trace.pid[rows],
        tid=trace.tid[rows],
        correlation=trace.correlation[rows],
        memory=instants,
        raw_args=trace.raw_args.take(rows),
    )
