"""A trace's summary as text: the bottleneck first, then where the time goes, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_perfdl.machine.utilization import TELLING
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import layout
from pytest_perfdl.report.whatif.advice import advice_lines
from pytest_perfdl.report.words import visible

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.transfers import CopyRow
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankFigures
    from pytest_perfdl.model.selection import Selection
    from pytest_perfdl.report.whatif import Answers

BAR = 24
"""Width of the longest bar of the account."""
SHOWN_SHARE = 0.01
"""Least share of the critical path from which its quality is reported."""


def report(summary: TraceSummary, selection: Selection, top: int, width: int, advised: Answers | None = None) -> str:
    """The report on one trace, wrapped to a width; tables have at most `top` rows, and advice comes last.

    Example::

    train.json.gz  6 steps, 36,721 events, Tesla V100-DGXS-32GB
    Bottleneck: waiting for input, 58.1% of a step (102.4 of 176.3 ms).

    step  176.3 ms on average of 6, 152.1 ms to 201.0 ms
      compute   98.60 ms  55.9%  =============
      input     59.30 ms  33.6%  ========
    """
    lines = [*_head(summary, width), ""]
    sections = (
        _steps(summary),
        _utilization(summary, width),
        _device(summary, width),
        _critical_path(summary),
        _kernels(summary, selection, top, width),
        _operators(summary, selection, top, width),
        _roofline(summary, selection, top, width),
        _memory(summary, top, width),
        _findings(summary, width),
        advice_lines(advised, width) if advised is not None else (),
    )
    for section in sections:
        found = list(section)
        if found:
            lines += [*found, ""]
    return "\n".join(lines[:-1])


def _head(summary: TraceSummary, width: int) -> Iterator[str]:
    facts = [plural(summary.events, "event")]
    if numbered(summary):
        facts.insert(0, plural(len(summary.steps), "step"))
    if summary.device:
        facts.append(visible(summary.device))
    if summary.rank is not None:
        facts.append(f"rank {summary.rank}" + (f" of {summary.world_size}" if summary.world_size else ""))
    yield f"{visible(summary.source)}  {', '.join(facts)}"
    yield from layout.paragraph(f"Bottleneck: {summary.bottleneck.text}", 0, width)


def _steps(summary: TraceSummary) -> Iterator[str]:
    walls = [step.wall_ns for step in summary.steps]
    if not walls:
        return
    mean, low, high = (format_quantity(value, "ns") for value in (sum(walls) / len(walls), min(walls), max(walls)))
    if len(walls) > 1:
        yield f"step  {mean} on average of {len(walls)}, {low} to {high}"
    else:
        yield f"{summary.steps[0].name}  {mean}"
    yield from bars(mean_account(summary), sum(walls) / len(walls))


def mean_account(summary: TraceSummary) -> dict[str, float]:
    """Nanoseconds a step by class, on average over the steps, the largest first; classes without time left out."""
    count = len(summary.steps)
    names = summary.steps[0].account if count else ()
    return by_size({name: sum(step.account[name] for step in summary.steps) / count for name in names})


def by_size(parts: Mapping[str, float]) -> dict[str, float]:
    """The largest first; what is zero left out."""
    return {name: ns for name, ns in sorted(parts.items(), key=lambda item: -item[1]) if ns}


def numbered(summary: TraceSummary) -> bool:
    """Whether the trace has steps, and not one window over everything."""
    return any(step.name.startswith("ProfilerStep") for step in summary.steps)


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
    "flops_utilization": "of the peak FLOP/s",
    "bandwidth_utilization": "of the memory's bandwidth",
    "roofline": "of the roofline while operators run",
    "tensor_core_share": "of the kernels' time on tensor cores",
    "launch_gap": "waiting for launches",
}
"""Figures of utilization in the order in which they are shown; what else there is stands with the device."""


def _utilization(summary: TraceSummary, width: int) -> Iterator[str]:
    found = summary.utilization
    facts = [
        f"{format_percent(found.values[name], signed=False)} {text}"
        for name, text in SHOWN.items()
        if name in found.values
    ]
    if "achieved_flops" in found.values:
        facts.insert(0, format_quantity(found.values["achieved_flops"], "flop/s"))
    if not facts:
        return
    if found.coverage is not None and found.coverage < TELLING:
        share = format_percent(found.coverage, signed=False)
        facts.append(f"operators with a cost model are only {share} of the operators' time")
    yield from layout.paragraph(f"utilization  {'; '.join(facts)}", 0, width)


def _device(summary: TraceSummary, width: int) -> Iterator[str]:
    gpu = summary.gpu
    if gpu is None:
        return
    span = gpu.span_ns or 1
    yield f"device  busy {format_percent(gpu.busy_ns / span, signed=False)} of {format_quantity(gpu.span_ns, 'ns')}"
    facts = []
    if gpu.communication_ns:
        hidden = gpu.communication_overlapped_ns / gpu.communication_ns
        facts.append(
            f"communication {format_quantity(gpu.communication_ns, 'ns')}, of which "
            f"{format_percent(hidden, signed=False)} hidden behind computing and "
            f"{format_quantity(gpu.communication_exposed_ns, 'ns')} exposed"
        )
    if gpu.in_flight_communication_ns:
        facts.append(f"in flight without a kernel {format_quantity(gpu.in_flight_communication_ns, 'ns')}")
    facts += [_copies(row) for row in summary.copies]
    if summary.sm_efficiency_est is not None:
        facts.append(
            f"SM efficiency {format_percent(summary.sm_efficiency_est, signed=False)} (estimated from launches)"
        )
    if summary.occupancy_est is not None:
        facts.append(f"occupancy {summary.occupancy_est:.1f}% (estimated)")
    launches = summary.launches
    if launches is not None:
        queue = max((queue.max_length for queue in launches.queues), default=0)
        facts.append(
            f"{plural(launches.kernel_launches, 'kernel launch', 'kernel launches')}, "
            f"{format_quantity(launches.delay.p50_ns, 'ns')} from call to start (median), queue of {queue} at most; "
            f"{plural(launches.short_kernels, 'kernel')} shorter than their launch call"
        )
    for fact in facts:
        yield from layout.paragraph(fact, 2, width)


def _copies(row: CopyRow) -> str:
    where = f" {row.host_memory}" if row.host_memory else ""
    size = f" {format_quantity(row.bytes, 'B')}" if row.bytes else ""
    rate = f" at {row.bandwidth / 1e9:.3g} GB/s" if row.bandwidth and row.bytes else ""
    what = plural(row.count, "memset") if row.kind == "memset" else f"{plural(row.count, 'copy', 'copies')} {row.kind}"
    return f"{what}{where},{size} in {format_quantity(row.total_ns, 'ns')}{rate}"


def _critical_path(summary: TraceSummary) -> Iterator[str]:
    path = summary.critical_path
    if not path.span_ns:
        return
    yield f"critical path  {format_quantity(path.span_ns, 'ns')}, from the first event to the last"
    yield from bars(by_size(path.by_class), path.span_ns)
    if path.inferred_share >= SHOWN_SHARE or path.unexplained_share >= SHOWN_SHARE:
        yield (
            f"  {format_percent(path.inferred_share, signed=False)} rests on inferred waits, "
            f"{format_percent(path.unexplained_share, signed=False)} is unexplained"
        )


def _kernels(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    kernels = selection.rows(summary.kernels)
    whole = sum(row.total_ns for row in summary.kernels)
    if not kernels or not whole:
        return
    yield _title("kernels and copies", "total time", len(kernels), top)
    table = [("", "total", "share", "count", "mean", "exposed")]
    table += [
        (
            visible(row.name),
            format_quantity(row.total_ns, "ns"),
            format_percent(row.total_ns / whole, signed=False),
            str(row.count),
            format_quantity(row.total_ns / row.count, "ns"),
            format_quantity(row.exposed_ns, "ns"),
        )
        for row in kernels[:top]
    ]
    yield from layout.rows(table, "lrrrrr", 2, width)


def _operators(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """By name, module and source line, as far as the trace knows them."""
    between = False
    for title, rows, column in (
        ("operators", summary.operators, "name"),
        ("modules", summary.modules, "module"),
        ("source lines", summary.lines, "line"),
    ):
        known = [row for row in selection.rows(rows) if getattr(row, column)]
        if not known:
            continue
        if between:
            yield ""
        between = True
        on_device = any(row.device_total_ns for row in known)
        yield _title(title, "device time" if on_device else "self time", len(known), top)
        head = ("", "self", "total", "count")
        table = [(*head, "device", "kernels") if on_device else head]
        for row in known[:top]:
            cells = (
                visible(getattr(row, column)),
                format_quantity(row.self_ns, "ns"),
                format_quantity(row.total_ns, "ns"),
                str(row.count),
            )
            table.append((*cells, format_quantity(row.device_self_ns, "ns"), str(row.kernels)) if on_device else cells)
        yield from layout.rows(table, "lrrrrr"[: len(table[0])], 2, width)


def _roofline(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """Operators that the roofline has a model for; without peaks only what they achieve."""
    known = [row for row in selection.rows(summary.roofline) if not row.not_covered]
    if not known:
        return
    covered = sum(row.share for row in summary.roofline if not row.not_covered)
    yield _title("roofline", "time", len(known), top) + f", of operators with {_share(covered)} of the time"
    table = [("", "time", "share", "FLOP/s", "bytes/s", "of the roofline", "bound by")]
    table += [
        (
            visible(f"{row.operator} {row.shapes} {row.dtype}".strip()),
            format_quantity(row.time_ns, "ns"),
            _share(row.share),
            "" if row.flops_per_s is None else format_quantity(row.flops_per_s, "flop") + "/s",
            "" if row.bytes_per_s is None else f"{row.bytes_per_s / 1e9:.3g} GB/s",
            "" if row.efficiency is None else _share(row.efficiency),
            row.bound or "",
        )
        for row in known[:top]
    ]
    yield from layout.rows(table, "lrrrrrl", 2, width)


def _share(ratio: float) -> str:
    return format_percent(ratio, signed=False)


def _memory(summary: TraceSummary, top: int, width: int) -> Iterator[str]:
    for device in summary.memory:
        reserved = device.peak_reserved_bytes
        more = f", {format_quantity(reserved, 'B')} reserved" if reserved else ""
        yield f"memory {device.device}  peak {format_quantity(device.peak_allocated_bytes, 'B')} allocated{more}" + (
            "; alive then:" if device.alive_at_peak else ""
        )
        table = [
            (
                visible(alive.operator + (f" in {alive.module}" if alive.module else "")),
                format_quantity(alive.bytes, "B"),
            )
            for alive in device.alive_at_peak[:top]
        ]
        if table:
            yield from layout.rows(table, "lr", 2, width)


def _findings(summary: TraceSummary, width: int) -> Iterator[str]:
    lines = [finding.text for finding in summary.noticed]
    lines += integrity_lines(summary)
    if not lines:
        return
    yield "findings"
    for line in lines:
        yield from layout.paragraph(f"- {visible(line)}", 2, width)


def integrity_lines(summary: TraceSummary) -> list[str]:
    """What to know about the trace itself before believing its figures."""
    found, lines = summary.integrity, []
    if found.carry_over:
        lines.append(
            f"launched before the trace begins, in no step: {plural(found.carry_over, 'device event')} "
            f"({format_quantity(found.carry_over_ns, 'ns')})"
        )
    if found.unlinked > found.carry_over:
        lines.append(f"no launch in the trace: {plural(found.unlinked - found.carry_over, 'device event')}")
    if found.zero_duration:
        lines.append(f"no duration (times in whole microseconds): {plural(found.zero_duration, 'device event')}")
    if found.same_stream_overlaps:
        lines.append(f"overlapping on their stream: {plural(found.same_stream_overlaps, 'device event')}")
    if found.early_starts:
        lines.append(f"starting before their launch call: {plural(found.early_starts, 'device event')}")
    if found.dropped:
        lines.append(f"dropped by the profiler, or left out when the trace was read: {plural(found.dropped, 'event')}")
    if found.overhead_ns:
        lines.append(f"the profiler's own work took {format_quantity(found.overhead_ns, 'ns')}")
    if found.bled_over:
        lines.append(f"ending after the one around them: {plural(found.bled_over, 'host event')}")
    return lines


def _title(what: str, by: str, rows: int, top: int) -> str:
    return f"{what} by {by}" + (f" ({top} of {rows})" if rows > top else "")


def across_ranks(ranks: RankFigures, width: int) -> str:
    """The report on what compares the ranks.

    Example::

    ranks       step   busy   compute  exposed communication  waiting for others  last to start
    rank 0  120.3 ms  44.8%  1.100 s                120.1 ms             80.2 ms        3 times
    """
    table = [("ranks", "step", "busy", "compute", "exposed communication", "waiting for others", "last to start")]
    for rank in ranks.ranks:
        table.append(
            (
                f"rank {rank.rank}",
                format_quantity(rank.step_mean_ns, "ns") if rank.steps else "",
                format_percent(rank.busy_ns / rank.span_ns, signed=False) if rank.span_ns else "",
                format_quantity(rank.compute_ns, "ns"),
                format_quantity(rank.exposed_communication_ns, "ns"),
                format_quantity(rank.waiting_ns, "ns"),
                plural(rank.last, "time"),
            )
        )
    lines = layout.rows(table, "lrrrrrr", 0, width)
    if ranks.collectives:
        fact = (
            f"{plural(len(ranks.collectives), 'collective')} matched across ranks, which start "
            f"{format_quantity(ranks.skew_median_ns, 'ns')} apart (median), "
            f"{format_quantity(ranks.skew_max_ns, 'ns')} at most"
        )
        if ranks.straggler is not None:
            fact += f"; rank {ranks.straggler} is mostly the last"
        fact += f"; clocks are aligned on the collectives' ends, to {format_quantity(ranks.residual_ns, 'ns')}"
        lines += layout.paragraph(fact, 2, width)
    for finding in ranks.findings:
        lines += layout.paragraph(f"- {visible(finding)}", 2, width)
    return "\n".join(lines)
