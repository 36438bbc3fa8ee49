"""What a trace of both sides says beyond its slices: which belong together, and how the change builds up.

Slices of the two sides are matched by their category, name and the slice around them, in order, where both sides
have as many of them; that is exact for equal code and leaves out what cannot be told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.analysis.account.device_account import IDLE_CLASSES, idle_time
from pytest_perfdl.analysis.account.parts.labels import labels
from pytest_perfdl.analysis.efficiency.roofline import work_rates
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import Thread, input_rows, on_thread, thread_of
from pytest_perfdl.analysis.overview.memory_timeline import device_name
from pytest_perfdl.trace import Category, Event, Trace
from pytest_perfdl.trace.model import I32

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
MOST_FLOWS = 300
"""Arrows that a trace has at most, of the largest causes first: more hide what they show."""
MATCHED = "matched"
"""Category of the arrows between matched slices."""
BEHIND = "lag behind the baseline (observed)"
"""Counter of how far the observed current step is behind the observed one of the baseline."""
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


def observed(sides: Sequence[Sequence[Event]], matched: Sequence[Pair]) -> list[list[Event]]:
    """The events with what each matched slice took on the other side in the observed step, and the difference.

    Nothing here is a measured change: that one step was slower than one other step may be chance.
    """
    made = [list(events) for events in sides]
    for pair in matched:
        before, after = (events[place].duration_ns for events, place in zip(sides, pair, strict=True))
        others = ({"observed_current_ns": after}, {"observed_baseline_ns": before})
        for events, place, other in zip(made, pair, others, strict=True):
            event = events[place]
            args = {**(event.args or {}), **other, "observed_delta_ns": after - before}
            events[place] = replace(event, args=args)
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
    """How far the current step is behind the baseline's at the end of each matched slice, as a counter."""
    ends = sorted((sides[1][new].end_ns, sides[1][new].end_ns - sides[0][base].end_ns) for base, new in matched)
    pid = sides[1][0].pid if sides[1] else 0
    last = None
    for time, behind in ends:
        if behind != last:
            last = behind
            yield Event("C", BEHIND, pid, 0, start_ns=time, args={"ns": behind})


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


@dataclass(frozen=True, slots=True)
class Gap:
    """Idle time of a step, one piece; nanoseconds from the step's start."""

    name: str
    """What most of it is: a class of idle time."""
    start: int
    end: int
    module: str = ""
    """The module that it is in, or that the call which ends it is in; empty outside of modules."""
    function: str = ""
    """The innermost annotation or function that it is in, which a cause is called after; empty outside of all."""


def idle(gaps: Sequence[Gap], opens: int, pid: int, tid: int) -> list[Event]:
    """The idle time of a side's step as a thread, each gap named by what most of it is, after the thread's name.

    Parameters
    ----------
    opens
        Where its step begins among the drawn events.
    pid, tid
        The thread to draw on.
    """
    drawn = [
        Event("X", gap.name, pid, tid, start_ns=gap.start + opens, duration_ns=gap.end - gap.start, category=IDLE)
        for gap in gaps
    ]
    return [Event.thread_name(pid, tid, "idle"), *drawn] if drawn else []


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


def gaps(trace: Trace) -> list[Gap]:
    """The idle time of the first step: of its devices, or without device events of its thread."""
    joined = launches(trace)
    steps = steps_of(trace, joined)
    if not steps.windows:
        return []
    origin = steps.windows[0].host_start
    if len(joined.device):
        pieces = steps.window_time(0).difference(covered(trace, joined.device))
        found = idle_time(trace, steps, joined)
        own = np.array(list(found.by_cause.values()))[:, found.window == 0]
        names = [IDLE_CLASSES[place] for place in own.argmax(axis=0).tolist()]
        rows = found.call[found.window == 0].tolist()
    else:
        thread = thread_of(steps.windows[0])
        pieces = steps.host_time(0).difference(covered(trace, on_thread(trace, trace.rows(Category.CPU_OP), thread)))
        waiting = covered(trace, on_thread(trace, input_rows(trace), thread)).within(pieces.start, pieces.end)
        names = [
            "input" if 2 * ns > length else "Python and host"
            for ns, length in zip(waiting, pieces.end - pieces.start, strict=True)
        ]
        rows = _rows_around(trace, thread, pieces)
    marks = labels(trace)
    return [
        Gap(
            name,
            start - origin,
            end - origin,
            _label(marks.modules, marks.module, row),
            _label(marks.functions, marks.function, row),
        )
        for name, start, end, row in zip(names, pieces.start.tolist(), pieces.end.tolist(), rows, strict=True)
    ]


def _rows_around(trace: Trace, thread: Thread, pieces: Intervals) -> list[int]:
    """The innermost annotation or Python frame that most of each piece is in, -1 for none."""
    around = on_thread(trace, trace.rows(Category.PYTHON_FUNCTION, Category.USER_ANNOTATION), thread)
    owned = ownership(trace.start[around], trace.end[around])
    firsts = np.searchsorted(owned.end, pieces.start, side="right").tolist()
    lasts = np.searchsorted(owned.start, pieces.end).tolist()
    found = []
    for start, end, first, last in zip(pieces.start.tolist(), pieces.end.tolist(), firsts, lasts, strict=True):
        inside: dict[int, int] = defaultdict(int)
        for place in range(first, last):
            inside[int(around[owned.owner[place]])] += min(end, owned.end[place]) - max(start, owned.start[place])
        found.append(max(inside, key=inside.__getitem__, default=-1))
    return found


def _label(names: Sequence[str], index: I32, row: int) -> str:
    return names[index[row]] if row >= 0 and index[row] >= 0 else ""


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
