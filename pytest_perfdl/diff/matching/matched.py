"""What is matched so far and what is left: every part is entered exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pytest_perfdl.diff.matching.groups import By, Weighted
    from pytest_perfdl.diff.matching.normalized import About


@dataclass(slots=True)
class PartsOfSide:
    """One side's parts, and which of them are left."""

    parts: Sequence[Weighted]
    left: dict[int, None]
    """Places in `parts`, ascending."""
    known: dict[int, About] = field(default_factory=dict)
    """Of all that the exact stage left."""

    def classes(self, key: Callable[[About], Hashable]) -> dict[Hashable, list[int]]:
        """The parts that are left by key, without those whose key is `None`."""
        found: dict[Hashable, list[int]] = {}
        for place in self.left:
            if (value := key(self.known[place])) is not None:
                found.setdefault(value, []).append(place)
        return found

    def largest(self, places: Iterable[int], most: int) -> list[int]:
        """Of these the `most` that take most time, of equals the first, in order."""
        every = list(places)
        if len(every) <= most:
            return every
        return sorted(sorted(every, key=lambda place: (-self.parts[place].ns, place))[:most])


@dataclass(slots=True)
class PartialMatching:
    """Both sides, and the groups that were found."""

    base: PartsOfSide
    new: PartsOfSide
    groups: list[Group] = field(default_factory=list)

    def enter(self, base: Sequence[int], new: Sequence[int], by: By, confidence: float) -> None:
        """Group these parts, which must be left."""
        for side, places in ((self.base, base), (self.new, new)):
            for place in places:
                del side.left[place]
        self.groups.append(Group(tuple(sorted(base)), tuple(sorted(new)), by, confidence))

    def join(self, number: int, base: Sequence[int], new: Sequence[int], by: By, confidence: float) -> None:
        """Add parts that are left to a group, by its place in `groups`."""
        group = self.groups.pop(number)
        self.enter(base, new, by, confidence)
        more = self.groups.pop()
        self.groups.insert(
            number, Group(tuple(sorted(group.base + more.base)), tuple(sorted(group.new + more.new)), by, confidence)
        )
