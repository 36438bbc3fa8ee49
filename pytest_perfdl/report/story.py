"""What a report says first about a test: what changed, by how much, why, in which line, and what to do.

The page's card, the terminal, the Markdown summary and the annotations are made from one `Story`, so that all of them
say the same. `judge.reasons` has the reason of a verdict, `cause_words` the words for causes, `words` all other
sentences; the reporters lay them out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_perfdl.analysis.events.origins import FRAME, is_function
from pytest_perfdl.model.metrics import STEP_TIMES
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.model.step_part import common_module
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import words
from pytest_perfdl.report.cause_words import plain_name, select_telling, sentence
from pytest_perfdl.report.details import timed_sides
from pytest_perfdl.report.figures import INPUT, cause_status, frame_words
from pytest_perfdl.report.layout import cut
from pytest_perfdl.results import memory_causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_perfdl.results.run import Result, Run
    from pytest_perfdl.results.verdict import Cause, Judgement, MetricVerdict, SourceDiff

GROUPS = 3
"""Most causes that a story tells of; the others are its rest."""
ALIKE = 0.25
"""Relative difference up to which the changes of the profiled and of the timed step are shown as one."""
_ALL = 0.995
"""Share from which on a cause is all of the change: others may have gone the other way."""
LEAST_SHARE = 0.05
"""Part of the step's change that a further cause must have to be told of."""

_LOADS = re.compile(r"__getitems?__|__iter__|__next__|collate|transform|augment|sample|load|fetch|batch", re.IGNORECASE)
"""Names of functions that make batches."""
_RELEASES = (".backward(", "del ", ".detach(", "no_grad(", "inference_mode(", "checkpoint(", ".zero_grad(", ".item(")
"""What frees memory, or keeps tensors from being saved, the most telling first: without such a line, more is kept."""
_MOST_CODE = 60
"""Characters of a line of code in a sentence."""
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(?P<new>\d+)(?:,\d+)? @@")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code."""

    path: str
    """From the top of the repository where that is known, else as Python knows the file."""
    line: int
    function: str
    url: str = ""
    """Of the line on the web; empty where the repository's address is not known."""

    @property
    def text(self) -> str:
        """As editors and terminals open it, "src/model.py:42"."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """The causes that come from one place: what came, what went away, and what takes longer."""

    call: str
    sentence: str
    """In words, "scaled_dot_product_attention replaced by bmm, softmax in float64"."""
    delta_ns: int
    """Change of the profiled step, nanoseconds."""
    step_delta_ns: int
    """Change of the whole profiled step."""
    share: float | None
    """`delta_ns` over `step_delta_ns`; `None` where the step hardly changed, or the other way."""
    causes: tuple[Cause, ...]
    """What goes the way of the group first, the largest first."""
    module: str
    """The innermost module around it; empty where none is known."""
    place: Place | None
    diff: SourceDiff | None
    """Of the function that it comes from."""
    timed_delta_ns: float | None = None
    """Change of the step without the profiler; `None` where it was not timed."""

    @property
    def amount(self) -> str:
        """How much of the change it is, "+12.10 of +12.80 ms in the profiled step, 94.5%".

        Without nanoseconds where the profiled step changed by much more or less than the timed one: then only the share
        says anything of the latter.
        """
        own, timed = format_quantity(self.delta_ns, "ns", signed=True), self.timed_delta_ns
        if self.share is None and timed is not None and self.delta_ns * timed < 0:
            return "the times of the profiled step do not show it"
        if self.share is None:
            return f"{own} in the profiled step"
        share = "all" if self.share >= _ALL else format_percent(self.share, signed=False)
        if timed is not None and abs(self.step_delta_ns - timed) > ALIKE * abs(timed):
            return f"{share} of the change in the profiled step"
        whole = format_quantity(self.step_delta_ns, "ns", signed=True)
        number, _, unit = own.partition(" ")
        first = number if whole.endswith(f" {unit}") else own
        return f"{first} of {whole} in the profiled step, {share}"


@dataclass(frozen=True, slots=True)
class Rest:
    """The part of a call's change that no group tells of, so that shares add up."""

    call: str
    delta_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class Story:
    """What is said first about a test; what is not known is empty."""

    headline: MetricVerdict | None
    """The metric to name first: of those that decided the verdict a time before memory, memory before counts; `None`
    where none has a verdict."""
    also: tuple[MetricVerdict, ...]
    """The other metrics of the step with a verdict other than unchanged."""
    causes: tuple[CauseGroup, ...]
    """Those to tell of, the largest first."""
    groups: tuple[CauseGroup, ...]
    """All of them."""
    rest: tuple[Rest, ...]
    """For each call whose causes have shares."""
    diffs: tuple[SourceDiff, ...]
    """The changed lines: those of the largest cause first."""
    memory: str
    """Which tensors are at the peak, and from which line; empty where the peak did not change."""
    memory_place: Place | None
    """The line that allocates them."""
    memory_changed: str
    """Which lines of the functions that allocate them changed, "changed: src/model.py:42"; empty where the line that
    allocates them says it all."""
    memory_first: bool
    """Whether memory is what there is to explain, rather than time."""
    work: str
    """Whether a slower step does more work, or the same work worse."""
    advice: str
    """What to do, in a sentence; empty where nothing is wrong."""
    commands: tuple[tuple[str, str], ...]
    """(purpose, command): measuring again first, accepting last."""


def story(result: Result, run: Run) -> Story:
    """What to say first about a test of a run."""
    judgement = result.judgement
    shown = [
        metric for metric in words.metrics_worst_first(judgement.metrics, judgement.verdict) if words.judged(metric)
    ]
    of_step = [metric for metric in shown if metric.of_step] or shown
    groups = cause_groups(result, run)
    causes = largest_groups(groups, GROUPS)
    memory_first, allocated = memory_causes.comes_first(judgement), _memory_place(result, run)
    changed = _memory_changed(judgement, allocated)
    return Story(
        headline=of_step[0] if of_step else None,
        also=tuple(each for each in of_step[1:] if words.is_news(each) and words.matters(each, judgement)),
        causes=causes,
        groups=groups,
        rest=rest_of(causes),
        diffs=_diffs(judgement, groups),
        memory=_memory(judgement),
        memory_place=allocated,
        memory_changed=f"changed: {changed}" if changed else "",
        memory_first=memory_first,
        work=words.work_sentence(judgement.work[0], judgement) if judgement.work else "",
        advice=_advice(
            result, _first_place(() if memory_first else groups, allocated if memory_first else None, changed)
        ),
        commands=tuple(words.commands(result, run.invocation)),
    )


def largest_groups(groups: Sequence[CauseGroup], count: int) -> tuple[CauseGroup, ...]:
    """At most so many groups: the first, and those of the next that hold enough of the change to be told of."""
    return (*groups[:1], *(each for each in groups[1:count] if abs(each.share or 1) >= LEAST_SHARE))


def _first_place(groups: Sequence[CauseGroup], allocated: Place | None, changed: str) -> str:
    """Where to look first: the place of the largest cause, or where memory is what there is to explain, its lines."""
    first = groups[0].place if groups else allocated
    if not groups and allocated is not None and changed:
        return changed.partition(" (")[0]
    return first.text if first is not None else ""


def _advice(result: Result, place: str) -> str:
    """What to do about a test that got worse: where to look, and when to accept."""
    judgement = result.judgement
    if judgement.verdict not in ("regressed", "suspect") or not (judgement.blame or judgement.memory):
        return ""
    if words.interpreters_of(result) is not None:
        packages = sum(name != "interpreter" for name, _, _ in judgement.context_changes)
        return (
            f"Both sides run the same code, and {plural(packages, 'field')} of their environments differ: find the "
            "package with the command below."
        )
    lines = "the changed lines" if judgement.source_diffs else "the code"
    where = f" at {place}" if place else ""
    accept = ", or accept the change if it is intended" if words.acceptable(result) else ""
    return f"Revert or rework {lines}{where} and measure again{accept}."


def cause_groups(result: Result, run: Run) -> tuple[CauseGroup, ...]:
    """All causes of a test's change by the place that they come from.

    Causes are of one group where their line is in one function that changed, else where it is in one function, else
    where they are in one module. Groups that go their call's way come first, then the largest.
    """
    judgement = result.judgement
    members: dict[tuple[str, ...], list[Cause]] = defaultdict(list)
    for cause in judgement.blame:
        members[_group_of(cause, judgement.source_diffs)].append(cause)
    steps = _step_changes(judgement)
    groups = [_group(causes, steps, result, run) for causes in members.values()]

    def order(group: CauseGroup) -> tuple[bool, float]:
        return group.delta_ns * _way(group, judgement) < 0, -abs(group.delta_ns)

    if judgement.verdict != "changed":
        # Where counts alone decided blame has them first, whatever they cost.
        groups.sort(key=order)
    return tuple(_with_uncalled(groups, judgement.source_diffs, run))


def _with_uncalled(groups: Sequence[CauseGroup], diffs: Sequence[SourceDiff], run: Run) -> list[CauseGroup]:
    """The groups, the first with the changed lines of a function that no cause is called from, where one changed.

    What builds a model or an optimizer, or makes a batch, runs outside of the step: its change shows in what the step
    calls. It is the one in the same file, or the only one.
    """
    left = [diff for diff in diffs if diff not in {group.diff for group in groups}]
    if not groups or groups[0].diff is not None or not left:
        return list(groups)
    first = groups[0]
    file = first.place.path if first.place else ""
    near = [diff for diff in left if diff.file == file] or (left if len({diff.file for diff in left}) == 1 else [])
    is_input = first.causes[0].kind == "idle" and first.causes[0].name == INPUT
    if is_input:
        near = [diff for diff in left if _LOADS.search(diff.function)] or near
    if not near or not near[0].line:
        return list(groups)
    place = _link_line(near[0].file, near[0].line, near[0].function, run)
    said = f"{first.sentence}; changed: {visible(near[0].function)}" if is_input else first.sentence
    return [replace(first, diff=near[0], place=place, sentence=said), *groups[1:]]


def _step_changes(judgement: Judgement) -> dict[str, int]:
    """By how much the profiled step of each call changed: without paired rounds as the largest share says."""
    changes = {each.call: each.delta_ns for each in judgement.breakdowns}
    shares = [(cause, share) for cause in judgement.blame if (share := _share(cause))]
    for cause, share in sorted(shares, key=lambda one: -abs(one[1])):
        changes.setdefault(cause.call, round(cause.delta_ns / share))
    return changes


def _share(cause: Cause) -> float | None:
    """A cause's share of the change, where there is one that is a number."""
    return cause.share if cause.share is not None and math.isfinite(cause.share) else None


def largest(causes: Sequence[Cause], count: int) -> list[Cause]:
    """The causes to list where there is room for so many: what went away beside what came, the largest first.

    Where counts decided, and no cause has a share, they are in the order that they are given in.
    """
    if all(_share(cause) is None for cause in causes):
        return list(causes[:count])
    return sorted(causes, key=lambda cause: -abs(cause.delta_ns))[:count]


def _way(group: CauseGroup, judgement: Judgement) -> float:
    """The sign of the change of a group's call: as judged, else as profiled."""
    names = [metric_name(group.call, name) for name in STEP_TIMES]
    for metric in judgement.metrics:
        if metric.name in names and metric.effect and metric.verdict in ("regressed", "improved", "suspect"):
            return metric.effect
    return group.step_delta_ns


def _group_of(cause: Cause, diffs: Sequence[SourceDiff]) -> tuple[str, ...]:
    if (diff := diff_of(cause, diffs)) is not None:
        return cause.call, "diff", diff.file, diff.function
    if match := FRAME.fullmatch(cause.line):
        return cause.call, "line", match["path"], match["function"]
    if cause.module:
        return cause.call, "module", cause.module
    return cause.call, cause.kind, cause.name


def diff_of(cause: Cause, diffs: Iterable[SourceDiff]) -> SourceDiff | None:
    """The source diff of the function that a cause comes from."""
    match = FRAME.fullmatch(cause.line)
    if match is None:
        return None
    return next((diff for diff in diffs if diff.called and is_function(match, diff.file, diff.function)), None)


def _group(causes: Sequence[Cause], steps: dict[str, int], result: Result, run: Run) -> CauseGroup:
    judgement = result.judgement
    delta = sum(cause.delta_ns for cause in causes)
    ordered = sorted(causes, key=lambda cause: (cause.delta_ns * delta < 0, -abs(cause.delta_ns)))
    shares = [share for cause in causes if (share := _share(cause)) is not None]
    share = sum(shares) if len(shares) == len(causes) else None
    call = causes[0].call
    timed = timed_sides(judgement, call)
    diff = next((each for cause in ordered if (each := diff_of(cause, judgement.source_diffs))), None)
    return CauseGroup(
        call=call,
        sentence=sentence(ordered, judgement),
        delta_ns=delta,
        step_delta_ns=steps.get(call, 0),
        timed_delta_ns=None if timed is None else timed[1] - timed[0],
        share=share,
        causes=tuple(ordered),
        module=common_module([cause.module for cause in select_telling(ordered) if cause.module]),
        place=_place(next((cause.line for cause in ordered if cause.line), ""), diff, ordered, result, run),
        diff=diff,
    )


def _changed_line(diff: SourceDiff, causes: Sequence[Cause]) -> int:
    """The first added line that calls the largest of the new operators that any calls, else the first changed line."""
    came = (cause for cause in causes if cause_status(cause) == "new")
    for cause in sorted(came, key=lambda cause: -abs(cause.delta_ns)):
        call = re.compile(rf"\b{re.escape(plain_name(cause.name).strip('_'))}_?\(")
        if own := [line for line, sign, code in _edits(diff) if sign == "+" and call.search(code)]:
            return own[0]
    return diff.line


def _edits(diff: SourceDiff) -> list[tuple[int, str, str]]:
    """What was removed and added: the line of the current file, "-" or "+", and the code."""
    found = []
    line = 0
    for text in diff.text.split("\n"):
        if match := _HUNK.match(text):
            line = int(match["new"])
        elif line:
            if text[:1] in ("+", "-"):
                found.append((line, text[0], text[1:].strip()))
            line += not text.startswith("-")
    return found


def _changed_lines(diff: SourceDiff) -> str:
    """The changed lines of a function, "src/model.py:27, 29-31"."""
    spans: list[list[int]] = []
    for line in sorted({line for line, _, _ in _edits(diff)}):
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return f"{visible(diff.file)}:" + ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _memory_changed(judgement: Judgement, allocated: Place | None) -> str:
    """The changed lines of the function that allocates what is at the peak, with a removed line that freed memory.

    Empty where the allocating line is itself one of them, and no such line was removed.
    """
    cause = next((change.causes[0] for change in judgement.memory if change.causes), None)
    if cause is None:
        return ""
    frames = filter(None, map(FRAME.fullmatch, (cause.row.line, *cause.row.callers)))
    diffs = [
        diff for frame in frames for diff in judgement.source_diffs if is_function(frame, diff.file, diff.function)
    ]
    diff = next((each for each in (*diffs, *judgement.source_diffs) if _edits(each)), None)
    if diff is None:
        return ""
    edits = _edits(diff)
    added = [code for _, sign, code in edits if sign == "+"]
    gone = [code for _, sign, code in edits if sign == "-" and code not in added]
    freed = next((code for call in _RELEASES for code in gone if call in code), "")
    changed = {(diff.file, line) for line, _, _ in edits}
    if allocated is not None and (allocated.path, allocated.line) in changed and not freed:
        return ""
    return _changed_lines(diff) + (f" (removed: {visible(cut(freed, _MOST_CODE))})" if freed else "")


def frame_place(line: str, result: Result, run: Run) -> str:
    """A line of code in words, with its path from the root directory: "src/model.py:42 in forward"."""
    match = FRAME.fullmatch(line)
    return frame_words(line, _from_root(match["path"], result, run) if match else "")


def _place(line: str, diff: SourceDiff | None, causes: Sequence[Cause], result: Result, run: Run) -> Place | None:
    """The line of a group: the changed one where its function changed, else the function's."""
    if diff is not None and diff.line:
        return _link_line(diff.file, _changed_line(diff, causes), diff.function, run)
    return _link_frame(line, result, run)


def _link_frame(line: str, result: Result, run: Run) -> Place | None:
    """The line of a frame, "model.py(42): forward"."""
    match = FRAME.fullmatch(line)
    if match is None:
        return None
    return _link_line(_from_root(match["path"], result, run), int(match["line"]), match["function"], run)


def _from_root(path: str, result: Result, run: Run) -> str:
    """A path of a frame from the root directory: Python knows files by the folder that they are imported from."""
    path = path.replace("\\", "/")
    for diff in result.judgement.source_diffs:
        if f"/{diff.file}".endswith(f"/{path}"):
            return diff.file
    if f"/{result.file}".endswith(f"/{path}"):
        return result.file
    tests = run.root / result.file
    folders = [folder for folder in tests.parents if folder == run.root or run.root in folder.parents]
    for folder in (*folders, run.root / "src"):
        if (folder / path).is_file():
            return words.shown_path(run, folder / path)
    return path


def _link_line(path: str, line: int, function: str, run: Run) -> Place:
    parts = re.split(r"[/\\]", path)
    linked = run.repository and run.commit and parts[0] and ".." not in parts
    url = f"{run.repository}/blob/{run.commit}/{path}#L{line}" if linked else ""
    return Place(visible(path), line, visible(function), url)


def rest_of(groups: Sequence[CauseGroup]) -> tuple[Rest, ...]:
    """For each call the change that no group has, and its share, so that all shares add up to 1."""
    by_call: dict[str, list[CauseGroup]] = defaultdict(list)
    for group in groups:
        if group.share is not None and group.step_delta_ns:
            by_call[group.call].append(group)
    found = []
    for call, own in by_call.items():
        whole = own[0].step_delta_ns
        left = whole - sum(group.delta_ns for group in own)
        found.append(Rest(call, left, left / whole))
    return tuple(found)


def _diffs(judgement: Judgement, groups: Sequence[CauseGroup]) -> tuple[SourceDiff, ...]:
    """The source diffs, those of the largest groups first."""
    of_groups = [group.diff for group in groups if group.diff is not None]
    return tuple(dict.fromkeys([*of_groups, *judgement.source_diffs]))


def _memory(judgement: Judgement) -> str:
    """The largest cause of a changed peak, "peak memory +30.40 MiB: 2 activations ..."."""
    for change in judgement.memory:
        if change.causes:
            cause = change.causes[0]
            call = f"{visible(change.call)}: " if change.call else ""
            size = format_quantity(cause.bytes, "B", signed=True)
            if change.base is not None and change.new.peak_bytes != change.base.peak_bytes:
                whole = format_quantity(change.new.peak_bytes - change.base.peak_bytes, "B", signed=True)
                size = f"{size} of {whole}"
            module = f", in {visible(cause.module)}" if cause.module else ""
            return f"{call}peak memory, {size}: {memory_causes.cause_name(cause)}{module}"
    return ""


def _memory_place(result: Result, run: Run) -> Place | None:
    """The line that allocates what the largest cause of a changed peak is."""
    causes = (change.causes[0] for change in result.judgement.memory if change.causes)
    return next((_link_frame(cause.row.line, result, run) for cause in causes), None)


def cause_line(group: CauseGroup) -> str:
    """A group in one line: what, how much of the change, in which module, at which line."""
    module = f" in {visible(group.module)}" if group.module else ""
    place = f" at {group.place.text}" if group.place else ""
    call = f"{visible(group.call)}: " if group.call else ""
    doubt = "" if all(cause.certain for cause in group.causes) else " (not certain: the most likely cause)"
    return f"{call}{group.sentence}{module}{place}: {group.amount}{doubt}"
