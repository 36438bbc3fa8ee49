"""How the ranks of a step compare, on one side and between two sides of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RankCause = Literal["compute", "input", "communication", "host"]
"""What a step of several ranks spends more time on."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """A profiled step of one rank, mean nanoseconds."""

    own_ns: int
    """The step less the waiting for other ranks in which nothing computes, and less the time in which other processes
    used the CPU."""
    compute_ns: int
    input_ns: int
    """Waiting for the next batch."""
    host_ns: int
    """Neither computing nor communicating nor waiting for a batch."""
    communication_ns: int
    """Communication and waiting for other ranks in which nothing computes."""
    overlap: float | None
    """Share of the communication that overlaps with computing, 0 to 1; `None` without communication."""

    def of(self, cause: RankCause) -> int:
        """The time of one class."""
        return {
            "compute": self.compute_ns,
            "input": self.input_ns,
            "host": self.host_ns,
            "communication": self.communication_ns,
        }[cause]


@dataclass(frozen=True, slots=True)
class RankSide:
    """The ranks of one side, in the order of their numbers; per step."""

    ranks: tuple[RankTimes, ...]
    step_ns: int
    """Mean step of all ranks."""
    waits_ns: tuple[tuple[int, ...], ...]
    """`waits_ns[i][j]`: how long rank i waits for rank j in collectives and computes nothing meanwhile."""
    collectives: float
    """Collectives and messages, all ranks together."""
    collective_bytes: float | None
    """Their bytes; `None` if unknown."""


@dataclass(frozen=True, slots=True)
class RankComparison:
    """The ranks of one call, current and, if it was measured, baseline."""

    call: str
    base: RankSide | None
    new: RankSide
    rank: int | None = None
    """The rank whose own work explains the change of the step; `None` if it is all ranks', or communication's."""
    cause: RankCause | None = None
    """What the change of the step is of; `None` if the step did not change."""
