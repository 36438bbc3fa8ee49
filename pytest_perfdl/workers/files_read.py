"""Which files in a directory a process opens for reading, and which ones it writes itself.

Python reports every opened file to its audit hooks. Files that compiled code opens (a data loader in C++, for example)
are not seen, nor files that are opened by processes that were started rather than forked.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any

_MOST = 20_000
"""Files that are noted."""
_WRITING = frozenset("wax+")


class Reads:
    """Notes files below a folder from now on, until the process ends: an audit hook cannot be removed.

    Children that are forked (a data loader's) note theirs in a file that this process reads.
    """

    def __init__(self, folder: str) -> None:
        self._folders = tuple({f"{place.rstrip(os.sep)}{os.sep}" for place in (folder, os.path.realpath(folder))})
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._seen: set[object] = set()
        self._notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as the process lives
        at = os.fstat(self._notes.fileno())
        self._place = at.st_dev, at.st_ino
        self._process = os.getpid()

        def hear(event: str, args: tuple[Any, ...]) -> None:
            if event == "open":
                self._opened(args)

        # Python asks hooks for an attribute at every event, of which a step has some (each `id`): a plain function is
        # asked ten times faster than a method, in 0.1 microseconds.
        sys.addaudithook(hear)

    def files(self) -> set[str]:
        """Files in the folder that were read and not written, by real path."""
        with contextlib.suppress(OSError):
            self._notes.seek(0)
            for note in filter(None, self._notes.read().split(b"\0")):
                (self._read if note[:1] == b"r" else self._written).add(os.fsdecode(note[1:]))
        written = set(map(os.path.realpath, self._written))
        read = set(map(os.path.realpath, self._read)) - written
        return {path for path in read if path.startswith(self._folders)}

    def _opened(self, args: tuple[Any, ...]) -> None:
        # What is raised here would be raised by `open`.
        with contextlib.suppress(Exception):
            name, mode, flags = args
            asked = name, mode, flags
            if isinstance(name, int) or asked in self._seen or len(self._seen) >= _MOST:
                return
            path = os.path.join(os.getcwd(), os.fsdecode(name))  # noqa: PTH118, PTH109 - called often
            if not path.startswith(self._folders):
                return
            self._seen.add(asked)
            writes = not _WRITING.isdisjoint(mode) if mode else flags & os.O_ACCMODE != os.O_RDONLY
            (self._written if writes else self._read).add(path)
            if os.getpid() != self._process:
                self._note(b"w" if writes else b"r", path)

    def _note(self, kind: bytes, path: str) -> None:
        # A program that closes all descriptors may have opened a file of its own under this number.
        at = os.fstat(self._notes.fileno())
        if (at.st_dev, at.st_ino) == self._place:
            os.write(self._notes.fileno(), kind + os.fsencode(path) + b"\0")
