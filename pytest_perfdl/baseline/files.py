"""The baselines of a project as files: loading and saving.

Saving changes only the files of one test with one machine ID, atomically.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.baseline import layout, outline, text
from pytest_perfdl.baseline.lock import locked
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import BaselineError, ConflictedRecordError, OtherSchemaError, RecordError
from pytest_perfdl.model.secrets import clean, without_secrets
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.files import TEMPORARY, changed, temporary_name, write_files
from pytest_perfdl.system.folders import delete_file
from pytest_perfdl.system.git import commit_of, modified, names, top_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_perfdl.model.record import Record

_RECORD_AGAIN = "restore the file from git, or record the baseline again with pytest --perf-update=all"
_ELSEWHERE = "make this path writable, or choose another directory with --perf-dir"
_MOVE_AWAY = "another file or directory has this name: move it away, or choose another directory with --perf-dir"
_WHAT_TO_DO = {
    errno.ENOSPC: "free disk space and record again",
    errno.EDQUOT: "free disk space and record again",
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOTDIR: _MOVE_AWAY,
    errno.EEXIST: _MOVE_AWAY,
    errno.EISDIR: _MOVE_AWAY,
}


@dataclass(frozen=True, slots=True)
class Store:
    """The baseline folder of a project."""

    root: Path
    """The project's root directory: messages name files relative to it."""
    folder: str
    """The baseline folder, relative to `root` or absolute."""

    @property
    def base(self) -> Path:
        """The baseline folder."""
        return self.root / self.folder

    def path(self, node_id: str, slug: str) -> Path:
        """Where the baseline of a test under a key is or would be.

        Raises
        ------
        BaselineError
            When this is not the node id of a test in a file.
        """
        try:
            return layout.baseline_path(self.base, slug, node_id)
        except ValueError as error:
            raise BaselineError(visible(str(error))) from None

    def key_folder(self, slug: str) -> Path:
        """The folder of all baselines under a key."""
        return layout.key_folder(self.base, slug)

    def load(self, node_id: str, slug: str) -> Record | None:
        """The baseline of a test under a key, `None` when there is none.

        Raises
        ------
        BaselineError
            When the file is damaged, newer than this version reads, or holds another test or key.
        """
        return self._load(self.path(node_id, slug), node_id)

    def others(self, node_id: str, slug: str) -> tuple[Record, ...]:
        """The baselines of the same test under other keys, in the order of their folders.

        Raises
        ------
        BaselineError
            As `load` does.
        """
        mine = layout.key_folder(self.base, slug)
        inside = self.path(node_id, slug).relative_to(mine)
        with self._acting("read", self.base):
            folders = sorted(self.base.iterdir()) if self.base.is_dir() else []
        found = [self._load(folder / inside, node_id) for folder in folders if folder.name != mine.name]
        return tuple(record for record in found if record is not None)

    def repeat_seconds(self, node_ids: Iterable[str]) -> dict[str, float | None]:
        """What one repeat of each test took when its newest baseline under any key was recorded; `None` if unknown.

        A file that cannot be read says nothing here: it will be refused when it is needed. Only times are decoded,
        since this is done for all tests before anything is measured.
        """
        try:
            folders = [entry.path for entry in os.scandir(self.base) if entry.is_dir()]
        except OSError:
            folders = []
        return {node_id: self._repeat_seconds(node_id, folders) for node_id in node_ids}

    def _repeat_seconds(self, node_id: str, folders: Sequence[str]) -> float | None:
        known: list[tuple[str, float]] = []
        with contextlib.suppress(ValueError):
            inside = str(layout.baseline_path(Path(), "x", node_id)).removeprefix(f"x{os.sep}")
            for folder in folders:
                with contextlib.suppress(OSError, RecordError):
                    found = outline.times(untrusted_files.read_bytes(f"{folder}{os.sep}{inside}", text.LIMIT))
                    if found.test == node_id:
                        known += [(each.date, each.seconds) for each in found.occasions if each.seconds]
        return max(known)[1] if known else None

    def exemplars(self, node_id: str, slug: str) -> tuple[dict[str, Path], tuple[Path, ...]]:
        """The exemplar traces of a baseline, by call (the unnamed call is ""), and other files in their places.

        A trace is another where its digest is not the one in the record: a save that was killed, a merge or a checkout
        of one file leave a record with a trace of another day.

        Raises
        ------
        BaselineError
            As `load` does.
        """
        record, path = self.load(node_id, slug), self.path(node_id, slug)
        found: dict[str, Path] = {}
        others: list[Path] = []
        for call in record.calls if record is not None else ():
            file = layout.exemplar_path(path, call.name)
            if record is not None and file.is_file():
                if self._is_inside(file) and _is_digest_of(record.exemplars.get(call.name), file):
                    found[call.name] = file
                else:
                    others.append(file)
        return found, tuple(others)

    def save(
        self,
        record: Record,
        exemplars: Mapping[str, bytes],
        joined: Callable[[Record | None], Record] | None = None,
    ) -> tuple[Path, ...]:
        """Write a baseline with one exemplar trace (gzip) for each call that has one.

        The record is written after its exemplars, and exemplars of calls that are not given are then removed,
        since they belong to the record that was replaced. A file whose bytes are the same is left alone. What a
        process that was killed left behind in the same folder is removed.

        Parameters
        ----------
        joined
            Called with the baseline that is there when nobody else can write any more; what it gives is written
            instead of `record`.

        Returns
        -------
        tuple of Path
            The files that were written or removed.

        Raises
        ------
        BaselineError
            When the record is not fit to be a baseline, or the disk refuses.
        """
        path = self.path(record.test, record.key.slug)
        self.checked(record)
        digests = {call: hashlib.sha256(trace).hexdigest() for call, trace in exemplars.items()}
        files = {layout.exemplar_path(path, call): trace for call, trace in exemplars.items()}
        with self._acting("written", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.parent) as alone:
                if alone:
                    _remove_temporary(path.parent, self.base)
                if joined is not None:
                    record = joined(self.load(record.test, record.key.slug))
                files[path] = self.checked(replace(record, exemplars=digests))
                differing = changed(files)
                write_files(differing, flush=True)
                stale = [file for file in _exemplars_beside(path) if file not in files]
                for file in stale:
                    delete_file(file, self.base)
                _flush(path.parent)
        return (*differing, *stale)

    def sweep(self) -> None:
        """Remove what processes that were killed while they wrote left among the baselines."""
        with contextlib.suppress(OSError):
            for folder in {file.parent for file in self.base.rglob(".perfdl-*.tmp")}:
                with locked(folder) as alone:
                    if alone:
                        _remove_temporary(folder, self.base)

    def checked(self, record: Record) -> bytes:
        """The text of a baseline that could be written.

        Raises
        ------
        BaselineError
            When the record is not fit to be a baseline, or its folder is a link to another place.
        """
        path = self.path(record.test, record.key.slug)
        broken = [finding.message for finding in record.integrity if finding.level == "invalid"]
        if broken:
            raise BaselineError(f"{self.shown(path)} was not written: the measurement is invalid ({broken[0]})")
        if (safe := without_secrets(record.test)) != record.test:
            raise BaselineError(
                f"the baseline of {safe} was not written: the test's id contains a secret; give the parameter an id of "
                "its own with ids= or pytest.param(..., id=...)"
            )
        try:
            data = text.dump(clean(record))
            text.parse(data)
        except RecordError as error:
            raise BaselineError(f"{self.shown(path)} was not written: the record {error}") from error
        with self._acting("written", path):
            if not path.parent.resolve().is_relative_to(self.base.resolve()):
                raise BaselineError(
                    f"{self.shown(path)} was not written: the directory of the file is a symbolic link to another "
                    "directory"
                )
        return data

    def remove(self, node_id: str, slug: str) -> tuple[Path, ...]:
        """Remove a baseline and its traces, if it has another machine ID now.

        Returns
        -------
        tuple of Path
            The files that were removed.

        Raises
        ------
        BaselineError
            When the disk refuses.
        """
        path = self.path(node_id, slug)
        with self._acting("removed", path):
            if not path.is_file():
                return ()
            with locked(path.parent):
                gone = [*_exemplars_beside(path), path]
                for file in gone:
                    delete_file(file, self.base)
        return tuple(gone)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file that is no baseline, such as the rates of a machine.

        Raises
        ------
        BaselineError
            When the disk refuses.
        """
        with self._acting("written", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: data})

    def restorable(self) -> set[Path]:
        """Files that can be brought back after they were removed: those that the last commit holds as they are."""
        top = top_of(self.base)
        if top is None or commit_of(top, "HEAD") is None:
            return set()
        listed = names(self.base, "ls-tree", "-r", "-z", "--name-only", "HEAD")
        # With a link on the way, the folder has another name there.
        place = self.base.resolve()
        other = {top / name for name in modified(top, "HEAD", str(place))}
        return {self.base / name for name in listed if place / name not in other}

    def check_writable(self) -> None:
        """Check, before anything is measured, whether baselines can be written.

        Raises
        ------
        BaselineError
            When they cannot.
        """
        with self._acting("written", self.base):
            nearest = next(folder for folder in (self.base, *self.base.parents) if folder.exists())
            probe = nearest / temporary_name()
            probe.touch(exist_ok=False)
            delete_file(probe, nearest)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file is below the folder, and no symbolic link to another place."""
        return path.resolve().is_relative_to(self.base.resolve())

    def _check_inside(self, path: Path) -> None:
        if not self._is_inside(path):
            raise BaselineError(f"{self.shown(path)} is not read: it is a symbolic link out of {self.shown(self.base)}")

    def _load(self, path: Path, node_id: str) -> Record | None:
        try:
            with self._acting("read", path):
                try:
                    self._check_inside(path)
                    data = untrusted_files.read_bytes(path, text.LIMIT)
                except (FileNotFoundError, NotADirectoryError):
                    return None
            record = text.parse(data)
        except RecordError as error:
            raise BaselineError(f"{self.shown(path)} {advised(error)}") from error
        if record.test != node_id or self.path(node_id, record.key.slug) != path:
            raise BaselineError(
                f"{self.shown(path)} contains a baseline of {visible(record.test)} with machine ID "
                f"{visible(record.key.slug)}, which belongs in another file: {_RECORD_AGAIN}"
            )
        return record

    def shown(self, path: Path) -> str:
        """A path as messages of pytest name it: relative to the root directory, if it is below."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    @contextlib.contextmanager
    def _acting(self, done: str, path: Path) -> Iterator[None]:
        """Turn errors of the system into a `BaselineError` of one line."""
        try:
            yield
        except OSError as error:
            cause = error.strerror or str(error)
            advice = _WHAT_TO_DO.get(error.errno or 0)
            raise BaselineError(
                f"{self.shown(path)} cannot be {done}: {cause}" + (f": {advice}" if advice else "")
            ) from error


def advised(error: RecordError) -> str:
    """What is wrong with the file of a record, and what to do."""
    said = isinstance(error, (OtherSchemaError, ConflictedRecordError))
    return str(error) if said else f"{error}: {_RECORD_AGAIN}"


def _exemplars_beside(record: Path) -> list[Path]:
    """Exemplars of a record, except where another record has the name that one of its calls would have."""
    return [
        file
        for file in sorted(record.parent.iterdir())
        if layout.may_be_exemplar(file.name, record)
        and (layout.record_of(file) == record.name or not (record.parent / layout.record_of(file)).exists())
    ]


def _is_digest_of(digest: str | None, file: Path) -> bool:
    """Whether a file is the one of this digest."""
    try:
        return hashlib.sha256(untrusted_files.read_bytes(file, text.LIMIT)).hexdigest() == digest
    except OSError:
        return False


def _remove_temporary(folder: Path, base: Path) -> None:
    """Remove temporary files of writers that are gone: who writes in a folder holds its lock."""
    for entry in os.scandir(folder):
        if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            delete_file(Path(entry.path), base)


def _flush(folder: Path) -> None:
    """Have the folder's new entries on the disk, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
