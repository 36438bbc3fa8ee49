"""A part as it is compared: its name and its place without what changes from build to build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching.compilers import bare, neutral, replaced
from pytest_perfdl.diff.matching.names import normalized, words

if TYPE_CHECKING:
    from pytest_perfdl.diff.matching.groups import Weighted
    from pytest_perfdl.diff.matching.names import Rules
    from pytest_perfdl.model.step_part import Part

_NUMBER = re.compile(r"\(\d+\)")


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a part."""

    part: Part
    count: float
    ns: float
    exact: str
    """The name as the trace has it; of idle time, whose name is a class, also what ran meanwhile, without numbers of
    lines."""
    name: str
    """The same, normalized."""
    path: tuple[str, ...]
    """Normalized, and without the libraries that implement the operators."""
    replaced: str | None
    """Operators that it stands for if a compiler made it (`compilers.replaced`)."""

    @property
    def operator(self) -> str:
        """The last of the path."""
        return self.path[-1] if self.path else ""

    @property
    def place(self) -> tuple[str, tuple[str, ...], str, str, str]:
        """What it shares with all that one operator does in one place."""
        return (self.part.kind, self.path, self.part.shapes, self.part.module, self.part.phase)

    @property
    def operators(self) -> frozenset[str]:
        """Bare names of the operators around it and its own; the words of its name if there are none."""
        around = (*self.part.path, self.part.name) if self.part.kind == "operator" else self.part.path
        found = frozenset(filter(None, map(bare, around)))
        return found or words(self.name)


def about(weighted: Weighted, rules: Rules) -> About:
    """What is known of a part, by these rules for names."""
    part = weighted.part
    name = normalized(part.name, rules)
    exact = part.name
    if part.kind == "idle":
        exact = name = " ".join(filter(None, (name, unnumbered(part.function), unnumbered(part.line))))
    # Annotations around idle time are no operators.
    path = () if part.kind == "idle" else _path(part.path, rules)
    return About(part, weighted.count, weighted.ns, exact, name, path, replaced(name))


@lru_cache(maxsize=1 << 14)
def unnumbered(line: str) -> str:
    """A place in a source file without the number of its line.

    >>> unnumbered("train.py(12): step")
    'train.py: step'
    """
    return _NUMBER.sub("", line)


@lru_cache(maxsize=1 << 14)
def _path(path: tuple[str, ...], rules: Rules) -> tuple[str, ...]:
    return tuple(neutral(normalized(operator, rules)) for operator in path)
