"""Writes events as a Chrome trace for Perfetto, chrome://tracing and speedscope, always with the same bytes.

The rules (reference: Perfetto's JSON importer): process and thread ids are integers from 0 to 2**32 - 1, every
complete event has a duration, and complete events of one thread nest strictly.
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from pytest_perfdl.system.files import replacing, write_files

_MAX_ID = 2**32 - 1
_END = b"\n]}\n"
_STREAM_LEVEL = 4
"""Of compression, where there is much: a third of the time of the best level, for a tenth more bytes."""
_BLOCK = 4096
"""Events that are written at a time."""
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
"""Deflate, no file name, modification time 0, best compression, unknown system."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of traceEvents; times in integer nanoseconds.

    Phases: X complete, i instant, C counter (numbers in `args`), s and f the two ends of a flow, M metadata.
    """

    phase: Literal["X", "i", "C", "s", "f", "M"]
    name: str
    pid: int
    tid: int
    start_ns: int = 0
    duration_ns: int = 0
    category: str = ""
    args: Mapping[str, Any] | None = None
    flow: int | None = None
    """What joins the two ends of a flow, for phases s and f."""
    color: str | None = None
    """A reserved color name of chrome://tracing; Perfetto ignores it."""
    json_args: bytes | None = None
    """JSON text of an object, in place of `args`."""

    @classmethod
    def process_name(cls, pid: int, name: str) -> Event:
        """The metadata event that names a process."""
        return cls("M", "process_name", pid, 0, args={"name": name})

    @classmethod
    def thread_name(cls, pid: int, tid: int, name: str) -> Event:
        """The metadata event that names a thread."""
        return cls("M", "thread_name", pid, tid, args={"name": name})

    @property
    def end_ns(self) -> int:
        """Nanoseconds at which the event ends."""
        return self.start_ns + self.duration_ns


def write(path: Path | str | None, events: Iterable[Event], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Make a Chrome trace of events and return its bytes; with a path, write it there too.

    Metadata events come first, the others in the order of time. A complete event that would overlap another on
    its thread without nesting is moved to an overflow thread of the same process, named after its own. A path
    that ends in `.gz` is written compressed; the returned bytes are the JSON text in either case.

    Raises
    ------
    ValueError
        When a process or thread id is not an integer from 0 to 2**32 - 1, or a duration is negative.
    """
    listed = list(events)
    for event in listed:
        _check(event)
    names = [event for event in listed if event.phase == "M"]
    timed = sorted((event for event in listed if event.phase != "M"), key=_by_time)
    timed, overflow_names = _nest(timed, names)
    head = {"displayTimeUnit": "ms", **(metadata or {})}
    lines = [_line(event) for event in (*names, *overflow_names, *timed)]
    text = b"".join(
        (
            orjson.dumps(head, option=orjson.OPT_SORT_KEYS)[:-1],
            b',\n"traceEvents":[\n',
            b",\n".join(lines),
            _END,
        )
    )
    if path is not None:
        write_files({Path(path): compress(text) if str(path).endswith(".gz") else text})
    return text


def write_stream(
    path: Path, events: Iterable[Event], metadata: Mapping[str, Any], last: Mapping[str, Any] | None = None
) -> None:
    """Write a Chrome trace of more events than memory holds, as they come; compressed if the path ends in `.gz`.

    Complete events of one thread must nest strictly (`Lanes`), and come in the order of time. What `last` holds when
    all events have come are further metadata, behind them.

    Raises
    ------
    ValueError
        When a process or thread id is not an integer from 0 to 2**32 - 1, or a duration is negative.
    OSError
        When the file cannot be written; what was there is then still there.
    """
    head = {"displayTimeUnit": "ms", **metadata}
    packer = zlib.compressobj(_STREAM_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS) if str(path).endswith(".gz") else None
    with replacing(path) as file:

        def put(text: bytes) -> None:
            file.write(text if packer is None else packer.compress(text))

        put(orjson.dumps(head, option=orjson.OPT_SORT_KEYS)[:-1] + b',\n"traceEvents":[\n')
        between, lines = b"", []
        for event in events:
            _check(event)
            lines.append(_line(event))
            if len(lines) == _BLOCK:
                put(between + b",\n".join(lines))
                between, lines = b",\n", []
        put((between if lines else b"") + b",\n".join(lines) + (_with_last(last) if last else _END))
        if packer is not None:
            file.write(packer.flush())


def _with_last(last: Mapping[str, Any]) -> bytes:
    """The end of a file with further metadata; numbers in it may be longer than 64 bits."""
    return _END.replace(b"}", b"," + json.dumps(last, sort_keys=True).encode()[1:])


def append(text: bytes, events: Iterable[Event]) -> bytes:
    """What `write` returned, with instants or counters of known processes and threads at its end.

    Raises
    ------
    ValueError
        When the text is not of `write`, or an id is out of range.
    """
    listed = list(events)
    for event in listed:
        _check(event)
    if not text.endswith(_END):
        raise ValueError("the trace was not written by pytest-perfdl")
    return b",\n".join((text.removesuffix(_END), *map(_line, listed))) + _END


def compress(data: bytes) -> bytes:
    """Gzip without name and time, so that equal data gives equal bytes (for one version of zlib)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def microseconds(nanos: int) -> str:
    """Integer nanoseconds as decimal microseconds, exactly.

    >>> microseconds(1712195495519689047), microseconds(-1)
    ('1712195495519689.047', '-0.001')
    """
    whole, rest = divmod(abs(nanos), 1000)
    return f"{'-' if nanos < 0 else ''}{whole}.{rest:03d}"


def _by_time(event: Event) -> tuple[int, int]:
    return event.start_ns, -event.duration_ns


def _check(event: Event) -> None:
    for what, number in (("process", event.pid), ("thread", event.tid)):
        if not isinstance(number, int) or not 0 <= number <= _MAX_ID:
            raise ValueError(f"event {event.name!r} has {what} id {number!r}: expected 0 to {_MAX_ID}")
    if event.duration_ns < 0:
        raise ValueError(f"event {event.name!r} has a negative duration, {event.duration_ns} ns")


class Lanes:
    """Gives every complete event, in the order of time, the first lane of its thread in which it nests.

    Parameters
    ----------
    used
        Process and thread ids that no added lane may have.
    names
        Of threads.
    """

    def __init__(self, used: Iterable[tuple[int, int]], names: Mapping[tuple[int, int], str]) -> None:
        self._used = set(used)
        self._names = names
        self._lanes: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        self.added: list[Event] = []
        """The names of added lanes."""

    def place(self, pid: int, tid: int, start_ns: int, end_ns: int) -> int:
        """The thread id of the lane of the next event of a thread."""
        own = self._lanes.setdefault((pid, tid), [(tid, [])])
        lane = next((lane for lane, ends in own if _fits(start_ns, end_ns, ends)), -1)
        if lane < 0:
            # As near behind its own thread as there is a free number, since viewers sort by it.
            numbers = itertools.chain(range(tid + 1, _MAX_ID + 1), range(tid))
            lane = next(number for number in numbers if (pid, number) not in self._used)
            self._used.add((pid, lane))
            own.append((lane, [end_ns]))
            name = self._names.get((pid, tid)) or f"thread {tid}"
            self.added.append(Event.thread_name(pid, lane, f"{name} (overflow)"))
        return lane


def _nest(events: Sequence[Event], names: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Every complete event in a lane of its thread in which it nests; names of the added lanes."""
    lanes = Lanes(
        ((event.pid, event.tid) for event in (*events, *names)),
        {
            (event.pid, event.tid): str((event.args or {}).get("name", ""))
            for event in names
            if event.name == "thread_name"
        },
    )
    placed: list[Event] = []
    for event in events:
        tid = lanes.place(event.pid, event.tid, event.start_ns, event.end_ns) if event.phase == "X" else event.tid
        placed.append(event if tid == event.tid else replace(event, tid=tid))
    return placed, lanes.added


def _fits(start_ns: int, end_ns: int, ends: list[int]) -> bool:
    """Whether an event nests among those still open, whose ends decrease; if so it becomes one of them."""
    while ends and ends[-1] <= start_ns:
        ends.pop()
    if ends and ends[-1] < end_ns:
        return False
    ends.append(end_ns)
    return True


def _line(event: Event) -> bytes:
    parts = []
    if event.json_args is not None:
        parts.append(b'"args":' + event.json_args)
    elif event.args is not None:
        parts.append(b'"args":' + orjson.dumps(event.args, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY))
    if event.phase == "f":
        parts.append(b'"bp":"e"')
    if event.category:
        parts.append(b'"cat":' + orjson.dumps(event.category))
    if event.color:
        parts.append(b'"cname":' + orjson.dumps(event.color))
    if event.phase == "X":
        parts.append(b'"dur":' + microseconds(event.duration_ns).encode())
    if event.flow is not None:
        parts.append(b'"id":%d' % event.flow)
    parts.append(b'"name":' + orjson.dumps(event.name))
    parts.append(b'"ph":"' + event.phase.encode() + b'","pid":%d' % event.pid)
    if event.phase == "i":
        parts.append(b'"s":"t"')
    parts.append(b'"tid":%d' % event.tid)
    if event.phase != "M":
        parts.append(b'"ts":' + microseconds(event.start_ns).encode())
    return b"{" + b",".join(parts) + b"}"
