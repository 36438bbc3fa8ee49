"""A trace's summary as text: the bottleneck and the findings first, then the step's breakdown, then the tables.

Times and counts are per step: totals over the trace divided by its steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.machine.utilization import TELLING
from pytest_perfdl.model.kernel_names import short_names
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.trace.ranks import (
    bucket_names,
    by_time,
    clocks_line,
    exposed_ns,
    others_line,
    own_ns,
    shown_ranks,
    step_ns,
    steps,
    straggler_place,
    verdict,
    waits_mostly_for,
)
from pytest_perfdl.report.whatif.advice import advice_lines

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.transfers import CopyRow
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankFigures
    from pytest_perfdl.model.selection import Selection
    from pytest_perfdl.report.whatif import Answers

BAR = 24
"""Width of the longest bar of the breakdown."""
SHOWN_SHARE = 0.01
"""Least share of the critical path from which its quality is reported."""
LEAST_COVERED = 0.9
"""Share of the trace's time that steps must cover for totals over the trace to be those of its steps."""
_SOURCE_LINE = re.compile(r"^(.*)\((\d+)\): (.*)$")
_SIZES = re.compile(r"\[([\d, ]*)\]")
DIRECTIONS = {
    "h2d": "CPU to device",
    "d2h": "device to CPU",
    "d2d": "within the device",
    "p2p": "between devices",
    "h2h": "within CPU memory",
    "other": "of unknown direction",
}
"""What the directions of copies are called."""


def report(summary: TraceSummary, selection: Selection, top: int, width: int, advised: Answers | None = None) -> str:
    """The report on one trace, wrapped to a width; tables have at most `top` rows, and advice comes last.

    Example::

    train.json.gz: 6 steps, 36,721 events, Tesla V100-DGXS-32GB
    Bottleneck: Input-bound: the device waits for input data in 33.1% of the step
    (58.73 ms of 177.6 ms), the largest avoidable part.

    Step time 176.3 ms (mean of 6 steps, 152.1 ms to 201.0 ms)
      compute   98.60 ms  55.9%  =============
      input     59.30 ms  33.6%  ========
    """
    sections = (
        _head(summary, width),
        _findings(summary, width),
        _steps(summary, width),
        _utilization(summary, width),
        _device(summary, width),
        _critical_path(summary, width),
        _kernels(summary, selection, top, width),
        _operators(summary, selection, top, width),
        _roofline(summary, selection, top, width),
        _memory(summary, top, width),
        advice_lines(advised, width) if advised is not None else (),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(summary: TraceSummary, width: int) -> Iterator[str]:
    facts = [plural(summary.events, "event")]
    if numbered(summary):
        facts.insert(0, plural(len(summary.steps), "step"))
    if summary.device:
        facts.append(visible(summary.device))
    if summary.rank is not None:
        facts.append(f"rank {summary.rank}" + (f" of {summary.world_size}" if summary.world_size else ""))
    yield from layout.paragraph(f"{visible(summary.source)}: {', '.join(facts)}", 0, width)
    yield from layout.paragraph(f"Bottleneck: {summary.bottleneck.text}", 0, width)


def step_count(summary: TraceSummary) -> int:
    """How many steps totals over the trace are divided by; 1 where it has none."""
    return len(summary.steps) if numbered(summary) else 1


def per_step(summary: TraceSummary) -> str:
    """The unit after a number that was divided by the steps; empty where the trace has none."""
    return "/step" if numbered(summary) else ""


def _each(summary: TraceSummary) -> str:
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


def _steps(summary: TraceSummary, width: int) -> Iterator[str]:
    if not summary.steps:
        return
    what = "Step time" if numbered(summary) else "Time"
    yield f"{what} {step_words(summary)}"
    account = mean_account(summary)
    yield from bars(account, sum(account.values()))
    if text := per_step_words(summary):
        yield from layout.paragraph(text, 2, width)
    if summary.groups:
        yield ""
        yield "Kinds of steps, by what --step-name captures (figures are of the first)"
        yield from layout.rows(group_rows(summary), "lrrrr", 2, width)


def group_rows(summary: TraceSummary) -> list[tuple[str, ...]]:
    """The kinds of steps with their number, mean, least and largest time, under a head; empty for steps of one kind."""
    rows: list[tuple[str, ...]] = [("", "steps", "mean", "min", "max")]
    rows += [
        (
            visible(each.group),
            f"{each.steps:,}",
            *(format_quantity(ns, "ns") for ns in (each.mean_ns, each.min_ns, each.max_ns)),
        )
        for each in summary.groups
    ]
    return rows if summary.groups else []


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
    return by_size({name: sum(step.account[name] for step in summary.steps) / count for name in names})


def by_size(parts: Mapping[str, float]) -> dict[str, float]:
    """The largest first; what is zero left out."""
    return {name: ns for name, ns in sorted(parts.items(), key=lambda item: -item[1]) if ns}


def numbered(summary: TraceSummary) -> bool:
    """Whether the trace has steps, and not one window over everything."""
    return summary.has_steps


def bars(parts: Mapping[str, float], whole: float) -> list[str]:
    """One line a part with its share of the whole, drawn to scale."""
    if not parts or not whole:
        return []
    rows = [
        (name, format_quantity(ns, "ns"), format_percent(ns / whole, signed=False), "=" * round(ns / whole * BAR))
        for name, ns in parts.items()
    ]
    return layout.rows(rows, "lrrl", 2, 100)


SHOWN = {
    "flops_utilization": "share of the peak FLOP/s",
    "bandwidth_utilization": "share of the peak memory bandwidth",
    "roofline": "share of the roofline while operators run",
    "tensor_core_share": "share of kernel time on tensor cores",
    "launch_gap": "share of the step spent waiting for launches",
}
"""Metrics of utilization in the order in which they are shown; those of the device are in its section."""


def _utilization(summary: TraceSummary, width: int) -> Iterator[str]:
    found = summary.utilization
    facts = [
        f"{text}: {format_percent(found.values[name], signed=False)}"
        for name, text in SHOWN.items()
        if name in found.values
    ]
    if "achieved_flops" in found.values:
        facts.insert(0, format_quantity(found.values["achieved_flops"], "flop/s"))
    if not facts:
        return
    if found.coverage is not None and found.coverage < TELLING:
        share = format_percent(found.coverage, signed=False)
        facts.append(
            f"FLOP/s and bytes count only operators with a cost model, which take {share} of the operators' time"
        )
    yield from layout.paragraph(f"Utilization: {'; '.join(facts)}", 0, width)


def _device(summary: TraceSummary, width: int) -> Iterator[str]:
    gpu = summary.gpu
    if gpu is None:
        return
    steps, unit = step_count(summary), per_step(summary)

    def time(ns: float) -> str:
        return format_quantity(ns / steps, "ns")

    span = gpu.span_ns or 1
    yield from layout.paragraph(
        f"Device: busy {_share(gpu.busy_ns / span)} of the time from its first to its last event "
        f"({time(gpu.busy_ns)} of {time(gpu.span_ns)}{unit})",
        0,
        width,
    )
    facts = []
    if gpu.communication_ns:
        hidden = gpu.communication_overlapped_ns / gpu.communication_ns
        facts.append(
            f"communication: {time(gpu.communication_ns)}{unit}, {_share(hidden)} overlapped with compute, "
            f"{time(gpu.communication_exposed_ns)} exposed (the device waits for it)"
        )
    if gpu.in_flight_communication_ns:
        facts.append(
            f"communication in progress while no kernel of it runs: {time(gpu.in_flight_communication_ns)}{unit}"
        )
    facts += [_copies(row, steps, unit) for row in summary.copies]
    if summary.sm_efficiency_est is not None:
        facts.append(f"SMs with work: {_share(summary.sm_efficiency_est)} (estimated from launch configurations)")
    if summary.occupancy_est is not None:
        facts.append(f"occupancy: {summary.occupancy_est:.1f}% (estimated from launch configurations)")
    launches = summary.launches
    if launches is not None:
        queue = max((queue.max_length for queue in launches.queues), default=0)
        facts.append(
            f"kernel launches: {_count(launches.kernel_launches / steps)}{unit}, "
            f"{format_quantity(launches.delay.p50_ns, 'ns')} from the call to the start (median), at most "
            f"{queue:,} queued; {_count(launches.short_kernels / steps)}{unit} kernels take less time than "
            "their launch call"
        )
    for fact in facts:
        yield from layout.paragraph(fact, 2, width)


def _copies(row: CopyRow, steps: int, unit: str) -> str:
    where = f" ({row.host_memory})" if row.host_memory else ""
    name = "memsets" if row.kind == "memset" else f"copies {DIRECTIONS.get(row.kind, row.kind)}{where}"
    size = f"{format_quantity(row.bytes / steps, 'B')} " if row.bytes else ""
    rate = f" ({row.bandwidth / 1e9:.3g} GB/s)" if row.bandwidth and row.bytes else ""
    return f"{name}: {_count(row.count / steps)}{unit}, {size}in {format_quantity(row.total_ns / steps, 'ns')}{rate}"


def _count(number: float) -> str:
    """A count per step: whole where it is, else with one decimal.

    >>> _count(1462.0), _count(2.5)
    ('1,462', '2.5')
    """
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"


def _critical_path(summary: TraceSummary, width: int) -> Iterator[str]:
    path, steps = summary.critical_path, step_count(summary)
    if not path.span_ns:
        return
    span = format_quantity(path.span_ns / steps, "ns")
    yield from layout.paragraph(
        f"Critical path {span}{per_step(summary)}: the chain of work and waits that determines the time", 0, width
    )
    yield from bars(by_size({name: ns / steps for name, ns in path.by_class.items()}), path.span_ns / steps)
    if path.inferred_share >= SHOWN_SHARE or path.unexplained_share >= SHOWN_SHARE:
        yield from layout.paragraph(
            f"{_share(path.inferred_share)} of the path are waits inferred from timing, "
            f"{_share(path.unexplained_share)} are waits that the trace does not explain",
            2,
            width,
        )


def _kernels(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    kernels = selection.rows(summary.kernels)
    whole = sum(row.total_ns for row in summary.kernels)
    if not kernels or not whole:
        return
    steps, each = step_count(summary), _each(summary)
    shown = kernels[:top]
    exposed = any(row.exposed_ns != row.total_ns for row in shown)
    yield _title("Kernels and copies", f"time{each}", len(kernels), top)
    table = [("", "time", "share", "calls", "per call", *["exposed"] * exposed)]
    table += [
        (
            visible(row.name),
            format_quantity(row.total_ns / steps, "ns"),
            _share(row.total_ns / whole),
            _count(row.count / steps),
            format_quantity(row.total_ns / row.count, "ns"),
            *[format_quantity(row.exposed_ns / steps, "ns")] * exposed,
        )
        for row in shown
    ]
    yield from layout.rows(table, "lrrrrr"[: len(table[0])], 2, width, short_names)
    text = "share: percentage of the time of all kernels and copies"
    if exposed:
        text += "; exposed: time during which the device runs no other kernel of the same kind and no compute"
    yield from layout.paragraph(text, 2, width)


def _operators(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """By name, module and source line, as far as the trace knows them."""
    steps, each = step_count(summary), _each(summary)
    between, legend = False, ""
    for title, rows, column, fit in (
        ("Operators", summary.operators, "name", short_names),
        ("Modules", summary.modules, "module", layout.last_parts),
        ("Source lines", summary.lines, "line", layout.last_parts),
    ):
        known = [row for row in selection.rows(rows) if getattr(row, column)]
        if not known:
            continue
        if between:
            yield ""
        between = True
        on_device = any(row.device_total_ns for row in known)
        yield _title(title, ("device time" if on_device else "CPU self time") + each, len(known), top)
        head = ("", "CPU self", "CPU total", "calls")
        table = [(*head, "device", "kernels") if on_device else head]
        for row in known[:top]:
            cells = (
                place(visible(getattr(row, column))),
                format_quantity(row.self_ns / steps, "ns"),
                format_quantity(row.total_ns / steps, "ns"),
                _count(row.count / steps),
            )
            device = (format_quantity(row.device_self_ns / steps, "ns"), _count(row.kernels / steps))
            table.append((*cells, *device) if on_device else cells)
        yield from layout.rows(table, "lrrrrr"[: len(table[0])], 2, width, fit)
        legend = "CPU self: time without operators called inside; CPU total: time including them"
        legend += "; device: kernels and copies that the operator launched itself" if on_device else ""
    if legend:
        yield from layout.paragraph(legend, 2, width)


def place(line: str) -> str:
    """A source line as path:line, as editors open it; other text as it is.

    >>> place("models/gpt.py(43): forward")
    'models/gpt.py:43 forward'
    """
    return _SOURCE_LINE.sub(r"\1:\2 \3", line)


def _roofline(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """Operators that the roofline has a model for; without peaks only what they achieve."""
    known = [row for row in selection.rows(summary.roofline) if not row.not_covered]
    if not known:
        return
    steps, each = step_count(summary), _each(summary)
    whole = "kernels and copies" if summary.gpu is not None else "operators"
    covered = sum(row.share for row in summary.roofline if not row.not_covered)
    yield from layout.paragraph(
        _title("Roofline", f"time{each}", len(known), top)
        + f": operators with a cost model, {_share(covered)} of the time "
        f"of all {whole}",
        0,
        width,
    )
    bounded = any(row.efficiency is not None for row in known[:top])
    table = [("", "time", "share", "FLOP/s", "bytes/s", *["of roofline", "bound by"] * bounded)]
    table += [
        (
            visible(f"{row.operator} {sizes(row.shapes)} {row.dtype}".strip()),
            format_quantity(row.time_ns / steps, "ns"),
            _share(row.share),
            "" if row.flops_per_s is None else format_quantity(row.flops_per_s, "flop/s"),
            "" if row.bytes_per_s is None else f"{row.bytes_per_s / 1e9:.3g} GB/s",
            *["" if row.efficiency is None else _share(row.efficiency), row.bound or ""][: 2 * bounded],
        )
        for row in known[:top]
    ]
    yield from layout.rows(table, "lrrrrrl"[: len(table[0])], 2, width, short_names, least=60)
    text = f"share: percentage of the time of all {whole}"
    if bounded:
        text += "; of roofline: shortest possible time at the device's peak rates, as a percentage of the measured time"
    yield from layout.paragraph(text, 2, width)


def sizes(shapes: str) -> str:
    """Shapes of inputs in short: what has none is left out.

    >>> sizes("[[1, 141, 512], [512, 512], []]")
    '[1,141,512] [512,512]'
    """
    found = [f"[{size.replace(' ', '')}]" for size in _SIZES.findall(shapes) if size.strip()]
    return " ".join(found) or shapes


def _share(ratio: float) -> str:
    return format_percent(ratio, signed=False)


def _memory(summary: TraceSummary, top: int, width: int) -> Iterator[str]:
    for device in summary.memory:
        reserved = device.peak_reserved_bytes
        more = f", {format_quantity(reserved, 'B')} reserved" if reserved else ""
        yield f"Memory ({device.device}): peak {format_quantity(device.peak_allocated_bytes, 'B')} allocated{more}" + (
            "; at the peak:" if device.alive_at_peak else ""
        )
        table = [
            (
                visible(alive.operator + (f" in {alive.module}" if alive.module else "")),
                format_quantity(alive.bytes, "B"),
            )
            for alive in device.alive_at_peak[:top]
        ]
        if table:
            yield from layout.rows(table, "lr", 2, width, _allocations)


def _allocations(names: Sequence[str], width: int) -> dict[str, str]:
    """Operators whole, the modules that they are in cut at the beginning."""
    shown = {}
    for name in names:
        operator, inside, module = name.partition(" in ")
        room = max(width - len(operator) - len(inside), layout.LEAST_NAME)
        shown[name] = operator + inside + layout.last_parts([module], room)[module]
    return {name: layout.shorten(text, width) for name, text in shown.items()}


def _findings(summary: TraceSummary, width: int) -> Iterator[str]:
    lines = [*summary.doubts, *(finding.text for finding in summary.noticed), *integrity_lines(summary)]
    if not lines:
        return
    yield "Findings"
    for line in lines:
        yield from layout.item(visible(line), 2, width)


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
        lines.append(f"{plural(found.dropped, 'event')} dropped by the profiler or unreadable, so totals are too small")
    if found.overhead_ns:
        lines.append(f"profiler overhead: {format_quantity(found.overhead_ns, 'ns')} in the whole trace")
    if found.bled_over:
        lines.append(outlasting(found.bled_over))
    return lines


def outlasting(count: int) -> str:
    """How many events outlast their parent: "2 CPU events outlast their parent event"."""
    verb, whose = ("outlasts", "its") if count == 1 else ("outlast", "their")
    return f"{plural(count, 'CPU event')} {verb} {whose} parent event"


def _title(what: str, by: str, rows: int, top: int) -> str:
    return f"{what} by {by}" + (f" ({top} of {rows}; --top shows more)" if rows > top else "")


def across_ranks(ranks: RankFigures, top: int, width: int) -> str:
    """The report on what compares the ranks: the straggler first, then a table of ranks, then their collectives.

    Example::

    Rank 6 of 8 is a straggler since step 5: it computes longer than the other ranks.
    Without that a step would take 4.50 ms less (8.2% of 55.1 ms).

    Ranks (mean per step, 55.1 ms)
              own work   compute     input      host  exposed   waiting           overlap  last
      rank 0  41.20 ms  38.10 ms  1.100 ms  2.000 ms  9.90 ms  4.800 ms  rank 6     61.0%     3
    """
    lines = [*layout.paragraph(" ".join(verdict(ranks)).strip(), 0, width), ""]
    lines += _rank_rows(ranks, width)
    if ranks.buckets:
        lines += ["", *_buckets(ranks, top, width)]
    if text := clocks_line(ranks):
        lines += ["", *layout.paragraph(text, 0, width)]
    for finding in ranks.findings:
        lines += layout.item(visible(finding), 0, width)
    return "\n".join(lines)


def _rank_rows(ranks: RankFigures, width: int) -> Iterator[str]:
    shown, count = shown_ranks(ranks), steps(ranks)
    marked = straggler_place(ranks)
    bubbles = any(rank.bubble_share is not None for rank in ranks.ranks)
    table = [("", "own work", *_PARTS, "exposed", "waiting", "mostly for", "overlap", *["bubble"] * bubbles, "last")]
    for place in shown:
        rank = ranks.ranks[place]
        table.append(
            (
                f"rank {rank.rank}{' *' if place == marked else ''}",
                format_quantity(own_ns(rank), "ns") if rank.own_ns else "",
                *(format_quantity(rank.parts_ns[name], "ns") if rank.parts_ns else "" for name in _PARTS),
                format_quantity(exposed_ns(rank, count), "ns"),
                format_quantity(rank.exposed_waiting_ns / count, "ns"),
                waits_mostly_for(ranks, place),
                "" if rank.overlap is None else format_percent(rank.overlap, signed=False),
                *["" if rank.bubble_share is None else format_percent(rank.bubble_share, signed=False)] * bubbles,
                str(rank.last),
            )
        )
    step = step_ns(ranks)
    yield "Ranks (mean per step" + (f", which takes {format_quantity(step, 'ns')}" if step else "") + ")"
    yield from layout.rows(table, "lrrrrrrlrrr"[: len(table[0])], 2, width)
    if text := others_line(ranks, shown):
        yield from layout.paragraph(text, 2, width)
    yield from layout.paragraph(
        f"{'*: the straggler; ' if marked is not None else ''}own work: compute, input and host together; exposed: "
        "communication while nothing computes; waiting: the part of it until the last rank joins; overlap: share of "
        f"the communication that overlaps with compute; {_BUBBLE if bubbles else ''}last: collectives in the trace "
        "that the rank was the last to join",
        2,
        width,
    )


_PARTS: tuple[Literal["compute", "input", "host"], ...] = ("compute", "input", "host")
_BUBBLE = "bubble: share of the step in which the rank waits for a message and computes nothing; "


def _buckets(ranks: RankFigures, top: int, width: int) -> Iterator[str]:
    found = by_time(ranks.buckets)
    yield _title("Collectives", "time per step", len(found), top)
    sized, rated = (any(getattr(each, name) for each in found) for name in ("bytes", "bus_bandwidth"))
    table = [("", "bytes" if sized else "", "time", "transfer", "hidden", "bus bandwidth" if rated else "")]
    table += [
        (
            name,
            "" if each.bytes is None else format_quantity(each.bytes, "B"),
            format_quantity(each.duration_ns, "ns"),
            format_quantity(each.transfer_ns, "ns"),
            format_percent(each.hidden_share, signed=False),
            "" if each.bus_bandwidth is None else format_quantity(each.bus_bandwidth, "B/s"),
        )
        for each, name in list(zip(found, bucket_names(found, ranks), strict=True))[:top]
    ]
    yield from layout.rows(table, "lrrrrr", 2, width, short_names)
    yield from layout.paragraph(
        "time: median over ranks and steps, with waiting; transfer: without waiting for the last rank; hidden: share "
        "that overlaps with compute",
        2,
        width,
    )
