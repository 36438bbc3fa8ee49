"""The form of the run file, for its schema: what `json.to_json` writes."""

from __future__ import annotations

from typing import Any

import msgspec

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.machine.peaks import Peaks
from pytest_perfdl.model.json_forms import derived
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.record_json import KeyForm, RecordForm, ScalarForm
from pytest_perfdl.results.curve import JudgedCurve
from pytest_perfdl.results.ranks import RankComparison
from pytest_perfdl.results.run import Suggestion, WaiverFile
from pytest_perfdl.results.verdict import (
    MetricVerdict,
    OperatorSides,
    SourceDiff,
    StepBreakdown,
    Verdict,
    WorkChange,
)

Metric = derived(
    "Metric",
    MetricVerdict,
    without=("name", "pairs"),
    more={"base_values": list[float], "new_values": list[float]},
)
EnvironmentMetric = derived(
    "EnvironmentMetric",
    MetricVerdict,
    without=("pairs",),
    more={"base_values": list[float], "new_values": list[float]},
)


class _Record(RecordForm, kw_only=True):
    schema: int


class _ContextChange(msgspec.Struct):
    name: str
    base: str
    new: str


class _Traces(msgspec.Struct):
    call: str
    base: str | msgspec.UnsetType = msgspec.UNSET
    new: str | msgspec.UnsetType = msgspec.UNSET
    diff: str | msgspec.UnsetType = msgspec.UNSET
    speedscope: str | msgspec.UnsetType = msgspec.UNSET
    base_ranks: str | msgspec.UnsetType = msgspec.UNSET
    """All ranks of the baseline in one trace, for a test with ranks."""
    ranks: str | msgspec.UnsetType = msgspec.UNSET
    """All current ranks in one trace."""


class _Test(msgspec.Struct):
    id: str
    file: str
    line: int
    verdict: Verdict
    reason: str
    fails: bool
    updated: bool
    caught_by: list[str]
    metrics: dict[str, Metric]  # type: ignore[valid-type]
    rounds: str
    environment: list[EnvironmentMetric]  # type: ignore[valid-type]
    work: list[WorkChange]
    operators: list[OperatorSides]
    breakdowns: list[StepBreakdown]
    blame: list[dict[str, Any]]
    """Causes of times and of memory, which have different fields."""
    memory: list[dict[str, Any]]
    growth: list[dict[str, Any]]
    source_diffs: list[SourceDiff]
    suggestions: list[Suggestion]
    curves: list[JudgedCurve]
    integrity: list[Finding]
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
    ranks: int = 0
    """Number of ranks; 0 without a process group. Not in files of before there were any, as the next ones."""
    definition: list[SourceDiff] = []
    rank_times: list[RankComparison] = []


class RunForm(msgspec.Struct):
    """A run file."""

    date: str
    commit: str | None
    repository: str
    key: KeyForm
    context: dict[str, ScalarForm]
    judged: bool
    seconds: float
    notes: list[str]
    perf_dir: str
    invocation: Invocation
    peaks: dict[str, Peaks]
    counts: dict[Verdict, int]
    waivers: WaiverFile
    tests: list[_Test]
    settings: dict[str, str] = {}
    """Not in files of before it was noted."""
