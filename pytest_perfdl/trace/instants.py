"""Events at a point in time, as columns: `[memory]` instants and counters."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.trace.events import RawEvent, concatenated, nanoseconds
from pytest_perfdl.trace.ids import Ids, Renumbering
from pytest_perfdl.trace.model import I64, Counters, MemoryEvents, decode_args, whole_numbers
from pytest_perfdl.trace.raw_args import join

_MEMORY_FIELDS = ("bytes", "device_type", "device_id", "address", "allocated", "reserved")


class _Memory(msgspec.Struct, gc=False):
    bytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    device_id: int = msgspec.field(name="Device Id", default=-1)
    address: int = msgspec.field(name="Addr", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)


class MemoryColumns:
    """Collects `[memory]` events slice by slice."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._parts: dict[str, list[I64]] = {name: [] for name in ("time", *_MEMORY_FIELDS, "pid", "tid")}
        self.untimed = 0
        """Number of events that were left out because their time was invalid."""

    def add(self, events: list[RawEvent]) -> None:
        """Take the memory events of one slice."""
        count = len(events)
        time, events = _timed(events)
        self.untimed += count - len(events)
        found = decode_args(join([event.args for event in events]), _Memory)
        self._parts["time"].append(time)
        for name in _MEMORY_FIELDS:
            self._parts[name].append(whole_numbers(list(map(attrgetter(name), found))))
        self._parts["pid"].append(self._ids.column([event.pid for event in events]))
        self._parts["tid"].append(self._ids.column([event.tid for event in events]))

    def build(self, renumber: Renumbering) -> MemoryEvents:
        """All of them, in the order of time."""
        columns = {name: concatenated(parts, np.int64) for name, parts in self._parts.items()}
        order = np.argsort(columns["time"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        return MemoryEvents(**{**columns, "pid": renumber(columns["pid"]), "tid": renumber(columns["tid"])})


class CounterColumns:
    """Collects counter events slice by slice; those without a usable time or a number are passed over."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._names: dict[str, int] = {}
        self._time: list[I64] = []
        self._pid: list[I64] = []
        self._name: list[int] = []
        self._value: list[float] = []

    def add(self, events: list[RawEvent]) -> None:
        """Take the counter events of one slice."""
        time, events = _timed(events)
        pid = self._ids.column([event.pid for event in events])
        rows: list[int] = []
        series = msgspec.json.decode(b"[%b]" % join([event.args for event in events]), type=list[msgspec.Raw])
        for row, (event, raw) in enumerate(zip(events, series, strict=True)):
            for key, value in _numbers(raw):
                rows.append(row)
                self._name.append(self._names.setdefault(f"{event.name} {key}".strip(), len(self._names)))
                self._value.append(value)
        self._time.append(time[np.array(rows, dtype=np.intp)])
        self._pid.append(pid[np.array(rows, dtype=np.intp)])

    def build(self, renumber: Renumbering) -> Counters:
        """All of them, in the order of time."""
        time = concatenated(self._time, np.int64)
        order = np.argsort(time, kind="stable")
        return Counters(
            time=time[order],
            name=np.array(self._name, dtype=np.int32)[order],
            value=np.array(self._value, dtype=np.float64)[order],
            pid=renumber(concatenated(self._pid, np.int64)[order]),
            names=tuple(self._names),
        )


def _timed(events: list[RawEvent]) -> tuple[I64, list[RawEvent]]:
    """The events that have a usable time, and their times."""
    time, usable = nanoseconds([event.ts for event in events])
    if not usable.all():
        events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
    return time[usable], events


def _numbers(raw: msgspec.Raw) -> list[tuple[str, float]]:
    try:
        series = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return []
    found = []
    for key, value in series.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                found.append((key, float(value)))
    return found
