"""The step annotations of a trace."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.trace.model import Category, Rows, Trace

MODULE = "perfdl.module: "
"""Begins the name of the range that a profiled pass of ours makes around a module's forward pass; its path follows."""

WAIT = "perfdl.data_wait"
"""Name of the range around waiting for data, which counts as input."""
SETUP = "perfdl.setup"
"""Name of the range around a step's `setup=`, which is taken out of the step."""

_STEP = re.compile(r"ProfilerStep#(\d+)$")


def step_annotations(trace: Trace) -> tuple[Rows, tuple[int, ...]]:
    """Rows of the `ProfilerStep#N` annotations by time, and each one's N.

    Only host annotations count, never their projection on the device; of several threads that have some, the
    one that has most.
    """
    matches = [_STEP.match(name) for name in trace.names]
    rows = trace.matching(_STEP.match, trace.rows(Category.USER_ANNOTATION))
    if len(rows):
        threads = list(zip(trace.pid[rows].tolist(), trace.tid[rows].tolist(), strict=True))
        owner = max(dict.fromkeys(threads), key=threads.count)
        rows = rows[np.array([thread == owner for thread in threads], dtype=bool)]
    numbers = {index: int(match[1]) for index, match in enumerate(matches) if match is not None}
    return rows, tuple(numbers[index] for index in trace.name[rows].tolist())
