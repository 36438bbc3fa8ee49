"""The communication of one rank, call by call: what ran when, in which group, how much, and who issued it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import I64, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Communication kernels of a rank, on ranks without device events annotations such as `gloo:all_reduce`.

    Columns of equal length, in the order of issue. Moments are nanoseconds since 1970 on the rank's own clock.
    """

    name: tuple[str, ...]
    """Name of each event up to its first parenthesis."""
    kinds: tuple[str, ...]
    """Kind of each: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
    "scatter", "barrier", "send", "recv", or "other"."""
    group: tuple[str, ...]
    """Process group; where the trace does not name it "stream N" (N counts the streams with communication) or "host".
    """
    members: tuple[tuple[int, ...], ...]
    """Numbers of the ranks of each one's group; empty where the trace does not say."""
    sequence: I64
    """`Seq` of each, -1 where the trace has none."""
    start: I64
    """When it began to run: of the kernel, or of the annotation."""
    end: I64
    issued: I64
    """When the host issued it: start of the launching call, or of the `c10d::*` operator; `start` where unknown."""
    bytes: I64
    """Size as nccl-tests count it: of the larger of input and output over all ranks of the group, so that of an
    all_gather what each rank has afterwards; -1 where the trace does not say."""
    group_size: I64
    """Ranks of the group, 0 where the trace does not say."""
    step: Rows
    """Index of the step that issued it, -1 for none."""
    peer: I64
    """For "send" the rank that it goes to, for "recv" the rank that it comes from; -1 for others, or unknown."""
    exposed_ns: I64
    """The part of its time in which nothing computes."""
    row: Rows
    """Row in the trace."""

    def __len__(self) -> int:
        return len(self.name)

    def of_kind(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which are of a kind."""
        return np.array([each == kind for each in self.kinds], dtype=bool)
