"""The run file: everything that a run found, as JSON, for other programs and for the commands that read it again.

`RunForm` and `TestForm` are its fields, from which it is written, read and its JSON Schema is made. A field of a form
with the name of a field of `Run`, `Result` or `Judgement` is that field. Times are integer nanoseconds, sizes bytes,
shares and effects ratios (0.1 is 10 %); what cannot be stated is null, never NaN. `record` holds what was measured, so
that a run on another machine can become a baseline, and `base_record` what it was compared with.

A run file may come from a CI artifact, so everything is checked when it is read: types, that numbers are finite, that
records are valid for `record_json`, and that traces are plain files in `traces/` in the same directory.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.model import record_json, untrusted_files
from pytest_perfdl.model.errors import RecordError, RunFileError
from pytest_perfdl.model.json import derived, filled, plain
from pytest_perfdl.model.limits import Limit, parse_requirement
from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.record import Finding, Key, Record
from pytest_perfdl.model.record_json import LARGEST, GitHash, KeyForm, RecordForm, ScalarForm, converted
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results import memory_causes
from pytest_perfdl.results.curve import JudgedCurve, RankComparison
from pytest_perfdl.results.run import Exemplars, Result, Run, Suggestion, WaiverFile
from pytest_perfdl.results.trace_files import TRACE_PATH, kept, paths_of
from pytest_perfdl.results.verdict import (
    CaseVerdict,
    Cause,
    GroupVerdict,
    Judgement,
    MetricVerdict,
    OperatorSides,
    SourceDiff,
    StepBreakdown,
    Verdict,
    WorkChange,
)

SCHEMA = record_json.RUN_FILE_SCHEMA
"""Version of the JSON form, the only one that is read. Raised when readers would misread the new form."""
LIMIT = record_json.RUN_FILE_LIMIT
"""Bytes that a run file may have."""

_VALUES = {"limit": str | None, "base_values": list[float], "new_values": list[float]}
_Metric = derived("Metric", MetricVerdict, without=("name", "pairs"), more=_VALUES)
_EnvironmentMetric = derived("EnvironmentMetric", MetricVerdict, without=("pairs",), more=_VALUES)
_TracePath = Annotated[str, msgspec.Meta(pattern=TRACE_PATH)] | msgspec.UnsetType


class _Record(RecordForm, kw_only=True):
    schema: int


class _ContextChange(msgspec.Struct):
    name: str
    base: str
    new: str


class _CallGrowth(msgspec.Struct):
    call: str
    bytes: int
    line: str
    """The line that allocates most of it; empty if unknown."""
    module: str


class _Traces(msgspec.Struct):
    call: str
    base: _TracePath = msgspec.UNSET
    new: _TracePath = msgspec.UNSET
    diff: _TracePath = msgspec.UNSET
    speedscope: str | msgspec.UnsetType = msgspec.UNSET
    base_ranks: _TracePath = msgspec.UNSET
    """All ranks of the baseline in one trace, for a test with ranks."""
    ranks: _TracePath = msgspec.UNSET
    """All current ranks in one trace."""


class TestForm(msgspec.Struct):
    """One test of a run file."""

    __test__ = False

    id: str
    file: str
    line: int
    verdict: Verdict
    reason: str
    fails: bool
    updated: bool
    caught_by: list[str]
    """Which kind of evidence tells: `time` for timed metrics, `counts` for counted ones."""
    metrics: dict[str, _Metric]  # type: ignore[valid-type]
    rounds: str
    environment: list[_EnvironmentMetric]  # type: ignore[valid-type]
    work: tuple[WorkChange, ...]
    operators: tuple[OperatorSides, ...]
    ranks: int
    """Number of ranks; 0 without a process group."""
    rank_times: tuple[RankComparison, ...]
    breakdowns: tuple[StepBreakdown, ...]
    blame: list[dict[str, Any]]
    """Causes of times and of memory, which have different fields."""
    memory: tuple[MemoryChange, ...]
    growth: list[_CallGrowth]
    definition: tuple[SourceDiff, ...]
    source_diffs: tuple[SourceDiff, ...]
    suggestions: tuple[Suggestion, ...]
    curves: tuple[JudgedCurve, ...]
    integrity: tuple[Finding, ...]
    context_changes: list[_ContextChange]
    base_path: str
    against: str
    against_python: str
    base_repeats: int | None
    new_repeats: int | None
    seconds: float
    traces: list[_Traces]
    record: _Record | None
    base_record: _Record | None
    base_now: _Record | None
    cases: tuple[CaseVerdict, ...] = ()
    """Those of a table; empty for other tests."""
    groups: tuple[GroupVerdict, ...] = ()
    """Groups of cases that got slower."""


class RunForm(msgspec.Struct):
    """A run file, without the number of the schema."""

    date: str
    commit: GitHash | None
    repository: Annotated[str, msgspec.Meta(pattern=r"^(https://[\w.-]+/[\w.-]+/[\w.-]+)?\Z")]
    key: KeyForm
    context: dict[str, ScalarForm]
    judged: bool
    seconds: float
    notes: tuple[str, ...]
    perf_dir: str
    invocation: Invocation
    settings: dict[str, str]
    peaks: dict[str, Peaks]
    shard: Shard | None
    counts: dict[Verdict, int]
    waivers: WaiverFile
    tests: list[TestForm]


def _common(form: type[msgspec.Struct], kind: type, *without: str) -> tuple[str, ...]:
    """The fields that a form and a value have in common."""
    return tuple(
        each.name
        for each in dataclasses.fields(kind)
        if each.name in form.__struct_fields__ and each.name not in without
    )


_OF_RUN = _common(RunForm, Run, "key")
_OF_RESULT = _common(TestForm, Result, "base_now")
_OF_JUDGEMENT = _common(TestForm, Judgement, "metrics", "environment", "ranks", "blame", "context_changes")
_OF_METRIC = _common(_Metric, MetricVerdict, "limit")


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def to_json(run: Run) -> dict[str, Any]:
    """Plain data for `json`: finite numbers, strings, lists and dicts only."""
    key = KeyForm(run.key.slug, dict(run.key.parts))
    form = filled(RunForm, run, key=key, counts=run.counts(), tests=[])
    return {"schema": SCHEMA, **plain(form), "tests": [_test_to_json(run, result) for result in run.results]}


def dump(data: Mapping[str, Any]) -> bytes:
    """The bytes of a run file: ASCII, a line for each test, with a newline at the end."""
    head = json.dumps({**data, "tests": []}, indent=1, allow_nan=False)
    tests = ",\n".join(json.dumps(test, allow_nan=False) for test in data["tests"])
    start, end = head.rsplit('"tests": []', 1)
    return f'{start}"tests": [\n{tests}\n ]{end}\n'.encode("ascii")


def _test_to_json(run: Run, result: Result) -> dict[str, Any]:
    judgement = result.judgement
    new, base = _values(result.new), _values(result.base)
    form = filled(
        TestForm,
        result,
        judgement,
        caught_by=_caught_by(judgement),
        metrics={
            metric.name: _Metric(**_metric(metric, base.get(metric.name, []), new.get(metric.name, [])))
            for metric in judgement.metrics
        },
        environment=[_EnvironmentMetric(name=each.name, **_metric(each, [], [])) for each in judgement.environment],
        ranks=0 if result.new is None else result.new.plan.ranks,
        rank_times=judgement.ranks,
        blame=blame_to_json(judgement),
        growth=_growth(judgement),
        context_changes=[_ContextChange(*each) for each in judgement.context_changes],
        base_repeats=None if result.base is None else result.base.repeats,
        new_repeats=None if result.new is None else result.new.repeats,
        traces=[_Traces(each.call, **paths_of(result, each)) for each in kept(run, result)],
        record=None,
        base_record=None,
        base_now=None,
    )
    records = {"record": result.new, "base_record": result.base, "base_now": result.base_now}
    written = {name: None if each is None else record_json.to_json(each) for name, each in records.items()}
    return {**plain(form), "memory": memory_causes.to_json(judgement.memory), **written}


def _metric(metric: MetricVerdict, base: list[float], new: list[float]) -> dict[str, Any]:
    if metric.pairs:
        base, new = [list(side) for side in zip(*metric.pairs, strict=True)]
    limit = None if metric.limit is None else str(metric.limit)
    fields = _fields(metric, _OF_METRIC) | {"limit": limit, "base_values": base, "new_values": new}
    if metric.unit == "ns":
        fields |= {name: _integer(fields[name]) for name in ("base", "new", "stored")}
        fields |= {name: [_integer(value) for value in fields[name]] for name in ("base_values", "new_values")}
    return fields


def blame_to_json(judgement: Judgement) -> list[dict[str, Any]]:
    """The causes of all kinds as plain data: those of memory first where a peak is what failed, and no time."""
    times = [{**plain(cause), "status": cause.status, "delta_ns": cause.delta_ns} for cause in judgement.blame]
    bytes_ = memory_causes.causes_to_json(judgement.memory)
    return [*bytes_, *times] if memory_causes.comes_first(judgement) else [*times, *bytes_]


def _growth(judgement: Judgement) -> list[_CallGrowth]:
    """What each step of a call keeps."""
    known = {change.call: change.new.growing for change in judgement.memory}
    found = []
    for call, size in judgement.growth.items():
        first = next(iter(known.get(call, ())), None)
        line, module = (first.line, first.module) if first else ("", "")
        found.append(_CallGrowth(call, round(size), line, module))
    return found


def _caught_by(judgement: Judgement) -> list[str]:
    telling = [metric.kind for metric in judgement.metrics if metric.verdict in ("regressed", "changed", "suspect")]
    return [word for word, kind in (("time", "timed"), ("counts", "counted")) if kind in telling]


def _values(side: Record | None) -> dict[str, list[float]]:
    return {} if side is None else {name: list(series.values) for name, series in side.metrics().items()}


def _integer(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value)


def read_run(path: Path, report_dir: Path | None = None) -> Run:
    """The run that a run file tells of, with the traces that lie in `traces/` beside it.

    Parameters
    ----------
    path
        What `pytest --perf` wrote as `run.json`, or to the file of `--perf-json`.
    report_dir
        Where a report of the run would be written; the folder of the file by default.

    Raises
    ------
    RunFileError
        When it cannot be read, is no run file, is of another schema, or holds what no run writes.
    """
    try:
        return of_data(record_json.loaded(untrusted_files.read_bytes(path, LIMIT)), path, report_dir)
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}") from None
    except RunFileError:
        raise
    except RecordError as error:
        raise RunFileError(f"{path} {error}") from None
    except ValueError as error:
        raise RunFileError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise RunFileError(f"{path} is not a run file: it is nested too deeply") from None


def of_data(data: Any, path: Path, report_dir: Path | None = None) -> Run:
    """A run from its plain data; parameters and errors are those of `read_run`."""
    if not isinstance(data, dict) or not isinstance(data.get("tests"), list):
        raise RunFileError(f"{path} is not a run file of pytest --perf: it has no list of tests")
    schema = data.get("schema")
    if type(schema) is not int:
        raise RunFileError(f"{path} is not a run file of pytest --perf: it has no schema number")
    try:
        record_json.check_schema(schema, SCHEMA)
    except RecordError as error:
        raise RunFileError(f"{path} {error}") from None
    place = ""
    try:
        head = {name: value for name, value in data.items() if name != "tests"}
        _check_numbers(head)
        form = converted({**head, "tests": []}, RunForm)
        results = []
        for number, test in enumerate(data["tests"]):
            place = f"tests[{number}] "
            results.append(_result(test, path))
    except RecordError as error:
        raise RunFileError(f"{path} is damaged: {place}{error}") from None
    return Run(
        **_fields(form, _OF_RUN),
        root=Path.cwd(),
        key=Key(form.key.slug, form.key.parts),
        results=tuple(results),
        report_dir=report_dir or path.parent,
        traces="all",
    )


def _result(data: Any, path: Path) -> Result:
    if isinstance(data, dict):
        # Records have checks of their own.
        _check_numbers({name: each for name, each in data.items() if name not in ("record", "base_record", "base_now")})
    form = converted(data, TestForm)
    _check_sizes(form.curves)
    record = _record(form.record, "record")
    if record is not None and record.test != form.id:
        raise RecordError(f"is malformed (the record belongs to another test, {visible(record.test)[:200]})")
    judgement = Judgement(
        **_fields(form, _OF_JUDGEMENT),
        test=form.id,
        metrics=tuple(_verdict(each, name) for name, each in form.metrics.items()),
        environment=tuple(map(_verdict, form.environment)),
        ranks=form.rank_times,
        blame=tuple(converted(each, Cause) for each in form.blame if each.get("kind") != "memory"),
        context_changes=tuple((each.name, each.base, each.new) for each in form.context_changes),
    )
    return Result(
        **_fields(form, _OF_RESULT),
        judgement=judgement,
        new=record,
        base=_record(form.base_record, "base_record"),
        base_now=_record(form.base_now, "base_now"),
        exemplars=tuple(_exemplars(each, path) for each in form.traces),
    )


def _record(form: _Record | None, name: str) -> Record | None:
    if form is None:
        return None
    try:
        record_json.check_schema(form.schema, record_json.SCHEMA)
        return record_json.of_form(form)
    except RecordError as error:
        raise RecordError(f"has a {name} that {error}") from None


def _verdict(form: Any, name: str = "") -> MetricVerdict:
    pairs: tuple[tuple[float, float], ...] = ()
    if form.evidence == "paired" and len(form.base_values) == len(form.new_values) == form.rounds:
        pairs = tuple(zip(form.base_values, form.new_values, strict=True))
    name = name or form.name
    try:
        limit = None if form.limit is None else parse_requirement(name, form.limit)
        if isinstance(limit, Limit):
            limit.check(form.unit, form.better)
    except ValueError as error:
        raise RecordError(f"is malformed ({visible(str(error))})") from None
    return MetricVerdict(**_fields(form, _OF_METRIC), name=name, limit=limit, pairs=pairs)


def _exemplars(form: _Traces, path: Path) -> Exemplars:
    base, new, base_ranks, ranks = (_beside(path, name) for name in (form.base, form.new, form.base_ranks, form.ranks))
    return Exemplars(form.call, base, new, (base_ranks,) if base_ranks else (), (ranks,) if ranks else ())


def _beside(file: Path, name: str | msgspec.UnsetType) -> Path | None:
    """The path of one of a run file's traces; `None` if there is none with that name."""
    if isinstance(name, msgspec.UnsetType):
        return None
    path = file.parent / name
    if not path.is_file():
        return None
    if not path.resolve().is_relative_to(file.parent.resolve()):
        raise RunFileError(f"{file}: {visible(name)} is a symbolic link to another directory")
    return path


def _check_sizes(curves: Iterable[JudgedCurve]) -> None:
    for curve in curves:
        sizes = [*(each.size for each in curve.sizes), *(each.size for each in curve.fitted)]
        if not curve.sizes or not all(0 < size < math.inf for size in sizes):
            raise RecordError("has a curve with a size that is not a positive number")


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
