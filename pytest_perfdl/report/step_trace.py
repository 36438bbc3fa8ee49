"""A step of a test as Chrome trace: both sides, the tracks, and the places that the causes of a change point at.

`regression_trace` makes one file of a report, `<name>.diff.json.gz`; `traces` calls it and collects the other files.
`speedscope` draws the same sides (`drawn_sides`) in another format.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pytest_perfdl.analysis.account.accounts import IDLE_CLASSES, idle_time
from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.efficiency.roofline import work_rates
from pytest_perfdl.analysis.events.communication import covered, waits_for_input
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import Thread, is_input, on_thread
from pytest_perfdl.analysis.overview.memory_timeline import device_name
from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.model.errors import ChromeTraceError, TraceError
from pytest_perfdl.model.step_part import is_inside
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report.figures import INPUT, cause_status
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace import Category, Event, Trace, compress, loads, unpack, write
from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.model import I32, I64

# What a trace of both sides says beyond its slices: which belong together, and how the change builds up.
#
# Slices of the two sides are matched by their category, name and the slice around them, in order, where both sides
# have as many of them; that is exact for equal code and leaves out what cannot be told.


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


def add_observed(sides: Sequence[Sequence[Event]], matched: Sequence[Pair]) -> list[list[Event]]:
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


def flow_events(sides: Sequence[Sequence[Event]], matched: Iterable[Pair], first: int) -> Iterator[Event]:
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


def count_lag(sides: Sequence[Sequence[Event]], matched: Sequence[Pair]) -> Iterator[Event]:
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
    windows = steps_of(trace).windows
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


def drawn_gaps(trace: Trace) -> list[Gap]:
    """The idle time of the first step: of its devices, or without device events of its thread."""
    joined = launches(trace)
    steps = steps_of(trace)
    if not steps.windows:
        return []
    origin = steps.windows[0].host_start
    if len(joined.device):
        pieces = steps.window_time(0).difference(covered(trace, joined.device))
        found = idle_time(trace)
        own = np.array(list(found.by_cause.values()))[:, found.window == 0]
        names = [IDLE_CLASSES[place] for place in own.argmax(axis=0).tolist()]
        rows = found.call[found.window == 0].tolist()
    else:
        thread = steps.thread
        pieces = steps.host_time(0).difference(covered(trace, on_thread(trace, trace.rows(Category.CPU_OP), thread)))
        waiting = waits_for_input(trace, thread).within(pieces.start, pieces.end)
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


# The observed step of each side as events on one clock: what the trace of a regression is drawn from.
#
# The steps start at the same time, and everything that the two exemplars hold is kept. Idle time is a thread of its
# side, since the profiler records only what runs.


SideName = Literal["baseline", "current"]
SIDES: tuple[SideName, SideName] = ("baseline", "current")
OBSERVED = "one observed step"
"""What a trace shows of a side, and every name of it says: the changes are measured in many steps, not in this one."""
STEP = "ProfilerStep"
_FIRST_TID = (1, 10_001)
"""Distinct over both processes, since some viewers look a thread up by its id alone."""
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
    trace: Trace
    """The exemplar in columns."""

    @property
    def pid(self) -> int:
        """The process that the side is drawn as."""
        return SIDES.index(self.name) + 1


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
    traces = [_read_step(data, name) for data, name in zip((base, new), SIDES, strict=True)]
    lead = max(_begin(trace) - _first(trace) for trace in traces)
    before, after = (_draw_side(name, trace, lead, title) for name, trace in zip(SIDES, traces, strict=True))
    return before, after


def _read_step(data: bytes, name: SideName) -> Trace:
    try:
        trace = loads(unpack(data, "it"), "it")
        if trace.findings or not len(trace):
            raise TraceError(next(iter(trace.findings), "it has no events"))
    except TraceError as error:
        raise ChromeTraceError(f"the recorded {name} trace is damaged: {error}") from error
    return trace


def _first(trace: Trace) -> int:
    """When the first event begins."""
    return int(min([trace.start.min(), *trace.memory.time[:1]]))


def _begin(trace: Trace) -> int:
    """When the step begins; without a step the first event."""
    steps = trace.start[trace.named(lambda name: name.startswith(STEP))[trace.name]]
    return int(steps.min()) if len(steps) else _first(trace)


def _draw_side(name: SideName, trace: Trace, opens: int, title: str) -> DrawnSide:
    """One side as one process, its threads numbered in the order of their appearance."""
    number = SIDES.index(name)
    pid, shift = number + 1, opens - _begin(trace)
    places = [*trace.thread_names, *_threads(trace.pid, trace.tid), *_threads(trace.memory.pid, trace.memory.tid)]
    threads = {place: _FIRST_TID[number] + at for at, place in enumerate(dict.fromkeys(places))}
    events = [
        Event.process_name(pid, f"{name}, {OBSERVED}: {title}"),
        Event("M", "process_sort_index", pid, 0, args={"sort_index": number}),
    ]
    several = len({process for process, _ in threads}) > 1
    for position, ((process, thread), tid) in enumerate(threads.items()):
        label = trace.thread_names.get((process, thread)) or f"thread {trace.label(thread)}"
        owner = trace.process_names.get(process) or f"process {trace.label(process)}"
        events.append(Event.thread_name(pid, tid, f"{owner}: {label}" if several else label))
        events.append(Event("M", "thread_sort_index", pid, tid, args={"sort_index": position}))
    first = len(events)
    columns = (trace.start + shift, trace.duration, trace.category)
    times = zip(*(column.tolist() for column in columns), _threads(trace.pid, trace.tid), strict=True)
    for row, (start, duration, category, thread) in enumerate(times):
        args = _own_correlation(trace.args(row), number) or None
        kind = trace.categories[category]
        events.append(Event("X", trace.name_of(row), pid, threads[thread], start, duration, kind, args))
    events += _memory_events(trace, shift, pid, threads)
    modules = {first + row: module for row, module in _modules(trace).items()}
    gaps = drawn_gaps(trace)
    events += idle(gaps, opens, pid, _FIRST_TID[number] + _IDLE_TID)
    of_gaps = {len(events) - len(gaps) + place: gap for place, gap in enumerate(gaps)}
    modules |= {place: gap.module for place, gap in of_gaps.items() if gap.module}
    return DrawnSide(name, events, opens, of_gaps, modules, trace)


def _threads(pid: I64, tid: I64) -> list[tuple[int, int]]:
    return list(zip(pid.tolist(), tid.tolist(), strict=True))


def _memory_events(trace: Trace, shift: int, pid: int, threads: Mapping[tuple[int, int], int]) -> Iterator[Event]:
    """The profiler's `[memory]` events, and what the allocator of each device holds as counters."""
    memory = trace.memory
    fields = {
        "Addr": memory.address,
        "Bytes": memory.bytes,
        "Device Id": memory.device_id,
        "Device Type": memory.device_type,
        "Total Allocated": memory.allocated,
        "Total Reserved": memory.reserved,
    }
    for at, thread in enumerate(_threads(memory.pid, memory.tid)):
        args = {name: int(column[at]) for name, column in fields.items()}
        time = int(memory.time[at]) + shift
        yield Event("i", "[memory]", pid, threads[thread], time, category="cpu_instant_event", args=args)
        device, total = device_name(args["Device Type"], args["Device Id"]), args["Total Allocated"]
        yield Event("C", f"memory {device}", pid, 0, time, args={"bytes": total})


def _modules(trace: Trace) -> dict[int, str]:
    """The module of each row that is in one; empty for rows of the backward pass whose module is not known."""
    if not steps_of(trace).windows:
        return {}
    marks = labels(trace)
    rows = np.flatnonzero((marks.module >= 0) | (marks.phase == PHASES.index("backward"))).tolist()
    return {row: _label(marks.modules, marks.module, row) for row in rows}


def _own_correlation(args: dict[str, Any], number: int) -> dict[str, Any]:
    """Arguments with a correlation that the other side does not have: tools join launches and kernels on it."""
    correlation = args.get("correlation")
    if not isinstance(correlation, int) or correlation <= 0:
        return args
    return {**args, "correlation": correlation * len(SIDES) + number}


# Which slices of an observed step belong to which cause of the page, and how much they are made to stand out.
#
# A slice belongs to one cause or to none. What is said of the change is the cause's: it is measured in many steps, and
# the page has the same numbers.


LEAST_SHARE = 0.02
"""Causes of less than this part of the step's change have no color and no number in their name."""
MOST = 0.5
"""The fewest causes that make more than this part of a slowdown are its largest ones."""
_ANNOTATION = "user_annotation"
_CATEGORIES: Mapping[str, frozenset[str]] = {
    "operator": frozenset({"cpu_op"}),
    "kernel": DEVICE,
    "line": frozenset({"python_function"}),
    "module": frozenset({_ANNOTATION}),
}
_OUTSIDE = frozenset({IDLE, _ANNOTATION, "python_function"})
_LISTED = 5
"""Causes in a module that its slices name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What makes a change large: a color says nothing else."""

    least: float
    """Smaller changes have no color, nanoseconds either way."""
    largest: float
    """The least of the slowdowns that together make most of it, nanoseconds."""

    @classmethod
    def of(cls, causes: Sequence[Cause]) -> Sizes:
        """The sizes among the causes of one call."""
        deltas = [cause.delta_ns for cause in causes]
        slower = sorted((ns for ns in deltas if ns > 0), reverse=True)
        known = [abs(cause.delta_ns / cause.share) for cause in causes if cause.share and math.isfinite(cause.share)]
        change = known[0] if known else max(sum(slower), -sum(ns for ns in deltas if ns < 0))
        made, largest = 0, math.inf
        for ns in slower:
            if made > MOST * sum(slower):
                break
            made, largest = made + ns, ns
        return cls(LEAST_SHARE * change, largest)

    def matters(self, delta_ns: float) -> bool:
        """Whether a change is large enough to stand out."""
        return delta_ns != 0 and abs(delta_ns) >= self.least

    def color(self, delta_ns: float) -> str | None:
        """The reserved color name of chrome://tracing for a change."""
        if not self.matters(delta_ns):
            return None
        return "good" if delta_ns < 0 else "terrible" if delta_ns >= self.largest else "bad"


def slices_of_causes(sides: Sequence[DrawnSide], causes: Sequence[Cause]) -> list[dict[int, Cause]]:
    """For both sides the cause of each slice that belongs to one, by place.

    An operator or a kernel is found by its name, idle time in the gaps of its class or its annotation, Python's time
    in the annotation or the gaps where its function can be. Of these the ones in the cause's module are its, where
    there are some.
    """
    named = {(cause.kind, cause.name) for cause in causes}
    indices = [_by_name(side) for side in sides]
    found: list[dict[int, Cause]] = [{}, {}]
    for members in (False, True):
        for cause in causes:
            names = {each for each in cause.members if (cause.kind, each) not in named} if members else {cause.name}
            if not names or (members and cause.kind == "idle"):
                continue
            is_of = _idle_test(cause, sides) if cause.kind == "idle" else None
            for side, index, own in zip(sides, indices, found, strict=True):
                if is_of is None:
                    places = _find_named(index, cause, names)
                else:
                    places = [place for place in _outside_operators(side) if is_of(side, place)]
                for place in _in_module(side, places, cause.module):
                    own.setdefault(place, cause)
    return found


def about_cause(cause: Cause) -> dict[str, Any]:
    """What a slice says of its cause: the page's own numbers, nanoseconds per step."""
    said = {
        "cause": cause.name,
        "base_ns": cause.base_ns,
        "new_ns": cause.new_ns,
        "delta_ns": cause.delta_ns,
        "share": cause.share,
        "verdict": verdict(cause),
    }
    return said if cause.certain else {**said, "certain": False}


def causes_in(event: Event, causes: Iterable[Cause]) -> list[Cause]:
    """The causes in the module whose forward pass a slice is, largest first; none of other slices.

    A cause in all blocks, `GPT.h.*.mlp`, is in each of them.
    """
    module = _module_of(event)
    if not module:
        return []
    outer = [(cause, _as_deep(cause.module, module)) for cause in causes]
    # An empty path holds every module.
    inside = [cause for cause, path in outer if path and is_inside(module, path)]
    return sorted(inside, key=lambda cause: -abs(cause.delta_ns))


def about_module(event: Event, causes: Sequence[Cause]) -> dict[str, Any]:
    """What a module's slice says of the causes in it: their sum, and the largest of them."""
    module = _module_of(event)
    shares = [cause.share for cause in causes]
    listed = [cause.name for cause in causes[:_LISTED]]
    more = len(causes) - len(listed)
    said = {
        "causes": ", ".join(listed) + (f" and {more} more" if more else ""),
        "causes_delta_ns": sum(cause.delta_ns for cause in causes),
        "causes_share": None if None in shares else sum(share for share in shares if share is not None),
    }
    others = sorted({_as_deep(cause.module, module) for cause in causes} - {module})
    # Causes of several blocks are measured in all of them together.
    return {**said, "causes_in": ", ".join(others)} if others else said


def suffix(cause: Cause) -> str:
    """What the name of its slices ends with, " (new, +7.164 ms/step)"."""
    status = cause_status(cause)
    word = "" if status == "changed" else f"{status}, "
    return f" ({word}{format_quantity(cause.delta_ns, 'ns', signed=True)}/step)"


def verdict(cause: Cause) -> str:
    """The cause in one word: slower, faster, new, gone; "changed" where only its count did."""
    status = cause_status(cause)
    if status != "changed":
        return status
    return "slower" if cause.delta_ns > 0 else "faster" if cause.delta_ns < 0 else "changed"


def _module_of(event: Event) -> str:
    """The module whose forward pass a slice is; empty for other slices."""
    is_module = event.category == _ANNOTATION and event.name.startswith(MODULE)
    return event.name.removeprefix(MODULE) if is_module else ""


def _as_deep(module: str, like: str) -> str:
    """The first levels of a module's path, as many as another has; empty where it has fewer."""
    levels, depth = module.split("."), like.count(".") + 1
    return ".".join(levels[:depth]) if depth <= len(levels) else ""


def _in_module(side: DrawnSide, places: list[int], module: str) -> list[int]:
    """Those of the slices that are in a module or, being of the backward pass, may be; all if none is in it."""
    known = {place: side.modules[place] for place in places if place in side.modules}
    if not module or not any(is_inside(each, module) for each in known.values()):
        return places
    return [place for place, each in known.items() if not each or is_inside(each, module)]


_Test = Callable[[DrawnSide, int], bool]


_Index = Mapping[tuple[str, str], Sequence[int]]
"""Places of slices by category and name."""


def _by_name(side: DrawnSide) -> _Index:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, event in enumerate(side.events):
        if event.phase == "X":
            found[event.category, event.name].append(place)
    return found


def _find_named(index: _Index, cause: Cause, names: Iterable[str]) -> list[int]:
    """The slices of operators, kernels, functions or modules of these names."""
    prefix = MODULE if cause.kind == "module" else ""
    keys = ((category, prefix + name) for category in _CATEGORIES[cause.kind] for name in names)
    return sorted(place for key in keys for place in index.get(key, ()))


def _outside_operators(side: DrawnSide) -> list[int]:
    """Where idle time can be: gaps, annotations and functions of Python."""
    return [place for place, event in enumerate(side.events) if event.category in _OUTSIDE and event.phase == "X"]


def _idle_test(cause: Cause, sides: Sequence[DrawnSide]) -> _Test:
    if cause.name == INPUT:
        return _is_waiting

    def is_of(side: DrawnSide, place: int) -> bool:
        if (gap := side.gaps.get(place)) is not None:
            return (gap.function or gap.name) == cause.name
        return side.events[place].name == cause.name

    frame = FRAME.match(cause.name)
    if frame is None or any(is_of(side, place) for side in sides for place in _outside_operators(side)):
        return is_of
    return _function_test(cause, frame["function"], sides)


def _is_waiting(side: DrawnSide, place: int) -> bool:
    """Whether a slice is the wait for the next batch: its annotation, or the idle time that most of is this."""
    event = side.events[place]
    return event.name == INPUT if place in side.gaps else event.category == _ANNOTATION and is_input(event.name)


def _function_test(cause: Cause, function: str, sides: Sequence[DrawnSide]) -> _Test:
    """Where a function that a stack pass named can be in a step without Python frames.

    It is in the annotation that is named after it, "Optimizer.step#AdamW.step", else in Python's time outside of all;
    of a cause in no module, in Python's time outside of modules.
    """

    def is_named_after(name: str) -> bool:
        return re.split(r"[.#]", name)[-1] == function

    annotations = {
        event.name
        for side in sides
        for event in side.events
        if event.category == _ANNOTATION and not event.name.startswith(MODULE) and is_named_after(event.name)
    }

    def is_of(side: DrawnSide, place: int) -> bool:
        gap = side.gaps.get(place)
        if gap is None:
            return side.events[place].category == _ANNOTATION and side.events[place].name in annotations
        if annotations:
            return gap.function in annotations
        return gap.name == PYTHON and not gap.function and (bool(cause.module) or not gap.module)

    return is_of


# Both sides' steps in one Chrome trace: what a regression looks like in Perfetto.
#
# The baseline's step and the current one become two processes whose steps start at the same time. Slices of the page's
# causes carry the cause's numbers on both sides; what the observed step says by itself is in arguments that are called
# "observed". `drawn_sides` reads the exemplars, `slices_of_causes` finds the cause of a slice, `flow_events`,
# `count_lag` and `idle` add arrows, counters and idle time.


_COUNTED = frozenset({"cpu_op", "python_function"}) | DEVICE
"""Categories over which the change accumulates: annotations span what is inside them and would count it twice."""


@dataclass(frozen=True, slots=True)
class RegressionTrace:
    """Both sides' steps in one trace."""

    data: bytes
    """Gzip-compressed; equal input gives equal bytes."""
    selected: Event | None
    """The slice with the largest part in the first cause, which a viewer shows first; `None` without causes."""


def regression_trace(result: Result, call: str, sides: Sequence[DrawnSide], causes: Sequence[Cause]) -> RegressionTrace:
    """Both sides in one trace.

    Parameters
    ----------
    causes
        The causes of the test, in the order in which the page has them.

    Raises
    ------
    ChromeTraceError
        When the sides hold what cannot be written.
    """
    try:
        return _draw(result, call, sides, [cause for cause in causes if cause.call == call])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ChromeTraceError(f"the recorded traces cannot be combined: {error}") from error


def _draw(result: Result, call: str, sides: Sequence[DrawnSide], causes: Sequence[Cause]) -> RegressionTrace:
    drawn = [side.events for side in sides]
    matched = pairs(drawn)
    owned = slices_of_causes(sides, causes)
    sizes = Sizes.of(causes)
    marked = [
        [_mark(event, own.get(place), causes, sizes, number == 1) for place, event in enumerate(events)]
        for number, (events, own) in enumerate(zip(add_observed(drawn, matched), owned, strict=True))
    ]
    events = [event for side in marked for event in side]
    events += count_lag(drawn, [pair for pair in matched if drawn[1][pair[1]].category in _COUNTED])
    flows = 1 + max((event.flow for event in events if event.flow is not None), default=-1)
    events += flow_events(drawn, _pairs_of_causes(matched, owned[1], causes), flows)
    for side in sides:
        events += busy(side.events)
        events += work(side.trace, side.opens, side.pid)
    place = _select(sides, matched, owned, causes)
    selected = marked[place[0]][place[1]] if place else None
    about = {"test": visible(result.id), "call": visible(call), "verdict": result.judgement.verdict}
    shown = {} if selected is None else {"selected": _address(selected)}
    return RegressionTrace(compress(write(None, events, {"perfdl": about | shown})), selected)


def _mark(event: Event, cause: Cause | None, causes: Sequence[Cause], sizes: Sizes, is_current: bool) -> Event:
    """The event with its cause's numbers; only what is slower now, or is gone, stands out on its side."""
    if event.phase != "X":
        return event
    if cause is None:
        inside = causes_in(event, causes)
        if not inside:
            return event
        said, name = about_module(event, inside), ""
        delta: int = said["causes_delta_ns"]
    else:
        said, name, delta = about_cause(cause), suffix(cause), cause.delta_ns
    marked = replace(event, args={**(event.args or {}), **said})
    if not sizes.matters(delta) or not (is_current or (cause is not None and cause_status(cause) == "gone")):
        return marked
    return replace(marked, name=event.name + name, color=sizes.color(delta))


def _pairs_of_causes(
    matched: Sequence[tuple[int, int]], owned: Mapping[int, Cause], causes: Sequence[Cause]
) -> list[tuple[int, int]]:
    """The matched slices of causes, those of the first cause first."""
    order = {id(cause): number for number, cause in enumerate(causes)}
    found = [(order[id(owned[pair[1]])], pair) for pair in matched if pair[1] in owned]
    return [pair for _, pair in sorted(found)]


def _select(
    sides: Sequence[DrawnSide],
    matched: Sequence[tuple[int, int]],
    owned: Sequence[Mapping[int, Cause]],
    causes: Sequence[Cause],
) -> tuple[int, int] | None:
    """Side and place of the slice with the largest part in the first cause that has slices.

    It is one of the current step, and of the baseline where the cause is gone; rather than a gap it is what runs.
    """
    before = {new: sides[0].events[base].duration_ns for base, new in matched}
    for cause in causes:
        number = 0 if cause_status(cause) == "gone" else 1
        own = [place for place, each in owned[number].items() if each is cause]
        if own:
            events = sides[number].events
            taken = before if number == 1 and cause.delta_ns > 0 else {}
            lost = {place: events[place].duration_ns - taken.get(place, 0) for place in own}
            running = [place for place in own if place not in sides[number].gaps]
            return number, max(running or own, key=lambda place: (lost[place], -place))
    return None


def _address(event: Event) -> dict[str, object]:
    """What finds a slice again among the events; times in nanoseconds."""
    return {
        "name": event.name,
        "pid": event.pid,
        "start_ns": event.start_ns,
        "duration_ns": event.duration_ns,
    }
