"""What one rank's trace contributes to the comparison of a job's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.ranks.calls import Calls
from pytest_perfdl.trace.model import I64


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The steps of one rank, in order: columns of equal length. Nanoseconds; moments on the rank's own clock.

    With device events a step is its window on the device, without them its annotation on the host (see
    `events.steps`), each without `perfdl.setup`. `compute_ns + input_ns + host_ns + exposed_communication_ns +
    exposed_copies_ns` is `window_ns` exactly.
    """

    number: tuple[int, ...]
    """N of `ProfilerStep#N`, -1 for the one step of a trace without annotations."""
    start: I64
    end: I64
    window_ns: I64
    compute_ns: I64
    """With device events |U(compute)|, without them operators on the step's thread, those of collectives left out."""
    input_ns: I64
    """Nothing runs on the device, or no operator, because the step's thread waits for its next batch."""
    host_ns: I64
    """The rest: idle time of the device by any other cause, or gaps between operators."""
    exposed_communication_ns: I64
    """Communication, waiting included, while nothing computes."""
    exposed_copies_ns: I64
    """Copies and memsets of a device while it neither computes nor communicates."""
    communication_ns: I64
    """All communication in the step, hidden or not: |U(comm)|."""
    account: Mapping[str, I64]
    """The classes of `account.device_account` or `account.host_account`; they add up to `window_ns` exactly."""

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much of one kind of collective one rank takes part in; tuples have one value per step. Exact counts."""

    kind: str
    calls: tuple[int, ...]
    bytes: tuple[int | None, ...]
    """As nccl-tests count them, `None` in steps with a call whose size the trace does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class RankActivity:
    """One rank's part of a job: a compact value that can be pickled, without its trace.

    Moments are nanoseconds since 1970 on the rank's own clock (`Trace.base_ns` added).
    """

    source: str
    rank: int | None
    """As `distributedInfo` says; `None` where it does not."""
    world_size: int | None
    host: str
    """`host_name` of the trace, empty where it has none; ranks of one host share a clock."""
    groups: Mapping[str, tuple[int, ...]]
    """Process groups of this rank and their members, as far as `distributedInfo` lists them."""
    on_device: bool
    span_ns: int
    busy_ns: int
    """|U(device events)|."""
    compute_ns: int
    """|U(compute)| of the whole trace; 0 without device events."""
    communication_ns: int
    """|U(comm)| of the whole trace; without device events |U(annotations of collectives on any thread)|."""
    exposed_communication_ns: int
    overlap: float | None
    """Share of the communication that overlaps with computing, 0 to 1 (definitions: `communication_overlap`); without
    device events with operators of the step's thread. `None` without communication."""
    steps: StepTimes
    calls: Calls
    exposed_start: I64
    """Where communication is in flight and nothing computes: sorted, disjoint intervals."""
    exposed_end: I64

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Calls and bytes per step by kind of collective, by kind."""
        return tuple(_traffic(self.calls, kind, len(self.steps)) for kind in sorted(set(self.calls.kinds)))


def _traffic(calls: Calls, kind: str, steps: int) -> Traffic:
    own = np.flatnonzero(calls.of_kind(kind) & (calls.step >= 0))
    step, size = calls.step[own], calls.bytes[own]
    count = np.bincount(step, minlength=steps).tolist()
    unknown = np.bincount(step[size < 0], minlength=steps)
    total: npt.NDArray[np.int64] = np.zeros(steps, dtype=np.int64)
    np.add.at(total, step, np.maximum(size, 0))
    known = [None if missing else sum_ for sum_, missing in zip(total.tolist(), unknown.tolist(), strict=True)]
    return Traffic(kind, tuple(count), tuple(known))
