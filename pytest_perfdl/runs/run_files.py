"""Run files as a history's source: files, folders of them, and URLs of either.

Nothing of a file is printed but its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import InputError, RecordError
from pytest_perfdl.model.record_json import RUN_FILE_LIMIT as LIMIT
from pytest_perfdl.model.visible import visible
from pytest_perfdl.runs.history import Measurement, of_run
from pytest_perfdl.system import remote

MOST_FILES = 10_000
"""Run files that are read of one place."""

Skip = Callable[[str], None]
"""Called with one line about a file that cannot be used."""
_T = TypeVar("_T")


def measurements(places: Sequence[str], skip: Skip) -> Iterator[Measurement]:
    """The measurements of all run files in some places, in the order of their dates; one that is there twice once.

    Parameters
    ----------
    places
        Files, folders (all `*.json` files below) and URLs of either.
    skip
        Called for files that cannot be used. A `*.json` file of a folder that is no run file is skipped, too.

    Raises
    ------
    InputError
        A place does not exist or cannot be opened.
    """
    found: list[Measurement] = []
    for place in places:
        for name, data in _read_url(place, skip) if remote.is_url(place) else _read_path(Path(place), skip):
            try:
                found += of_run(data)
            except RecordError as error:
                skip(f"{name} {error}: skipped")
    yield from sorted({_identity(each): each for each in found}.values(), key=lambda each: each.date)


def _identity(each: Measurement) -> object:
    """Equal for copies: a folder has `run.json` and what `--perf-json` wrote, say."""
    values = tuple((name, metric.values) for name, metric in each.metrics.items())
    return each.test, each.machine_id, each.commit, each.date, values


def _read_path(path: Path, skip: Skip) -> Iterator[tuple[str, bytes]]:
    if not path.exists():
        raise InputError(f"there is no run file or folder {visible(str(path))} (TEST comes before --runs)")
    files = sorted(file for file in path.rglob("*.json") if file.is_file()) if path.is_dir() else [path]
    for file in _first(files, visible(str(path)), skip):
        name = visible(str(file))
        try:
            yield name, untrusted_files.read_bytes(file, LIMIT)
        except OSError as error:
            skip(f"{name} cannot be read: {error.strerror}: skipped")


def _read_url(url: str, skip: Skip) -> Iterator[tuple[str, bytes]]:
    try:
        files = remote.find(url, ".json")
    except OSError as error:
        raise InputError(visible(str(error))) from None
    for file in _first(files, visible(remote.plain(url)), skip):
        try:
            data = file.read(LIMIT + 1)
        except OSError as error:
            skip(f"{visible(str(error))}: skipped")
            continue
        if len(data) > LIMIT:
            skip(f"{visible(file.url)} cannot be read: it is larger than {untrusted_files.size(LIMIT)}: skipped")
            continue
        yield visible(file.url), data


def _first(files: Sequence[_T], place: str, skip: Skip) -> Sequence[_T]:
    if len(files) > MOST_FILES:
        skip(f"{place} has {len(files):,} files: only the last {MOST_FILES:,} by name are read")
    return files[-MOST_FILES:]
