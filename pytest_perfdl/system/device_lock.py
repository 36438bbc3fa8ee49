"""Locks by which runs on one machine measure one after the other on each device.

A lock is a file that is locked with `flock`: the system releases it when its holder ends, however that ends. All users
share the files, which lie in a folder that everybody can write, where others may have put what they like. So a file is
only ever opened for reading, never through a link, and never written or deleted; who holds it is what the system says.
(The package filelock is not used: its releases refuse files of other users in such folders, or truncate the files of
others.)

A process that waits also holds a second lock, the queue. The former holder must wait for the queue before it can have
the lock again. So runs alternate, although all of them look for a free lock from time to time only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.system import clocks
from pytest_perfdl.system.files import expanded

FOLDER = Path("/tmp")
"""For all users and, unlike the folder in TMPDIR, for all jobs of a user."""
_LOOK_EVERY_SECONDS = 0.2
_SAY_EVERY_SECONDS = 1.0
_CREATED_WITHIN_SECONDS = 1.0
"""Longest time from the creation of a file until all users may open it."""


def folder_of(mode: str) -> Path | None:
    """The folder of the lock files in a mode of `--perf-device-lock`; `None` for `off`.

    Raises
    ------
    ValueError
        The message says what is expected.
    """
    if mode == "off":
        return None
    folder = FOLDER if mode == "auto" else expanded(mode)
    if mode != "auto" and not (folder.is_absolute() and folder.is_dir()):
        raise ValueError("expected auto, off or the absolute path of a folder")
    return folder


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of the locks that a run needs for measuring."""

    name: str
    """Letters, digits, hyphens and dots."""
    shared: bool = False
    """Whether others that share the lock may hold it at the same time."""


class DeviceLock:
    """The locks of a run; they are taken and released together.

    Parameters
    ----------
    folder
        Where the lock files are.
    wanted
        In an order that is the same for all runs.
    """

    def __init__(self, folder: Path, wanted: Sequence[Wanted]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._held: list[int] = []
        self.problem = ""
        """Why there is no lock, in one line; empty if there is one."""

    def acquire(self, waiting: Callable[[int | None], None]) -> None:
        """Wait until the locks are held; where they cannot be used, only `problem` is set.

        Parameters
        ----------
        waiting
            Called about once a second with the process that holds a lock, if known.
        """
        if self._held or self.problem:
            return
        try:
            for each in self._wanted:
                queue = self._locked(f"{each.name}.queue", waiting)
                try:
                    self._held.append(self._locked(each.name, waiting, shared=each.shared))
                finally:
                    os.close(queue)
        except OSError as error:
            self.release()
            self.problem = f"{error.filename or self._folder}: {error.strerror or error}"
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release what is held."""
        while self._held:
            os.close(self._held.pop())

    def _locked(self, name: str, waiting: Callable[[int | None], None], *, shared: bool = False) -> int:
        """The descriptor of a locked file."""
        path = self._folder / f"pytest-perfdl-{name}.lock"
        operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        said = 0.0
        while True:
            descriptor = _opened(path)
            try:
                fcntl.flock(descriptor, operation)
                if _is_at(path, descriptor):
                    return descriptor
            except BlockingIOError:
                if clocks.monotonic() - said > _SAY_EVERY_SECONDS:
                    said = clocks.monotonic()
                    waiting(_holder(os.fstat(descriptor).st_ino))
                clocks.sleep(_LOOK_EVERY_SECONDS)
            except OSError as error:
                os.close(descriptor)
                error.filename = str(path)
                raise
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _opened(path: Path) -> int:
    """A descriptor of a lock file, which is created if there is none."""
    # Without O_NONBLOCK, a pipe of this name would hang the run.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    end = clocks.monotonic() + _CREATED_WITHIN_SECONDS
    while True:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444))
        except PermissionError:
            if clocks.monotonic() > end:
                raise
            clocks.sleep(_LOOK_EVERY_SECONDS)
        else:
            break
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o444 != 0o444:
        # The umask may have taken the right to read from others.
        os.fchmod(descriptor, 0o444)
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the file has not been removed since it was opened, as cleaners of temporary files do."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(inode: int) -> int | None:
    """The process that holds the lock of a file; `None` where the system does not say.

    The device is not compared, since file systems that are made of others report different ones.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        # 1: FLOCK  ADVISORY  WRITE 15072 fe:00:2392491 0 EOF; those that wait have an arrow before FLOCK.
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4]) if words[4].isdecimal() and words[4] != "0" else None
    return None
