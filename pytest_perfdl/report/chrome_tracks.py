"""What a trace of both sides says beyond its slices: which belong together, and how the change builds up.

Slices of the two sides are matched by their category, name and the slice around them, in order, where both sides
have as many of them; that is exact for equal code and leaves out what cannot be told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_perfdl.analysis.account.device_account import IDLE_CLASSES, idle_time
from pytest_perfdl.analysis.efficiency.roofline import work_rates
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import input_rows, on_thread, thread_of
from pytest_perfdl.analysis.overview.memory_timeline import device_name
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import Category, Event, Trace, loads
from pytest_perfdl.trace.exemplar import UNPACKED_LIMIT

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
MOST_FLOWS = 300
"""Arrows that a trace has at most, of the largest causes first: more hide what they show."""
MATCHED = "matched"
"""Category of the arrows between matched slices."""
IDLE = "idle"
"""Category of the slices of idle time."""

Pair = tuple[int, int]
"""Places of two matched slices in their sides' events."""


def pairs(sides: Sequence[Sequence[Event]]) -> list[Pair]:
    """The matched slices of two sides, in the order of the first."""
    found = [_places(events) for events in sides]
    return sorted(
        pair
        for key, places in found[0].items()
        if len(places) == len(found[1].get(key, ()))
        for pair in zip(places, found[1][key], strict=True)
    )


def compared(sides: Sequence[Sequence[Event]], matched: Sequence[Pair]) -> list[list[Event]]:
    """The events with what each matched slice did: its ratio and difference in duration, and a verdict."""
    made = [list(events) for events in sides]
    for pair in matched:
        before, after = (events[place].duration_ns for events, place in zip(sides, pair, strict=True))
        said = {
            "ratio": round(after / before, 4) if before else None,
            "slice_delta_ns": after - before,
            "verdict": "unchanged",
        }
        for events, place in zip(made, pair, strict=True):
            event = events[place]
            events[place] = replace(event, args={**said, **(event.args or {})})
    return made


def flows(sides: Sequence[Sequence[Event]], matched: Iterable[Pair], first: int) -> Iterator[Event]:
    """An arrow for each of these pairs, numbered from `first`; it points forward in time, whichever side that is on."""
    for number, pair in enumerate(matched, start=first):
        if number - first >= MOST_FLOWS:
            return
        ends = sorted(
            (events[place] for events, place in zip(sides, pair, strict=True)), key=lambda event: event.start_ns
        )
        for phase, end in zip(("s", "f"), ends, strict=True):
            yield Event(
                phase,  # type: ignore[arg-type]
                MATCHED,
                end.pid,
                end.tid,
                start_ns=end.start_ns,
                category=MATCHED,
                flow=number,
            )


def accumulated(sides: Sequence[Sequence[Event]], matched: Sequence[Pair]) -> Iterator[Event]:
    """How far this run is behind the baseline at the end of each matched slice, as a counter of its process."""
    ends = sorted((sides[1][new].end_ns, sides[1][new].end_ns - sides[0][base].end_ns) for base, new in matched)
    pid = sides[1][0].pid if sides[1] else 0
    last = None
    for time, behind in ends:
        if behind != last:
            last = behind
            yield Event("C", "accumulated change", pid, 0, start_ns=time, args={"ns": behind})


def busy(events: Sequence[Event]) -> Iterator[Event]:
    """How many kernels and copies run on the devices of a side, as a counter."""
    edges: dict[int, int] = defaultdict(int)
    for event in events:
        if event.phase == "X" and event.category in DEVICE:
            edges[event.start_ns] += 1
            edges[event.end_ns] -= 1
    running = 0
    for time, change in sorted(edges.items()):
        running += change
        yield Event("C", "device busy", events[0].pid, 0, start_ns=time, args={"running": running})


def memory(events: Sequence[Event]) -> Iterator[Event]:
    """What the allocator of each device holds, from the profiler's `[memory]` events, as counters."""
    for event in events:
        args = event.args or {}
        total = args.get("Total Allocated")
        if event.phase == "i" and event.name == "[memory]" and isinstance(total, (int, float)):
            device = device_name(args.get("Device Type", 0), args.get("Device Id", -1))
            yield Event("C", f"memory {device}", event.pid, 0, start_ns=event.start_ns, args={"bytes": total})


def read_step(data: bytes) -> Trace | None:
    """A side's exemplar, for `idle` and `work`; `None` where it cannot be analyzed."""
    try:
        return loads(data, limit_bytes=UNPACKED_LIMIT)
    except TraceError:
        return None


def idle(trace: Trace, opens: int, pid: int, tid: int) -> list[Event]:
    """The idle time of a side's step as a thread of its own, each gap named by what most of it is.

    Parameters
    ----------
    trace
        The side's exemplar.
    opens
        Where its step begins among the drawn events.
    pid, tid
        The thread to draw on.
    """
    gaps = [
        Event("X", name, pid, tid, start_ns=start + opens, duration_ns=end - start, category=IDLE)
        for name, start, end in _gaps(trace)
    ]
    return [Event.thread_name(pid, tid, "idle"), *gaps] if gaps else []


def work(trace: Trace, opens: int, pid: int) -> Iterator[Event]:
    """What a side's step achieves over time, as counters: FLOP/s, and bytes a second of those that must be moved.

    Of operators with a cost model, each over its own time; 0 where none runs.
    """
    windows = steps_of(trace, launches(trace)).windows
    if not windows:
        return
    shift = opens - windows[0].host_start
    changes: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in work_rates(trace):
        for time, sign in ((each.start_ns, 1), (each.end_ns, -1)):
            changes[time + shift][0] += sign * each.flops_per_s
            changes[time + shift][1] += sign * each.bytes_per_s
    for place, (name, unit) in enumerate((("achieved FLOP/s", "Gflop/s"), ("achieved bytes/s", "GB/s"))):
        running, last = 0.0, None
        for time in sorted(changes):
            running += changes[time][place]
            # Sums of what comes and goes end near zero, not at it.
            shown = round(max(running, 0.0) / 1e9, 3)
            if shown != last:
                last = shown
                yield Event("C", name, pid, 0, start_ns=time, args={unit: shown})


def _gaps(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, start and end of the first step's gaps, from the step's start."""
    joined = launches(trace)
    steps = steps_of(trace, joined)
    if not steps.windows:
        return []
    origin = steps.windows[0].host_start
    if len(joined.device):
        gaps = steps.window_time(0).difference(covered(trace, joined.device))
        found = idle_time(trace, steps, joined)
        own = np.array(list(found.by_cause.values()))[:, found.window == 0]
        names = [IDLE_CLASSES[place] for place in own.argmax(axis=0).tolist()]
    else:
        thread = thread_of(steps.windows[0])
        gaps = steps.host_time(0).difference(covered(trace, on_thread(trace, trace.rows(Category.CPU_OP), thread)))
        waiting = covered(trace, on_thread(trace, input_rows(trace), thread)).within(gaps.start, gaps.end)
        names = [
            "input" if 2 * ns > length else "Python and host"
            for ns, length in zip(waiting, gaps.end - gaps.start, strict=True)
        ]
    starts, ends = (gaps.start - origin).tolist(), (gaps.end - origin).tolist()
    return list(zip(names, starts, ends, strict=True))


def _places(events: Sequence[Event]) -> Mapping[tuple[str, str, str], list[int]]:
    """Where the slices of each category, name and surrounding slice are, by time."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    open_on: dict[tuple[int, int], list[Event]] = defaultdict(list)
    order = sorted(
        (place for place, event in enumerate(events) if event.phase == "X"),
        key=lambda place: (events[place].start_ns, -events[place].duration_ns, place),
    )
    for place in order:
        event = events[place]
        around = open_on[event.pid, event.tid]
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        found[event.category, event.name, around[-1].name if around else ""].append(place)
        around.append(event)
    return found
