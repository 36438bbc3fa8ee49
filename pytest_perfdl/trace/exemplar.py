"""Extracts one step of a trace, small enough to store with a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.model import DEVICE_CATEGORIES, LAUNCH_CATEGORIES, Category, Rows, Trace
from pytest_perfdl.trace.reader import loads, read
from pytest_perfdl.trace.writer import Event, compress, write

LIMIT = 256 * 1024
"""Bytes that an exemplar may have, compressed."""

UNPACKED_LIMIT = 32 * 2**20
"""Bytes that its text may have: exemplars compress 10 to 25 times."""
_OBJECTS = 500_000
"""JSON objects that its text may hold: a twentieth of what makes a gigabyte in memory."""

_MAX_STREAM = 2**31
"""Streams that are no such number are numbered from here."""

_Thread = tuple[bool, int, int]
"""Whether on a device, process or device, thread or stream: a small process id may equal a device's index."""

_HOST = (Category.CPU_OP, Category.USER_ANNOTATION, *LAUNCH_CATEGORIES)
_ARGS = ("correlation", "stream", "bytes", "Input Dims", "Input type", "grid", "block")
_LESS_ARGS = (_ARGS, _ARGS[:4], _ARGS[:3], ())
"""Arguments that are kept, in full and then with less each time the result is too large."""


def exemplar(source: Path | str | Trace, step: int, *, limit: int = LIMIT) -> bytes | None:
    """Cut one step out of a trace, as a gzip-compressed Chrome trace; `step` counts the steps from 0.

    It holds the step's operators, annotations and runtime calls of every host thread and the device events that
    the step launched (joined on `correlation`); times are relative to the step's start. Python frames, flows
    and all arguments except shapes, types, sizes, stream and launch geometry are dropped. Ids are small and
    stable: the host is process 0 with the step's thread as thread 0, device D is process D + 1 and its streams
    keep their numbers, correlations count from 1. Equal steps give equal bytes.

    Above `limit` bytes arguments are dropped, first the least telling, then the shortest events; the metadata's
    `perfdl` entry says how many. The step's annotation is never dropped.

    Returns
    -------
    bytes or None
        The compressed trace; `None` when the trace has no such step.

    Raises
    ------
    TraceError
        When the trace cannot be read.
    """
    trace = source if isinstance(source, Trace) else read(source)
    annotations, _ = step_annotations(trace)
    if not 0 <= step < len(annotations):
        return None
    annotation = int(annotations[step])
    rows = _rows_of_step(trace, annotation)
    cut = _Cut(trace, annotation, rows)
    for keys in _LESS_ARGS:
        data = cut.make(keys, len(rows))
        if len(data) <= limit:
            return data
    return _largest(lambda kept: cut.make((), kept), len(rows), limit)


def read_exemplar(path: Path) -> bytes:
    """The compressed bytes of an exemplar that lies in a file, once they were found to be one.

    Raises
    ------
    TraceError
        One line that names the file: it cannot be read, is larger than an exemplar may be, or is no readable trace.
    """
    try:
        data = untrusted_files.read_bytes(path, LIMIT)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    loads(unpack(data, str(path)), str(path))
    return data


def unpack(data: bytes, source: str) -> bytes:
    """The text of an exemplar.

    Raises
    ------
    TraceError
        One line that begins with `source`: it is larger than an exemplar may be, compressed or not, or damaged.
    """
    if len(data) > LIMIT:
        raise TraceError(
            f"{source} is larger than {untrusted_files.size(LIMIT)}, the size limit for the trace of one step"
        )
    try:
        text = untrusted_files.gunzip(data, UNPACKED_LIMIT)
    except ValueError as error:
        raise TraceError(f"{source} is damaged: {error}") from None
    if text.count(b"{") > _OBJECTS:
        raise TraceError(f"{source} has too many events for the trace of one step")
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

    def __init__(self, trace: Trace, annotation: int, rows: Rows) -> None:
        self.trace = trace
        self.step = trace.name_of(annotation)
        self.rows = rows.tolist()
        self.opens = int(trace.start[annotation])
        self.args = [trace.args(row) for row in self.rows]
        is_annotation = rows == annotation
        # Stable: the step first, then the longest, and among equals the earliest.
        self.by_length = np.lexsort((np.arange(len(rows)), -trace.duration[rows], ~is_annotation)).tolist()
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
        return compress(write(None, events, {"schemaVersion": 1, "perfdl": note}))

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
            args=self._reduced(index, keys) or None,
        )

    def _reduced(self, index: int, keys: Sequence[str]) -> dict[str, Any]:
        args: Mapping[str, Any] = self.args[index]
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
