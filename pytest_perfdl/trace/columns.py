"""Converts decoded events, slice by slice, to the columns of a `Trace`: complete events, pairs, instants and ids.

The category of an event, as the file has it, becomes a `Category` here (`_ALIASES`: names of old traces and of MTIA).
`model.Category` says what each category is; `model.DEVICE_CATEGORIES` are kernels, copies and memsets.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.arrays import Numbering, groups
from pytest_perfdl.trace.events import LONGEST_NS, Number, RawEvent, nanoseconds
from pytest_perfdl.trace.model import (
    DEVICE_CATEGORIES,
    FIRST_LABEL,
    I32,
    I64,
    LAUNCH_CATEGORIES,
    Category,
    MemoryEvents,
    Rows,
    Trace,
    decode_args,
    whole_numbers,
)
from pytest_perfdl.trace.raw_args import SPILL_BYTES, ArgsStore, join
from pytest_perfdl.trace.times import OPEN, with_sound_times

# Process and thread ids as integers: numbers unchanged, other text numbered.


_STREAM = re.compile(r"stream (\d+)$")


class Ids:
    """Ids as they come, column by column; text is numbered by where it first appears.

    Once all have come, `renumber` gives text the numbers of the order of texts, so that the numbers of a trace do not
    depend on the slices in which it was read.
    """

    def __init__(self) -> None:
        self._known: dict[Number, int] = {}
        self._labels: dict[str, int] = {}

    def column(self, values: list[Number]) -> I64:
        """Ids of a column of the file."""
        if set(map(type, values)) == {int}:
            with contextlib.suppress(OverflowError):
                numbers = np.array(values, dtype=np.int64)
                if numbers.min() > FIRST_LABEL:
                    return numbers
        for value in dict.fromkeys(values):
            if value not in self._known:
                self._known[value] = self._number(value)
        return np.array(list(map(self._known.__getitem__, values)), dtype=np.int64)

    @property
    def texts(self) -> dict[int, str]:
        """Text of the interned ids by final number."""
        return {FIRST_LABEL - place: text for place, text in enumerate(sorted(self._labels))}

    @cached_property
    def final(self) -> Mapping[int, int]:
        """From the numbers given in the order of appearance to the final ones."""
        return {self._labels[text]: number for number, text in self.texts.items()}

    def renumber(self, column: I64) -> I64:
        """The column with its final numbers; changed in place."""
        interned = np.flatnonzero(column <= FIRST_LABEL)
        if len(interned):
            column[interned] = [self.final[number] for number in column[interned].tolist()]
        return column

    def _number(self, value: Number) -> int:
        if isinstance(value, str) and (stream := _STREAM.match(value)):
            value = stream[1]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = int(value)  # type: ignore[arg-type]
            if FIRST_LABEL < number < 2**63:
                return number
        text = "" if value is None else str(value)
        return self._labels.setdefault(text, FIRST_LABEL - len(self._labels))


class _Pieces:
    """Columns of equal length as they come, slice by slice."""

    def __init__(self, **kinds: type[np.generic]) -> None:
        self._kinds = kinds
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in kinds}

    def add(self, **columns: npt.NDArray[Any]) -> None:
        """Take all columns of one slice."""
        for name, column in columns.items():
            self._parts[name].append(column)

    def close(self) -> dict[str, npt.NDArray[Any]]:
        """All of each column; its pieces are dropped on the way, so that they are not held twice for long."""
        return {
            name: np.concatenate(parts) if (parts := self._parts.pop(name)) else np.empty(0, dtype=kind)
            for name, kind in self._kinds.items()
        }


# Events at a point in time, as columns: `[memory]` instants.


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
        self._columns = _Pieces(**dict.fromkeys(("time", *_MEMORY_FIELDS, "pid", "tid"), np.int64))
        self.untimed = 0
        """Number of events that were left out because their time was invalid."""

    def add(self, events: list[RawEvent]) -> None:
        """Take the memory events of one slice."""
        time, usable = nanoseconds([event.ts for event in events])
        if not usable.all():
            self.untimed += int(np.count_nonzero(~usable))
            events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
        found = decode_args(join([event.args for event in events]), _Memory)
        self._columns.add(
            time=time[usable],
            **{name: whole_numbers(list(map(attrgetter(name), found))) for name in _MEMORY_FIELDS},
            pid=self._ids.column([event.pid for event in events]),
            tid=self._ids.column([event.tid for event in events]),
        )

    def build(self) -> MemoryEvents:
        """All of them, in the order of time."""
        columns = self._columns.close()
        order = np.argsort(columns["time"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        ids = {name: self._ids.renumber(columns[name]) for name in ("pid", "tid")}
        return MemoryEvents(**columns | ids)


# Pairs begin and end events (phases B and E) to what complete events are, as the Trace Event Format defines it.
#
# The ends belong to the beginnings of their thread as a stack. A file should have the events of a thread in the order
# of time, and then its own order is that of the stack, also among equal times. Where it has them in another order, that
# is still the stack's unless fewer events are left over in the order of time (it is of a file whose complete events
# were rewritten as two events each, say); among equal times, what ends then comes before what begins.


COMPLETE, BEGIN, END = 0, 1, 2
"""Phases of rows, X, B and E."""

Phases = npt.NDArray[np.int8]


@dataclass(slots=True)
class Pairs:
    """Which row of phase E ends which row of phase B."""

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    inside: list[tuple[int, int]] = field(default_factory=list)
    """Beginnings without an end, and the row of the end of what is around them; -1 where nothing is."""
    unbegun: int = 0
    """Ends without a beginning."""
    reversed: int = 0
    """Pairs that end before they begin."""

    @property
    def misfits(self) -> int:
        """Events that are in no pair as it should be."""
        return self.unbegun + self.reversed + len(self.inside)

    def __iadd__(self, other: Pairs) -> Pairs:
        self.begin += other.begin
        self.end += other.end
        self.inside += other.inside
        self.unbegun += other.unbegun
        self.reversed += other.reversed
        return self


def pair(phase: Phases, start: I64, name: I32, pid: I64, tid: I64, unnamed: int) -> Pairs:
    """Pair the rows of phases B and E, thread by thread.

    Parameters
    ----------
    phase, start, name, pid, tid
        Of all rows, in the order of the file; of a row of phase E, `start` is when it ends.
    unnamed
        The name of an end that has none, which ends the innermost; one with a name ends the innermost of that name.
    """
    found = Pairs()
    rows = np.flatnonzero(phase != COMPLETE)
    for thread in (rows[own] for own in groups(pid[rows], tid[rows])):
        begins = (phase[thread] == BEGIN).tolist()
        events = list(zip(thread.tolist(), begins, start[thread].tolist(), name[thread].tolist(), strict=True))
        pairs = _stack(events, unnamed)
        if pairs.misfits and (np.diff(start[thread]) < 0).any():
            pairs = min(pairs, _stack(_in_time(events, unnamed), unnamed), key=lambda each: each.misfits)
        found += pairs
    return found


def set_durations(pairs: Pairs, start: I64, duration: I64, pid: I64, tid: I64) -> None:
    """Put the durations of all beginnings into the column `duration`; an end never lies before its beginning."""
    begin, end = np.array(pairs.begin, dtype=np.intp), np.array(pairs.end, dtype=np.intp)
    duration[begin] = np.maximum(start[end] - start[begin], 0)
    if pairs.inside:
        rows, around = np.array(pairs.inside, dtype=np.intp).T
        ends = np.where(around >= 0, start[around], _last_ends(start + duration, pid, tid)[rows])
        duration[rows] = np.maximum(ends - start[rows], 0)


def merge_args(begin: bytes, end: bytes) -> bytes:
    """The arguments of both events as JSON text; of equal keys the end's value counts, as the format says."""
    try:
        both = [msgspec.json.decode(text, type=dict[str, msgspec.Raw]) for text in (begin, end)]
    except (msgspec.DecodeError, RecursionError):
        return begin
    return msgspec.json.encode({**both[0], **both[1]})


_Event = tuple[int, bool, int, int]
"""Row, whether it begins, time, name."""


class _Opened:
    """The beginnings of a thread that are not ended yet, the innermost last."""

    def __init__(self, unnamed: int) -> None:
        self.events: list[_Event] = []
        self._names: Counter[int] = Counter()
        self._unnamed = unnamed

    def push(self, event: _Event) -> None:
        self.events.append(event)
        self._names[event[3]] += 1

    def pop(self, end: _Event) -> list[_Event]:
        """Take out what an event ends, with all that is inside it; nothing where it ends nothing."""
        name = end[3]
        if name != self._unnamed and not self._names[name]:
            return []
        place = len(self.events) - 1
        while name != self._unnamed and self.events[place][3] != name:
            place -= 1
        taken = self.events[max(place, 0) :]
        del self.events[max(place, 0) :]
        self._names.subtract(event[3] for event in taken)
        return taken


def _stack(events: list[_Event], unnamed: int) -> Pairs:
    """The pairs of one thread, whose events are in the order of its stack."""
    found = Pairs()
    opened = _Opened(unnamed)
    for event in events:
        row, begins, time, _ = event
        if begins:
            opened.push(event)
            continue
        taken = opened.pop(event)
        if not taken:
            found.unbegun += 1
            continue
        begun = taken[0]
        found.begin.append(begun[0])
        found.end.append(row)
        found.reversed += time < begun[2]
        for each in taken[1:]:
            # What began at the same time may as well be around it: those have no order among themselves.
            if each[2] > begun[2]:
                found.inside.append((each[0], row))
            else:
                opened.push(each)
    found.inside += [(each[0], -1) for each in opened.events]
    return found


def _in_time(events: list[_Event], unnamed: int) -> list[_Event]:
    """The events by time; among equal times, those first that end what began before."""
    found: list[_Event] = []
    opened = _Opened(unnamed)
    for _, group in groupby(sorted(events, key=_time), _time):
        late: list[_Event] = []
        for event in group:
            taken = [] if event[1] else opened.pop(event)
            (found if taken else late).append(event)
            for each in taken[1:]:
                opened.push(each)
        for event in late:
            if event[1]:
                opened.push(event)
            else:
                for each in opened.pop(event)[1:]:
                    opened.push(each)
        found += late
    return found


def _time(event: _Event) -> int:
    return event[2]


def _last_ends(end: I64, pid: I64, tid: I64) -> I64:
    """When the last event of the thread of each row ends."""
    order = np.lexsort((tid, pid))
    first = np.concatenate(([True], (np.diff(tid[order]) != 0) | (np.diff(pid[order]) != 0)))
    latest = np.maximum.reduceat(end[order], np.flatnonzero(first))
    found = np.empty_like(end)
    found[order] = latest[np.cumsum(first) - 1]
    return found


# Converts decoded events, slice by slice, to the columns of a `Trace`.


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
"""Also metadata, instant (I, R: of old), and counters and flows, which nothing needs but are no surprise."""


_KINDS: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("start", "duration"), np.int64),
    **dict.fromkeys(("name", "category"), np.int32),
    **dict.fromkeys(("pid", "tid", "correlation"), np.int64),
}
"""Types of the columns of a `Trace`."""


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
        self.columns = _Pieces(**_KINDS, phase=np.int8)
        self.args = ArgsStore(spill_bytes)
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.memory = MemoryColumns(self.ids)
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
        category = np.array([self.category_of[event.cat] for event in events], dtype=np.int32)
        raw_args = [event.args for event in events]
        self.args.add(raw_args)
        phases = [_WITH_ROWS[event.ph] for event in events] if with_pairs else COMPLETE
        self.columns.add(
            start=start,
            duration=self._durations(events),
            name=np.array([self.names[event.name] for event in events], dtype=np.int32),
            category=category,
            pid=self.ids.column([event.pid for event in events]),
            tid=self.ids.column([event.tid for event in events]),
            correlation=_correlations(category, raw_args),
            phase=np.full(len(events), phases, dtype=np.int8),
        )

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
        """The trace of all that was added, once."""
        names = tuple(self.names)
        columns: dict[str, Any] = self.columns.close()
        phase = columns.pop("phase")
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
        ids, final = self.ids, self.ids.final
        base = metadata.get("baseTimeNanoseconds", 0)
        made = Trace(
            **{**columns, "pid": ids.renumber(columns["pid"]), "tid": ids.renumber(columns["tid"])},
            names=names,
            categories=tuple(self.categories),
            labels=ids.texts,
            process_names={final.get(pid, pid): name for pid, name in self.process_names.items()},
            thread_names={
                (final.get(pid, pid), final.get(tid, tid)): name for (pid, tid), name in self.thread_names.items()
            },
            memory=self.memory.build(),
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
            texts = [msgspec.Raw(merge_args(args[begin], args[end])) for begin, end in both]
            rows = np.array([begin for begin, _ in both], dtype=np.intp)
            stored[rows] = len(phase) + np.arange(len(rows))
            self.args.add(texts)
            columns["correlation"][rows] = _correlations(columns["category"][rows], texts)
        return stored

    def _findings(self) -> Iterator[str]:
        for count, one, many in (
            (
                self.untimed,
                "event without a valid timestamp was skipped",
                "events without a valid timestamp were skipped",
            ),
            (
                self.memory.untimed,
                "memory event without a valid timestamp was skipped",
                "memory events without a valid timestamp were skipped",
            ),
            (
                self.without_duration,
                "complete event has no duration, which was read as 0",
                "complete events have no duration, which was read as 0",
            ),
            (
                self.negative,
                "event has a negative duration, which was read as 0",
                "events have a negative duration, which was read as 0",
            ),
            (
                self.pairs.unbegun,
                "end event (phase E) has no begin event and was ignored",
                "end events (phase E) have no begin event and were ignored",
            ),
            (
                self.pairs.reversed,
                "end event (phase E) lies before its begin event: its duration was read as 0",
                "end events (phase E) lie before their begin events: their durations were read as 0",
            ),
            (
                len(self.pairs.inside),
                (
                    "begin event (phase B) has no end event: it was ended with the event around it, or with the last "
                    "event of its thread"
                ),
                (
                    "begin events (phase B) have no end event: each was ended with the event around it, or with the "
                    "last event of its thread"
                ),
            ),
            *(
                (count, f"event of phase {phase!r} was ignored", f"events of phase {phase!r} were ignored")
                for phase, count in sorted(self.unread.items())
            ),
        ):
            if count:
                yield plural(count, one, many)


def _correlations(category: I32, raw_args: list[msgspec.Raw]) -> I64:
    correlation = np.full(len(category), -1, dtype=np.int64)
    rows = np.flatnonzero(np.isin(category, _CORRELATED_CODES))
    if len(rows):
        links = decode_args(join([raw_args[row] for row in rows.tolist()]), _Link)
        correlation[rows] = whole_numbers([link.correlation for link in links])
    return correlation
