"""Run files as a history's source: files, folders of them, and URLs that fsspec opens.

Nothing of a file is printed but its name. User names and tokens that a URL may contain are cut out of messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_perfdl.history.measurements import Measurement, of_run
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import HistoryError, RecordError
from pytest_perfdl.model.run_json import LIMIT
from pytest_perfdl.model.visible import visible

MOST_FILES = 10_000
"""Run files that are read of one place."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.-]+)*://")
"""Also a chain of fsspec, such as `simplecache::s3://bucket/runs`, but no node id."""
_SECRET = re.compile(r"(?<=//)[^/@\s]*@|[?#].*$", re.DOTALL)
_BUCKETS = re.compile(r"(?:.*::)?(?:s3a?|gc?s)://[^/@]*@")
"""A user name or a token before a bucket, which has none."""
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "abfs": "adlfs"}
"""Package that has the backend of a protocol."""

Skip = Callable[[str], None]
"""Called with one line about a file that cannot be used."""


def measurements(places: Sequence[str], skip: Skip) -> Iterator[Measurement]:
    """The measurements of all run files in some places, in the order of their dates.

    Parameters
    ----------
    places
        Files, folders (all `*.json` files below) and URLs of either.
    skip
        Called for files that cannot be used. A `*.json` file of a folder that is no run file is skipped, too.

    Raises
    ------
    HistoryError
        A place does not exist or cannot be opened.
    """
    found: list[Measurement] = []
    for place in places:
        for name, data in _of_url(place, skip) if is_url(place) else _of_path(Path(place), skip):
            try:
                found += of_run(data)
            except RecordError as error:
                skip(f"{name} {error}: skipped")
    yield from sorted(found, key=lambda each: each.date)


def is_url(place: str) -> bool:
    """Whether a place is one that fsspec opens.

    >>> is_url("s3://bucket/runs"), is_url("simplecache::s3://bucket/runs"), is_url("a.py::test_b[x://y]")
    (True, True, False)
    """
    return _URL.match(place) is not None and not Path(place).exists()


def plain(url: str) -> str:
    """A URL as messages name it, without user names, passwords and signatures.

    >>> plain("https://user:token@host/runs?signature=1")
    'https://host/runs'
    """
    return visible(_SECRET.sub("", url))


def _of_path(path: Path, skip: Skip) -> Iterator[tuple[str, bytes]]:
    if not path.exists():
        raise HistoryError(f"there is no run file or folder {visible(str(path))} (TEST comes before --runs)")
    files = sorted(file for file in path.rglob("*.json") if file.is_file()) if path.is_dir() else [path]
    for file in _first(files, visible(str(path)), skip):
        name = visible(str(file))
        try:
            yield name, untrusted_files.read_bytes(file, LIMIT)
        except OSError as error:
            skip(f"{name} cannot be read: {error.strerror}: skipped")


def _of_url(url: str, skip: Skip) -> Iterator[tuple[str, bytes]]:
    if _BUCKETS.match(url):
        raise HistoryError(
            f"{plain(url)}: a bucket has no user name or password in its address: set credentials in the environment "
            "or in the configuration files of the service"
        )
    system, path = _opened(url)
    try:
        files = [path] if system.isfile(path) else sorted(str(each) for each in system.find(path))
        files = files if files == [path] else [each for each in files if each.endswith(".json")]
    except Exception as error:
        # Each backend raises errors of its library.
        raise HistoryError(f"{plain(url)} cannot be listed: {_reason(error)}") from None
    if not files:
        raise HistoryError(f"there is no run file at {plain(url)}{_unreached(system, path)}")
    for file in _first(files, plain(url), skip):
        name = plain(str(system.unstrip_protocol(file)))
        try:
            with system.open(file, "rb") as stream:
                data = stream.read(LIMIT + 1)
        except Exception as error:
            skip(f"{name} cannot be read: {_reason(error)}: skipped")
            continue
        if len(data) > LIMIT:
            skip(f"{name} is larger than {untrusted_files.size(LIMIT)}: skipped")
            continue
        yield name, data


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise HistoryError(f"{plain(url)} needs the package fsspec: pip install fsspec") from None
    protocol = re.split(r"::|://", url)[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError:
        package = _PACKAGES.get(protocol, "")
        raise HistoryError(
            f"{plain(url)} needs a package that is not installed"
            + (f": pip install {package}" if package else f": see fsspec's documentation on {visible(protocol)}://")
        ) from None
    except Exception as error:
        raise HistoryError(f"{plain(url)} cannot be opened: {_reason(error)}") from None
    return system, str(path)


def _unreached(system: Any, path: str) -> str:
    """Why a place looks empty, if it could not be reached: web servers that are away are listed as empty."""
    try:
        system.info(path)
    except Exception as error:
        if error.__cause__ is not None and isinstance(error.__cause__, (OSError, TimeoutError)):
            return f": {_reason(error.__cause__)}"
    return ""


def _reason(error: BaseException) -> str:
    """The first line of an error's text, without what a URL in it may hold."""
    lines = str(error).splitlines()
    return plain(lines[0])[:200] if lines else type(error).__name__


def _first(files: Sequence[Any], place: str, skip: Skip) -> Sequence[Any]:
    if len(files) > MOST_FILES:
        skip(f"{place} has {len(files):,} files: only the last {MOST_FILES:,} by name are read")
    return files[-MOST_FILES:]
