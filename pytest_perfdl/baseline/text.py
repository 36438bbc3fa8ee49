"""The text format of a record: sorted, indented, one row per line, the same bytes for the same record."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_perfdl.model.errors import ConflictedRecordError, RecordError
from pytest_perfdl.model.record_json import from_json, to_json

if TYPE_CHECKING:
    from pytest_perfdl.model.record import Record

LIMIT = 2**26
"""Bytes that a baseline's file may have."""
_MARK = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?=[ \r\n]|\Z)", re.MULTILINE)
"""A line that git writes into a file that it cannot merge; no line of JSON begins like that."""


def dump(record: Record) -> bytes:
    """A record as UTF-8 JSON.

    Keys are sorted; a list of numbers or words, and a member of a list that holds nothing deeper, takes one
    line, so that a changed operator is a changed line. Reading it and dumping again gives the same bytes.

    Raises
    ------
    RecordError
        When a number is not finite, which JSON cannot say.
    """
    try:
        return (_lines(to_json(record), "") + "\n").encode()
    except ValueError as error:
        raise RecordError(f"contains a number that is not finite ({error})") from error


def parse(data: bytes) -> Record:
    """Read what `dump` wrote.

    Raises
    ------
    RecordError
        When it is not JSON, with the place, or has conflict marks of git; when it is not a record, or a newer one; when
        nothing was measured, since whatever is held against such a baseline would pass.
    """
    try:
        decoded = json.loads(data)
    except json.JSONDecodeError as error:
        check_merged(data)
        raise RecordError(
            f"is damaged at line {error.lineno}, column {error.colno} (byte {_byte(error)}): {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(f"is damaged at byte {error.start}: not UTF-8 text") from error
    except RecursionError as error:
        raise RecordError("is damaged: the JSON is nested too deeply") from error
    except ValueError as error:
        raise RecordError("is damaged: a number has over 4300 digits") from error
    record = from_json(decoded)
    if not record.calls or not all(call.series for call in record.calls):
        raise RecordError("contains no measurement: a record needs at least one perf(...) call with metrics")
    return record


def check_merged(data: bytes) -> None:
    """Check that a JSON file has no conflict marks of git.

    Raises
    ------
    ConflictedRecordError
        With the first line that is one, and what to do.
    """
    if mark := _MARK.search(data):
        line = data.count(b"\n", 0, mark.start()) + 1
        raise ConflictedRecordError(
            f"has an unresolved merge conflict at line {line}: take either side (git checkout --ours or --theirs), "
            "then record again with pytest --perf-update=all"
        )


def _byte(error: json.JSONDecodeError) -> int:
    return len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))


def _lines(value: Any, indent: str, *, member: bool = False) -> str:
    if not value or not isinstance(value, (dict, list)) or _flat(value) or (member and _shallow(value)):
        return json.dumps(value, sort_keys=True, allow_nan=False)
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_lines(value[key], deeper)}" for key in sorted(value)]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    parts = [_lines(part, deeper, member=True) for part in value]
    return "[\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}]"


def _flat(value: Any) -> bool:
    """Whether it is a list of scalars."""
    return isinstance(value, list) and not any(isinstance(part, (dict, list)) for part in value)


def _shallow(value: Any) -> bool:
    """Whether it is a mapping to scalars and lists of scalars."""
    return isinstance(value, dict) and all(not isinstance(part, (dict, list)) or _flat(part) for part in value.values())
