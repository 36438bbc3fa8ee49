"""Repairs text that is almost JSON, as old profilers, full disks and scripts leave it.

Only text that strict decoding has rejected is repaired, one event (or the text around the events) at a time, so valid
text is never changed. One scan of regular expressions: well-formed strings and numbers are skipped as a whole, the rest
is read byte by byte. Linear in the length of the text.
"""

from __future__ import annotations

import re
from enum import Enum

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
            position = _string(text, position, parts, made)
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


def _string(text: bytes, start: int, parts: list[bytes], made: Repairs) -> int:
    """Repair the string that opens at `start`; the position after it."""
    ends = _ends(text, start)
    is_path = _WINDOWS_PATH.match(text, start) is not None
    parts.append(b'"')
    position = start + 1
    while position < len(text):
        byte = text[position]
        part = _PART.match(text, position)
        if part is not None and is_path and byte == 0x5C and text[position + 1] != 0x5C:
            # A path may end in a backslash, which then seems to escape the closing quote.
            part = part if text[position + 1] == 0x22 and not _any(ends, text, position + 1) else None
        if part is not None:
            parts.append(part[0])
            position = part.end()
        elif byte == 0x22 and _any(ends, text, position):
            parts.append(b'"')
            return position + 1
        else:
            position = _broken(text, position, parts, made)
    return position


def _broken(text: bytes, position: int, parts: list[bytes], made: Repairs) -> int:
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


def _ends(text: bytes, start: int) -> tuple[re.Pattern[bytes], ...]:
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


def _any(patterns: tuple[re.Pattern[bytes], ...], text: bytes, position: int) -> bool:
    return any(pattern.match(text, position) for pattern in patterns)
