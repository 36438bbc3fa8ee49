"""The built-in metrics: one table, from which limits, verdicts, reports and documentation are made.

`run.assemble` computes them from the results of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_perfdl.model.record import Better

COUNT_SCOPE = ("torch", "flags", "device")
"""Context fields that must be equal for operators, launches and FLOPs to be compared exactly."""
BYTE_SCOPE = (*COUNT_SCOPE, "threads", "cpu_capability", "allocator")
"""The same for sizes and allocations."""
CONTEXT = ("python", "os", *BYTE_SCOPE, "cuda", "cudnn", "driver")
"""All context fields; `allocator` and the last three only if steps use a device."""


@dataclass(frozen=True, slots=True)
class TimedMetric:
    """A metric that is measured and compared statistically."""

    what: str
    """Description for the documentation."""
    unit: str = "ns"
    """Base unit, in which values are stored."""
    better: Better = "lower"
    is_utilization: bool = False
    """Whether it measures utilization, which may get worse when unnecessary work is removed."""
    is_judged: bool = True
    """Whether it can have a limit, because higher or lower values are better."""
    label: str = ""
    """A few words for reports."""


@dataclass(frozen=True, slots=True)
class CountedMetric:
    """A metric that is exact in a given context, and compared exactly; lower values are better."""

    what: str
    unit: str = "1"
    scope: tuple[str, ...] = COUNT_SCOPE
    """Context fields that must be equal."""
    per_step: bool = True
    """Whether it is a mean per step, so that reports show it per step."""
    reproducible: bool = True
    """Whether the same code always gives the same value, so that another value on the baseline's code means that the
    comparison is broken."""
    of_device: bool = False
    """Whether it is absent, rather than 0, where no device is used."""
    label: str = ""
    """A few words for reports."""


def _share(description: str, better: Better = "higher", *, label: str) -> TimedMetric:
    """A utilization metric in percent."""
    return TimedMetric(description, "%", better, is_utilization=True, label=label)


CASES, CASE_TIME, GROUP_TIME = "cases", "case_time", "group_time"
"""Of tables only: the number of cases, and the times that limits on single cases and on groups of cases are about."""
GROWTH = "growth"
"""This metric exists only for calls whose memory grows."""
OF_MEMORY = ("peak_memory", "static_memory", GROWTH)
"""Bytes that a call allocates and keeps. A job of several ranks has those of the rank with most."""

STEP_TIMES = ("step_time", "block_time")
"""Metrics that are a step's time; what is said of a step is of the first that it has."""

METRICS: Mapping[str, TimedMetric | CountedMetric] = {
    "step_time": TimedMetric(
        "lower quartile of the timed steps, one value per process", label="lower quartile of step times"
    ),
    "block_time": TimedMetric(
        "mean of all timed steps; includes work of every n-th step", label="mean of all step times"
    ),
    "cpu_time": TimedMetric("CPU time of the process per step", label="CPU time per step"),
    "kernel_time": TimedMetric("total duration of the kernels of a step", label="total time of kernels per step"),
    "data_wait": TimedMetric(
        "time per step spent waiting for the batch", label="time spent waiting for the batch per step"
    ),
    "compile_time": TimedMetric(
        "time spent in torch.compile in the warm-up of the call, with empty caches (cold): in the first process of a "
        "side, or in each process if it has a limit",
        label="time in torch.compile in the warm-up, with empty caches (cold)",
    ),
    "throughput": TimedMetric(
        "items per second, for calls with `items=`", "items/s", "higher", label="items per second"
    ),
    CASE_TIME: TimedMetric(
        "time of a call of each case of a `perf.table`: lower quartile of its steps", label="time of a call of a case"
    ),
    GROUP_TIME: TimedMetric(
        "median change of `case_time` over the cases of a table that have a value of an axis or an operator in common",
        label="typical time of a call in a group of cases",
    ),
    "step_p25": TimedMetric("25th percentile of step times", label="25th percentile of step times"),
    "step_p50": TimedMetric("median of step times", label="median of step times"),
    "step_p95": TimedMetric("95th percentile of step times", label="95th percentile of step times"),
    "step_p99": TimedMetric("99th percentile of step times", label="99th percentile of step times"),
    "achieved_flops": TimedMetric(
        "FLOPs of operators with a cost model, divided by step time",
        "flop/s",
        "higher",
        is_utilization=True,
        label="FLOPs per second",
    ),
    "flops_utilization": _share(
        "the same FLOPs, relative to the machine's peak rate for their element types (those of the baseline); "
        "recomputation counts",
        label="FLOPs per second as a share of the peak rate",
    ),
    "mfu": _share(
        "`model_flops=` of a call divided by step time, relative to the machine's peak rate for the main element type",
        label="model FLOPs utilization",
    ),
    "bandwidth_utilization": _share(
        "bytes that operators must move, relative to the bandwidth for their working-set size, divided by step time",
        label="memory traffic as a share of the bandwidth",
    ),
    "roofline": _share(
        "minimum time of operators with a cost model (roofline of the machine), relative to their measured time",
        label="minimum time of operators as a share of their time",
    ),
    "host_overhead": _share(
        "time outside operators (Python, waiting), without profiler overhead, relative to step time",
        "lower",
        label="time outside operators as a share of step time",
    ),
    "cpu_utilization": TimedMetric(
        "CPU time of the process, relative to wall time and threads; busy waiting increases it, so it has no limit",
        "%",
        "higher",
        is_utilization=True,
        is_judged=False,
        label="CPU time as a share of wall time",
    ),
    "device_busy": _share(
        "time during which the device is busy, relative to the device span (first to last event)",
        label="share of time with a busy device",
    ),
    "sm_efficiency": _share(
        "fraction of multiprocessors with a block to run, estimated from launch sizes",
        label="share of multiprocessors in use (estimate)",
    ),
    "occupancy": _share(
        "estimated occupancy of the kernels, weighted by time (upper bound)", label="occupancy of kernels (estimate)"
    ),
    "launch_gap": _share(
        "time per step during which the device is idle because the CPU launches late",
        "lower",
        label="share of the step spent waiting for launches",
    ),
    "tensor_core_share": _share(
        "time of tensor-core kernels (by name), relative to all kernels", label="share of kernel time on tensor cores"
    ),
    "exposed_copies": _share(
        "copies that overlap with neither computation nor communication, relative to the device span",
        "lower",
        label="share of time with copies that do not overlap",
    ),
    "overlap": _share(
        "fraction of communication time that overlaps with computation",
        label="share of communication that overlaps",
    ),
    "exposed_communication": _share(
        "communication that does not overlap with computation, relative to the device span, or for ranks on CPUs "
        "to the profiled steps",
        "lower",
        label="share of time with exposed communication",
    ),
    "rank_spread": TimedMetric(
        "difference per step between the ranks with the most and the least own work; own work is the step less the "
        "waiting for other ranks",
        label="spread of own work over the ranks per step",
    ),
    "collective_wait": TimedMetric(
        "time per step in which a rank waits in a collective for the rank that comes last, and computes nothing; mean "
        "over the ranks",
        label="waiting for other ranks per step",
    ),
    "bus_bandwidth": TimedMetric(
        "bytes per second over the slowest link during collectives, as nccl-tests define it; waiting for other ranks "
        "is left out",
        "B/s",
        "higher",
        is_utilization=True,
        label="bandwidth of collectives",
    ),
    CASES: CountedMetric(
        "number of cases of a `perf.table`, with those that cannot be measured", per_step=False, label="number of cases"
    ),
    "ops": CountedMetric(
        "number of operator calls per step, with those that other operators make", label="operator calls per step"
    ),
    "kernels": CountedMetric(
        "number of kernels per step, without copies and memsets", of_device=True, label="kernels per step"
    ),
    "launches": CountedMetric(
        "number of calls that launch device work", of_device=True, label="launches of device work per step"
    ),
    "flops": CountedMetric(
        "FLOPs per step, from torch.utils.flop_counter; a multiply-add counts as two",
        "flop",
        label="floating-point operations per step",
    ),
    "allocations": CountedMetric(
        "number of allocations per step", scope=BYTE_SCOPE, reproducible=False, label="memory allocations per step"
    ),
    "alloc_bytes": CountedMetric(
        "bytes allocated per step", "B", BYTE_SCOPE, reproducible=False, label="bytes allocated per step"
    ),
    "peak_memory": CountedMetric(
        "peak of allocated bytes; of several devices the sum of their peaks",
        "B",
        BYTE_SCOPE,
        per_step=False,
        reproducible=False,
        label="peak of allocated memory",
    ),
    "static_memory": CountedMetric(
        "bytes of parameters and optimizer state",
        "B",
        BYTE_SCOPE,
        per_step=False,
        reproducible=False,
        label="parameters and optimizer state",
    ),
    GROWTH: CountedMetric(
        "bytes that every step leaves allocated after garbage collection; absent if one of the last five steps leaves "
        "none",
        "B",
        BYTE_SCOPE,
        reproducible=False,
        label="memory that every step leaves allocated",
    ),
    "h2d_bytes": CountedMetric(
        "bytes copied to the device per step", "B", of_device=True, label="bytes copied to the device per step"
    ),
    "collectives": CountedMetric(
        "number of collectives and messages per step, all ranks together", label="collectives per step"
    ),
    "collective_bytes": CountedMetric(
        "bytes of the collectives and messages per step, all ranks together; as nccl-tests count them",
        "B",
        label="bytes of collectives per step",
    ),
    "recompiles": CountedMetric(
        "compilations by torch.compile in the timed steps of the call",
        per_step=False,
        reproducible=False,
        label="compilations in the timed steps",
    ),
    "graph_breaks": CountedMetric(
        "graph breaks of torch.compile", per_step=False, reproducible=False, label="graph breaks of torch.compile"
    ),
}
"""By name, in the order of the documentation. Custom metrics have no entry."""


def general(metric: str) -> str:
    """A metric's name without its call's.

    >>> general("forward.ops"), general("ops")
    ('ops', 'ops')
    """
    return metric.rpartition(".")[2]


def of(metric: str) -> TimedMetric | CountedMetric | None:
    """The entry of a metric by its full name, such as `forward.ops`; `None` for an author's own.

    >>> of("forward.ops").unit, of("forward.tokens")
    ('1', None)
    """
    return METRICS.get(general(metric))


def label(metric: str) -> str:
    """What a metric is, in a few words, by its full name; empty for an author's own.

    >>> label("forward.block_time"), label("forward.tokens")
    ('mean of all step times', '')
    """
    found = of(metric)
    return "" if found is None else found.label


def unit(metric: str) -> str | None:
    """Base unit of a metric by its full name; `None` for one that has no entry."""
    found = of(metric)
    return None if found is None else found.unit


def better(metric: str) -> Better:
    """Which way a metric is better, by its full name; lower where it has no entry.

    >>> better("forward.throughput"), better("ops")
    ('higher', 'lower')
    """
    found = of(metric)
    return found.better if isinstance(found, TimedMetric) else "lower"


def is_judged(metric: str) -> bool:
    """Whether a metric, by its full name, can have a limit or a budget.

    >>> is_judged("step_time"), is_judged("forward.cpu_utilization")
    (True, False)
    """
    found = of(metric)
    return not isinstance(found, TimedMetric) or found.is_judged


def is_utilization(metric: str) -> bool:
    """Whether a metric, by its full name, says how well the machine is used.

    >>> is_utilization("forward.roofline"), is_utilization("step_time")
    (True, False)
    """
    found = of(metric)
    return isinstance(found, TimedMetric) and found.is_utilization


def needs_profile(metric: str) -> bool:
    """Whether a timed metric, by its full name, is known of profiled steps only.

    >>> needs_profile("forward.kernel_time"), needs_profile("step_time")
    (True, False)
    """
    return is_utilization(metric) or general(metric) in ("kernel_time", "rank_spread", "collective_wait")


def is_of_device(metric: str) -> bool:
    """Whether a metric, by its full name, is absent without a device.

    >>> is_of_device("forward.kernels"), is_of_device("ops")
    (True, False)
    """
    found = of(metric)
    return isinstance(found, CountedMetric) and found.of_device


def is_memory(metric: str) -> bool:
    """Whether a metric, by its full name, is what a call allocates and keeps, in bytes.

    >>> is_memory("forward.peak_memory"), is_memory("h2d_bytes")
    (True, False)
    """
    return general(metric) in OF_MEMORY


def is_zero_if_absent(metric: str) -> bool:
    """Whether a metric, by its full name, is 0 in calls that do not have it.

    >>> is_zero_if_absent("growth"), is_zero_if_absent("peak_memory")
    (True, False)
    """
    return general(metric) == GROWTH


def scope(metric: str) -> tuple[str, ...]:
    """Names of the context that must be equal for a counted metric to compare exactly, by its full name.

    A metric that is not known to need less is exact only in the narrower scope.

    >>> scope("ops"), scope("forward.peak_memory")[3:]
    (('torch', 'flags', 'device'), ('threads', 'cpu_capability', 'allocator'))
    """
    found = of(metric)
    return found.scope if isinstance(found, CountedMetric) else BYTE_SCOPE
