"""Everything that is said about one trace, computed once: what `perfdl trace` prints, writes and draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_perfdl.analysis.account.accounts import ProfileTables, profile_tables
from pytest_perfdl.analysis.account.transfers import CopyRow, InputFigures, copy_figures, input_pipeline
from pytest_perfdl.analysis.efficiency.roofline import (
    RooflineRow,
    occupancy_est,
    peaks_of,
    roofline,
    sm_efficiency_est,
    step_work,
)
from pytest_perfdl.analysis.events.intervals import Steps
from pytest_perfdl.analysis.events.launches import call_tree
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.device import DeviceFigures, device_figures, device_utilization
from pytest_perfdl.analysis.overview.findings import (
    Bottleneck,
    TraceFinding,
    TraceIntegrity,
    bottleneck,
    trace_findings,
    trace_integrity,
)
from pytest_perfdl.analysis.overview.memory_timeline import DeviceTimeline, memory_timeline
from pytest_perfdl.analysis.overview.selection import in_steps, largest_group
from pytest_perfdl.analysis.overview.tables import (
    KernelRow,
    LaunchStats,
    OperatorRow,
    kernel_table,
    launch_stats,
    operator_tables,
)
from pytest_perfdl.analysis.ranks.activity import rank_of
from pytest_perfdl.analysis.waiting.critical_path import CriticalPath, critical_path
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import Utilization, utilization
from pytest_perfdl.trace.model import Trace, device_properties

_WHOLE = "whole trace"
"""Name of the one step of a trace without steps."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step and where its time went."""

    name: str
    wall_ns: int
    """The step's window on the device's clock, or its annotation on a CPU-only trace."""
    account: Mapping[str, int]
    """Nanoseconds by class; adds up to `wall_ns` exactly."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The steps of one kind, where `Trace.step_name` tells kinds apart."""

    group: str
    """What it captures of their names."""
    steps: int
    mean_ns: float
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The figures of one trace; each field's type says how it is defined."""

    source: str
    events: int
    device: str
    """Name of the first accelerator in the file; empty where it names none."""
    rank: int | None
    world_size: int | None
    steps: tuple[StepSummary, ...]
    groups: tuple[StepGroup, ...]
    """First the one that all other figures are of; empty where all steps are of one kind."""
    gpu: DeviceFigures | None
    kernels: tuple[KernelRow, ...]
    operators: tuple[OperatorRow, ...]
    """By name."""
    shapes: tuple[OperatorRow, ...]
    """By name and input shapes; empty if the trace has no shapes."""
    modules: tuple[OperatorRow, ...]
    lines: tuple[OperatorRow, ...]
    roofline: tuple[RooflineRow, ...]
    utilization: Utilization
    """Of the steps as they were profiled, and of the device."""
    launches: LaunchStats | None
    copies: tuple[CopyRow, ...]
    sm_efficiency_est: float | None
    occupancy_est: float | None
    memory: tuple[DeviceTimeline, ...]
    input: InputFigures
    critical_path: CriticalPath
    integrity: TraceIntegrity
    bottleneck: Bottleneck
    left_out: tuple[tuple[int, str], ...]
    """Number and reason of each step of the file that no figure is made of (`Steps.left_out`)."""
    doubts: tuple[str, ...]
    """What is wrong with the steps and the record of the device, one line each (`Steps.findings`)."""
    findings: tuple[str, ...]
    """What the reader repaired or found odd, one line each."""
    noticed: tuple[TraceFinding, ...]
    """What the analyses noticed beside the bottleneck, the largest share first."""

    @property
    def has_steps(self) -> bool:
        """Whether the trace has steps, and not one window over everything."""
        return any(step.name != _WHOLE for step in self.steps)


def summarize(trace: Trace, peaks: Peaks | None = None) -> TraceSummary:
    """Run every analysis over a trace.

    Parameters
    ----------
    trace
        Any trace, with or without steps, devices, shapes, stacks or memory events. Where steps of it are left out,
        or work from before the first one runs in it, figures are of the events of the other steps; where steps are of
        several kinds (`Steps.groups`), of those of the first.
    peaks
        What the hardware can do, for the roofline; by default what the trace's device is known for.
    """
    whole, trace = trace, in_steps(trace)
    kinds = steps_of(whole)
    steps = steps_of(trace)
    tree = call_tree(trace)
    tables = profile_tables(trace)
    path = critical_path(trace)
    bound = bottleneck(trace)
    operators = operator_tables(trace)
    rank, world_size = rank_of(trace)
    # Of a device whose record is damaged in every step there are no figures, only what is in the file.
    usable = bool(steps.windows) or not steps.left_out
    return TraceSummary(
        source=trace.source,
        events=len(whole),
        device=next((str(device.get("name", "")) for device in device_properties(trace)), ""),
        rank=rank,
        world_size=world_size,
        steps=_steps(tables, steps),
        groups=_groups(kinds),
        gpu=device_figures(trace) if usable else None,
        kernels=kernel_table(trace),
        operators=operators["name"],
        shapes=operators["shapes"],
        modules=operators["module"],
        lines=operators["line"],
        roofline=roofline(trace, peaks),
        utilization=trace_utilization(trace, peaks) if usable else Utilization({}),
        launches=launch_stats(trace) if usable else None,
        copies=copy_figures(trace),
        sm_efficiency_est=sm_efficiency_est(trace) if usable else None,
        occupancy_est=occupancy_est(trace) if usable else None,
        memory=memory_timeline(trace),
        input=input_pipeline(trace),
        critical_path=path,
        integrity=trace_integrity(whole, len(tree.bled) if whole is trace else None),
        bottleneck=bound,
        left_out=steps.left_out,
        doubts=tuple(filter(None, (largest_group(kinds), *(finding.message for finding in steps.findings)))),
        findings=trace.findings,
        noticed=trace_findings(trace, bound.kind),
    )


def trace_utilization(trace: Trace, peaks: Peaks | None = None) -> Utilization:
    """The figures that a perf test has of its steps, with the profiler's own time in the step's."""
    tables = profile_tables(trace)
    mean_ns = sum(tables.step_ns) / tables.steps if tables.steps else 0.0
    found = utilization(step_work(trace), tables.steps, mean_ns, peaks or peaks_of(trace))
    return replace(found, values={**found.values, **device_utilization(trace)})


def _steps(tables: ProfileTables, steps: Steps) -> tuple[StepSummary, ...]:
    return tuple(
        StepSummary(window.name or _WHOLE, wall, account)
        for window, wall, account in zip(steps.windows, tables.step_ns, tables.accounts, strict=True)
    )


def _groups(steps: Steps) -> tuple[StepGroup, ...]:
    found = steps.groups
    if len(found) < 2:
        return ()
    times = {group: [window.window_ns for window in windows] for group, windows in found.items()}
    return tuple(StepGroup(group, len(ns), sum(ns) / len(ns), min(ns), max(ns)) for group, ns in times.items())
