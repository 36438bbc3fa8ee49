"""What the subcommands share: finding baselines, printing, and the error that ends a command."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.visible import harmless, visible, without_secrets
from pytest_perfdl.system.remote import is_url, local, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_perfdl.trace import Trace


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, where argparse prints the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        """End the command with exit code 2."""
        say(f"{self.prog}: {visible(message)} (see {self.prog} --help)", error=True)
        self.exit(2)


_OUTPUTS = ("html", "trace", "out", "csv", "save", "plot")
"""Arguments of all commands that name a file to write."""
_READ = (".json", ".gz", ".pickle")
"""How names of files end that commands read where a folder is given."""


def refuse_to_overwrite(arguments: Mapping[str, Any]) -> None:
    """Refuse to write where a command reads: what was measured would be gone.

    Raises
    ------
    CommandError
    """
    read = [
        Path(each)
        for name, given in arguments.items()
        if name not in _OUTPUTS
        for each in (given if isinstance(given, list) else [given])
        if isinstance(each, str | Path)
    ]
    for name in _OUTPUTS:
        if isinstance(arguments.get(name), str | Path) and any(_is_read(Path(arguments[name]), each) for each in read):
            raise CommandError(f"{arguments[name]} would be overwritten, and is an input: write to another file")


def _is_read(output: Path, given: Path) -> bool:
    try:
        if given.is_dir():
            return output.is_file() and output.name.endswith(_READ) and output.resolve().is_relative_to(given.resolve())
        return output.is_file() and output.samefile(given)
    except (OSError, ValueError):
        return False


def one_run(trace: Trace) -> Trace:
    """The trace, if it is of one process of one run.

    Raises
    ------
    CommandError, TraceError
        If it is of several: every figure would be that of all.
    """
    from pytest_perfdl.trace.recordings import one_recording

    _refuse_both_sides(trace)
    return one_recording(trace)


def recordings_of(trace: Trace) -> tuple[Trace, ...]:
    """The trace, or that of each process where its file holds several (`trace.recordings`).

    Raises
    ------
    CommandError, TraceError
        If its processes, or the sides of a comparison, cannot be told apart.
    """
    from pytest_perfdl.trace.recordings import recordings

    _refuse_both_sides(trace)
    return recordings(trace)


def _refuse_both_sides(trace: Trace) -> None:
    """Refuse what a report wrote to show both sides of a comparison: every figure would be that of both."""
    about = trace.metadata.get("perfdl")
    if isinstance(about, dict) and "verdict" in about:
        raise CommandError(
            f"{trace.source} contains two runs (baseline and current): use the file with .base or .new in its name, "
            "or compare both with `perfdl diff`"
        )


def shown(path: Path) -> str:
    """A path as people would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def run_file(text: str) -> Path:
    """The run file that an argument of a command names: itself, or that of a report's folder."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"{plain(text)} is a URL: download the run file first, and name the copy")
    path = Path(text)
    return path / "run.json" if path.is_dir() else path


def local_path(text: str) -> Path:
    """The value of an option that is a file or folder to be written.

    Raises
    ------
    argparse.ArgumentTypeError
        When it is a URL.
    """
    try:
        return Path(local(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_note(parser: argparse.ArgumentParser) -> None:
    """Declare `--note`."""
    parser.add_argument("--note", metavar="TEXT", help="why the baselines change, one line that is kept in them")


def note_of(arguments: argparse.Namespace) -> str | None:
    """The value of `--note`.

    Raises
    ------
    CommandError
        When it cannot be kept.
    """
    from pytest_perfdl.model.record import checked_note

    try:
        return None if arguments.note is None else checked_note(arguments.note)
    except ValueError as error:
        raise CommandError(f"--note: {error}") from None


def seconds_above_0(text: str) -> float:
    """The value of an option that is a time budget.

    Raises
    ------
    argparse.ArgumentTypeError
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def say_progress(text: str) -> None:
    """Print a part of a line about the progress, which goes to stderr."""
    say(text, error=True, end="")


def say(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Print lines, as every subcommand does: whatever they name, a terminal and a CI runner see plain text."""
    _print(harmless(text) + end, error=error)


def say_colored(text: str) -> None:
    """Print lines that hold colors of ours; whatever else they hold is `harmless` already."""
    _print(text + "\n")


def rewrite(text: str) -> None:
    """Put one line of progress in the place of the last, on stderr; the empty text takes it away."""
    _print(f"\r\x1b[2K{visible(text)}", error=True)


def _print(text: str, *, error: bool = False) -> None:
    """Print to stdout, or to stderr; what the stream's encoding cannot say is spelled in ASCII.

    Raises
    ------
    CommandError
        When stdout takes nothing: it is closed, or its disk is full. What stderr does not take is lost.
    """
    stream: TextIO | None = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        if stream is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as failure:
        if error:
            return
        if stream is not None:
            # Python would try the rest again at its exit.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise CommandError(f"cannot write to stdout: {failure.strerror}") from failure


def width() -> int:
    """Columns of the terminal, 100 where there is none; never less than 60."""
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def print_json(data: Any) -> None:
    """Print figures as JSON, indented; ValueError for what JSON cannot hold, such as NaN."""
    say_json(json.dumps(data, indent=1, allow_nan=False))


def say_json(text: str) -> None:
    """Print JSON that is ASCII; the one sequence of it that GitHub's runner may obey is spelled with an escape."""
    _print(without_secrets(text).rstrip("\n").replace("##[", "#\\u0023[") + "\n")
