"""Show what a test's baselines hold: metrics with their spread, environment, largest operators."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from pytest_perfdl.cli.common import baselines, say, shown, table
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.model.record import Record, Series
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible

_ROWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("test", help="id of the test, or a part of it")


def run(arguments: argparse.Namespace) -> int:
    """Print every baseline whose test's id contains the text; 3 when there is none."""
    folder = store(arguments).base
    found = [(path, record) for path, record in baselines(folder) if arguments.test in record.test]
    if not found:
        say(f"no baseline of a test whose id contains {arguments.test!r} in {shown(folder)}")
        return 3
    say("\n\n".join(_page(path, record) for path, record in found))
    return 0


def _page(path: Path, record: Record) -> str:
    lines = [visible(record.test), f"  {shown(path)}", visible(f"  key      {record.key.slug}")]
    context = ", ".join(f"{name} {value}" for name, value in sorted(record.context.items()))
    lines.append(visible(f"  context  {context}"))
    for occasion in record.occasions:
        commit = f" at {occasion.commit[:9]}" if occasion.commit else ""
        lines.append(visible(f"  recorded {occasion.date}{commit}, {plural(occasion.repeats, 'repeat')}"))
    rows: list[tuple[str, ...]] = [("  metric", "median", "spread of repeats")]
    rows += [(f"  {name}", *_figures(series)) for name, series in sorted(record.metrics().items())]
    lines += ["", table(rows)]
    for call in record.calls:
        step = statistics.fmean(call.profiled_ns)
        largest = sorted(call.rows, key=lambda row: -statistics.fmean(row.ns))[:_ROWS]
        rows = [(f"  {call.name or 'step'}: largest parts", "a step", "self time", "share")]
        for row in largest:
            time = statistics.fmean(row.ns)
            share = format_percent(time / step, signed=False) if step else ""
            rows.append((f"  {row.name}", f"{row.count:g}", format_quantity(round(time), "ns"), share))
        lines += ["", table(rows)]
    return "\n".join(lines)


def _figures(series: Series) -> tuple[str, str]:
    median = statistics.median(series.values)
    spread = (
        "equal" if series.stable else f"{_shown(min(series.values), series)} to {_shown(max(series.values), series)}"
    )
    return _shown(median, series), spread


def _shown(value: float, series: Series) -> str:
    return format_quantity(value, series.unit)
