"""Decodes text to events and metadata: strictly first, then with repairs, which are noted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.events import ExactEvent, RawEvent, needs_exact_times

# Repairs text that is almost JSON, as old profilers, full disks and scripts leave it.
#
# Only text that strict decoding has rejected is repaired, one event (or the text around the events) at a time, so valid
# text is never changed. One scan of regular expressions: well-formed strings and numbers are skipped as a whole, the
# rest is read byte by byte. Linear in the length of the text.


_PLAIN = rb"[\x20\x21\x23-\x5b\x5d-\x7f]"
_UTF8 = (
    rb"(?:[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})"
)
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = (
    rb"(?:\\[\"\\/bfnrt]|\\u(?![dD][89a-fA-F])" + _HEX + rb"{4}"
    rb"|\\u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2})"
)
# Unrolled, so that a string without an end costs its length and not more.
_STRING = rb'"' + _PLAIN + rb"*(?:(?:" + _UTF8 + rb"|" + _ESCAPE + rb")" + _PLAIN + rb'*)*"'
_VALUE = rb"(?:[\"{\[\-0-9]|true|false|null|(?i:nan|inf))"

_WELL_FORMED = re.compile(
    rb"(?:[\s{}\[\]:0-9.+eE]+|"
    + _STRING
    + rb"(?=\s*(?:[:\]}]|,\s*(?:"
    + _VALUE
    + rb"|[,\]}]|\Z)))|,(?=\s*"
    + _VALUE
    + rb")|-(?=[0-9])|true|false|null){1,1000}"
)
_PART = re.compile(_PLAIN + rb"+|" + _UTF8 + rb"+|" + _ESCAPE)
_NOT_FINITE = re.compile(rb"[+-]?(?:nan(?:\((?:ind|snan)\))?|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_EXTRA_COMMA = re.compile(rb",(?=\s*[\]},])")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]" + _HEX + rb"{2}")
_WINDOWS_PATH = re.compile(rb'"[^"\\]{0,200}[A-Za-z]:\\(?!\\)')

_KEY = rb'"(?:[^"\\]|\\.){0,200}"\s*:'
_ENDS_KEY = re.compile(rb'"\s*:')
_ENDS_VALUE = re.compile(rb'"\s*(?:\}|\Z|,\s*(?:\}|\Z|' + _KEY + rb"))")
_ENDS_ITEM = re.compile(rb'"\s*(?:\]|\Z|,\s*(?:[\],]|\Z|' + _VALUE + rb"))")


class Kind(Enum):
    """Kinds of repairs; the value is the message."""

    NOT_FINITE = "NaN or infinite numbers, which JSON does not allow, were read as null"
    COMMA = "extra commas were ignored"
    CONTROL = "unescaped control characters in strings were read unchanged"
    UNICODE = "invalid Unicode in strings was read as U+FFFD"
    ESCAPE = "invalid escapes in strings were read as backslashes"
    QUOTE = "unescaped quotes in strings were read as part of the string"


Repairs = list[tuple[Kind, int]]
"""What was repaired, and at which byte of the text."""


def repair(text: bytes) -> tuple[bytes, Repairs]:
    r"""Repair what can be told; the result may still not be JSON.

    NaN and infinities in any spelling become null, superfluous commas go, and inside strings control characters
    and backslashes that escape nothing are escaped, invalid Unicode becomes U+FFFD, and a quote that cannot be
    the string's end by what follows it is escaped. In a Windows path (`C:\...`) that holds a backslash which
    escapes nothing, every single backslash is taken for itself.
    """
    parts: list[bytes] = []
    made: Repairs = []
    position = 0
    while position < len(text):
        if well_formed := _WELL_FORMED.match(text, position):
            parts.append(well_formed[0])
            position = well_formed.end()
        elif text[position] == 0x22:
            position = _repair_string(text, position, parts, made)
        elif not_finite := _NOT_FINITE.match(text, position):
            parts.append(b"null")
            made.append((Kind.NOT_FINITE, position))
            position = not_finite.end()
        elif _EXTRA_COMMA.match(text, position):
            made.append((Kind.COMMA, position))
            position += 1
        else:
            parts.append(text[position : position + 1])
            position += 1
    return b"".join(parts), made


def _repair_string(text: bytes, start: int, parts: list[bytes], made: Repairs) -> int:
    """Repair the string that opens at `start`; the position after it."""
    ends = _find_ends(text, start)
    is_path = _WINDOWS_PATH.match(text, start) is not None
    parts.append(b'"')
    position = start + 1
    while position < len(text):
        byte = text[position]
        part = _PART.match(text, position)
        if part is not None and is_path and byte == 0x5C and text[position + 1] != 0x5C:
            # A path may end in a backslash, which then seems to escape the closing quote.
            part = part if text[position + 1] == 0x22 and not _matches_any(ends, text, position + 1) else None
        if part is not None:
            parts.append(part[0])
            position = part.end()
        elif byte == 0x22 and _matches_any(ends, text, position):
            parts.append(b'"')
            return position + 1
        else:
            position = _repair_byte(text, position, parts, made)
    return position


def _repair_byte(text: bytes, position: int, parts: list[bytes], made: Repairs) -> int:
    """Repair what cannot stand inside a string; the position after it."""
    byte = text[position]
    if byte == 0x22:
        parts.append(b'\\"')
        made.append((Kind.QUOTE, position))
    elif byte == 0x5C and (surrogate := _SURROGATE.match(text, position)):
        parts.append(b"\\ufffd")
        made.append((Kind.UNICODE, position))
        return surrogate.end()
    elif byte == 0x5C:
        parts.append(b"\\\\")
        made.append((Kind.ESCAPE, position))
    elif byte < 0x20:
        parts.append(b"\\u%04x" % byte)
        made.append((Kind.CONTROL, position))
    else:
        parts.append(b"\xef\xbf\xbd")
        made.append((Kind.UNICODE, position))
    return position + 1


def _find_ends(text: bytes, start: int) -> tuple[re.Pattern[bytes], ...]:
    """What a closing quote is followed by, told by what stands before the string."""
    before = start - 1
    while before >= 0 and text[before] in b" \t\r\n":
        before -= 1
    context = text[before : before + 1] if before >= 0 else b""
    if context == b"{":
        return (_ENDS_KEY,)
    if context == b":":
        return (_ENDS_VALUE,)
    if context == b"[":
        return (_ENDS_ITEM,)
    return _ENDS_KEY, _ENDS_ITEM


def _matches_any(patterns: tuple[re.Pattern[bytes], ...], text: bytes, position: int) -> bool:
    return any(pattern.match(text, position) for pattern in patterns)


# Decodes text to events and metadata: strictly first, then with repairs, which are noted.


_REPAIR_LIMIT = 2**24
"""Bytes of a piece beyond which it is not repaired: no event is as long."""
_BYTE = re.compile(r"(.*?)\s*\(byte (\d+)\)")


class Notes:
    """What was odd, for `Trace.findings` and for refusals; positions are bytes of the decompressed text."""

    def __init__(self) -> None:
        self.malformed = 0
        """Number of events that were left out."""
        self.other: list[str] = []
        self.error = ""
        """The first invalid JSON and its position; empty if all text was valid."""
        self._repairs: dict[Kind, tuple[int, int]] = {}
        self._first_malformed = 0

    def add_repairs(self, made: Repairs, at: int) -> None:
        """Note repairs in a piece that begins at `at`."""
        for kind, position in made:
            count, first = self._repairs.get(kind, (0, at + position))
            self._repairs[kind] = count + 1, min(first, at + position)

    def add_malformed(self, at: int) -> None:
        """Note a skipped event."""
        if not self.malformed:
            self._first_malformed = at
        self.malformed += 1

    def add_error(self, error: Exception, at: int, length: int) -> None:
        """Note why a text of this length that begins at `at` is not JSON; only the first note is kept."""
        if self.error:
            return
        if isinstance(error, UnicodeDecodeError):
            text, place = "invalid UTF-8", error.start
        elif isinstance(error, RecursionError):
            text, place = "nested too deeply", 0
        elif match := _BYTE.match(str(error)):
            text, place = match[1].removeprefix("JSON is malformed: "), int(match[2])
        else:
            text, place = "unexpected end", length
        self.error = f"{text} (byte {at + place})"

    def findings(self) -> Iterator[str]:
        """All notes, one line per note."""
        yield from self.other
        for kind, (count, first) in sorted(self._repairs.items(), key=lambda item: item[1][1]):
            yield f"{kind.value} ({plural(count, 'time')}, first at byte {first})"
        if self.malformed:
            number = plural(
                self.malformed,
                "malformed event was skipped",
                "malformed events were skipped",
            )
            yield f"{number} (first at byte {self._first_malformed})"


class Decoder:
    """Decodes pieces of the text of a trace."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.truncated = False
        """Whether the text that was last found invalid seems to be incomplete."""
        self._events = msgspec.json.Decoder(list[RawEvent])
        self._exact = msgspec.json.Decoder(list[ExactEvent])
        self._one = msgspec.json.Decoder(ExactEvent)
        self._items = msgspec.json.Decoder(list[msgspec.Raw])
        self._parts = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def events(self, text: bytes, at: int) -> list[RawEvent] | None:
        """The events of a JSON list, whose text after the bracket begins at byte `at`; None if it is none.

        Entries that are JSON but no events are left out and noted.
        """
        try:
            _check_unicode(text)
            events = self._events.decode(text)
            if needs_exact_times(events):
                return [event.convert() for event in self._exact.decode(text)]
            return events
        except msgspec.ValidationError:
            return self._one_by_one(text, at)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.truncated = not isinstance(error, UnicodeDecodeError) and _BYTE.match(str(error)) is None
            self.notes.add_error(error, at - 1, len(text) - text.endswith(b"]"))
            return None

    def piece(self, text: bytes, at: int) -> list[RawEvent] | None:
        """Events that stand between commas: as they are, or repaired; None if that does not help."""
        events = self.events(b"[" + text + b"]", at)
        if events is not None or len(text) > _REPAIR_LIMIT:
            return events
        repaired, made = repair(text)
        if not made:
            return None
        events = self.events(b"[" + repaired + b"]", at)
        if events is not None:
            self.notes.add_repairs(made, at)
        return events

    def has_time(self, text: bytes) -> bool:
        """Whether there is an event with a time among those that stand between commas, as they are."""
        try:
            return any(event.ts is not None for event in self._events.decode(b"[" + text + b"]"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False

    def parts(self, text: bytes) -> dict[str, msgspec.Raw] | None:
        """The values of a JSON object, undecoded; None if the text is none.

        Raises
        ------
        msgspec.ValidationError
            When the text is JSON, but no object.
        """
        try:
            _check_unicode(text)
            return self._parts.decode(text)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def metadata(self, before: bytes, text: bytes, after: bytes, at: int) -> dict[str, Any] | None:
        """Metadata from a part of the top-level object, made whole by what is put before and after it."""
        whole = before + text + after
        parts = self.parts(whole)
        if parts is None and len(whole) <= _REPAIR_LIMIT:
            repaired, made = repair(whole)
            parts = self.parts(repaired) if made else None
            if parts is not None:
                self.notes.add_repairs(made, at - len(before))
        return None if parts is None else self.values(parts)

    def values(self, parts: dict[str, msgspec.Raw]) -> dict[str, Any]:
        """Decoded metadata, without the events."""
        found: dict[str, Any] = {}
        for name, value in parts.items():
            if name == "traceEvents":
                continue
            try:
                found[name] = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                self.notes.other.append(f"metadata {name!r} cannot be decoded and was skipped")
        return found

    def _one_by_one(self, text: bytes, at: int) -> list[RawEvent] | None:
        try:
            items = self._items.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            self.notes.add_error(error, at - 1, len(text) - text.endswith(b"]"))
            return None
        origin = _address(text)
        events: list[RawEvent] = []
        for item in items:
            try:
                events.append(self._one.decode(item).convert())
            except (msgspec.DecodeError, RecursionError):
                self.notes.add_malformed(at - 1 + _address(item) - origin)
        return events


def end_of_object(text: bytes) -> int | None:
    """Where the JSON value at the start of a text ends, whatever follows it; None if there is none."""
    try:
        # As Latin-1 a character is a byte, so that positions are the same.
        return json.JSONDecoder(strict=False).raw_decode(text.decode("latin-1"))[1]
    except (ValueError, RecursionError):
        return None


def _check_unicode(text: bytes | msgspec.Raw) -> None:
    """Raise UnicodeDecodeError where text that is passed over undecoded would later be no Unicode."""
    if isinstance(text, bytes) and not text.isascii():
        text.decode()


def _address(data: bytes | msgspec.Raw) -> int:
    """Where the bytes lie in memory."""
    return int(np.frombuffer(data, dtype=np.uint8).__array_interface__["data"][0])
