"""Several files written as one: all of them, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_perfdl.model.errors import ReportError
from pytest_perfdl.system import files
from pytest_perfdl.system.folders import delete_file


def write_files(contents: Mapping[Path, bytes], *, elsewhere: str = "") -> None:
    """Write each file to a temporary one beside it; only when all are complete, put them in their places.

    Parameters
    ----------
    elsewhere
        What to do when that fails.

    Raises
    ------
    ReportError
        When a folder cannot be made or written, or the disk is full. Files of an earlier report are then
        still whole, and no temporary file is left.
    """
    made: Path | None = None
    try:
        for path in contents:
            made = path
            path.parent.mkdir(parents=True, exist_ok=True)
        made = None
        files.write_files(contents)
    except OSError as error:
        named = made or error.filename
        raise ReportError(
            f"{named} cannot be written: {error.strerror or error}" + (f"; {elsewhere}" if elsewhere else "")
        ) from error


def remove_files(paths: Iterable[Path], folder: Path) -> None:
    """Remove what of a folder is there and can be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            delete_file(path, folder)
