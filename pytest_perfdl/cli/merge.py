"""Join the run files of all shards into one report, one summary and one exit code.

`perfdl merge shards/*` reads what `pytest --perf --perf-shard=1/4`, `2/4` and so on wrote, in folders or as run files.
The exit code is 1 if a test fails by the `--perf-fail-on` of its run, and 2 if shards are missing or do not belong
together. Of a shard that was measured again, the newest run is used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_perfdl.cli.common import local_path, run_file, say, width
from pytest_perfdl.cli.report import say_written
from pytest_perfdl.model.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "runs", metavar="RUN", type=run_file, nargs="+", help="run.json file of a shard, or the folder of its report"
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FOLDER",
        type=local_path,
        default=Path("perf-report"),
        help="output folder (default: %(default)s)",
    )
    parser.add_argument("--partial", action="store_true", help="merge the shards that there are, if some are missing")


def run(arguments: argparse.Namespace) -> int:
    """Write the report; 1 if a test fails, else 0."""
    from pytest_perfdl.report import github, markdown, write_all
    from pytest_perfdl.report.terminal import summary_lines
    from pytest_perfdl.results.run_file import read_run
    from pytest_perfdl.runs.merging import merged

    files = list(dict.fromkeys(arguments.runs))
    folder: Path = arguments.out
    for path in files:
        if path.parent.resolve() == folder.resolve():
            raise CommandError(f"{path} would be replaced by the merged report: choose another folder with --out")
    found = merged({path: read_run(path, folder) for path in files}, partial=arguments.partial)
    for remark in found.remarks:
        say(remark)
    written = write_all(found.run)
    for line in summary_lines(found.run, 0, width()):
        say(line.text)
    say_written(written)
    if github.runs_here():
        github.append_summary(lambda limit: markdown.summary(found.run, limit))
    return int(found.fails)
