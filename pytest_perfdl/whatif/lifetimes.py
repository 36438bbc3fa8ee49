"""From when until when each piece of memory was allocated, so that a change of that shows in the peak."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.analysis.events.operator_time import operator_at
from pytest_perfdl.analysis.overview.memory_timeline import memory_timeline
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I64, Rows, Trace
from pytest_perfdl.whatif.model import Mask

_CPU = 0
"""c10::DeviceType of the processor."""
_ALWAYS = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Allocations of one device, in the order in which they were made: columns of equal length."""

    base_bytes: int
    """Allocated before the first of them and never freed in the trace."""
    begin: I64
    """Nanoseconds; that of the trace's first memory event for what was allocated before and freed in the trace."""
    end: I64
    """When it was freed; far behind the trace for what was not."""
    bytes: I64
    row: Rows
    """The innermost operator around the allocation, -1 for none."""

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def peak_bytes(self) -> int:
        """Most bytes allocated at once. What is freed at a moment makes room for what is allocated at it."""
        moments = np.concatenate((self.begin, self.end))
        change = np.concatenate((self.bytes, -self.bytes))
        order = np.lexsort((change, moments))
        return self.base_bytes + int(np.cumsum(change[order]).max(initial=0))

    def scaled(self, chosen: Mask, factor: float) -> Lifetimes:
        """Some of them of another size."""
        size = self.bytes.copy()
        size[chosen] = np.rint(size[chosen] * factor).astype(np.int64)
        return replace(self, bytes=size)

    def freed_between(self, chosen: Mask, until: I64, since: I64) -> Lifetimes:
        """Some of them away from `until` to `since`, one moment each: freed then, and allocated again."""
        again = chosen & (since < self.end)
        return Lifetimes(
            base_bytes=self.base_bytes,
            begin=np.concatenate((self.begin, since[again])),
            end=np.concatenate((np.where(chosen, np.minimum(until, self.end), self.end), self.end[again])),
            bytes=np.concatenate((self.bytes, self.bytes[again])),
            row=np.concatenate((self.row, self.row[again])),
        )

    def with_more(self, size: int) -> Lifetimes:
        """The same with memory that is allocated all the time, or less of it."""
        return replace(self, base_bytes=self.base_bytes + size)


@once
def lifetimes(trace: Trace) -> Lifetimes | None:
    """The allocations on the device with most memory in use, accelerators first; `None` without memory events.

    A free ends the latest allocation at its address. On traces of 2021, which have no addresses, `None`.
    """
    timelines = memory_timeline(trace)
    own = [each for each in timelines if each.device_type != _CPU] or list(timelines)
    if not own:
        return None
    device = max(own, key=lambda each: each.peak_allocated_bytes)
    memory = trace.memory
    events = np.flatnonzero((memory.device_type == device.device_type) & (memory.device_id == device.device_id))
    if (memory.address[events] == -1).any():
        return None
    first = int(memory.time[events[0]])
    base = device.base_bytes or 0
    open_at: dict[int, list[int]] = {}
    begin: list[int] = []
    end: list[int] = []
    size: list[int] = []
    of: list[int] = []
    columns = (events, memory.address[events], memory.bytes[events], memory.time[events])
    for event, address, amount, time in zip(*(column.tolist() for column in columns), strict=True):
        if amount > 0:
            open_at.setdefault(address, []).append(len(begin))
            begin.append(time)
            end.append(_ALWAYS)
            size.append(amount)
            of.append(event)
        elif owners := open_at.get(address):
            end[owners.pop()] = time
        else:
            base += amount
            begin.append(first)
            end.append(time)
            size.append(-amount)
            of.append(-1)
    sources = np.array(of, dtype=np.intp)
    row = np.full(len(sources), -1, dtype=np.intp)
    known = sources >= 0
    where = sources[known]
    row[known] = operator_at(trace, memory.time[where], memory.pid[where], memory.tid[where])
    return Lifetimes(
        base, np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64), np.array(size, dtype=np.int64), row
    )
