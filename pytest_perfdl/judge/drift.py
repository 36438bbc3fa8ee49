"""How fast the machine is now and was at the baseline, as the reference load shows it.

    moved = drift.between(base, new)            # None while the machine is as it was
    metric = drift.unhidden(metric, before, series, limit, moved)
    metric = replace(metric, reason=f"{metric.reason}; {wording.machine(moved.log_ratio)}")

The reference load (`measure.reference_load`) is work of ours that is timed around every repeat, so a change of
its time is the machine's. It explains verdicts and draws suspicion, and never decides that a test fails: a step
that waits for memory follows the clock less than the reference load does, one that waits for a device not at all.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import timed
from pytest_perfdl.judge.verdict import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_perfdl.judge.verdict import MetricVerdict
    from pytest_perfdl.limits import Limit
    from pytest_perfdl.record import Record, Series

LEAST = 0.05
"""Least change of the reference load's time that counts. A step that follows it by half only is then misjudged by
no more than 2.5 %, which is within the default limit of 3 %."""
ALPHA = 0.01
"""How improbable a change must be under the spread of the baseline's own reference times: a machine that is as it
was is called another in at most this share of runs, so the second reading adds no more than that to the suspects."""
_ON_DEVICES = frozenset({"kernel_time"})
"""Metrics that the host's speed does not enter."""
_TIMES = frozenset({"ns", "us", "µs", "ms", "s", "min"})
"""Units of our own times, and of times that a test reports."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The machine became faster or slower, by more than `LEAST` and than its reference times spread by anyway."""

    log_ratio: float
    """Of the reference load's time now to that at the baseline: below 0 the machine is faster now."""
    base_ns: tuple[int | None, ...]
    """The reference load's time around each repeat of the baseline, `None` where it was not timed."""
    new_ns: tuple[int | None, ...]
    """The same for the fresh repeats."""


def between(base: Record, new: Record) -> Drift | None:
    """The change of the machine's speed; `None` where there is none, or no reference on a side.

    The reference times are compared like a metric (`timed.compare`): the mean of their logarithms must have moved
    by more than `LEAST`, and with a one-sided p below `ALPHA` in the direction in which it did.
    """
    before, now = _known(base.reference_ns), _known(new.reference_ns)
    if not before or not now:
        return None
    found = timed.compare(before, now)
    if math.expm1(abs(found.log_ratio)) <= LEAST or found.p_above(1 if found.log_ratio > 0 else -1) >= ALPHA:
        return None
    return Drift(found.log_ratio, base.reference_ns, new.reference_ns)


def follows(metric: MetricVerdict) -> int:
    """How a metric follows the reference load's time: 1 with it (a time), -1 against it (a rate), 0 not at all."""
    if metric.kind != "timed" or metric.name.rpartition(".")[2] in _ON_DEVICES:
        return 0
    return 1 if metric.unit in _TIMES else -1 if metric.unit.endswith("/s") else 0


def unhidden(metric: MetricVerdict, base: Series, new: Series, limit: Limit, drift: Drift) -> MetricVerdict:
    """Judge again at the baseline's speed where the machine became faster, and keep the worse of the two verdicts.

    On raw times a machine that is 30 % faster hides code that is 25 % slower. So each repeat's value is divided by
    its own reference time (as a share of the baseline's mean), which brings the noise of the reference into the
    spread of the baseline too, and is screened like the raw one. What is worse in *either* reading draws suspicion.
    A suspect is only confirmed in pairs, which share their moment, or past the wide unpaired limit by raw times: so
    this costs false suspicion where a step does not follow the reference load, and never a false alarm. A machine
    that became slower is not corrected for: it hides nothing.
    """
    sign = follows(metric)
    if drift.log_ratio >= 0 or not sign or metric.verdict is None or not timed.positive(base, new):
        return metric
    mean = statistics.geometric_mean(_known(drift.base_ns))
    before, now = _at_speed(base, drift.base_ns, sign, mean), _at_speed(new, drift.new_ns, sign, mean)
    found = timed.screen(replace(metric, verdict=None, reason=""), before, now, limit)
    if found.verdict is None or VERDICTS.index(found.verdict) >= VERDICTS.index(metric.verdict):
        return metric
    return replace(metric, verdict=found.verdict, reason=f"{metric.reason}; at the baseline's speed {found.reason}")


def _at_speed(series: Series, reference_ns: Sequence[int | None], sign: int, mean: float) -> Series:
    """The values of the repeats whose reference time is known, as they would be if it were `mean`."""
    pairs = zip(series.values, reference_ns, strict=True)
    return replace(series, values=tuple(value * (mean / ns) ** sign for value, ns in pairs if ns is not None))


def _known(times: Iterable[int | None]) -> list[int]:
    return [ns for ns in times if ns is not None]
