"""How well a step uses the machine: the work of its operators, relative to the machine's peak rates.

One definition for recorded tests, traces and predictions. Fractions are from 0 to 1; `Utilization.absent` has the
reasons for absent metrics. This module does not import numpy, because the orchestrating process uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.model.record import CaseWork

NO_RATES = "peak rates of this machine are unknown"
"""Why metrics that need peak rates are absent."""
TELLING = 0.8
"""Coverage below which a metric is marked as incomplete."""
_IN_CACHE = 0.5
"""Share of bytes in operators that fit into the last-level cache from which memory bandwidth is not computed."""

Bound = Literal["compute", "memory", "cache"]
"""What a least time is of: arithmetic, or bytes, which come from a cache where what the call uses fits into it."""


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Calls of one operator with equal shapes and element type, in all steps that were profiled."""

    operator: str
    shapes: str
    """`Input Dims` as JSON; empty without a cost model."""
    dtype: str
    """Element type that the arithmetic is done on (`peaks.ELEMENT_TYPES`); empty without a cost model."""
    calls: int
    time_ns: int
    """On the host: self time, with that of the operators inside. On a device: |U(the calls' device events)|."""
    flops: int | None = None
    """Floating-point operations of all calls, from their shapes; `None` without a cost model."""
    bytes: int | None = None
    """Bytes that all calls must move: every input read once, every output written once."""
    overwritten: int = 0
    """Those of them that are written where others were read."""

    @property
    def working_set(self) -> float:
        """Bytes of memory that a call uses."""
        return ((self.bytes or 0) - self.overwritten) / self.calls if self.calls else 0.0

    def least_ns(self, peaks: Peaks) -> float | None:
        """Least time of all calls at the roofline; `None` where it is not known."""
        found = self._parts(peaks)
        return None if found is None else max(found)

    def bound(self, peaks: Peaks) -> Bound | None:
        """What that time is bound by."""
        found = self._parts(peaks)
        if found is None:
            return None
        return "compute" if found[0] > found[1] else "cache" if self.is_cached(peaks) else "memory"

    def is_cached(self, peaks: Peaks) -> bool:
        """Whether the memory that a call uses fits into the last-level cache."""
        return self.working_set <= (peaks.cache_bytes or 0)

    def _parts(self, peaks: Peaks) -> tuple[float, float] | None:
        """Least time of the arithmetic and of the bytes, nanoseconds."""
        if self.flops is None or self.bytes is None or not self.calls:
            return None
        return peaks.least_ns(self.flops, self.bytes, self.dtype, self.calls, self.overwritten)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Utilization metrics of a mean step, by name."""

    values: Mapping[str, float]
    absent: Mapping[str, str] = field(default_factory=dict)
    """Reasons for absent metrics, one line per metric."""
    coverage: float | None = None
    """Fraction of operator time in operators with a cost model, which the metrics cover; `None` for no time."""


def mix_of(work: Sequence[OperatorWork]) -> dict[str, float]:
    """Share of each element type in the FLOPs; empty without any."""
    flops = _flops_by_type(work)
    whole = sum(flops.values())
    return {dtype: each / whole for dtype, each in flops.items()} if whole else {}


def utilization(
    work: Sequence[OperatorWork],
    steps: int,
    step_ns: float,
    peaks: Peaks | None,
    mix: Mapping[str, float] | None = None,
) -> Utilization:
    """Utilization by the operators of `steps` profiled steps, for steps that take `step_ns` unprofiled.

    - `achieved_flops`: FLOPs over the step's time, per second.
    - `flops_utilization`: the sum over element types of FLOPs over that type's peak, over the step's time. Arithmetic
      that is done twice (checkpointing) counts twice, which the MFU of papers (A. Chowdhery et al., "PaLM", 2022,
      appendix B) leaves out.
    - `bandwidth_utilization`: the sum over calls of the bytes that they must move over the bandwidth of their own
      working set, over the step's time. Absent where half of the bytes belong to calls that fit into the last-level
      cache: these say nothing of the memory.
    - `roofline`: the covered operators' least time (S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4),
      2009) over the time that they took.

    Parameters
    ----------
    mix
        Share of each element type in the FLOPs of the side that this one is compared with: both sides' FLOPs are then
        related to the same peak rate. Otherwise a change of the element type would be hidden by its peak rate.
    """
    covered = [each for each in work if each.flops is not None and each.bytes is not None]
    spent, whole = sum(each.time_ns for each in covered), sum(each.time_ns for each in work)
    coverage = spent / whole if whole else None
    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    flops = _flops_by_type(covered)
    if not covered:
        reason = "no operator has a cost model and recorded shapes" if work else "no operators were profiled"
        return Utilization({}, dict.fromkeys(NAMES, reason), coverage)
    if not steps or step_ns <= 0:
        return Utilization({}, dict.fromkeys(NAMES, "the step time is 0"), coverage)
    if total := sum(flops.values()):
        values["achieved_flops"] = total / steps / step_ns * 1e9
    else:
        absent["achieved_flops"] = absent["flops_utilization"] = "no FLOPs were counted in the step"
    if peaks is None:
        for name in NAMES[1:]:
            absent.setdefault(name, NO_RATES)
        return Utilization(values, absent, coverage)
    if total:
        shares = mix or {dtype: each / total for dtype, each in flops.items()}
        unknown = sorted(dtype for dtype in shares if not peaks.flops_per_s.get(dtype))
        if unknown:
            absent["flops_utilization"] = f"the peak rate of {', '.join(unknown)} is unknown"
        else:
            least = total * sum(share / peaks.flops_per_s[dtype] for dtype, share in shares.items())
            values["flops_utilization"] = least / steps / step_ns * 1e9
    moved = sum(each.bytes or 0 for each in covered)
    cached = sum(each.bytes or 0 for each in covered if each.is_cached(peaks))
    if not moved or cached >= _IN_CACHE * moved:
        part = 100 * cached / moved if moved else 100
        absent["bandwidth_utilization"] = (
            f"{part:.0f} % of the bytes belong to operators whose data fits into the cache"
        )
    else:
        least = sum((each.bytes or 0) / peaks.bandwidth(each.working_set) for each in covered)
        values["bandwidth_utilization"] = least / steps / step_ns * 1e9
    floors = [(each.least_ns(peaks), each.time_ns) for each in covered]
    known = [(floor, time) for floor, time in floors if floor is not None]
    if took := sum(time for _, time in known):
        values["roofline"] = sum(floor for floor, _ in known) / took
    else:
        absent["roofline"] = "the measured time of the covered operators is 0"
    return Utilization(values, absent, coverage)


NAMES = ("achieved_flops", "flops_utilization", "bandwidth_utilization", "roofline")
"""Metrics of `utilization`."""


def case_rates(work: CaseWork | None, call_ns: float | None, peaks: Peaks | None) -> Utilization:
    """Rates of a case of a table whose call takes `call_ns`, from the work that its test states.

    - `items_per_s`, `flops_per_s`, `bytes_per_s`: what is stated, over the time of the call.
    - `roofline`: the least time of the FLOPs and bytes (`Peaks.least_ns`, for a working set of these bytes, or at the
      bandwidth of memory where caches are emptied before every call) over the time of the call. `absent` says why it is
      unknown, unless neither FLOPs nor bytes are stated.
    """
    if work is None or not call_ns:
        return Utilization({})
    stated = {"items": work.items, "flops": work.flops, "bytes": work.bytes}
    values = {f"{name}_per_s": 1e9 * each / call_ns for name, each in stated.items() if each is not None}
    if work.flops is None and work.bytes is None:
        return Utilization(values)
    why = ""
    if work.flops is None or work.bytes is None:
        why = f"the test does not state {'flops' if work.flops is None else 'bytes'}="
    elif peaks is None:
        why = NO_RATES
    elif least := (replace(peaks, bandwidths=()) if work.cold else peaks).least_ns(work.flops, work.bytes, work.dtype):
        return Utilization({**values, "roofline": max(least) / call_ns})
    elif not work.dtype:
        why = "its arguments have no tensor, whose element type the peak rate depends on"
    else:
        why = f"the peak rate of {work.dtype} is unknown"
    return Utilization(values, {"roofline": why})


def mfu(model_flops: float, step_ns: float, peaks: Peaks | None, mix: Mapping[str, float]) -> float | None:
    """Model FLOPs utilization (A. Chowdhery et al., "PaLM", 2022, appendix B): what the model needs, over the peak.

    Arithmetic that is done twice does not count, unlike in `flops_utilization`. `None` without the peak of the element
    type that most of the FLOPs are of.

    Parameters
    ----------
    model_flops
        FLOPs that the model needs for a step, by its author.
    mix
        Share of each element type in the FLOPs, of the base side.
    """
    most = max(mix, key=lambda name: mix[name], default="")
    rate = peaks.flops_per_s.get(most) if peaks else None
    return model_flops / step_ns * 1e9 / rate if rate and step_ns > 0 else None


def host_overhead(gap_ns: float, events: float, event_ns: float, profiled_ns: float, step_ns: float) -> float | None:
    """Share of a timed step in Python and in waiting outside of operators; `None` where profiling hides it.

    Parameters
    ----------
    gap_ns
        Time of a profiled step outside of operators.
    events
        Operators that it recorded.
    event_ns
        What recording one of them takes.
    profiled_ns, step_ns
        What a step takes with the profiler and without: no figure where it is more than 15 % longer with it.
    """
    if step_ns <= 0 or profiled_ns > _DISTORTED * step_ns:
        return None
    return max(0.0, gap_ns - events * event_ns) / step_ns


_DISTORTED = 1.15


def _flops_by_type(work: Sequence[OperatorWork]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in work:
        if each.flops:
            found[each.dtype] = found.get(each.dtype, 0) + each.flops
    return found
