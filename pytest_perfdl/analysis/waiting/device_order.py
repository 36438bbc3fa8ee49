"""What each device event waited for: its stream's order, its launch, another stream, or something unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.nesting import threads_of
from pytest_perfdl.trace.arrays import Lookup
from pytest_perfdl.trace.model import I64, Category, Rows, Trace, once

Flags = npt.NDArray[np.bool_]

NEVER = -(2**62)
"""A moment before every trace."""

RESIDUAL_NS = 15_000
"""A delay beyond the usual one that is looked into: some five times the jitter of a launch or a kernel gap."""

USUAL_AT_MOST_NS = 20_000
"""No accelerator's launch or kernel gap usually takes longer; a trace of few events must not make its own norm."""

CONTENTION_NS = 60_000
"""A kernel that held the SMs ends at most this long after the one that waited for them has begun: its last blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceOrder:
    """Device events as columns in the order of start, and the order in which each stream runs them.

    A "position" is an index into these columns.
    """

    row: Rows
    """Row in the trace."""
    call: Rows
    """Row of the launching call, -1 if unknown."""
    start: I64
    end: I64
    launched: I64
    """Start of the launching call, `NEVER` if unknown."""
    stream: Rows
    """Number of the stream."""
    previous: Rows
    """Position of the event that ends last of those before it on its stream, -1 for the first."""
    streams: Mapping[tuple[int, int], int]
    """Number of each stream by device and stream id."""
    sequence: tuple[Rows, ...]
    """Positions of each stream's events in the order in which they run."""
    submitted: tuple[I64, ...]
    """Latest launch up to each event of `sequence`: a stream runs in the order of launches."""

    def __len__(self) -> int:
        return len(self.row)

    def last_before(self, stream: int, time: I64) -> Rows:
        """Position of the last event of a stream that was launched before each moment, -1 for none."""
        index = np.searchsorted(self.submitted[stream], time, side="left") - 1
        found: Rows = np.where(index >= 0, self.sequence[stream][np.maximum(index, 0)], -1)
        return found


def by_track(trace: Trace, rows: Rows) -> dict[tuple[int, int], Rows]:
    """Indices into `rows` of the events of each (process, thread) or (device, stream), in the order of `rows`."""
    return {(pid, tid): own for pid, tid, own in threads_of(trace.pid[rows], trace.tid[rows])}


@once
def device_order(trace: Trace) -> DeviceOrder:
    """The device events of a trace as streams."""
    joined = launches(trace)
    row, call = joined.device, joined.call
    end = trace.end[row]
    launched = np.where(call >= 0, trace.start[call], NEVER) if len(row) else np.zeros(0, dtype=np.int64)
    tracks = by_track(trace, row)
    sequence = tuple(tracks.values())
    stream = np.zeros(len(row), dtype=np.intp)
    previous = np.full(len(row), -1, dtype=np.intp)
    for number, own in enumerate(sequence):
        stream[own] = number
        # Streams may overlap themselves (programmatic dependent launch), so the neighbor need not be the last.
        reach = np.maximum.accumulate(end[own])
        previous[own[1:]] = own[np.maximum.accumulate(np.where(end[own] == reach, np.arange(len(own)), 0))][:-1]
    return DeviceOrder(
        row=row,
        call=call,
        start=trace.start[row],
        end=end,
        launched=launched,
        stream=stream,
        previous=previous,
        streams={track: number for number, track in enumerate(tracks)},
        sequence=sequence,
        submitted=tuple(np.maximum.accumulate(launched[own]) for own in sequence),
    )


class SyncArgs(msgspec.Struct, gc=False):
    """What a `cuda_sync` event tells, recorded when the profiler was asked for such events."""

    stream: int = -1
    wait_on_stream: int = -1
    record: int = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    """Correlation of the call that recorded the event waited for."""


@once
def calls_by_correlation(trace: Trace) -> Lookup:
    """Rows of runtime and driver calls by their correlation; of several the earliest."""
    calls = trace.launch_rows()
    calls = calls[trace.correlation[calls] >= 0]
    return Lookup(trace.correlation[calls], calls)


class Wait(IntEnum):
    """What a device event waited for last."""

    NOTHING = 0
    """Nothing known: it was launched earlier than the window, or its launch is not in the trace."""
    STREAM = 1
    LAUNCH = 2
    EVENT = 3
    """Another stream's event, by `Stream Wait Event`."""
    OTHER_STREAM = 4
    """Inferred: it began right after an event of another stream ended."""
    CONTENTION = 5
    """Inferred: it began while the last blocks of another stream's kernel made room."""


@dataclass(frozen=True, slots=True, eq=False)
class Bindings:
    """The constraint of each device event that was satisfied last, one value per position."""

    kind: npt.NDArray[np.int8]
    """As `Wait`."""
    source: Rows
    """Position of the device event waited for; -1 for a launch or nothing."""
    release: I64
    """When the constraint was satisfied, at most the event's start; `NEVER` for nothing."""
    explained: I64
    """Until when the delay after `release` is usual: latency. The rest, if it is long, is unexplained."""
    known: I64
    """When the last constraint that is not inferred was satisfied."""


@once
def bindings(trace: Trace) -> Bindings:
    """Find for each device event what it waited for last.

    Known constraints are the end of the event before it on its stream, the start of its launching call and, where
    the trace has `cuda_sync` events, the end of the last event ahead of the `cudaEventRecord` that its stream
    waits for. Where the event began later after the last of them than `RESIDUAL_NS` plus the usual latency (the
    trace's median, at most `USUAL_AT_MOST_NS`), an event of another stream is inferred: the one that ended last, at
    most `RESIDUAL_NS` before; failing that a kernel of the same device that ran then and ended at most
    `CONTENTION_NS` after (thresholds from replaying public traces).
    """
    order = device_order(trace)
    count, start = len(order), order.start
    launch = np.minimum(order.launched, start)
    stream = np.full(count, NEVER, dtype=np.int64)
    has = order.previous >= 0
    stream[has] = np.minimum(order.end[order.previous[has]], start[has])
    kind = np.full(count, Wait.NOTHING, dtype=np.int8)
    source = order.previous.copy()
    release = np.maximum(launch, stream)
    kind[release > NEVER] = Wait.STREAM
    by_launch = (launch >= stream) & (launch > NEVER)
    kind[by_launch] = Wait.LAUNCH
    source[by_launch] = -1
    event_source, event_release = _latest_event(trace)
    by_event = event_release > release
    kind[by_event], source[by_event] = Wait.EVENT, event_source[by_event]
    release = np.maximum(release, event_release)
    explained = release + np.where(by_launch & ~by_event, _usual(start, release, kind, Wait.LAUNCH), 0)
    explained += np.where(kind == Wait.STREAM, _usual(start, release, kind, Wait.STREAM), 0)
    in_call = kind == Wait.LAUNCH
    # A kernel cannot start sooner than the call gets to it: loading its module on first use happens in there.
    explained[in_call] = np.maximum(explained[in_call], trace.end[order.call[in_call]])
    known = release.copy()
    late = np.flatnonzero(start - explained > RESIDUAL_NS)
    _infer(trace, late, kind, source, release)
    inferred = kind >= Wait.OTHER_STREAM
    explained[inferred] = start[inferred]
    return Bindings(kind, source, release, explained, known)


def _usual(start: I64, release: I64, kind: npt.NDArray[np.int8], wanted: Wait) -> int:
    lag = (start - release)[kind == wanted]
    return min(int(np.median(lag)), USUAL_AT_MOST_NS) if len(lag) else 0


@once
def event_waits(trace: Trace) -> tuple[Rows, Rows]:
    """Positions that wait for an event recorded on another stream, and of the last event ahead of the record.

    Known from `cuda_sync` events only: one pair for each `Stream Wait Event`, in their order; what waits is the next
    event that its stream is given.
    """
    order = device_order(trace)
    waiters, sources = [], []
    rows = trace.matching(lambda name: name == "Stream Wait Event", trace.rows(Category.CUDA_SYNC))
    args = trace.decode_args(rows, SyncArgs)
    calls = calls_by_correlation(trace)
    waiting = calls.find(trace.correlation[rows])
    recorded = calls.find(np.array([arg.record for arg in args], dtype=np.int64))
    for row, arg, wait, record in zip(rows.tolist(), args, waiting.tolist(), recorded.tolist(), strict=True):
        device = int(trace.pid[row])
        ahead = order.streams.get((device, arg.wait_on_stream), -1)
        behind = order.streams.get((device, arg.stream), -1)
        if min(ahead, behind, record) < 0:
            continue
        (before,) = order.last_before(ahead, trace.start[[record]])
        index = int(np.searchsorted(order.submitted[behind], trace.start[wait if wait >= 0 else row], side="right"))
        if before < 0 or index == len(order.sequence[behind]):
            continue
        position = order.sequence[behind][index]
        if before != position:
            waiters.append(int(position))
            sources.append(int(before))
    return np.array(waiters, dtype=np.intp), np.array(sources, dtype=np.intp)


def _latest_event(trace: Trace) -> tuple[Rows, I64]:
    """For each position the event of another stream that it has to wait for longest, and that one's end."""
    order = device_order(trace)
    source = np.full(len(order), -1, dtype=np.intp)
    release = np.full(len(order), NEVER, dtype=np.int64)
    waiters, sources = event_waits(trace)
    for position, before in zip(waiters.tolist(), sources.tolist(), strict=True):
        end = min(int(order.end[before]), int(order.start[position]))
        if end > release[position]:
            release[position], source[position] = end, before
    return source, release


def _infer(trace: Trace, late: Rows, kind: npt.NDArray[np.int8], source: Rows, release: I64) -> None:
    """Look for an event of another stream behind each late start, in place."""
    order = device_order(trace)
    if len(order.sequence) < 2 or len(late) == 0:
        return
    by_end = np.argsort(order.end, kind="stable")
    starts, ends = order.start[by_end], order.end[by_end]
    kernel, device = trace.category[order.row] == Category.KERNEL, trace.pid[order.row]
    start = order.start[late]
    oldest = np.maximum(release[late], start - RESIDUAL_NS - 1)
    last = np.searchsorted(ends, start, side="right") - 1

    # Of its own stream all that began before it have ended, or hold it up already.
    def earlier(which: Rows, at: Rows) -> Flags:
        found: Flags = starts[at] < start[which]
        return found

    def shares(which: Rows, at: Rows) -> Flags:
        same_device: Flags = kernel[by_end[at]] & (device[by_end[at]] == device[late[which]])
        return same_device & earlier(which, at)

    before = _nearest(len(ends), last, -1, lambda which, at: ends[at] > oldest[which], earlier)
    newest = np.where(kernel[late] & (before < 0), start + CONTENTION_NS, NEVER)
    after = _nearest(len(ends), last + 1, 1, lambda which, at: ends[at] <= newest[which], shares)
    for found, wait in ((before, Wait.OTHER_STREAM), (after, Wait.CONTENTION)):
        waits = late[found >= 0]
        source[waits] = by_end[found[found >= 0]]
        release[waits] = np.minimum(order.end[source[waits]], order.start[waits])
        kind[waits] = wait


def _nearest(
    count: int, index: Rows, step: int, near: Callable[[Rows, Rows], Flags], suits: Callable[[Rows, Rows], Flags]
) -> Rows:
    """Where each search, from its index on in steps, first meets what suits while all before is near; else -1.

    Both conditions are asked for many at once: numbers of searches and the index that each has come to.
    """
    found = np.full(len(index), -1, dtype=np.intp)
    which, at = np.arange(len(index)), index
    while len(which):
        inside = (at >= 0) & (at < count)
        which, at = which[inside], at[inside]
        close = near(which, at)
        which, at = which[close], at[close]
        good = suits(which, at)
        found[which[good]] = at[good]
        which, at = which[~good], at[~good] + step
    return found
