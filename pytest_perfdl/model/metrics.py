"""The metrics that every project has: one entry each, which limits, judgement, reports and documentation read.

What measures them is in `measure`: `assemble` computes each of these from a call's results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COUNT_SCOPE = ("torch", "flags", "device")
"""Context in which operators, launches and arithmetic are exact."""
BYTE_SCOPE = (*COUNT_SCOPE, "threads", "cpu_capability")
"""Context in which sizes and allocations are exact too."""
CONTEXT = ("python", "os", *BYTE_SCOPE, "cuda", "cudnn", "driver")
"""Everything that a record's context may hold; the last three where steps use a device."""


@dataclass(frozen=True, slots=True)
class TimedMetric:
    """A metric that is measured and judged with statistics; less is better."""

    what: str
    """As the documentation says it."""
    unit: str = "ns"
    """Base unit, in which values are stored."""


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


METRICS: Mapping[str, TimedMetric | CountedMetric] = {
    "step_time": TimedMetric("lower quartile of the timed steps, one number for each repeat"),
    "block_time": TimedMetric("mean over all timed steps: sees what every n-th step does"),
    "cpu_time": TimedMetric("processor time of the process for a step"),
    "kernel_time": TimedMetric("sum of the durations of the kernels that a step launches"),
    "data_wait": TimedMetric("time that a step waits for its batch"),
    "compile_time": TimedMetric("time that torch.compile takes before the first measured step"),
    "step_p25": TimedMetric("25th percentile of single steps"),
    "step_p50": TimedMetric("median of single steps"),
    "step_p95": TimedMetric("95th percentile of single steps"),
    "step_p99": TimedMetric("99th percentile of single steps"),
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
    "h2d_bytes": CountedMetric("bytes that a step copies to the device", "B"),
    "recompiles": CountedMetric("recompilations in the timed steps", per_step=False, reproducible=False),
    "graph_breaks": CountedMetric("graph breaks of torch.compile", per_step=False, reproducible=False),
}
"""By name, in the order of the documentation. `throughput` (of a call with `items=`) and an author's own metrics have
no entry: these may be better the higher they are."""


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


def scope(metric: str) -> tuple[str, ...]:
    """Names of the context that must be equal for a counted metric to compare exactly, by its full name.

    A metric that is not known to need less is exact only in the narrower scope.

    >>> scope("ops"), scope("forward.peak_memory")[3:]
    (('torch', 'flags', 'device'), ('threads', 'cpu_capability'))
    """
    found = of(metric)
    return found.scope if isinstance(found, CountedMetric) else BYTE_SCOPE
