"""Reads the waiver file, `perf_waivers.toml` by default.

A pull request may change the file, so its size, its number of entries and the length of its texts are limited, and it
must be in the root directory. Errors name the file and the entry.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_perfdl.config.options import WAIVERS
from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.limits import limit_of
from pytest_perfdl.model.untrusted_files import read_bytes, size
from pytest_perfdl.model.visible import visible
from pytest_perfdl.model.waivers import EVERY, Waiver
from pytest_perfdl.system import clocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OFF = "off"
"""The value of the ini key for no waivers."""
LIMIT = 256 * 1024
"""Bytes that the file may have."""
MOST = 1000
"""Waivers that the file may have."""
LONGEST = 1000
"""Characters that a text may have."""
LARGEST = 1000.0
"""Share by which a metric may get worse: a thousand times as slow."""
YEARS = 100
"""Longest time from now until the last day."""
_REQUIRED = ("test", "limit", "until", "why", "who")
_KNOWN = (*_REQUIRED, "metric")
_SHOWN = 60


def read(root: Path, name: str) -> tuple[Waiver, ...]:
    """The waivers of a project; none if the file with the default name does not exist.

    Parameters
    ----------
    root
        pytest's root directory.
    name
        Path of the file relative to the root directory, or `OFF`.

    Raises
    ------
    InputError
        The file cannot be read, is outside of the root directory, or has an invalid entry.
    """
    if name == OFF:
        return ()
    path = root / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{visible(name)}: the waiver file must be in the root directory {root}")
    if not path.exists() and name == WAIVERS:
        return ()
    if not path.is_file():
        raise InputError(f"{visible(name)} is not a file: create it, or change perf_waivers in the ini file")
    try:
        data = read_bytes(path, LIMIT)
    except OSError as error:
        raise InputError(f"{visible(name)} cannot be read: {error.strerror or error}") from None
    return parse(data, visible(name))


def parse(data: bytes, name: str) -> tuple[Waiver, ...]:
    """The waivers in the content of a file; `name` is for messages.

    Raises
    ------
    InputError
    """
    if len(data) > LIMIT:
        raise InputError(f"{name} cannot be read: it is larger than {size(LIMIT)}")
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid TOML: {_cut(str(error), 200)}") from None
    entries = content.pop("waiver", [])
    if content:
        raise InputError(f"{name}: unknown table or key {_cut(next(iter(content)))}: write every waiver as [[waiver]]")
    if not isinstance(entries, list):
        raise InputError(f"{name}: waiver is not a list of tables: write every waiver as [[waiver]]")
    if len(entries) > MOST:
        raise InputError(f"{name} has {len(entries)} waivers, but at most {MOST} are allowed: remove expired ones")
    found = []
    for number, entry in enumerate(entries, start=1):
        try:
            found.append(_waiver(entry))
        except ValueError as error:
            raise InputError(f"{name}: waiver {number}: {_cut(str(error), 300)}") from None
    return tuple(found)


def _waiver(entry: Any) -> Waiver:
    if not isinstance(entry, Mapping):
        raise ValueError("is not a table: write it as [[waiver]]")
    if unknown := [key for key in entry if key not in _KNOWN]:
        raise ValueError(f"unknown key {_cut(unknown[0])}: the keys are {', '.join(_KNOWN)}")
    if absent := [key for key in _REQUIRED if key not in entry]:
        raise ValueError(f"has no {absent[0]}: {_EXPECTED[absent[0]]}")
    texts = {key: _text(entry, key) for key in _KNOWN if key != "until"}
    until = entry["until"]
    if not isinstance(until, datetime.date) or isinstance(until, datetime.datetime):
        raise ValueError(f"until is not a date: {_EXPECTED['until']}")
    waiver = Waiver(
        texts["test"], texts["metric"], texts["limit"], until.isoformat(), why=texts["why"], who=texts["who"]
    )
    if until.year > clocks.today().year + YEARS:
        raise ValueError(f"until is more than {YEARS} years from now: {_EXPECTED['until']}")
    if set(waiver.metric) & set("*?"):
        raise ValueError(
            f"metric {_cut(waiver.metric)} is not the name of a metric: leave metric out to cover every metric"
        )
    limit = limit_of(waiver)
    if limit.relative is not None and limit.relative > LARGEST:
        raise ValueError(f"limit {_cut(limit.text)} is more than {LARGEST:.0%}: {_EXPECTED['limit']}")
    if limit.off:
        raise ValueError(f"limit is off, but a waiver says how much worse the metric may get: {_EXPECTED['limit']}")
    if waiver.metric == EVERY and (limit.absolute is not None or limit.sign):
        raise ValueError(f"limit {limit.text!r} is not a percentage, so it needs a metric: add metric")
    return waiver


_EXPECTED = {
    "test": 'expected a node id or a pattern, such as test = "tests/test_gpt.py::*"',
    "limit": 'expected how much worse the metric may get, such as limit = "12%"',
    "until": "expected a date without quotes, such as until = 2026-12-31",
    "why": "expected the reason, in a sentence",
    "who": "expected the person who is responsible",
}


def _text(entry: Mapping[str, Any], key: str) -> str:
    """A text of an entry, on one line; empty only for a metric that is not given."""
    value = entry.get(key)
    if value is None:
        return EVERY
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is not a text, or is empty")
    if len(value) > LONGEST:
        raise ValueError(f"{key} is longer than {LONGEST} characters")
    return visible(" ".join(value.split()))


def _cut(text: str, most: int = _SHOWN) -> str:
    shown = visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
