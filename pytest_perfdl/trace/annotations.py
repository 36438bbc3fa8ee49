"""The step annotations of a trace."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from pytest_perfdl.trace.model import I64, LAUNCH_CATEGORIES, Category, Rows, Trace

MODULE = "perfdl.module: "
"""Begins the name of the range that a profiled pass of ours makes around a module's forward pass; its path follows."""

WAIT = "perfdl.data_wait"
"""Name of the range around waiting for data, which counts as input."""
SETUP = "perfdl.setup"
"""Name of the range around a step's `setup=`, which is taken out of the step."""

STEP = re.compile(r"ProfilerStep#(\d+)$")
"""Name of a step of torch.profiler, with its number."""


def step_annotations(trace: Trace) -> tuple[Rows, tuple[int, ...]]:
    """Rows of the `ProfilerStep#N` annotations by time, and each one's N.

    Only host annotations count, never their projection on the device; of several threads that have some, those of the
    thread that holds the work: most operators and runtime calls begin inside its annotations.
    """
    matches = [STEP.match(name) for name in trace.names]
    rows = trace.matching(STEP.match, trace.rows(Category.USER_ANNOTATION))
    threads = np.column_stack((trace.pid[rows], trace.tid[rows]))
    if len(rows) and (threads != threads[0]).any():
        rows = max((rows[(threads == own).all(axis=1)] for own in _in_order(threads)), key=partial(_held, trace))
    numbers = {index: int(match[1]) for index, match in enumerate(matches) if match is not None}
    return rows, tuple(numbers[index] for index in trace.name[rows].tolist())


def _in_order(threads: I64) -> I64:
    """Each distinct thread, by where it first occurs."""
    _, first = np.unique(threads, axis=0, return_index=True)
    return threads[np.sort(first)]


def _held(trace: Trace, annotations: Rows) -> tuple[int, int]:
    """How many operators and runtime calls of their thread begin inside the annotations, and how many these are."""
    work = trace.rows(Category.CPU_OP, *LAUNCH_CATEGORIES)
    own = (trace.pid[work] == trace.pid[annotations[0]]) & (trace.tid[work] == trace.tid[annotations[0]])
    start = trace.start[work[own]]
    reach = np.maximum.accumulate(trace.end[annotations])
    place = np.searchsorted(trace.start[annotations], start, side="right") - 1
    return int(np.count_nonzero((place >= 0) & (start < reach[place]))), len(annotations)
