"""One of the parts that `--perf-shard` splits the perf tests of a run into."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST = 10_000
"""Largest number of shards."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which shard a run is, and what it needs to know of the others.

    Raises
    ------
    ValueError
        The numbers are those of no shard.
    """

    index: int
    """From 1."""
    count: int
    """Number of shards."""
    tests: int = 0
    """Number of perf tests in all shards, which share the false-alarm level; 0 before they are collected."""
    require: int = 0
    """Minimum number of compared tests in all shards (`--perf-require`)."""

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count <= MOST or self.tests < 0 or self.require < 0:
            raise ValueError(f"{self.index}/{self.count} is not a shard")

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"

    def required_here(self, tests: int) -> int:
        """How many of the shard's own tests must be compared, even if all tests of the other shards are.

        >>> Shard(2, 4, tests=47, require=40).required_here(12)
        5
        >>> Shard(2, 4, tests=47, require=1).required_here(12)
        0
        """
        return max(0, self.require - (self.tests - tests))


def parsed(text: str) -> Shard:
    """The shard that a text names.

    >>> str(parsed("2/4"))
    'shard 2 of 4'

    Raises
    ------
    ValueError
        It names none.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not of the form I/N")
    return Shard(int(match[1]), int(match[2]))
