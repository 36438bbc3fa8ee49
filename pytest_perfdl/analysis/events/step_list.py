"""Which step annotations of a trace are steps: one list without repetitions, overlaps and cut-off ends."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pytest_perfdl.analysis.events.intervals import Intervals
from pytest_perfdl.analysis.events.launches import launch_calls
from pytest_perfdl.analysis.events.threads import input_rows, on_thread, operator_threads
from pytest_perfdl.model.record import Finding
from pytest_perfdl.model.units import format_percent, plural
from pytest_perfdl.trace.annotations import NUMBER, nested_annotations, step_annotations, step_groups
from pytest_perfdl.trace.model import I32, Category, Rows, Trace

OVERLAP_SHARE = 0.01
"""Share of the shorter of two steps by which they may overlap and still count as one after the other."""
AGREEING = 3
"""Steps that must run the same operators for a first or last step that runs others to be left out."""
MANY = 5
"""Steps from which on it is by right that they differ, if no three of them agree."""
NAMED = 8
"""Steps, or runs of them, that are named one by one."""
EARLY_END_SHARE = 0.1
"""Share of a step's operators that may follow its annotation, before the next step, and be of none."""
LOST_SHARE = 0.5
"""Share of a step's operators that must lie between two steps for a step between them to be lost."""
FEW = 4
"""Operators that may lie between two steps, as of a script's own, whatever these run."""
FRAGMENT_SHARE, FRAGMENT_OF = 0.1, 10
"""Share of the operators of any other step, which has at least so many, at which a last annotation is no step."""
ALIKE = 0.01
"""Share of its operators by which a step may differ from others and count as equal."""
MIXED = "mixed-steps"
"""Code of the finding that means are over steps of different names."""


@dataclass(slots=True)
class StepList:
    """The steps of a trace on the host, by time, and what was found while they were told apart.

    Built up by the checks: each leaves steps out, and says why.
    """

    number: list[int]
    start: list[int]
    end: list[int]
    thread: tuple[int, int]
    names: dict[int, str] = field(default_factory=dict)
    """Name of the annotation with each number, of steps by another name (`Trace.step_name`)."""
    reasons: dict[int, str] = field(default_factory=dict)
    """By index of a step that is left out, why."""
    lost: bool = False
    """Whether there is work of steps without an annotation."""
    damaged: bool = False
    """Whether damage is the reason for any."""
    findings: list[Finding] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.number)

    @property
    def kept(self) -> list[int]:
        """Indices of the steps that are not left out."""
        return [index for index in range(len(self)) if index not in self.reasons]

    def name_of(self, index: int) -> str:
        """Name of a step's annotation."""
        number = self.number[index]
        return self.names.get(number, f"ProfilerStep#{number}")

    def leave_out(self, indices: Sequence[int], code: str, reason: str, *, is_damage: bool = True) -> None:
        """Leave out steps for one reason; `{steps}` in it is replaced by their numbers."""
        fresh = [index for index in indices if index not in self.reasons]
        if not fresh:
            return
        text = reason.replace("{steps}", self.named(fresh))
        self.reasons.update(dict.fromkeys(fresh, text))
        self.damaged |= is_damage
        left = "left out of all figures" if self.kept else "left out of all figures: no step remains"
        self.findings.append(Finding("invalid" if is_damage else "note", code, f"{text}: {left}"))

    def drop_last(self) -> None:
        """Take the last annotation for none of a step."""
        for column in (self.number, self.start, self.end):
            column.pop()

    def note(self, level: Literal["note", "invalid"], code: str, message: str) -> None:
        """Say something that leaves no step out."""
        self.findings.append(Finding(level, code, message))

    def named(self, indices: Sequence[int]) -> str:
        """Steps by their numbers: "step 3", "steps 2 to 5 and 9", "all 6 steps"."""
        if len(indices) == len(self) > 1:
            return f"all {len(self)} steps"
        numbers = sorted({self.number[index] for index in indices})
        if numbers == [-1]:
            return "the trace, which has no steps"
        places = itertools.count()
        parts: list[str] = []
        for _, each in itertools.groupby(numbers, lambda number: number - next(places)):
            run = list(each)
            parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
        *first, last = parts if len(parts) <= NAMED else [*parts[:NAMED], f"{len(parts) - NAMED} more"]
        what = "step" if len(numbers) == 1 else "steps"
        return f"{what} {', '.join(first)} and {last}" if first else f"{what} {last}"


def step_list(trace: Trace, *, complete: bool = False) -> StepList:
    """The annotations that are steps, `ProfilerStep#N` or by another name (`Trace.step_name`); empty without any.

    Left out are: a last annotation in which nothing runs, after one in which something did, and under a tenth as long
    as any other, which a profiler without a schedule leaves when it stops (without a word); annotations within others
    of the same number, and those of a second profiler (said, no step is lost); steps without a duration; steps that
    overlap by more than `OVERLAP_SHARE`; a first or last step whose operators differ from all others', where at least
    `AGREEING` of these agree with each other. With fewer it is said, and the step is kept: accumulation of gradients
    and periodic logging differ by right. So it is where `complete` says that the trace holds whole steps. Steps by
    another name are compared with those of their group, or of their name where that says what they do.
    """
    rows, numbers = step_annotations(trace)
    found = StepList([], [], [], (0, 0))
    if len(rows) == 0:
        return found
    found.thread = int(trace.pid[rows[0]]), int(trace.tid[rows[0]])
    start, end = trace.start[rows].tolist(), trace.end[rows].tolist()
    listed = list(zip(numbers, start, end, strict=True))
    main, damaged = _one_chain(listed, found)
    for number, begin, until in sorted(main + damaged, key=lambda step: (step[1], -step[2])):
        found.number.append(number)
        found.start.append(begin)
        found.end.append(until)
    if trace.step_name is None:
        _drop_rest(trace, found)
    else:
        found.names = dict(zip(numbers, (trace.name_of(row) for row in rows.tolist()), strict=True))
        _note_names(trace, rows, found)
    found.leave_out(
        [index for index in range(len(found)) if found.end[index] <= found.start[index]],
        "empty-step",
        "{steps} without a duration",
    )
    _leave_out_overlapping(found)
    if trace.step_name is None:
        # What runs between ranges that somebody named is not what these are about.
        _note_lost(trace, found, complete=complete)
    if not complete:
        _check_ends(trace, found)
    return found


_Listed = tuple[int, int, int]
"""Number, start and end of an annotation."""


def _one_chain(listed: list[_Listed], found: StepList) -> tuple[list[_Listed], list[_Listed]]:
    """Annotations that follow each other, and those that stand between them, but overlap them: damaged steps."""
    chains: list[list[_Listed]] = []
    for step in listed:
        for chain in chains:
            last = chain[-1]
            if last[2] - step[1] <= OVERLAP_SHARE * min(last[2] - last[1], step[2] - step[1]):
                chain.append(step)
                break
        else:
            chains.append([step])
    # The outer one, which begins first, unless it is one annotation around all others.
    main = chains[0] if len(chains[0]) > 1 else max(chains, key=len)
    others = [chain for chain in chains if chain is not main]
    known = {step[0] for step in main}
    damaged: list[_Listed] = []
    again, foreign = 0, 0
    for chain in others:
        if all(step[0] in known for step in chain):
            again += len(chain)
        elif all(min(known) <= step[0] <= max(known) + 1 and step[0] not in known for step in chain):
            damaged += chain
        else:
            foreign += len(chain)
    if again:
        found.note(
            "invalid",
            "steps-twice",
            f"{plural(again, 'step is', 'steps are')} annotated twice: the outer annotation of each is used",
        )
    if foreign:
        found.note(
            "invalid",
            "nested-steps",
            f"{plural(foreign, 'step annotation overlaps', 'step annotations overlap')} those of another profiler on "
            f"the same thread: the {plural(len(main), 'step')} {main[0][0]} to {main[-1][0]} are used",
        )
    return main, damaged


def _leave_out_overlapping(found: StepList) -> None:
    kept = found.kept
    bad: set[int] = set()
    longest = 0.0
    for at, index in enumerate(kept):
        for other in kept[at + 1 :]:
            together = found.end[index] - found.start[other]
            if together <= 0:
                break
            share = together / min(found.end[each] - found.start[each] for each in (index, other))
            if share > OVERLAP_SHARE:
                bad |= {index, other}
                longest = max(longest, min(share, 1.0))
    if bad:
        part = format_percent(longest, signed=False)
        found.leave_out(sorted(bad), "overlapping-steps", f"{{steps}} overlap by up to {part} of a step")


def _note_lost(trace: Trace, found: StepList, *, complete: bool) -> None:
    """Say which numbers are missing although their operators are there: these are in no step."""
    ended = []
    start = trace.start[on_thread(trace, trace.rows(Category.CPU_OP), found.thread)]
    inside = [int(np.diff(np.searchsorted(start, step))[0]) for step in zip(found.start, found.end, strict=True)]
    for index, after in itertools.pairwise(range(len(found))):
        missing = range(found.number[index] + 1, found.number[after])
        between = int(np.diff(np.searchsorted(start, (found.end[index], found.start[after])))[0])
        if not missing and not complete and between > max(FEW, EARLY_END_SHARE * inside[index]):
            ended.append(index)
        if missing and between > LOST_SHARE * max(1, min(inside[index], inside[after])):
            numbers = f"step {missing[0]}" if len(missing) == 1 else f"steps {missing[0]} to {missing[-1]}"
            found.lost = True
            found.note(
                "invalid", "lost-steps", f"the annotation of {numbers} is missing: the operators there are in no step"
            )
    found.leave_out(ended, "early-end", "{steps}, whose operators go on after the annotation has ended")
    if not found.lost and len(start) - int(np.searchsorted(start, found.end[-1])) > LOST_SHARE * max(1, inside[-1]):
        found.note(
            "note",
            "after-steps",
            f"operators run after the last step, {found.number[-1]}: totals over the trace have them",
        )


def _drop_rest(trace: Trace, found: StepList) -> None:
    """Take away a last annotation that is only what was left to record when the profiler was stopped."""
    length = [end - start for start, end in zip(found.start, found.end, strict=True)]
    if len(found) < 2 or length[-1] * 10 > min(length[:-1]):
        return
    work = _work(trace)
    own = trace.start[on_thread(trace, work, found.thread)]
    before = np.count_nonzero((own >= found.start[-2]) & (own < found.end[-2]))
    if np.count_nonzero(own >= found.end[-1]) > LOST_SHARE * before:
        return
    runs = [((trace.end[work] > found.start[at]) & (trace.start[work] < found.end[at])).any() for at in (-2, -1)]
    if runs[0] and not runs[1]:
        found.drop_last()


def _note_names(trace: Trace, rows: Rows, found: StepList) -> None:
    """Say what of the annotations that match is not a step, and what kinds of steps a mean would mix."""
    if nested := nested_annotations(trace, rows):
        found.note(
            "note",
            "nested-names",
            f"{plural(nested, 'annotation')} that --step-name matches {'is' if nested == 1 else 'are'} within another: "
            "the outermost are the steps",
        )
    kinds = set(_kinds(trace, found))
    if trace.step_name is not None and not trace.step_name.groups and len(kinds) > 1:
        first, second = list(dict.fromkeys(map(found.name_of, range(len(found)))))[:2]
        found.note(
            "note",
            MIXED,
            f"the steps have {len(kinds)} different names, such as {first} and {second}: means are over all of them; "
            "steps are told apart by what parentheses in --step-name enclose",
        )


def _kinds(trace: Trace, found: StepList) -> list[str]:
    """What steps must have in common to do the same: their group, else their name without numbers that count them."""
    names = [found.name_of(index) for index in range(len(found))]
    if trace.step_name is None:
        return [""] * len(names)
    if trace.step_name.groups:
        return list(step_groups(trace, names))
    texts = [NUMBER.split(name) for name in names]
    if len({tuple(text[::2]) for text in texts}) > 1:
        return names
    # In one pattern of names: what only rises is a counter.
    columns = list(zip(*([(len(part), part) for part in text[1::2]] for text in texts), strict=True))
    told = [column for column in columns if not all(before < after for before, after in itertools.pairwise(column))]
    return [", ".join(part for _, part in row) for row in zip(*told, strict=True)] or [""] * len(names)


def _check_ends(trace: Trace, found: StepList) -> None:
    """Compare what the first and the last step run with what the others do that are to do the same."""
    kept = found.kept
    if len(kept) < 2:
        return
    if trace.step_name is None:
        _drop_fragment(_operators(trace, found, kept), found, kept)
        kept = found.kept
    kinds = _kinds(trace, found)
    for kind in dict.fromkeys((kinds[kept[0]], kinds[kept[-1]])):
        alike = [index for index in kept if kinds[index] == kind]
        if len(alike) > 1:
            _compare_ends(_operators(trace, found, alike), found, alike, (kept[0], kept[-1]))


def _drop_fragment(runs: Sequence[Counter[int]], found: StepList, kept: Sequence[int]) -> None:
    """Take what runs between the last `step()` of a profiler and its end for no step."""
    *others, last = runs
    least = min(run.total() for run in others)
    if kept[-1] != len(found) - 1 or least < FRAGMENT_OF or last.total() > FRAGMENT_SHARE * least:
        return
    if last:
        text = "{steps}, a fragment between the last whole step and the end"
        found.leave_out([kept[-1]], "fragment", text, is_damage=False)
    else:
        found.drop_last()


def _compare_ends(runs: Sequence[Counter[int]], found: StepList, alike: Sequence[int], ends: tuple[int, int]) -> None:
    """The same of those among some steps that are to run the same operators."""
    keys = [tuple(sorted(run.items())) for run in runs]
    common, agreeing = Counter(keys).most_common(1)[0]
    usual = Counter(dict(common))
    for index, which in zip(ends, ("begins", "ends"), strict=True):
        if index not in alike:
            continue
        place = alike.index(index)
        own = runs[place]
        less, more = usual - own, own - usual
        if keys.count(keys[place]) > 1 or (less + more).total() <= ALIKE * usual.total():
            continue
        if agreeing >= AGREEING:
            ran = plural(own.total(), "operator or launch", "operators and launches")
            how = f"runs {ran} where {agreeing} other steps run {usual.total():,}"
            how += ", as periodic work does" if more else f", so the recording {which} inside it"
            code = "other-step" if more else "cut-step"
            found.leave_out([index], code, f"{{steps}} {how}", is_damage=not more)
    at_ends = [runs[alike.index(index)] for index in ends if index in alike]
    if agreeing < AGREEING and len(alike) <= MANY and any(_is_part(own, runs) for own in at_ends):
        counts = ", ".join(f"{run.total():,}" for run in runs)
        found.note(
            "note",
            "steps-differ",
            f"{found.named(alike)} run different operators ({counts}), and too few agree to tell whether the "
            "recording begins or ends inside a step: all are used",
        )


def _is_part(own: Counter[int], runs: Sequence[Counter[int]]) -> bool:
    """Whether what a step runs is a part of what another one does, and less of it than alike steps have."""
    return any(not (own - other) and own.total() < (1 - ALIKE) * other.total() for other in runs)


def _operators(trace: Trace, found: StepList, kept: Sequence[int]) -> list[Counter[int]]:
    """How many operators and launches of each name begin in each step, outside of the input."""
    rows = _work(trace)
    waits = input_rows(trace)
    inputs = Intervals.union_of(trace.start[waits], trace.end[waits])
    # Other threads than those of the step, such as one that saves a checkpoint, have a time of their own.
    own = [tid for _, tid in operator_threads(trace, found.thread)]
    rows = rows[(trace.pid[rows] == found.thread[0]) & np.isin(trace.tid[rows], own)]
    rows = rows[~inputs.contains(trace.start[rows])]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    bounds = [np.searchsorted(trace.start[rows], (found.start[index], found.end[index])) for index in kept]
    return [Counter(trace.name[rows[first:last]].tolist()) for first, last in bounds]


def _work(trace: Trace) -> Rows:
    """Operators and launches of all threads; both come by start."""
    return np.concatenate((trace.rows(Category.CPU_OP), launch_calls(trace).row))


# What in a trace looks like steps though no annotation says so: ranges of one name, and equal repetitions.


LEAST = 3
"""Annotations of one name, or repetitions, that may be steps."""
LEAST_EVENTS = 6
"""Operators and launches of all repetitions together."""
WORK_SHARE = 0.5
"""Share of the operators and launches that must begin inside the annotations."""
LOOP_SHARE = 0.95
"""Share of the operators and launches of the steps' thread that the repetitions must be."""

_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")
_OURS = "perfdl."
_GLANCE = 256
_CANDIDATES = 8
"""Names of operators, occurrences of each, and series of annotations that are looked at."""


def step_like(trace: Trace) -> tuple[int, str]:
    """How many annotations look like steps, and the pattern for their names; 0 for none.

    They are at least `LEAST` of one thread, whose names differ in numbers at most, one after the other, with at least
    `WORK_SHARE` of the operators and launches of the process inside; of several names those with most of it inside.
    """
    work = _work(trace)
    begins, pids = trace.start[work], trace.pid[work]
    best: tuple[int, str] = (0, "")
    most = WORK_SHARE
    for own in itertools.islice(_series(trace), _CANDIDATES):
        start, end = trace.start[own], trace.end[own]
        at = begins[pids == trace.pid[own[0]]]
        place = np.searchsorted(start, at, side="right") - 1
        share = np.count_nonzero((place >= 0) & (at < end[place])) / max(1, len(at))
        if (share > most or (share == most and not best[0])) and (pattern := _pattern(trace, own)):
            best, most = (len(own), pattern), share
    return best


def _series(trace: Trace) -> Iterator[Rows]:
    """Annotations of one thread, one after the other, whose names differ in numbers at most; the longest first."""
    rows = trace.rows(Category.USER_ANNOTATION)
    stems: dict[str, int] = {}
    code = np.zeros(len(trace.names), dtype=np.intp)
    for index in np.unique(trace.name[rows]).tolist():
        if not trace.names[index].startswith(_OURS):
            code[index] = stems.setdefault(NUMBER.sub("#", trace.names[index]), len(stems) + 1)
    rows = rows[code[trace.name[rows]] > 0]
    keys = np.column_stack((code[trace.name[rows]], trace.pid[rows], trace.tid[rows]))
    _, series = np.unique(keys, axis=0, return_inverse=True)
    series = series.reshape(-1)
    long = np.argsort(-np.bincount(series, trace.duration[rows]), kind="stable") if len(rows) else series
    for each in long.tolist():
        own = rows[series == each]
        if len(own) >= LEAST and not (trace.start[own[1:]] < trace.end[own[:-1]]).any():
            yield own


def _pattern(trace: Trace, rows: Rows) -> str:
    """The shortest pattern that the names of these annotations match, and no other annotation's does."""
    names: list[str] = [trace.names[index] for index in np.unique(trace.name[rows]).tolist()]
    annotations = trace.rows(Category.USER_ANNOTATION)
    others = [trace.names[index] for index in np.unique(trace.name[np.setdiff1d(annotations, rows)]).tolist()]
    # Of another thread the name may be the same: the steps are those of the thread with most work.
    others = [name for name in others if name not in names]
    stem = NUMBER.split(names[0])
    tries: list[str] = [re.escape(names[0])] if len(names) == 1 else []
    tries += [f"{re.escape(names[0][: each.end()])}.*" for each in _SEPARATOR.finditer(stem[0]) if each.start() > 0]
    tries += [r"\d+".join(re.escape(part) for part in stem[::2])]
    for text in tries:
        # As it is typed in a shell.
        pattern: str = text.replace("'", ".")
        if all(re.fullmatch(pattern, name) for name in names) and not any(
            re.fullmatch(pattern, each) for each in others
        ):
            return pattern
    return ""


def repetitions(trace: Trace, thread: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    """Operators and launches of one repetition of a thread's work from `start` to `end`, and how often; 0 for none.

    All repetitions run the same, one after the other, and are at least `LOOP_SHARE` of it.
    """
    rows = on_thread(trace, _work(trace), thread)
    rows = rows[(trace.start[rows] >= start) & (trace.start[rows] < end)]
    count = len(rows)
    if count < LEAST_EVENTS:
        return 0, 0
    # Both come by start, so that this is a merge.
    names = trace.name[rows[np.argsort(trace.start[rows], kind="stable")]]
    middle = count // LEAST
    for lag in _lags(names):
        # All of the middle is in the loop, if there is one: a glance at it rules out most lengths.
        glance = names[middle : middle + min(lag, _GLANCE)]
        if not np.array_equal(glance, names[middle + lag : middle + lag + len(glance)]):
            continue
        equal = np.concatenate(([False], names[lag:] == names[:-lag], [False]))
        breaks = np.flatnonzero(~equal)
        longest = int(np.diff(breaks).max()) - 1
        times = (longest + lag) // lag
        if times >= LEAST and times * lag >= LOOP_SHARE * count:
            return lag, times
    return 0, 0


def _lags(names: I32) -> list[int]:
    """Lengths that a repetition may have, the shortest first: distances between the rarest names of it."""
    counts = np.bincount(names)
    often = np.flatnonzero(counts >= LEAST)
    rarest = often[np.argsort(counts[often], kind="stable")][:_CANDIDATES]
    found: set[int] = set()
    for name in rarest.tolist():
        at = np.flatnonzero(names == name)
        # From one in the middle on, which is behind what comes before a loop.
        at = at[len(at) // 3 :]
        found.update((at[1 : _CANDIDATES + 1] - at[0]).tolist())
    return sorted(lag for lag in found if LEAST * lag <= len(names))
