"""From decoded events to the columns of a `Trace`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.trace.events import Number, RawEvent, nanoseconds
from pytest_perfdl.trace.model import (
    DEVICE_CATEGORIES,
    FIRST_LABEL,
    I32,
    I64,
    LAUNCH_CATEGORIES,
    Category,
    MemoryEvents,
    Trace,
    decode_args,
)

_LEGACY = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
_LEGACY_ANNOTATION = re.compile(r"ProfilerStep#\d+$|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
"""Ranges that traces of 2021 file under Operator, though they are annotations."""

_STREAM = re.compile(r"stream (\d+)$")
_CORRELATED = (*DEVICE_CATEGORIES, *LAUNCH_CATEGORIES, Category.CUDA_SYNC)


class _Link(msgspec.Struct, gc=False):
    correlation: int = -1


class _Memory(msgspec.Struct, gc=False):
    bytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device_id: int = msgspec.field(name="Device Id", default=-1)
    address: int = msgspec.field(name="Addr", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Ids:
    """Process and thread ids as integers: numbers and numerals as they are, other text interned."""

    def __init__(self) -> None:
        self.known: dict[Number, int] = {}
        self.labels: dict[int, str] = {}

    def column(self, values: list[Number]) -> I64:
        """Ids of a column of the file."""
        for value in dict.fromkeys(values):
            if value not in self.known:
                self.known[value] = self._number(value)
        return np.array(list(map(self.known.__getitem__, values)), dtype=np.int64)

    def _number(self, value: Number) -> int:
        if isinstance(value, str) and (stream := _STREAM.match(value)):
            value = stream[1]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = int(value)  # type: ignore[arg-type]
            if FIRST_LABEL < number < 2**63:
                return number
        text = "" if value is None else str(value)
        for number, label in self.labels.items():
            if label == text:
                return number
        number = FIRST_LABEL - len(self.labels)
        self.labels[number] = text
        return number


def build(events: list[RawEvent], metadata: Mapping[str, Any], findings: list[str], source: str) -> Trace:
    """Columns from events; what is odd is added to `findings`."""
    ids = _Ids()
    complete = [event for event in events if event.ph == "X"]
    start, usable = nanoseconds([event.ts for event in complete])
    if not usable.all():
        findings.append(f"{np.count_nonzero(~usable)} events have no usable time and were left out")
        complete = [event for event, keep in zip(complete, usable, strict=True) if keep]
        start = start[usable]
    names, name = _intern([event.name for event in complete], [])
    categories, category = _categories(complete, names, name)
    raw_args = [event.args for event in complete]
    pid = ids.column([event.pid for event in complete])
    tid = ids.column([event.tid for event in complete])
    process_names, thread_names = _labels_of([event for event in events if event.ph == "M"], ids)
    memory = _memory([event for event in events if event.name == "[memory]" and event.ph in "iI"], ids, findings)
    base = metadata.get("baseTimeNanoseconds", 0)
    return Trace(
        start=start,
        duration=_durations(complete, findings),
        name=name,
        category=category,
        pid=pid,
        tid=tid,
        correlation=_correlations(category, raw_args),
        names=names,
        categories=categories,
        labels=ids.labels,
        process_names=process_names,
        thread_names=thread_names,
        memory=memory,
        metadata=metadata,
        base_ns=base if isinstance(base, int) else 0,
        findings=tuple(findings),
        source=source,
        raw_args=raw_args,
    )


def _durations(complete: list[RawEvent], findings: list[str]) -> I64:
    duration, usable = nanoseconds([event.dur for event in complete])
    if not usable.all():
        findings.append(f"{np.count_nonzero(~usable)} complete events have no duration: taken as 0")
    if len(duration) and duration.min() < 0:
        findings.append(f"{np.count_nonzero(duration < 0)} events have a negative duration: taken as 0")
        duration = np.maximum(duration, 0)
    return duration


def _intern(values: list[str], known: list[str]) -> tuple[tuple[str, ...], I32]:
    """Distinct values, the known ones first, and each value's index among them."""
    index = {value: number for number, value in enumerate(dict.fromkeys([*known, *values]))}
    return tuple(index), np.array(list(map(index.__getitem__, values)), dtype=np.int32)


def _categories(complete: list[RawEvent], names: tuple[str, ...], name: I32) -> tuple[tuple[str, ...], I32]:
    written = [event.cat for event in complete]
    legacy = not _LEGACY.keys().isdisjoint(written)
    if legacy:
        written = [_LEGACY.get(value, value) for value in written]
    categories, category = _intern(written, [known.label for known in Category])
    if legacy:
        annotation = np.array([bool(_LEGACY_ANNOTATION.match(text)) for text in names], dtype=bool)
        category[(category == Category.CPU_OP) & annotation[name]] = Category.USER_ANNOTATION
    return categories, category


def _correlations(category: I32, raw_args: list[msgspec.Raw]) -> I64:
    correlation = np.full(len(category), -1, dtype=np.int64)
    rows = np.flatnonzero(np.isin(category, _CORRELATED))
    links = decode_args([raw_args[row] for row in rows.tolist()], _Link)
    correlation[rows] = _column([link.correlation for link in links])
    return correlation


def _memory(events: list[RawEvent], ids: _Ids, findings: list[str]) -> MemoryEvents:
    time, usable = nanoseconds([event.ts for event in events])
    if not usable.all():
        findings.append(f"{np.count_nonzero(~usable)} memory events have no usable time and were left out")
        events = [event for event, keep in zip(events, usable, strict=True) if keep]
        time = time[usable]
    order = np.argsort(time, kind="stable")
    events = [events[index] for index in order.tolist()]
    found = decode_args([event.args for event in events], _Memory)
    return MemoryEvents(
        time=time[order],
        bytes=_column([memory.bytes for memory in found]),
        device_type=_column([memory.device_type for memory in found]),
        device_id=_column([memory.device_id for memory in found]),
        address=_column([memory.address for memory in found]),
        allocated=_column([memory.allocated for memory in found]),
        reserved=_column([memory.reserved for memory in found]),
        pid=ids.column([event.pid for event in events]),
        tid=ids.column([event.tid for event in events]),
    )


def _labels_of(events: list[RawEvent], ids: _Ids) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    named = [event for event in events if event.name in ("process_name", "thread_name")]
    values = decode_args([event.args for event in named], _Named)
    pids = ids.column([event.pid for event in named]).tolist()
    tids = ids.column([event.tid for event in named]).tolist()
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event, value, pid, tid in zip(named, values, pids, tids, strict=True):
        if event.name == "process_name":
            processes[pid] = value.name
        else:
            threads[pid, tid] = value.name
    return processes, threads


def _column(values: list[int]) -> I64:
    """Integers as a column; what passes 64 bits (addresses may) is wrapped."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([(value + 2**63) % 2**64 - 2**63 for value in values], dtype=np.int64)
