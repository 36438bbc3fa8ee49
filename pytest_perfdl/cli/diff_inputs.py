"""What `perfdl diff` can compare: anything that holds steps, by its path or its git revision.

A trace or a folder of traces is one side: a folder's are runs of one thing, or each a side as the ranks of one job. A
run file, a folder of baselines and a git revision hold a side for every call of every test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_perfdl.analysis.account.parts import StepParts, step_parts
from pytest_perfdl.analysis.events.device_record import devices_of
from pytest_perfdl.analysis.events.intervals import LEAST_STEPS
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.selection import of_group
from pytest_perfdl.analysis.ranks.activity import rank_of
from pytest_perfdl.baseline.files import TRACE_SUFFIX
from pytest_perfdl.baseline.text import parse
from pytest_perfdl.cli.common import recordings_of
from pytest_perfdl.cli.traces import Folder, recordings_in, with_step_name
from pytest_perfdl.diff import Origin, Side, damaged_side, side_of_breakdown, side_of_call, side_of_traces
from pytest_perfdl.machine.rates import FILE as MACHINE_FILE
from pytest_perfdl.model import untrusted_files as bounded
from pytest_perfdl.model.errors import InputError, NotATrace, RecordError, TraceError
from pytest_perfdl.model.metrics import STEP_TIMES
from pytest_perfdl.model.record import Record, metric_name
from pytest_perfdl.model.record_json import from_json, loaded
from pytest_perfdl.results import run_file
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.system.git import commit_of, content, names, top_of, trouble
from pytest_perfdl.trace import Trace, read
from pytest_perfdl.trace.annotations import step_annotations
from pytest_perfdl.trace.formats import BASELINE, OBJECT, RUN
from pytest_perfdl.trace.reader import refusal_of

_HEAD = 4096
"""Bytes at the beginning of a file in which a record's first bracket is."""
_OBJECTS = (RUN, BASELINE, OBJECT)
"""What a record or a run file may be taken for."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """Which step a side is of; a trace's is of no test, but may be of a kind of steps (`Steps.groups`)."""

    test: str = ""
    call: str = ""
    key: str = ""
    of_job: bool = False
    """Whether it is one rank of a job, whose ranks wait for one another."""

    @property
    def title(self) -> str:
        """The id of the test and the name of its call."""
        return f"{self.test} {self.call}".strip()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSide:
    """A side, and what it was made of."""

    side: Side
    trace: Callable[[], Trace] | None = None
    """The one trace of the side, or of its traces that whose mean step is the median; `None` for what is recorded."""
    notes: tuple[str, ...] = ()
    """What was repaired while its traces were read, one line each."""


Sides = Mapping[Name, LoadedSide]


def load(source: str, folder: str, step_name: re.Pattern[str] | None = None) -> Sides:
    """The sides that a source holds.

    Parameters
    ----------
    source
        Path of a trace, of a folder of traces, of a run file, of a baseline or of a folder of baselines; or a git
        revision, whose baselines are meant.
    folder
        Where the baselines are in a revision.
    step_name
        Names of the annotations that are the steps of a trace (`--step-name`): a side for each kind of steps.

    Raises
    ------
    InputError
        When it is none of these, or holds no step, or `step_name` is for what is no trace.
    """
    path = Path(source)
    if path.is_dir():
        found = _load_folder(path, source, step_name)
    elif path.exists():
        found = _load_file(path, source, step_name)
    else:
        found = _load_revision(source, folder)
    if not found:
        raise InputError(f"{source} contains no measured or profiled step to compare")
    if step_name is not None and any(each.side.origin is None for each in found.values()):
        raise InputError(f"{source} is no trace: --step-name is for traces only")
    return found


def pairs(base: Sides, new: Sides) -> list[tuple[Name, LoadedSide, LoadedSide]]:
    """What both have: by test, call and key, else by test and call where each has that under one key."""
    found = [(name, base[name], new[name]) for name in base if name in new]
    paired = {(name.test, name.call) for name, *_ in found}
    alone = [_name_by_test(sides) for sides in (base, new)]
    found += [
        (name, base[name], new[alone[1][step]])
        for step, name in alone[0].items()
        if step not in paired and step in alone[1]
    ]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class OwnSides:
    """Both sides of a call of a test, from one run."""

    name: Name
    base: Side
    new: Side
    timed: MetricVerdict | None
    """The step time with the run's verdict; `None` where it has none."""
    paired: bool
    """Whether columns of both sides are paired rounds."""


def own_sides(source: str) -> list[OwnSides]:
    """Both sides of every test of a run, as pytest compared them.

    This is the one place that chooses them: the breakdown of the paired rounds where the run has one, else the recorded
    baseline and the current record.

    Raises
    ------
    InputError
        When it is no run file.
    """
    path = Path(source)
    path = path / "run.json" if path.is_dir() else path
    error = refusal_of(path) if path.is_file() else None
    if error is None or (isinstance(error, NotATrace) and error.what not in _OBJECTS):
        what = f" but {error.what}" if isinstance(error, NotATrace) else ""
        raise InputError(
            f"{source} is not a run.json file{what}: pass the run.json file of a report, or two inputs to compare"
        )
    return [each for result in read_run(path).results for each in _own_sides(result)]


def _own_sides(result: Result) -> Iterator[OwnSides]:
    key = "" if result.new is None else result.new.key.slug
    metrics = {metric.name: metric for metric in result.judgement.metrics}
    recorded = {} if result.base is None else {call.name: call for call in result.base.calls}
    for step in result.judgement.breakdowns:
        sides = side_of_breakdown("baseline", step, "base"), side_of_breakdown("current", step, "new")
        yield OwnSides(
            Name(result.id, step.call, key), *sides, _step_time(metrics, step.call), paired=bool(step.base_rounds)
        )
    known = {step.call for step in result.judgement.breakdowns}
    for call in () if result.new is None else result.new.calls:
        if call.name not in known and call.name in recorded and call.rows and recorded[call.name].rows:
            sides = side_of_call("recorded baseline", recorded[call.name]), side_of_call("current", call)
            yield OwnSides(Name(result.id, call.name, key), *sides, _step_time(metrics, call.name), paired=False)


def _step_time(metrics: Mapping[str, MetricVerdict], call: str) -> MetricVerdict | None:
    found = (metrics.get(metric_name(call, name)) for name in STEP_TIMES)
    return next((metric for metric in found if metric is not None and metric.base and metric.new), None)


def _name_by_test(sides: Sides) -> dict[tuple[str, str], Name]:
    """Names by test and call, where there is one key only."""
    by_test: dict[tuple[str, str], list[Name]] = {}
    for name in sides:
        by_test.setdefault((name.test, name.call), []).append(name)
    return {step: names[0] for step, names in by_test.items() if len(names) == 1}


def _load_folder(path: Path, label: str, step_name: re.Pattern[str] | None) -> Sides:
    if (path / "run.json").is_file():
        return _load_file(path / "run.json", label, step_name)
    folder = Folder.of(path)
    records = [file for file, error in folder.others.items() if _is_record(error)]
    if not records:
        if not folder.traces and folder.others:
            raise InputError(f"{label} contains nothing to compare: it has {folder.listed(folder.others)}")
        folder.name_others("diff", list(folder.others))
        return _load_traces(list(folder.traces), label, step_name) if folder.traces else {}
    # What cannot be decoded may be a damaged baseline, and is an error.
    damaged = [
        file for file, error in folder.others.items() if file.suffix == ".json" and not isinstance(error, NotATrace)
    ]
    found = {
        name: side for file in sorted([*records, *damaged]) for name, side in _load_file(file, label, step_name).items()
    }
    # Not the traces that baselines have beside them.
    left_out = {*folder.others} - {*records} | {file for file in folder.traces if not file.name.endswith(TRACE_SUFFIX)}
    folder.name_others("diff", sorted(file for file in left_out if file.name != MACHINE_FILE), "baseline")
    return found


def _is_record(error: TraceError | None) -> bool:
    return isinstance(error, NotATrace) and error.what in (RUN, BASELINE)


def _load_file(path: Path, label: str, step_name: re.Pattern[str] | None) -> Sides:
    refused = refusal_of(path)
    is_other = isinstance(refused, NotATrace) and refused.what not in _OBJECTS
    if refused is None or is_other or not _is_object(path):
        return _load_traces([path], label, step_name)
    try:
        data = loaded(bounded.read_bytes(path, run_file.LIMIT))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except RecordError as error:
        raise InputError(f"{path} {error}") from error
    except ValueError as error:
        raise InputError(f"{path} is not a trace, a run.json file or a baseline: {error}") from error
    return dict(_load_data(data, path, label))


def _is_object(path: Path) -> bool:
    """Whether a file's beginning is that of a JSON object, as records and run files are."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).lstrip().startswith(b"{")
    except OSError:
        return True


def _load_data(data: Any, path: Path, label: str) -> Iterator[tuple[Name, LoadedSide]]:
    try:
        if isinstance(data, dict) and isinstance(data.get("tests"), list):
            for result in run_file.of_data(data, path).results:
                if result.new is not None:
                    yield from _load_record(result.new, label)
            return
        yield from _load_record(from_json(data), label)
    except RecordError as error:
        raise InputError(f"{path} {error}") from error


def _load_record(record: Record, label: str) -> Iterator[tuple[Name, LoadedSide]]:
    # A table has no profiled steps.
    for call in (each for each in record.calls if not each.cases):
        yield Name(record.test, call.name, record.key.slug), LoadedSide(side_of_call(label, call))


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One of the traces of a side."""

    file: Path
    place: int
    """Among the recordings of the file."""
    step_name: re.Pattern[str] | None
    group: str
    rank: tuple[int | None, int | None]
    """Number of the rank and how many the job has, where the trace says so."""
    parts: StepParts
    origin: Origin

    def trace(self) -> Trace:
        """The trace, read again."""
        found = with_step_name(recordings_of(read(self.file)), self.step_name)
        return _kinds(found[self.place])[self.group]


def _kinds(trace: Trace) -> dict[str, Trace]:
    """The trace, or of steps by another name the part with the steps of each kind."""
    groups = steps_of(trace).groups
    if trace.step_name is None or not groups:
        return {"": trace}
    return {group: of_group(trace, group) for group in groups}


def _load_traces(files: list[Path], label: str, step_name: re.Pattern[str] | None) -> Sides:
    notes: list[str] = []
    runs: list[_Run] = []
    only: dict[str, Trace] = {}
    try:
        # One after the other: of several traces only their parts are kept.
        for file in files:
            found = recordings_in(read(file), step_name=step_name)
            notes += [f"{file}: {note}" for note in dict.fromkeys(note for trace in found for note in trace.findings)]
            for place, trace in enumerate(found):
                only = _kinds(trace)
                for group, own in only.items():
                    runs.append(_Run(file, place, step_name, group, rank_of(own), step_parts(own), _origin(own)))
        alike: dict[Name, list[_Run]] = {}
        of_job = _is_job(runs)
        for run in runs:
            named = f"rank {run.rank[0]}" * of_job, f"steps {run.group}" * bool(run.group)
            alike.setdefault(Name(", ".join(filter(None, named)), of_job=of_job), []).append(run)
        return {
            name: _side(own, label, only.get(own[0].group) if len(runs) == len(only) else None, tuple(notes))
            for name, own in alike.items()
        }
    except ValueError as error:
        raise InputError(str(error)) from error


def _is_job(runs: Sequence[_Run]) -> bool:
    """Whether these are ranks of one job, of which each is compared for itself: they are no runs of one thing.

    Those that wait for a slower one have its delay as communication, and a mean over all has neither.
    """
    ranks = [(run.rank[0], run.group) for run in runs]
    sizes = {run.rank[1] for run in runs}
    return len(sizes) == 1 and None not in sizes and len(set(ranks)) == len(ranks) > len({run.group for run in runs})


def _side(runs: Sequence[_Run], label: str, trace: Trace | None, notes: tuple[str, ...]) -> LoadedSide:
    """The side that some runs are, without those that damage has left too little of; of one run its `trace`."""
    whole = [run for run in runs if not run.origin.damaged]
    doubts = [doubt if len(runs) == 1 else f"{run.file}: {doubt}" for run in runs for doubt in run.origin.doubts]
    if whole:
        doubts += [
            f"{run.file} is left out: damage leaves fewer than {LEAST_STEPS} of its steps"
            for run in runs
            if run.origin.damaged
        ]
    origin = replace((whole or runs)[0].origin, doubts=tuple(doubts))
    if not whole and not len(runs[0].parts.step_ns):
        return LoadedSide(damaged_side(label, origin), None, notes)
    used = whole or runs[:1]
    side = replace(side_of_traces(label, [run.parts for run in used]), origin=origin)
    if len(runs) == 1 and trace is not None:
        return LoadedSide(side, lambda: trace, notes)
    # Of several runs each is a column, of one each of its steps.
    order = np.argsort(side.step_ns, kind="stable") if len(used) > 1 else [0]
    return LoadedSide(side, used[int(order[(len(order) - 1) // 2])].trace, notes)


def _origin(trace: Trace) -> Origin:
    steps = steps_of(trace)
    return Origin(
        on_device=len(trace.device_rows()) > 0,
        has_steps=len(step_annotations(trace)[0]) > 0,
        devices=devices_of(trace),
        doubts=tuple(finding.message for finding in steps.findings),
        damaged=steps.damaged,
    )


def _load_revision(source: str, folder: str) -> Sides:
    here = Path.cwd()
    top = top_of(here)
    commit = commit_of(here, source)
    if top is None or commit is None:
        problem = trouble(here)
        raise InputError(f"{source} is not a file, a folder or a git revision{f' ({problem})' if problem else ''}")
    inside = (here / folder).resolve()
    where = inside.relative_to(top).as_posix() if inside.is_relative_to(top) else folder
    found: dict[Name, LoadedSide] = {}
    for name in names(top, "ls-tree", "-r", "--name-only", "-z", commit, "--", where):
        if name.endswith(".json"):
            try:
                found |= dict(_load_record(parse(content(top, commit, name) or b""), source))
            except RecordError as error:
                raise InputError(f"{source}:{name} {error}") from error
    if not found:
        raise InputError(f"git revision {source} has no baselines in {where}")
    return found
