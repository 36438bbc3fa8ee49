"""A run file read again: what `perfdl report` makes the page from, without measuring anything.

What the file's form does not hold (budgets' own words, say) is not needed for the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_perfdl import record_json
from pytest_perfdl.judge.verdict import VERDICTS, Cause, Judgement, MetricVerdict, SourceDiff
from pytest_perfdl.record import Finding, Key, Record
from pytest_perfdl.record_json import RecordError
from pytest_perfdl.report.files import ReportError
from pytest_perfdl.report.json import SCHEMA
from pytest_perfdl.report.run import Exemplars, Result, Run, Suggestion
from pytest_perfdl.report.scaling.curve import Curve

_T = TypeVar("_T")


def read_run(path: Path, report_dir: Path) -> Run:
    """The run that a run file tells of, with the traces that lie in `traces/` beside it, to be written elsewhere.

    Raises
    ------
    ReportError
        When it cannot be read or is no run file that this version knows.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("tests"), list):
        raise ReportError(f"{path} is not a run file of pytest --perf: it has no list of tests")
    if not isinstance(data.get("schema"), int) or data["schema"] > SCHEMA:
        raise ReportError(
            f"{path} was written by a newer pytest-perfdl (schema {data.get('schema')}, this one reads {SCHEMA})"
        )
    try:
        return Run(
            root=Path.cwd(),
            key=Key(data["key"]["slug"], data["key"]["parts"]),
            context=data["context"],
            results=tuple(_result(test, path.parent) for test in data["tests"]),
            perf_dir=data["perf_dir"],
            report_dir=report_dir,
            date=data["date"],
            commit=data["commit"],
            seconds=data["seconds"],
            judged=data["judged"],
            notes=tuple(data["notes"]),
            traces="all",
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecordError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ReportError(f"{path} is not a whole run file: {what}") from error


def with_history(runs: Sequence[Run]) -> Run:
    """The last of several runs by their dates, each of its tests with what the earlier ones measured under its key."""
    *earlier, last = sorted(runs, key=lambda run: run.date)
    return replace(last, results=tuple(replace(one, history=_before(one, earlier)) for one in last.results))


def _before(result: Result, earlier: Sequence[Run]) -> tuple[Record, ...]:
    return tuple(
        one.new
        for run in earlier
        for one in run.results
        if one.id == result.id
        and one.new is not None
        and (result.new is None or one.new.key.slug == result.new.key.slug)
    )


def _result(test: Mapping[str, Any], folder: Path) -> Result:
    if test["verdict"] not in VERDICTS:
        raise ValueError(f"{test['verdict']!r} is no verdict")
    judgement = Judgement(
        test=test["id"],
        verdict=test["verdict"],
        reason=test["reason"],
        metrics=tuple(_metric(name, each) for name, each in test["metrics"].items()),
        blame=tuple(_made(Cause, each) for each in test["blame"]),
        integrity=tuple(Finding(**each) for each in test["integrity"]),
        context_changes=tuple((each["name"], each["base"], each["new"]) for each in test["context_changes"]),
        suspects=tuple(test["suspects"]),
        source_diffs=tuple(SourceDiff(**each) for each in test.get("source_diffs", ())),
    )
    return Result(
        id=test["id"],
        file=test["file"],
        line=test["line"],
        judgement=judgement,
        fails=test["fails"],
        new=_record(test.get("record")),
        base=_record(test.get("base_record")),
        base_path=test["base_path"],
        against=test.get("against", ""),
        exemplars=tuple(
            Exemplars(str(trace["call"]), _beside(folder, trace.get("base")), _beside(folder, trace.get("new")))
            for trace in test["traces"]
        ),
        suggestions=tuple(_suggestion(each) for each in test.get("suggestions", ())),
        curves=tuple(_curve(each) for each in test.get("curves", ())),
        updated=test["updated"],
        seconds=test["seconds"],
    )


def _metric(name: str, data: Mapping[str, Any]) -> MetricVerdict:
    ends = data["ci95"]
    return replace(_made(MetricVerdict, {"name": name, **data}), ci95=None if ends is None else (ends[0], ends[1]))


def _suggestion(data: Mapping[str, Any]) -> Suggestion:
    ends = data["interval"]
    return replace(_made(Suggestion, data), interval=None if ends is None else (ends[0], ends[1]))


def _curve(data: Any) -> Curve:
    try:
        curve = msgspec.convert(data, Curve)
    except msgspec.ValidationError as error:
        raise ValueError(f"a curve: {error}") from error
    sizes = [*(each.size for each in curve.sizes), *(each.size for each in curve.fitted)]
    if not curve.sizes or not all(0 < size < math.inf for size in sizes):
        raise ValueError("a curve: its sizes are no positive numbers")
    return curve


def _made(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """A dataclass from those of the entries that are its fields."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in data.items() if name in known})


def _record(data: Any) -> Record | None:
    return None if data is None else record_json.from_json(data)


def _beside(folder: Path, name: str | None) -> Path | None:
    """A trace beside the run file; a name that leads elsewhere is none."""
    if name is None:
        return None
    path = folder / name
    return path if path.is_file() and path.resolve().is_relative_to(folder.resolve()) else None
