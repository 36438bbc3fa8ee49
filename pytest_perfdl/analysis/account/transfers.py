"""Data on its way to the step: copies between host and device, and waiting for input."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import Launches, launches
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.analysis.events.threads import input_rows, on_thread
from pytest_perfdl.model.copy_names import direction, host_memory
from pytest_perfdl.trace.model import I64, Category, Rows, Trace

# Copies between host and device: bytes of each step, and bytes, time and bandwidth by kind.


_MOST_DIGITS = 19
"""Decimal digits with which a number may pass 64 bits."""


class _Copy(msgspec.Struct, gc=False):
    bytes: int | str = 0
    size: int | str = 0
    """Older ROCm's name for `bytes`; on calls both are numerals in quotes."""

    @property
    def amount(self) -> int:
        """Bytes copied, 0 if unknown."""
        text = str(self.bytes or self.size)
        return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else 0


@dataclass(frozen=True, slots=True)
class CopyRow:
    """The copies or memsets of one kind in a whole file."""

    kind: str
    """`h2d`, `d2h`, `d2d` (within a device), `p2p` (between devices), `h2h`, `memset` or `other`."""
    host_memory: str
    """`pinned` or `pageable`: the host's side of the copy; empty where there is none or the trace does not say."""
    count: int
    bytes: int
    """0 where the trace does not say."""
    total_ns: int
    """Sum of durations; copies that run at once count each."""
    bandwidth: float | None
    """Bytes per second: bytes over durations of the copies whose size is known; `None` without a duration."""


def copied_to_device(trace: Trace) -> tuple[int, ...]:
    """Bytes of the copies from the host to a device that each step launched, from the device's `gpu_memcpy` events.

    The direction is read from the event's name. ROCm writes the size on the launching call, from where it is
    taken if the device event has none. A copy whose launch is not known belongs to the step in whose window it runs.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    step = device_steps(trace)
    own = (trace.category[joined.device] == Category.GPU_MEMCPY) & (_kinds(trace, joined.device) == "h2d") & (step >= 0)
    total = np.zeros(len(steps.windows), dtype=np.int64)
    np.add.at(total, step[own], _sizes(trace, joined.take(own)))
    return tuple(total.tolist())


def copy_figures(trace: Trace) -> tuple[CopyRow, ...]:
    """All copies and memsets of a file by kind and host memory, the longest total first, then by kind.

    Sizes are read as in `copied_to_device`; the direction and the host's memory from the event's name, such as
    `Memcpy HtoD (Pinned -> Device)`.
    """
    joined = launches(trace)
    keep = trace.category[joined.device] != Category.KERNEL
    joined = joined.take(keep)
    sizes, kinds = _sizes(trace, joined), _kinds(trace, joined.device)
    hosts = np.array([host_memory(name) for name in trace.names], dtype=np.str_)[trace.name[joined.device]]
    durations = trace.duration[joined.device]
    rows = []
    for kind, host in sorted(set(zip(kinds.tolist(), hosts.tolist(), strict=True))):
        own = (kinds == kind) & (hosts == host)
        timed = int(durations[own & (sizes > 0)].sum())
        moved = int(sizes[own].sum())
        rows.append(
            CopyRow(
                kind=kind,
                host_memory=host,
                count=int(np.count_nonzero(own)),
                bytes=moved,
                total_ns=int(durations[own].sum()),
                bandwidth=moved / timed * 1e9 if timed else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.kind, row.host_memory)))


def _kinds(trace: Trace, device: Rows) -> np.typing.NDArray[np.str_]:
    """Kind of each copy or memset."""
    named = [direction(name) or "other" for name in trace.names]
    found: np.typing.NDArray[np.str_] = np.array(named, dtype="<U6")[trace.name[device]]
    found[trace.category[device] == Category.GPU_MEMSET] = "memset"
    return found


def _sizes(trace: Trace, joined: Launches) -> I64:
    sizes = np.array([copy.amount for copy in trace.decode_args(joined.device, _Copy)], dtype=np.int64)
    missing = np.flatnonzero((sizes == 0) & joined.linked)
    sizes[missing] = [copy.amount for copy in trace.decode_args(joined.call[missing], _Copy)]
    return sizes


# How long the steps waited for their data.


@dataclass(frozen=True, slots=True)
class InputFigures:
    """Waiting for data; the tuples have one value per step, in the order of the steps. Nanoseconds."""

    waiting_ns: tuple[int, ...]
    """Time inside a DataLoader's `__next__` or `perfdl.data_wait` on the step's thread."""
    exposed_ns: tuple[int, ...]
    """The part of it in which no device event ran: what the step cannot hide; all of it without a device."""
    step_ns: tuple[int, ...]
    """Duration of the step on the host, without its setup."""
    counts: tuple[int, ...]
    """Waits that began in each step."""
    largest_ns: int
    """The longest single wait that began in a step."""
    outside_ns: int
    """Waiting on the step's thread between steps, ahead of the first and after the last."""

    @property
    def share(self) -> float:
        """Exposed waiting as a share of the steps' time, 0 to 1."""
        total = sum(self.step_ns)
        return sum(self.exposed_ns) / total if total else 0.0

    @property
    def count(self) -> int:
        """Waits in all steps together."""
        return sum(self.counts)


def input_pipeline(trace: Trace) -> InputFigures:
    """Waiting for data in each step, on the host.

    A trace shows that a step waited for data, not why: the stall of fetching and that of preparing come apart only by
    runs with synthetic and with cached batches. What worker processes do is not in the trace.
    A trace without ProfilerStep has one step over all its host work (see `steps_of`); one without events none.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    if not steps.windows:
        return InputFigures((), (), (), (), 0, 0)
    rows = on_thread(trace, input_rows(trace), steps.thread)
    waiting = covered(trace, rows)
    exposed = waiting.difference(covered(trace, joined.device))
    step = steps.of_host_time(trace.start[rows])
    durations = trace.duration[rows[step >= 0]]
    times = [steps.host_time(index) for index in range(len(steps.windows))]
    return InputFigures(
        waiting_ns=_within(waiting, times),
        exposed_ns=_within(exposed, times),
        step_ns=tuple(window.host_ns for window in steps.windows),
        counts=tuple(np.bincount(step[step >= 0], minlength=len(times)).tolist()),
        largest_ns=int(durations.max()) if len(durations) else 0,
        outside_ns=waiting.length - waiting.intersection(steps.host).length,
    )


def _within(what: Intervals, times: list[Intervals]) -> tuple[int, ...]:
    return tuple(int(what.within(time.start, time.end).sum()) for time in times)
