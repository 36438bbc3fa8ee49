"""What `perfdl trace` says: the tables that terminal and page share, and the sentences around them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.model.kernel_names import short_name
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.trace.ranks import (
    bucket_names,
    by_time,
    exposed_ns,
    own_ns,
    steps,
    straggler_place,
    waits_mostly_for,
)

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.overview.tables import KernelRow
    from pytest_perfdl.analysis.ranks import RankFigures


# What is said of a trace on the terminal and on a page: its steps, their mean breakdown, the limits of numbers.


LEAST_COVERED = 0.9
"""Share of the trace's time that steps must cover for totals over the trace to be those of its steps."""
_SOURCE_LINE = re.compile(r"^(.*)\((\d+)\): (.*)$")
_SIZES = re.compile(r"\[([\d, ]*)\]")
UTILIZATION = {
    "flops_utilization": "share of the peak FLOP/s",
    "bandwidth_utilization": "share of the peak memory bandwidth",
    "roofline": "share of the roofline while operators run",
    "tensor_core_share": "share of kernel time on tensor cores",
    "launch_gap": "share of the step spent waiting for launches",
}
"""Metrics of utilization in the order in which they are shown; those of the device are in its section."""
DIRECTIONS = {
    "h2d": "CPU to device",
    "d2h": "device to CPU",
    "d2d": "within the device",
    "p2p": "between devices",
    "h2h": "within CPU memory",
    "other": "of unknown direction",
}
"""What the directions of copies are called."""


def numbered(summary: TraceSummary) -> bool:
    """Whether the trace has steps, and not one window over everything."""
    return summary.has_steps


def step_count(summary: TraceSummary) -> int:
    """How many steps totals over the trace are divided by; 1 where it has none."""
    return len(summary.steps) if numbered(summary) else 1


def per_step(summary: TraceSummary) -> str:
    """The unit after a number that was divided by the steps; empty where the trace has none."""
    return "/step" if numbered(summary) else ""


def each_step(summary: TraceSummary) -> str:
    """The same for a title."""
    return " per step" if numbered(summary) else ""


def step_words(summary: TraceSummary) -> str:
    """How long a step takes: "176.3 ms (mean of 6 steps, 152.1 ms to 201.0 ms)"."""
    walls = [step.wall_ns for step in summary.steps]
    mean, low, high = (format_quantity(value, "ns") for value in (sum(walls) / len(walls), min(walls), max(walls)))
    if not numbered(summary):
        return f"{mean} (the whole trace, because it contains no steps)"
    count = f"{len(walls)} of {len(walls) + len(summary.left_out)}" if summary.left_out else f"{len(walls)}"
    if len(walls) == 1:
        return f"{mean} ({count} {'steps' if summary.left_out else 'step'})"
    return f"{mean} (mean of {count} steps, {low} to {high})"


def per_step_words(summary: TraceSummary) -> str:
    """How the numbers of tables are per step, and what of them is not in steps; empty where there is nothing to say."""
    if not numbered(summary):
        return ""
    count, span = step_count(summary), summary.critical_path.span_ns
    covered = sum(step.wall_ns for step in summary.steps) / span if span else 1.0
    divided = f"totals over the trace divided by {count}" if count > 1 else "totals over the trace"
    if covered < LEAST_COVERED:
        share = format_percent(covered, signed=False)
        covers = plural(count, "step covers", "steps cover")
        return f"The numbers below are {divided}. The {covers} only {share} of the trace's time."
    return f"The numbers below are per step: {divided}." if count > 1 else ""


def mean_account(summary: TraceSummary) -> dict[str, float]:
    """Nanoseconds per step by class, mean of the steps, the largest first; classes without time left out."""
    count = len(summary.steps)
    names = summary.steps[0].account if count else ()
    return by_size({name: sum(step.account[name] for step in summary.steps) for name in names}, count)


def by_size(parts: Mapping[str, float], steps: int) -> dict[str, float]:
    """Totals divided by the steps, the largest first; what is zero left out."""
    return {name: ns / steps for name, ns in sorted(parts.items(), key=lambda item: -item[1]) if ns}


def integrity_lines(summary: TraceSummary) -> list[str]:
    """What limits the numbers of a trace, one line each."""
    found, lines = summary.integrity, []
    if found.carry_over:
        early = f"{plural(found.carry_over, 'device event')} ({format_quantity(found.carry_over_ns, 'ns')})"
        lines.append(f"{early} ahead of the first launch in the trace: their time belongs to no step")
    if found.zero_duration:
        lines.append(
            f"{plural(found.zero_duration, 'device event')} with a duration of 0: sums of kernels are too small"
        )
    if found.early_starts:
        count = plural(found.early_starts, "device event")
        lines.append(f"{count} with a start before the launch call: the clocks of CPU and device differ")
    if found.dropped:
        lines.append(
            f"at least {plural(found.dropped, 'event')} dropped by the profiler or unreadable, so totals are too small"
        )
    if found.overhead_ns:
        lines.append(f"profiler overhead: {format_quantity(found.overhead_ns, 'ns')} in the whole trace")
    if found.bled_over:
        lines.append(outlasting(found.bled_over))
    return lines


def outlasting(count: int) -> str:
    """How many events outlast their parent: "2 CPU events outlast their parent event"."""
    verb, whose = ("outlasts", "its") if count == 1 else ("outlast", "their")
    return f"{plural(count, 'CPU event')} {verb} {whose} parent event"


def place(line: str) -> str:
    """A source line as path:line, as editors open it; other text as it is.

    >>> place("models/gpt.py(43): forward")
    'models/gpt.py:43 forward'
    """
    return _SOURCE_LINE.sub(r"\1:\2 \3", line)


def sizes(shapes: str) -> str:
    """Shapes of inputs in short: what has none is left out.

    >>> sizes("[[1, 141, 512], [512, 512], []]")
    '[1,141,512] [512,512]'
    """
    found = [f"[{size.replace(' ', '')}]" for size in _SIZES.findall(shapes) if size.strip()]
    return " ".join(found) or shapes


# The tables of a trace and of the ranks of a job. Times and counts are per step.


Grouped = Literal["name", "shapes", "module", "line"]
"""Fields that a table of operators is grouped by."""


def kinds(summary: TraceSummary) -> Table:
    """The kinds of steps, by what `--step-name` captures; empty for steps of one kind."""
    columns = (
        Column("Captured by --step-name", lambda row: row.group),
        Column("Steps", lambda row: row.steps, "count"),
        Column("Mean", lambda row: row.mean_ns, "ns"),
        Column("Shortest", lambda row: row.min_ns, "ns", short="min"),
        Column("Longest", lambda row: row.max_ns, "ns", short="max"),
    )
    ordered = "Kinds of steps, by what --step-name captures (figures are of the first)"
    return Table("Kinds of steps", columns, summary.groups, ordered, "All other figures are of the first kind.")


def kernels(summary: TraceSummary, selection: Selection, top: int | None = None) -> Table:
    """Kernels and copies; `top` are those of which it counts whether their exposed time is another than their time."""
    rows, count, each = selection.rows(summary.kernels), step_count(summary), each_step(summary)
    whole = sum(row.total_ns for row in summary.kernels)
    exposed = any(row.exposed_ns != row.total_ns for row in rows[:top])
    columns = (
        Column("Name", lambda row: row.name, "name"),
        Column("Kind", lambda row: row.kind, wide=True),
        Column("Time", lambda row: row.total_ns / count, "ns"),
        Column("Share", lambda row: row.total_ns / whole, "share", "percentage of the time of all kernels and copies"),
        Column("Calls", lambda row: row.count / count, "count"),
        Column("Per call", lambda row: row.total_ns / row.count, "ns"),
        Column("Longest call", lambda row: row.max_ns, "ns", wide=True),
        Column(
            "Exposed",
            lambda row: row.exposed_ns / count if exposed else None,
            "ns",
            "time during which the device runs no other kernel of the same kind and no compute",
        ),
        Column(
            "Occupancy (est.)",
            lambda row: row.occupancy_est,
            "percent",
            "from launch configurations, not from hardware counters",
            wide=True,
        ),
    )
    note = "Copies are exposed while there is also no communication." if exposed else ""
    return Table(f"Kernels and copies{each}", columns, rows if whole else [], f"Kernels and copies by time{each}", note)


def short_kernels(rows: Sequence[KernelRow]) -> dict[str, str]:
    """The short names of kernels; those that have one in common keep their whole names."""
    names = Counter(short_name(row.name) for row in rows)
    return {row.name: short_name(row.name) if names[short_name(row.name)] == 1 else row.name for row in rows}


def operators(summary: TraceSummary, selection: Selection, by: Grouped) -> Table:
    """Operators by name, shapes of inputs, module or source line, as far as the trace knows them."""
    count, each = step_count(summary), each_step(summary)
    name = Column("Name", lambda row: row.name, "name")
    title, grouped, first = {
        "name": ("Operators", summary.operators, name),
        "shapes": ("Operators by input shapes", summary.shapes, name),
        "module": ("Modules", summary.modules, Column("Module", lambda row: row.module, "place")),
        "line": ("Source lines", summary.lines, Column("Line", lambda row: place(row.line), "place")),
    }[by]
    rows = [row for row in selection.rows(grouped) if getattr(row, by)]
    on_device = any(row.device_total_ns for row in rows)
    columns = [
        first,
        *[Column("Shapes", lambda row: row.shapes)] * (by == "shapes"),
        Column("CPU self", lambda row: row.self_ns / count, "ns", "time without operators called inside"),
        Column("CPU total", lambda row: row.total_ns / count, "ns", "time including them"),
        Column("Calls", lambda row: row.count / count, "count"),
    ]
    launched = "kernels and copies that the operator launched itself"
    if on_device:
        columns += [
            Column("Device self", lambda row: row.device_self_ns / count, "ns", launched, "device"),
            Column(
                "Device total",
                lambda row: row.device_total_ns / count,
                "ns",
                "those of operators called inside as well",
                wide=True,
            ),
            Column("Kernels", lambda row: row.kernels / count, "count"),
        ]
    ordered = f"{title} by {'device time' if on_device else 'CPU self time'}{each}"
    return Table(f"{title}{each}", columns, rows, ordered)


def roofline(summary: TraceSummary, selection: Selection) -> Table:
    """Operators and what they achieve; without peak rates nothing of how near that is to them."""
    count, each = step_count(summary), each_step(summary)
    whole = "kernels and copies" if summary.gpu is not None else "operators"
    columns = (
        Column("Operator", lambda row: f"{row.operator} {sizes(row.shapes)} {row.dtype}".strip(), "name"),
        Column("Time", lambda row: row.time_ns / count, "ns"),
        Column("Share", lambda row: row.share, "share", f"percentage of the time of all {whole}"),
        Column("FLOP/s", lambda row: row.flops_per_s, "flop/s"),
        Column("Bytes/s", lambda row: row.bytes_per_s, "GB/s"),
        Column(
            "Of roofline",
            lambda row: row.efficiency,
            "share",
            "shortest possible time at the device's peak rates, as a percentage of the measured time",
        ),
        Column("Bound by", lambda row: row.bound if row.efficiency is not None else None),
        Column("Without a cost model", lambda row: row.not_covered, wide=True),
    )
    return Table(f"Roofline{each}", columns, selection.rows(summary.roofline), f"Roofline by time{each}")


def alive_at_peak(device: DeviceTimeline) -> Table:
    """What was allocated at the peak, by the operator and the module that allocated it."""
    columns = (
        Column("Operator", lambda row: row.operator, "name"),
        Column("Module", lambda row: row.module),
        Column("Bytes", lambda row: row.bytes, "B"),
        Column("Blocks", lambda row: row.count, "1"),
    )
    return Table("Allocated at the peak", columns, device.alive_at_peak)


def copies(summary: TraceSummary) -> Table:
    """Copies by direction."""
    count = step_count(summary)
    columns = (
        Column("Direction", lambda row: DIRECTIONS.get(row.kind, row.kind)),
        Column("CPU memory", lambda row: row.host_memory),
        Column("Calls", lambda row: row.count / count, "count"),
        Column("Bytes", lambda row: row.bytes / count, "B"),
        Column("Time", lambda row: row.total_ns / count, "ns"),
        Column("Bandwidth", lambda row: row.bandwidth, "GB/s"),
    )
    return Table(f"Copies{each_step(summary)}", columns, summary.copies)


def rank_table(found: RankFigures, places: Sequence[int], mark: str) -> Table:
    """The ranks at some places, each a row; `mark` is what follows the straggler's name."""
    count, marked = steps(found), straggler_place(found)
    columns = (
        Column("Rank", lambda at: f"rank {found.ranks[at].rank}" + f" {mark}" * (at == marked)),
        Column(
            "Own work",
            lambda at: own_ns(found.ranks[at]) if found.ranks[at].own_ns else None,
            "ns",
            "compute, input and host together",
        ),
        Column("Compute", lambda at: found.ranks[at].parts_ns.get("compute"), "ns"),
        Column("Input", lambda at: found.ranks[at].parts_ns.get("input"), "ns"),
        Column("Host", lambda at: found.ranks[at].parts_ns.get("host"), "ns"),
        Column(
            "Exposed communication",
            lambda at: exposed_ns(found.ranks[at], count),
            "ns",
            "communication while nothing computes",
            "exposed",
        ),
        Column(
            "Waiting for others",
            lambda at: found.ranks[at].exposed_waiting_ns / count,
            "ns",
            "the part of it until the last rank joins",
            "waiting",
        ),
        Column("Mostly for", lambda at: waits_mostly_for(found, at), "short"),
        Column(
            "Overlap",
            lambda at: found.ranks[at].overlap,
            "share",
            "share of the communication that overlaps with compute",
        ),
        Column(
            "Bubble",
            lambda at: found.ranks[at].bubble_share,
            "share",
            "share of the step in which the rank waits for a message and computes nothing",
        ),
        Column(
            "Last to start",
            lambda at: found.ranks[at].last,
            "1",
            "collectives in the trace that the rank was the last to join",
            "last",
        ),
    )
    return Table("Ranks per step", columns, places)


def collectives(found: RankFigures) -> Table:
    """The collectives of the step, those with most time first."""
    buckets = by_time(found.buckets)
    columns = (
        Column("Collective", lambda row: row[1], "name"),
        Column("Bytes", lambda row: row[0].bytes, "B"),
        Column("Time", lambda row: row[0].duration_ns, "ns", "median over ranks and steps, with waiting"),
        Column("Transfer", lambda row: row[0].transfer_ns, "ns", "without waiting for the last rank"),
        Column("Hidden", lambda row: row[0].hidden_share, "share", "share that overlaps with compute"),
        Column("Bus bandwidth", lambda row: row[0].bus_bandwidth, "B/s"),
        Column("Steps", lambda row: row[0].steps, "1", wide=True),
    )
    rated = any(bucket.bus_bandwidth for bucket in buckets)
    note = "Bus bandwidth: bytes per second over the slowest link, as nccl-tests define it." if rated else ""
    rows = list(zip(buckets, bucket_names(buckets, found), strict=True))
    return Table("Collectives of a step", columns, rows, "Collectives by time per step", note)
