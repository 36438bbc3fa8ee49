"""The parts of a trace's steps."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.account.parts.device_parts import device_parts
from pytest_perfdl.analysis.account.parts.host_parts import host_parts
from pytest_perfdl.analysis.account.parts.sums import StepParts
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import Trace


@once
def step_parts(trace: Trace) -> StepParts:
    """What every step of a trace is made of, to the nanosecond.

    With device events the step is its window and the parts are device events and causes of idle time
    (`parts.device`); without, it is the step's time on the host, of operators and Python (`parts.host`). A trace
    without any event has no steps and no parts.
    """
    joined = launches(trace)
    steps = steps_of(trace, joined)
    if not steps.windows:
        nothing = np.zeros((0, 0), dtype=np.int64)
        return StepParts(False, np.zeros(0, dtype=np.int64), (), (), nothing, nothing, nothing)
    return device_parts(trace, steps, joined) if len(joined.device) else host_parts(trace, steps)
