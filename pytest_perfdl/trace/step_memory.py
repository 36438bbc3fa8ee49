"""Transfers the memory events of a step to the trace of another run of the same step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.exemplar import LIMIT, unpack
from pytest_perfdl.trace.model import I64, Category, Rows, Trace
from pytest_perfdl.trace.reader import loads
from pytest_perfdl.trace.writer import Event, append, compress

_CPU = 0
"""c10::DeviceType of the host."""

_Thread = tuple[int, int]
"""Process and thread."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """Times of one thread of the one step, and of the same moments in the other."""

    pid: int
    tid: int
    """In the other step."""
    times: I64
    others: I64


def with_memory(picture: bytes, trace: Trace, step: int, held: int, *, limit: int = LIMIT) -> bytes | None:
    """An exemplar with the `[memory]` events of the same step, from another trace that recorded memory.

    Recording memory distorts times, so that the trace whose times count holds none. Both ran the same operators: an
    event between two moments of these, starts and ends on its own thread, lies as far between them in the exemplar.
    Addresses are small numbers in the order of their first use.

    Parameters
    ----------
    picture
        What `exemplar` returned.
    trace, step
        The trace with memory, and which of its steps.
    held
        Bytes that the host held when the step began: the profiler counts the host's memory from its own start. A
        device's allocator knows its total.
    limit
        Bytes that the result may have, compressed.

    Returns
    -------
    bytes or None
        The compressed trace; `None` when the two steps ran different operators, there are no memory events, or the
        result would be too large.

    Raises
    ------
    TraceError
        When the exemplar cannot be read.
    """
    text = unpack(picture, "the trace of the step")
    own = loads(text, "the trace of the step")
    annotations, _ = step_annotations(own)
    if not len(annotations):
        raise TraceError("the trace of the step has no step annotation")
    opened, _ = step_annotations(trace)
    clocks = _clocks(own, int(annotations[0]), trace, int(opened[step]))
    if clocks is None:
        return None
    events = list(_events(trace, int(opened[step]), clocks, held))
    try:
        data = compress(append(text, events))
    except ValueError as error:
        raise TraceError(f"the trace of the step: {error}") from None
    return data if events and len(data) <= limit else None


def _clocks(own: Trace, annotation: int, trace: Trace, opened: int) -> dict[_Thread, _Clock] | None:
    """How times translate, by the trace's threads; `None` where the operators of a thread are not the exemplar's."""
    theirs = _threads(own, annotation)
    found = {}
    for thread, rows in _threads(trace, opened).items():
        same = next((key for key, other in theirs.items() if _names(own, other) == _names(trace, rows)), None)
        if same is None:
            return None
        others = theirs.pop(same)
        times = np.concatenate((_moments(trace, rows), _moments(trace, np.array([opened]))))
        answers = np.concatenate((_moments(own, others), _moments(own, np.array([annotation]))))
        order = np.lexsort((answers, times))
        found[thread] = _Clock(*same, times[order], np.maximum.accumulate(answers[order]))
    return None if theirs else found


def _threads(trace: Trace, annotation: int) -> dict[_Thread, Rows]:
    """The operators of the step by host thread, in the order of time, the outer before the inner."""
    rows = trace.rows(Category.CPU_OP)
    rows = rows[(trace.start[rows] >= trace.start[annotation]) & (trace.start[rows] < trace.end[annotation])]
    rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows]))]
    threads = np.stack((trace.pid[rows], trace.tid[rows]), axis=1)
    found = dict.fromkeys(map(tuple, threads.tolist()))
    return {thread: rows[(threads == thread).all(axis=1)] for thread in found}


def _names(trace: Trace, rows: Rows) -> list[str]:
    return [trace.name_of(row) for row in rows.tolist()]


def _moments(trace: Trace, rows: Rows) -> I64:
    return np.concatenate((trace.start[rows], trace.end[rows]))


def _events(trace: Trace, opened: int, clocks: dict[_Thread, _Clock], held: int) -> Iterator[Event]:
    memory = trace.memory
    inside = np.flatnonzero((memory.time >= trace.start[opened]) & (memory.time < trace.end[opened]))
    if not clocks or not len(inside) or (memory.allocated[inside] < 0).any():
        return
    step = clocks.get((int(trace.pid[opened]), int(trace.tid[opened])), next(iter(clocks.values())))
    host = inside[memory.device_type[inside] == _CPU]
    shift = held - int(memory.allocated[host[0]] - memory.bytes[host[0]]) if len(host) else 0
    addresses: dict[int, int] = {}
    latest = 0
    for event in inside.tolist():
        clock = clocks.get((int(memory.pid[event]), int(memory.tid[event])), step)
        # Totals are in the order of events: of two threads none may overtake the other.
        latest = max(latest, round(float(np.interp(memory.time[event], clock.times, clock.others))))
        kind = int(memory.device_type[event])
        yield Event(
            "i",
            "[memory]",
            clock.pid,
            clock.tid,
            start_ns=latest,
            category="cpu_instant_event",
            args={
                "Addr": addresses.setdefault(int(memory.address[event]), len(addresses) + 1),
                "Bytes": int(memory.bytes[event]),
                "Device Id": int(memory.device_id[event]),
                "Device Type": kind,
                "Total Allocated": int(memory.allocated[event]) + (shift if kind == _CPU else 0),
                "Total Reserved": int(memory.reserved[event]),
            },
        )
