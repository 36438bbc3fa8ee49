"""Write a run's numbers as CSV or Parquet.

`perfdl export perf-report/run.json` prints them; `-o FILE` writes them to a file, which others see whole or not at all.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import run_file, say
from pytest_perfdl.model.errors import CommandError

if TYPE_CHECKING:
    from pytest_perfdl.results.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "run", metavar="RUN.json", type=run_file, help="run.json file of a report, or the folder of the report"
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=("csv", "parquet"),
        help="output format: csv or parquet (default: parquet if FILE ends in .parquet, otherwise csv); parquet needs "
        "pyarrow and --out",
    )
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="output file (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    """Write the text; always 0."""
    from pytest_perfdl.report.exports import to_csv
    from pytest_perfdl.report.files import write_files
    from pytest_perfdl.results.run_file import read_run

    measured = read_run(arguments.run)
    ending = "" if arguments.out is None else arguments.out.suffix.lower()
    if (arguments.format or ending.removeprefix(".")) == "parquet":
        return _write_parquet(measured, arguments.out)
    text = to_csv(measured)
    if arguments.out is None:
        say(text, end="")
    else:
        write_files({arguments.out: text.encode("utf-8")})
        say(f"wrote {arguments.out}")
    return 0


def _write_parquet(measured: Run, out: Path | None) -> int:
    from pytest_perfdl.report.exports import to_parquet
    from pytest_perfdl.report.files import write_files

    if out is None:
        raise CommandError("--format parquet is not text: name the file with --out FILE")
    write_files({out: to_parquet(measured)})
    say(f"wrote {out}")
    return 0
