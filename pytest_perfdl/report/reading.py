"""A run file read again: what `perfdl report` makes the page from, without measuring anything.

What the file's form does not hold (budgets' own words, say) is not needed for the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.model import run_json
from pytest_perfdl.model.errors import RecordError, ReportError, RunFileError
from pytest_perfdl.model.memory import MemoryChange
from pytest_perfdl.model.record import Finding, Key, Record
from pytest_perfdl.model.record_json import GitHash, KeyForm, ScalarForm, converted
from pytest_perfdl.model.run_json import RunFile, RunTest
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.results.curve import JudgedCurve
from pytest_perfdl.results.ranks import RankComparison
from pytest_perfdl.results.run import Exemplars, Result, Run, Suggestion, WaiverFile
from pytest_perfdl.results.verdict import (
    Cause,
    Judgement,
    MetricVerdict,
    OperatorSides,
    SourceDiff,
    StepBreakdown,
    Verdict,
    WorkChange,
)


class _RunForm(msgspec.Struct):
    key: KeyForm
    context: dict[str, ScalarForm]
    perf_dir: str
    date: str
    commit: GitHash | None
    seconds: float
    judged: bool
    notes: list[str]
    invocation: Invocation | None = None
    """Not in files of before it was noted."""
    settings: dict[str, str] = {}
    peaks: dict[str, Peaks] = {}
    shard: Shard | None = None
    waivers: WaiverFile = msgspec.field(default_factory=WaiverFile)
    repository: Annotated[str, msgspec.Meta(pattern=r"^(https://[\w.-]+/[\w.-]+/[\w.-]+)?\Z")] = ""


class _ChangeForm(msgspec.Struct):
    name: str
    base: str
    new: str


class _ValuesForm(msgspec.Struct):
    base_values: list[float] = []
    new_values: list[float] = []


class _ResultForm(msgspec.Struct):
    id: str
    file: str
    line: int
    verdict: Verdict
    reason: str
    fails: bool
    updated: bool
    metrics: dict[str, dict[str, Any]]
    blame: list[dict[str, Any]]
    integrity: tuple[Finding, ...]
    context_changes: list[_ChangeForm]
    base_path: str
    seconds: float
    against: str = ""
    against_python: str = ""
    source_diffs: tuple[SourceDiff, ...] = ()
    definition: tuple[SourceDiff, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    curves: list[Any] = []
    environment: list[dict[str, Any]] = []
    rounds: str = ""
    work: tuple[WorkChange, ...] = ()
    memory: tuple[MemoryChange, ...] = ()
    operators: tuple[OperatorSides, ...] = ()
    rank_times: tuple[RankComparison, ...] = ()
    breakdowns: tuple[StepBreakdown, ...] = ()


def read_run(path: Path, report_dir: Path) -> Run:
    """The run that a run file tells of, with the traces that lie in `traces/` beside it, to be written elsewhere.

    Raises
    ------
    ReportError
        When it cannot be read or is no run file that this version knows.
    """
    place = ""
    try:
        file = run_json.read(path)
        form = converted(file.data, _RunForm)
        results = []
        for number, test in enumerate(file.tests):
            place = f"tests[{number}] "
            results.append(_result(test, file))
    except RunFileError as error:
        raise ReportError(str(error)) from error
    except RecordError as error:
        raise ReportError(f"{path} is damaged: {place}{error}") from error
    return Run(
        root=Path.cwd(),
        key=Key(form.key.slug, form.key.parts),
        context=form.context,
        results=tuple(results),
        perf_dir=form.perf_dir,
        report_dir=report_dir,
        date=form.date,
        commit=form.commit,
        seconds=form.seconds,
        judged=form.judged,
        notes=tuple(form.notes),
        invocation=form.invocation or _guessed(results),
        settings=form.settings,
        peaks=form.peaks,
        repository=form.repository,
        traces="all",
        shard=form.shard,
        waivers=form.waivers,
    )


def _guessed(results: Sequence[Result]) -> Invocation:
    """How pytest was called, as far as the results tell."""
    first = next((result for result in results if result.other_side), None)
    given = {} if first is None else {"--perf-against": first.against, "--perf-against-python": first.against_python}
    return Invocation(options=tuple((flag, value) for flag, value in given.items() if value))


def with_history(runs: Sequence[Run]) -> Run:
    """The last of several runs by their dates, each of its tests with what the earlier ones measured like it."""
    *earlier, last = sorted(runs, key=lambda run: run.date)
    return replace(last, results=tuple(replace(one, history=_before(one, earlier)) for one in last.results))


def _before(result: Result, earlier: Sequence[Run]) -> tuple[Record, ...]:
    return tuple(
        one.new
        for run in earlier
        for one in run.results
        if one.id == result.id and one.new is not None and (result.new is None or _is_like(one.new, result.new))
    )


def _is_like(one: Record, other: Record) -> bool:
    """Whether two records were measured on one machine and in one way."""
    return one.key.slug == other.key.slug and one.plan.shape == other.plan.shape and one.test_hash == other.test_hash


def _result(test: RunTest, file: RunFile) -> Result:
    form = converted(test.data, _ResultForm)
    judgement = Judgement(
        test=form.id,
        verdict=form.verdict,
        reason=form.reason,
        metrics=tuple(_metric({**each, "name": name}) for name, each in form.metrics.items()),
        rounds=form.rounds,
        environment=tuple(map(_metric, form.environment)),
        blame=tuple(converted(each, Cause) for each in form.blame if each.get("kind") != "memory"),
        memory=form.memory,
        work=form.work,
        operators=form.operators,
        ranks=form.rank_times,
        breakdowns=form.breakdowns,
        integrity=form.integrity,
        context_changes=tuple((each.name, each.base, each.new) for each in form.context_changes),
        source_diffs=form.source_diffs,
        definition=form.definition,
    )
    return Result(
        id=form.id,
        file=form.file,
        line=form.line,
        judgement=judgement,
        fails=form.fails,
        new=test.record,
        base=test.base_record,
        base_now=test.base_now,
        base_path=form.base_path,
        against=form.against,
        against_python=form.against_python,
        exemplars=tuple(
            Exemplars(
                each.call,
                file.beside(each.base),
                file.beside(each.new),
                base_ranks=tuple(filter(None, (file.beside(each.base_ranks),))),
                new_ranks=tuple(filter(None, (file.beside(each.ranks),))),
            )
            for each in test.traces
        ),
        suggestions=form.suggestions,
        curves=tuple(map(_curve, form.curves)),
        updated=form.updated,
        seconds=form.seconds,
    )


def _metric(data: dict[str, Any]) -> MetricVerdict:
    # The screen was of earlier versions.
    metric = converted({**data, "evidence": None} if data.get("evidence") == "screen" else data, MetricVerdict)
    if metric.evidence != "paired":
        return metric
    values = converted(data, _ValuesForm)
    # Earlier versions kept the values of the stored processes here, of which there are not as many on both sides.
    both = len(values.base_values) == len(values.new_values) == metric.rounds
    return replace(metric, pairs=tuple(zip(values.base_values, values.new_values, strict=True)) if both else ())


def _curve(data: Any) -> JudgedCurve:
    try:
        curve = converted(data, JudgedCurve)
    except RecordError as error:
        raise RecordError(f"has a curve that {error}") from error
    sizes = [*(each.size for each in curve.sizes), *(each.size for each in curve.fitted)]
    if not curve.sizes or not all(0 < size < math.inf for size in sizes):
        raise RecordError("has a curve with a size that is not a positive number")
    return curve
