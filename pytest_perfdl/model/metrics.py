"""The metrics that every project has: one entry each, which limits, judgement, reports and documentation read.

What measures them is in `measure`: `assemble` computes each of these from a call's results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_perfdl.model.record import Better

COUNT_SCOPE = ("torch", "flags", "device")
"""Context in which operators, launches and arithmetic are exact."""
BYTE_SCOPE = (*COUNT_SCOPE, "threads", "cpu_capability")
"""Context in which sizes and allocations are exact too."""
CONTEXT = ("python", "os", *BYTE_SCOPE, "cuda", "cudnn", "driver")
"""Everything that a record's context may hold; the last three where steps use a device."""


@dataclass(frozen=True, slots=True)
class TimedMetric:
    """A metric that is measured and judged with statistics."""

    what: str
    """As the documentation says it."""
    unit: str = "ns"
    """Base unit, in which values are stored."""
    better: Better = "lower"
    is_utilization: bool = False
    """Whether it says how well the machine is used: removing work that was wasted may worsen it."""
    is_judged: bool = True
    """Whether it can have a limit: more of it is better, or less is."""


@dataclass(frozen=True, slots=True)
class CountedMetric:
    """A metric that is exact within a context, and compared exactly; less is better."""

    what: str
    unit: str = "1"
    scope: tuple[str, ...] = COUNT_SCOPE
    """Names of the context that must be equal."""
    per_step: bool = True
    """Whether it is a mean per step, so that reports write "a step" after it."""
    reproducible: bool = True
    """Whether the same code gives it again whatever else the machine does, so that another value on the baseline's own
    code says that the pair is broken."""


def _share(description: str, better: Better = "higher") -> TimedMetric:
    """A metric of how well the machine is used, in percent."""
    return TimedMetric(description, "%", better, is_utilization=True)


GROWTH = "growth"
"""The metric that only calls have whose memory grows."""

METRICS: Mapping[str, TimedMetric | CountedMetric] = {
    "step_time": TimedMetric("lower quartile of the timed steps, one number for each repeat"),
    "block_time": TimedMetric("mean over all timed steps: sees what every n-th step does"),
    "cpu_time": TimedMetric("processor time of the process for a step"),
    "kernel_time": TimedMetric("sum of the durations of the kernels that a step launches"),
    "data_wait": TimedMetric("time that a step waits for its batch"),
    "compile_time": TimedMetric("time that torch.compile takes before the first measured step"),
    "throughput": TimedMetric("items a second, of a call with `items=`", "items/s", "higher"),
    "step_p25": TimedMetric("25th percentile of single steps"),
    "step_p50": TimedMetric("median of single steps"),
    "step_p95": TimedMetric("95th percentile of single steps"),
    "step_p99": TimedMetric("99th percentile of single steps"),
    "achieved_flops": TimedMetric(
        "FLOPs of the operators with a cost model, over the step's time", "flop/s", "higher", is_utilization=True
    ),
    "flops_utilization": _share(
        "those FLOPs by element type, each over the machine's peak of it, over the step's time; with the element types "
        "of the baseline's side, arithmetic done twice included"
    ),
    "mfu": _share(
        "the `model_flops=` of a call over the step's time, over the machine's peak of the type of most FLOPs"
    ),
    "bandwidth_utilization": _share(
        "bytes that the operators must move, over the bandwidth of each one's own working set, over the step's time"
    ),
    "roofline": _share(
        "least time of the operators with a cost model at the machine's roofline, over the time that they took"
    ),
    "host_overhead": _share(
        "Python and waiting outside of operators, less what profiling adds, over the step's time", "lower"
    ),
    "cpu_utilization": TimedMetric(
        "processor time of the process over wall time and threads; spinning raises it, so it has no better or worse",
        "%",
        "higher",
        is_utilization=True,
        is_judged=False,
    ),
    "device_busy": _share("time in which anything runs on the device, over the span of its events"),
    "sm_efficiency": _share("share of the multiprocessors that have a block to run, from launch geometry: an estimate"),
    "occupancy": _share("estimated achieved occupancy of the kernels, weighted by their time: a bound"),
    "launch_gap": _share("time of a step in which the device is idle because the host launches late", "lower"),
    "tensor_core_share": _share("kernels on tensor cores, by their names, over all kernels' time"),
    "exposed_copies": _share(
        "copies behind which nothing computes or communicates, over the span of the device's events", "lower"
    ),
    "overlap": _share("communication during which something computes, over all communication"),
    "exposed_communication": _share(
        "communication behind which nothing computes, over the span of the device's events", "lower"
    ),
    "ops": CountedMetric("operators that a step runs"),
    "kernels": CountedMetric("kernels that a step launches, copies and memsets not counted"),
    "launches": CountedMetric("calls that launch device work"),
    "flops": CountedMetric("arithmetic of a step, by torch.utils.flop_counter: a multiply-add is two", "flop"),
    "allocations": CountedMetric("allocations of a step", scope=BYTE_SCOPE, reproducible=False),
    "alloc_bytes": CountedMetric("bytes that a step allocates", "B", BYTE_SCOPE, reproducible=False),
    "peak_memory": CountedMetric("most bytes allocated at once", "B", BYTE_SCOPE, per_step=False, reproducible=False),
    "static_memory": CountedMetric(
        "bytes of parameters and optimizer state", "B", BYTE_SCOPE, per_step=False, reproducible=False
    ),
    GROWTH: CountedMetric(
        "bytes that each step keeps, garbage collected, where each of the last five keeps some; absent where none does",
        "B",
        BYTE_SCOPE,
        reproducible=False,
    ),
    "h2d_bytes": CountedMetric("bytes that a step copies to the device", "B"),
    "recompiles": CountedMetric("recompilations in the timed steps", per_step=False, reproducible=False),
    "graph_breaks": CountedMetric("graph breaks of torch.compile", per_step=False, reproducible=False),
}
"""By name, in the order of the documentation. An author's own metrics have no entry."""


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
    (('torch', 'flags', 'device'), ('threads', 'cpu_capability'))
    """
    found = of(metric)
    return found.scope if isinstance(found, CountedMetric) else BYTE_SCOPE
