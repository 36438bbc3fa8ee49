"""Show a test's metrics over commits, and where they changed.

The values are those of the committed baselines at every commit that changed one, or of run files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import print_json, say, shown, width
from pytest_perfdl.cli.project import add_dir, store
from pytest_perfdl.model.errors import CommandError

if TYPE_CHECKING:
    from pytest_perfdl.results.curve import TestHistory
    from pytest_perfdl.runs.run_files import Skip

STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    add_dir(parser)
    parser.add_argument(
        "test", metavar="TEST", nargs="?", default="", help="id of a test, or a part of the id (default: all tests)"
    )
    parser.add_argument(
        "--runs",
        metavar="PLACE",
        nargs="+",
        action="extend",
        default=[],
        help="show run files instead of committed baselines: files, folders, or URLs such as s3://bucket/runs",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric to show, such as ops or forward.step_time, or `all` (default: step_time of every call)",
    )
    parser.add_argument("--json", action="store_true", help="print all points and changes as JSON")
    parser.add_argument("--csv", metavar="FILE", help="write all points as CSV; - is standard output")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with charts")


def run(arguments: argparse.Namespace) -> int:
    """Show the histories; 3 when there is none."""
    from pytest_perfdl.report.history import BLOCKS, page

    if arguments.json and arguments.csv == STDOUT:
        raise CommandError("--json and --csv - both print to standard output: write the CSV to a file")
    skipped: list[str] = []

    def skip(line: str) -> None:
        skipped.append(line)
        say(f"perfdl history: {line}", error=True)

    found = _find_histories(arguments, skip)
    if not found:
        say(_nothing(arguments), error=arguments.json or arguments.csv == STDOUT)
        return 3
    _write(arguments, found)
    if arguments.json:
        from pytest_perfdl.report.history import to_json

        print_json(to_json(found, skipped))
    elif arguments.csv != STDOUT:
        say(page(found, width(), blocks=_can_say(BLOCKS)))
    return 0


def _find_histories(arguments: argparse.Namespace, skip: Skip) -> tuple[TestHistory, ...]:
    from pytest_perfdl.runs import history, run_files
    from pytest_perfdl.runs.history import histories
    from pytest_perfdl.system.remote import is_url

    if arguments.runs:
        measured = run_files.measurements(arguments.runs, skip)
    elif Path(arguments.test).suffix == ".json" or is_url(arguments.test):
        raise CommandError(f"{arguments.test} is no test: name run files with perfdl history --runs PLACE")
    else:
        project = store(arguments)
        measured = history.measurements(project.root, project.folder, skip)
    return histories(measured, arguments.test, arguments.metric)


def _nothing(arguments: argparse.Namespace) -> str:
    of = f" of a test whose id contains {arguments.test!r}" if arguments.test else ""
    metric = f" with the metric {arguments.metric!r}" if arguments.metric else ""
    if arguments.runs:
        return f"nothing to show: no run file has a measurement{of}{metric}"
    return (
        f"nothing to show: no commit has a baseline in {shown(store(arguments).base)}{of}{metric} (record baselines "
        "with `pytest --perf-update`, or name run files with --runs)"
    )


def _write(arguments: argparse.Namespace, found: tuple[TestHistory, ...]) -> None:
    """Write the files that are asked for; standard output is left to JSON where that is printed."""
    from pytest_perfdl.report.files import write_files

    if arguments.csv is not None:
        from pytest_perfdl.report.history import to_csv

        if arguments.csv == STDOUT:
            say(to_csv(found), end="")
        else:
            write_files({Path(arguments.csv): to_csv(found).encode("utf-8")})
            say(f"wrote {arguments.csv}", error=True)
    if arguments.html is not None:
        from pytest_perfdl.report.history import write_page

        write_page(arguments.html, found)
        say(f"wrote {arguments.html}", error=True)


def _can_say(text: str) -> bool:
    """Whether standard output has characters for a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
