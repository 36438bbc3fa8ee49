"""Show a test's baselines: metrics, environment, largest operators."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping

from pytest_perfdl.cli.common import say, shown, width
from pytest_perfdl.cli.project import add_dir, baselines, store
from pytest_perfdl.machine.utilization import case_rates
from pytest_perfdl.model.cases import LONGEST_ID
from pytest_perfdl.model.kernel_names import short_names
from pytest_perfdl.model.record import Call, Case, Record, Series
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import cases, layout

_ROWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("test", metavar="TEST", help="id of a test, or a part of the id")


def run(arguments: argparse.Namespace) -> int:
    """Print every baseline whose test's id contains the text; 3 when there is none."""
    stored = store(arguments)
    found = [(path, record) for path, record in baselines(stored) if arguments.test in record.test]
    if not found:
        say(f"no baseline in {shown(stored.base)} of a test whose id contains {arguments.test!r}")
        return 3
    say("\n\n".join(_page(shown(path), record) for path, record in found))
    return 0


def _page(file: str, record: Record) -> str:
    room = width()
    lines = [visible(record.test)]
    facts = [("file", file), ("machine ID", record.key.slug)]
    facts += [
        (
            "recorded",
            f"{occasion.date}"
            + (f" at commit {occasion.commit[:9]}" if occasion.commit else "")
            + f", {plural(occasion.repeats, 'process', 'processes')}",
        )
        for occasion in record.occasions
    ]
    if record.note:
        facts.append(("note", record.note))
    if record.refreshed:
        kept = record.refreshed
        at = f" at commit {kept.commit[:9]}" if kept.commit else ""
        facts.append(("refreshed", f"written by perfdl refresh; recorded before that on {kept.date}{at}"))
    facts.append(("context", ", ".join(f"{name} {value}" for name, value in sorted(record.context.items()))))
    for name, text in facts:
        first, *rest = layout.paragraph(visible(text), 14, room)
        lines += [f"  {name:<12}{first.lstrip()}", *rest]
    rows = [("Metrics", "median", f"range of {plural(record.repeats, 'process', 'processes')}")]
    rows += [(f"  {name}", *_figures(series)) for name, series in sorted(record.metrics().items())]
    lines += ["", *layout.rows(rows, "lrl", 2, room)]
    for call in record.calls:
        if call.cases:
            lines += _cases(call, room)
            continue
        step = statistics.fmean(call.profiled_ns)
        largest = sorted(call.rows, key=lambda row: -statistics.fmean(row.ns))[:_ROWS]
        title = "Largest parts of the profiled step" + (f" ({call.name})" if call.name else "")
        parts: list[tuple[str, ...]] = [("", "self time/step", "share", "calls/step")]
        for row in largest:
            time = statistics.fmean(row.ns)
            share = format_percent(time / step, signed=False) if step else ""
            count = "" if row.kind == "idle" else f"{row.count:g}"
            parts.append((visible(row.name), format_quantity(round(time), "ns"), share, count))
        lines += ["", f"  {title}, {format_quantity(round(step), 'ns')}"]
        lines += layout.rows(parts, "lrrr", 4, room, short_names)
    return "\n".join(lines)


def _cases(call: Call, room: int) -> list[str]:
    """The cases of a table that take longest."""
    longest = sorted(call.cases, key=lambda case: -statistics.median(case.ns))[:_ROWS]
    title = f"Slowest of {plural(len(call.cases), 'case')}" + (f" ({call.name})" if call.name else "")
    columns = (
        layout.Column("Case", lambda case: case.id),
        layout.Column("call", lambda case: statistics.median(case.ns), "ns"),
        layout.Column("operators/call", lambda case: case.ops, "count"),
        *(cases.rate_column(name, _rates) for name in cases.RATES),
    )
    return ["", f"  {title}", *layout.table(layout.Table(title, columns, longest), room, indent=4, least=LONGEST_ID)]


def _rates(case: Case) -> Mapping[str, float]:
    return case_rates(case.work, statistics.median(case.ns), None).values


def _figures(series: Series) -> tuple[str, str]:
    median = statistics.median(series.values)
    low, high = _format_value(min(series.values), series), _format_value(max(series.values), series)
    return _format_value(median, series), "equal in all processes" if series.stable else f"{low} to {high}"


def _format_value(value: float, series: Series) -> str:
    return format_quantity(value, series.unit)
