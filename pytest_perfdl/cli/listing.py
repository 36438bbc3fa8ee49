"""List the baselines: test, key, repeats, when, at which commit, and the step time."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from pytest_perfdl.cli.common import baselines, say, table
from pytest_perfdl.record import Record
from pytest_perfdl.units import format_quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("-k", metavar="TEXT", default="", help="only tests whose id contains this text")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 3 when there is no baseline."""
    found = [record for _, record in baselines(Path(arguments.dir)) if arguments.k in record.test]
    if not found:
        say(f"no baselines in {arguments.dir}")
        return 3
    say(table([("test", "key", "repeats", "recorded", "commit", "step time"), *map(_row, found)]))
    return 0


def _row(record: Record) -> tuple[str, ...]:
    last = record.occasions[-1]
    times = [
        format_quantity(statistics.median(series.values), series.unit)
        for name, series in record.metrics().items()
        if name.rpartition(".")[2] == "block_time"
    ]
    commit = (last.commit or "")[:9]
    return record.test, record.key.slug, str(record.repeats), last.date[:10], commit, ", ".join(times)
