"""The tasks of host threads: their time cut into pieces of the innermost event, with the waiting taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.nesting import nesting_order, ownership
from pytest_perfdl.analysis.events.threads import input_rows, on_thread
from pytest_perfdl.analysis.waiting.device_order import NEVER
from pytest_perfdl.analysis.waiting.host_timeline import HostThread
from pytest_perfdl.analysis.waiting.waits import WaitReason, Waits
from pytest_perfdl.trace.model import I64, Category, Rows
from pytest_perfdl.whatif.from_trace.analyses import TraceEvidence
from pytest_perfdl.whatif.model import TaskKind

COLLECTIVE = -1
"""Stands beside the values of `WaitReason`: the thread waited for a collective that ran on another thread."""


@dataclass(frozen=True, slots=True, eq=False)
class ThreadWaits:
    """The waits of a thread in the order in which they end, none overlapping another; and calls that might wait."""

    since: I64
    until: I64
    """When the thread went on: where the call returned, or where what was waited for was there."""
    release: I64
    """When what it waited for was there."""
    cause: Rows
    """As `WaitReason`, or `COLLECTIVE`."""
    event: Rows
    """Position of the device event waited for, row of the collective, or -1."""
    thread: Rows
    """Index of the thread waited for, or -1."""
    call: Rows
    """Row of the waiting call, -1 in gaps."""
    inferred: np.typing.NDArray[np.bool_]
    idle_call: Rows
    """Rows of synchronizing calls that found nothing to wait for."""
    idle_at: I64
    """When they would have gone on."""


@dataclass(frozen=True, slots=True, eq=False)
class ThreadTasks:
    """The tasks of one thread in their order."""

    start: I64
    end: I64
    kind: Rows
    """As `TaskKind`."""
    row: Rows
    wait: Rows
    """Index into `ThreadWaits` of what a RETURN waited for; that of an idle call counts on from there; else -1."""

    def at(self, time: I64) -> Rows:
        """The last task that starts at each moment; before it, where none does; the first before all."""
        return np.maximum(np.searchsorted(self.start, time, side="right") - 1, 0)

    def ended_by(self, time: I64) -> Rows:
        """The task that ended at each moment, the first of several; without one the last before it, -1 for none."""
        place = np.searchsorted(self.end, time, side="left")
        exact = (place < len(self.end)) & (np.append(self.end, 0)[place] == time)
        found: Rows = np.where(exact, place, place - 1)
        return found


def thread_waits(found: TraceEvidence, number: int) -> ThreadWaits:
    """The waits that `host_waits` found, fit to be taken out of a thread's time.

    A wait in a blocking call lasts until the call returns, which is the latency of the return; others until what
    they waited for was there. A wait begins after the launches inside it and after the end of the one before.
    """
    trace = found.trace
    waits: Waits = found.waiting.by_thread[number]
    since, until, release = waits.since.copy(), waits.release.copy(), waits.release
    cause, event = waits.cause.astype(np.intp), waits.event
    in_call = (waits.call >= 0) & np.isin(waits.call, found.waiting.blocking)
    until[in_call] = np.maximum(until[in_call], trace.end[waits.call[in_call]])
    thread, call, inferred = waits.thread, waits.call, waits.inferred
    for its_cause, more in _more_waits(found, number, call):
        begins, ends, events, calls = more
        none = np.full(len(begins), -1, dtype=np.intp)
        since, until, release = (np.concatenate(pair) for pair in ((since, begins), (until, ends), (release, ends)))
        cause, event = np.concatenate((cause, none * 0 + its_cause)), np.concatenate((event, events))
        thread, call = np.concatenate((thread, none)), np.concatenate((call, calls))
        inferred = np.concatenate((inferred, np.full(len(begins), its_cause == COLLECTIVE)))
    launched = _launch_starts(found, number)
    inside = np.searchsorted(launched, release, side="left") - 1
    since = np.where(inside >= 0, np.maximum(since, launched[np.maximum(inside, 0)]), since) if len(launched) else since
    later = np.searchsorted(launched, until, side="left") > np.searchsorted(launched, release, side="left")
    until[later] = release[later]
    order = np.lexsort((since, until))
    since, until, release = since[order], until[order], release[order]
    since = np.minimum(np.maximum(since, np.concatenate(([NEVER], until[:-1]))[: len(until)]), until)
    sync = np.unique(found.waiting.sync_call)
    idle = sync[(found.waiting.thread_of_row[sync] == number) & ~np.isin(sync, call)]
    # A call that frees memory waits first and works then; one that only synchronizes returns when it has waited.
    idle_at = np.where(np.isin(idle, found.waiting.blocking), trace.end[idle], trace.start[idle])
    taken = Intervals.union_of(since, until)
    free = ~taken.contains(idle_at) | np.isin(idle_at, since)
    return ThreadWaits(
        since=since,
        until=until,
        release=release,
        cause=cause[order],
        event=event[order],
        thread=thread[order],
        call=call[order],
        inferred=inferred[order],
        idle_call=idle[free],
        idle_at=idle_at[free],
    )


def _more_waits(found: TraceEvidence, number: int, known: Rows) -> list[tuple[int, tuple[I64, I64, Rows, Rows]]]:
    """Waits that `host_waits` does not have: cause; since, until, what for, and the calls."""
    call, before, released = found.queue_wait
    own = (found.waiting.thread_of_row[call] == number) & ~np.isin(call, known)
    more = [(int(WaitReason.QUEUE), (found.trace.start[call[own]], released[own], before[own], call[own]))]
    if number == 0:
        begins, ends, rows = found.collective_wait
        more.append((COLLECTIVE, (begins, ends, rows, np.full(len(rows), -1, dtype=np.intp))))
    return more


def _launch_starts(found: TraceEvidence, number: int) -> I64:
    calls = found.order.call[found.order.call >= 0]
    return np.unique(found.trace.start[calls[found.waiting.thread_of_row[calls] == number]])


def thread_tasks(found: TraceEvidence, number: int, waits: ThreadWaits, cuts: I64) -> ThreadTasks:
    """Cut one thread into tasks: at every event's bounds, every launch, wait and step, and at `cuts`.

    A wait leaves two tasks without duration: WAIT where it began, RETURN where the thread went on.
    """
    trace, thread = found.trace, found.threads[number]
    rows = np.concatenate((thread.rows, on_thread(trace, input_rows(trace), thread.thread)))
    rows = rows[nesting_order(trace.start[rows], trace.end[rows])]
    owned = ownership(trace.start[rows], trace.end[rows])
    bounds = [*_bounds(found, number, thread), *(waits.since[waits.since > NEVER]), *waits.until]
    if not bounds:
        nothing = np.zeros(0, dtype=np.int64)
        return ThreadTasks(nothing, nothing, *(nothing.astype(np.intp) for _ in range(3)))
    low, high = min(bounds), max(bounds)
    marks = (owned.start, owned.end, _launch_starts(found, number), cuts, waits.idle_at, np.array(bounds))
    cut = np.unique(np.clip(np.concatenate(marks), low, high))
    start, end = cut[:-1], cut[1:]
    working = ~Intervals.union_of(waits.since, waits.until).contains(start)
    start, end = start[working], end[working]
    place = owned.at(start)
    row = np.where(place >= 0, rows[place], -1) if len(rows) else np.full(len(start), -1, dtype=np.intp)
    kind = np.full(len(row), TaskKind.GAP, dtype=np.intp)
    category = trace.category[row]
    kind[row >= 0] = np.where(category == Category.CPU_OP, TaskKind.OPERATOR, TaskKind.CALL)[row >= 0]
    kind[(row >= 0) & (category == Category.USER_ANNOTATION)] = TaskKind.INPUT
    count = len(waits.since)
    begun = np.flatnonzero(waits.since > NEVER)
    times = np.concatenate((waits.since[begun], waits.until, waits.idle_at))
    ranks = np.concatenate((2 * begun, 2 * np.arange(count) + 1, 2 * count + np.arange(len(waits.idle_at))))
    returns = np.concatenate((np.arange(count), count + np.arange(len(waits.idle_at))))
    number_of = np.concatenate((np.full(len(begun), -1, dtype=np.intp), returns, np.full(len(start), -1)))
    kinds = np.concatenate((np.full(len(begun), TaskKind.WAIT), np.full(len(returns), TaskKind.RETURN), kind))
    its_row = np.concatenate((waits.call[begun], waits.call, waits.idle_call, row))
    starts, ends = np.concatenate((times, start)), np.concatenate((times, end))
    ranks = np.concatenate((ranks, np.full(len(start), np.iinfo(np.int64).max)))
    order = np.lexsort((ranks, starts))
    return ThreadTasks(
        starts[order],
        ends[order],
        kinds[order].astype(np.intp),
        its_row[order].astype(np.intp),
        number_of[order].astype(np.intp),
    )


def _bounds(found: TraceEvidence, number: int, thread: HostThread) -> list[int]:
    """Moments that a thread reaches at least: its activity, and on the steps' thread the steps."""
    bounds = [int(thread.activity.start[0]), int(thread.activity.end[-1])] if len(thread.activity) else []
    if number == 0:
        for window in found.steps.windows:
            if window.number >= 0:
                bounds += [window.host_start, window.host_end]
        setup = found.steps.setup
        bounds += [*setup.start.tolist(), *setup.end.tolist()]
    return bounds


def joined_at(found: TraceEvidence, waits: tuple[ThreadWaits, ...], number: int) -> I64:
    """Moments at which other threads wait for this one, and collectives begin: where it has to be cut."""
    moments = [each.release[(each.cause == WaitReason.JOIN) & (each.thread == number)] for each in waits]
    if number == 0:
        moments += [found.trace.start[rows] for rows in found.channels]
    return np.concatenate([np.zeros(0, dtype=np.int64), *moments])
