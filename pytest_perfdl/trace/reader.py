"""Reads a file to a `Trace`: decompress, decode slice by slice to typed structs, convert those to columns."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_perfdl.model.errors import NotATrace, TraceError
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
