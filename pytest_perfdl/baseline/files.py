"""The baselines of a project as files: where they lie, under which lock they are written, how lists read them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from pytest_perfdl.baseline import text
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import BaselineError, ConflictedRecordError, OtherSchemaError, RecordError
from pytest_perfdl.model.record import KERNELS_LOST, Record
from pytest_perfdl.model.record_json import OccasionForm, Outline, Versioned, decoded
from pytest_perfdl.model.visible import clean, visible, without_secrets
from pytest_perfdl.system import clocks
from pytest_perfdl.system.files import TEMPORARY, changed, temporary_name, write_files
from pytest_perfdl.system.folders import delete_file
from pytest_perfdl.system.git import commit_of, modified, names, top_of

# A lock for a directory of baselines: one writer at a time.
#
# The directory itself is locked, so there is no lock file among committed files, and the system releases the lock when
# its holder dies, even in another container.


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


# Where the baseline of a test lies.
#
#     <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].json
#     <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].trace.json.gz
#     <folder>/<key>/<test file without .py>/<Class>.<test>[<params>].<call>.trace.json.gz
#
# Names must hold on every file system that a checkout may be on, and the path must follow from the node id
# alone, whatever other files exist. The rules:
#
# - ASCII letters, digits and `_ - . [ ] = , +` stay; every other byte of the UTF-8 form is percent-escaped,
#   and so is a dot that is not ours: in a folder, or in the name of a class, test or call (in parameters and
#   inside a key it stays). The folder of a test file that does not end in `.py` ends in `%`.
# - A name that Windows reserves up to its first dot (`con`, `aux`, `com1`, ...) has its first character escaped.
# - An upper-case ASCII letter in the node id, the key or the call puts `~` and 16 digits of its SHA-256 behind
#   the name, since a file system may fold case: two that differ in case alone differ in that.
# - A name that is too long with the longest suffix is cut, and has the digest too.
#
# Different node ids therefore have different paths, even when compared without case.


RECORD_SUFFIX = ".json"
TRACE_SUFFIX = ".trace.json.gz"
NAME_BYTES = 255
"""Longest name that common file systems take."""
_CALL_BYTES = 64
"""Longest name of a call, with its dot."""
_STEM_BYTES = NAME_BYTES - len(TRACE_SUFFIX) - _CALL_BYTES
_DIGEST_DIGITS = 16
_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-[]=,+")
_CASED = re.compile(r"[A-Z]")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)


def baseline_path(folder: Path, key_slug: str, node_id: str) -> Path:
    """The file of a test's baseline under a key, below the baseline folder.

    >>> baseline_path(Path("baselines"), "cpu", "tests/test_gpt.py::test_step[bf16-a/b]").as_posix()
    'baselines/cpu/tests/test_gpt/test_step[bf16-a%2Fb].json'

    Raises
    ------
    ValueError
        When this is not the node id of a test in a file.
    """
    file, found, rest = node_id.partition("::")
    if not found or not file or not rest:
        raise ValueError(f"{node_id!r} is not the node id of a test")
    python = file.endswith(".py")
    folders = [_limit_length(_escape(part), part) for part in file.removesuffix(".py").split("/")]
    if not python:
        folders[-1] += "%"
    names, bracket, params = rest.partition("[")
    stem = ".".join(map(_escape, names.split("::")))
    if bracket:
        stem += bracket + _escape(params, also=b".")
    name = _limit_length(stem, node_id, _STEM_BYTES, folded=True) + RECORD_SUFFIX
    return key_folder(folder, key_slug).joinpath(*folders, name)


def key_folder(folder: Path, key_slug: str) -> Path:
    """The folder of all baselines of a key."""
    dots = b"." if key_slug == key_slug.strip(".") else b""
    return folder / _limit_length(_escape(key_slug, also=dots), key_slug, folded=True)


def exemplar_path(record: Path, call: str) -> Path:
    """The file of a call's exemplar trace, beside the record at `record`; the unnamed call is "".

    >>> exemplar_path(Path("test_step.json"), "forward").name
    'test_step.forward.trace.json.gz'
    """
    named = "." + _limit_length(_escape(call), call, _CALL_BYTES - 1, folded=True) if call else ""
    return record.with_name(_stem(record) + named + TRACE_SUFFIX)


def may_be_exemplar(name: str, record: Path) -> bool:
    """Whether a file's name is that of an exemplar of the record at `record`, for some call."""
    return re.fullmatch(rf"{re.escape(_stem(record))}(\.[^.]+)?{re.escape(TRACE_SUFFIX)}", name) is not None


def record_of(exemplar: PurePath) -> str:
    """Name of the record whose unnamed call an exemplar would be of."""
    return exemplar.name.removesuffix(TRACE_SUFFIX) + RECORD_SUFFIX


def _stem(record: Path) -> str:
    return record.name.removesuffix(RECORD_SUFFIX)


def _escape(text: str, also: bytes = b"") -> str:
    """Percent-escape; a name cannot be empty, "." or "..", and two names never give the same."""
    kept = _KEPT | set(also)
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in data) or "%"


def _limit_length(name: str, whole: str, most: int = NAME_BYTES - 1, *, folded: bool = False) -> str:
    """A name that no file system refuses; where it is cut, or case tells it apart, with the digest of `whole`."""
    if _RESERVED.match(name):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) <= most and not (folded and _CASED.search(whole)):
        return name
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: most - _DIGEST_DIGITS - 1]}~{digest}"


# The little of a record that lists and estimates need, without decoding the rest: for projects with many baselines.


class _Times(Versioned):
    test: str
    occasions: list[OccasionForm]


def outline(data: bytes) -> Outline:
    """The outline of a baseline.

    Raises
    ------
    RecordError
        When this is not the file of a record with a measurement. Other parts are not checked: `text.parse` does that.
    """
    found = decoded(data, Outline)
    if not any(call.metrics for call in found.calls):
        raise RecordError("contains no measurement")
    return found


# The baselines of a project as files: loading and saving.
#
# Saving changes only the files of one test with one machine ID, atomically.


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
            return baseline_path(self.base, slug, node_id)
        except ValueError as error:
            raise BaselineError(visible(str(error))) from None

    def key_folder(self, slug: str) -> Path:
        """The folder of all baselines under a key."""
        return key_folder(self.base, slug)

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
        mine = key_folder(self.base, slug)
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
            inside = str(baseline_path(Path(), "x", node_id)).removeprefix(f"x{os.sep}")
            for folder in folders:
                with contextlib.suppress(OSError, RecordError):
                    found = decoded(untrusted_files.read_bytes(f"{folder}{os.sep}{inside}", text.LIMIT), _Times)
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
            file = exemplar_path(path, call.name)
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
        files = {exemplar_path(path, call): trace for call, trace in exemplars.items()}
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
        broken = [
            finding.message
            for finding in record.integrity
            if finding.level == "invalid" or finding.code == KERNELS_LOST
        ]
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
            with locked(path.parent):
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
        if may_be_exemplar(file.name, record)
        and (record_of(file) == record.name or not (record.parent / record_of(file)).exists())
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
