"""The run file: everything a run found, as JSON, for other programs.

Times are integer nanoseconds, sizes bytes, shares and effects ratios (0.1 is 10 %); what cannot be stated is
null, never NaN. `record` holds what was measured, so that a run on another machine can become a baseline, and
`base_record` what it was held against, so that `perfdl report` can make the page again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from pytest_perfdl.model import record_json
from pytest_perfdl.model.record import Record
from pytest_perfdl.model.run_json import SCHEMA as SCHEMA
from pytest_perfdl.report import memory
from pytest_perfdl.report.files import write_files
from pytest_perfdl.report.traces import file_name, kept, roles_of
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import Cause, Judgement, MetricVerdict


def to_json(run: Run) -> dict[str, Any]:
    """Plain data for `json`: finite numbers, strings, lists and dicts only."""
    data = {
        "schema": SCHEMA,
        "date": run.date,
        "commit": run.commit,
        "repository": run.repository,
        "key": {"slug": run.key.slug, "parts": dict(run.key.parts)},
        "context": dict(run.context),
        "judged": run.judged,
        "seconds": run.seconds,
        "notes": list(run.notes),
        "perf_dir": run.perf_dir,
        "invocation": dataclasses.asdict(run.invocation),
        "settings": dict(run.settings),
        "peaks": {key: dataclasses.asdict(each) for key, each in run.peaks.items()},
        "shard": None if run.shard is None else dataclasses.asdict(run.shard),
        "counts": run.counts(),
        "waivers": dataclasses.asdict(run.waivers),
        "tests": [_test(run, result) for result in run.results],
    }
    return _finite(data)  # type: ignore[no-any-return]


def without_records(data: dict[str, Any]) -> dict[str, Any]:
    """The run file's data less what a page shows in a form of its own: records, operators, accounts, repeats."""
    tests = []
    for test in data["tests"]:
        kept = {name: value for name, value in test.items() if name not in _OF_THE_PAGE}
        kept["metrics"] = {
            name: {entry: value for entry, value in metric.items() if entry not in ("base_values", "new_values")}
            for name, metric in test["metrics"].items()
        }
        tests.append(kept)
    return {**data, "tests": tests}


_OF_THE_PAGE = frozenset({"record", "base_record", "base_now", "operators", "rank_times", "breakdowns", "memory"})


def dump(data: dict[str, Any]) -> bytes:
    """The bytes of a run file: ASCII, a line for each test, with a newline at the end."""
    head = json.dumps({**data, "tests": []}, indent=1, allow_nan=False)
    tests = ",\n".join(json.dumps(test, allow_nan=False) for test in data["tests"])
    start, end = head.rsplit('"tests": []', 1)
    return f'{start}"tests": [\n{tests}\n ]{end}\n'.encode("ascii")


def write_json(run: Run, path: Path) -> None:
    """Write the run file.

    Raises
    ------
    ReportError
        When it cannot be written; an earlier file is then still whole.
    """
    write_files({path: dump(to_json(run))})


def _test(run: Run, result: Result) -> dict[str, Any]:
    judgement = result.judgement
    new, base = _values(result.new), _values(result.base)
    return {
        "id": result.id,
        "file": result.file,
        "line": result.line,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "fails": result.fails,
        "updated": result.updated,
        "caught_by": _caught_by(judgement),
        "metrics": {
            metric.name: _metric(metric, base.get(metric.name, []), new.get(metric.name, []))
            for metric in judgement.metrics
        },
        "rounds": judgement.rounds,
        "environment": [{"name": metric.name, **_metric(metric, [], [])} for metric in judgement.environment],
        "work": [dataclasses.asdict(each) for each in judgement.work],
        "operators": [dataclasses.asdict(each) for each in judgement.operators],
        "ranks": 0 if result.new is None else result.new.plan.ranks,
        "rank_times": [dataclasses.asdict(each) for each in judgement.ranks],
        "breakdowns": [dataclasses.asdict(each) for each in judgement.breakdowns],
        "blame": blame(judgement),
        "memory": memory.to_json(judgement.memory),
        "growth": memory.growth_to_json(judgement),
        "definition": [dataclasses.asdict(each) for each in judgement.definition],
        "source_diffs": [dataclasses.asdict(each) for each in judgement.source_diffs],
        "suggestions": [dataclasses.asdict(each) for each in result.suggestions],
        "curves": [dataclasses.asdict(each) for each in result.curves],
        "integrity": [dataclasses.asdict(finding) for finding in judgement.integrity],
        "context_changes": [
            {"name": name, "base": base_value, "new": new_value}
            for name, base_value, new_value in judgement.context_changes
        ],
        "base_path": result.base_path,
        "against": result.against,
        "against_python": result.against_python,
        "base_repeats": None if result.base is None else result.base.repeats,
        "new_repeats": None if result.new is None else result.new.repeats,
        "seconds": result.seconds,
        "traces": [
            {
                "call": exemplars.call,
                **{role: f"traces/{file_name(result.id, exemplars.call, role)}" for role in roles_of(exemplars)},
            }
            for exemplars in kept(run, result)
        ],
        "record": None if result.new is None else record_json.to_json(result.new),
        "base_record": None if result.base is None else record_json.to_json(result.base),
        "base_now": None if result.base_now is None else record_json.to_json(result.base_now),
    }


def _metric(metric: MetricVerdict, base: list[float], new: list[float]) -> dict[str, Any]:
    if metric.pairs:
        base, new = [list(side) for side in zip(*metric.pairs, strict=True)]
    data = dataclasses.asdict(metric) | {"base_values": base, "new_values": new}
    del data["name"], data["pairs"]
    if metric.unit == "ns":
        data |= {name: _integer(data[name]) for name in ("base", "new", "stored")}
        data |= {name: [_integer(value) for value in data[name]] for name in ("base_values", "new_values")}
    return data


def blame(judgement: Judgement) -> list[dict[str, Any]]:
    """The causes of all kinds: those of memory first where a peak is what failed, and no time."""
    times = [_cause(cause) for cause in judgement.blame]
    bytes_ = memory.causes_to_json(judgement.memory)
    return [*bytes_, *times] if memory.comes_first(judgement) else [*times, *bytes_]


def _cause(cause: Cause) -> dict[str, Any]:
    return dataclasses.asdict(cause) | {"status": cause.status, "delta_ns": cause.delta_ns}


def _caught_by(judgement: Judgement) -> list[str]:
    """Which kind of evidence told: `time` for timed metrics, `counts` for counted ones."""
    telling = [metric.kind for metric in judgement.metrics if metric.verdict in ("regressed", "changed", "suspect")]
    return [word for word, kind in (("time", "timed"), ("counts", "counted")) if kind in telling]


def _values(side: Record | None) -> dict[str, list[float]]:
    return {} if side is None else {name: list(series.values) for name, series in side.metrics().items()}


def _integer(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
