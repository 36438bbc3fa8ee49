"""Reads events from text that is not JSON: one by one, repaired or skipped, up to the end of their list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_perfdl.trace.decode import Decoder
from pytest_perfdl.trace.events import RawEvent
from pytest_perfdl.trace.repair import Kind

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


@dataclass(slots=True)
class Salvaged:
    """What was got out of a text."""

    events: list[RawEvent] = field(default_factory=list)
    consumed: int = 0
    """Bytes that are done with, whether events came of them or not."""
    ended: bool = False
    """Whether the list ends there: the consumed bytes include its bracket."""


def salvage(text: bytes, at: int, decoder: Decoder, *, final: bool, patient: bool, bare: bool) -> Salvaged:
    """Events of a part of the list that begins with an event at byte `at`.

    An event that does not decode is repaired; if it still does not, it is left out. Events may hold what looks
    like the boundary of events: as long as brackets are open, such pieces are tried together.

    Parameters
    ----------
    final
        Whether the text goes to the end of the file; else to what seems the end of an event.
    patient
        Whether to consume nothing rather than leave out the only event of a text that is not final.
    bare
        Whether the list is the whole file, with nothing to follow it.
    """
    run = _Run(text, at, decoder, bare)
    pieces = run.pieces
    place = 0
    while place < len(pieces):
        is_last = place + 1 >= len(pieces)
        if run.group(place):
            place += _GROUP
        elif taken := run.take(place):
            place += taken
        elif run.list_end(place) or (final and run.file_end(place)):
            break
        elif not final and (is_last or run.open_at_end) and (place or patient):
            run.found.consumed = pieces[place][0]
            break
        else:
            decoder.notes.add_malformed(at + pieces[place][0])
            place += 1
            run.found.consumed = pieces[place][0] if place < len(pieces) else len(text)
    return run.found


class _Run:
    """One salvage in progress."""

    def __init__(self, text: bytes, at: int, decoder: Decoder, bare: bool) -> None:
        self.text = text
        self.at = at
        self.decoder = decoder
        self.bare = bare
        cuts = boundaries(text, 0, len(text))
        self.pieces = list(
            zip([0, *(opens for _, opens in cuts)], [*(closes for closes, _ in cuts), len(text)], strict=True)
        )
        self.found = Salvaged()
        self.joins = _JOINS
        self.open_at_end = False
        """Whether the last tried piece has open brackets and ends near the end of the text."""

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
        self.found.consumed = start
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
        self.found.events += events
        self.found.consumed = end
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
        self.found.ended = True
        self.found.consumed = consumed
        return True

    def _is_tail(self, text: bytes) -> bool:
        if self.bare:
            return not text.strip()
        return self.decoder.parts(b'{"traceEvents":null' + text) is not None


def _balance(text: bytes, start: int, end: int) -> int:
    """How many brackets stay open, not minding those inside strings."""
    opened = text.count(b"{", start, end) + text.count(b"[", start, end)
    return opened - text.count(b"}", start, end) - text.count(b"]", start, end)
