"""A file of JSON lines to which one is added at a time, so that what was written survives a killed process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pytest_perfdl.model.errors import LogError


def read(path: Path) -> list[Any]:
    """What the lines hold; nothing of a file that is not there yet.

    A last line that was cut off while it was written is left out.

    Raises
    ------
    LogError
        The file cannot be read, or a line is not JSON.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(data[: _whole(data)].splitlines(), start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise LogError(f"{path}: line {number} is not JSON ({error})") from error
    return found


def append(path: Path, data: Any) -> None:
    """Add a line, safe on the disk when this returns; one that was cut off before it goes.

    Raises
    ------
    LogError
        The file cannot be written.
    """
    line = json.dumps(data, allow_nan=False).encode("ascii")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            file.truncate(_whole(file.read()))
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from error


def _whole(data: bytes) -> int:
    """Bytes of the lines that are complete."""
    return data.rfind(b"\n") + 1
