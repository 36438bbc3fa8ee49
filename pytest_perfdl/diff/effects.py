"""Why the time of a part changed: more calls, slower per call, different inputs, or less overlap.

The time that a part costs the step is n * t * x: occurrences, mean duration of one, and the share of it that
nothing hides. From (n0, t0, x0) to (n1, t1, x1)

    count     (n1 - n0) * t0 * x0
    duration  n1 * (t1 - t0) * x0
    exposure  n1 * t1 * (x1 - x0)

add up to the change exactly. Over parts that are summed (a kernel over all its shapes) the count effect is that
of the sum, (N1 - N0) * T0 * X0, and what the parts' count effects have beyond it is the *mix*: more of the expensive
ones at the cost of the cheap ones. A group whose members were exchanged for others (fused, split, another
kernel for the same operator) has no duration of one thing to compare: its duration effect is mix too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Amount:
    """Means per step of what stands on one side."""

    count: float
    busy_ns: float
    ns: float

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.busy_ns + other.busy_ns, self.ns + other.ns)

    @property
    def each_ns(self) -> float:
        """Mean duration of one; of what is not counted (idle time) all of it."""
        return self.busy_ns / (self.count or 1.0)

    @property
    def exposure(self) -> float:
        """Share that costs the step; 1 for what has no duration."""
        return self.ns / self.busy_ns if self.busy_ns else 1.0


NOTHING = Amount(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Effects:
    """Nanoseconds per step; they add up to the change."""

    count: float = 0.0
    duration: float = 0.0
    mix: float = 0.0
    exposure: float = 0.0

    def __add__(self, other: Effects) -> Effects:
        return Effects(
            self.count + other.count,
            self.duration + other.duration,
            self.mix + other.mix,
            self.exposure + other.exposure,
        )


def effects(base: Amount, new: Amount, *, exchanged: bool = False) -> Effects:
    """Split the change of one part, or of a group whose members were `exchanged`.

    What is new or gone is all count; idle time, which is not counted, all duration.
    """
    if not base.count and not new.count:
        return Effects(duration=new.ns - base.ns)
    if not base.count or not new.count:
        return Effects(count=new.ns - base.ns)
    count = (new.count - base.count) * base.each_ns * base.exposure
    # Without a duration there is no share of it: then all that is left is exposure, and the sum still holds.
    duration = new.count * (new.each_ns - base.each_ns) * base.exposure
    exposure = new.ns - base.ns - count - duration
    if exchanged:
        return Effects(mix=count + duration, exposure=exposure)
    return Effects(count=count, duration=duration, exposure=exposure)


def summed(pairs: Iterable[tuple[Amount, Amount, Effects]]) -> Effects:
    """The effects of several parts taken together: what their counts have beyond the sum's count is mix."""
    base, new, total = NOTHING, NOTHING, Effects()
    for before, after, each in pairs:
        base, new, total = base + before, new + after, total + each
    if not base.count or not new.count:
        return total
    count = (new.count - base.count) * base.each_ns * base.exposure
    return Effects(count, total.duration, total.mix + total.count - count, total.exposure)
