"""Reads a file to a `Trace`: decompress, decode slice by slice to typed structs, convert those to columns."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace.columns import Columns
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.trace.raw_args import SPILL_BYTES
from pytest_perfdl.trace.slices import SLICE, Slices
from pytest_perfdl.trace.source import Progress, Source


def read(
    path: Path | str,
    *,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
    slice_bytes: int = SLICE,
    spill_bytes: int = SPILL_BYTES,
) -> Trace:
    """Read a Chrome trace of the PyTorch profiler, gzip or not (decided by content, not by name).

    The file is decoded in slices and never held whole; of its events only columns and the text of their arguments
    stay. Malformed text is repaired where that can be told, and a file cut short is read up to its last whole
    event: `Trace.findings` says what was done.

    Parameters
    ----------
    path
        The file.
    limit_bytes
        Bytes of decompressed text that are allowed: by default 16 GiB in a plain file and 8 GiB in a compressed
        one, and beyond 256 MiB not over 200 times the compressed size.
    progress
        Called with the bytes of the file that have been read and the bytes it has, some times per MiB of text.
    slice_bytes
        Bytes of text to decode at a time.
    spill_bytes
        Bytes of arguments to hold in memory; more go to a temporary file.

    Raises
    ------
    TraceError
        One line that says what is wrong with the file, with the byte position where there is one.
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
    """Make a `Trace` of the content of a file; `source` is named in messages. Parameters are those of `read`.

    Raises
    ------
    TraceError
        One line that says what is wrong with the content.
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
    """Keep the cyclic collector out: it would walk all events again and again, and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
