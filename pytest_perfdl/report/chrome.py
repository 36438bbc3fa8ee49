"""Both sides' steps in one Chrome trace: what a regression looks like in Perfetto.

The baseline's step and the current one become two processes whose steps start at the same time. Slices of
blamed operators and kernels carry the change in their name and arguments on both sides, and matched ones what they
did themselves; `chrome_tracks` adds counters, idle time and arrows. Everything that the two exemplars hold is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from pytest_perfdl.model.errors import ChromeTraceError, TraceError
from pytest_perfdl.report import chrome_tracks
from pytest_perfdl.report.figures import cause_status
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace import Event, compress, unpack, write

SIDES = ("baseline", "current")
_PHASES = frozenset("XiCsf")
_STEP = "ProfilerStep"
_KIND_OF_CATEGORY = {
    "cpu_op": "operator",
    "kernel": "kernel",
    "gpu_memcpy": "kernel",
    "gpu_memset": "kernel",
    "python_function": "line",
}
_FIRST_TID = (1, 10_001)
"""Distinct over both processes, since some viewers look a thread up by its id alone."""
_MOST_DIGITS = 15
"""Digits before the point of a time in microseconds, less one: 31 years, as 64-bit integers in nanoseconds hold."""
_IDLE_TID = 9_000
"""Where the thread of idle time is, behind all others of its side."""


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


def regression_trace(result: Result, call: str, base: bytes, new: bytes) -> bytes:
    """Two gzip-compressed exemplars in, one gzip-compressed trace out; equal input gives equal bytes.

    Raises
    ------
    ChromeTraceError
        When an exemplar is damaged.
    """
    try:
        return compress(_drawn(result, call, base, new))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ChromeTraceError(f"the exemplar traces cannot be drawn: {error}") from error


def _drawn(result: Result, call: str, base: bytes, new: bytes) -> bytes:
    causes = {(_drawn_kind(cause), cause.name): cause for cause in result.judgement.blame if cause.call == call}
    sides = [_side(data, name) for data, name in zip((base, new), SIDES, strict=True)]
    lead = max(start - first for _, start, first in sides)
    title = f"{visible(result.id)} {visible(call)}".rstrip()
    drawn: list[list[Event]] = []
    flows = 0
    for number, (entries, start, _) in enumerate(sides):
        side, flows = _draw(entries, number, lead - start, f"{SIDES[number]} {title}", flows)
        drawn.append(side)
    matched = chrome_tracks.pairs(drawn)
    events = [_marked(event, causes) for side in chrome_tracks.compared(drawn, matched) for event in side]
    events += chrome_tracks.accumulated(drawn, [pair for pair in matched if _counts(drawn[1][pair[1]])])
    events += chrome_tracks.flows(drawn, _blamed(drawn, matched, causes), flows)
    for number, (side, data) in enumerate(zip(drawn, (base, new), strict=True)):
        events += [*chrome_tracks.busy(side), *chrome_tracks.memory(side)]
        if (trace := chrome_tracks.read_step(data)) is not None:
            events += chrome_tracks.work(trace, lead, number + 1)
            events += chrome_tracks.idle(trace, lead, number + 1, _FIRST_TID[number] + _IDLE_TID)
    about = {"test": visible(result.id), "call": visible(call), "verdict": result.judgement.verdict}
    return write(None, events, {"perfdl": about})


def _side(data: bytes, name: str) -> tuple[list[_Entry], int, int]:
    """A side's events, the start of its step, and its first time, in nanoseconds."""
    try:
        entries = msgspec.json.decode(unpack(data, "it"), type=_File).traceEvents
        timed = [entry for entry in entries if entry.ph != "M"]
        times = [_nanoseconds(entry.ts) for entry in timed]
        unknown = {entry.ph for entry in timed} - _PHASES
        steps = [
            time for entry, time in zip(timed, times, strict=True) if entry.ph == "X" and entry.name.startswith(_STEP)
        ]
    except (TraceError, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ChromeTraceError(f"the {name} exemplar trace is damaged: {error}") from error
    if unknown:
        raise ChromeTraceError(f"the {name} exemplar trace has events of unknown phase {min(unknown)!r}")
    first = min(times, default=0)
    return entries, min(steps, default=first), first


def _draw(entries: Sequence[_Entry], number: int, shift: int, title: str, flows: int) -> tuple[list[Event], int]:
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


def _counts(event: Event) -> bool:
    """Whether the change accumulates over it: annotations span what is inside them and would count it twice."""
    return event.category in _KIND_OF_CATEGORY


def _blamed(
    sides: Sequence[Sequence[Event]], matched: Sequence[tuple[int, int]], causes: Mapping[tuple[str, str], Cause]
) -> list[tuple[int, int]]:
    """The matched slices of blamed parts, those of the largest cause first."""
    order = {key: number for number, key in enumerate(causes)}
    found = []
    for pair in matched:
        event = sides[1][pair[1]]
        key = (_KIND_OF_CATEGORY.get(event.category, ""), event.name)
        if key in order:
            found.append((order[key], pair))
    return [pair for _, pair in sorted(found)]


def _own_correlation(args: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    """Arguments with a correlation that the other side does not have: tools join launches and kernels on it."""
    correlation = (args or {}).get("correlation")
    if args is None or not isinstance(correlation, int) or correlation <= 0:
        return args
    return {**args, "correlation": correlation * len(SIDES) + number}


def _marked(event: Event, causes: Mapping[tuple[str, str], Cause]) -> Event:
    cause = causes.get((_KIND_OF_CATEGORY.get(event.category, ""), event.name)) if event.phase == "X" else None
    if cause is None:
        return event
    said = {
        "cause_ratio": cause.new_ns / cause.base_ns if cause.base_ns else None,
        "base_ns": cause.base_ns,
        "new_ns": cause.new_ns,
        "delta_ns": cause.delta_ns,
        "share": cause.share,
        "verdict": _word(cause),
    }
    return replace(
        event,
        name=event.name + _suffix(cause),
        args={**(event.args or {}), **said},
        color="terrible" if cause.delta_ns > 0 else "good" if cause.delta_ns < 0 else None,
    )


def _word(cause: Cause) -> str:
    status = cause_status(cause)
    if status != "changed":
        return status
    return "slower" if cause.delta_ns > 0 else "faster" if cause.delta_ns < 0 else "changed"


def _suffix(cause: Cause) -> str:
    if cause_status(cause) != "changed":
        return f" ({_word(cause)})"
    return f" ({cause.delta_ns / cause.base_ns * 100:+.0f} %)" if cause.base_ns else ""


def _drawn_kind(cause: Cause) -> str:
    return "line" if cause.kind == "module" else cause.kind


def _nanoseconds(raw: msgspec.Raw) -> int:
    """Microseconds as JSON text to exact nanoseconds; ValueError for what is no time of a step."""
    text = bytes(raw).decode("ascii").strip('"')
    try:
        microseconds = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is no time") from None
    # Without its exponent's limit rounding could make a number of a million digits.
    if not microseconds.is_finite() or microseconds.adjusted() > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is no time of a step")
    return round(microseconds * 1000)
