"""Write a run's numbers as OpenMetrics (Prometheus, GitLab) or CSV.

`perfdl export perf-report/run.json` prints them; `-o FILE` writes them to a file, which others see whole or not at all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_perfdl.cli.common import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "run", metavar="RUN.json", type=Path, help="run.json file of a report, or the folder of the report"
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=("openmetrics", "csv"),
        help="output format: openmetrics or csv (default: csv if FILE ends in .csv, otherwise openmetrics)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="output file (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    """Write the text; always 0."""
    from pytest_perfdl.report.csv import to_csv
    from pytest_perfdl.report.files import write_files
    from pytest_perfdl.report.openmetrics import to_openmetrics
    from pytest_perfdl.report.reading import read_run

    path = arguments.run / "run.json" if arguments.run.is_dir() else arguments.run
    measured = read_run(path, path.parent)
    ends_in_csv = arguments.out is not None and arguments.out.suffix.lower() == ".csv"
    form = arguments.format or ("csv" if ends_in_csv else "openmetrics")
    text = to_csv(measured) if form == "csv" else to_openmetrics(measured)
    if arguments.out is None:
        say(text, end="")
    else:
        write_files({arguments.out: text.encode("utf-8")})
        say(f"wrote {arguments.out}")
    return 0
