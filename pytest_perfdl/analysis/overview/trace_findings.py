"""What else in a trace costs time or limits its numbers, one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.account.step_account import ProfileTables, profile_tables
from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.doubled import doubled_operators
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.step_times import Steps
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import on_thread, thread_of
from pytest_perfdl.analysis.overview.bottleneck import Kind, amount
from pytest_perfdl.analysis.overview.software import software_problems
from pytest_perfdl.analysis.waiting.critical_path import CriticalPath, critical_path
from pytest_perfdl.analysis.waiting.waits import SYNC_CALL
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.trace.model import Category, Rows, Trace

FINDING_SHARE = 0.05
"""A class of time below this share of the steps is not worth a line: steps vary by as much from run to run."""

DETAIL_SHARE = 0.01
"""The same for a single cause with a name, such as copies of pageable memory: it can be removed as such."""

SMALL_KERNEL_NS = 10_000
"""A shorter kernel is over before the host has launched the next (5 to 10 us for an operator of PyTorch)."""

SMALL_KERNELS_SHARE = 0.5
LAUNCH_SHARE = 0.1
"""Small kernels matter where they are the most and the device waits for the host at least for this share."""

UNEXPLAINED_SHARE = 0.1
"""With more of the path unexplained, a simulation of the trace is off by tens of percent (public traces)."""

_SAYS: Mapping[str, tuple[Kind, str]] = {
    "input": ("input", "the device waits for input data"),
    "exposed communication": ("communication", "communication does not overlap with compute"),
    "exposed copies": ("copy", "copies and memsets do not overlap with other work"),
    "synchronization": ("synchronization", "the device waits while the host returns from blocking calls"),
    "launch latency": ("launch", "the device waits for launches to arrive"),
    "operator overhead": ("launch", "the device waits while the host runs operators and runtime calls"),
    "Python and host": ("launch", "the device waits while the host runs Python"),
    "device wait": ("dependency", "the device waits for streams, events or other ranks"),
    "unattributed": ("dependency", "the device waits for reasons that the trace does not show"),
}
_ON_CPU: Mapping[str, tuple[Kind, str]] = {
    "input": ("input", "the step waits for input data"),
    "communication": ("communication", "the step waits for collectives"),
    "Python and host": ("python", "the CPU runs Python between operators"),
}
_PAGEABLE = re.compile(r"Memcpy.*Pageable", re.IGNORECASE)
_MEMORY_CALL = re.compile(r"(cuda|hip)(Malloc|Free)(Async|Host|Managed)?$|(cuda|hip)Host(Alloc|Malloc|Free)$")


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """Something that costs time, or that the figures should be read with."""

    kind: str
    text: str
    share: float
    """Share of the steps' time that it concerns, 0 to 1; 0 where it concerns counts, or an unknown share."""


def trace_findings(
    trace: Trace, tables: ProfileTables | None = None, path: CriticalPath | None = None, known: Kind = "none"
) -> tuple[TraceFinding, ...]:
    """Everything above its threshold (see the constants), the largest share first, equals by text.

    `known` is the kind of the bottleneck, whose classes are not said again. Shares are of the steps' time: for
    classes of the account and device events of their windows, for calls of the host of their time there.
    """
    tables = profile_tables(trace) if tables is None else tables
    total = sum(tables.step_ns)
    if total == 0:
        return ()
    path = critical_path(trace) if path is None else path
    steps = steps_of(trace, launches(trace))
    found = [
        *_classes(tables, known),
        *_pageable(trace, tables, steps),
        *_small_kernels(trace, tables),
        *_calls(trace, tables, steps),
        *_overhead(trace, tables, steps),
    ]
    if tables.on_device and path.unexplained_share >= UNEXPLAINED_SHARE:
        share = format_percent(path.unexplained_share, signed=False)
        text = (
            f"{share} of the critical path is waiting that the trace does not explain, so parts of the path may be "
            "wrong"
        )
        found.append(TraceFinding("unexplained", text, path.unexplained_share))
    if doubled := doubled_operators(trace).line:
        found.append(TraceFinding("doubled operators", doubled, 0.0))
    found += [TraceFinding("software", line, 0.0) for line in software_problems(trace)]
    return tuple(sorted(found, key=lambda finding: (-finding.share, finding.text)))


def _classes(tables: ProfileTables, known: Kind) -> Iterator[TraceFinding]:
    total = sum(tables.step_ns)
    for name, (kind, says) in (_SAYS if tables.on_device else _ON_CPU).items():
        share = tables.account.get(name, 0) / total
        if share >= FINDING_SHARE and kind != known:
            yield TraceFinding(kind, f"{says} in {amount(tables, share)}", share)


def _pageable(trace: Trace, tables: ProfileTables, steps: Steps) -> Iterator[TraceFinding]:
    rows = _named(trace, _PAGEABLE, trace.rows(Category.GPU_MEMCPY))
    rows = rows[steps.of_window_time(trace.start[rows]) >= 0]
    share = _windows(steps).intersection(covered(trace, rows)).length / sum(tables.step_ns)
    if share >= DETAIL_SHARE:
        count = format_quantity(len(rows) / tables.steps, "1")
        text = f"copies of pageable CPU memory ({count}/step) take {amount(tables, share)}: pinned memory is faster"
        yield TraceFinding("pageable", text, share)


def _small_kernels(trace: Trace, tables: ProfileTables) -> Iterator[TraceFinding]:
    rows = trace.rows(Category.KERNEL)
    classes = ("launch latency", "operator overhead", "Python and host")
    share = sum(tables.account.get(name, 0) for name in classes) / sum(tables.step_ns)
    small = np.count_nonzero(trace.duration[rows] < SMALL_KERNEL_NS) / max(1, len(rows))
    if small >= SMALL_KERNELS_SHARE and share >= LAUNCH_SHARE:
        text = (
            f"{format_percent(small, signed=False)} of {len(rows)} kernels are shorter than "
            f"{format_quantity(SMALL_KERNEL_NS, 'ns')}, while the device waits for the host in {amount(tables, share)}"
        )
        yield TraceFinding("small kernels", text, share)


def _calls(trace: Trace, tables: ProfileTables, steps: Steps) -> Iterator[TraceFinding]:
    """Calls on the steps' thread that block it or manage memory."""
    own = on_thread(trace, trace.launch_rows(), thread_of(steps.windows[0]))
    own = own[steps.of_host_time(trace.start[own]) >= 0]
    whole = sum(window.host_ns for window in steps.windows)
    for kind, pattern, least, does in (
        ("synchronization calls", SYNC_CALL, FINDING_SHARE, "synchronize CPU and device"),
        ("memory calls", _MEMORY_CALL, DETAIL_SHARE, "allocate or free device or pinned memory"),
    ):
        rows = _named(trace, pattern, own)
        ns = covered(trace, rows).intersection(steps.host).length
        share = ns / whole if whole else 0.0
        if share >= least:
            count, each = format_quantity(len(rows) / tables.steps, "1"), format_quantity(ns / tables.steps, "ns")
            part = format_percent(share, signed=False)
            yield TraceFinding(kind, f"calls that {does}: {count}/step, {each}, {part} of the step's CPU time", share)


def _overhead(trace: Trace, tables: ProfileTables, steps: Steps) -> Iterator[TraceFinding]:
    rows = trace.rows(Category.OVERHEAD)
    share = covered(trace, rows).intersection(_windows(steps)).length / sum(tables.step_ns)
    if share >= DETAIL_SHARE:
        yield TraceFinding("overhead", f"profiler overhead takes {amount(tables, share)}", share)


def _windows(steps: Steps) -> Intervals:
    starts = np.array([window.start for window in steps.windows], dtype=np.int64)
    ends = np.array([window.end for window in steps.windows], dtype=np.int64)
    return Intervals.union_of(starts, ends).difference(steps.setup)


def _named(trace: Trace, pattern: re.Pattern[str], rows: Rows) -> Rows:
    return trace.matching(pattern.match, rows)
