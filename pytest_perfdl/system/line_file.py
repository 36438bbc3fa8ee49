"""A file of lines to which one is added at a time, so that what was written survives a killed process."""

from __future__ import annotations

import os
from pathlib import Path


def read(path: Path) -> list[bytes]:
    """The lines; none of a file that is not there yet. A last line that was cut off while it was written is left out.

    Raises
    ------
    OSError
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: _whole(data)].splitlines()


def append(path: Path, line: bytes) -> None:
    """Add a line, safe on the disk when this returns; one that was cut off before it goes.

    Raises
    ------
    OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(_whole(file.read()))
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _whole(data: bytes) -> int:
    """Bytes of the lines that are complete."""
    return data.rfind(b"\n") + 1
