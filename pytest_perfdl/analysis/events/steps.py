"""Which time belongs to which step, and which steps figures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.communication import covered
from pytest_perfdl.analysis.events.device_record import (
    DELAY_NS,
    MISSING_SHARE,
    clock_difference,
    missing_work,
    stream_overlaps,
    unread_rows,
    unrecorded_device,
)
from pytest_perfdl.analysis.events.device_steps import carried_over
from pytest_perfdl.analysis.events.enclosing import threads_of
from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import UNSET, Launches, launches
from pytest_perfdl.analysis.events.step_list import StepList, step_list
from pytest_perfdl.analysis.events.unnamed_steps import repetitions, step_like
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.trace.annotations import SETUP, step_groups
from pytest_perfdl.trace.cached import once, remember
from pytest_perfdl.trace.model import I64, Category, Rows, Trace


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One step: its annotation on the host, and the window that its device work extends. Nanoseconds."""

    number: int
    """N of `ProfilerStep#N`, of steps by another name their place by time from 0; -1 for the one window of a trace
    without steps."""
    host_start: int
    host_end: int
    start: int
    """Start of the window [C_{N-1}, C_N); that of a first step is C_0, see `step_windows`."""
    end: int
    """C_N: the annotation's end or that of the last device event launched in N, whichever is later."""
    host_ns: int
    """Duration of the annotation without the setup in it."""
    window_ns: int
    """Duration of the window without the setup in it; windows tile, so their mean is the period."""
    pid: int
    tid: int
    """Process and thread that own the step."""
    name: str = ""
    """Name of the annotation; empty without steps."""
    group: str = ""
    """What `Trace.step_name` captures of the name (`step_groups`): steps of one kind."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace as a function of time."""

    windows: tuple[StepWindow, ...]
    """By time; without those that are left out."""
    setup: Intervals
    """Time on the steps' thread that belongs to no step."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Number and reason of each step of the file that no figure is made of."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the steps and the record of the device: `invalid` for damage."""

    lost: bool = False
    """Whether work of no step may be among the steps': their annotations are missing, or name only a part."""
    damage: bool = False
    """Whether damage is why a step is left out."""

    @property
    def damaged(self) -> bool:
        """Whether damage has left less of the trace than a comparison needs: fewer than two steps."""
        return self.damage and len(self.windows) < LEAST_STEPS

    @property
    def groups(self) -> dict[str, list[StepWindow]]:
        """The steps of each kind; first the kind with most steps, of equally many that with most time."""
        found: dict[str, list[StepWindow]] = {}
        for window in self.windows:
            found.setdefault(window.group, []).append(window)
        order = sorted(found, key=lambda group: (-len(found[group]), -sum(each.window_ns for each in found[group])))
        return {group: found[group] for group in order}

    @property
    def host(self) -> Intervals:
        """The time of the steps on the host: their annotations without the setup."""
        starts = np.array([window.host_start for window in self.windows], dtype=np.int64)
        ends = np.array([window.host_end for window in self.windows], dtype=np.int64)
        return Intervals.union_of(starts, ends).difference(self.setup)

    def host_time(self, index: int) -> Intervals:
        """The time of one step on the host."""
        window = self.windows[index]
        return Intervals.between(window.host_start, window.host_end).difference(self.setup)

    def window_time(self, index: int) -> Intervals:
        """The time of one step's window."""
        window = self.windows[index]
        return Intervals.between(window.start, window.end).difference(self.setup)

    def of_host_time(self, time: I64) -> Rows:
        """Index of the step whose time on the host holds each moment, -1 for none."""
        starts = np.array([window.host_start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(starts, time, side="right") - 1
        index[~self.host.contains(time)] = -1
        return index

    def of_window_time(self, time: I64) -> Rows:
        """Index of the step whose window holds each moment, -1 for none."""
        starts = np.array([window.start for window in self.windows], dtype=np.int64)
        index = np.searchsorted(starts, time, side="right") - 1
        ends = np.array([window.end for window in self.windows], dtype=np.int64)
        if len(index) and self.windows:
            index[(time >= ends[index]) | self.setup.contains(time)] = -1
        return index


UNSEEN_SHARE = 0.1
"""Share of a step that its first launch must wait for an idle device for something unrecorded to be the reason."""
LONG_PAUSE = 10
"""Steps on the host that a pause takes for a device to have been done long before it ended."""
LONGER = 1.05
"""How much longer than any other step a first one must be for unrecorded work ahead of it to be the reason."""
LEAST_STEPS = 2
"""Undamaged steps that a comparison needs of a damaged trace."""


def step_windows(trace: Trace) -> tuple[StepWindow, ...]:
    """The steps of a trace, by time, that figures are made of.

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
    return steps_of(trace, launches(trace)).windows


@once
def steps_of(trace: Trace, joined: Launches) -> Steps:
    """The steps as `step_windows` defines them, ready to be asked what belongs to them."""
    return _steps(trace, joined, step_list(trace, joined))


def whole_steps(trace: Trace) -> Steps:
    """The same of a trace whose first and last step are known to be whole; `steps_of` says so from here on."""
    joined = launches(trace)
    found = _steps(trace, joined, step_list(trace, joined, complete=True))
    remember(steps_of, trace, found, joined)
    return found


def _steps(trace: Trace, joined: Launches, listed: StepList) -> Steps:
    if len(listed) == 0 and (bounds := _whole(trace)) is not None:
        (listed.thread, start, end, *window) = bounds
        listed.number, listed.start, listed.end = [-1], [start], [end]
    elif len(listed) == 0:
        return Steps((), _setup(trace, (0, 0)))
    else:
        window = []
    if len(listed) == 1:
        _looks_like_several(trace, joined, listed)
    unsure = _device_work(trace, joined, listed)
    difference = clock_difference(trace, joined) if len(joined.device) else 0
    if len(joined.device) == 0:
        opens, completions = listed.start, listed.end
    elif window:
        opens, completions = [window[0]], [window[1]]
    else:
        opens, completions = _windows(trace, joined, listed, unsure, clocks_agree=not difference)
    _clocks(listed, difference, [last - first for first, last in zip(opens, completions, strict=True)])
    setup = _setup(trace, listed.thread)
    windows = []
    groups = step_groups(trace, [listed.name_of(index) for index in range(len(listed))])
    for index in listed.kept:
        start, end, first, last = listed.start[index], listed.end[index], opens[index], completions[index]
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


def _looks_like_several(trace: Trace, joined: Launches, listed: StepList) -> None:
    """Say of the only step, or of a trace without steps, what in it may be steps."""
    if listed.number[0] < 0:
        count, pattern = step_like(trace, joined)
        if count:
            listed.note("note", "step-like", f"{count:,} annotations look like steps: --step-name '{pattern}'")
            return
    events, times = repetitions(trace, joined, listed.thread, listed.start[0], listed.end[0])
    if times:
        what = "the trace, which has no steps," if listed.number[0] < 0 else "the only step"
        listed.note(
            "note",
            "repetitions",
            f"{what} repeats the same {plural(events, 'operator or launch', 'operators and launches')} {times:,} "
            f"times: it may hold {times:,} iterations, if these are not equal layers of one",
        )


def _windows(
    trace: Trace, joined: Launches, listed: StepList, unsure: Sequence[int], *, clocks_agree: bool
) -> tuple[list[int], list[int]]:
    """C_{N-1} and C_N of each step; `unsure` are steps whose last device event is missing."""
    linked = joined.linked
    launched_at = trace.start[joined.call[linked]]
    order = np.argsort(launched_at, kind="stable")
    finished, launched_at = trace.end[joined.device[linked]][order], launched_at[order]
    before = np.sort(trace.end[joined.device[carried_over(trace, joined)]])
    firsts, lasts = np.searchsorted(launched_at, (listed.start, listed.end)).tolist()
    call = joined.call[linked][order]
    began, returned = trace.start[joined.device[linked]][order], trace.end[call]
    opens: list[int] = []
    completions: list[int] = []
    hidden, unseen, pauses, torn = [], [], [], []
    for index, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        completion = int(finished[first:last].max(initial=listed.end[index]))
        follows = index and listed.number[index] == listed.number[index - 1] + 1 and index - 1 not in listed.reasons
        follows = follows and not listed.names
        if follows:
            own = max(listed.end[index] - listed.start[index], completions[-1] - opens[-1])
            pause = listed.start[index] - max(completions[-1], listed.end[index - 1])
            if pause > own:
                pauses.append(pause)
                follows = False
            elif _is_torn(trace, joined, listed, index):
                torn.append(index - 1)
        if follows:
            completion = max(completion, completions[-1])
            opens.append(completions[-1])
        else:
            carried = np.concatenate((finished[:first], before))
            opening = int(carried[carried <= completion].max(initial=listed.start[index]))
            at = first + int(np.argmin(began[first:last])) if last > first else -1
            # An idle device begins at once what is launched; else it may have run what is not recorded.
            since = max(opening, int(returned[at])) if at >= 0 else 0
            delay = int(began[at]) - since if at >= 0 else 0
            waits = clocks_agree and delay > max(DELAY_NS, UNSEEN_SHARE * (completion - opening))
            if waits and 2 * covered(trace, joined.device).clip(since, since + delay).length < delay:
                unseen.append(index)
            opens.append(opening)
            if listed.names and index:
                completion = max(completion, completions[-1])
                opens[-1] = max(opens[-1], completions[-1])
        completions.append(completion)
        if not follows and opens[-1] >= completion and index not in listed.reasons:
            hidden.append(index)
    listed.leave_out(torn, "pause", "{steps}, which a long pause of the CPU follows before its device work ends")
    if pauses:
        listed.note(
            "note",
            "pauses",
            f"{plural(len(pauses), 'pause')} between steps, {format_quantity(sum(pauses), 'ns')} in all: in no step",
        )
    usual = sorted(
        last - first
        for index, (first, last) in enumerate(zip(opens, completions, strict=True))
        if index in listed.kept and index not in unseen
    )
    longer = [index for index in unseen if usual and completions[index] - opens[index] > LONGER * usual[-1]]
    listed.leave_out(
        longer,
        "unseen-work",
        f"{{steps}}, longer than all others: the device begins it over {format_quantity(DELAY_NS, 'ns')} after the "
        "launch, and what it ran before was not recorded",
        is_damage=False,
    )
    loose = ~linked & ~carried_over(trace, joined)
    outside = np.count_nonzero(loose & (trace.start[joined.device] >= completions[-1]))
    if outside > MISSING_SHARE * len(linked):
        listed.leave_out(
            listed.kept,
            "unknown-ends",
            f"{plural(int(outside), 'device event')} without a known launch after the last step, so the ends of "
            "{steps} are not known",
        )
    listed.leave_out(hidden, "covered-step", "{steps} without time of their own, after the work of earlier steps")
    after = [
        index + 1
        for index in unsure
        if index + 1 < len(listed) and listed.number[index + 1] == listed.number[index] + 1
    ]
    listed.leave_out(
        after,
        "unknown-begin",
        "{steps}, which begins where a step ends whose last device event is missing",
    )
    return opens, completions


def _is_torn(trace: Trace, joined: Launches, listed: StepList, index: int) -> bool:
    """Whether the last device events of the step before are on the other side of a long pause of host and device."""
    since, until = listed.end[index - 1], listed.start[index]
    if until - since <= LONG_PAUSE * (since - listed.start[index - 1]):
        return False
    return 2 * covered(trace, joined.device).clip(since, until).length < until - since


def _device_work(trace: Trace, joined: Launches, listed: StepList) -> list[int]:
    """Leave out steps without enough of their device work; those left out of which the last event is missing."""
    count, name, of_device = unread_rows(trace)
    if count:
        what = f"{plural(count, 'event')} without a category in the process {name!r}: not read"
        if of_device and len(joined.device) == 0:
            listed.leave_out(listed.kept, "unread-device", f"{what}, so the device's work is not known in {{steps}}")
            return []
        listed.note("note", "unread", what)
    elif unrecorded := unrecorded_device(trace, joined):
        listed.note(
            "note", "no-device-events", f"{unrecorded} and has no device event: step times are those of the CPU alone"
        )
    work = missing_work(trace, joined)
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
    if refused := int(np.count_nonzero(joined.refused)):
        listed.note(
            "invalid",
            "refused-links",
            f"{plural(refused, 'device event')} with a correlation that names a call that cannot have launched it: "
            "treated as without a launch call",
        )
    loose = ~joined.linked & ~joined.refused & ~carried_over(trace, joined)
    unset = np.isin(trace.correlation[joined.device], UNSET)
    for which, why in (
        (loose & ~unset, "without a launch call in the trace"),
        (loose & unset, "without a correlation"),
    ):
        if count := int(np.count_nonzero(which)):
            share = format_percent(count / len(joined.device), signed=False)
            listed.note(
                "invalid",
                "unlinked",
                f"{plural(count, 'device event')} ({share}) {why}: counted in the step during which they run",
            )
    overlaps, together = stream_overlaps(trace, joined)
    if overlaps:
        listed.note(
            "note",
            "overlaps",
            f"{plural(overlaps, 'device event overlaps', 'device events overlap')} the next one of the stream, by "
            f"{format_quantity(together, 'ns')} in all: sums of kernels count that time twice",
        )
    lost = int(np.count_nonzero(work.missing))
    if not lost:
        return []
    share = format_percent(lost / len(work.call), signed=False)
    what = f"{lost:,} of {plural(len(work.call), 'kernel launch', 'kernel launches')} ({share})"
    if len(joined.device) == 0:
        listed.leave_out(
            listed.kept,
            "no-device-work",
            f"{what} and no device event: what the device did is not recorded, in {{steps}}",
        )
        return []
    called = trace.start[work.call]
    poor, unsure = [], []
    for index in listed.kept:
        first, last = np.searchsorted(called, (listed.start[index], listed.end[index])).tolist()
        missing, expected = int(work.missing[first:last].sum()), int(work.expected[first:last].sum())
        if missing > MISSING_SHARE * expected:
            poor.append(index)
            known = np.flatnonzero(work.expected[first:last])
            if work.missing[first + known[-1]]:
                unsure.append(index)
    text = f"{what} lack device events, whose time is missing"
    if poor:
        part = f"{MISSING_SHARE:.0%}"
        listed.leave_out(poor, "missing-work", f"{text}: over {part} of the work of {{steps}}")
    else:
        listed.note("invalid", "missing-work", f"{text}, under {MISSING_SHARE:.0%} of each step")
    return unsure


def _clocks(listed: StepList, difference: int, lengths: Sequence[int]) -> None:
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
        listed.note("invalid", "clocks", f"{what}: causes of idle time may be wrong")


def _setup(trace: Trace, thread: tuple[int, int]) -> Intervals:
    rows = trace.matching(lambda name: name == SETUP, trace.rows(Category.USER_ANNOTATION))
    rows = rows[(trace.pid[rows] == thread[0]) & (trace.tid[rows] == thread[1])]
    return Intervals.union_of(trace.start[rows], trace.end[rows])


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
