"""List the baselines: test, key, repeats, when, at which commit, and the step time."""

from __future__ import annotations

import argparse
import statistics

from pytest_perfdl.cli.common import baselines, say, shown, table
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import format_quantity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("-k", metavar="TEXT", default="", help="only tests whose id contains this text")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 3 when there is no baseline."""
    folder = store(arguments).base
    found = [record for _, record in baselines(folder) if arguments.k in record.test]
    if not found:
        say(f"no baselines in {shown(folder)}")
        return 3
    say(table([("test", "key", "repeats", "recorded", "commit", "step time"), *map(_row, found)]))
    return 0


def _row(record: Record) -> tuple[str, ...]:
    last = record.occasions[-1]
    times = [
        format_quantity(statistics.median(series.values), series.unit)
        for name, series in record.metrics().items()
        if general(name) == "block_time"
    ]
    commit = (last.commit or "")[:9]
    return record.test, record.key.slug, str(record.repeats), last.date[:10], commit, ", ".join(times)
