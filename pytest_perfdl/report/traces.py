"""The trace files of a report: their names, and their bytes collected from the exemplars of a run.

A call with an exemplar on both sides gives three files, `<name>.base.json.gz`, `.new.json.gz` and
`.diff.json.gz`, the last with both steps in one picture. An exemplar that cannot be read is left out and
said; it is no reason to lose the report.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_perfdl.model.errors import ChromeTraceError, TraceError
from pytest_perfdl.report.chrome import regression_trace
from pytest_perfdl.results.run import Exemplars, Result, Run
from pytest_perfdl.trace import read_exemplar

Role = Literal["base", "new", "diff"]

OURS = re.compile(r"[\w.-]+-[0-9a-f]{8}\.(base|new|diff)\.json\.gz")
"""Names that `stem` makes; only such files are cleared out of an older report."""
_NAME_BYTES = 80
_PLAIN = frozenset({"unchanged", "new", "unmeasured"})
"""Verdicts of tests whose traces have nothing to show, unless all are wanted."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file for the report's `traces/` folder."""

    name: str
    role: Role
    data: bytes


@dataclass(frozen=True, slots=True)
class CallTraces:
    """The trace files of one call of a test, and why one is absent."""

    test: str
    call: str
    files: tuple[TraceFile, ...]
    problems: tuple[str, ...] = ()


def stem(test: str, call: str) -> str:
    """A file name for a call: readable, the same everywhere, distinct also where case does not count.

    >>> stem("tests/test_gpt.py::test_step[bf16]", "")
    'test_step-bf16-e983db5a'
    """
    digest = hashlib.sha256(f"{test}\0{call}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = re.findall(r"[A-Za-z0-9_.]+", test.rpartition("::")[2] + (f" {call}" if call else ""))
    return f"{'-'.join(words)[:_NAME_BYTES].strip('.-') or 'test'}-{digest}"


def pattern(result: Result, exemplars: Exemplars) -> str:
    """The names of a call's files in a shell's notation, "test_step-1f0c.{base,new,diff}.json.gz"."""
    name = stem(result.id, exemplars.call)
    if exemplars.base and exemplars.new:
        return f"{name}.{{base,new,diff}}.json.gz"
    return f"{name}.{'base' if exemplars.base else 'new'}.json.gz"


def collect(run: Run) -> dict[str, tuple[CallTraces, ...]]:
    """Read the exemplars that the run asks for and draw both sides of those that have two; by test."""
    return {
        result.id: tuple(_of_call(result, exemplars) for exemplars in kept(run, result))
        for result in run.results
        if kept(run, result)
    }


def kept(run: Run, result: Result) -> tuple[Exemplars, ...]:
    """The exemplars of a test that the run's report holds."""
    wanted = run.traces == "all" or (run.traces == "regressed" and result.judgement.verdict not in _PLAIN)
    return result.exemplars if wanted else ()


def _of_call(result: Result, exemplars: Exemplars) -> CallTraces:
    name = stem(result.id, exemplars.call)
    files: list[TraceFile] = []
    problems: list[str] = []
    sides: tuple[tuple[Role, Path | None], ...] = (("base", exemplars.base), ("new", exemplars.new))
    for role, path in sides:
        if path is None:
            continue
        try:
            files.append(TraceFile(f"{name}.{role}.json.gz", role, read_exemplar(path)))
        except TraceError as error:
            problems.append(f"the {role} trace is left out: {error}")
    if len(files) == 2:
        try:
            both = regression_trace(result, exemplars.call, files[0].data, files[1].data)
            files.append(TraceFile(f"{name}.diff.json.gz", "diff", both))
        except ChromeTraceError as error:
            problems.append(str(error))
        except Exception as error:
            # Whatever a trace may hold that drawing it does not expect: one picture is no reason to lose the report.
            problems.append(f"the picture of both sides cannot be drawn: {type(error).__name__}: {error}")
    return CallTraces(result.id, exemplars.call, tuple(files), tuple(problems))
