"""What a history needs of records and run files.

A history reads thousands of records. So only the parts that it needs are decoded, which is several times as fast as
`record_json.from_json`: neither rows nor files of code. What is decoded is checked in the same way: types, that numbers
are finite, and that there is one value per process.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from pytest_perfdl.baseline.layout import RECORD_SUFFIX
from pytest_perfdl.machine.constants import FILE as MACHINE_FILE
from pytest_perfdl.model import record_json
from pytest_perfdl.model.errors import RecordError
from pytest_perfdl.model.record import INJECTED, Better, Kind, Scalar, metric_name
from pytest_perfdl.model.record_json import LARGEST, KeyForm, ScalarForm
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results import run_file

_HASH_DIGITS = 12
_SAID = 200
"""Characters of an error's text."""


_DAMAGED = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of a measurement."""

    kind: Kind
    unit: str
    better: Better
    values: tuple[float, ...]
    """One per process."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The result of paired rounds for one metric."""

    effect: float
    """Change against the baseline's code as a ratio."""
    interval: tuple[float, float]
    """Ends of its 95 % interval."""
    base: float | None
    """What the baseline's code took in these rounds."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A test at one commit on one machine."""

    test: str
    machine_id: str
    commit: str
    date: str
    context: Mapping[str, Scalar]
    """Of the process, with the settings that measured and the hash of the test's source."""
    metrics: Mapping[str, Measured]
    """By full name."""
    subject: str = ""
    note: str = ""
    measured_commit: str = ""
    """The commit that was checked out when it was measured; empty if unknown."""
    base: Measurement | None = None
    """The baseline that it was compared with."""
    paired: Mapping[str, Paired] = field(default_factory=dict)
    """By full name of the metric."""


class _Versioned(msgspec.Struct):
    schema: int


_T = TypeVar("_T", bound=_Versioned)


class _Series(msgspec.Struct):
    kind: Kind
    unit: str
    better: Better
    values: list[int | float]


class _Call(msgspec.Struct):
    name: str
    metrics: dict[str, _Series]


class _Occasion(msgspec.Struct):
    date: str
    repeats: int
    commit: str | None = None


class _Finding(msgspec.Struct):
    level: Literal["invalid", "note"]
    code: str


class _Record(_Versioned):
    test: str
    key: KeyForm
    context: dict[str, ScalarForm]
    occasions: list[_Occasion]
    calls: list[_Call]
    test_hash: str = ""
    plan: dict[str, Any] = {}
    integrity: list[_Finding] = []
    note: str | None = None


class _Metric(msgspec.Struct):
    evidence: str | None = None
    effect: int | float | None = None
    ci95: tuple[int | float, int | float] | None = None
    base: int | float | None = None


class _Test(msgspec.Struct):
    id: str
    record: _Record | None = None
    base_record: _Record | None = None
    verdict: str = ""
    metrics: dict[str, _Metric] = {}


class _Run(_Versioned):
    date: str
    tests: list[_Test]
    commit: str | None = None


def is_baseline(path: str) -> bool:
    """Whether a file of the baselines folder is a record: neither a trace nor a machine's peak rates.

    >>> is_baseline("cpu-a/tests/test_gpt/test_step.json"), is_baseline("cpu-a/machine.json")
    (True, False)
    """
    return path.endswith(RECORD_SUFFIX) and not (path.count("/") == 1 and path.endswith(f"/{MACHINE_FILE}"))


def of_baseline(data: bytes, commit: str, date: str, subject: str) -> Measurement:
    """The measurement of a baseline file, at the commit that has it.

    Raises
    ------
    RecordError
        When it is no baseline, damaged, or of a newer version; the message continues the name of the file.
    """
    form = _decoded(data, _Record, record_json.SCHEMA)
    found = _measurement(form, commit, date, subject)
    if not found.metrics:
        raise RecordError("contains no measurement")
    return found


def of_run(data: bytes) -> tuple[Measurement, ...]:
    """The measurements of a run file; without tests that were not measured, are invalid or were slowed on purpose.

    Raises
    ------
    RecordError
        As `of_baseline` does.
    """
    form = _decoded(data, _Run, run_file.SCHEMA)
    found = []
    for test in form.tests:
        # Rounds may be invalid where the record is not.
        if test.record is None or test.verdict == "invalid":
            continue
        if any(each.level == "invalid" for each in test.record.integrity):
            continue
        if any(each.code == INJECTED for each in test.record.integrity):
            continue
        base = None
        if test.base_record is not None:
            base = _measurement(test.base_record, "", "", "")
        paired = {name: each for name, metric in test.metrics.items() if (each := _paired(metric)) is not None}
        found.append(_measurement(test.record, form.commit or "", form.date, "", base, paired))
    return tuple(found)


def _decoded(data: bytes, form: type[_T], known: int) -> _T:
    try:
        decoded = msgspec.json.decode(data, type=form)
    except _DAMAGED as error:
        # The form of another version need not be like this one.
        with contextlib.suppress(*_DAMAGED):
            record_json.check_schema(msgspec.json.decode(data, type=_Versioned).schema, known)
        raise RecordError(f"is damaged, or no file of pytest-perfdl ({visible(str(error)[:_SAID])})") from None
    record_json.check_schema(decoded.schema, known)
    return decoded


def _measurement(
    form: _Record,
    commit: str,
    date: str,
    subject: str,
    base: Measurement | None = None,
    paired: Mapping[str, Paired] | None = None,
) -> Measurement:
    if not form.occasions:
        raise RecordError("is damaged (it has no occasions)")
    last = form.occasions[-1]
    repeats = sum(each.repeats for each in form.occasions)
    metrics = {}
    for call in form.calls:
        for name, series in call.metrics.items():
            if len(series.values) != repeats or not series.values or not _finite(series.values):
                raise RecordError(f"is damaged (values of {visible(metric_name(call.name, name)[:_SAID])})")
            metrics[metric_name(call.name, name)] = Measured(
                series.kind, series.unit, series.better, tuple(series.values)
            )
    return Measurement(
        test=form.test,
        machine_id=form.key.slug,
        commit=commit,
        date=date or last.date,
        context={**form.context, **_settings(form.plan), "test source": form.test_hash[:_HASH_DIGITS]},
        metrics=metrics,
        subject=subject,
        note=form.note or "",
        measured_commit=last.commit or "",
        base=base,
        paired=paired or {},
    )


def _settings(plan: Mapping[str, Any]) -> dict[str, Scalar]:
    """What a plan says, as text: a point under other settings is no change of the code."""
    return {visible(name): visible(json.dumps(value)[:_SAID]) for name, value in plan.items()}


def _paired(metric: _Metric) -> Paired | None:
    if metric.evidence != "paired" or metric.effect is None or metric.ci95 is None:
        return None
    numbers: Sequence[Any] = (metric.effect, *metric.ci95)
    if not _finite(numbers) or min(numbers) <= -1:
        return None
    base = metric.base if metric.base is not None and _finite([metric.base]) else None
    return Paired(metric.effect, metric.ci95, base)


def _finite(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and abs(value) <= LARGEST for value in values)
