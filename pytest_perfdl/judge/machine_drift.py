"""Machine drift: the speed of the machine now and when the baseline was recorded, from the reference load.

The reference load (`machine.reference_load`) is a fixed workload that is timed around every repeat, so a change of its
time is a change of the machine. It is reported when current times are compared with recorded ones, but decides nothing:
a step that waits for memory depends less on the CPU clock than the reference load, one that waits for a device not at
all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_perfdl.judge import log_ratios
from pytest_perfdl.model.metrics import general

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_perfdl.model.record import Record
    from pytest_perfdl.results.verdict import MetricVerdict

LEAST = 0.05
"""Minimum change of the reference load's time that is reported."""
ALPHA = 0.01
"""Significance level of a change, given the spread of the baseline's reference times."""
_ON_DEVICES = frozenset({"kernel_time"})
"""Metrics that do not depend on CPU speed."""
_TIMES = frozenset({"ns", "us", "µs", "ms", "s", "min"})
"""Units of built-in and custom times."""


def between(base: Record, new: Record) -> float | None:
    """Log ratio of the reference load's time, now to then: above 0 the machine is slower now.

    `None` where it is as fast as it was, and without a reference on a side.

    The reference times are compared like a metric (`log_ratios.compare`): the mean of their logarithms must have moved
    by more than `LEAST`, and with a one-sided p below `ALPHA` in the direction in which it did.
    """
    before, now = _known(base.reference_ns), _known(new.reference_ns)
    if not before or not now:
        return None
    found = log_ratios.compare(before, now)
    if math.expm1(abs(found.log_ratio)) <= LEAST or found.p_above(1 if found.log_ratio > 0 else -1) >= ALPHA:
        return None
    return found.log_ratio


def follows(metric: MetricVerdict) -> int:
    """How a metric follows the reference load's time: 1 with it (a time), -1 against it (a rate), 0 not at all."""
    if metric.kind != "timed" or general(metric.name) in _ON_DEVICES:
        return 0
    return 1 if metric.unit in _TIMES else -1 if metric.unit.endswith("/s") else 0


def _known(times: Iterable[int | None]) -> list[int]:
    return [ns for ns in times if ns is not None]
