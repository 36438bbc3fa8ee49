"""From bytes to `Trace`: decompress, decode into typed structs, turn the structs into columns."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pytest_perfdl.trace.columns import build
from pytest_perfdl.trace.events import ExactEvent, RawEvent, needs_exact_times
from pytest_perfdl.trace.model import Trace, TraceError

_decompress: Callable[[bytes], bytes]
try:
    from isal import igzip  # type: ignore[import-not-found, unused-ignore]

    _decompress = igzip.decompress
except ImportError:
    _decompress = gzip.decompress

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD = 4096
"""Bytes in which a file must begin to have content."""


def read(path: Path | str) -> Trace:
    """Read a Chrome trace of the PyTorch profiler, gzip or not (decided by content, not by name).

    Raises
    ------
    TraceError
        One line that says what is wrong with the file.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    return loads(data, str(path))


def loads(data: bytes, source: str = "") -> Trace:
    """Make a `Trace` of the content of a file; `source` is named in messages.

    Raises
    ------
    TraceError
        One line that says what is wrong with the content.
    """
    where = source or "the trace"
    with _no_gc():
        text = _plain(data, where)
        raw_events, metadata, findings = _top_level(text, where)
        events, skipped = _events(raw_events, where)
        if skipped:
            findings.append(f"{skipped} events are malformed and were left out")
        return build(events, metadata, findings, source)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Keep the cyclic collector out: it would walk all events again and again, and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _plain(data: bytes, where: str) -> bytes:
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        return _decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{where} is damaged: {error}") from error


def _top_level(text: bytes, where: str) -> tuple[msgspec.Raw, dict[str, Any], list[str]]:
    head = text[:_HEAD].lstrip()
    if not head:
        raise TraceError(f"{where} is empty")
    try:
        if head.startswith(b"["):
            return msgspec.Raw(text), {}, []
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise TraceError(f"{where} is not a Chrome trace: its top level is neither an object nor a list") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{where} is not valid JSON: {error}") from error
    events = parts.pop("traceEvents", None)
    if events is None:
        raise TraceError(f"{where} is not a Chrome trace: it has no traceEvents")
    return events, {name: msgspec.json.decode(value) for name, value in parts.items()}, []


def _events(raw: msgspec.Raw, where: str) -> tuple[list[RawEvent], int]:
    """Decode the events; the second value counts those that are not usable and were left out."""
    try:
        events = msgspec.json.decode(raw, type=list[RawEvent])
        if needs_exact_times(events):
            exact = msgspec.json.decode(raw, type=list[ExactEvent])
            return [event.convert() for event in exact], 0
        return events, 0
    except msgspec.ValidationError:
        return _one_by_one(raw, where)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{where} is not valid JSON: {error}") from error


def _one_by_one(raw: msgspec.Raw, where: str) -> tuple[list[RawEvent], int]:
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise TraceError(f"{where} is not a Chrome trace: its traceEvents are not a list") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{where} is not valid JSON: {error}") from error
    decoder = msgspec.json.Decoder(ExactEvent)
    events: list[RawEvent] = []
    for item in items:
        try:
            events.append(decoder.decode(item).convert())
        except msgspec.DecodeError:
            continue
    return events, len(items) - len(events)
