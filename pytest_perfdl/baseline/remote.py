"""Baselines in a remote store: a local copy that is brought up to date, and updates that are added to the store.

Who reads sees the merge of all updates that no other update follows (`heads`): the same merge as of git branches, which
is the same for everybody. Who writes names these updates as parents. So an update whose writer did not see another one
does not replace it, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.baseline import layout
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.lock import locked
from pytest_perfdl.baseline.merge import merge_files
from pytest_perfdl.baseline.objects import IncompleteUpdate, Objects, Update, ancestors, heads, is_url, nearest
from pytest_perfdl.baseline.text import parse
from pytest_perfdl.model.errors import BaselineError, RecordError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.files import write_files
from pytest_perfdl.system.folders import delete_file

if TYPE_CHECKING:
    from pytest_perfdl.model.record import Record

_AT_ONCE = 16
"""Objects that are fetched at the same time."""
_LOCK_SECONDS = 600
"""Longest to wait for another process on this machine that brings the same copy up to date."""


def opened(root: Path, folder: str) -> Store:
    """The baselines in a folder, or in a remote store that `folder` is the address of.

    Raises
    ------
    BaselineError
        When a remote store cannot be read; the message is one line.
    """
    if not is_url(folder):
        return Store(root, folder)
    objects = Objects.at(folder)
    cache = cache_folder() / hashlib.sha256(objects.url.encode()).hexdigest()[:16]
    store = RemoteStore(root, str(cache / "baselines"), objects, cache)
    store.fetch()
    return store


def check_lasting(folder: str) -> None:
    """Check that baselines outlive this process: `memory://` is for tests of a single process.

    Raises
    ------
    BaselineError
    """
    if folder.startswith("memory://"):
        raise BaselineError(
            f"{visible(folder)} is in the memory of this process, and is lost with it: choose a directory or another "
            "URL with --perf-dir"
        )


def cache_folder() -> Path:
    """Where the platform keeps what can be fetched again: copies of remote stores are in it."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "pytest-perfdl"
    home = Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "pytest-perfdl"


@dataclass(frozen=True, slots=True)
class RemoteStore(Store):
    """A remote store, with a local copy in `folder`."""

    objects: Objects
    cache: Path
    """Of the copy, with a file that says of which updates each of its files is."""
    conflicts: dict[str, str] = field(default_factory=dict)
    """By file: the line that says that the last updates contradict each other."""
    incomplete: set[str] = field(default_factory=set)
    """Objects that do not fit their names: their writers were killed, or are still at them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each file whose last updates contradict each other."""
        return tuple(self.conflicts[path] for path in sorted(self.conflicts))

    def fetch(self) -> None:
        """Bring the whole copy up to date.

        Raises
        ------
        BaselineError
        """
        with self._alone():
            stored = self.objects.listing().updates
            seen = self._seen()
            names = sorted({*stored, *seen})
            current = {path: [each.id for each in heads(stored.get(path, ()))] for path in names}
            # Several heads are merged again, so that a conflict is said each time.
            stale = [path for path in names if seen.get(path) != current[path] or len(current[path]) > 1]
            if not stale:
                return
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for path, used in zip(
                    stale, pool.map(lambda path: self._bring(path, stored.get(path, [])), stale), strict=True
                ):
                    seen[path] = used
            self._see({path: used for path, used in seen.items() if used})

    def save(
        self,
        record: Record,
        exemplars: Mapping[str, bytes],
        joined: Callable[[Record | None], Record] | None = None,
    ) -> tuple[Path, ...]:
        """As of a local store; then the update is added to the remote one."""
        with self._updating(self.path(record.test, record.key.slug)):
            return Store.save(self, record, exemplars, joined)

    def remove(self, node_id: str, slug: str) -> tuple[Path, ...]:
        """As of a local store; then the removal is added to the remote one."""
        with self._updating(self.path(node_id, slug)):
            return Store.remove(self, node_id, slug)

    def write(self, path: Path, data: bytes) -> None:
        """As of a local store; then the update is added to the remote one."""
        with self._updating(path):
            Store.write(self, path, data)

    def exemplars(self, node_id: str, slug: str) -> tuple[dict[str, Path], tuple[Path, ...]]:
        """As of a local store; traces are fetched when they are needed."""
        record, path = self.load(node_id, slug), self.path(node_id, slug)
        for call, digest in () if record is None else record.exemplars.items():
            file = layout.exemplar_path(path, call)
            if not (file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest):
                trace = self.objects.trace(self._name(path), digest)
                if trace is not None:
                    with self._acting("written", file):
                        write_files({file: trace})
        return Store.exemplars(self, node_id, slug)

    def check_writable(self) -> None:
        """Check, before anything is measured, whether updates can be added."""
        self.objects.check_writable()

    def restorable(self) -> set[Path]:
        """All: a removal is an update, too, and leaves those before it."""
        return {path for path in self.base.rglob("*") if path.is_file()}

    def versions(self) -> Iterator[tuple[str, str, bytes]]:
        """What each update that is still stored left of its file: the file's name, the object's, and the content.

        Raises
        ------
        BaselineError
        """
        updates = [(file, each) for file, every in self.objects.listing().updates.items() for each in every]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = pool.map(lambda each: self._content(each[1]), updates)
            for (file, update), data in zip(updates, contents, strict=True):
                if data is not None:
                    yield file, update.path, data

    def leftovers(self) -> tuple[str, ...]:
        """A line for each object that does not fit its name."""
        return tuple(
            f"{self.objects.url}/{name} is incomplete, and is ignored: if no writer is at it, delete the object"
            for name in sorted(self.incomplete)
        )

    def superseded(self, days: float) -> list[str]:
        """Objects that nobody reads any more: updates that others follow, and traces that no kept update names.

        A writer that still names a deleted update as its parent loses nothing: its own update is whole.

        Parameters
        ----------
        days
            What is younger stays, and so does what has no known age. Incomplete objects, and traces, whose updates are
            written after them, stay for a day at least.
        """
        listing = self.objects.listing()
        gone = [name for name in self.incomplete if _age(listing.updates, name) >= max(days, 1.0)]
        named: set[str] = set()
        for path, every in listing.updates.items():
            newest = {each.id for each in heads([each for each in every if each.path not in self.incomplete])}
            for each in every:
                if each.path in self.incomplete:
                    continue
                if each.id not in newest and each.days is not None and each.days >= days:
                    gone.append(each.path)
                else:
                    traces = _traces(self.base / path, self._content(each))
                    named |= {f"{path.removesuffix('.json')}/{digest}.trace.json.gz" for _, digest in traces}
        gone += [
            each.path
            for each in listing.traces
            if each.path not in named and each.days is not None and each.days >= max(days, 1.0)
        ]
        return sorted(gone)

    def forget(self, name: str) -> None:
        """Delete an object that is superseded."""
        self.objects.delete(name)

    def shown(self, path: Path, here: Path | None = None) -> str:  # noqa: ARG002
        """The address of a file, which is its name in the store without the IDs of updates."""
        return f"{self.objects.url}/{self._name(path)}" if path != self.base else self.objects.url

    @contextlib.contextmanager
    def _updating(self, path: Path) -> Iterator[None]:
        """Around a change of a file of the copy, which becomes an update of all that the store has by then."""
        name = self._name(path)
        with self._alone():
            listing = self.objects.listing(name.removesuffix(".json"))
            used = self._bring(name, listing.updates.get(name, []))
            before = _read(path)
            # Until the update is in the store, the copy counts as out of date.
            seen = self._seen()
            self._see({each: ids for each, ids in seen.items() if each != name})
            yield
            after = _read(path)
            if after != before:
                for file, digest in _traces(path, after):
                    data = _read(file)
                    if data is not None and hashlib.sha256(data).hexdigest() == digest:
                        self.objects.add_trace(name, data)
                used = [self.objects.add(name, after, used).id]
                self.conflicts.pop(name, None)
            self._see({**seen, name: used})

    def _bring(self, name: str, updates: Sequence[Update]) -> list[str]:
        """Bring one file of the copy up to date; the IDs of the updates that it is of now."""
        path = self.base / name
        left = list(updates)
        contents: dict[str, bytes | None] = {}
        while True:
            newest = heads(left)
            try:
                for each in newest:
                    if each.id not in contents:
                        contents[each.id] = self.objects.content(each)
                break
            except IncompleteUpdate:
                self.incomplete.add(each.path)
                left = [other for other in left if other.id != each.id]
        self.conflicts.pop(name, None)
        data = self._merged(name, {each.id: each for each in left}, {each.id: contents[each.id] for each in newest})
        with self._acting("written", path):
            if data is None:
                delete_file(path, self.base)
            elif _read(path) != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_files({path: data})
        return [each.id for each in newest]

    def _merged(self, name: str, updates: Mapping[str, Update], newest: Mapping[str, bytes | None]) -> bytes | None:
        """The merge of several heads, the same for every reader: the most recent recording first."""
        there = {own: data for own, data in newest.items() if data is not None}
        if not there:
            return None
        first, *others = sorted(there, key=lambda own: (_date(there[own]), own), reverse=True)
        data, before = there[first], ancestors(updates, first)
        for own in others:
            theirs = ancestors(updates, own)
            bases = [self._content(each) for each in nearest(updates, before & theirs)]
            merged = merge_files([base for base in bases if base is not None], data, there[own])
            if merged.conflict:
                self.conflicts[name] = (
                    f"{self.objects.url}/{name} has {len(newest)} updates that contradict each other: "
                    f"{visible(merged.conflict)}; the most recent one is used: to end this, record the baseline again "
                    "with pytest --perf-update=all"
                )
            data, before = merged.data, before | theirs
        return data

    def _content(self, update: Update) -> bytes | None:
        """As of `Objects.content`; an ancestor that is incomplete says nothing."""
        try:
            return self.objects.content(update)
        except IncompleteUpdate:
            return None

    def _name(self, path: Path) -> str:
        return path.relative_to(self.base).as_posix()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Around a change of the copy, which other processes on this machine use as well."""
        with contextlib.ExitStack() as stack:
            with self._acting("written", self.cache):
                self.base.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.cache, _LOCK_SECONDS))
            yield

    def _seen(self) -> dict[str, list[str]]:
        """By file of the copy: the IDs of the updates that it is of. Anything else is fetched again."""
        try:
            found = json.loads((self.cache / "seen.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _see(self, seen: Mapping[str, Sequence[str]]) -> None:
        with self._acting("written", self.cache / "seen.json"):
            write_files({self.cache / "seen.json": json.dumps(seen).encode()})


def _traces(path: Path, data: bytes | None) -> list[tuple[Path, str]]:
    """The traces that a record names, with their digests."""
    try:
        record = parse(data or b"")
    except RecordError:
        return []
    return [(layout.exemplar_path(path, call), digest) for call, digest in record.exemplars.items()]


def _age(updates: Mapping[str, Sequence[Update]], name: str) -> float:
    """Age of an update in days; 0 if it is unknown."""
    return next((each.days or 0.0 for every in updates.values() for each in every if each.path == name), 0.0)


def _date(data: bytes) -> str:
    """When a file was recorded; empty if that is unknown."""
    try:
        return max(occasion.date for occasion in parse(data).occasions)
    except RecordError:
        return ""


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}: delete the file, which is a copy") from error
