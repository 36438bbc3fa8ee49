"""A trace's summary as text: the bottleneck and the findings first, then the step's breakdown, then the tables.

Times and counts are per step: totals over the trace divided by its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.machine.utilization import TELLING
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.advice import advice_lines
from pytest_perfdl.report.layout import Table, count_words
from pytest_perfdl.report.trace import tables
from pytest_perfdl.report.trace.ranks import clocks_line, others_line, shown_ranks, step_ns, straggler_place, verdict
from pytest_perfdl.report.trace.tables import (
    DIRECTIONS,
    UTILIZATION,
    by_size,
    integrity_lines,
    mean_account,
    numbered,
    per_step,
    per_step_words,
    step_count,
    step_words,
)

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.transfers import CopyRow
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankFigures
    from pytest_perfdl.model.selection import Selection
    from pytest_perfdl.report.whatif import Answers

SHOWN_SHARE = 0.01
"""Least share of the critical path from which its quality is reported."""


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
        _table(tables.kernels(summary, selection, top), top, width),
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


def _steps(summary: TraceSummary, width: int) -> Iterator[str]:
    if not summary.steps:
        return
    what = "Step time" if numbered(summary) else "Time"
    yield f"{what} {step_words(summary)}"
    account = mean_account(summary)
    yield from layout.bars(account, sum(account.values()))
    if text := per_step_words(summary):
        yield from layout.paragraph(text, 2, width)
    if summary.groups:
        found = tables.kinds(summary)
        yield from ("", found.ordered, *layout.table(found, width))


def _utilization(summary: TraceSummary, width: int) -> Iterator[str]:
    found = summary.utilization
    facts = [
        f"{text}: {format_percent(found.values[name], signed=False)}"
        for name, text in UTILIZATION.items()
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
    which = "Device" if gpu.devices == 1 else f"{gpu.devices} devices, any of them"
    yield from layout.paragraph(
        f"{which}: busy {_share(gpu.busy_ns / span)} of the time from its first to its last event "
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
            f"kernel launches: {count_words(launches.kernel_launches / steps)}{unit}, "
            f"{format_quantity(launches.delay.p50_ns, 'ns')} from the call to the start (median), at most "
            f"{queue:,} queued; {count_words(launches.short_kernels / steps)}{unit} kernels take less time than "
            "their launch call"
        )
    for fact in facts:
        yield from layout.paragraph(fact, 2, width)


def _copies(row: CopyRow, steps: int, unit: str) -> str:
    where = f" ({row.host_memory})" if row.host_memory else ""
    name = "memsets" if row.kind == "memset" else f"copies {DIRECTIONS.get(row.kind, row.kind)}{where}"
    size = f"{format_quantity(row.bytes / steps, 'B')} " if row.bytes else ""
    rate = f" ({row.bandwidth / 1e9:.3g} GB/s)" if row.bandwidth and row.bytes else ""
    return (
        f"{name}: {count_words(row.count / steps)}{unit}, {size}in {format_quantity(row.total_ns / steps, 'ns')}{rate}"
    )


def _critical_path(summary: TraceSummary, width: int) -> Iterator[str]:
    path, steps = summary.critical_path, step_count(summary)
    if not path.span_ns:
        return
    span = format_quantity(path.span_ns / steps, "ns")
    yield from layout.paragraph(
        f"Critical path {span}{per_step(summary)}: the chain of work and waits that determines the time", 0, width
    )
    yield from layout.bars(by_size(path.by_class, steps), path.span_ns / steps)
    if path.inferred_share >= SHOWN_SHARE or path.unexplained_share >= SHOWN_SHARE:
        yield from layout.paragraph(
            f"{_share(path.inferred_share)} of the path are waits inferred from timing, "
            f"{_share(path.unexplained_share)} are waits that the trace does not explain",
            2,
            width,
        )


def _table(found: Table, top: int, width: int) -> Iterator[str]:
    """A table with its title and its legend; nothing without rows."""
    if found.rows:
        yield layout.title(found, top)
        yield from layout.table(found, width, top=top)
        yield from layout.paragraph(found.short_legend, 2, width)


def _operators(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """By name, module and source line, as far as the trace knows them."""
    groups: tuple[tables.Grouped, ...] = ("name", "module", "line")
    known = [found for by in groups if (found := tables.operators(summary, selection, by)).rows]
    for found in known[:-1]:
        yield from (layout.title(found, top), *layout.table(found, width, top=top), "")
    yield from (line for found in known[-1:] for line in _table(found, top, width))


def _roofline(summary: TraceSummary, selection: Selection, top: int, width: int) -> Iterator[str]:
    """Operators that the roofline has a model for; without peaks only what they achieve."""
    found = tables.roofline(summary, selection)
    found = replace(found, rows=[row for row in found.rows if not row.not_covered])
    if not found.rows:
        return
    whole = "kernels and copies" if summary.gpu is not None else "operators"
    covered = _share(sum(row.share for row in summary.roofline if not row.not_covered))
    head = f"{layout.title(found, top)}: operators with a cost model, {covered} of the time of all {whole}"
    yield from layout.paragraph(head, 0, width)
    yield from layout.table(found, width, top=top, least=60)
    yield from layout.paragraph(found.short_legend, 2, width)


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
        lines += ["", *_table(tables.collectives(ranks), top, width)]
    if text := clocks_line(ranks):
        lines += ["", *layout.paragraph(text, 0, width)]
    for finding in ranks.findings:
        lines += layout.item(visible(finding), 0, width)
    return "\n".join(lines)


def _rank_rows(ranks: RankFigures, width: int) -> Iterator[str]:
    shown, step = shown_ranks(ranks), step_ns(ranks)
    found = tables.rank_table(ranks, shown, "*")
    yield "Ranks (mean per step" + (f", which takes {format_quantity(step, 'ns')}" if step else "") + ")"
    yield from layout.table(found, width)
    if text := others_line(ranks, shown):
        yield from layout.paragraph(text, 2, width)
    mark = "" if straggler_place(ranks) is None else "*: the straggler; "
    yield from layout.paragraph(mark + found.short_legend, 2, width)
