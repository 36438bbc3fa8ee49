"""List the recorded baselines: machine, date, commit, step time, note."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_perfdl.cli.common import say, shown, width
from pytest_perfdl.cli.project import add_dir, outlines, store
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Series
from pytest_perfdl.model.record_json import Outline
from pytest_perfdl.model.units import format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.runs.history import mean

_NOTE = 40
"""Cells of a note; `perfdl show` prints all of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument("-k", metavar="TEXT", default="", help="list only tests whose id contains TEXT")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 3 when there is no baseline."""
    stored = store(arguments)
    found = [record for _, record in outlines(stored) if arguments.k in record.test]
    if not found:
        say(f"no baselines in {shown(stored.base)}: record baselines with `pytest --perf-update`")
        return 3
    for key, records in _group_by_machine(found).items():
        say(f"machine ID {visible(key)}")
        rows = [("", "processes", "recorded", "commit", "step time", "note"), *map(_row, records)]
        if not any(row[-1] for row in rows[1:]):
            rows = [row[:-1] for row in rows]
        say("\n".join(layout.rows(rows, "lrllll"[: len(rows[0])], 2, width(), layout.last_parts)))
    say(plural(len(found), "baseline"))
    return 0


def _row(record: Outline) -> tuple[str, ...]:
    last = record.occasions[-1]
    times = [
        format_quantity(mean(Series("timed", series.unit, "lower", tuple(series.values)))[0], series.unit)
        for call in record.calls
        for name, series in call.metrics.items()
        if general(name) == "step_time" and series.values
    ]
    commit = (last.commit or "")[:9]
    repeats = sum(occasion.repeats for occasion in record.occasions)
    note = layout.cut(visible(record.note or ""), _NOTE)
    return visible(record.test), str(repeats), visible(last.date[:10]), visible(commit), ", ".join(times), note


def _group_by_machine(records: Sequence[Outline]) -> dict[str, list[Outline]]:
    found: dict[str, list[Outline]] = {}
    for record in records:
        found.setdefault(record.key.slug, []).append(record)
    return found
