"""Optimizations as functions from a graph to a plan, by name; users add their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from pytest_perfdl.analysis.events.operators import operator_at
from pytest_perfdl.analysis.overview.memory_timeline import memory_timeline
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.model.units import parse_quantity
from pytest_perfdl.trace.model import I64, Rows, Trace, once
from pytest_perfdl.whatif.editing.edit import Plan, registering
from pytest_perfdl.whatif.machine import machine_of
from pytest_perfdl.whatif.model import Mask, TaskGraph
from pytest_perfdl.whatif.simulation.quality import Trust

# From when until when each piece of memory was allocated, so that a change of that shows in the peak.


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
        gone = replace(self, end=np.where(chosen, np.minimum(until, self.end), self.end))
        return gone.joined(since[again], self.end[again], self.bytes[again], self.row[again])

    def joined(self, *more: I64) -> Lifetimes:
        """These and more allocations, by the columns in their order."""
        columns = (self.begin, self.end, self.bytes, self.row)
        return Lifetimes(self.base_bytes, *map(np.concatenate, zip(columns, more, strict=True)))

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


# Optimizations as functions from a graph to a plan, by name; users add their own.
#
#     @transform("no_python")
#     def no_python(context: Context) -> Change:
#         """What if the host spent no time between operators."""
#         return Change(Plan().scale(Select(kind=TaskKind.GAP), 0.0))
#
#     predict(Context(graph), "no_python").gain
#
# A transform says in its docstring what it computes, what it takes for granted and where that is from. Where a constant
# that it needs is not known it raises `MissingConstant` instead of guessing.


class NotRecorded(NotApplicable):
    """Whether there is something to change is not known; the message says what would tell."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a transform may look at."""

    graph: TaskGraph
    machine: Machine = field(default_factory=Machine)
    """Figures that take precedence over those that the trace tells."""

    @property
    def trace(self) -> Trace:
        """The trace of the graph.

        Raises
        ------
        NotApplicable
            If the graph was not made from one.
        """
        if self.graph.trace is None:
            raise NotRecorded("operators and modules are only known in a graph that was made from a trace")
        return self.graph.trace

    @property
    def known(self) -> Machine:
        """What is known of the machine: given, else told by the trace."""
        return self.machine if self.graph.trace is None else self.machine.or_else(machine_of(self.graph.trace))

    @property
    def memory(self) -> Lifetimes | None:
        """The allocations on the device that computes; `None` for a trace without memory events."""
        return None if self.graph.trace is None else lifetimes(self.graph.trace)

    def peak(self, changed: Callable[[Lifetimes], Lifetimes]) -> int | None:
        """Peak memory with other allocations; `None` for a trace without memory events."""
        return None if self.memory is None else changed(self.memory).peak_bytes


@dataclass(frozen=True, slots=True)
class Change:
    """What a transform does to a graph."""

    plan: Plan
    """The edits, with the likeliest constants."""
    fast: Plan | None = None
    """The same with constants at the favorable end of their range; `None` where no constant was taken."""
    slow: Plan | None = None
    peak_bytes: int | None = None
    """Peak of allocated memory afterwards, where it changes and the trace has memory events."""
    trust: Trust = "ok"
    """Of the transform itself, whatever the graph's is."""
    notes: tuple[str, ...] = ()
    """What was taken for granted about this graph, one line each."""

    @classmethod
    def of(
        cls, plans: Sequence[Plan], peak_bytes: int | None = None, trust: Trust = "ok", notes: tuple[str, ...] = ()
    ) -> Change:
        """A change from three plans: with the likeliest constants, the favorable ones, the unfavorable ones."""
        likely, fast, slow = plans
        return cls(likely, fast, slow, peak_bytes, trust, notes)


Transform = Callable[..., Change]
"""Takes a `Context` and parameters by name, of type int, float, str or bool."""

TRANSFORMS: dict[str, Transform] = {}
"""Those that are registered, by name. `whatif.transforms` has it with those that come with the package."""

OF_JOBS: set[str] = set()
"""Names of those that look at all ranks of a job at once; the others are asked of each rank for itself."""

Function = TypeVar("Function", bound=Transform)


def transform(name: str, *, of_job: bool = False) -> Callable[[Function], Function]:
    """Register a transform under a name, for `predict` and `perfdl whatif --apply`.

    With `of_job` it is given the graph of a whole job where there are several ranks, and returns a change of that.

    Raises
    ------
    ValueError
        If the name is taken by another function.
    """
    if of_job:
        OF_JOBS.add(name)
    return registering(TRANSFORMS, name, "a transform")


def quantity(text: str) -> float:
    """A number, or a size such as 25GB in bytes.

    Raises
    ------
    ValueError
        If it is neither.
    """
    try:
        return float(text)
    except ValueError:
        return parse_quantity(text, "B")
