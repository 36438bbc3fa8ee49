"""The arguments of all events as JSON text: one store of bytes, and the position of every row in it."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, overload

import msgspec
import numpy as np
import numpy.typing as npt

SPILL_BYTES = 2**29
"""Bytes of arguments that are kept in memory; more of them go to a temporary file, which the system pages."""

_NONE = msgspec.Raw(b"{}")


def join(raws: list[msgspec.Raw]) -> bytes:
    """Comma-separated text of arguments, `{}` for absent ones."""
    if not all(raws):
        raws = [raw if len(raw) else _NONE for raw in raws]
    return b",".join(raws)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RawArgs(Sequence[bytes]):
    """JSON text of each row's arguments, `{}` where an event has none.

    Neighbors in the store are separated by one comma, so that the text of neighboring rows is one slice.
    """

    _store: bytearray | mmap.mmap
    _offsets: npt.NDArray[np.int64]
    _lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, row: int) -> bytes: ...
    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...
    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        start = int(self._offsets[row])
        return bytes(self._store[start : start + int(self._lengths[row])])

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def joined(self, rows: npt.ArrayLike) -> bytes:
        """The text of these rows, comma-separated: between brackets, it is a JSON list."""
        wanted = np.asarray(rows, dtype=np.intp)
        if len(wanted) == 0:
            return b""
        starts = self._offsets[wanted]
        ends = starts + self._lengths[wanted]
        apart = np.flatnonzero(starts[1:] != ends[:-1] + 1)
        starts = starts[np.concatenate(([0], apart + 1))]
        ends = ends[np.concatenate((apart, [len(wanted) - 1]))]
        store = self._store
        return b",".join([store[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])

    def containing(self, rows: npt.ArrayLike, needles: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Whether the text of each of these rows contains one of the needles.

        Searching text costs a tenth of decoding it. A needle must not reach from one row's text into the next.
        """
        wanted = np.asarray(rows, dtype=np.intp)
        text = self.joined(wanted)
        places = [place for needle in needles for place in _places(text, needle)]
        found = np.zeros(len(wanted), dtype=bool)
        found[np.searchsorted(np.cumsum(self._lengths[wanted] + 1, dtype=np.int64), places, side="right")] = True
        return found

    def take(self, rows: npt.ArrayLike) -> RawArgs:
        """The arguments of these rows; the store is shared."""
        wanted = np.asarray(rows, dtype=np.intp)
        return RawArgs(self._store, self._offsets[wanted], self._lengths[wanted])


def _places(text: bytes, needle: bytes) -> Iterator[int]:
    place = text.find(needle)
    while place >= 0:
        yield place
        place = text.find(needle, place + 1)


@dataclass(slots=True)
class ArgsStore:
    """Collects the arguments of one slice of events after the other."""

    spill_bytes: int = SPILL_BYTES
    _size: int = 0
    _memory: bytearray = field(default_factory=bytearray)
    _file: IO[bytes] | None = None
    _offsets: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _lengths: list[npt.NDArray[np.int32]] = field(default_factory=list)

    def add(self, raws: list[msgspec.Raw]) -> None:
        """Append the arguments of further rows.

        Raises
        ------
        OSError
            When the temporary file cannot be written.
        """
        lengths = np.fromiter(map(len, raws), dtype=np.int32, count=len(raws))
        lengths[lengths == 0] = len(_NONE)
        text = join(raws)
        steps = np.cumsum(lengths + 1, dtype=np.int64)
        self._offsets.append(steps - lengths - 1 + self._size)
        self._lengths.append(lengths)
        self._size += len(text) + 1
        if self._file is None and self._size > self.spill_bytes:
            self._file = tempfile.TemporaryFile(prefix="perfdl-trace-")  # noqa: SIM115 (lives as long as the trace)
            self._file.write(self._memory)
            self._memory = bytearray()
        if self._file is None:
            self._memory += text
            self._memory += b","
        else:
            self._file.write(text)
            self._file.write(b",")

    def so_far(self) -> RawArgs:
        """What was added until now."""
        store: bytearray | mmap.mmap = self._memory
        if self._file is not None:
            self._file.flush()
            store = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        offsets = np.concatenate(self._offsets) if self._offsets else np.empty(0, dtype=np.int64)
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, dtype=np.int32)
        return RawArgs(store, offsets, lengths)

    def close(self) -> RawArgs:
        """All of it; a temporary file has no name any more and goes with the mapping."""
        found = self.so_far()
        if self._file is not None:
            self._file.close()
        return found
