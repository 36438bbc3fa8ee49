"""What a reader must know before believing a trace's figures: what is missing, odd, or the profiler's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.device_steps import carried_over, streams_of
from pytest_perfdl.analysis.events.launches import Launches, launches
from pytest_perfdl.analysis.events.operator_time import operator_time
from pytest_perfdl.trace.model import Category, Rows, Trace

_COUNTS = re.compile(r"(Out-of-range|Unexpected CUDA events) = (\d+)")
"""kineto's closing tally; what it blocklists it leaves out on purpose."""
_STOPPED = re.compile(r"stopped early\? = [1-9]")
_LOST = re.compile(
    r"\bdropp|\bdiscard|\blost\b|(?:was|were) skipped|ran out of|overflow|damaged|is truncated", re.IGNORECASE
)
_MENDED = re.compile(r"no event is incomplete|closing brackets")
"""Findings of the reader about damage that lost no event."""
_NUMBER = re.compile(r"\b(\d[\d,]*) (?:\w+ ){0,3}(?:events?|records?|activit)|dropped (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceIntegrity:
    """Counts over a whole trace. Shares are from 0 to 1, and 0 where there is nothing to share."""

    device_events: int
    device_ns: int
    """Sum of the durations of all device events."""
    carry_over: int
    """Device events launched before profiling began: unlinked, and ahead of their stream's first linked one."""
    carry_over_ns: int
    unlinked: int
    """Device events whose launching call is not in the trace, carry-over included."""
    unlinked_ns: int
    same_stream_overlaps: int
    """Device events that start before an earlier one of their stream has ended."""
    same_stream_overlap_ns: int
    """Time during which they run together: sum over streams of durations less |U|."""
    zero_duration: int
    """Device events without a duration, as whole microseconds (before 2024) make of short kernels."""
    early_starts: int
    """Device events that start before the call that launched them does: the clocks disagree."""
    largest_early_start_ns: int
    dropped: int
    """Events known to be lost, at least: by the profiler's messages and the reader's findings."""
    out_of_range: int
    """Events that the profiler left out because they ran outside its window; warming up leaves some."""
    messages: tuple[str, ...]
    """The profiler's warnings and errors, and what else it or the reader says about losses."""
    overhead_events: int
    overhead_ns: int
    """Sum of durations of the profiler's own work: buffers, flushes, instrumentation, lazy loading."""
    overhead_by_name: Mapping[str, int]
    """`overhead_ns` by name, the longest first."""
    bled_over: int
    """Operators that began inside another on their thread and ended after it."""

    @property
    def zero_duration_share(self) -> float:
        """Share of the device events."""
        return self.zero_duration / self.device_events if self.device_events else 0.0


def trace_integrity(trace: Trace, bled_over: int | None = None) -> TraceIntegrity:
    """Look for what distorts figures: carry-over, lost links and events, overlaps, clocks, and overhead.

    Parameters
    ----------
    trace
        The trace.
    bled_over
        How many operators bled over, where the caller knows from a call tree; else it is counted over operators.
    """
    joined = launches(trace)
    duration = trace.duration[joined.device]
    carried = carried_over(trace, joined)
    unlinked = ~joined.linked
    early = np.where(joined.linked, trace.start[joined.call] - trace.start[joined.device], 0)
    overlaps, overlap_ns = _overlaps(trace, joined)
    dropped, out_of_range, messages = _losses(trace)
    overhead = _overhead(trace)
    return TraceIntegrity(
        device_events=len(joined.device),
        device_ns=int(duration.sum()),
        carry_over=int(np.count_nonzero(carried)),
        carry_over_ns=int(duration[carried].sum()),
        unlinked=int(np.count_nonzero(unlinked)),
        unlinked_ns=int(duration[unlinked].sum()),
        same_stream_overlaps=overlaps,
        same_stream_overlap_ns=overlap_ns,
        zero_duration=int(np.count_nonzero(duration == 0)),
        early_starts=int(np.count_nonzero(early > 0)),
        largest_early_start_ns=max(0, int(early.max(initial=0))),
        dropped=dropped,
        out_of_range=out_of_range,
        messages=messages,
        overhead_events=len(trace.rows(Category.OVERHEAD)),
        overhead_ns=sum(overhead.values()),
        overhead_by_name=overhead,
        bled_over=_bled_over(trace) if bled_over is None else bled_over,
    )


def _overlaps(trace: Trace, joined: Launches) -> tuple[int, int]:
    """How many events start before their stream is free, and for how long they share it."""
    device = joined.device
    stream = streams_of(trace, device)
    count = lasts = 0
    order = np.argsort(stream, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        start, end = trace.start[device[own]], trace.start[device[own]] + trace.duration[device[own]]
        free = np.maximum.accumulate(end)[:-1]
        together = np.minimum(end[1:], free) - start[1:]
        count += int(np.count_nonzero(together > 0))
        lasts += int(together[together > 0].sum())
    return count, lasts


def _overhead(trace: Trace) -> Mapping[str, int]:
    rows: Rows = trace.rows(Category.OVERHEAD)
    total: dict[str, int] = {}
    for row, ns in zip(rows.tolist(), trace.duration[rows].tolist(), strict=True):
        total[trace.name_of(row)] = total.get(trace.name_of(row), 0) + ns
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _bled_over(trace: Trace) -> int:
    return sum(owned.overlapping for _, owned in operator_time(trace).values())


def _losses(trace: Trace) -> tuple[int, int, tuple[str, ...]]:
    """Events lost, events out of range, and the messages that matter."""
    dropped = out_of_range = 0
    messages: list[str] = []
    for alarming, text in _log(trace):
        counts = {name: int(number) for name, number in _COUNTS.findall(text)}
        out_of_range += counts.get("Out-of-range", 0)
        lost = counts.get("Unexpected CUDA events", 0) + bool(_STOPPED.search(text))
        speaks = not counts and _LOST.search(text) is not None
        if speaks:
            number = _NUMBER.search(text)
            lost += int((number[1] or number[2]).replace(",", "")) if number else not _MENDED.search(text)
        dropped += lost
        if alarming or lost or speaks:
            messages.append(text)
    return dropped, out_of_range, tuple(messages)


def _log(trace: Trace) -> Iterator[tuple[bool, str]]:
    """Lines of the profiler's log and the reader's findings, and whether they are warnings or worse."""
    for level in ("ERROR", "WARNING", "INFO"):
        lines = trace.metadata.get(level)
        for line in lines if isinstance(lines, list) else [lines] if isinstance(lines, str) else []:
            yield level != "INFO", str(line)
    for finding in trace.findings:
        yield False, finding
