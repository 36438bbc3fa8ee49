"""The text of a file in chunks: decompressed, and limited in size."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from pytest_perfdl.model.errors import TraceError

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
