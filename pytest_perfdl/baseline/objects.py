"""The objects of a remote store of baselines, through fsspec: immutable files with unique names.

    <url>/<machine ID>/<test file>/<test>/<id>[.<parent>...].json     an update of the file <test>.json
    <url>/<machine ID>/<test file>/<test>/<sha256>.trace.json.gz      a trace that records name

The ID of an update is a digest of its content, which names its parents: the updates that its writer had seen. So no two
updates have one name, no object is ever written over, and an object that a killed writer left incomplete does not fit
its name. No service needs to offer conditional writes or locks.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_perfdl.baseline.text import LIMIT
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record_json import PATH
from pytest_perfdl.model.visible import visible

SCHEMA = 1
"""Version of the form of updates."""
MARKER = "pytest-perfdl.json"
"""An object that says what the store is; writing it again, the same, shows whether one may write."""
MOST_PARENTS = 8
"""Parents that a name has room for. Further heads stay heads, and are merged by the next writer."""
_ID = 24
"""Hexadecimal digits of an ID."""
_UPDATE = re.compile(rf"([0-9a-f]{{{_ID}}}(?:\.[0-9a-f]{{{_ID}}}){{0,{MOST_PARENTS}}})\.json")
_TRACE = re.compile(r"[0-9a-f]{64}\.trace\.json\.gz")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://.*")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs"}
"""What to install for a protocol."""
_SECRETS = re.compile(r"//[^/@\s]+@|(?<=\?)\S+|(?i:(?:signature|token|secret|password|credential)\w*[=:]\s*\S+)")


def is_url(folder: str) -> bool:
    """Whether the name of a baseline folder is the address of a remote store.

    >>> is_url("s3://bucket/baselines"), is_url("baselines"), is_url("c:/baselines")
    (True, False, False)
    """
    return _URL.fullmatch(folder) is not None


@dataclass(frozen=True, slots=True)
class Update:
    """The name of an update."""

    id: str
    parents: tuple[str, ...]
    path: str
    """Of the object, relative to the store."""
    days: float | None = None
    """Age; `None` if the service does not say."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The name of a trace."""

    path: str
    days: float | None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a store has."""

    updates: dict[str, list[Update]]
    """By the path of the file that they change."""
    traces: list[Trace]


@dataclass(frozen=True, slots=True)
class Objects:
    """A remote store."""

    url: str
    _fs: Any
    _path: str

    @classmethod
    def at(cls, url: str) -> Objects:
        """The store at an address.

        Raises
        ------
        BaselineError
            When the address holds a password or names no bucket, is one that nothing can be written to, or what it
            needs is not installed.
        """
        protocol, _, rest = url.partition("://")
        if ("@" in rest.partition("/")[0] and protocol != "hf") or "?" in rest:
            raise BaselineError(
                f"{_harmless(url)} contains credentials or a query: remove them, and set credentials in the "
                "environment or in the configuration files of the service"
            )
        if protocol in ("http", "https"):
            # Besides, fsspec lists a server that cannot be reached as if it were empty.
            raise BaselineError(
                f"{_harmless(url)} cannot be written, and a web server does not list its files: name a store such as "
                "s3://bucket/baselines, or a directory"
            )
        if not rest.strip("/"):
            raise BaselineError(f"{_harmless(url)} names no bucket: expected an address such as s3://bucket/baselines")
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise BaselineError(f"{url} needs fsspec: pip install fsspec") from None
        local = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        try:
            with _quiet():
                fs, path = url_to_fs(url.rstrip("/"), **local)
        except ImportError as error:
            package = _PACKAGES.get(protocol)
            do = f"pip install {package}" if package else _harmless(str(error))
            raise BaselineError(f"{url} needs a package that is not installed: {do}") from None
        except Exception as error:
            raise _failed(url, "opened", error) from None
        return cls(url.rstrip("/"), fs, str(path).rstrip("/"))

    def listing(self, below: str = "") -> Listing:
        """The updates and traces below a folder; whatever else is there is left alone.

        Raises
        ------
        BaselineError
        """
        start = f"{self._path}/{below}".rstrip("/")
        try:
            with _quiet():
                self._fs.invalidate_cache()
                entries = self._fs.find(start, detail=True)
        except FileNotFoundError:
            entries = {}
        except Exception as error:
            raise _failed(self.url, "read", error) from None
        found = Listing({}, [])
        for name, about in entries.items():
            relative = str(name).lstrip("/").removeprefix(self._path.lstrip("/")).lstrip("/")
            folder, _, last = relative.rpartition("/")
            if not re.search(PATH, relative):
                continue
            if match := _UPDATE.fullmatch(last):
                own, *parents = match[1].split(".")
                found.updates.setdefault(f"{folder}.json", []).append(
                    Update(own, tuple(parents), relative, _days(about))
                )
            elif _TRACE.fullmatch(last):
                found.traces.append(Trace(relative, _days(about)))
        return found

    def content(self, update: Update) -> bytes | None:
        """The file as an update left it; `None` if it removed the file.

        Raises
        ------
        IncompleteUpdate
            When the object does not fit its name.
        BaselineError
        """
        data = self.read(update.path)
        if hashlib.sha256(data).hexdigest()[:_ID] != update.id:
            raise IncompleteUpdate
        held = json.loads(data)
        if held["schema"] > SCHEMA:
            raise BaselineError(f"{self.url}/{update.path} was written by a newer pytest-perfdl: upgrade pytest-perfdl")
        return None if held["file"] is None else str(held["file"]).encode()

    def add(self, path: str, content: bytes | None, parents: Sequence[str]) -> Update:
        """Add an update of a file; `None` removes the file.

        Raises
        ------
        BaselineError
        """
        named = sorted(parents)[:MOST_PARENTS]
        text = None if content is None else content.decode()
        data = json.dumps({"schema": SCHEMA, "parents": named, "file": text}).encode()
        own = hashlib.sha256(data).hexdigest()[:_ID]
        update = Update(own, tuple(named), f"{path.removesuffix('.json')}/{'.'.join((own, *named))}.json")
        self.write(update.path, data)
        return update

    def add_trace(self, path: str, data: bytes) -> None:
        """Add a trace of the record at a path, unless it is there.

        Raises
        ------
        BaselineError
        """
        name = self._trace(path, hashlib.sha256(data).hexdigest())
        if self._size(name) != len(data):
            self.write(name, data)

    def trace(self, path: str, digest: str) -> bytes | None:
        """A trace of the record at a path; `None` if the store does not have it, or only a part of it.

        Raises
        ------
        BaselineError
        """
        name = self._trace(path, digest)
        if self._size(name) is None:
            return None
        data = self.read(name)
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def read(self, name: str) -> bytes:
        """An object of moderate size.

        Raises
        ------
        BaselineError
        """
        size = self._size(name)
        if size is not None and size > 2 * LIMIT:
            raise BaselineError(f"{self.url}/{name} is too large to be an update of a baseline: delete the object")
        with self._acting("read", name):
            return bytes(self._fs.cat_file(f"{self._path}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        """Write an object.

        Raises
        ------
        BaselineError
        """
        with self._acting("written", name):
            self._fs.pipe_file(f"{self._path}/{name}", data)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there.

        Raises
        ------
        BaselineError
        """
        with self._acting("deleted", name):
            try:
                self._fs.rm_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return

    def check_writable(self) -> None:
        """Write the marker.

        Raises
        ------
        BaselineError
            When nothing can be written.
        """
        self.write(MARKER, json.dumps({"schema": SCHEMA, "holds": "baselines of pytest-perfdl"}).encode() + b"\n")

    def _trace(self, path: str, digest: str) -> str:
        return f"{path.removesuffix('.json')}/{digest}.trace.json.gz"

    def _size(self, name: str) -> int | None:
        """Size of an object in bytes; `None` if it is not there."""
        try:
            with _quiet():
                return int(self._fs.info(f"{self._path}/{name}")["size"] or 0)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _failed(f"{self.url}/{name}", "read", error) from None

    @contextmanager
    def _acting(self, done: str, name: str) -> Iterator[None]:
        try:
            with _quiet():
                yield
        except Exception as error:
            raise _failed(f"{self.url}/{name}", done, error) from None


class IncompleteUpdate(Exception):
    """An update's writer was killed, or is still at it."""


def heads(updates: Sequence[Update]) -> list[Update]:
    """Those that are nobody's parents, by ID: one, unless several writers did not see each other."""
    parents = {parent for each in updates for parent in each.parents}
    return sorted((each for each in updates if each.id not in parents), key=lambda each: each.id)


def ancestors(updates: Mapping[str, Update], of: str) -> set[str]:
    """IDs of an update and of all before it, as far as they are still stored."""
    found: set[str] = set()
    waiting = [of]
    while waiting:
        if (own := waiting.pop()) not in found and own in updates:
            found.add(own)
            waiting += updates[own].parents
    return found


def nearest(updates: Mapping[str, Update], common: set[str]) -> list[Update]:
    """Of common ancestors those that are before no other: the bases of a merge."""
    before = {parent for own in common for parent in updates[own].parents}
    return [updates[own] for own in sorted(common - before)]


def _days(about: Mapping[str, Any]) -> float | None:
    """Age of an object in days, from the names that backends have for it."""
    when = next((about[name] for name in ("LastModified", "mtime", "updated", "created") if about.get(name)), None)
    try:
        if isinstance(when, str):
            when = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
        if isinstance(when, datetime.datetime):
            when = (when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp()
        return None if when is None else (time.time() - float(when)) / 86400
    except (TypeError, ValueError):
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Around calls of fsspec: a backend's warning is no error of a project that turns warnings into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _failed(where: str, done: str, error: Exception) -> BaselineError:
    """One line for what a backend raised: what is wrong, and what to do."""
    name = type(error).__name__
    said = _harmless((str(error).strip().splitlines() or [""])[0])[:300]
    if isinstance(error, PermissionError) or "Credentials" in name or "Forbidden" in said:
        why = "not permitted"
        do = "set credentials of the service that may do this, or choose another directory with --perf-dir"
    elif isinstance(error, FileNotFoundError) or "NoSuchBucket" in said:
        why, do = "not found", "create the bucket, or choose another directory with --perf-dir"
    elif isinstance(error, (ConnectionError, TimeoutError)) or re.search("Connect|Timeout|Connection", name):
        why, do = "no connection", "check the network, or choose another directory with --perf-dir"
    else:
        why, do = "failed", "check the address and the service, or choose another directory with --perf-dir"
    return BaselineError(f"{_harmless(where)} cannot be {done}: {why} ({name}{f': {said}' if said else ''}): {do}")


def _harmless(text: str) -> str:
    """Text on one line, without credentials."""
    return visible(_SECRETS.sub(lambda match: "//***@" if match[0].startswith("//") else "***", text))
