"""The longest chain of binding constraints through a trace: what a moment's work had to wait for, and so on back.

`device_order` says what each device event waited for, `waits` what each host thread waited for; here the chain is
walked back from the end, and each stretch of it gets its class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.communication import (
    collective_annotation_rows,
    communication_kernels,
    waits_for_collectives,
)
from pytest_perfdl.analysis.events.intervals import Intervals, Steps
from pytest_perfdl.analysis.events.nesting import Ownership, row_ownership
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import input_rows, on_thread
from pytest_perfdl.analysis.waiting.device_order import (
    RESIDUAL_NS,
    Bindings,
    DeviceOrder,
    Wait,
    bindings,
    device_order,
)
from pytest_perfdl.analysis.waiting.waits import RETURN_NS, HostThread, HostWaits, host_threads, host_waits, span_of
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, once

# The way back through a trace, from constraint to constraint: which events, delays and host work it passes.


_Passed = list[tuple[int, int, int]]
"""Device events, or threads, and from when to when the way back passes each."""


class Walk:
    """The way back, as plain lists: one entry for each device event, delay and run of host work passed."""

    def __init__(self, order: DeviceOrder, bound: Bindings, waiting: HostWaits, span: tuple[int, int]) -> None:
        self.begin, self.end = span
        self.order, self.bound, self.waiting = order, bound, waiting
        self.events: _Passed = []
        self.delays: _Passed = []
        """By the event that each is ahead of."""
        self.runs: _Passed = []
        self.guessed: list[tuple[int, int]] = []
        """Starts and ends of the waits that were inferred."""
        self.launcher = np.maximum(waiting.thread_of_row[order.call], 0).tolist()

    def run(self, event: int, thread: int) -> None:
        """Walk from a device event or a thread at the end to the beginning.

        No wait of a thread is passed twice, and between two waits no event of a stream after an earlier one, so that
        events without a duration cannot lead in a circle.
        """
        order, bound, begin, now = self.order, self.bound, self.begin, self.end
        starts, streams = order.start.tolist(), order.stream.tolist()
        kinds, sources = bound.kind.tolist(), bound.source.tolist()
        releases, known = bound.release.tolist(), bound.known.tolist()
        waits = self.waiting.by_thread
        moments = [wait.release.tolist() for wait in waits]
        left = [len(wait.release) for wait in waits]
        passed = [len(order)] * len(order.sequence)
        while now > begin:
            if event >= 0:
                passed[streams[event]] = event
                start = max(starts[event], begin)
                if start < now:
                    self.events.append((event, start, now))
                    now = start
                if now <= begin:
                    break
                kind, source, release = kinds[event], sources[event], min(releases[event], now)
                if source >= 0 and source >= passed[streams[source]]:
                    event, thread = -1, self.launcher[event]
                    continue
                if kind >= Wait.OTHER_STREAM:
                    self.guessed.append((known[event], now))
                release = max(release, begin)
                if release < now:
                    self.delays.append((event, release, now))
                    now = release
                thread = self.launcher[event]
                event = source if kind != Wait.LAUNCH else -1
                continue
            left[thread] = min(left[thread], bisect_right(moments[thread], now))
            left[thread] -= 1
            at = left[thread]
            if at < 0:
                self.runs.append((thread, begin, now))
                break
            wait = waits[thread]
            release = max(moments[thread][at], begin)
            if release < now:
                self.runs.append((thread, release, now))
                now = release
            if wait.inferred[at]:
                self.guessed.append((int(wait.since[at]), now))
            source = int(wait.event[at])
            event, thread = source, int(wait.thread[at]) if source < 0 else thread


def _columns(passed: _Passed) -> tuple[Rows, I64, I64]:
    """Event or thread, start and end of what was passed, in the order of time."""
    which, start, end = np.array(passed[::-1], dtype=np.int64).reshape(-1, 3).T
    return which, start, end


CLASSES = (
    "compute",
    "communication",
    "copy",
    "kernel gap",
    "launch latency",
    "operator",
    "runtime call",
    "input",
    "synchronization",
    "Python and host",
    "unexplained wait",
)
"""What a stretch of the path is: see `critical_path`."""

(
    _COMPUTE,
    _COMMUNICATION,
    _COPY,
    _KERNEL_GAP,
    _LAUNCH,
    _OPERATOR,
    _CALL,
    _INPUT,
    _SYNC,
    _PYTHON,
    _UNEXPLAINED,
) = range(len(CLASSES))


@dataclass(frozen=True, slots=True)
class PathRow:
    """What one kernel, operator, call or kind of waiting contributes to the path."""

    kind: str
    """One of `CLASSES`."""
    name: str
    """Name of the events; the kind again for stretches without an event."""
    count: int
    """Stretches of the path."""
    total_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """A chain of stretches, one beginning where the other ends, without those between steps."""

    span_ns: int
    """From the first start to the last end without the time between steps; the sum of all stretches."""
    start_ns: I64
    """Start of each stretch, in the order of time."""
    end_ns: I64
    row: Rows
    """The event that each stretch is spent in; -1 for gaps, delays and Python."""
    kind: npt.NDArray[np.int8]
    """Index into `CLASSES` of each stretch."""
    by_class: Mapping[str, int]
    """Nanoseconds of each class, in the order of `CLASSES`; adds up to `span_ns` exactly."""
    by_name: tuple[PathRow, ...]
    """The same by class and name, the longest first."""
    inferred_share: float
    """Share of the span that is attributed as it is because a wait was inferred from times alone, 0 to 1."""
    unexplained_share: float
    """Share of the span that is `unexplained wait`, 0 to 1."""

    def __len__(self) -> int:
        return len(self.start_ns)


@once
def critical_path(trace: Trace) -> CriticalPath:
    """Walk back from the end of a trace, at each point along the constraint that was satisfied last.

    The span is that of `span_of`. By construction the stretches tile it, so that the path's length says nothing; which
    constraints bind does. What lies between steps (`Steps.skipped`) is walked through and left out: its events may not
    be in the trace.

    A device event waits for the one before it on its stream (*kernel gap*), its launching call's start (*launch
    latency*) or another stream's event; a host thread goes on with what it did before, unless it waited: in a
    blocking call, for room in a full launch queue, for its data, for another thread, or polling (see
    `bindings` and `host_waits` for rules and thresholds). Host time is that of the innermost *operator* or *runtime
    call*, *input* inside a DataLoader's annotation, *synchronization* for up to 60 us that a blocking call takes
    to return, and *Python and host* in gaps. On CPU-only traces it is *communication* where the thread waits for
    collectives (`waits_for_collectives`). Delays beyond these are *unexplained wait*; so is what a kernel launched
    before the trace began waited for. Works in O(n log n).
    """
    steps, span = steps_of(trace), span_of(trace)
    if span is None or span[1] <= span[0] or not steps.windows:
        return _assemble(trace, [], Intervals.between(0, 0), Intervals.between(0, 0))
    threads, order, waiting = host_threads(trace), device_order(trace), host_waits(trace)
    walk = Walk(order, bindings(trace), waiting, span)
    walk.run(*_last(steps, threads, order, span[1]))
    parts = [_device_part(trace, walk), _delay_part(walk)]
    own, start, end = _columns(walk.runs)
    for number, thread in enumerate(threads):
        if runs := Intervals.union_of(start[own == number], end[own == number]):
            parts.append(_host_part(trace, thread, runs))
    guesses = np.array(walk.guessed, dtype=np.int64).reshape(-1, 2)
    time = Intervals.between(*span).difference(steps.skipped)
    return _assemble(trace, parts, time, Intervals.union_of(guesses[:, 0], guesses[:, 1]).intersection(time))


def _last(steps: Steps, threads: tuple[HostThread, ...], order: DeviceOrder, end: int) -> tuple[int, int]:
    """Where the walk begins: device event and thread, -1 for the other; what ended last, the steps' thread first."""
    ends = [int(thread.activity.end[-1]) if len(thread.activity) else None for thread in threads]
    annotated = any(window.host_end == end and window.number >= 0 for window in steps.windows)
    if threads and (annotated or ends[0] == end):
        return -1, 0
    if len(order):
        last = np.flatnonzero(order.end == end)
        if len(last):
            return int(last[-1]), -1
    return -1, ends.index(end) if end in ends else 0


_Part = tuple[I64, I64, Rows, Rows]
"""Starts, ends, rows and kinds of stretches."""
_NO_TIME, _NO_ROW = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.intp)


def _device_part(trace: Trace, walk: Walk) -> _Part:
    order = walk.order
    kinds = np.full(len(order), _COPY, dtype=np.intp)
    kinds[trace.category[order.row] == Category.KERNEL] = _COMPUTE
    kinds[communication_kernels(trace)[order.row]] = _COMMUNICATION
    events, start, end = _columns(walk.events)
    return start, end, order.row[events], kinds[events]


def _delay_part(walk: Walk) -> _Part:
    """The delays before device events: as much as is usual, and the rest."""
    order, bound = walk.order, walk.bound
    events, start, end = _columns(walk.delays)
    explained = bound.explained[events]
    explained = np.where(order.start[events] - explained > RESIDUAL_NS, np.clip(explained, start, end), end)
    usual = np.where(bound.kind[events] == Wait.LAUNCH, _LAUNCH, _KERNEL_GAP)
    return (
        np.concatenate((start, explained)),
        np.concatenate((explained, end)),
        np.full(2 * len(events), -1, dtype=np.intp),
        np.concatenate((usual, np.full(len(events), _UNEXPLAINED, dtype=np.intp))),
    )


def _host_part(trace: Trace, thread: HostThread, runs: Intervals) -> _Part:
    """Cut the runs of one thread where another event becomes the innermost, and name the pieces."""
    rows = thread.rows[runs.within(trace.start[thread.rows], trace.end[thread.rows]) > 0]
    annotations = on_thread(trace, input_rows(trace), thread.thread)
    communicating = waits_for_collectives(trace, thread.thread)
    layers = [row_ownership(trace, rows), row_ownership(trace, annotations)]
    if len(communicating):
        layers.append(row_ownership(trace, collective_annotation_rows(trace)))
    changing: tuple[Intervals | Ownership, ...] = (runs, communicating, *layers)
    cuts = np.concatenate([bound for each in changing for bound in (each.start, each.end)])
    cuts = np.sort(cuts, kind="stable")  # runs that are sorted already, which this kind merges
    bounds = cuts[np.flatnonzero(np.diff(cuts, prepend=cuts[:1] - 1))]
    start, end = bounds[:-1], bounds[1:]
    on_path = runs.contains(start)
    start, end = start[on_path], end[on_path]
    owner, waiting = layers[0].at(start), layers[1].at(start)
    kind = np.full(len(start), _PYTHON, dtype=np.intp)
    row = np.where(waiting >= 0, waiting, owner)
    kind[owner >= 0] = np.where(trace.category[owner[owner >= 0]] == Category.CPU_OP, _OPERATOR, _CALL)
    kind[np.isin(owner, host_waits(trace).blocking) & (owner >= 0)] = _SYNC
    kind[waiting >= 0] = _INPUT
    if len(communicating):
        waits = communicating.contains(start)
        kind[waits], row[waits] = _COMMUNICATION, layers[2].at(start)[waits]
    # A blocking call that takes longer waits for something that the trace does not show.
    returns = np.where(kind == _SYNC, np.maximum(start, end - RETURN_NS), start)
    lost = returns > start
    return (
        np.concatenate((start[lost], returns)),
        np.concatenate((returns[lost], end)),
        np.concatenate((row[lost], row)),
        np.concatenate((np.full(int(lost.sum()), _UNEXPLAINED, dtype=np.intp), kind)),
    )


def _assemble(trace: Trace, parts: list[_Part], time: Intervals, guessed: Intervals) -> CriticalPath:
    """The stretches in `time`, of which some are `guessed`."""
    start, end, row, kind = (
        np.concatenate(columns) for columns in zip((_NO_TIME, _NO_TIME, _NO_ROW, _NO_ROW), *parts, strict=True)
    )
    some = np.flatnonzero(end > start)
    some = some[np.argsort(start[some], kind="stable")]
    start, end, row, kind = start[some], end[some], row[some], kind[some]
    if len(time) > 1:
        cuts = np.unique(np.concatenate((start, end, time.start, time.end)))
        pieces = cuts[:-1][time.contains(cuts[:-1])]
        own = np.searchsorted(start, pieces, side="right") - 1
        start, end, row, kind = pieces, cuts[np.searchsorted(cuts, pieces) + 1], row[own], kind[own]
    if len(start):
        changes = (row[1:] != row[:-1]) | (kind[1:] != kind[:-1]) | (start[1:] != end[:-1])
        first = np.concatenate(([True], changes))
        start, row, kind = start[first], row[first], kind[first]
        end = end[np.concatenate((first[1:], [True]))]
    by_class = {name: int((end - start)[kind == code].sum()) for code, name in enumerate(CLASSES)}
    unexplained, span_ns = by_class["unexplained wait"], time.length
    return CriticalPath(
        span_ns=span_ns,
        start_ns=start,
        end_ns=end,
        row=row,
        kind=kind.astype(np.int8),
        by_class=by_class,
        by_name=_by_name(trace, row, kind, end - start),
        inferred_share=guessed.length / span_ns if span_ns else 0.0,
        unexplained_share=unexplained / span_ns if span_ns else 0.0,
    )


def _by_name(trace: Trace, row: Rows, kind: Rows, length: I64) -> tuple[PathRow, ...]:
    names = len(trace.names) + 1
    code = kind * names
    code[row >= 0] += trace.name[row[row >= 0]] + 1
    counts = np.bincount(code)
    totals = np.bincount(code, length)  # sums below 2**53 ns, 104 days, are exact as floats
    rows = []
    for found in np.flatnonzero(counts).tolist():
        label, index = CLASSES[found // names], found % names - 1
        name = trace.names[index] if index >= 0 else label
        rows.append(PathRow(label, name, int(counts[found]), int(totals[found])))
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.kind, row.name)))
