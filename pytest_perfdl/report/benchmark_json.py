"""A run in the JSON of pytest-benchmark 5, for `pytest-benchmark compare` and other programs that read that file.

What pytest-benchmark calls a round is a process here: `data` has the `step_time` of every process, and all statistics
are of these values. Steps of one process are not independent, so they are no rounds.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_perfdl.model.cases import axes_of
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.stats.summaries import summarize
from pytest_perfdl.system.git import git

FORMAT = "5.0.0"
"""The version of pytest-benchmark that has every field."""
_TIME = "step_time"


def to_benchmark_json(run: Run, parameters: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """The run as pytest-benchmark's JSON; tests without a time are left out.

    Parameters
    ----------
    parameters
        Arguments of parametrized tests, by node id.
    """
    return {
        "machine_info": _machine_info(run),
        "commit_info": _commit_info(run.root, run.commit),
        "benchmarks": [each for result in run.results for each in _benchmarks(result, parameters)],
        "datetime": run.date.replace("Z", "+00:00"),
        "version": FORMAT,
    }


def _benchmarks(result: Result, arguments: Mapping[str, Mapping[str, object]]) -> Iterator[dict[str, Any]]:
    """One for each `perf(...)` call, and for each case of a table, which may be a test itself."""
    record = result.new
    if record is None:
        return
    series, parameters = record.metrics(), arguments.get(result.id)
    for metric in result.metrics:
        call, _, own = metric.name.rpartition(".")
        if own != _TIME or not metric.of_step or metric.name not in series:
            continue
        values = [new for _, new in metric.pairs] or series[metric.name].values
        prefix = f"{call}." if call else ""
        others = {
            other.name.removeprefix(prefix): other.new
            for other in result.metrics
            if other.of_step and other.name.rpartition(".")[0] == call and _is_finite(other.new)
        }
        yield _benchmark(
            (result.id, f".{call}" if call else ""),
            (parameters, None if parameters is None else _param(result.id)),
            {"verdict": result.verdict, **others},
            values,
            record.plan.steps * record.plan.loops.get(call, 1),
        )
    compared = {case.id: case for case in result.judgement.cases}
    for case in record.table.cases if record.table is not None else ():
        told = compared.get(case.id)
        test = f"{result.id.partition('::')[0]}::{case.id}" if case.definition else ""
        yield _benchmark(
            (test, "") if test else (result.id, f"[{case.id}]"),
            (arguments.get(test), _param(test)) if test else ({**(parameters or {}), **axes_of(case.id)}, case.id),
            {} if told is None else {"verdict": told.verdict, **told.rates},
            case.ns if told is None or told.time_ns is None else [told.time_ns],
            record.plan.steps * case.loops,
        )


def _param(nodeid: str) -> str | None:
    """The parameters in a node id, as pytest writes them; `None` without any."""
    _, bracket, param = nodeid.partition("[")
    return param[:-1] if bracket else None


def _name(nodeid: str) -> str:
    """The last part of a node id, with its parameters."""
    before, bracket, param = nodeid.partition("[")
    return before.rpartition("::")[2] + bracket + param


def _benchmark(
    named: tuple[str, str],
    parameters: tuple[Mapping[str, object] | None, str | None],
    about: Mapping[str, object],
    values: Sequence[float],
    iterations: int,
) -> dict[str, Any]:
    """A benchmark.

    Parameters
    ----------
    named
        The id of its test, and what tells it from the test's other benchmarks.
    parameters
        Its parameters by name, and as one text.
    values
        Nanoseconds, one a process.
    iterations
        Calls that each of them is of.
    """
    params, param = parameters
    return {
        "group": None,
        "name": _name(named[0]) + named[1],
        "fullname": named[0] + named[1],
        "params": None if params is None else {key: _plain(value) for key, value in params.items()},
        "param": param,
        "extra_info": about,
        "options": {"disable_gc": False, "timer": "perf_counter", "min_rounds": len(values), "warmup": True},
        "stats": {**summarize([value / 1e9 for value in values]), "iterations": iterations},
    }


def _machine_info(run: Run) -> dict[str, Any]:
    return {
        "node": platform.node(),
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_compiler": platform.python_compiler(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "python_build": list(platform.python_build()),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {"brand_raw": str(run.key.parts.get("cpu", "")), "count": os.cpu_count()},
        "machine_id": run.machine_id,
    }


def _commit_info(root: Path, commit: str | None) -> dict[str, Any]:
    def ask(*arguments: str) -> str | None:
        return None if commit is None else (git(root, *arguments) or "").strip() or None

    branch = ask("rev-parse", "--abbrev-ref", "HEAD")
    return {
        "id": commit or "unversioned",
        "time": ask("show", "-s", "--format=%cI", "HEAD"),
        "author_time": ask("show", "-s", "--format=%aI", "HEAD"),
        "dirty": ask("status", "--porcelain", "--untracked-files=no") is not None,
        "project": root.name,
        "branch": "(unknown)" if branch is None else "(detached head)" if branch == "HEAD" else branch,
    }


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _plain(value: object) -> object:
    """The value where JSON has it, else its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return value if isinstance(value, (str, int, bool, type(None))) else repr(value)
