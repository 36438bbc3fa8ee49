"""Which time belongs to which step, and which steps figures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.device_record import (
    DELAY_NS,
    MISSING_SHARE,
    MissingWork,
    carried_over,
    clock_difference,
    missing_work,
    stream_overlaps,
    unread_rows,
    unrecorded_device,
)
from pytest_perfdl.analysis.events.intervals import Intervals, Steps, StepWindow
from pytest_perfdl.analysis.events.launches import UNSET, launches
from pytest_perfdl.analysis.events.nesting import threads_of
from pytest_perfdl.analysis.events.step_list import StepList, repetitions, step_like, step_list
from pytest_perfdl.analysis.events.threads import on_thread
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.trace.annotations import SETUP, step_groups
from pytest_perfdl.trace.model import Category, Rows, Trace, once, remember

FEW_LAUNCHES = 5
"""Launches that all other steps must have for one without any to have lost them."""
UNSEEN_SHARE = 0.1
"""Share of a step that its first launch must wait for an idle device for something unrecorded to be the reason."""
LONG_PAUSE = 10
"""Steps on the host that a pause takes for a device to have been done long before it ended."""
LONGER = 1.05
"""How much longer than any other step a first one must be for unrecorded work ahead of it to be the reason."""


@once
def steps_of(trace: Trace) -> Steps:
    """The steps of a trace that figures are made of.

    Host step N is the `ProfilerStep#N` annotation on its host thread, never its projection on the device. What
    starts inside it, on whichever host thread, belongs to N, and so do the device events that it launches.
    Completion C_N is the later of the annotation's end and the end of the last device event launched in N, and
    window N is [C_{N-1}, C_N). The first step of a run of consecutive numbers has C_0 before it: the later of the
    start of its annotation and the end of the last device event that was carried over, that is, launched before and
    done before C_N; a pause between two steps that is longer than either ends a run, too. On a trace without device
    events windows begin and end with the annotations, so that time between steps belongs to none. Time inside a
    `perfdl.setup` annotation on the step's thread, and what starts there, belongs to no step.

    Of steps by another name (`Trace.step_name`) C_0 is that of every step, and never before the completion of the step
    before: what runs between two ranges that somebody named, such as scheduling, is of no step.

    A trace without steps has one window, numbered -1, over all host operators, calls and device events;
    its thread is the one with most of these on the host. No events, no windows.

    Steps whose figures would be wrong have no window (`Steps.left_out`): those of `step_list`, those of which over
    `MISSING_SHARE` of the device work is missing (`missing_work`) or that follow one whose end is, and all where the
    clocks of host and device differ by as much of a step.
    """
    return _steps(trace, step_list(trace))


@once
def device_steps(trace: Trace) -> Rows:
    """Index of the step that launched each device event of `launches`, -1 for none.

    Where the launch is not known it is the step in whose window the event runs, unless it is `carried_over`.
    """
    joined, steps = launches(trace), steps_of(trace)
    starts = trace.start[joined.device]
    step = steps.of_host_time(np.where(joined.linked, trace.start[joined.call], starts))
    unlinked = ~joined.linked
    step[unlinked] = steps.of_window_time(starts[unlinked])
    step[carried_over(trace)] = -1
    return step


def device_time(trace: Trace) -> Intervals:
    """From the first device event's start to the last one's end, without the time between steps (`Steps.skipped`)."""
    device = trace.device_rows()
    if len(device) == 0:
        return Intervals.between(0, 0)
    time = Intervals.between(int(trace.start[device].min()), int(trace.end[device].max()))
    return time.difference(steps_of(trace).skipped)


def whole_steps(trace: Trace) -> Steps:
    """The steps of a trace whose first and last are known to be whole; `steps_of` says so from here on."""
    found = _steps(trace, step_list(trace, complete=True))
    remember(steps_of, trace, found)
    return found


def _steps(trace: Trace, listed: StepList) -> Steps:
    has_device = len(trace.device_rows()) > 0
    if len(listed) == 0 and (whole := _whole(trace)) is not None:
        (listed.thread, start, end, *window) = whole
        listed.number, listed.start, listed.end = [-1], [start], [end]
    elif len(listed) == 0:
        return Steps((), _setup(trace, (0, 0)))
    else:
        window = []
    if len(listed) == 1:
        _note_repetitions(trace, listed)
    unsure = _check_device_work(trace, listed)
    difference = clock_difference(trace) if has_device else 0
    if not has_device:
        bounds = _Bounds(listed.start, listed.end)
    elif window:
        bounds = _Bounds([window[0]], [window[1]])
    else:
        bounds = _bounds(trace, listed, clocks_agree=not difference)
        _leave_out_odd(trace, listed, bounds, unsure)
    _check_clocks(listed, difference, bounds.lengths())
    setup = _setup(trace, listed.thread)
    windows = []
    groups = step_groups(trace, [listed.name_of(index) for index in range(len(listed))])
    for index in listed.kept:
        start, end = listed.start[index], listed.end[index]
        first, last = bounds.opens[index], bounds.completions[index]
        windows.append(
            StepWindow(
                number=listed.number[index],
                host_start=start,
                host_end=end,
                start=first,
                end=last,
                host_ns=end - start - setup.clip(start, end).length,
                window_ns=last - first - setup.clip(first, last).length,
                pid=listed.thread[0],
                tid=listed.thread[1],
                name=listed.name_of(index) if listed.number[index] >= 0 else "",
                group=groups[index],
            )
        )
    left_out = tuple((listed.number[index], reason) for index, reason in sorted(listed.reasons.items()))
    lost = listed.lost or bool(listed.names)
    return Steps(tuple(windows), setup, left_out, tuple(listed.findings), lost, listed.damaged)


def _note_repetitions(trace: Trace, listed: StepList) -> None:
    """Say of the only step, or of a trace without steps, what in it may be steps."""
    if listed.number[0] < 0:
        count, pattern = step_like(trace)
        if count:
            listed.note("note", "step-like", f"{count:,} annotations look like steps: --step-name '{pattern}'")
            return
    events, times = repetitions(trace, listed.thread, listed.start[0], listed.end[0])
    if times:
        what = "the trace, which has no steps," if listed.number[0] < 0 else "the only step"
        listed.note(
            "note",
            "repetitions",
            f"{what} repeats the same {plural(events, 'operator or launch', 'operators and launches')} {times:,} "
            f"times: it may hold {times:,} iterations, if these are not equal layers of one",
        )


@dataclass(slots=True)
class _Bounds:
    """C_{N-1} and C_N of each step, and what is odd about them, by index of the step."""

    opens: list[int] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    """First steps that are over before the work carried over is."""
    unseen: list[int] = field(default_factory=list)
    """First steps whose first device event waited for something that is not in the trace."""
    torn: list[int] = field(default_factory=list)
    """Steps whose last device events are on the other side of a pause."""
    pauses: list[int] = field(default_factory=list)
    """Lengths of pauses between steps, nanoseconds."""

    def lengths(self) -> list[int]:
        """Duration of each window, setup included."""
        return [last - first for first, last in zip(self.opens, self.completions, strict=True)]


def _bounds(trace: Trace, listed: StepList, *, clocks_agree: bool) -> _Bounds:
    """The bounds of all steps, those that are left out too: see `steps_of`."""
    joined = launches(trace)
    linked = joined.linked
    order = np.argsort(trace.start[joined.call[linked]], kind="stable")
    device, call = joined.device[linked][order], joined.call[linked][order]
    began, finished, returned = trace.start[device], trace.end[device], trace.end[call]
    before = np.sort(trace.end[joined.device[carried_over(trace)]])
    found = _Bounds()
    bounds = np.searchsorted(trace.start[call], (listed.start, listed.end)).tolist()
    for index, (first, last) in enumerate(zip(*bounds, strict=True)):
        completion = int(finished[first:last].max(initial=listed.end[index]))
        if _follows(trace, listed, index, found):
            completion = max(completion, found.completions[-1])
            opening = found.completions[-1]
        else:
            carried = np.concatenate((finished[:first], before))
            opening = int(carried[carried <= completion].max(initial=listed.start[index]))
            if last > first and clocks_agree:
                # An idle device begins at once what is launched; else it may have run what is not recorded.
                at = first + int(np.argmin(began[first:last]))
                since, until = max(opening, int(returned[at])), int(began[at])
                waits = until - since > max(DELAY_NS, UNSEEN_SHARE * (completion - opening))
                if waits and 2 * covered(trace, joined.device).clip(since, until).length < until - since:
                    found.unseen.append(index)
            if listed.names and index:
                completion = max(completion, found.completions[-1])
                opening = max(opening, found.completions[-1])
            if opening >= completion:
                found.hidden.append(index)
        found.opens.append(opening)
        found.completions.append(completion)
    return found


def _follows(trace: Trace, listed: StepList, index: int, found: _Bounds) -> bool:
    """Whether a step's window begins where that of the step before ends."""
    if listed.names or not index or listed.number[index] != listed.number[index - 1] + 1:
        return False
    if index - 1 in listed.reasons:
        return False
    length = max(listed.end[index] - listed.start[index], found.completions[-1] - found.opens[-1])
    pause = listed.start[index] - max(found.completions[-1], listed.end[index - 1])
    if pause > length:
        found.pauses.append(pause)
        return False
    if _is_torn(trace, listed, index):
        found.torn.append(index - 1)
        return False
    return True


def _leave_out_odd(trace: Trace, listed: StepList, found: _Bounds, unsure: Sequence[int]) -> None:
    """Leave out steps whose bounds are not known; `unsure` are steps whose last device event is missing."""
    listed.leave_out(found.torn, "pause", "{steps}, which a long pause of the CPU follows before its device work ends")
    if found.pauses:
        took = format_quantity(sum(found.pauses), "ns")
        listed.note("note", "pauses", f"{plural(len(found.pauses), 'pause')} between steps, {took} in all: in no step")
    lengths = found.lengths()
    usual = max((lengths[index] for index in listed.kept if index not in found.unseen), default=0)
    listed.leave_out(
        [index for index in found.unseen if usual and lengths[index] > LONGER * usual],
        "unseen-work",
        f"{{steps}}, longer than all others: the device begins it over {format_quantity(DELAY_NS, 'ns')} after the "
        "launch, and what it ran before was not recorded",
        is_damage=False,
    )
    joined = launches(trace)
    loose = ~joined.linked & ~carried_over(trace)
    outside = int(np.count_nonzero(loose & (trace.start[joined.device] >= found.completions[-1])))
    if outside > MISSING_SHARE * len(loose):
        listed.leave_out(
            listed.kept,
            "unknown-ends",
            f"{plural(outside, 'device event')} without a known launch after the last step, so the ends of {{steps}} "
            "are not known",
        )
    listed.leave_out(found.hidden, "covered-step", "{steps} without time of their own, after the work of earlier steps")
    after = [index + 1 for index in unsure if listed.number[index + 1 : index + 2] == [listed.number[index] + 1]]
    listed.leave_out(after, "unknown-begin", "{steps} after a step whose last device event, and so its end, is missing")


def _is_torn(trace: Trace, listed: StepList, index: int) -> bool:
    """Whether the last device events of the step before are on the other side of a long pause of host and device."""
    since, until = listed.end[index - 1], listed.start[index]
    if until - since <= LONG_PAUSE * (since - listed.start[index - 1]):
        return False
    return 2 * covered(trace, trace.device_rows()).clip(since, until).length < until - since


def _check_device_work(trace: Trace, listed: StepList) -> list[int]:
    """Leave out steps without enough of their device work; those left out of which the last event is missing."""
    has_device = len(trace.device_rows()) > 0
    count, name, of_device = unread_rows(trace)
    if count:
        what = f"{plural(count, 'event')} without a category in the process {name!r}: not read"
        if of_device and not has_device:
            listed.leave_out(listed.kept, "unread-device", f"{what}, so the device's work is not known in {{steps}}")
            return []
        listed.note("note", "unread", what)
    elif unrecorded := unrecorded_device(trace):
        listed.note(
            "note", "no-device-events", f"{unrecorded} and has no device event: step times are those of the CPU alone"
        )
    _note_links(trace, listed)
    work = missing_work(trace)
    counts = np.diff(np.searchsorted(trace.start[work.call], (listed.start, listed.end)), axis=0)[0]
    others = [int(counts[index]) for index in listed.kept if counts[index]]
    if has_device and others and min(others) >= FEW_LAUNCHES:
        silent = [index for index in listed.kept if not counts[index]]
        listed.leave_out(silent, "no-launches", "{steps} without launch calls, which all other steps have")
    if work.moves:
        listed.note(
            "note",
            "moves",
            plural(
                work.moves,
                "call that copies or sets memory has no device event: it moved no bytes, the CPU did its work, or its "
                "work was not recorded",
                "calls that copy or set memory have no device event: they moved no bytes, the CPU did their work, or "
                "their work was not recorded",
            ),
        )
    return _leave_out_missing(trace, listed, work) if work.missing.any() else []


def _note_links(trace: Trace, listed: StepList) -> None:
    """Say which device events have no launch, and which share their stream with the next one."""
    joined = launches(trace)
    loose = ~joined.linked & ~joined.refused & ~carried_over(trace)
    unset = np.isin(trace.correlation[joined.device], UNSET)
    where = "counted in the step during which they run"
    for which, code, why in (
        (joined.refused, "refused-links", "with a correlation that names a call that cannot have launched it"),
        (loose & ~unset, "unlinked", "without a launch call in the trace"),
        (loose & unset, "unlinked", "without a correlation"),
    ):
        if count := int(np.count_nonzero(which)):
            share = format_percent(count / len(joined.device), signed=False)
            listed.note("invalid", code, f"{plural(count, 'device event')} ({share}) {why}: {where}")
    overlaps, together = stream_overlaps(trace)
    if overlaps:
        listed.note(
            "note",
            "overlaps",
            f"{plural(overlaps, 'device event overlaps', 'device events overlap')} the next one of the stream, by "
            f"{format_quantity(together, 'ns')} in all: sums of kernels count that time twice",
        )


def _leave_out_missing(trace: Trace, listed: StepList, work: MissingWork) -> list[int]:
    """Leave out steps of which more than `MISSING_SHARE` is missing; those of them whose last event is."""
    lost = int(np.count_nonzero(work.missing))
    share = format_percent(lost / len(work.call), signed=False)
    what = f"{lost:,} of {plural(len(work.call), 'kernel launch', 'kernel launches')} ({share})"
    if not len(trace.device_rows()):
        text = f"{what} and no device event: what the device did is not recorded, in {{steps}}"
        listed.leave_out(listed.kept, "no-device-work", text)
        return []
    called = trace.start[work.call]
    poor, unsure = [], []
    for index in listed.kept:
        own = slice(*np.searchsorted(called, (listed.start[index], listed.end[index])).tolist())
        missing, expected = work.missing[own], work.expected[own]
        if missing.sum() > MISSING_SHARE * expected.sum():
            poor.append(index)
            if missing[np.flatnonzero(expected)[-1]]:
                unsure.append(index)
    text = f"{what} lack device events, whose time is missing"
    if poor:
        listed.leave_out(poor, "missing-work", f"{text}: over {MISSING_SHARE:.0%} of the work of {{steps}}")
    else:
        listed.note("invalid", "missing-work", f"{text}: of no step more than {MISSING_SHARE:.0%} of the work")
    return unsure


def _check_clocks(listed: StepList, difference: int, lengths: Sequence[int]) -> None:
    """Leave out all steps where the clocks of host and device are too far apart to say what was when."""
    kept = listed.kept
    if not difference or not kept:
        return
    mean = sum(lengths[index] for index in kept) / len(kept)
    which = "late" if difference > 0 else "early"
    what = f"clocks differ: times of the device are {format_quantity(abs(difference), 'ns')} {which} against the CPU's"
    if abs(difference) > MISSING_SHARE * mean:
        listed.leave_out(kept, "clocks", f"{what}, so the times of {{steps}} are not known")
    else:
        listed.note("note", "clocks", f"{what}: causes of idle time may be wrong")


def _setup(trace: Trace, thread: tuple[int, int]) -> Intervals:
    rows = trace.matching(lambda name: name == SETUP, trace.rows(Category.USER_ANNOTATION))
    return covered(trace, on_thread(trace, rows, thread))


def _whole(trace: Trace) -> tuple[tuple[int, int], int, int, int, int] | None:
    """Thread and bounds, on the host and of all, of the one window of a trace without steps."""
    host = np.concatenate((trace.rows(Category.CPU_OP), trace.launch_rows()))
    everything = np.concatenate((host, trace.device_rows()))
    if len(everything) == 0:
        return None
    host = host if len(host) else everything
    # Of equally busy threads the one that comes first.
    pid, tid, _ = max(threads_of(trace.pid[host], trace.tid[host]), key=lambda thread: (len(thread[2]), -thread[2][0]))
    end = trace.end
    return (
        (pid, tid),
        int(trace.start[host].min()),
        int(end[host].max()),
        int(trace.start[everything].min()),
        int(end[everything].max()),
    )
