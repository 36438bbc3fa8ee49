"""Reads a file to a `Trace`: decompress, cut into slices of whole events, recover what is cut off, make columns."""

from __future__ import annotations

import contextlib
import gc
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from pytest_perfdl.model.errors import NotATrace, TraceError
from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.columns import Columns
from pytest_perfdl.trace.decode import Decoder, Kind, Notes, end_of_object
from pytest_perfdl.trace.events import RawEvent
from pytest_perfdl.trace.formats import (
    HEAD,
    OBJECT,
    is_binary,
    keys_of,
    listed,
    refusal,
    refuse_by_keys,
    refuse_by_start,
)
from pytest_perfdl.trace.model import Category, Trace
from pytest_perfdl.trace.raw_args import SPILL_BYTES

# The text of a file in chunks: decompressed, and limited in size.


_fast: Any = None
with contextlib.suppress(ImportError):
    from isal import isal_zlib  # type: ignore[import-not-found, unused-ignore]

    _fast = isal_zlib

Progress = Callable[[int, int], None]
"""Called with the bytes of the file read so far, and all of them (0 where that is unknown)."""

PLAIN_LIMIT = 16 * 2**30
"""Bytes of text that a file without compression may have."""
PACKED_LIMIT = 8 * 2**30
"""Bytes of text that a compressed file may have."""
RATIO_LIMIT = 200
"""How many times larger than the file its text may be, beyond `RATIO_FROM`: traces compress 10 to 25 times."""
RATIO_FROM = 2**28

CHUNK = 2**18
"""Bytes of text that are read at a time. The memory of larger pieces goes back to the system each time, and costs a
page fault for every page of the next one."""
_PACKED_CHUNK = 2**16
_GZIP_MAGIC = b"\x1f\x8b"


class Source:
    """The text of one file as chunks, and problems of its compression."""

    def __init__(
        self,
        file: BinaryIO,
        size: int,
        where: str,
        *,
        limit_bytes: int | None = None,
        progress: Progress | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.file = file
        self.size = size
        self.where = where
        self.limit_bytes = limit_bytes
        self.progress = progress
        self.chunk = max(1, min(chunk, CHUNK))
        self.damage = ""
        """The problem of the compressed data, with the byte of the file; empty if there is no problem."""
        self.findings: list[str] = []
        self._read = 0
        self._text = 0

    def chunks(self) -> Iterator[bytes]:
        """The text, in pieces that are never empty.

        Raises
        ------
        TraceError
            When the file is larger than the limit, or none of it can be decompressed.
        """
        head = self._more(_PACKED_CHUNK)
        if not head.startswith(_GZIP_MAGIC):
            limit = PLAIN_LIMIT if self.limit_bytes is None else self.limit_bytes
            if self.size > limit:
                raise self._too_large(limit, "")
            yield from self._limited(self._plain(head), limit, "")
            return
        limit = PACKED_LIMIT if self.limit_bytes is None else self.limit_bytes
        for text in self._limited(self._unpacked(head), limit, " decompressed"):
            if self.limit_bytes is None and self._text > RATIO_FROM and self._text > RATIO_LIMIT * self._read:
                raise TraceError(
                    f"{self.where} is over {RATIO_LIMIT} times larger when decompressed, which is implausible for a "
                    "trace: to read it anyway, use read_trace(path, limit_bytes=...)"
                )
            yield text
        if self.damage and not self._text:
            raise TraceError(f"{self.where} is damaged: {self.damage}; nothing can be read")

    def _limited(self, chunks: Iterator[bytes], limit: int, how: str) -> Iterator[bytes]:
        for text in chunks:
            self._text += len(text)
            if self._text > limit:
                raise self._too_large(limit, how)
            yield text

    def _too_large(self, limit: int, how: str) -> TraceError:
        shown = f"{limit / 2**30:g} GiB" if limit >= 2**30 else f"{limit} bytes"
        return TraceError(
            f"{self.where} is larger than {shown}{how}: raise the limit with read_trace(path, limit_bytes=...)"
        )

    def _more(self, size: int) -> bytes:
        try:
            data = self.file.read(size)
        except OSError as error:
            raise TraceError(f"{self.where} cannot be read: {error.strerror or error}") from error
        self._read += len(data)
        if self.progress is not None:
            self.progress(self._read, self.size)
        return data

    def _plain(self, head: bytes) -> Iterator[bytes]:
        while head:
            for start in range(0, len(head), self.chunk):
                yield head[start : start + self.chunk]
            head = self._more(self.chunk)

    def _unpacked(self, head: bytes) -> Iterator[bytes]:
        """Decompress, by the fast library where there is one; damage is left to zlib, which gives more of it."""
        passed = 0
        if _fast is not None and self.file.seekable():
            with contextlib.suppress(_fast.error):
                for text in self._members(head, _fast):
                    passed += len(text)
                    yield text
                if not self.damage:
                    return
            self.damage = ""
            self.file.seek(0)
            self._read = 0
            head = self._more(_PACKED_CHUNK)
        for text in self._members(head, zlib):
            if passed < len(text):
                yield text[passed:]
            passed = max(0, passed - len(text))

    def _members(self, data: bytes, library: Any) -> Iterator[bytes]:
        """The text of the members of a gzip file, one after the other."""
        unpacker = library.decompressobj(wbits=31)
        while data or (data := self._more(_PACKED_CHUNK)):
            before = unpacker.copy() if library is zlib else None
            try:
                text = unpacker.decompress(data, self.chunk)
            except zlib.error as error:
                yield from self._up_to_the_damage(before, data, str(error))
                return
            if text:
                yield text
            if not unpacker.eof:
                data = unpacker.unconsumed_tail
                continue
            rest = unpacker.unused_data or self._more(_PACKED_CHUNK)
            if not rest.strip(b"\0"):
                return
            if not _GZIP_MAGIC.startswith(rest[:2]):
                place = self._read - len(rest)
                self.findings.append(f"data after the compressed data, from byte {place} of the file, was ignored")
                return
            unpacker, data = library.decompressobj(wbits=31), rest
        self.damage = f"the compressed data is truncated at byte {self._read} of the file"

    def _up_to_the_damage(self, unpacker: Any, data: bytes, error: str) -> Iterator[bytes]:
        """Decompress byte by byte: a whole chunk gives nothing when there is an error anywhere in it."""
        for place in range(len(data)):
            try:
                text = unpacker.decompress(data[place : place + 1])
            except zlib.error:
                self.damage = (
                    f"{error.partition(': ')[2] or error}, at byte {self._read - len(data) + place} of the file"
                )
                return
            if text:
                yield text


# Reads events from text that is not JSON: one by one, repaired or skipped, up to the end of their list.


_BLANK = rb"[ \t\r\n]*"
_KEYS = rb"(?:ph|name|cat|args|pid|tid|ts|dur|s|bp|cname|tts)"


def _boundary(key: bytes) -> re.Pattern[bytes]:
    return re.compile(_BLANK.join((rb"\}", rb",", rb"(\{)", b'"' + key + b'"', rb":")))


_BOUNDARY = _boundary(_KEYS)
_ANY_BOUNDARY = _boundary(rb'[^"\\\x00-\x1f]{0,64}')
_LIST_END = re.compile(
    _BLANK.join(
        (rb"\}", rb",?", rb"\]", rb"(?:," + _BLANK + rb'"[^"\\]{0,80}"' + _BLANK + rb":|\}?" + _BLANK + rb"\Z)")
    )
)
_NO_MORE = re.compile(_BLANK + rb"\]")
_CLOSED = re.compile(rb"\}(?=" + _BLANK + rb"(?:[,\]]|\Z))")

_GROUP = 64
"""Events that are tried at once before they are tried one by one, and pieces among which an event is waited for."""
_JOINS = 20_000
"""Pieces that are joined at most in one text."""
_TRIES = 64
_TRIED_BYTES = 2**18
"""Places at which the end of the list or of the last whole event is looked for, and how much text that may take."""


def boundaries(text: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Where events seem to end and the next ones to begin, as pairs of positions.

    By the keys that events have; only where there are none of those, by any key.
    """
    found = [(match.start() + 1, match.start(1)) for match in _BOUNDARY.finditer(text, start, end)]
    return found or [(match.start() + 1, match.start(1)) for match in _ANY_BOUNDARY.finditer(text, start, end)]


class Salvage:
    """Events of a part of the list that begins with an event at byte `at`.

    An event that does not decode is repaired; if it still does not, it is left out. Events may hold what looks
    like the boundary of events: as long as brackets are open, such pieces are tried together.
    """

    def __init__(self, text: bytes, at: int, decoder: Decoder, *, bare: bool) -> None:
        self.text = text
        self.at = at
        self.decoder = decoder
        self.bare = bare
        """Whether the list is the whole file, with nothing to follow it."""
        cuts = boundaries(text, 0, len(text))
        self.pieces = list(
            zip([0, *(opens for _, opens in cuts)], [*(closes for closes, _ in cuts), len(text)], strict=True)
        )
        self.joins = _JOINS
        self.open_at_end = False
        """Whether the last tried piece has open brackets and ends near the end of the text."""
        self.events: list[RawEvent] = []
        self.consumed = 0
        """Bytes that are done with, whether events came of them or not."""
        self.ended = False
        """Whether the list ends there: the consumed bytes include its bracket."""

    def run(self, *, final: bool, patient: bool = False) -> None:
        """Take what can be read.

        Parameters
        ----------
        final
            Whether the text goes to the end of the file; else to what seems the end of an event.
        patient
            Whether to consume nothing rather than leave out the only event of a text that is not final.
        """
        place = 0
        while place < len(self.pieces):
            is_last = place + 1 >= len(self.pieces)
            if self.group(place):
                place += _GROUP
            elif taken := self.take(place):
                place += taken
            elif self.list_end(place) or (final and self.file_end(place)):
                break
            elif not final and (is_last or self.open_at_end) and (place or patient):
                self.consumed = self.pieces[place][0]
                break
            else:
                self.decoder.notes.add_malformed(self.at + self.pieces[place][0])
                place += 1
                self.consumed = self.pieces[place][0] if place < len(self.pieces) else len(self.text)

    def group(self, place: int) -> bool:
        """Take many pieces at once, as they are."""
        if place % _GROUP or place + _GROUP >= len(self.pieces):
            return False
        start, end = self.pieces[place][0], self.pieces[place + _GROUP - 1][1]
        return self._accept(self.decoder.events(b"[" + self.text[start:end] + b"]", self.at + start), end)

    def take(self, place: int) -> int:
        """Take a piece, or as many as close its brackets; the number of pieces taken."""
        start, end = self.pieces[place]
        if self._accept(self.decoder.piece(self.text[start:end], self.at + start), end):
            return 1
        balance = _balance(self.text, start, end)
        unclosed = balance > 0
        for more in range(place + 1, len(self.pieces)):
            if balance <= 0 or not self.joins:
                break
            self.joins -= 1
            end = self.pieces[more][1]
            balance += _balance(self.text, self.pieces[more - 1][1], end)
            if balance == 0 and self._accept(self.decoder.piece(self.text[start:end], self.at + start), end):
                return more - place + 1
        self.open_at_end = unclosed and place + _GROUP > len(self.pieces)
        return 0

    def list_end(self, place: int) -> bool:
        """Look for the end of the list from this piece on; if it is there, take the events before it."""
        start, end = self.pieces[place]
        if _NO_MORE.match(self.text, start):
            return self._end(start)
        stop = min(len(self.text), end + 2**10)
        ends = [match.start() + 1 for match in _LIST_END.finditer(self.text, start, stop)][:_TRIES]
        ends = [closes for closes in ends if closes <= end]
        for closes in self._affordable(start, ends):
            if self._accept(self.decoder.piece(self.text[start:closes], self.at + start), closes):
                return self._end(closes)
        for closes in ends:
            if self._is_tail(self.text[self._bracket(closes) :]):
                self.decoder.notes.add_malformed(self.at + start)
                return self._end(closes)
        return False

    def _events_after(self, place: int) -> bool:
        """Whether a later piece is an event, with a time, rather than what an unfinished event holds."""
        return any(self.decoder.has_time(self.text[start:end]) for start, end in self.pieces[place + 1 :])

    def file_end(self, place: int) -> bool:
        """Whether the file ends inside this piece's event; if so, take what is whole before it."""
        if place + 1 < len(self.pieces) and not self.open_at_end:
            return False
        return self._last_event(place) or not self._events_after(place)

    def _last_event(self, place: int) -> bool:
        """Take what is whole of the rest of the file."""
        start, _ = self.pieces[place]
        self.consumed = start
        closed = [match.end() for match in _CLOSED.finditer(self.text, start)][-_TRIES:]
        for closes in self._affordable(start, closed[::-1]):
            if self._accept(self.decoder.piece(self.text[start:closes], self.at + start), closes):
                if self.text[closes:].lstrip(b" \t\r\n,").startswith(b"]"):
                    self._end(closes)
                return True
        return False

    def _affordable(self, start: int, ends: list[int]) -> Iterator[int]:
        """The ends of a text that begins at `start`, as long as not too much text is tried."""
        tried = 0
        for end in ends:
            if tried > _TRIED_BYTES:
                return
            tried += end - start
            yield end

    def _accept(self, events: list[RawEvent] | None, end: int) -> bool:
        if events is None:
            return False
        self.events += events
        self.consumed = end
        return True

    def _bracket(self, closes: int) -> int:
        """The position after the list's closing bracket, which follows the event that ends at `closes`."""
        return self.text.index(b"]", closes) + 1

    def _end(self, closes: int) -> bool:
        """Note that the list ends after the event that ends at `closes`."""
        consumed = self._bracket(closes)
        comma = self.text.find(b",", closes, consumed)
        if comma >= 0:
            self.decoder.notes.add_repairs([(Kind.COMMA, comma)], self.at)
        self.ended = True
        self.consumed = consumed
        return True

    def _is_tail(self, text: bytes) -> bool:
        if self.bare:
            return not text.strip()
        return self.decoder.parts(b'{"traceEvents":null' + text) is not None


def _balance(text: bytes, start: int, end: int) -> int:
    """How many brackets stay open, not minding those inside strings."""
    opened = text.count(b"{", start, end) + text.count(b"[", start, end)
    return opened - text.count(b"}", start, end) - text.count(b"]", start, end)


# Cuts the text of a trace into slices of whole events, so that only one slice is in memory at a time.
#
# A slice is cut where an event seems to end, and decoded between brackets. If that succeeds, the cut was right: the
# text before it is JSON, so all strings and brackets are closed there. Only text that cannot be decoded is passed to
# `Salvage`, one event at a time.


SLICE = 2**20
"""Bytes of text that are decoded at a time: larger ones leave the CPU caches, and hold more at once."""
LARGEST_UNIT = 2**26
"""Bytes that may pass without the end of an event, before the first one or after the last."""

_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_ANOTHER = re.compile(_EVENTS.pattern + rb'|\}\s*\]\s*(?:\[\s*)?\{\s*"')
"""Where a further list of events begins: no string holds these quotes, and JSON has no brackets like these."""
_EVENTS_LENGTH = 2**10
"""More than `_EVENTS` matches, unless someone writes a page of white space there."""
_BOM = b"\xef\xbb\xbf"
_WINDOW = 2**14
_PATIENCE = 2**22
"""Bytes up to which the end of an event is waited for that does not decode."""
_SCANNED = 2**18
"""Bytes of an object without events in which keys are looked for, where it cannot be decoded."""
_BEFORE_TAIL = b'{"traceEvents":null'


class Slices:
    """Lists of events, in file order, from chunks of text; afterwards, `metadata` and `notes` are complete.

    Raises
    ------
    TraceError
        While iterating: when the text is no trace, or nothing of its events can be read.
    """

    def __init__(self, chunks: Iterator[bytes], where: str, slice_bytes: int = SLICE) -> None:
        self.metadata: dict[str, Any] = {}
        self.notes = Notes()
        self._chunks = chunks
        self._where = where
        self._slice = max(1, slice_bytes)
        self._decoder = Decoder(self.notes)
        self._text = b""
        self._at = 0
        self._more = True
        self._bare = self._ended_early = False
        self._seen = self._with_phase = 0

    def __iter__(self) -> Iterator[list[RawEvent]]:
        self._open()
        for events in self._slices():
            self._seen += len(events)
            if not self._with_phase:
                self._with_phase = sum(bool(event.ph) for event in events)
            if not self.notes.malformed and not self._ended_early:
                # It was only cut at a wrong place.
                self.notes.error = ""
            yield events
        if self._with_phase:
            return
        if self.notes.error:
            raise TraceError(f"{self._where} is not valid JSON: {self.notes.error}")
        if self._seen or self.notes.malformed:
            raise TraceError(f"{self._where} is not a Chrome trace: its list has no event with a phase")

    def _fill(self, size: int) -> None:
        """Have this much text, if there is as much."""
        parts, have = [self._text], len(self._text)
        while have < size and self._more:
            chunk = next(self._chunks, b"")
            self._more = bool(chunk)
            parts.append(chunk)
            have += len(chunk)
        if len(parts) > 1:
            self._text = b"".join(parts)

    def _drop(self, size: int) -> None:
        self._text = self._text[size:]
        self._at += size

    def _open(self) -> None:
        """Go to the first event, and decode the metadata before it."""
        self._fill(HEAD)
        refuse_by_start(self._text[:HEAD].removeprefix(_BOM), self._where)
        if self._text.startswith(_BOM):
            self.notes.other.append("a byte order mark at the start was ignored (byte 0)")
            self._drop(len(_BOM))
        while not self._text.strip(b" \t\r\n"):
            self._drop(len(self._text))
            self._fill(self._slice)
            if not self._text:
                raise TraceError(f"{self._where} is empty")
        self._drop(len(self._text) - len(self._text.lstrip(b" \t\r\n")))
        if self._text.startswith(b"["):
            self._bare = True
            self._drop(1)
        elif self._text.startswith(b"{"):
            self._open_object()
        else:
            self._fill(LARGEST_UNIT if self._text[:1] in b'"-0123456789tfn' else 1)
            raise self._refusal()

    def _open_object(self) -> None:
        searched = 0
        while True:
            matches = list(_EVENTS.finditer(self._text, searched))
            for match in matches:
                head = self._text[: match.start()] + b'"traceEvents":null}'
                if (parts := self._decoder.parts(head)) is not None:
                    self.metadata = self._decoder.values(parts)
                    self._drop(match.end())
                    return
            if matches:
                self._open_broken(matches[0])
                return
            if not self._more:
                raise self._refusal()
            if len(self._text) > LARGEST_UNIT:
                refuse_by_keys(self._text, keys_of(self._text[:_SCANNED]), self._where)
                raise TraceError(
                    f"{self._where} is not a Chrome trace: no traceEvents in its first {len(self._text)} bytes"
                )
            searched = max(0, len(self._text) - _EVENTS_LENGTH)
            self._fill(2 * len(self._text))

    def _open_broken(self, match: re.Match[bytes]) -> None:
        head = self._text[: match.start()]
        metadata = self._decoder.metadata(b"", head, b'"traceEvents":null}', self._at)
        if metadata is None:
            self.notes.other.append(
                f"the metadata before the events, from byte {self._at}, cannot be read and was skipped"
            )
        self.metadata = metadata or {}
        self._drop(match.end())

    def _refusal(self) -> TraceError:
        """The error for a complete text that is not a trace."""
        is_object = self._text.startswith(b"{")
        try:
            msgspec.json.decode(self._text, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            if is_object:
                refuse_by_keys(self._text, keys_of(self._text[:_SCANNED]), self._where)
            elif is_binary(self._text[:HEAD]):
                return refusal(self._where, "binary data")
            self.notes.add_error(error, self._at, len(self._text))
            return TraceError(f"{self._where} is not valid JSON: {self.notes.error}")
        if not is_object:
            what = "the top level is neither an object nor a list"
        else:
            keys = list(self._decoder.parts(self._text) or {})
            refuse_by_keys(self._text, keys, self._where)
            if "traceEvents" not in keys:
                has = f"its keys are {listed(keys)}" if keys else "it is empty"
                return NotATrace(f"{self._where} is not a Chrome trace: traceEvents is missing, {has}", OBJECT)
            what = "traceEvents is not a list"
        return TraceError(f"{self._where} is not a Chrome trace: {what} (byte {self._at})")

    def _slices(self) -> Iterator[list[RawEvent]]:
        size = self._slice
        while True:
            self._fill(size)
            if not self._more and len(self._text) <= size:
                yield self._last()
                return
            cuts = self._cuts(min(size, len(self._text)))
            if (taken := self._strict(cuts)) is not None:
                events, consumed = taken
            elif cuts and self._decoder.truncated and size < _PATIENCE:
                events, consumed = [], 0
            elif cuts:
                closes, opens = cuts[-1]
                self._refuse_another(self._text[:closes])
                found = Salvage(self._text[:closes], self._at, self._decoder, bare=self._bare)
                found.run(final=False, patient=size < _PATIENCE)
                events, consumed = found.events, opens if found.consumed == closes else found.consumed
                if found.ended:
                    yield events
                    self._drop(consumed)
                    self._tail()
                    return
            else:
                events, consumed = [], 0
            if consumed:
                yield events
                del events, taken
                self._drop(consumed)
                size = self._slice
            elif size > LARGEST_UNIT:
                raise TraceError(
                    f"{self._where} cannot be read: an event is longer than {size} bytes (byte {self._at})"
                )
            else:
                size *= 2

    def _cuts(self, end: int) -> list[tuple[int, int]]:
        """Boundaries of events near the end of what is to be decoded, or anywhere before if there are none near."""
        window = _WINDOW
        while True:
            start = max(0, end - window)
            if (found := boundaries(self._text, start, end)) or not start:
                return found
            window *= 8

    def _strict(self, cuts: list[tuple[int, int]]) -> tuple[list[RawEvent], int] | None:
        """Decode up to a boundary: the last one, or an earlier one if that lies inside an event."""
        for back in (1, 2, 4, 16, 64, 256, 1024):
            if back > len(cuts):
                break
            closes, opens = cuts[-back]
            whole = b"".join((b"[", memoryview(self._text)[:closes], b"]"))
            events = self._decoder.events(whole, self._at)
            if events is not None:
                return events, opens
        return None

    def _last(self) -> list[RawEvent]:
        """Decode the rest of the file, which holds the end of the list."""
        events = self._decoder.events(b"[" + self._text, self._at) if self._bare else self._last_of_object()
        if events is not None:
            return events
        self._refuse_another(self._text)
        found = Salvage(self._text, self._at, self._decoder, bare=self._bare)
        found.run(final=True)
        self._drop(found.consumed)
        if found.ended:
            self._tail()
        else:
            self._ended_early = True
            end = self._at + len(self._text)
            lost = self._text.strip(b" \t\r\n,")
            rest = f"the incomplete event from byte {self._at} was skipped" if lost else "no event is incomplete"
            self.notes.other.append(f"the trace is truncated at byte {end}: {rest}")
        return found.events

    def _last_of_object(self) -> list[RawEvent] | None:
        opening = b'{"traceEvents":['
        text = opening + self._text
        try:
            parts = self._decoder.parts(text)
        except msgspec.ValidationError:
            return None
        if parts is None:
            try:
                msgspec.json.decode(text, type=msgspec.Raw)
            except (msgspec.DecodeError, RecursionError) as error:
                self.notes.add_error(error, self._at - len(opening), len(text))
            return None
        events = self._decoder.events(bytes(parts["traceEvents"]), self._at)
        if events is not None:
            self.metadata.update(self._decoder.values(parts))
        return events

    def _tail(self) -> None:
        """Decode the metadata that follow the list of events."""
        self._fill(LARGEST_UNIT)
        self._refuse_another(self._text)
        if self._bare:
            if self._text.strip() or self._more:
                self.notes.other.append(f"text after the list of events, from byte {self._at}, was ignored")
            return
        metadata = self._decoder.metadata(_BEFORE_TAIL, self._text, b"", self._at)
        if metadata is None:
            metadata = self._broken_tail()
        self.metadata.update(metadata or {})

    def _refuse_another(self, text: bytes) -> None:
        """Refuse text that is not JSON if a further list of events begins in it, which may be of another process."""
        if another := _ANOTHER.search(text):
            raise TraceError(
                f"{self._where} contains several JSON documents, one after the other: a further list of events begins "
                f"at byte {self._at + another.start()}; write each document to a file of its own"
            )

    def _broken_tail(self) -> dict[str, Any] | None:
        note = self.notes.other.append
        metadata = self._decoder.metadata(_BEFORE_TAIL, self._text, b"}", self._at)
        if metadata is not None:
            note(f"the trace is truncated at byte {self._at + len(self._text)}: closing brackets are missing")
        elif end := end_of_object(_BEFORE_TAIL + self._text):
            end -= len(_BEFORE_TAIL)
            metadata = self._decoder.metadata(_BEFORE_TAIL, self._text[:end], b"", self._at)
            note(f"text after the closing bracket, from byte {self._at + end}, was ignored")
        else:
            note(f"the metadata after the events, from byte {self._at}, cannot be read and was skipped")
        return metadata


# Reads a file to a `Trace`: decompress, decode slice by slice to typed structs, convert those to columns.


def read(
    path: Path | str,
    *,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
    slice_bytes: int = SLICE,
    spill_bytes: int = SPILL_BYTES,
) -> Trace:
    """Read a Chrome trace of the PyTorch profiler, gzip or not (decided by content, not by name).

    The file is decoded in slices and never in memory as a whole; of its events only columns and the text of their
    arguments are kept. Malformed text is repaired if possible, and a truncated file is read up to its last complete
    event: see `Trace.findings`.

    Parameters
    ----------
    path
        The file.
    limit_bytes
        Maximum size of the decompressed text in bytes: by default 16 GiB for a plain file and 8 GiB for a compressed
        one, and above 256 MiB at most 200 times the compressed size.
    progress
        Called with the number of bytes read and the size of the file, several times per MiB of text.
    slice_bytes
        Bytes of text to decode at a time.
    spill_bytes
        Bytes of arguments to keep in memory; more are written to a temporary file.

    Raises
    ------
    TraceError
        The file cannot be read; the message is one line, with the byte position if there is one. `NotATrace` where the
        file is known to be something else.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            source = Source(file, size, str(path), limit_bytes=limit_bytes, progress=progress, chunk=slice_bytes)
            return _read(source, str(path), slice_bytes, spill_bytes)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def loads(
    data: bytes,
    source: str = "",
    *,
    limit_bytes: int | None = None,
    slice_bytes: int = SLICE,
    spill_bytes: int = SPILL_BYTES,
) -> Trace:
    """Make a `Trace` from the content of a file; `source` is its name in messages. Parameters are those of `read`.

    Raises
    ------
    TraceError
        The content cannot be read; the message is one line.
    """
    text = Source(io.BytesIO(data), len(data), source or "the trace", limit_bytes=limit_bytes, chunk=slice_bytes)
    return _read(text, source, slice_bytes, spill_bytes)


def _read(source: Source, name: str, slice_bytes: int, spill_bytes: int) -> Trace:
    columns = Columns(spill_bytes)
    slices = Slices(source.chunks(), source.where, slice_bytes)
    with _no_gc():
        try:
            for events in slices:
                columns.add(events)
        except NotATrace:
            raise
        except TraceError as error:
            if source.damage and source.damage not in str(error):
                raise TraceError(f"{source.where} is damaged: {source.damage}; no events can be read") from error
            raise
        findings = [*source.findings, *slices.notes.findings()]
        if source.damage:
            findings.insert(0, f"the file is damaged: {source.damage}; the part before it is used")
        return columns.build(slices.metadata, findings, name)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would visit all events again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Whether a file is a trace, and whether there is anything in a trace that can be analyzed.


_PROBED = 2**14
"""Bytes of text that are decoded at a time until the first event is found."""
_ANY_SIZE = 2**62
_LEGACY = ("CPU functions", "CUDA functions")
"""Process ids of `torch.autograd.profiler_util.EventList.export_chrome_trace`, whose events have no category."""
_XLA = ("/host:", "/device:")
"""Beginnings of process names in traces of XLA (JAX, TensorFlow)."""


def refusal_of(path: Path) -> TraceError | None:
    """Why a file is no trace, or none of its events can be reached; `None` for a trace, damaged or not.

    Only the beginning is read: up to the first events. What only the end of a file can tell is not looked for, such as
    events without phases. It is a `NotATrace` where the file is something else, which it names.
    """
    try:
        with path.open("rb") as file:
            source = Source(file, 0, str(path), limit_bytes=_ANY_SIZE, chunk=_PROBED)
            next(iter(Slices(source.chunks(), str(path), _PROBED)), None)
    except TraceError as error:
        return error
    except OSError as error:
        return TraceError(f"{path} cannot be read: {error.strerror or error}")
    return None


def nothing_in(trace: Trace, *, memory: bool = False) -> str:
    """Why nothing of a trace can be analyzed, as the rest of a sentence that begins with its name; empty if not so.

    Parameters
    ----------
    memory
        Whether memory events are enough.
    """
    if not len(trace):
        if not len(trace.memory):
            return "has no complete events: there is nothing to analyze"
        many = plural(len(trace.memory), "memory event")
        return "" if memory else f"has only {many}: compare its memory with `perfdl diff --memory`"
    codes, counts = np.unique(trace.category, return_counts=True)
    if ((codes < len(Category)) & (codes != Category.NONE)).any():
        return ""
    order = np.argsort(-counts, kind="stable")
    found = [name for code in codes[order].tolist() if (name := trace.categories[code])]
    said = f"has no PyTorch categories among {plural(len(trace), 'event')}"
    said += f" (categories: {listed(found)})" if found else " (no event has a category)"
    if not found and any(trace.label(int(pid)) in _LEGACY for pid in np.unique(trace.pid)):
        return f"{said}: an old export of autograd's profiler; use export_chrome_trace of torch.profiler.profile"
    if any(name.startswith(_XLA) for name in trace.process_names.values()):
        return f"{said}: a trace of XLA (JAX or TensorFlow), not of PyTorch"
    return f"{said}: record it with torch.profiler"
