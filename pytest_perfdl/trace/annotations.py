"""The step annotations of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import I64, LAUNCH_CATEGORIES, Category, Rows, Trace

MODULE = "perfdl.module: "
"""Begins the name of the range that a profiled pass of ours makes around a module's forward pass; its path follows."""

WAIT = "perfdl.data_wait"
"""Name of the range around waiting for data, which counts as input."""
SETUP = "perfdl.setup"
"""Name of the range around a step's `setup=`, which is taken out of the step."""

STEP = re.compile(r"ProfilerStep#(\d+)$")
"""Name of a step of torch.profiler, with its number."""
NUMBER = re.compile(r"(\d+)")
"""A number in a name; `split` has the text before, between and behind numbers at even places."""


def step_annotations(trace: Trace) -> tuple[Rows, tuple[int, ...]]:
    """Rows of the annotations that are steps by time, and each one's number: N of `ProfilerStep#N`.

    Only host annotations count, never their projection on the device; of several threads that have some, those of the
    thread that holds the work: most operators and runtime calls begin inside its annotations. Steps by another name
    (`Trace.step_name`) are numbered from 0 by time, without those within others (`nested_annotations`).
    """
    pattern = trace.step_name
    rows = trace.matching(STEP.match if pattern is None else pattern.fullmatch, trace.rows(Category.USER_ANNOTATION))
    threads = np.column_stack((trace.pid[rows], trace.tid[rows]))
    if len(rows) and (threads != threads[0]).any():
        rows = max((rows[(threads == own).all(axis=1)] for own in _in_order(threads)), key=partial(_held, trace))
    if pattern is not None:
        outer = rows[~_is_nested(trace, rows)]
        return outer, tuple(range(len(outer)))
    matches = ((index, STEP.match(trace.names[index])) for index in np.unique(trace.name[rows]).tolist())
    numbers = {index: int(match[1]) for index, match in matches if match is not None}
    return rows, tuple(numbers[index] for index in trace.name[rows].tolist())


def step_groups(trace: Trace, names: Sequence[str]) -> tuple[str, ...]:
    """What `Trace.step_name` captures of each step's name: "2, 64", or "context=2" of a group with a name.

    Empty without groups in the pattern; steps with equal text are of one kind.
    """
    pattern = trace.step_name
    if pattern is None or not pattern.groups:
        return ("",) * len(names)
    called = {index: name for name, index in pattern.groupindex.items()}
    told = {}
    for name in dict.fromkeys(names):
        match = pattern.fullmatch(name)
        found = match.groups(default="") if match is not None else ()
        told[name] = ", ".join(
            f"{called[index]}={text}" if index in called else text for index, text in enumerate(found, 1)
        )
    return tuple(told[name] for name in names)


def nested_annotations(trace: Trace, steps: Rows) -> int:
    """How many annotations of the steps' thread match `Trace.step_name` and lie within one of the steps."""
    if trace.step_name is None or not len(steps):
        return 0
    rows = trace.matching(trace.step_name.fullmatch, trace.rows(Category.USER_ANNOTATION))
    own = (trace.pid[rows] == trace.pid[steps[0]]) & (trace.tid[rows] == trace.tid[steps[0]])
    return int(np.count_nonzero(own)) - len(steps)


def _is_nested(trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which annotations of a thread, by time, lie within another."""
    end = trace.end[rows]
    return np.concatenate((np.zeros(1, dtype=bool), end[1:] <= np.maximum.accumulate(end)[:-1]))[: len(rows)]


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
