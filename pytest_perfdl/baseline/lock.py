"""A lock for a directory of baselines: one writer at a time.

The directory itself is locked, so there is no lock file among committed files, and the system releases the lock when
its holder dies, even in another container.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_perfdl.system import clocks

_SECONDS = 30
"""Longest to wait: a writer holds the lock for milliseconds."""
_EVERY_SECONDS = 0.02


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder; gives whether it is held, which it is not where the file system has no locks.

    Raises
    ------
    OSError
        When the folder cannot be opened, or another process does not let go.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = _lock(descriptor)
        try:
            yield held
        finally:
            if held:
                # A child that was forked meanwhile has the descriptor too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    end = clocks.monotonic() + _SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if clocks.monotonic() > end:
                raise OSError(errno.EBUSY, f"another process has locked the file for {_SECONDS} s") from None
            clocks.sleep(_EVERY_SECONDS)
        except OSError:
            return False
