"""Reads snapshots of the device allocator (`torch.cuda.memory._dump_snapshot`) without executing them.

A snapshot is a pickle, and a pickle is a program. It is read in a child process that can look up no class and no
function, under limits of memory and time. The child checks the structure, and returns columns of numbers and a table of
strings; problems of a file become one line.

The format: `torch/cuda/memory.py` (`_snapshot`) and `torch/cuda/_memory_viz.py` of PyTorch. Unknown keys and actions of
later versions are ignored; of earlier ones (1.13 to 2.0), blocks without address or with a `history` instead of frames
are read, and files that are a bare list of segments.
"""

from __future__ import annotations

import copyreg
import gc
import os
import pickle
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn

import orjson

import pytest_perfdl
from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.model.untrusted_files import size as shown_size
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system import processes

if TYPE_CHECKING:
    # The child does without numpy, which would be most of the time and memory that it takes for a small file.
    import numpy as np
    import numpy.typing as npt

    from pytest_perfdl.trace.model import I32, I64

LIMIT = 2**30
"""Bytes that a file may have."""
TIMES_THE_FILE = 10
"""How many times the file's size the child's memory may grow by, besides `ALLOWANCE`."""
ALLOWANCE = 2**29
"""Bytes of memory that the child may take for a file of any size."""

_LARGEST = 2**62
"""Of any figure, and of the sum of all sizes: sums of 64-bit columns are then exact."""
_LAST_US = 2**52
"""Microseconds since 1970, in the year 2112: nanoseconds between two such times fit 64 bits."""
_MOST_DEVICES = 1024
_MOST_FRAMES = 256
"""Frames of a stack that are read, the innermost first."""
_MOST_CHARACTERS = 1000
"""Of a string."""
_BYTES_PER_EVENT = 8
"""Least that an event or a block takes in a file; where there are more, the file repeats one by reference."""
_SECONDS = 60.0
_SECONDS_PER_BYTE = 1.0 / 2**20
"""Many times what reading takes: 200 MB take some seconds."""
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_ADVICE = "use a file that torch.cuda.memory._dump_snapshot() wrote"


class Action(IntEnum):
    """What the allocator did; mapping memory into an expandable segment is allocating a segment, and so on."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The tensor is gone."""
    FREE_COMPLETED = 2
    """The memory can be used again: later than requested where another stream still used it."""
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    OOM = 5


_ACTIONS = {
    "alloc": Action.ALLOC,
    "free": Action.FREE_REQUESTED,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_map": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_unmap": Action.SEGMENT_FREE,
    "oom": Action.OOM,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on a stack, of Python or of C++."""

    path: str
    line: int
    """0 where it is not known."""
    function: str


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSnapshot:
    """One device: its history, one row per event in the order of time, and the blocks in use at the end of it."""

    index: int
    reserved_bytes: int
    """Bytes of all segments at the end."""
    actions: npt.NDArray[np.int8]
    """`Action` of each event."""
    addresses: I64
    """Of the memory; of `Action.OOM`, the bytes that the device had free."""
    sizes: I64
    """Bytes requested, before rounding; of segments, their bytes."""
    times_us: I64
    """Microseconds since 1970; -1 where the file has none."""
    stacks: I32
    """Index into `Snapshot.stacks`, -1 for none."""
    block_addresses: I64
    block_sizes: I64
    """Bytes, rounded by the allocator."""
    block_requested: I64
    """Bytes requested; -1 where the file does not say."""
    block_stacks: I32
    """Index into `Snapshot.stacks`, -1 for none."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What a file holds of every device."""

    source: str
    """The file's name."""
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    """Distinct stacks, as indexes into `frames`, the innermost first."""
    devices: tuple[DeviceSnapshot, ...]
    """Those with a segment or an event, by index."""


def read_snapshot(path: Path, *, limit_bytes: int = LIMIT, seconds: float | None = None) -> Snapshot:
    """Read a device memory snapshot of PyTorch in a child process, without executing anything of it.

    Parameters
    ----------
    path
        A pickle that `torch.cuda.memory._dump_snapshot` wrote, or of what `torch.cuda.memory._snapshot` returned.
    limit_bytes
        Bytes that the file may have. The child's memory may grow by 10 times the file's size and 512 MiB.
    seconds
        Time limit; by default 60 s, and another second per MiB of the file.

    Returns
    -------
    Snapshot
        Columns of events and blocks per device, and the stacks that they refer to.

    Raises
    ------
    TraceError
        One line that names the file, says what is wrong with it, and what to do.
    """
    where = visible(str(path))
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise TraceError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not path.is_file():
        raise TraceError(f"{where} is not a regular file: {_ADVICE}")
    if size > limit_bytes:
        raise TraceError(
            f"{where} is larger than {shown_size(limit_bytes)}: record fewer events "
            "(torch.cuda.memory._record_memory_history(max_entries=...)), or raise the limit: "
            "read_snapshot(path, limit_bytes=...)"
        )
    output = _child(path, where, _SECONDS + size * _SECONDS_PER_BYTE if seconds is None else seconds)
    line, _, columns = output.partition(b"\n")
    try:
        header = orjson.loads(line)
        if "refused" not in header:
            return _receive(header, columns, where)
    except (ValueError, KeyError, TypeError, IndexError):
        raise TraceError(f"{where}: the process that reads the file failed: {_ADVICE}") from None
    raise TraceError(f"{where} cannot be used: {header['refused']}")


def _child(path: Path, where: str, seconds: float) -> bytes:
    """The answer of a child process that reads the file."""
    # By its path, not by its name: its package would import numpy.
    command = [sys.executable, "-W", "ignore", "-c", _RUN, __file__, str(path.absolute()), str(int(seconds) + 1)]
    # In the folder that holds the package: it is then found, and no module of the user's folder is.
    folder = Path(pytest_perfdl.__file__).parents[1]
    try:
        done = processes.run(command, folder, seconds=seconds, environment=os.environ)
    except subprocess.TimeoutExpired:
        raise TraceError(
            f"{where} takes longer than {seconds:g} s to read, too long for a snapshot: {_ADVICE}"
        ) from None
    except OSError as error:
        raise TraceError(
            f"{where} cannot be read: the process that reads the file cannot be started ({error.strerror or error})"
        ) from None
    if done.code:
        raise TraceError(f"{where} cannot be used: {_describe_end(done.code)}: {_ADVICE}")
    return done.output


def _describe_end(code: int) -> str:
    if code == -getattr(signal, "SIGXCPU", 0):
        return "the file takes too long to read for a snapshot"
    try:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    except ValueError:
        how = f"was killed by signal {-code}"
    return f"the process that reads the snapshot {how} (out of memory, or the file is damaged)"


def _receive(header: Mapping[str, Any], columns: bytes, where: str) -> Snapshot:
    """The snapshot in a child's answer: a line of JSON and the bytes of the columns that it lists."""
    import numpy as np

    place = 0

    def column(entry: Sequence[Any]) -> npt.NDArray[Any]:
        nonlocal place
        kind, count = np.dtype(entry[0]), int(entry[1])
        found = np.frombuffer(columns, dtype=kind, count=count, offset=place)
        place += found.nbytes
        return found

    frames, lengths, flat = (column(entry) for entry in header["tables"])
    strings = header["strings"]
    return Snapshot(
        source=where,
        frames=tuple(Frame(strings[path], line, strings[name]) for path, line, name in frames.reshape(-1, 3).tolist()),
        stacks=tuple(_split(flat.tolist(), lengths.tolist())),
        devices=tuple(
            DeviceSnapshot(device["index"], device["reserved"], *map(column, device["columns"]))
            for device in header["devices"]
        ),
    )


def _split(flat: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    place = 0
    for length in lengths:
        yield tuple(flat[place : place + length])
        place += length


# What follows runs in the child.


class _Refused(Exception):
    """Why a file cannot be used, to follow its name; one line."""


class _PlainUnpickler(pickle.Unpickler):
    """Makes numbers, strings, lists and dictionaries, and nothing else.

    All that a pickle can call it first has to look up, by `find_class` or, for extension codes, in copyreg's registry
    and then by `find_class`.
    """

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        name = visible(f"{module_name}.{global_name}"[:100])
        raise _Refused(f"the file refers to {name}, but a snapshot contains only plain values: {_ADVICE}")

    def persistent_load(self, _: Any, /) -> NoReturn:
        raise _Refused(f"the file refers to external objects, but a snapshot contains only plain values: {_ADVICE}")


def _unpickle(file: IO[bytes], limit: int) -> object:
    copyreg.clear_extension_cache()
    try:
        return _PlainUnpickler(file).load()
    except _Refused:
        raise
    except MemoryError:
        raise _Refused(
            f"the file needs more than {shown_size(limit)} of memory, too much for its size: {_ADVICE}"
        ) from None
    except EOFError:
        raise _Refused("the pickle is truncated: copy or write the file again") from None
    except Exception as error:
        if "truncated" in str(error):
            raise _Refused("the pickle is truncated: copy or write the file again") from None
        raise _Refused(f"the file is not a pickle of plain values ({visible(str(error))[:100]}): {_ADVICE}") from None


class _Device:
    """Columns of one device, as they grow."""

    def __init__(self) -> None:
        self.reserved = 0
        self.bytes = 0
        """Total size of all events and blocks, in bytes."""
        self.actions = array("b")
        self.addresses, self.sizes, self.times = array("q"), array("q"), array("q")
        self.stacks = array("i")
        self.block_addresses, self.block_sizes, self.block_requested = array("q"), array("q"), array("q")
        self.block_stacks = array("i")

    def columns(self) -> tuple[array[int], ...]:
        """In the order of the fields of `DeviceSnapshot`."""
        return (
            *(self.actions, self.addresses, self.sizes, self.times, self.stacks),
            *(self.block_addresses, self.block_sizes, self.block_requested, self.block_stacks),
        )


class _Reader:
    """Checks what a pickle holds and makes columns of it.

    It never goes deeper than the format does, and counts what it passes: neither an object that holds itself nor one
    that is referred to over and over can make it long.
    """

    def __init__(self, size: int) -> None:
        self._left = size // _BYTES_PER_EVENT + 16
        self.devices: dict[int, _Device] = {}
        self.strings: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        # By identity: nothing that was unpickled is freed before the end.
        self._frames_seen: dict[int, int] = {}
        self._stacks_seen: dict[tuple[int, ...], int] = {}

    def read(self, data: object) -> None:
        """All of it; a bare list is one of segments, as in `_memory_viz._read`."""
        if type(data) is list:
            data = {"segments": data}
        if type(data) is not dict or "segments" not in data:
            raise _Refused(f"the file is not a memory snapshot, because 'segments' is missing: {_ADVICE}")
        for place, segment in enumerate(_list(data["segments"], "segments")):
            self._segment(segment, f"segments[{place}]")
        for index, events in enumerate(_list(data.get("device_traces", []), "device_traces")):
            where = f"device_traces[{index}]"
            self._history(index, _list(events, where), where)

    def _device(self, index: int, where: str) -> _Device:
        if index not in self.devices:
            if index >= _MOST_DEVICES:
                raise _malformed(f"{where}: device number is {_MOST_DEVICES} or above")
            self.devices[index] = _Device()
        return self.devices[index]

    def _count(self, where: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise _malformed(f"{where}: too many entries for a file of this size")

    def _segment(self, segment: object, where: str) -> None:
        self._count(where)
        fields = _dict(segment, where)
        device = self._device(_figure(fields.get("device", 0), f"{where}.device"), where)
        device.reserved += _figure(fields.get("total_size"), f"{where}.total_size")
        if device.reserved > _LARGEST:
            raise _malformed(f"{where}: the total size of its segments is too large")
        address = _figure(fields.get("address"), f"{where}.address")
        for place, block in enumerate(_list(fields.get("blocks"), f"{where}.blocks")):
            address += self._block(device, block, address, f"{where}.blocks[{place}]")

    def _block(self, device: _Device, block: object, address: int, where: str) -> int:
        """Read a block that lies at `address` unless it says otherwise; its size."""
        self._count(where)
        fields = _dict(block, where)
        size = _figure(fields.get("size"), f"{where}.size")
        if type(fields.get("state")) is not str:
            raise _malformed(f"{where}.state is not a string")
        if fields["state"] != "active_allocated":
            return size
        _add(device, size, where)
        last = _last_of_history(fields, where)
        requested = fields.get("requested_size", last.get("real_size"))
        device.block_addresses.append(_figure(fields.get("address", address), f"{where}.address"))
        device.block_sizes.append(size)
        device.block_requested.append(-1 if requested is None else _figure(requested, f"{where}.requested_size"))
        device.block_stacks.append(self._stack(fields.get("frames", last.get("frames")), where))
        return size

    def _history(self, index: int, events: list[Any], where: str) -> None:
        if not events:
            return
        device = self._device(index, where)
        for place, event in enumerate(events):
            self._event(device, event, where, place)

    def _event(self, device: _Device, event: Any, where: str, place: int) -> None:
        # A million times over: an event's place is put into words only where something is wrong with it.
        self._left -= 1
        if self._left < 0:
            self._count(f"{where}[{place}]")
        if type(event) is not dict or type(event.get("action")) is not str:
            raise _malformed(f"{where}[{place}].action is not a string")
        action = _ACTIONS.get(event["action"])
        if action is None:
            return
        address = event.get("device_free" if action is Action.OOM else "addr", event.get("address"))
        size, time = event.get("size"), event.get("time_us")
        if type(address) is not int or not 0 <= address <= _LARGEST:
            raise _not_a_figure(f"{where}[{place}].addr")
        if type(size) is not int or not 0 <= size <= _LARGEST:
            raise _not_a_figure(f"{where}[{place}].size")
        if time is not None and (type(time) is not int or not 0 <= time <= _LAST_US):
            raise _not_a_figure(f"{where}[{place}].time_us")
        _add(device, size, where)
        device.actions.append(action)
        device.addresses.append(address)
        device.sizes.append(size)
        device.times.append(-1 if time is None else time)
        device.stacks.append(self._stack(event.get("frames"), where))

    def _stack(self, frames: object, where: str) -> int:
        if frames is None:
            return -1
        if type(frames) is not list:
            raise _malformed(f"{where}: frames is not a list")
        if not frames:
            return -1
        key = tuple(map(id, frames if len(frames) <= _MOST_FRAMES else frames[:_MOST_FRAMES]))
        found = self._stacks_seen.get(key)
        if found is None:
            stack = tuple(self._frame(frame, where) for frame in frames[:_MOST_FRAMES])
            found = self._stacks_seen[key] = self.stacks.setdefault(stack, len(self.stacks))
        return found

    def _frame(self, frame: object, where: str) -> int:
        found = self._frames_seen.get(id(frame))
        if found is None:
            fields = _dict(frame, f"a frame in {where}")
            path, line, name = fields.get("filename"), fields.get("line"), fields.get("name")
            if type(path) is not str or type(name) is not str or type(line) is not int:
                raise _malformed(f"a frame in {where} has no file name, line or name")
            # Of code without a line Python gives -1, and C++ any number.
            known = line if 0 <= line < 2**31 else 0
            key = (self._string(path), known, self._string(name))
            found = self._frames_seen[id(frame)] = self.frames.setdefault(key, len(self.frames))
        return found

    def _string(self, text: str) -> int:
        return self.strings.setdefault(visible(text[:_MOST_CHARACTERS]), len(self.strings))

    def answer(self) -> Iterator[bytes]:
        """A line of JSON and the columns, as `_receive` reads them."""
        frames, lengths, flat = array("q"), array("i"), array("i")
        for frame in self.frames:
            frames.extend(frame)
        for stack in self.stacks:
            lengths.append(len(stack))
            flat.extend(stack)
        tables, devices = (frames, lengths, flat), sorted(self.devices.items())
        header = {
            "strings": list(self.strings),
            "tables": [(each.typecode, len(each)) for each in tables],
            "devices": [
                {
                    "index": index,
                    "reserved": device.reserved,
                    "columns": [(each.typecode, len(each)) for each in device.columns()],
                }
                for index, device in devices
            ],
        }
        yield orjson.dumps(header) + b"\n"
        yield from (each.tobytes() for each in tables)
        yield from (each.tobytes() for _, device in devices for each in device.columns())


def _malformed(what: str) -> _Refused:
    return _Refused(f"the snapshot is malformed: {what}: {_ADVICE}")


def _not_a_figure(where: str) -> _Refused:
    limit = _LAST_US if where.endswith("time_us") else _LARGEST
    return _malformed(f"{where} is not an integer from 0 to 2**{limit.bit_length() - 1}")


def _figure(value: object, where: str) -> int:
    # The type itself: True is an int too.
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise _not_a_figure(where)
    return value


def _list(value: object, where: str) -> list[Any]:
    if type(value) is not list:
        raise _malformed(f"{where} is not a list")
    return value


def _dict(value: object, where: str) -> Mapping[Any, Any]:
    if type(value) is not dict:
        raise _malformed(f"{where} is not a dictionary")
    return value


def _add(device: _Device, size: int, where: str) -> None:
    device.bytes += size
    if device.bytes > _LARGEST:
        raise _malformed(f"{where}: the total of its block sizes is too large")


def _last_of_history(block: Mapping[Any, Any], where: str) -> Mapping[Any, Any]:
    """What a block of an early version tells of its present allocation, as in `_memory_viz._block_extra_legacy`."""
    history = block.get("history")
    return _dict(_list(history, f"{where}.history")[0], f"{where}.history[0]") if history else {}


def _limit_memory(size: int) -> int:
    """Limit what this process may take from here on; how much that is, in bytes."""
    most = TIMES_THE_FILE * size + ALLOWANCE
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + most)
        _lower(resource.RLIMIT_CORE, 0)
    except (ImportError, OSError, ValueError):
        # The time limit stays.
        pass
    return most


def _limit_time(seconds: int) -> None:
    """End this process after as much time of a CPU, should its parent be gone by then."""
    try:
        import resource

        _lower(resource.RLIMIT_CPU, seconds)
    except (ImportError, OSError, ValueError):
        pass


def _lower(kind: int, limit: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    new = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (new, hard))


def _answer(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            limit = _limit_memory(size)
            reader = _Reader(size)
            try:
                reader.read(_unpickle(file, limit))
                yield from reader.answer()
            except MemoryError:
                raise _Refused(
                    f"the file needs more than {shown_size(limit)} of memory, too much for a snapshot: {_ADVICE}"
                ) from None
    except _Refused as error:
        yield _refusal(str(error))
    except OSError as error:
        yield _refusal(f"the file cannot be read: {error.strerror or type(error).__name__}")


def _refusal(text: str) -> bytes:
    refused: dict[Literal["refused"], str] = {"refused": visible(text)}
    return orjson.dumps(refused)


def main(path: str, seconds: str) -> None:
    """Write what a file holds to standard output."""
    # The cyclic collector would walk all that is unpickled again and again.
    gc.disable()
    _limit_time(int(seconds))
    for piece in _answer(path):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    # Without freeing a million objects one by one.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[-2:])
