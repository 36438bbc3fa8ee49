"""What a reader must know of a trace: its bottleneck, what costs time besides, and what limits its figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.analysis.account.accounts import OPERATOR_CLASSES, ProfileTables, profile_tables
from pytest_perfdl.analysis.events.communication import communication_kernels, covered
from pytest_perfdl.analysis.events.device_record import carried_over, streams_of, unrecorded_device
from pytest_perfdl.analysis.events.intervals import Steps
from pytest_perfdl.analysis.events.launches import GRAPH_LAUNCH, Launches, launches
from pytest_perfdl.analysis.events.operators import doubled_operators, operator_time
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.events.threads import on_thread
from pytest_perfdl.analysis.waiting.critical_path import critical_path
from pytest_perfdl.analysis.waiting.waits import SYNC_CALL
from pytest_perfdl.machine.known_problems import Use, known_problems, recorded_versions
from pytest_perfdl.model.copy_names import host_memory
from pytest_perfdl.model.kernel_names import MARK, short_name
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.trace.arrays import groups
from pytest_perfdl.trace.model import Category, Trace, device_properties

# What bounds the step, in one sentence with its numbers.


Kind = Literal[
    "input", "launch", "communication", "copy", "synchronization", "dependency", "compute", "python", "mixed", "none"
]

CPU_INPUT_SHARE = 0.25
"""On CPU-only traces waiting for data counts first from here on: workers take it away without touching the model."""

MIXED_SHARE = 0.1
"""A cause that at most this share of the step would go with does not bound it."""

EVIDENCE_SHARE = 0.01
"""Smaller classes are left out of the evidence."""

NAME_LENGTH = 60

_ACCOUNT: Mapping[Kind, tuple[str, ...]] = {
    "input": ("input",),
    "launch": ("launch latency", "operator overhead", "Python and host"),
    "communication": ("exposed communication",),
    "copy": ("exposed copies",),
    "synchronization": ("synchronization",),
    "dependency": ("device wait", "unattributed"),
    "compute": ("compute",),
}
"""Classes of the device's account by what bounds a step that is mostly made of them."""

_PATH: Mapping[Kind, tuple[str, ...]] = {
    "input": ("input",),
    "launch": ("launch latency", "operator", "runtime call", "Python and host"),
    "communication": ("communication",),
    "copy": ("copy",),
    "synchronization": ("synchronization",),
    "dependency": ("kernel gap", "unexplained wait"),
    "compute": ("compute",),
}
"""The same for the critical path."""

_BOUND: Mapping[Kind, str] = {
    "input": "the device waits for input data in",
    "launch": "the device waits for the host in",
    "communication": "communication runs without overlapping compute in",
    "copy": "copies run without overlapping compute in",
    "synchronization": "the device waits while the host returns from blocking calls in",
    "dependency": "the device waits in",
    "compute": "kernels compute in",
}
"""What happens in a step that is bound so."""

_WAITS: Mapping[str, str] = {
    "launch latency": "for launches to arrive",
    "operator overhead": "while the host runs operators and runtime calls",
    "Python and host": "while the host runs Python",
    "device wait": "for streams, events or other ranks",
    "unattributed": "for reasons that the trace does not show",
}
"""What the device waits for in some classes of idle time."""
_NO_STEPS = "Unknown: the trace has no operators, calls or kernels."


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What bounds the step first."""

    kind: Kind
    text: str
    """One sentence with its numbers."""
    share: float
    """Share of the steps' time that the classes of this kind have in the account, 0 to 1."""
    evidence: tuple[str, ...]
    """The numbers behind it, one line each: the breakdown, the critical path."""


def bottleneck(trace: Trace) -> Bottleneck:
    """Say what bounds the steps of a trace first.

    With device events: the kind with the largest possible gain, which is the smaller of its share of the device's
    closed account and its share of the critical path. The account bounds it because time that the device computes
    meanwhile stays; the path because what is off it holds nothing up. CPU-only: input from `CPU_INPUT_SHARE` on, else
    the largest class of the account. Equal shares are decided by a fixed order, so that equal traces get equal
    answers.
    """
    tables = profile_tables(trace)
    total = sum(tables.step_ns)
    if total == 0:
        return Bottleneck("none", _no_time(tables, steps_of(trace)), 0.0, ())
    path = critical_path(trace)
    account = {name: ns / total for name, ns in tables.account.items()}
    on_path = {name: ns / path.span_ns for name, ns in path.by_class.items()}
    evidence = (
        f"{plural(len(tables.step_ns), 'step')} of {format_quantity(total / len(tables.step_ns), 'ns')} (mean)",
        f"step time: {_list_shares(account)}",
        f"critical path: {_list_shares(on_path)}",
    )
    if unrecorded := unrecorded_device(trace):
        text = f"Unknown: {unrecorded}, and no device event: the device was idle, or its work was not recorded."
        return Bottleneck("none", text, 0.0, evidence)
    if not tables.on_device:
        return _on_cpu(tables, account, evidence)
    shares = {kind: sum(account[name] for name in names) for kind, names in _ACCOUNT.items()}
    gains = {kind: min(shares[kind], sum(on_path[name] for name in _PATH[kind])) for kind in _ACCOUNT}
    kind = max(gains, key=lambda kind: gains[kind])
    if gains[kind] < MIXED_SHARE:
        return Bottleneck(
            "mixed", f"No single bottleneck: {_list_shares(account)} of the step.", max(shares.values()), evidence
        )
    return Bottleneck(kind, _sentence(kind, trace, tables, account), shares[kind], evidence)


def _no_time(tables: ProfileTables, steps: Steps) -> str:
    if steps.left_out:
        return "Unknown: no step of the trace can be used."
    return "All steps in the trace have a duration of 0." if tables.steps else _NO_STEPS


def _sentence(kind: Kind, trace: Trace, tables: ProfileTables, account: Mapping[str, float]) -> str:
    names = _ACCOUNT[kind]
    what = amount(tables, sum(account[name] for name in names))
    largest = max(names, key=lambda name: account[name])
    most = f"{format_percent(account[largest], signed=False)} {_WAITS[largest]}" if largest in _WAITS else ""
    most = f", {most}" if most else ""
    if account["compute"] > sum(account[name] for name in names) and kind != "compute":
        # Compute is the largest part then, and a reader may wonder why it is not named.
        most += ", the largest avoidable part"
    if kind in ("compute", "communication", "copy"):
        name, ns = _longest(kind, trace)
        most += f"; the longest is {short(name)} with {format_quantity(ns / tables.steps, 'ns')}/step"
    return f"{kind.capitalize()}-bound: {_BOUND[kind]} {what}{most}."


def _on_cpu(tables: ProfileTables, account: Mapping[str, float], evidence: tuple[str, ...]) -> Bottleneck:
    largest = max(account, key=lambda name: account[name])
    if account["input"] >= CPU_INPUT_SHARE:
        largest = "input"
    kind, says = _ON_CPU.get(largest, ("compute", "operators run"))
    share, most = account[largest], ""
    if kind == "input" and share < max(account.values()):
        most = ", the largest avoidable part"
    if kind == "compute":
        share = sum(account[name] for name in OPERATOR_CLASSES)
        row = next(row for row in tables.rows if row.kind == "operator")
        part = format_percent(row.ns / sum(tables.step_ns), signed=False)
        most = f"; the largest is {short(row.name)} with {part}"
    text = f"{kind.capitalize()}-bound: {says} in {amount(tables, share)}{most}."
    return Bottleneck(kind, text, share, evidence)


def _longest(kind: Kind, trace: Trace) -> tuple[str, int]:
    """Name and nanoseconds of the kernel, collective or copy that takes longest in the whole trace."""
    rows = trace.device_rows()
    is_communication = communication_kernels(trace)[rows]
    is_kernel = trace.category[rows] == Category.KERNEL
    chosen = {"compute": is_kernel & ~is_communication, "communication": is_communication}.get(kind, ~is_kernel)
    totals = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(totals, trace.name[rows[chosen]], trace.duration[rows[chosen]])
    # Of equals the first by name, so that the order of a file decides nothing.
    longest = min(range(len(totals)), key=lambda name: (-totals[name], trace.names[name]))
    return trace.names[longest], int(totals[longest])


def amount(tables: ProfileTables, share: float) -> str:
    """A share of the mean step, in words: '33.1% of the step (58.80 ms of 177.6 ms)'."""
    mean = sum(tables.step_ns) / len(tables.step_ns)
    part, whole = format_quantity(share * mean, "ns"), format_quantity(mean, "ns")
    return f"{format_percent(share, signed=False)} of the step ({part} of {whole})"


def short(name: str) -> str:
    """A name that fits into a sentence, of a kernel without namespaces and arguments."""
    name = short_name(name)
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - len(MARK)] + MARK


def _list_shares(shares: Mapping[str, float]) -> str:
    """Shares in words, the largest first; equals by name."""
    some = sorted((-share, name) for name, share in shares.items() if share >= EVIDENCE_SHARE)
    return ", ".join(f"{name} {format_percent(-share, signed=False)}" for share, name in some)


# Known problems of the software that recorded a trace, as far as they concern what the trace holds.


def software_problems(trace: Trace, installed: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """One line for each known problem of the software that recorded a trace.

    Parameters
    ----------
    trace
        The trace.
    installed
        Versions of what recorded it, where the caller knows them (`machine.known_problems.installed_versions`): they go
        before those that the trace names, which has no updates.
    """
    versions = {**recorded_versions(trace.metadata), **(installed or {})}
    if not versions:
        return ()
    found = known_problems(versions, frozenset(_uses(trace)))
    return tuple(f"{known.software} {versions[known.software]}: {known.why}" for known in found)


def _uses(trace: Trace) -> Iterator[Use]:
    """What a trace holds that a known problem can concern.

    Not `modes`, which `doubled_operators` recognizes, and not `latency`: early starts are counted.
    """
    yield "profiles"
    operators = trace.rows(Category.CPU_OP)
    if np.count_nonzero((trace.start[operators] == 0) & (trace.duration[operators] == 0)) > 1:
        yield "zero times"
    joined = launches(trace)
    if len(joined.device) == 0:
        return
    yield "kernels"
    if len(trace.matching(GRAPH_LAUNCH.search, trace.launch_rows())):
        yield "graphs"
    if communication_kernels(trace)[joined.device[~joined.linked]].any():
        yield "collectives"
    if any("MI300X" in str(device.get("name")) for device in device_properties(trace)):
        yield "MI300X"


# What else in a trace costs time or limits its numbers, one line each.


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
_MEMORY_CALL = re.compile(r"(cuda|hip)(Malloc|Free)(Async|Host|Managed)?$|(cuda|hip)Host(Alloc|Malloc|Free)$")


@dataclass(frozen=True, slots=True)
class TraceFinding:
    """Something that costs time, or that the figures should be read with."""

    kind: str
    text: str
    share: float
    """Share of the steps' time that it concerns, 0 to 1; 0 where it concerns counts, or an unknown share."""


def trace_findings(trace: Trace, known: Kind = "none") -> tuple[TraceFinding, ...]:
    """Everything above its threshold (see the constants), the largest share first, equals by text.

    `known` is the kind of the bottleneck, whose classes are not said again. Shares are of the steps' time: for
    classes of the account and device events of their windows, for calls of the host of their time there.
    """
    tables = profile_tables(trace)
    if sum(tables.step_ns) == 0:
        return ()
    path = critical_path(trace)
    steps = steps_of(trace)
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
    if doubled := doubled_operators(trace):
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
    rows = trace.matching(lambda name: host_memory(name) == "pageable", trace.rows(Category.GPU_MEMCPY))
    rows = rows[steps.of_window_time(trace.start[rows]) >= 0]
    share = steps.time.intersection(covered(trace, rows)).length / sum(tables.step_ns)
    if share >= DETAIL_SHARE:
        count = format_quantity(len(rows) / tables.steps, "1")
        text = f"copies of pageable CPU memory ({count}/step) take {amount(tables, share)}: pinned memory is faster"
        yield TraceFinding("pageable", text, share)


def _small_kernels(trace: Trace, tables: ProfileTables) -> Iterator[TraceFinding]:
    rows = trace.rows(Category.KERNEL)
    share = sum(tables.account.get(name, 0) for name in _ACCOUNT["launch"]) / sum(tables.step_ns)
    small = np.count_nonzero(trace.duration[rows] < SMALL_KERNEL_NS) / max(1, len(rows))
    if small >= SMALL_KERNELS_SHARE and share >= LAUNCH_SHARE:
        text = (
            f"{format_percent(small, signed=False)} of {len(rows)} kernels are shorter than "
            f"{format_quantity(SMALL_KERNEL_NS, 'ns')}, while the device waits for the host in {amount(tables, share)}"
        )
        yield TraceFinding("small kernels", text, share)


def _calls(trace: Trace, tables: ProfileTables, steps: Steps) -> Iterator[TraceFinding]:
    """Calls on the steps' thread that block it or manage memory."""
    own = on_thread(trace, trace.launch_rows(), steps.thread)
    own = own[steps.of_host_time(trace.start[own]) >= 0]
    whole = sum(window.host_ns for window in steps.windows)
    for kind, pattern, least, does in (
        ("synchronization calls", SYNC_CALL, FINDING_SHARE, "synchronize CPU and device"),
        ("memory calls", _MEMORY_CALL, DETAIL_SHARE, "allocate or free device or pinned memory"),
    ):
        rows = trace.matching(pattern.match, own)
        ns = covered(trace, rows).intersection(steps.host).length
        share = ns / whole if whole else 0.0
        if share >= least:
            count, each = format_quantity(len(rows) / tables.steps, "1"), format_quantity(ns / tables.steps, "ns")
            part = format_percent(share, signed=False)
            yield TraceFinding(kind, f"calls that {does}: {count}/step, {each}, {part} of the step's CPU time", share)


def _overhead(trace: Trace, tables: ProfileTables, steps: Steps) -> Iterator[TraceFinding]:
    rows = trace.rows(Category.OVERHEAD)
    share = covered(trace, rows).intersection(steps.time).length / sum(tables.step_ns)
    if share >= DETAIL_SHARE:
        yield TraceFinding("overhead", f"profiler overhead takes {amount(tables, share)}", share)


# What a reader must know before believing a trace's figures: what is missing, odd, or the profiler's own.


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


def trace_integrity(trace: Trace, bled_over: int | None = None) -> TraceIntegrity:
    """Look for what distorts figures: carry-over, lost links and events, overlaps, clocks, and overhead.

    Parameters
    ----------
    trace
        The trace.
    bled_over
        How many operators bled over, where the caller knows from a call tree; else it is counted over operators.
    """
    if bled_over is None:
        bled_over = sum(owned.overlapping for _, owned in operator_time(trace).values())
    joined = launches(trace)
    duration = trace.duration[joined.device]
    carried = carried_over(trace)
    unlinked = ~joined.linked
    early = np.where(joined.linked, trace.start[joined.call] - trace.start[joined.device], 0)
    overlaps, overlap_ns = _overlaps(trace, joined)
    dropped, out_of_range, messages = _losses(trace)
    overhead = _overhead_by_name(trace)
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
        bled_over=bled_over,
    )


def _overlaps(trace: Trace, joined: Launches) -> tuple[int, int]:
    """How many events start before their stream is free, and for how long they share it."""
    device = joined.device
    count = lasts = 0
    for own in groups(streams_of(trace, device)):
        start, end = trace.start[device[own]], trace.end[device[own]]
        free = np.maximum.accumulate(end)[:-1]
        together = np.minimum(end[1:], free) - start[1:]
        count += int(np.count_nonzero(together > 0))
        lasts += int(together[together > 0].sum())
    return count, lasts


def _overhead_by_name(trace: Trace) -> Mapping[str, int]:
    total = Counter[str]()
    for row in trace.rows(Category.OVERHEAD).tolist():
        total[trace.name_of(row)] += int(trace.duration[row])
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


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
