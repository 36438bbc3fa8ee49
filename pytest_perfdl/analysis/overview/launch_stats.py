"""How the host feeds the device: delay of launches, what the calls cost, and how much work is queued."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.device_steps import streams_of
from pytest_perfdl.analysis.events.launches import Launches, launches
from pytest_perfdl.trace.model import I64, Category, Rows, Trace


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of durations, nanoseconds; each quantile is one of the values, the lower where two meet."""

    mean_ns: float
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class StreamQueue:
    """Work launched on one stream and not yet started, from its first launch to the last start."""

    device: int
    stream: int
    launches: int
    max_length: int
    mean_length: float
    """Weighted by time; 0 where there is none."""
    span_ns: int
    """From the stream's first launching call to the last start of what was launched."""
    empty_ns: int
    """Time of the span during which nothing was queued: the device could only wait for the host."""


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """The calls of a trace whose device work is in it, each counted once, a graph launch too."""

    launches: int
    delay: Quantiles
    """Start of the call's first device event minus start of the call; negative where clocks disagree."""
    call: Quantiles
    """Durations of the calls."""
    kernel_launches: int
    """Calls that launch at least one kernel."""
    short_kernels: int
    """Those of `kernel_launches` that last longer than all the device work they launch, their kernels together."""
    queues: tuple[StreamQueue, ...]
    """By device, then by stream."""


def launch_stats(trace: Trace) -> LaunchStats | None:
    """Join device events (kernels, copies, memsets) to their calls and sum up; `None` where none can be joined.

    *Launch delay* is device start minus launch call start. *Queue length* of a stream goes up by 1 at a launching
    call's start and down by 1 when its first event on the stream starts (at the call, if that is recorded before).
    A graph launch is one call, and one entry in the queue of each stream that it uses. Lengths that last no
    time do not count.
    """
    joined = launches(trace)
    linked = joined.linked
    joined = joined.take(linked)
    if len(joined.device) == 0:
        return None
    # Device events come by start, so the first of each call is the earliest.
    calls, first, group = np.unique(joined.call, return_index=True, return_inverse=True)
    duration = trace.duration[calls]
    work = np.zeros(len(calls), dtype=np.int64)
    np.add.at(work, group, trace.duration[joined.device])
    kernels = np.bincount(group[trace.category[joined.device] == Category.KERNEL], minlength=len(calls)) > 0
    return LaunchStats(
        launches=len(calls),
        delay=_quantiles(trace.start[joined.device[first]] - trace.start[calls]),
        call=_quantiles(duration),
        kernel_launches=int(np.count_nonzero(kernels)),
        short_kernels=int(np.count_nonzero(kernels & (duration > work))),
        queues=_queues(trace, joined),
    )


def _quantiles(values: I64) -> Quantiles:
    # Nearest ranks: each is one of the values.
    p50, p90, p99 = map(int, np.percentile(values, (50, 90, 99), method="inverted_cdf"))
    return Quantiles(float(values.mean()), int(values.min()), p50, p90, p99, int(values.max()))


def _queues(trace: Trace, joined: Launches) -> tuple[StreamQueue, ...]:
    stream = streams_of(trace, joined.device)
    pairs = stream * (int(joined.call.max()) + 1) + joined.call
    _, first = np.unique(pairs, return_index=True)
    # Sorted by pair, hence by stream.
    stream = stream[first]
    cuts = np.flatnonzero(np.diff(stream)) + 1
    return tuple(_queue(trace, joined.device[own], joined.call[own]) for own in np.split(first, cuts))


def _queue(trace: Trace, device: Rows, call: Rows) -> StreamQueue:
    called = trace.start[call]
    started = np.maximum(trace.start[device], called)
    bounds, place = np.unique(np.concatenate((called, started)), return_inverse=True)
    length = np.cumsum(np.bincount(place[: len(call)], minlength=len(bounds)))
    length -= np.cumsum(np.bincount(place[len(call) :], minlength=len(bounds)))
    lasts, length = np.diff(bounds), length[:-1]
    span = int(lasts.sum())
    return StreamQueue(
        device=int(trace.pid[device[0]]),
        stream=int(trace.tid[device[0]]),
        launches=len(call),
        max_length=int(length.max(initial=0)),
        mean_length=float(np.dot(length.astype(np.float64), lasts)) / span if span else 0.0,
        span_ns=span,
        empty_ns=int(lasts[length == 0].sum()),
    )
