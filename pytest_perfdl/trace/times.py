"""Times that are none: events without a time, far from all others, without an end, or that outlast what came after."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.trace.annotations import STEP
from pytest_perfdl.trace.arrays import Lookup
from pytest_perfdl.trace.model import (
    DEVICE_CATEGORIES,
    I64,
    LAUNCH_CATEGORIES,
    Category,
    GraphNode,
    Rows,
    Trace,
    subset,
)

OPEN = -1
"""Duration, in nanoseconds, of an event that had not ended when the recording did, until `with_sound_times`."""

_APART_NS = 10 * 10**9
_APART_SPANS = 10
"""Events farther than ten seconds from most others, and than ten times what these last, are of another time."""
_UNSET_APART_NS = 10**9
"""What has time 0 and no duration was never given a time, if others begin over a second later."""
_STRAY_SHARE = 0.01
"""Share of the events beyond which what lies apart is a recording of its own; a few events are none."""
_FEW = 3
_ENOUGH = 10
"""Events of which most say where the recording lies."""
TOGETHER_NS = 10_000
"""By how much an event may outlast one that began after it on its stream: programmatic dependent launches overlap by a
few microseconds, and times may be whole microseconds."""
_LONG = 10
"""How many times as long as the median a step is that cannot have lasted beyond the next one."""
_CALLS = (Category.CPU_OP, *LAUNCH_CATEGORIES)
"""What a step calls, one within the other."""
_CONCURRENT_SHARE = 0.15
"""Share of a stream's events that outlast later ones from which the stream runs several at a time."""
_WAIT_NOISE_NS = 50_000
"""Clocks of host and device that are aligned differ by some microseconds."""
WAITS_FOR_DEVICE = re.compile(r"(cuda|hip)DeviceSynchronize$|(cu|hip)CtxSynchronize$", re.IGNORECASE)
"""Calls that return when a device has done all that it was given."""
_GRAPH = re.compile(r"graph", re.IGNORECASE)


def with_sound_times(trace: Trace) -> Trace:
    """The trace with times that can be: what is changed is counted in its findings.

    *Twice*: device events that are identical, arguments included, are one; where there are some, so are all events.

    *No time*: start 0 and duration 0, while the rest begins over a second later; *strays*: less than `_STRAY_SHARE` of
    the events, far from the rest. Both are kept as events, without duration: a device event at its launching call,
    others just before the first event, where no step, span or path has them.

    *Open*: an event of duration -1 lasts to the end of the event around it on its thread, without one to the last end
    of its thread; a step to the next step; a device event to the next one of its stream, without one to the last end of
    the trace.

    *Outlasting*: a stream runs one event after the other, but for nodes of a graph and the last microseconds before a
    programmatic dependent launch. An event that ends after one that began later is cut where the next one begins. On
    the host a step that lasts `_LONG` times as long as the others ends where the next one begins, and a call within a
    step that goes on after its end for longer than the step lasted ends with what it began in.
    """
    trace, findings = _drop_repeated(trace)
    start, duration = trace.start.copy(), trace.duration.copy()
    stray = _find_strays(start, duration)
    timed = ~stray if stray is not None else np.ones(len(start), dtype=bool)
    if stray is not None:
        _place(trace, start, duration, np.flatnonzero(stray), np.flatnonzero(timed))
        findings.append(
            f"{plural(int(stray.sum()), 'event')} with a time of 0, or far from all others: counted, but without time"
        )
    is_open = np.flatnonzero(timed & (duration == OPEN))
    duration[duration == OPEN] = 0
    if len(is_open):
        _close(trace, start, duration, is_open, np.flatnonzero(timed))
        findings.append(
            f"{plural(len(is_open), 'event')} without an end (duration -1): read as lasting until the event around it "
            "ends"
        )
    cut, name = _cut_steps(trace, start, duration)
    if cut:
        what = plural(cut, "step lasts", "steps last")
        findings.append(f"{what} beyond the next one ({name}): cut where that begins")
    cut, name = _cut_by_steps(trace, start, duration)
    if cut:
        what = plural(cut, "call of the CPU lasts", "calls of the CPU last")
        findings.append(f"{what} far beyond the end of the step ({name}): cut where what it began in ends")
    cut, name = _cut(trace, start, duration, timed)
    if cut:
        findings.append(
            f"{plural(cut, 'device event lasts', 'device events last')} beyond the end of a later one of the stream "
            f"({name}): cut where the next one begins, so the device's times are estimates"
        )
    cut, name = _cut_by_waits(trace, start, duration)
    if cut:
        findings.append(
            f"{plural(cut, 'device event lasts', 'device events last')} beyond the end of a call that waited for the "
            f"device ({name}): cut where that returned"
        )
    if not findings:
        return trace
    findings = [*trace.findings, *findings]
    return replace(trace, start=start, duration=duration, findings=tuple(findings))


def _drop_repeated(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace with every event once, where device events are in it twice; and what is said of that."""
    device = np.flatnonzero(np.isin(trace.category, DEVICE_CATEGORIES))
    if not len(_find_repeated(trace, device)):
        return trace, []
    again = _find_repeated(trace, np.arange(len(trace)))
    text = f"{plural(len(again), 'event')} twice in the file, identical: counted once"
    kept = np.setdiff1d(np.arange(len(trace)), again, assume_unique=True)
    return subset(trace, kept), [text]


def _find_repeated(trace: Trace, rows: Rows) -> Rows:
    """Those of the rows that are equal to an earlier one of them in everything."""
    columns = [column[rows] for column in (trace.start, trace.duration, trace.tid, trace.pid, trace.name)]
    order = np.lexsort((rows, *columns))
    same = np.ones(max(0, len(rows) - 1), dtype=bool)
    for column in columns:
        same &= np.diff(column[order]) == 0
    found, texts = [], set()
    for at in np.flatnonzero(same).tolist():
        if at == 0 or not same[at - 1]:
            texts = {trace.raw_args[rows[order[at]]]}
        row = int(rows[order[at + 1]])
        if trace.raw_args[row] in texts:
            found.append(row)
        texts.add(trace.raw_args[row])
    return np.array(sorted(found), dtype=np.intp)


def _find_strays(start: I64, duration: I64) -> npt.NDArray[np.bool_] | None:
    """Which events have no time, or lie far from the others; `None` without any."""
    if len(start) == 0 or start.max() - start.min() <= _UNSET_APART_NS:
        return None
    unset = (start == 0) & (duration == 0)
    others = start[~unset]
    if len(others) < len(start) / 2 or np.abs(others).min() <= _UNSET_APART_NS:
        unset[:] = False
    order = np.argsort(start, kind="stable")
    order = order[~unset[order]]
    gaps = np.flatnonzero(np.diff(start[order]) > _APART_NS)
    if len(gaps) and len(start) >= _ENOUGH:
        groups = np.split(order, gaps + 1)
        most = max(groups, key=len)
        # Of starts alone: a profiler's own event may last as long as the file.
        span = int(start[most].max() - start[most].min())
        apart = np.setdiff1d(order, most)
        away = np.abs(start[apart] - start[most[0]]).min() > _APART_SPANS * span
        if away and len(apart) <= max(min(_FEW, len(start) / 10), _STRAY_SHARE * len(start)):
            unset[apart] = True
    return unset if unset.any() and not unset.all() else None


def _place(trace: Trace, start: I64, duration: I64, stray: Rows, timed: Rows) -> None:
    """Put events without a time where they are counted and take none."""
    duration[stray] = 0
    start[stray] = start[timed].min() - 1
    calls = np.intersect1d(trace.launch_rows(), timed)
    device, called = _with_calls(trace, np.intersect1d(trace.device_rows(), stray), calls)
    start[device] = start[called]


def _with_calls(trace: Trace, device: Rows, calls: Rows) -> tuple[Rows, Rows]:
    """The rows of ``device`` whose call is among ``calls``, and the first call of each one's correlation."""
    calls = calls[trace.correlation[calls] > 0]
    found = Lookup(trace.correlation[calls], calls).find(trace.correlation[device])
    return device[found >= 0], found[found >= 0]


def _close(trace: Trace, start: I64, duration: I64, is_open: Rows, timed: Rows) -> None:
    """Give open events an end."""
    end = start + duration
    last = int(end[timed].max())
    device = set(np.intersect1d(trace.device_rows(), is_open).tolist())
    closed = np.setdiff1d(timed, is_open)
    steps = trace.matching(STEP.match, np.flatnonzero(trace.category == Category.USER_ANNOTATION))
    for row in is_open.tolist():
        own = closed[(trace.pid[closed] == trace.pid[row]) & (trace.tid[closed] == trace.tid[row])]
        if row in device:
            later = start[own][start[own] > start[row]]
            until = int(later.min(initial=last))
        elif STEP.match(trace.name_of(row)):
            later = steps[(start[steps] > start[row]) & (trace.tid[steps] == trace.tid[row])]
            until = int(start[later].min()) if len(later) else int(end[own].max(initial=start[row]))
        else:
            around = own[(start[own] <= start[row]) & (end[own] > start[row])]
            until = int(end[around].min()) if len(around) else int(end[own].max(initial=start[row]))
        duration[row] = max(0, until - int(start[row]))


def _steps_by_thread(trace: Trace, start: I64) -> Iterator[Rows]:
    """The step annotations of each thread of the host that has some, by time."""
    steps = trace.matching(STEP.match, trace.rows(Category.USER_ANNOTATION))
    steps = steps[np.lexsort((start[steps], trace.tid[steps], trace.pid[steps]))]
    ends = (np.diff(trace.pid[steps]) != 0) | (np.diff(trace.tid[steps]) != 0)
    yield from (own for own in np.split(steps, np.flatnonzero(ends) + 1) if len(own))


def _cut_to(trace: Trace, start: I64, duration: I64, ends: Mapping[int, int]) -> tuple[int, str]:
    """Have events end where they are told to; how many they are, and the longest with its time."""
    if not ends:
        return 0, ""
    longest = max(ends, key=lambda row: int(duration[row]))
    text = f"{trace.name_of(longest)[:60]}: {format_quantity(int(duration[longest]), 'ns')}"
    for row, end in ends.items():
        duration[row] = max(0, end - int(start[row]))
    return len(ends), text


def _cut_steps(trace: Trace, start: I64, duration: I64) -> tuple[int, str]:
    """Cut steps that last far longer than the others, into the next ones; as `_cut_to`."""
    ends: dict[int, int] = {}
    for own in _steps_by_thread(trace, start):
        if len(own) < _FEW:
            continue
        usual = np.median(duration[own])
        # The last one has none behind it.
        own, following = own[:-1], start[own[1:]]
        late = (start[own] + duration[own] > following + TOGETHER_NS) & (duration[own] > _LONG * usual)
        ends |= dict(zip(own[late].tolist(), following[late].tolist(), strict=True))
    return _cut_to(trace, start, duration, ends)


def _cut_by_steps(trace: Trace, start: I64, duration: I64) -> tuple[int, str]:
    """Cut calls of the host that go on after the step that they began in for longer than that lasted; as `_cut_to`.

    They end with the call that they began in, else with the step.
    """
    calls = np.flatnonzero(np.isin(trace.category, _CALLS))
    ends: dict[int, int] = {}
    for own in _steps_by_thread(trace, start):
        inside = calls[(trace.pid[calls] == trace.pid[own[0]]) & (trace.tid[calls] == trace.tid[own[0]])]
        place = np.searchsorted(start[own], start[inside], side="right") - 1
        end = (start[own] + duration[own])[place]
        over = start[inside] + duration[inside] - end
        late = (place >= 0) & (start[inside] < end) & (over > duration[own][place])
        sound = inside[~late]
        for row, until in zip(inside[late].tolist(), end[late].tolist(), strict=True):
            around = sound[(start[sound] <= start[row]) & (start[sound] + duration[sound] > start[row])]
            ends[row] = min(until, int((start[around] + duration[around]).min(initial=until)))
    return _cut_to(trace, start, duration, ends)


def _cut(trace: Trace, start: I64, duration: I64, timed: npt.NDArray[np.bool_]) -> tuple[int, str]:
    """Cut what outlasts its successors; as `_cut_to`."""
    rows = np.flatnonzero(np.isin(trace.category, DEVICE_CATEGORIES) & timed)
    if len(rows) < 2:
        return 0, ""
    order = np.lexsort((start[rows], trace.tid[rows], trace.pid[rows]))
    rows = rows[order]
    same = (np.diff(trace.pid[rows]) == 0) & (np.diff(trace.tid[rows]) == 0)
    end = start[rows] + duration[rows]
    if not (same & (end[:-1] > end[1:] + TOGETHER_NS)).any():
        return 0, ""
    cut: dict[int, int] = {}
    for own in np.split(rows, np.flatnonzero(~same) + 1):
        ends = start[own] + duration[own]
        reach = np.minimum.accumulate(ends[::-1])[::-1]
        outlasting = np.flatnonzero(ends[:-1] > reach[1:] + TOGETHER_NS)
        if not len(outlasting):
            continue
        successors: list[tuple[int, int]] = []
        for place, in_graph in zip(outlasting.tolist(), _in_graph(trace, own[outlasting]).tolist(), strict=True):
            later = own[place + 1 :]
            if in_graph:
                # Nodes of one launch may run side by side; the next launch waits for all of them.
                later = later[trace.correlation[later] != trace.correlation[own[place]]]
            if len(later) and ends[place] > int((start[later] + duration[later]).min()) + TOGETHER_NS:
                successors.append((int(own[place]), int(later[0])))
        if len(successors) > max(_FEW, _CONCURRENT_SHARE * len(own)):
            continue
        cut |= {row: int(start[successor]) for row, successor in successors}
    return _cut_to(trace, start, duration, cut)


def _cut_by_waits(trace: Trace, start: I64, duration: I64) -> tuple[int, str]:
    """Cut what goes on after a call that waited for all that the only device was given; as `_cut_to`."""
    device = np.flatnonzero(np.isin(trace.category, DEVICE_CATEGORIES))
    calls = trace.launch_rows()
    waits = trace.matching(WAITS_FOR_DEVICE.search, calls)
    if not len(device) or not len(waits) or (trace.pid[device] != trace.pid[device[0]]).any():
        return 0, ""
    device, called = _with_calls(trace, device, calls)
    after = np.searchsorted(start[waits], start[called] + duration[called])
    device, after = device[after < len(waits)], after[after < len(waits)]
    returned = (start + duration)[waits][after]
    late = np.flatnonzero(start[device] + duration[device] > returned + _WAIT_NOISE_NS)
    if not len(late) or len(late) > max(_FEW, _CONCURRENT_SHARE * len(device)):
        return 0, ""
    return _cut_to(trace, start, duration, dict(zip(device[late].tolist(), returned[late].tolist(), strict=True)))


def _in_graph(trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which device events are nodes of a graph: by their arguments, or by the call with their correlation."""
    calls = trace.matching(_GRAPH.search, trace.launch_rows())
    named = [bool(each.graph or each.node) for each in trace.decode_args(rows, GraphNode)]
    return np.array(named, dtype=bool) | np.isin(trace.correlation[rows], trace.correlation[calls])
