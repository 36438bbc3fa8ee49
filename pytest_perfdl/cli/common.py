"""What the subcommands share: finding baselines, printing, and the error that ends a command."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_perfdl.baseline.text import parse
from pytest_perfdl.record import Record, RecordError

if TYPE_CHECKING:
    from pytest_perfdl.trace import Trace


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse prints the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        """End the command with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class CommandError(Exception):
    """The command cannot go on; the message is one line for people."""


def one_run(trace: Trace) -> Trace:
    """The trace, if it is of one run.

    Raises
    ------
    CommandError
        If a report wrote it to show both sides of a comparison: every figure would be that of both.
    """
    about = trace.metadata.get("perfdl")
    if isinstance(about, dict) and "verdict" in about:
        raise CommandError(
            f"{trace.source} shows both sides of a comparison: name its .base or its .new trace, or both to perfdl diff"
        )
    return trace


def baselines(folder: Path) -> Iterator[tuple[Path, Record]]:
    """Every baseline below a folder, in the order of their paths.

    Raises
    ------
    CommandError
        When there is no such folder, or a file in it cannot be read.
    """
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}: name the folder of the baselines with --dir")
    for path in sorted(folder.rglob("*.json")):
        try:
            yield path, parse(path.read_bytes())
        except RecordError as error:
            raise CommandError(f"{path} {error}") from error
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from error


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns aligned to the left, the last one ragged."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def width() -> int:
    """Columns of the terminal, 100 where there is none; never less than 60."""
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def print_json(data: Any) -> None:
    """Print figures as JSON, indented; ValueError for what JSON cannot hold, such as NaN."""
    sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")
