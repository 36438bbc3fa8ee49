"""Cuts the text of a trace into slices of whole events, so that only one slice is in memory at a time.

A slice is cut where an event seems to end, and decoded between brackets. If that succeeds, the cut was right: the text
before it is JSON, so all strings and brackets are closed there. Only text that cannot be decoded is passed to
`salvage`, one event at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from pytest_perfdl.model.errors import NotATrace, TraceError
from pytest_perfdl.trace.decode import Decoder, Notes, end_of_object
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
from pytest_perfdl.trace.truncated import boundaries, salvage

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
                found = salvage(
                    self._text[:closes],
                    self._at,
                    self._decoder,
                    final=False,
                    patient=size < _PATIENCE,
                    bare=self._bare,
                )
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
        found = salvage(self._text, self._at, self._decoder, final=True, patient=False, bare=self._bare)
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
