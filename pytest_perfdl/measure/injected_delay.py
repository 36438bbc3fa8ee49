"""A known delay in every step, to check that a slowdown of that size is detected (`--perf-inject`).

The delay is a busy wait on the CPU inside the step: no operator, no allocation, so counted metrics do not change. It is
a fraction of step time, fixed after warm-up.

On a device the CPU first waits for the device, because launches ahead of the device would hide the delay. Such a step
is slowed down by the fraction plus the lost launch-ahead: at least by the fraction.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pytest_perfdl.measure import device
from pytest_perfdl.measure.commands import Profiled
from pytest_perfdl.model.record import INJECTED, Finding
from pytest_perfdl.system.clocks import perf_counter_ns

__tracebackhide__ = device.hides

if TYPE_CHECKING:
    from pytest_perfdl.measure.loops import Aside

T = TypeVar("T")


class Delay:
    """The delay of one call's steps.

    Parameters
    ----------
    share
        Of the step's own time: 0.05 for 5 %; 0 for no delay.
    period
        Steps that make a cycle: every step waits for its share of the mean over the cycle.
    """

    def __init__(self, share: float, period: int = 1) -> None:
        self.share = share
        self._period = period
        self.wait_ns = 0
        """Delay of each step in nanoseconds; 0 until the delay is known."""

    def fix(self, step_ns: Sequence[int]) -> None:
        """Settle how long the delay is, from what the steps of whole cycles take without it.

        The median over cycles, and the mean of that over the places in a cycle.
        """
        medians = [statistics.median(step_ns[place :: self._period]) for place in range(self._period)]
        self.wait_ns = max(0, round(self.share * statistics.fmean(medians)))

    def wait(self, part: float = 1.0) -> None:
        """Wait as long as that, or for a part of it, keeping the CPU busy."""
        device.synchronize()
        end = perf_counter_ns() + round(self.wait_ns * part)
        while perf_counter_ns() < end:
            pass

    def after_each(
        self, steps: Generator[bool, Aside | None, T], part: float = 1.0
    ) -> Generator[bool, Aside | None, T]:
        """The same steps, each with the delay at its end; without a delay just the same.

        `part` is what a step is of those that the delay was fixed for: one call of several, for instance.
        """
        if not self.wait_ns:
            return (yield from steps)
        with contextlib.closing(steps):
            try:
                keep = next(steps)
                while True:
                    aside = yield keep
                    self.wait(part)
                    keep = steps.send(aside)
            except StopIteration as stop:
                result: T = stop.value
                return result

    @property
    def notes(self) -> tuple[Finding, ...]:
        """That steps were slowed down on purpose; none without a delay."""
        why = f"every step was slowed down by {self.share * 100:g} % on purpose (--perf-inject)"
        return (Finding("note", INJECTED, why),) if self.share else ()

    def mark_injected(self, profiled: Profiled) -> Profiled:
        """The measurement, with a note that it was slowed down on purpose."""
        return replace(profiled, findings=(*profiled.findings, *self.notes))
