"""Which call of the host launched a device event: joined on `correlation`, never on flow arrows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Rows, Trace

_LAUNCH = re.compile(r"launch\w*kernel|kernellaunch|graphlaunch|runfunction", re.IGNORECASE)
"""Calls that launch kernels or graphs, of CUDA, HIP, XPU and MTIA; copies and memsets are calls of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Device events and the calls that launched them: columns of equal length, in the order of device start."""

    device: Rows
    """Rows of kernels, copies and memsets."""
    call: Rows
    """Row of each one's launching call; -1 where the trace does not have it."""

    @property
    def linked(self) -> np.typing.NDArray[np.bool_]:
        """Whether the launching call is known."""
        return self.call >= 0


@once
def launches(trace: Trace) -> Launches:
    """Join device events to their calls; a graph launch has many device events, some calls have none."""
    device = trace.device_rows()
    calls = trace.launch_rows()
    calls = calls[trace.correlation[calls] >= 0]
    # A correlation that occurs twice (a runtime call and the driver call inside it) means the outer, earlier call.
    keys, first = np.unique(trace.correlation[calls], return_index=True)
    wanted = trace.correlation[device]
    found = np.full(len(device), -1, dtype=np.intp)
    if len(keys):
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        match = (keys[place] == wanted) & (wanted >= 0)
        found[match] = calls[first[place[match]]]
    return Launches(device, found)


def kernel_launch_rows(trace: Trace) -> Rows:
    """Rows of the calls that launch a kernel or a graph, ordered as `Trace.rows`."""
    return trace.matching(_LAUNCH.search, trace.launch_rows())
