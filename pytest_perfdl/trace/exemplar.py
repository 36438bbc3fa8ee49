"""One step of a trace, small enough to store with a baseline, and another run's memory events on its times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import collective_names
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.model import DEVICE_CATEGORIES, I64, LAUNCH_CATEGORIES, Category, Rows, Trace
from pytest_perfdl.trace.reader import loads
from pytest_perfdl.trace.writer import Event, append, compress, write

# Extracts one step of a trace, small enough to store with a baseline.


LIMIT = 256 * 1024
"""Bytes that an exemplar may have, compressed."""

UNPACKED_LIMIT = 32 * 2**20
"""Bytes that its text may have: exemplars compress 10 to 25 times."""
_OBJECTS = 500_000
"""JSON objects that its text may hold: a twentieth of what makes a gigabyte in memory."""


@dataclass(frozen=True, slots=True)
class Room:
    """How large a trace may be that others may have written."""

    what: str
    packed: int
    """Bytes, compressed."""
    text: int
    """Bytes of its text."""
    objects: int
    """JSON objects in its text."""


ONE_STEP = Room("the trace of one step", LIMIT, UNPACKED_LIMIT, _OBJECTS)
ALL_RANKS = Room("the trace of one step of all ranks", 16 * LIMIT, 4 * UNPACKED_LIMIT, 4 * _OBJECTS)
"""Most exemplars of ranks are far smaller than they may be."""

_MAX_STREAM = 2**31
"""Streams that are no such number are numbered from here."""

_Thread = tuple[bool, int, int]
"""Whether on a device, process or device, thread or stream: a small process id may equal a device's index."""

_HOST = (Category.CPU_OP, Category.USER_ANNOTATION, *LAUNCH_CATEGORIES)
_ARGS = ("correlation", "stream", "bytes", "Input Dims", "Input type", "grid", "block")
_LESS_ARGS = (_ARGS, _ARGS[:4], _ARGS[:3], ())
"""Arguments that are kept, in full and then with less each time the result is too large."""
_RANK_ARGS = (
    "Collective name",
    "Process Group Name",
    "Process Group Ranks",
    "Group size",
    "Seq",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Src Rank",
    "Dst Rank",
)
"""What says which collectives of several ranks are the same one."""
_CALL_ARG = "Concrete Inputs"
"""That of operators that issue collectives: the group, or the other rank of a message."""


def exemplar(trace: Trace, step: int, *, limit: int = LIMIT, of_rank: bool = False) -> bytes | None:
    """Cut one step out of a trace, as a gzip-compressed Chrome trace; `step` counts the steps from 0.

    It holds the step's operators, annotations and runtime calls of every host thread and the device events that
    the step launched (joined on `correlation`); times are relative to the step's start. Python frames, flows
    and all arguments except shapes, types, sizes, stream and launch geometry are dropped. Ids are small and
    stable: the host is process 0 with the step's thread as thread 0, device D is process D + 1 and its streams
    keep their numbers, correlations count from 1. Equal steps give equal bytes.

    Above `limit` bytes arguments are dropped, first the least telling, then the shortest events; the metadata's
    `perfdl` entry says how many. The step's annotation is never dropped.

    Parameters
    ----------
    trace, step, limit
        See above.
    of_rank
        Whether the trace is of one of several ranks, which are to be compared in this step. Then it also has the
        arguments that identify collectives, `distributedInfo`, a digest of `host_name`, and the time at which the
        step starts (`baseTimeNanoseconds`), by which equal steps differ. No limit drops these arguments, and events
        of collectives are the last that one drops.

    Returns
    -------
    bytes or None
        The compressed trace; `None` when the trace has no such step.
    """
    annotations, _ = step_annotations(trace)
    if not 0 <= step < len(annotations):
        return None
    annotation = int(annotations[step])
    rows = _rows_of_step(trace, annotation)
    cut = _Cut(trace, annotation, rows, of_rank=of_rank)
    for keys in _LESS_ARGS:
        data = cut.make(keys, len(rows))
        if len(data) <= limit:
            return data
    return _largest(lambda kept: cut.make((), kept), len(rows), limit)


def read_exemplar(path: Path, room: Room = ONE_STEP) -> bytes:
    """The compressed bytes of an exemplar that lies in a file, once they were found to be one.

    Raises
    ------
    TraceError
        One line that names the file: it cannot be read, is larger than an exemplar may be, or is no readable trace.
    """
    try:
        data = untrusted_files.read_bytes(path, room.packed)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    loads(unpack(data, str(path), room), str(path))
    return data


def unpack(data: bytes, source: str, room: Room = ONE_STEP) -> bytes:
    """The text of an exemplar.

    Raises
    ------
    TraceError
        One line that begins with `source`: it is larger than an exemplar may be, compressed or not, or damaged.
    """
    if len(data) > room.packed:
        raise TraceError(f"{source} is larger than {untrusted_files.size(room.packed)}, the size limit for {room.what}")
    try:
        text = untrusted_files.gunzip(data, room.text)
    except ValueError as error:
        raise TraceError(f"{source} is damaged: {error}") from None
    if text.count(b"{") > room.objects:
        raise TraceError(f"{source} has too many events for {room.what}")
    try:
        # Invalid JSON is not repaired, unlike in recordings: that may take seconds, and this file can be made again.
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TraceError(f"{source} is damaged: {error}") from None
    return text


def is_complete(trace: Trace) -> bool:
    """Whether the exemplar kept every event and correlation id; other traces are complete."""
    cut = trace.metadata.get("perfdl", {})
    return not cut.get("dropped_events") and "correlation" not in cut.get("dropped_args", ())


def _rows_of_step(trace: Trace, annotation: int) -> Rows:
    """The step's host events and what they launched, by start."""
    opens, closes = trace.start[annotation], trace.end[annotation]
    host = trace.rows(*_HOST)
    host = host[(trace.start[host] >= opens) & (trace.start[host] < closes)]
    launched = np.unique(trace.correlation[host])
    device = trace.device_rows()
    device = device[np.isin(trace.correlation[device], launched[launched >= 0])]
    rows = np.concatenate((host, device))
    return rows[np.lexsort((-trace.duration[rows], trace.start[rows]))]


class _Cut:
    """The rows of one step, ready to be written with more or fewer arguments and events."""

    def __init__(self, trace: Trace, annotation: int, rows: Rows, *, of_rank: bool) -> None:
        self.trace = trace
        self.of_rank = of_rank
        self.step = trace.name_of(annotation)
        self.rows = rows.tolist()
        self.opens = int(trace.start[annotation])
        self.args = [trace.args(row) for row in self.rows]
        is_annotation = rows == annotation
        # None may be missing where they are matched by their order.
        wanted = trace.matching(collective_names.is_collective, rows) if of_rank else rows
        is_less = ~np.isin(rows, wanted)
        # Stable: the step first, then the longest, and among equals the earliest; of a rank collectives before others.
        order = (np.arange(len(rows)), -trace.duration[rows], is_less, ~is_annotation)
        self.by_length = np.lexsort(order).tolist()
        self.correlations = _correlations(trace, rows)
        self.threads, self.names = _threads(trace, annotation, rows)

    def make(self, keys: Sequence[str], kept: int) -> bytes:
        """Compressed trace of the `kept` longest events with these arguments."""
        events = list(self.names)
        events.extend(self._event(index, keys) for index in sorted(self.by_length[:kept]))
        note = {
            "step": self.step,
            "dropped_args": [key for key in _ARGS if key not in keys],
            "dropped_events": len(self.rows) - kept,
        }
        return compress(write(None, events, {"schemaVersion": 1, "perfdl": note, **self._of_job()}))

    def _of_job(self) -> dict[str, Any]:
        """What places a rank's step among those of the other ranks."""
        if not self.of_rank:
            return {}
        metadata = self.trace.metadata
        known = {"distributedInfo": metadata["distributedInfo"]} if "distributedInfo" in metadata else {}
        if isinstance(host := metadata.get("host_name"), str):
            # It only says which ranks share a clock; the trace may be committed, where a machine's name has no place.
            known["host_name"] = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return {"baseTimeNanoseconds": self.trace.base_ns + self.opens, **known}

    def _event(self, index: int, keys: Sequence[str]) -> Event:
        row = self.rows[index]
        trace = self.trace
        pid, tid = self.threads[_thread(trace, row)]
        return Event(
            phase="X",
            name=trace.name_of(row),
            pid=pid,
            tid=tid,
            start_ns=int(trace.start[row]) - self.opens,
            duration_ns=int(trace.duration[row]),
            category=trace.categories[trace.category[row]],
            args=self._reduce_args(index, keys) or None,
        )

    def _reduce_args(self, index: int, keys: Sequence[str]) -> dict[str, Any]:
        args: Mapping[str, Any] = self.args[index]
        if self.of_rank:
            issues = collective_names.is_operator(self.trace.name_of(self.rows[index]))
            keys = (*keys, *_RANK_ARGS, *((_CALL_ARG,) if issues else ()))
        reduced = {key: args[key] for key in keys if key in args and key != "correlation"}
        correlation = self.correlations.get(int(self.trace.correlation[self.rows[index]]))
        if correlation is not None and "correlation" in keys:
            reduced["correlation"] = correlation
        return reduced


def _correlations(trace: Trace, rows: Rows) -> dict[int, int]:
    """Small numbers, in the order of time, for the correlations that join a call to a device event."""
    on_device = np.isin(trace.category[rows], DEVICE_CATEGORIES)
    joined = set(np.intersect1d(trace.correlation[rows[on_device]], trace.correlation[rows[~on_device]]).tolist())
    used = [value for value in trace.correlation[rows].tolist() if value >= 0 and value in joined]
    return {value: number for number, value in enumerate(dict.fromkeys(used), start=1)}


def _threads(trace: Trace, annotation: int, rows: Rows) -> tuple[dict[_Thread, tuple[int, int]], list[Event]]:
    """New process and thread ids for those of the trace, and the events that name them."""
    found = dict.fromkeys([_thread(trace, annotation), *(_thread(trace, row) for row in rows.tolist())])
    host = [thread for thread in found if not thread[0]]
    streams = sorted(thread for thread in found if thread[0])
    threads = {thread: (0, number) for number, thread in enumerate(host)}
    names = [Event.process_name(0, "host")]
    names += [Event.thread_name(0, number, f"thread {number}" if number else "step") for number in range(len(host))]
    for device in dict.fromkeys(device for _, device, _ in streams):
        names.append(Event.process_name(max(device, 0) + 1, f"device {trace.label(device)}"))
    for place, thread in enumerate(streams):
        _, device, stream = thread
        number = stream if 0 <= stream < _MAX_STREAM else _MAX_STREAM + place
        threads[thread] = max(device, 0) + 1, number
        names.append(Event.thread_name(*threads[thread], f"stream {trace.label(stream)}"))
    return threads, names


def _thread(trace: Trace, row: int) -> _Thread:
    return bool(trace.category[row] in DEVICE_CATEGORIES), int(trace.pid[row]), int(trace.tid[row])


def _largest(make: Callable[[int], bytes], count: int, limit: int) -> bytes:
    """The result for the most events that fits, found by bisection; with one event if none fits."""
    fits, too_many = 1, count
    best = make(fits)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        data = make(middle)
        if len(data) <= limit:
            fits, best = middle, data
        else:
            too_many = middle
    return best


# Transfers the memory events of a step to the trace of another run of the same step.


_CPU = 0
"""c10::DeviceType of the host."""

_HostThread = tuple[int, int]
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


def _clocks(own: Trace, annotation: int, trace: Trace, opened: int) -> dict[_HostThread, _Clock] | None:
    """How times translate, by the trace's threads; `None` where the operators of a thread are not the exemplar's."""
    theirs = _host_threads(own, annotation)
    found = {}
    for thread, rows in _host_threads(trace, opened).items():
        same = next((key for key, other in theirs.items() if _names(own, other) == _names(trace, rows)), None)
        if same is None:
            return None
        others = theirs.pop(same)
        times = np.concatenate((_moments(trace, rows), _moments(trace, np.array([opened]))))
        answers = np.concatenate((_moments(own, others), _moments(own, np.array([annotation]))))
        order = np.lexsort((answers, times))
        found[thread] = _Clock(*same, times[order], np.maximum.accumulate(answers[order]))
    return None if theirs else found


def _host_threads(trace: Trace, annotation: int) -> dict[_HostThread, Rows]:
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


def _events(trace: Trace, opened: int, clocks: dict[_HostThread, _Clock], held: int) -> Iterator[Event]:
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
