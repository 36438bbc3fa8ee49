"""The words of a matching: parts with their weight in, groups of them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_perfdl.model.step_part import Part

By = Literal["exact", "name", "operator", "aligned", "fused", "split", "added", "gone"]
ONE_SIDED: frozenset[By] = frozenset({"added", "gone"})
_EXCHANGED: dict[By, By] = {"fused": "split", "split": "fused", "added": "gone", "gone": "added"}


@dataclass(frozen=True, slots=True)
class Weighted:
    """One part of a step with what it weighs."""

    part: Part
    count: float
    """Occurrences in a step, the mean over steps."""
    ns: float
    """Nanoseconds in a step, the mean over steps."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of both sides that are the same work, or a part that only one side has."""

    base: tuple[int, ...]
    """Places in the baseline's sequence, ascending; empty for a part that was added."""
    new: tuple[int, ...]
    """Places in the new side's sequence, ascending; empty for a part that is gone."""
    by: By
    """What tells: the part itself, its normalized name, the operator above it, its place among its like, that a
    compiler fused the baseline's parts into the new side's ("fused") or the other way round ("split")."""
    confidence: float
    """How sure it is that both sides are the same work, from 0 to 1 (`match`); 1 where there is one side."""

    def exchanged(self) -> Group:
        """The same with the sides exchanged."""
        return Group(self.new, self.base, _EXCHANGED.get(self.by, self.by), self.confidence)


@dataclass(frozen=True, slots=True)
class Matching:
    """All parts of both sides in groups, each in exactly one."""

    groups: tuple[Group, ...]
    """In the order of the step."""
    coverage: float
    """Share of both sides' time that is in groups with both sides; 1 where there is no time."""
    unmatched: tuple[Group, ...]
    """The groups with one side, most time first."""

    def exchanged(self) -> Matching:
        """The same with the sides exchanged."""
        return Matching(
            tuple(group.exchanged() for group in self.groups),
            self.coverage,
            tuple(group.exchanged() for group in self.unmatched),
        )
