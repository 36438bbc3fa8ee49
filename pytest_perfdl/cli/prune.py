"""Find baselines of tests that no longer exist, and delete them with --apply.

pytest is asked for all tests of the project, so that what a partial selection would miss is not deleted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from pytest_perfdl.baseline.layout import exemplar_path
from pytest_perfdl.cli.common import CommandError, baselines, say
from pytest_perfdl.visible import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("--apply", action="store_true", help="delete them; without it they are only listed")
    parser.add_argument("paths", nargs="*", help="what pytest collects (default: as pytest without arguments does)")


def run(arguments: argparse.Namespace) -> int:
    """Print, and with --apply delete; 3 when every baseline has its test."""
    stored = list(baselines(Path(arguments.dir)))
    existing = _collected(arguments.paths)
    orphans = [(path, record) for path, record in stored if record.test not in existing]
    for path, record in orphans:
        say(f"{'deleted' if arguments.apply else 'orphan '}  {visible(record.test)}  {path}")
        if arguments.apply:
            for call in record.calls:
                exemplar_path(path, call.name).unlink(missing_ok=True)
            path.unlink()
    if not orphans:
        say(f"every one of the {len(stored)} baselines has its test")
        return 3
    if not arguments.apply:
        say(f"{len(orphans)} of {len(stored)} baselines have no test; perfdl prune --apply deletes them")
    return 0


def _collected(paths: list[str]) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", "--no-perf", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise CommandError(
            f"pytest did not collect all tests, so nothing is deleted (exit code {done.returncode}): {' '.join(tail)}"
        )
    return {line.strip() for line in done.stdout.splitlines() if "::" in line}
