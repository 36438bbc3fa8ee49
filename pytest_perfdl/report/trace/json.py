"""A trace's summary as JSON, for other programs.

Times are integer nanoseconds, sizes bytes, shares ratios (0.1 is 10 %); what a trace does not have is null. Numbers of
tables are totals over the trace; the same divided by its steps are in "per_step".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytest_perfdl.analysis.account.transfers import CopyRow, InputFigures
from pytest_perfdl.analysis.efficiency.roofline import RooflineRow
from pytest_perfdl.analysis.overview.device import DeviceFigures
from pytest_perfdl.analysis.overview.findings import TraceIntegrity
from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline
from pytest_perfdl.analysis.overview.summary import StepGroup, StepSummary, TraceSummary
from pytest_perfdl.analysis.overview.tables import KernelRow, LaunchStats, OperatorRow
from pytest_perfdl.analysis.ranks import RankFigures
from pytest_perfdl.machine.utilization import Utilization
from pytest_perfdl.model.json import derived
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.report.trace.tables import step_count
from pytest_perfdl.report.whatif import advice_json, replay_json

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers


SCHEMA = 2
"""Version of this form. Raised when an older reader would misread a newer one."""


def to_json(
    summaries: Sequence[TraceSummary],
    ranks: RankFigures | None,
    advised: Sequence[Answers | None],
    selection: Selection,
) -> dict[str, Any]:
    """Plain data for `json`: of one trace its summary, of several a list of them ("traces") and the "ranks" compared.

    `advised` has an entry for each summary; "replay" and "advice" are as `perfdl whatif` has them. Tables have the
    rows that are selected.
    """
    traces = [_summary(summary, selection) | _advice(each) for summary, each in zip(summaries, advised, strict=True)]
    if ranks is None:
        return {"schema": SCHEMA, **traces[0]}
    return {"schema": SCHEMA, "ranks": ranks_json(ranks), "traces": traces}


def ranks_json(ranks: RankFigures) -> dict[str, Any]:
    """What compares the ranks of a job; `analysis.ranks.figures` says what each field is.

    "waits" and "exposed_waits" are matrices: a row for each rank that waits, a column for each that is waited for, in
    the order of "ranks".
    """
    plain = _plain(ranks)
    return {
        "count": len(ranks.ranks),
        "straggler": plain.pop("straggler"),
        "waits": plain.pop("waits_ns"),
        "exposed_waits": plain.pop("exposed_waits_ns"),
        "overlap": list(ranks.overlap),
        **plain,
    }


def _summary(summary: TraceSummary, selection: Selection) -> dict[str, Any]:
    path, steps = summary.critical_path, step_count(summary)
    return {
        "source": summary.source,
        "events": summary.events,
        "device": summary.device or None,
        "rank": summary.rank,
        "world_size": summary.world_size,
        "bottleneck": summary.bottleneck.text,
        "bottleneck_kind": summary.bottleneck.kind,
        "findings": [*summary.findings, *summary.doubts, *(finding.text for finding in summary.noticed)],
        "steps": _plain(summary.steps),
        "groups": _plain(summary.groups),
        "left_out": [{"step": number, "reason": reason} for number, reason in summary.left_out],
        "gpu": _plain(summary.gpu),
        "kernels": [
            {**_plain(row), "mean_ns": row.total_ns / row.count, "per_step": _divided(row, steps)}
            for row in selection.rows(summary.kernels)
        ],
        **{
            name: [{**_plain(row), "per_step": _divided(row, steps)} for row in selection.rows(rows)]
            for name, rows in (
                ("operators", summary.operators),
                ("shapes", summary.shapes),
                ("modules", summary.modules),
                ("lines", summary.lines),
            )
        },
        "roofline": [
            {
                **_plain(row),
                "efficiency": row.efficiency,
                "flops_per_s": row.flops_per_s,
                "bytes_per_s": row.bytes_per_s,
            }
            for row in selection.rows(summary.roofline)
        ],
        "utilization": _plain(summary.utilization),
        "launches": _plain(summary.launches),
        "copies": _plain(summary.copies),
        "sm_efficiency_est": _plain(summary.sm_efficiency_est),
        "occupancy_est": _plain(summary.occupancy_est),
        "memory": {device.device: _memory(device) for device in summary.memory},
        "input": _plain(summary.input),
        "critical_path": {
            "span_ns": path.span_ns,
            "per_step_ns": path.span_ns / steps,
            "classes": dict(path.by_class),
            "names": _plain(path.by_name),
        },
        "integrity": _plain(summary.integrity),
    }


TOTALS = (
    "count",
    "total_ns",
    "exposed_ns",
    "self_ns",
    "device_self_ns",
    "device_total_ns",
    "kernels",
    "time_ns",
    "bytes",
)
"""Fields of rows that are totals over the trace."""


def _divided(row: KernelRow | OperatorRow, steps: int) -> dict[str, float]:
    """Totals of a row divided by the number of steps."""
    return {name: getattr(row, name) / steps for name in TOTALS if hasattr(row, name)}


def _advice(answers: Answers | None) -> dict[str, Any]:
    """What would make the step faster, and how well the simulation reproduces the trace; null without --advise."""
    return {
        "replay": None if answers is None else replay_json(answers),
        "advice": None if answers is None else [advice_json(each) for each in answers.advice],
    }


def _memory(device: DeviceTimeline) -> dict[str, Any]:
    """Without the timeline itself, which is as long as the trace."""
    return {
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "base_bytes": device.base_bytes,
        "alive_at_peak": _plain(device.alive_at_peak),
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# The form of `perfdl trace --json`, for its schema: what `to_json` and `ranks_json` write.


Kernel = derived("Kernel", KernelRow, more={"mean_ns": float, "per_step": dict[str, float]})
Operator = derived("Operator", OperatorRow, more={"per_step": dict[str, float]})
Roofline = derived("Roofline", RooflineRow, more=dict.fromkeys(("efficiency", "flops_per_s", "bytes_per_s"), float))


class _Memory(msgspec.Struct):
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    base_bytes: int | None
    alive_at_peak: list[dict[str, Any]]


class _CriticalPath(msgspec.Struct):
    span_ns: int
    per_step_ns: float
    classes: dict[str, int]
    names: list[Any] | dict[str, Any]


class _LeftOut(msgspec.Struct):
    step: int
    reason: str


class _Trace(msgspec.Struct):
    source: str
    events: int
    device: str | None
    rank: int | None
    world_size: int | None
    bottleneck: str
    bottleneck_kind: str
    findings: list[str]
    steps: list[StepSummary]
    groups: list[StepGroup]
    """With --step-name, the kinds of steps that it tells apart; figures are of the first."""
    left_out: list[_LeftOut]
    """Steps of the file that no figure is made of."""
    gpu: DeviceFigures | None
    kernels: list[Kernel]  # type: ignore[valid-type]
    operators: list[Operator]  # type: ignore[valid-type]
    shapes: list[Operator]  # type: ignore[valid-type]
    modules: list[Operator]  # type: ignore[valid-type]
    lines: list[Operator]  # type: ignore[valid-type]
    roofline: list[Roofline]  # type: ignore[valid-type]
    utilization: Utilization
    launches: LaunchStats | None
    copies: list[CopyRow]
    sm_efficiency_est: float | None
    occupancy_est: float | None
    memory: dict[str, _Memory]
    input: InputFigures
    critical_path: _CriticalPath
    integrity: TraceIntegrity
    replay: dict[str, Any] | None
    """With --advise."""
    advice: list[dict[str, Any]] | None


class TraceForm(_Trace):
    """Of one trace."""


_Ranks = derived(
    "ComparedRanks",
    RankFigures,
    without=("waits_ns", "exposed_waits_ns"),
    more={"count": int, "waits": list[list[int]], "exposed_waits": list[list[int]], "overlap": list[float | None]},
)


class RanksForm(msgspec.Struct):
    """Of several traces, the ranks of one job."""

    ranks: _Ranks  # type: ignore[valid-type]
    traces: list[_Trace]
