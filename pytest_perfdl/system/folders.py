"""Temporary directories of this package, and the only code that deletes anything.

A directory is deleted only if it provably belongs to this process: its name has the format of `make`, it belongs to
this user, and this process holds the lock file in it. The lock shows whether the run that made a directory is still
alive, even if several containers share the directory but not their process ids: the system releases it however the run
ended. `sweep` deletes directories of dead runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"pytest-perfdl-(?P<purpose>[a-z]+)-[0-9a-f]{16}")
_LOCK = ".perfdl-lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""A file system without locks: what is left on it stays, since nobody can tell that its holder is gone."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of ours while this process holds its lock."""

    path: Path
    _lock: int
    """Descriptor of the lock file; children do not inherit it."""

    def clear(self) -> None:
        """Delete what is in it."""
        self._prove()
        for entry in os.scandir(self.path):
            if entry.name != _LOCK:
                _delete(Path(entry.path))

    def delete(self, path: Path) -> None:
        """Delete a file or folder in it; links are not followed.

        Raises
        ------
        OSError
            When it is not in this folder, or the system refuses.
        """
        self._prove()
        if self.path.resolve() not in (path.parent.resolve(), *path.parent.resolve().parents):
            raise OSError(errno.EPERM, f"a symbolic link points outside {self.path}", str(path))
        _delete(path)

    def use(self) -> None:
        """Note that it is in use now, for `used`."""
        os.utime(self._lock)

    def remove(self) -> None:
        """Delete it, as far as the system lets us; the lock file goes last, so that `sweep` can finish the work."""
        try:
            with contextlib.suppress(OSError):
                self.clear()
                if [entry.name for entry in self.path.iterdir()] == [_LOCK]:
                    (self.path / _LOCK).unlink()
                    self.path.rmdir()
        finally:
            self.release()

    def release(self) -> None:
        """Hold it no longer: whatever is left of it is the next sweep's."""
        os.close(self._lock)

    def _prove(self) -> None:
        """That the folder is ours, before anything in it is deleted.

        Raises
        ------
        OSError
            When it is not.
        """
        there, lock, held = os.lstat(self.path), os.lstat(self.path / _LOCK), os.fstat(self._lock)
        if not (
            _NAME.fullmatch(self.path.name)
            and stat.S_ISDIR(there.st_mode)
            and there.st_uid == os.geteuid()
            and (lock.st_dev, lock.st_ino) == (held.st_dev, held.st_ino)
        ):
            raise OSError(errno.EPERM, "directory does not belong to this process", str(self.path))


def make(parent: Path, purpose: str) -> Folder:
    """Make a folder in another, and hold its lock.

    Raises
    ------
    OSError
        When it cannot be made.
    """
    while True:
        folder = claim(parent, purpose, secrets.token_hex(8))
        if folder is not None:
            return folder


def claim(parent: Path, purpose: str, name: str) -> Folder | None:
    """Make a folder of a given name in another, or take the one that is there, and hold its lock.

    Parameters
    ----------
    name
        16 hexadecimal digits.

    Returns
    -------
    Folder or None
        `None` while another run holds it.

    Raises
    ------
    OSError
        When it cannot be made.
    """
    while True:
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / f"pytest-perfdl-{purpose}-{name}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
            folder = _abandoned(path)
            if folder is not None or path.exists():
                return folder
            continue
        except FileNotFoundError:
            # Somebody's sweep removed the empty parent.
            continue
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            # Somebody's sweep found it before the lock was there, or the empty parent was removed.
            continue
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        if _locked(path, lock):
            return Folder(path, lock)
        os.close(lock)


def temporary(purpose: str) -> Folder:
    """Make a folder where the system keeps temporary files; what killed runs have left there is deleted."""
    parent = Path(tempfile.gettempdir())
    _sweep_once(parent, purpose)
    return make(parent, purpose)


@functools.cache
def _sweep_once(parent: Path, purpose: str) -> None:
    sweep(parent, purpose)


@contextlib.contextmanager
def for_a_while(purpose: str) -> Iterator[Path]:
    """A temporary folder that is deleted at the end."""
    folder = temporary(purpose)
    try:
        yield folder.path
    finally:
        folder.remove()


def delete_file(path: Path, within: Path) -> None:
    """Delete a file of ours, if it is there; a link is deleted itself.

    Parameters
    ----------
    path, within
        The file, and the folder that it must lie in: the baselines', the report's.

    Raises
    ------
    OSError
        When a link on the way leads out of the folder, and when the system refuses.
    """
    if not path.parent.resolve().is_relative_to(within.resolve()):
        raise OSError(errno.EPERM, f"a symbolic link points outside {within}", str(path))
    path.unlink(missing_ok=True)


def used(parent: Path, purpose: str) -> list[Path]:
    """The folders of a purpose, those that were not used for longest first."""
    times = {}
    for path in _of_purpose(parent, purpose):
        with contextlib.suppress(OSError):
            times[path] = (path / _LOCK).lstat().st_mtime_ns
    return sorted(times, key=lambda path: (times[path], path.name))


def _of_purpose(parent: Path, purpose: str) -> list[Path]:
    try:
        names = [entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in names if (match := _NAME.fullmatch(name)) and match["purpose"] == purpose]


def sweep(
    parent: Path,
    purpose: str,
    before: Callable[[Folder], None] = Folder.clear,
    keep: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Delete the folders of a purpose whose makers are gone.

    Parameters
    ----------
    parent, purpose
        Where they are, and what they were made for.
    before
        Called with each folder first.
    keep
        Whether one of them stays.
    """
    for path in _of_purpose(parent, purpose):
        folder = None if keep(path) else _abandoned(path)
        if folder is not None:
            try:
                before(folder)
            except OSError:
                folder.release()
            else:
                folder.remove()


def _abandoned(path: Path) -> Folder | None:
    """A folder that nobody holds, now held by us."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Its maker was killed before the lock was there, or its remover after: then it is empty.
        with contextlib.suppress(OSError):
            path.rmdir()
        return None
    except OSError:
        return None
    with contextlib.suppress(OSError):
        folder = Folder(path, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder._prove()
        return folder
    os.close(lock)
    return None


def _locked(path: Path, lock: int) -> bool:
    """Whether the lock of a new folder is ours, and the folder still there: a sweep may have been faster."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        return os.path.samestat(os.lstat(path / _LOCK), os.fstat(lock))
    except FileNotFoundError:
        return False


def _delete(path: Path) -> None:
    """Delete a file, a link or a whole folder within one of ours; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        # Builds make folders read-only (caches of packages).
        with contextlib.suppress(OSError):
            path.chmod(0o700)
            for folder, inner, _ in os.walk(path):
                for place in (Path(folder, name) for name in inner):
                    if not place.is_symlink():
                        place.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
