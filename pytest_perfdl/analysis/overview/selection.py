"""The part of a trace that a selection means (`model.selection`); which rows of tables it means, it says itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.events.communication import communication_kernels
from pytest_perfdl.analysis.events.device_record import carried_over
from pytest_perfdl.analysis.events.intervals import Steps, StepWindow
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.analysis.ranks import rank_numbers
from pytest_perfdl.model.errors import SelectionError
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.model.units import plural
from pytest_perfdl.trace.annotations import step_annotations, step_groups
from pytest_perfdl.trace.model import Category, Trace, once, remember, subset

_MOVES = {"copy": Category.GPU_MEMCPY, "memset": Category.GPU_MEMSET}


def select(trace: Trace, selection: Selection) -> Trace:
    """The events of the selected steps, phases, streams and kinds.

    Of steps, what starts in them on any host thread, and what that launched; memory events come along by their time. Of
    phases, the operators in them and what these launched, of streams and kinds what a device ran on them, each with all
    else that the host did. Without any of these, the trace itself.

    Raises
    ------
    SelectionError
        When the trace has nothing of that.
    """
    whole, trace = trace, _of_steps(trace, selection)
    if phases := selection.words.get("phase"):
        trace = _of_phases(trace, phases)
    if streams := selection.numbers.get("stream"):
        # Names are numbered below zero.
        numbers = sorted({number for number in trace.tid[trace.device_rows()].tolist() if number >= 0})
        has = f"the streams of the trace are {', '.join(map(str, numbers))}" if numbers else "the trace has no streams"
        trace = _of_device(trace, np.isin(trace.tid, streams), has)
    if kinds := selection.words.get("kind"):
        trace = _of_device(
            trace, np.any([_of_kind(trace, kind) for kind in kinds], axis=0), "the device ran no work of this kind"
        )
    if trace is not whole:
        # What is left out has been there all the same: a step begins where the one before it ended, and no kernel of it
        # is missing.
        known = steps_of(whole)
        chosen = tuple(window for window in known.windows if not selection.steps or selection.has_step(window.number))
        remember(steps_of, trace, replace(known, windows=chosen))
    return trace


@once
def in_steps(trace: Trace) -> Trace:
    """The events of the steps that figures are made of, where others are in the trace, else the trace itself.

    Others are those of steps that are left out or lost (`Steps`), of steps of another kind than the first of
    `Steps.groups`, and device events that were launched before the first step: totals divided by the number of steps
    would have them.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    if not steps.windows or steps.windows[0].number < 0:
        return trace
    if len(steps.groups) > 1:
        return of_group(trace, next(iter(steps.groups)))
    carried = joined.linked & (trace.start[joined.call] < steps.windows[0].host_start) | carried_over(trace)
    outside = carried | joined.linked & (trace.start[joined.call] >= steps.windows[-1].host_end)
    if not steps.left_out and not steps.lost and not outside.any():
        return trace
    kept = _of_windows(trace, steps, np.ones(len(steps.windows), dtype=bool))
    remember(steps_of, kept, steps)
    return kept


def largest_group(steps: Steps) -> str:
    """What is said where figures are of one kind of steps: which, of how many; empty where all are of one kind."""
    groups = steps.groups
    if len(groups) < 2:
        return ""
    group, own = next(iter(groups.items()))
    return (
        f"steps of {len(groups)} kinds, by what --step-name captures: figures are of the {plural(len(own), 'step')} of "
        f"the largest, {group!r}, of {len(steps.windows)}"
    )


def of_largest_group(trace: Trace) -> Trace:
    """The events of the first of `Steps.groups` where there are several, else the trace itself."""
    return in_steps(trace) if len(steps_of(trace).groups) > 1 else trace


@once
def with_largest_group(trace: Trace) -> Trace:
    """All events, of which the steps are the first of `Steps.groups`; the trace itself where there is but one."""
    steps = steps_of(trace)
    if len(steps.groups) < 2:
        return trace
    found = replace(trace)
    remember(steps_of, found, _group(trace, next(iter(steps.groups))))
    return found


def of_group(trace: Trace, group: str) -> Trace:
    """The events of the steps of one of `Steps.groups`, and of the steps that are left out those of this group."""
    steps = steps_of(trace)
    kept = _of_windows(trace, steps, np.array([window.group == group for window in steps.windows], dtype=bool))
    remember(steps_of, kept, _group(trace, group))
    return kept


def _group(trace: Trace, group: str) -> Steps:
    steps = steps_of(trace)
    rows, numbers = step_annotations(trace)
    groups = dict(zip(numbers, step_groups(trace, [trace.name_of(row) for row in rows.tolist()]), strict=True))
    left_out = tuple((number, reason) for number, reason in steps.left_out if groups.get(number, group) == group)
    return replace(
        steps,
        windows=tuple(window for window in steps.windows if window.group == group),
        left_out=left_out,
        damage=steps.damage and bool(left_out),
    )


def of_ranks(traces: Sequence[Trace], selection: Selection) -> list[Trace]:
    """Those traces of a job that are of the selected ranks (`rank_numbers`); without ranks, all.

    Raises
    ------
    SelectionError
        When none is.
    """
    ranks = selection.numbers.get("rank")
    if not ranks:
        return list(traces)
    numbers = rank_numbers(traces)
    found = [trace for trace, number in zip(traces, numbers, strict=True) if number in ranks]
    if not found:
        raise SelectionError(
            f"nothing in the job is selected: the ranks of the job are {', '.join(map(str, sorted(numbers)))}"
        )
    return found


def _of_phases(trace: Trace, phases: Sequence[str]) -> Trace:
    of = labels(trace).phase
    split = trace.category == Category.CPU_OP
    split[trace.device_rows()] = True
    wanted = np.isin(of, [PHASES.index(phase) for phase in phases])
    if not (split & wanted).any():
        raise _nothing(trace, "the trace has no work in this phase")
    return subset(trace, np.flatnonzero(~split | wanted))


def _of_device(trace: Trace, wanted: npt.NDArray[np.bool_], has: str) -> Trace:
    """What a device ran and is wanted, with all that the host did."""
    device = trace.device_rows()
    if not wanted[device].any():
        raise _nothing(trace, has)
    keep = np.ones(len(trace), dtype=bool)
    keep[device] = wanted[device]
    return subset(trace, np.flatnonzero(keep))


def _of_kind(trace: Trace, kind: str) -> npt.NDArray[np.bool_]:
    """Which rows a device ran that are of a kind; none of the host's kinds."""
    if kind in _MOVES:
        return np.asarray(trace.category == _MOVES[kind])
    if kind == "communication":
        return communication_kernels(trace)
    if kind == "kernel":
        return np.asarray((trace.category == Category.KERNEL) & ~communication_kernels(trace))
    return np.zeros(len(trace), dtype=bool)


def _frames_around(trace: Trace, windows: Sequence[StepWindow]) -> npt.NDArray[np.bool_]:
    """Python's frames that run during steps, though they began before: the lines of their operators are theirs."""
    found = np.zeros(len(trace), dtype=bool)
    frames = np.flatnonzero(trace.category == Category.PYTHON_FUNCTION)
    for window in windows:
        found[frames] |= (trace.start[frames] < window.host_end) & (trace.end[frames] > window.host_start)
    return found


def _nothing(trace: Trace, has: str) -> SelectionError:
    return SelectionError(f"nothing in {trace.source or 'the trace'} is selected: {has}")


def _of_steps(trace: Trace, selection: Selection) -> Trace:
    if not selection.steps:
        return trace
    steps = steps_of(trace)
    wanted = np.array([selection.has_step(window.number) for window in steps.windows], dtype=bool)
    if not wanted.any():
        for number, reason in steps.left_out:
            if selection.has_step(number):
                raise _nothing(trace, f"step {number} is left out of all figures: {reason}")
        numbers = [window.number for window in steps.windows if window.number >= 0]
        has = f"the steps of the trace are {min(numbers)} to {max(numbers)}" if numbers else "the trace has no steps"
        raise _nothing(trace, has)
    return _of_windows(trace, steps, wanted)


def _of_windows(trace: Trace, steps: Steps, wanted: npt.NDArray[np.bool_]) -> Trace:
    """What begins in the wanted steps on any host thread, what that launched, and the frames around it."""
    joined = launches(trace)
    # One more entry, false, is what the index -1 of an event outside all steps points at.
    keep_step = np.append(wanted, False)
    keep = keep_step[steps.of_host_time(trace.start)]
    keep[joined.device] = keep_step[device_steps(trace)]
    keep |= _frames_around(trace, [window for window, own in zip(steps.windows, wanted, strict=True) if own])
    memory = keep_step[steps.of_host_time(trace.memory.time)]
    return subset(trace, np.flatnonzero(keep), np.flatnonzero(memory))
