"""Locks by which runs on one machine measure one after the other on each device.

A lock is a file that is locked with `flock`: the system releases it when its holder ends, however that ends. All users
share the files, which lie in a folder that everybody can write, where others may have put what they like. So a file is
only ever opened for reading, never through a link, and never written or deleted; who holds it is what the system says.
(The package filelock is not used: its releases refuse files of other users in such folders, or truncate the files of
others.)

A process that waits also holds a second lock, the queue. The former holder must wait for the queue before it can have
the lock again. So runs alternate, although all of them look for a free lock from time to time only. Who is in the queue
and does not take a lock that is free (a stopped process) is passed by.

A lock belongs to the open file, so a forked child would keep it for as long as it lives: children close it. What else
holds one and does not measure (a stopped process, a program of another user) is waited for only for a time.
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
LONGEST_WAIT_SECONDS = 30 * 60.0
"""For one holder of a lock, then it is measured without the lock: longer than a test takes (`--perf-timeout`)."""
_PASSED_BY_SECONDS = 5.0
"""Time for which a lock is free until it is no longer left to who is in the queue."""
_OPEN: set[int] = set()
"""Descriptors of lock files in this process."""


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
                self._held.append(self._in_turn(each, waiting))
        except OSError as error:
            self.release()
            self.problem = f"{error.filename or self._folder}: {error.strerror or error}"
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release what is held."""
        while self._held:
            _close(self._held.pop())

    def _in_turn(self, wanted: Wanted, waiting: Callable[[int | None], None]) -> int:
        """The descriptor of a locked file, after all who came before."""
        path, queue_path = (self._folder / f"pytest-perfdl-{wanted.name}{of}.lock" for of in ("", ".queue"))
        queue: int | None = None
        free_since = since = clocks.monotonic()
        said, last = 0.0, None
        try:
            while True:
                queue = _locked(queue_path) if queue is None else queue
                found = _locked(path, shared=wanted.shared)
                now = clocks.monotonic()
                if found is not None:
                    if queue is not None or now - free_since > _PASSED_BY_SECONDS:
                        return found
                    _close(found)
                else:
                    free_since = now
                holder = _holder(queue_path if found is not None else path)
                if holder != last:
                    last, since = holder, now
                if now - since > LONGEST_WAIT_SECONDS:
                    who = "another process" if holder is None else f"PID {holder}"
                    waited = f"{who} has kept it for {(now - since) / 60:.0f} min, the longest time that a run waits"
                    raise OSError(errno.EBUSY, waited, str(path))
                if now - said > _SAY_EVERY_SECONDS:
                    said = now
                    waiting(holder)
                clocks.sleep(_LOOK_EVERY_SECONDS)
        finally:
            if queue is not None:
                _close(queue)


def _locked(path: Path, *, shared: bool = False) -> int | None:
    """The descriptor of a locked file; `None` while another process holds it."""
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, operation)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            _close(descriptor)
            return None
        except OSError as error:
            error.filename = str(path)
            _close(descriptor)
            raise
        _close(descriptor)


def _close(descriptor: int) -> None:
    if descriptor in _OPEN:
        _OPEN.discard(descriptor)
        os.close(descriptor)


def _let_go() -> None:
    """In a forked child: what it has open belongs to its parent."""
    for descriptor in list(_OPEN):
        _close(descriptor)


os.register_at_fork(after_in_child=_let_go)


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
    _OPEN.add(descriptor)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        _close(descriptor)
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


def _holder(path: Path) -> int | None:
    """The process that holds the lock of a file; `None` where the system does not say.

    The device is not compared, since file systems that are made of others report different ones.
    """
    try:
        inode = os.lstat(path).st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        # 1: FLOCK  ADVISORY  WRITE 15072 fe:00:2392491 0 EOF; those that wait have an arrow before FLOCK.
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4]) if words[4].isdecimal() and words[4] != "0" else None
    return None


def waiting_for(holder: int | None) -> str:
    """That another run measures: its process, if known."""
    who = "" if holder is None else f" (PID {holder})"
    return f"waiting for another run of pytest-perfdl on this machine{who}"
