"""Atomic writes of files."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pytest_perfdl.system.folders import delete_file

TEMPORARY = re.compile(r"\.perfdl-[0-9a-f]{16}\.tmp")
"""Names of files that are being written: what is left of one was of a process that was killed."""


def temporary_name() -> str:
    """A name that matches `TEMPORARY`, and that nobody else has."""
    return f".perfdl-{secrets.token_hex(8)}.tmp"


def changed(contents: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """Those files that differ from what is there."""
    return {path: data for path, data in contents.items() if not (path.is_file() and path.read_bytes() == data)}


def write_files(contents: Mapping[Path, bytes], *, flush: bool = False) -> None:
    """Write each file to a temporary one beside it; only when all are complete, put them in their places.

    What is no file but something to write to (a pipe, `/dev/stdout`) is written to last.

    Parameters
    ----------
    flush
        Whether they are on the disk before they take their places.

    Raises
    ------
    OSError
        When one cannot be written, whose name it has: all are then as they were, and no temporary file is left.
    """
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            if _is_stream(path):
                continue
            staged[path] = temporary = path.parent / temporary_name()
            with temporary.open("xb") as file:
                file.write(content)
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
        for path, temporary in staged.items():
            temporary.replace(path)
        for path in contents.keys() - staged.keys():
            path.write_bytes(contents[path])
    except BaseException as error:
        for temporary in staged.values():
            delete_file(temporary, temporary.parent)
        if isinstance(error, OSError):
            # Not the temporary file's name, which nobody knows.
            error.filename = str(path)
        raise


def _is_stream(path: Path) -> bool:
    """Whether it is something to write to rather than to replace: a device, a pipe, or what stands for a descriptor."""
    if path.absolute().is_relative_to("/dev"):
        return path.exists()
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its place when it is complete: for what is not in memory at once.

    What is no file but something to write to, as of `write_files`, is written to at once.

    Raises
    ------
    OSError
        When it cannot be written, whose name it has: what was there is then still there, and no temporary file is left.
    """
    if _is_stream(path):
        with path.open("wb") as file:
            yield file
        return
    temporary = path.parent / temporary_name()
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    except BaseException as error:
        delete_file(temporary, temporary.parent)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), temporary):
            error.filename = str(path)
        raise


def expanded(path: str) -> Path:
    """The path with `~` replaced; as it is where the user, or a home folder, does not exist."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises there
