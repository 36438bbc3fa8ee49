"""The identity of a test: its definition and parameters."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import pytest

from pytest_perfdl.workers.definition import Definition, Read, definition


def test_hash(item: pytest.Function, read: Read) -> str:
    """Identifies what a test measures: its definition (see `definition`) and its parameters.

    `read` reads the files of a side, which many tests share.
    """
    found = definition_of(item, item.config.rootpath, read)
    # A test that no statement of its file defines may be made of anything there.
    parts = [hashlib.sha256(read(item.path) or b"").hexdigest() if found is None else found.hash]
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        parts.append(callspec.id)
        simple = (str, int, float, bool, type(None))
        parts += [f"{name}={value!r}" for name, value in sorted(callspec.params.items()) if isinstance(value, simple)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def definition_of(item: pytest.Function, root: Path, read: Read) -> Definition | None:
    """The definition of a test as a side has it; `None` if it is not found in the text of its file."""
    owners = [each.name for each in item.listchain() if isinstance(each, pytest.Class)]
    return definition(item.path, owners, item.originalname, root, read)


def read_file(path: Path) -> bytes | None:
    """The content of a file; `None` if there is none."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None
