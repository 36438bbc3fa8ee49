"""Converts decoded events, slice by slice, to the columns of a `Trace`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.begin_end import BEGIN, COMPLETE, END, Pairs, Phases, merged, pair, set_durations
from pytest_perfdl.trace.events import LONGEST_NS, RawEvent, concatenated, nanoseconds
from pytest_perfdl.trace.ids import Ids
from pytest_perfdl.trace.instants import CounterColumns, MemoryColumns
from pytest_perfdl.trace.model import (
    DEVICE_CATEGORIES,
    I32,
    I64,
    LAUNCH_CATEGORIES,
    Category,
    Rows,
    Trace,
    decode_args,
    whole_numbers,
)
from pytest_perfdl.trace.numbering import Numbering
from pytest_perfdl.trace.raw_args import SPILL_BYTES, ArgsStore, join
from pytest_perfdl.trace.times import OPEN, with_sound_times

_ALIASES = {
    "Operator": Category.CPU_OP,
    "Kernel": Category.KERNEL,
    "Memcpy": Category.GPU_MEMCPY,
    "Memset": Category.GPU_MEMSET,
    "Runtime": Category.CUDA_RUNTIME,
    "mtia_ccp_events": Category.KERNEL,
}
"""Names that are read as another category's: those of 2021, and MTIA's (see `Category`)."""
_LEGACY_ANNOTATION = re.compile(r"ProfilerStep#\d+$|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
"""Ranges that traces of 2021 file under Operator, though they are annotations."""
_FAST_ANNOTATION = re.compile(re.escape(MODULE))
"""Ranges that torch's fast way of making them files under cpu_op, though they are annotations."""

_CORRELATED = (*DEVICE_CATEGORIES, *LAUNCH_CATEGORIES, Category.CUDA_SYNC, Category.CUDA_EVENT, Category.XPU_SYNC)
_CORRELATED_CODES = np.array(_CORRELATED, dtype=np.int32)
_WITH_ROWS = {"X": COMPLETE, "B": BEGIN, "E": END}
_READ_PHASES = frozenset("XBEMCiIRstf")
"""Also metadata, counter, instant (I, R: of old), and flows, which nothing needs but are no surprise."""


class _Link(msgspec.Struct, gc=False):
    correlation: int = -1


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _CategoryOf(dict[str, int]):
    """The code of each category as it was written, of those met so far."""

    def __init__(self, codes: Numbering[str]) -> None:
        self._codes = codes

    def __missing__(self, written: str) -> int:
        alias = _ALIASES.get(written)
        code = self[written] = self._codes[written] if alias is None else int(alias)
        return code


class Columns:
    """Collects events and becomes a `Trace`; the events themselves are not kept."""

    def __init__(self, spill_bytes: int = SPILL_BYTES) -> None:
        self.ids = Ids()
        self.names = Numbering[str]()
        self.categories = Numbering[str]({known.label: int(known) for known in Category})
        self.category_of = _CategoryOf(self.categories)
        self.start: list[I64] = []
        self.duration: list[I64] = []
        self.name: list[I32] = []
        self.category: list[I32] = []
        self.pid: list[I64] = []
        self.tid: list[I64] = []
        self.correlation: list[I64] = []
        self.args = ArgsStore(spill_bytes)
        self.phase: list[Phases] = []
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.memory = MemoryColumns(self.ids)
        self.counters = CounterColumns(self.ids)
        self.unread: Counter[str] = Counter()
        self.pairs = Pairs()
        self.untimed = self.without_duration = self.negative = 0

    def add(self, events: list[RawEvent]) -> None:
        """Take the events of one slice."""
        complete = [event for event in events if event.ph == "X"]
        if len(complete) < len(events):
            others = [event for event in events if event.ph != "X"]
            self._add_others(others)
            paired = [event for event in others if event.ph in ("B", "E")]
            if paired:
                for event in paired:
                    event.dur = 0
                self._add_complete([event for event in events if event.ph in _WITH_ROWS], with_pairs=True)
                return
        self._add_complete(complete)

    def _add_complete(self, events: list[RawEvent], *, with_pairs: bool = False) -> None:
        start, usable = nanoseconds([event.ts for event in events])
        if not usable.all():
            self.untimed += int(np.count_nonzero(~usable))
            events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
            start = start[usable]
        if not events:
            return
        self.start.append(start)
        self.duration.append(self._durations(events))
        self.name.append(np.array([self.names[event.name] for event in events], dtype=np.int32))
        category = np.array([self.category_of[event.cat] for event in events], dtype=np.int32)
        self.category.append(category)
        self.pid.append(self.ids.column([event.pid for event in events]))
        self.tid.append(self.ids.column([event.tid for event in events]))
        raw_args = [event.args for event in events]
        self.args.add(raw_args)
        self.correlation.append(_correlations(category, raw_args))
        phases = [_WITH_ROWS[event.ph] for event in events] if with_pairs else COMPLETE
        self.phase.append(np.full(len(events), phases, dtype=np.int8))

    def _durations(self, events: list[RawEvent]) -> I64:
        duration, usable = nanoseconds([event.dur for event in events])
        endless = duration > LONGEST_NS
        if endless.any():
            duration = np.where(endless, 0, duration)
            usable = usable & ~endless
        self.without_duration += int(np.count_nonzero(~usable))
        if (duration < 0).any():
            is_open = duration == -1000
            duration[is_open] = OPEN
            negative = (duration < 0) & ~is_open
            self.negative += int(np.count_nonzero(negative))
            duration[negative] = 0
        return duration

    def _add_others(self, events: list[RawEvent]) -> None:
        phases = Counter([event.ph for event in events])
        if phases["C"]:
            self.counters.add([event for event in events if event.ph == "C"])
        memory = [event for event in events if event.name == "[memory]" and event.ph in ("i", "I")]
        if memory:
            self.memory.add(memory)
        for name in ("process_name", "thread_name") if phases["M"] else ():
            named = [event for event in events if event.ph == "M" and event.name == name]
            if named:
                self._add_names(named)
        for phase in phases.keys() - _READ_PHASES:
            self.unread[phase] += phases[phase]

    def _add_names(self, events: list[RawEvent]) -> None:
        names = [value.name for value in decode_args(join([event.args for event in events]), _Named)]
        pids = self.ids.column([event.pid for event in events]).tolist()
        if events[0].name == "process_name":
            self.process_names.update(zip(pids, names, strict=True))
        else:
            tids = self.ids.column([event.tid for event in events]).tolist()
            self.thread_names.update(zip(zip(pids, tids, strict=True), names, strict=True))

    def build(self, metadata: Mapping[str, Any], findings: Iterable[str], source: str) -> Trace:
        """The trace of all that was added; the lists of slices are emptied on the way."""
        names = tuple(self.names)
        columns: dict[str, Any] = {
            "start": concatenated(self.start, np.int64),
            "duration": concatenated(self.duration, np.int64),
            "name": concatenated(self.name, np.int32),
            "category": concatenated(self.category, np.int32),
            "pid": concatenated(self.pid, np.int64),
            "tid": concatenated(self.tid, np.int64),
            "correlation": concatenated(self.correlation, np.int64),
        }
        phase = concatenated(self.phase, np.int8)
        rows = self._pair(phase, columns) if phase.any() else None
        raw_args = self.args.close()
        if rows is not None:
            kept = phase != END
            columns = {name: column[kept] for name, column in columns.items()}
            raw_args = raw_args.take(rows[kept])
        name, category = columns["name"], columns["category"]
        for pattern in (_FAST_ANNOTATION, *([_LEGACY_ANNOTATION] if "Operator" in self.category_of else [])):
            annotation = np.array([bool(pattern.match(text)) for text in names], dtype=bool)
            if annotation.any():
                category[(category == Category.CPU_OP) & annotation[name]] = Category.USER_ANNOTATION
        labels, renumber = self.ids.close()
        base = metadata.get("baseTimeNanoseconds", 0)
        made = Trace(
            **{**columns, "pid": renumber(columns["pid"]), "tid": renumber(columns["tid"])},
            names=names,
            categories=tuple(self.categories),
            labels=labels,
            process_names=renumber.processes(self.process_names),
            thread_names=renumber.threads(self.thread_names),
            memory=self.memory.build(renumber),
            counters=self.counters.build(renumber),
            metadata=metadata,
            base_ns=base if type(base) is int and abs(base) < 2**63 else 0,
            findings=(*findings, *self._findings()),
            source=source,
            raw_args=raw_args,
        )
        return with_sound_times(made)

    def _pair(self, phase: Phases, columns: Mapping[str, Any]) -> Rows:
        """Give the rows of phase B what those of phase E know; the row of the stored arguments of each row."""
        start, name, pid, tid = (columns[key] for key in ("start", "name", "pid", "tid"))
        self.pairs = pair(phase, start, name, pid, tid, self.names.get("", -1))
        set_durations(self.pairs, start, columns["duration"], pid, tid)
        endless = columns["duration"] > LONGEST_NS
        self.without_duration += int(np.count_nonzero(endless))
        columns["duration"][endless] = 0
        stored = np.arange(len(phase), dtype=np.intp)
        args = self.args.so_far()
        both = [(begin, end) for begin, end in zip(self.pairs.begin, self.pairs.end, strict=True) if args[end] != b"{}"]
        if both:
            texts = [msgspec.Raw(merged(args[begin], args[end])) for begin, end in both]
            rows = np.array([begin for begin, _ in both], dtype=np.intp)
            stored[rows] = len(phase) + np.arange(len(rows))
            self.args.add(texts)
            columns["correlation"][rows] = _correlations(columns["category"][rows], texts)
        return stored

    def _findings(self) -> Iterable[str]:
        if self.untimed:
            yield plural(
                self.untimed,
                "event without a valid timestamp was skipped",
                "events without a valid timestamp were skipped",
            )
        if self.memory.untimed:
            yield plural(
                self.memory.untimed,
                "memory event without a valid timestamp was skipped",
                "memory events without a valid timestamp were skipped",
            )
        if self.without_duration:
            yield plural(
                self.without_duration,
                "complete event has no duration, which was read as 0",
                "complete events have no duration, which was read as 0",
            )
        if self.negative:
            yield plural(
                self.negative,
                "event has a negative duration, which was read as 0",
                "events have a negative duration, which was read as 0",
            )
        yield from self.pairs.findings()
        for phase, count in sorted(self.unread.items()):
            yield plural(count, f"event of phase {phase!r} was ignored", f"events of phase {phase!r} were ignored")


def _correlations(category: I32, raw_args: list[msgspec.Raw]) -> I64:
    correlation = np.full(len(category), -1, dtype=np.int64)
    rows = np.flatnonzero(np.isin(category, _CORRELATED_CODES))
    if len(rows):
        links = decode_args(join([raw_args[row] for row in rows.tolist()]), _Link)
        correlation[rows] = whole_numbers([link.correlation for link in links])
    return correlation
