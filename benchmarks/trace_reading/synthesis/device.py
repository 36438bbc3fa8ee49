"""The device as the simulation sees it: streams that work in order, and memory that is given and taken back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from synthesis.nodes import Stream

STREAM_NUMBERS: dict[Stream, int] = {"compute": 7, "communication": 20}
_QUEUE = 1000
"""Launches that a stream holds before a call has to wait."""
_SMALL, _ROUND, _SEGMENT = 1 << 20, 512, 2 << 20
_ADDRESS = 0x7F3C_4000_0000
_HOST_ADDRESS = 0x55D2_0A40_0000


class Streams:
    """When each stream is done with what it was given, and what it has not begun."""

    def __init__(self, now: int) -> None:
        self.free_at: dict[Stream, int] = dict.fromkeys(STREAM_NUMBERS, now)
        self._starts: dict[Stream, deque[int]] = {stream: deque() for stream in STREAM_NUMBERS}

    def room(self, stream: Stream, now: int) -> int:
        """From when on a call can put work on a stream: now, or when the first of a full queue has begun."""
        starts = self._starts[stream]
        while starts and starts[0] <= now:
            starts.popleft()
        return starts[-_QUEUE] if len(starts) >= _QUEUE else now

    def start(self, stream: Stream, earliest: int, duration: int) -> int:
        """Put work on a stream as soon as it may begin; when it begins."""
        begins = max(earliest, self.free_at[stream])
        self.free_at[stream] = begins + duration
        self._starts[stream].append(begins)
        return begins

    def wait(self, waiting: Stream) -> None:
        """The stream goes on when the others are done with what they have."""
        self.free_at[waiting] = max(self.free_at.values())


@dataclass
class Allocator:
    """A caching allocator: freed blocks serve again for the same size, others come from new segments."""

    allocated: int
    reserved: int
    address: int = _ADDRESS
    left: int = 0
    """Bytes of the newest segment that nobody has."""
    cached: dict[int, list[int]] = field(default_factory=dict)

    def take(self, size: int) -> tuple[int, int, int]:
        """Address, rounded size, and the bytes of the segment that was made for it, or 0."""
        rounded = -(-size // _ROUND) * _ROUND
        blocks = self.cached.setdefault(rounded, [])
        made = 0
        if blocks:
            address = blocks.pop()
        else:
            if rounded > self.left:
                made = _SEGMENT if rounded <= _SMALL else -(-rounded // _SEGMENT) * _SEGMENT
                # What is left of the older segment stays unused: new segments are not beside it.
                self.address += self.left
                self.left = made
                self.reserved += made
            address = self.address
            self.address += rounded
            self.left -= rounded
        self.allocated += rounded
        return address, rounded, made

    def give_back(self, address: int, rounded: int) -> None:
        self.cached[rounded].append(address)
        self.allocated -= rounded


def allocators(parameter_bytes: int) -> tuple[Allocator, Allocator]:
    """Of the device, with parameters and optimizer state in place, and of the host."""
    kept = 3 * parameter_bytes
    reserved = -(-kept // _SEGMENT) * _SEGMENT
    return Allocator(kept, reserved, _ADDRESS + reserved), Allocator(0, 0, _HOST_ADDRESS)
