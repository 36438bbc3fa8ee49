"""Which project a command is for: its root directory and the folder of its baselines, as pytest finds them."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.remote import check_lasting, opened
from pytest_perfdl.model.errors import CommandError

_KEYS = ("perfdl_dir", "perf_dir")
_FLAGS = ("--perfdl-dir", "--perf-dir")
_DEFAULT = "baselines"


@dataclass(frozen=True, slots=True)
class Project:
    """What the ini file says, and the options that it and `PYTEST_ADDOPTS` add to every call of pytest."""

    root: Path
    """pytest's root directory."""
    ini: Path | None
    folder: str
    """Folder of the baselines, relative to the root directory or absolute."""
    options: tuple[str, ...] = ()


def add_dir(parser: argparse.ArgumentParser) -> None:
    """Declare `--dir`."""
    parser.add_argument(
        "--dir",
        metavar="FOLDER",
        help="folder or URL of the baselines (default: perf_dir in pytest's ini file)",
    )


def store(arguments: argparse.Namespace) -> Store:
    """The baselines that a command is about.

    Raises
    ------
    BaselineError
        When they are in a remote store that cannot be read.
    """
    if arguments.dir is not None:
        root, folder = Path.cwd(), arguments.dir
    else:
        project = find_project()
        root, folder = project.root, project.folder
    check_lasting(folder)
    return opened(root, folder)


def find_project() -> Project:
    """The project that the working directory is in.

    Raises
    ------
    CommandError
        When its ini file cannot be read.
    """
    # Imported here: most commands need no pytest.
    import pytest

    from pytest_perfdl.system.pytest_internals import find_ini

    try:
        root, ini, values = find_ini(Path.cwd())
    except pytest.UsageError as error:
        raise CommandError(f"pytest's ini file is invalid: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"pytest's ini file cannot be read: {error}") from error
    options = (*_words(values.get("addopts", "")), *_words(os.environ.get("PYTEST_ADDOPTS", "")))
    named = next((value for key in _KEYS if (value := values.get(key, ""))), "")
    return Project(root, ini, _of_options(options) or str(named).strip() or _DEFAULT, options)


def _words(text: Any) -> list[str]:
    try:
        return [str(word) for word in text] if isinstance(text, list) else shlex.split(str(text))
    except ValueError as error:
        raise CommandError(
            f"addopts in the ini file or PYTEST_ADDOPTS is {str(text)!r}, which cannot be split into words: {error}"
        ) from error


def _of_options(options: tuple[str, ...]) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(*_FLAGS, dest="folder", default="")
    try:
        return str(parser.parse_known_args(options)[0].folder)
    except argparse.ArgumentError:
        return ""
