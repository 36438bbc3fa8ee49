"""Sets of points in time, as sorted disjoint half-open intervals of integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import I64


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A union of half-open intervals [start, end), sorted, disjoint, none empty, none touching."""

    start: I64
    end: I64

    @classmethod
    def union_of(cls, start: I64, end: I64) -> Intervals:
        """The union of any intervals, in any order; empty ones vanish."""
        keep = end > start
        start, end = start[keep], end[keep]
        if len(start) == 0:
            return cls(start, end)
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order])
        first = np.concatenate(([True], start[1:] > reach[:-1]))
        last = np.concatenate((first[1:], [True]))
        return cls(start[first], reach[last])

    @classmethod
    def between(cls, start: int, end: int) -> Intervals:
        """One interval, or nothing when it is empty."""
        return cls.union_of(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        """Total nanoseconds covered."""
        return int((self.end - self.start).sum())

    def covered_before(self, time: I64) -> I64:
        """Nanoseconds covered before each point in time: the integral from which `within` takes differences."""
        total = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, time, side="right")
        inside = np.zeros(len(time), dtype=np.int64)
        some = index > 0
        inside[some] = np.maximum(self.end[index[some] - 1] - time[some], 0)
        return np.asarray(total[index] - inside, dtype=np.int64)

    def within(self, start: I64, end: I64) -> I64:
        """Nanoseconds covered inside each interval [start, end)."""
        return self.covered_before(end) - self.covered_before(start)

    def contains(self, time: I64) -> npt.NDArray[np.bool_]:
        """Whether each point in time is covered."""
        index = np.searchsorted(self.start, time, side="right") - 1
        found: npt.NDArray[np.bool_] = index >= 0
        found[found] = time[found] < self.end[index[found]]
        return found

    def union(self, other: Intervals) -> Intervals:
        """Covered by either."""
        return Intervals.union_of(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def intersection(self, other: Intervals) -> Intervals:
        """Covered by both."""
        return self._select(other, inside=True)

    def difference(self, other: Intervals) -> Intervals:
        """Covered by this one and not by the other."""
        return self._select(other, inside=False)

    def clip(self, start: int, end: int) -> Intervals:
        """What lies in [start, end)."""
        return Intervals.union_of(np.maximum(self.start, start), np.minimum(self.end, end))

    def _select(self, other: Intervals, *, inside: bool) -> Intervals:
        """Cut at every bound of both, then keep the pieces of this one that are in or out of the other."""
        bounds = np.sort(np.concatenate((self.start, self.end, other.start, other.end)), kind="stable")
        if len(bounds) == 0:
            return self
        start, end = bounds[:-1], bounds[1:]
        keep = self.contains(start) & (other.contains(start) == inside)
        return Intervals.union_of(start[keep], end[keep])
