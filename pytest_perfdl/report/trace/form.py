"""The form of `perfdl trace --json`, for its schema: what `json.to_json` writes."""

from __future__ import annotations

from typing import Any

import msgspec

from pytest_perfdl.analysis.account.inputs import InputFigures
from pytest_perfdl.analysis.account.transfers import CopyRow
from pytest_perfdl.analysis.efficiency.roofline import RooflineRow
from pytest_perfdl.analysis.overview.device_figures import DeviceFigures
from pytest_perfdl.analysis.overview.integrity import TraceIntegrity
from pytest_perfdl.analysis.overview.kernel_tables import KernelRow
from pytest_perfdl.analysis.overview.launch_stats import LaunchStats
from pytest_perfdl.analysis.overview.operator_tables import OperatorRow
from pytest_perfdl.analysis.overview.summary import StepGroup, StepSummary
from pytest_perfdl.analysis.ranks import RankFigures
from pytest_perfdl.machine.utilization import Utilization
from pytest_perfdl.model.json import derived

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
