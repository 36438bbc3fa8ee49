"""The little of a record that lists and estimates need, without decoding the rest: for projects with many baselines."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pytest_perfdl.model.errors import RecordError
from pytest_perfdl.model.record_json import SCHEMA, check_schema


class OutlinedOccasion(msgspec.Struct, frozen=True):
    """When and how long processes ran."""

    repeats: int
    date: str
    commit: str | None = None
    seconds: float | None = None


class OutlinedSeries(msgspec.Struct, frozen=True):
    """The values of a metric."""

    unit: str
    values: list[float]


class OutlinedCall(msgspec.Struct, frozen=True):
    """The metrics of a call."""

    name: str
    metrics: dict[str, OutlinedSeries]


class _Key(msgspec.Struct, frozen=True):
    slug: str


class Times(msgspec.Struct, frozen=True):
    """The occasions of a record, and nothing else."""

    schema: int
    test: str
    occasions: list[OutlinedOccasion]


class Outline(Times, frozen=True):
    """A record without its rows and its code."""

    key: _Key
    calls: list[OutlinedCall]
    note: str | None = None


_T = TypeVar("_T", bound=Times)
_TIMES = msgspec.json.Decoder(Times)
_OUTLINE = msgspec.json.Decoder(Outline)


def times(data: bytes) -> Times:
    """The occasions of a record.

    Raises
    ------
    RecordError
        When this is not the file of a record. Other parts are not checked: `text.parse` does that.
    """
    return _decoded(_TIMES, data)


def outline(data: bytes) -> Outline:
    """The outline of a record; errors as of `times`."""
    found = _decoded(_OUTLINE, data)
    if not any(call.metrics for call in found.calls):
        raise RecordError("contains no measurement")
    return found


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    try:
        found = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"is malformed ({error})") from error
    check_schema(found.schema, SCHEMA)
    if not found.occasions:
        raise RecordError("has no occasion")
    return found
