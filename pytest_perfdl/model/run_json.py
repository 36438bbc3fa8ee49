"""The run file as every command reads it: checked, with decoded records and the names of its traces.

It may come from a CI artifact, so everything is checked: numbers are finite, records are valid for `record_json`, and
traces are plain files in `traces/` in the same directory. Data that only reports need stays plain (`report.reading`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import RecordError, RunFileError
from pytest_perfdl.model.limits import is_budget
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.record_json import LARGEST, check_schema, converted, from_json
from pytest_perfdl.model.visible import visible

SCHEMA = 1
"""Version of the JSON form, the only one that is read. Raised when readers would misread the new form."""
LIMIT = 2**29
"""Bytes that a run file may have."""


@dataclass(frozen=True, slots=True)
class TraceNames:
    """Where the traces of one call lie, relative to the run file."""

    call: str
    base: str | None
    new: str | None
    base_ranks: str | None = None
    """Of all ranks, as the next one; `None` without ranks."""
    ranks: str | None = None


@dataclass(frozen=True, slots=True)
class RunTest:
    """One test of a run file."""

    id: str
    verdict: str
    record: Record | None
    base_record: Record | None
    base_now: Record | None
    """The baseline's code as this run measured it, where the environment is another than the baseline's."""
    traces: tuple[TraceNames, ...]
    data: Mapping[str, Any]
    """All of it as plain data."""

    @property
    def counts_changed(self) -> bool:
        """Whether a count is another than the baseline's, whatever the verdict on times."""
        return any(each.get("verdict") == "changed" for each in self._metrics)

    @property
    def is_budgets_alone(self) -> bool:
        """Whether only budgets fail, of a test that was compared with its baseline."""
        over = [
            each for each in self._metrics if each.get("verdict") == "regressed" and is_budget(str(each.get("limit")))
        ]
        others = {
            str(each.get("verdict")) for each in self._metrics if each not in over and each.get("base") is not None
        }
        rewritten = {"regressed", "missing", "outdated", "changed", "improved", "incomparable"}
        return bool(over) and "unchanged" in others and not others & rewritten and not self.data.get("environment")

    @property
    def _metrics(self) -> list[dict[str, Any]]:
        metrics = self.data.get("metrics")
        return [each for each in metrics.values() if isinstance(each, dict)] if isinstance(metrics, dict) else []


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run file."""

    path: Path
    tests: tuple[RunTest, ...]
    data: Mapping[str, Any]
    """All of it as plain data."""

    def beside(self, name: str | None) -> Path | None:
        """The path of one of its traces; `None` if there is none with that name.

        Raises
        ------
        RunFileError
            The name is a symbolic link to another directory.
        """
        if name is None:
            return None
        path = self.path.parent / name
        if not path.is_file():
            return None
        if not path.resolve().is_relative_to(self.path.parent.resolve()):
            raise RunFileError(f"{self.path}: {visible(name)} is a symbolic link to another directory")
        return path


_Name = Annotated[str, msgspec.Meta(pattern=r"^traces/[\w.-]{1,200}\.json\.gz\Z")]


class _TraceForm(msgspec.Struct):
    call: str
    base: _Name | None = None
    new: _Name | None = None
    base_ranks: _Name | None = None
    ranks: _Name | None = None


class _TestForm(msgspec.Struct):
    id: str
    verdict: str = ""
    record: dict[str, Any] | None = None
    base_record: dict[str, Any] | None = None
    base_now: dict[str, Any] | None = None
    traces: list[_TraceForm] = []


def read(path: Path) -> RunFile:
    """Read what `pytest --perf` wrote as `run.json`, or to the file of `--perf-json`.

    Raises
    ------
    RunFileError
        When it cannot be read, is no run file, is of another schema, or holds what no run writes.
    """
    try:
        return of_data(json.loads(untrusted_files.read_bytes(path, LIMIT)), path)
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}") from None
    except RunFileError:
        raise
    except ValueError as error:
        raise RunFileError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise RunFileError(f"{path} is not a run file: it is nested too deeply") from None


def of_data(data: Any, path: Path) -> RunFile:
    """A run file from its plain data; errors are those of `read`."""
    if not isinstance(data, dict) or not isinstance(data.get("tests"), list):
        raise RunFileError(f"{path} is not a run file of pytest --perf: it has no list of tests")
    schema = data.get("schema")
    if type(schema) is not int:
        raise RunFileError(f"{path} is not a run file of pytest --perf: it has no schema number")
    try:
        check_schema(schema, SCHEMA)
    except RecordError as error:
        raise RunFileError(f"{path} {error}") from None
    place = ""
    try:
        _check_numbers({name: value for name, value in data.items() if name != "tests"})
        tests = []
        for number, test in enumerate(data["tests"]):
            place = f"tests[{number}] "
            tests.append(_test(test))
    except RecordError as error:
        raise RunFileError(f"{path} is damaged: {place}{error}") from None
    return RunFile(path, tuple(tests), data)


def _test(data: Any) -> RunTest:
    form = converted(data, _TestForm)
    _check_numbers({name: value for name, value in data.items() if name not in ("record", "base_record", "base_now")})
    record = _record(form.record, "record")
    if record is not None and record.test != form.id:
        raise RecordError(f"is malformed (the record belongs to another test, {visible(record.test)[:200]})")
    return RunTest(
        id=form.id,
        verdict=form.verdict,
        record=record,
        base_record=_record(form.base_record, "base_record"),
        base_now=_record(form.base_now, "base_now"),
        traces=tuple(TraceNames(each.call, each.base, each.new, each.base_ranks, each.ranks) for each in form.traces),
        data=data,
    )


def _record(data: Any, name: str) -> Record | None:
    try:
        return None if data is None else from_json(data)
    except RecordError as error:
        raise RecordError(f"has a {name} that {error}") from None


def _check_numbers(data: Any) -> None:
    """Raise RecordError for numbers that are too large or not finite, which Python accepts in JSON."""
    if isinstance(data, dict):
        data = data.values()
    elif not isinstance(data, list):
        if isinstance(data, (int, float)) and not abs(data) <= LARGEST:
            raise RecordError(f"is malformed ({str(data)[:20]} is not a number up to {LARGEST:.4g})")
        return
    for value in data:
        _check_numbers(value)
