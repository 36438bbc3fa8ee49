"""Write the report of a run file again, without measuring.

`perfdl report perf-report/run.json` writes the HTML report, the summary and the traces with the installed version of
pytest-perfdl. Of several runs the newest is shown; the others are each test's history.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import local_path, run_file, say
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.report import Written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "runs",
        metavar="RUN.json",
        type=run_file,
        nargs="+",
        help="run.json file of a report, or the folder of the report",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FOLDER",
        type=local_path,
        help="output folder (default: the folder of the run.json file; with several run.json files: perf-report)",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write only the HTML report, to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Write the report; always 0."""
    from pytest_perfdl.report import write_all
    from pytest_perfdl.report.html import write_html
    from pytest_perfdl.results.run import with_history
    from pytest_perfdl.results.run_file import read_run

    if arguments.html is not None and arguments.out is not None:
        raise CommandError("--html and --out cannot be combined: remove one of them")
    files: list[Path] = arguments.runs
    folder = arguments.out or (files[0].parent if len(files) == 1 else Path("perf-report"))
    whole = with_history([read_run(path, folder) for path in files])
    if arguments.html is not None:
        write_html(whole, arguments.html)
        say(f"wrote {arguments.html}")
        return 0
    say_written(write_all(whole))
    return 0


def say_written(written: Written) -> None:
    """Say which files a report has, and which traces it has not."""
    for problem in written.problems:
        say(f"not in the report: {visible(problem)}")
    say(
        f"wrote {written.html}, {written.markdown.name}, {written.json.name} and {plural(len(written.traces), 'trace')}"
    )
