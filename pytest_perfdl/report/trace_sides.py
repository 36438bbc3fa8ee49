"""The observed step of each side as events on one clock: what the trace of a regression is drawn from.

The steps start at the same time, and everything that the two exemplars hold is kept. Idle time is a thread of its
side, since the profiler records only what runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import msgspec
import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.model.errors import ChromeTraceError, TraceError
from pytest_perfdl.report import chrome_tracks
from pytest_perfdl.report.chrome_tracks import Gap
from pytest_perfdl.trace import Event, Trace, loads, unpack
from pytest_perfdl.trace.exemplar import UNPACKED_LIMIT

SideName = Literal["baseline", "current"]
SIDES: tuple[SideName, SideName] = ("baseline", "current")
OBSERVED = "one observed step"
"""What a trace shows of a side, and every name of it says: the changes are measured in many steps, not in this one."""
STEP = "ProfilerStep"
_PHASES = frozenset("XiCsf")
_FIRST_TID = (1, 10_001)
"""Distinct over both processes, since some viewers look a thread up by its id alone."""
_MOST_DIGITS = 15
"""Digits before the point of a time in microseconds, less one: 31 years, as 64-bit integers in nanoseconds hold."""
_IDLE_TID = 9_000
"""Where the thread of idle time is, behind all others of its side."""


@dataclass(frozen=True, slots=True)
class DrawnSide:
    """The observed step of one side."""

    name: SideName
    events: Sequence[Event]
    """Times count from the first event of both sides; one process, the last thread of which is idle time."""
    opens: int
    """When the step begins, nanoseconds."""
    gaps: Mapping[int, Gap]
    """The idle time among the events, by place."""
    modules: Mapping[int, str]
    """The module that an event belongs to, by place; what is in no module is absent. Empty for an event of the backward
    pass whose module is not known: exemplars do not say which forward operator one is of."""
    trace: Trace | None
    """The exemplar in columns; `None` where it cannot be analyzed."""

    @property
    def pid(self) -> int:
        """The process that the side is drawn as."""
        return SIDES.index(self.name) + 1


class _Entry(msgspec.Struct, gc=False):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    pid: int | float | str | None = 0
    tid: int | float | str | None = 0
    id: int | float | str | None = None
    args: dict[str, Any] | None = None


class _File(msgspec.Struct, gc=False):
    traceEvents: list[_Entry]  # noqa: N815 - the format's own name


def drawn_sides(base: bytes, new: bytes, title: str) -> tuple[DrawnSide, DrawnSide]:
    """The baseline's and the current step.

    Parameters
    ----------
    base, new
        Gzip-compressed exemplars.
    title
        What the names of the processes end with.

    Raises
    ------
    ChromeTraceError
        When an exemplar is damaged.
    """
    before, after = (_entries(data, name) for data, name in zip((base, new), SIDES, strict=True))
    lead = max(start - first for _, start, first in (before, after))
    flows = 0
    sides = []
    for number, ((entries, start, _), data) in enumerate(zip((before, after), (base, new), strict=True)):
        about = f"{SIDES[number]}, {OBSERVED}: {title}"
        events, flows = _events(entries, number, lead - start, about, flows)
        trace = _read_step(data)
        gaps = [] if trace is None else chrome_tracks.gaps(trace)
        first = len(events)
        events += chrome_tracks.idle(gaps, lead, number + 1, _FIRST_TID[number] + _IDLE_TID)
        places = {len(events) - len(gaps) + place: gap for place, gap in enumerate(gaps)}
        modules = {} if trace is None else _modules(trace, lead, events[:first])
        modules |= {place: gap.module for place, gap in places.items() if gap.module}
        sides.append(DrawnSide(SIDES[number], events, lead, places, modules, trace))
    return sides[0], sides[1]


def _read_step(data: bytes) -> Trace | None:
    try:
        return loads(data, limit_bytes=UNPACKED_LIMIT)
    except TraceError:
        return None


def _modules(trace: Trace, opens: int, events: Sequence[Event]) -> dict[int, str]:
    """The modules of events, looked up in the exemplar's columns by name and time."""
    windows = steps_of(trace, launches(trace)).windows
    if not windows:
        return {}
    marks, shift = labels(trace), opens - windows[0].host_start
    known: dict[tuple[str, int, int], str] = {}
    is_backward = marks.phase == PHASES.index("backward")
    for row in np.flatnonzero((marks.module >= 0) | is_backward).tolist():
        module = marks.modules[marks.module[row]] if marks.module[row] >= 0 else ""
        known[trace.name_of(row), int(trace.start[row]) + shift, int(trace.duration[row])] = module
    times = {
        place: (event.name, event.start_ns, event.duration_ns)
        for place, event in enumerate(events)
        if event.phase == "X"
    }
    return {place: known[time] for place, time in times.items() if time in known}


def _entries(data: bytes, name: str) -> tuple[list[_Entry], int, int]:
    """A side's events, the start of its step, and its first time, in nanoseconds."""
    try:
        entries = msgspec.json.decode(unpack(data, "it"), type=_File).traceEvents
        timed = [entry for entry in entries if entry.ph != "M"]
        times = [_nanoseconds(entry.ts) for entry in timed]
        unknown = {entry.ph for entry in timed} - _PHASES
        steps = [
            time for entry, time in zip(timed, times, strict=True) if entry.ph == "X" and entry.name.startswith(STEP)
        ]
    except (TraceError, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ChromeTraceError(f"the recorded {name} trace is damaged: {error}") from error
    if unknown:
        raise ChromeTraceError(f"the recorded {name} trace has events of unknown phase {min(unknown)!r}")
    first = min(times, default=0)
    return entries, min(steps, default=first), first


def _events(entries: Sequence[_Entry], number: int, shift: int, title: str, flows: int) -> tuple[list[Event], int]:
    """One side as one process, its threads numbered in the order of their appearance."""
    pid = number + 1
    threads: dict[tuple[object, object], int] = {}
    thread_names: dict[tuple[object, object], str] = {}
    process_names: dict[object, str] = {}
    flow_ids: dict[tuple[str, str, object], int] = {}
    events: list[Event] = []
    for entry in entries:
        thread = (entry.pid, entry.tid)
        if entry.ph == "M":
            label = str((entry.args or {}).get("name", ""))
            if entry.name == "process_name":
                process_names[entry.pid] = label
            elif entry.name == "thread_name":
                threads.setdefault(thread, _FIRST_TID[number] + len(threads))
                thread_names[thread] = label
            continue
        flow = None
        if entry.ph in ("s", "f"):
            flow = flow_ids.setdefault((entry.cat, entry.name, entry.id), flows + len(flow_ids))
        events.append(
            Event(
                entry.ph,  # type: ignore[arg-type]
                entry.name,
                pid,
                threads.setdefault(thread, _FIRST_TID[number] + len(threads)),
                start_ns=_nanoseconds(entry.ts) + shift,
                duration_ns=_nanoseconds(entry.dur) if entry.ph == "X" else 0,
                category=entry.cat,
                args=_own_correlation(entry.args, number),
                flow=flow,
            )
        )
    several = len({process for process, _ in threads}) > 1
    names = [Event.process_name(pid, title), Event("M", "process_sort_index", pid, 0, args={"sort_index": number})]
    for position, ((process, number_there), tid) in enumerate(threads.items()):
        name = thread_names.get((process, number_there)) or f"thread {number_there}"
        owner = process_names.get(process) or f"process {process}"
        names.append(Event.thread_name(pid, tid, f"{owner}: {name}" if several else name))
        names.append(Event("M", "thread_sort_index", pid, tid, args={"sort_index": position}))
    return [*names, *events], flows + len(flow_ids)


def _own_correlation(args: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    """Arguments with a correlation that the other side does not have: tools join launches and kernels on it."""
    correlation = (args or {}).get("correlation")
    if args is None or not isinstance(correlation, int) or correlation <= 0:
        return args
    return {**args, "correlation": correlation * len(SIDES) + number}


def _nanoseconds(raw: msgspec.Raw) -> int:
    """Microseconds as JSON text to exact nanoseconds; ValueError for what is not a valid step time."""
    text = bytes(raw).decode("ascii").strip('"')
    try:
        microseconds = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    # Without its exponent's limit rounding could make a number of a million digits.
    if not microseconds.is_finite() or microseconds.adjusted() > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is not a valid step time")
    return round(microseconds * 1000)
