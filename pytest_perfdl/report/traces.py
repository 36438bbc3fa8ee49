"""The trace files of a report (`results.trace_files`): their bytes, collected from the exemplars of a run.

The names come from there, the joint trace of both sides from `step_trace` and `speedscope`, that of all ranks from
`trace.chrome`. An exemplar that cannot be read is left out, with a note; it is no reason to lose the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.model.errors import ChromeTraceError, TraceError
from pytest_perfdl.report.speedscope import speedscope
from pytest_perfdl.report.step_trace import DrawnSide, drawn_sides, regression_trace
from pytest_perfdl.report.story import cause_groups
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Exemplars, Result, Run
from pytest_perfdl.results.trace_files import Role, file_name, kept, traces_of_ranks
from pytest_perfdl.trace import ALL_RANKS, loads, read_exemplar, unpack

LABELS: dict[Role, str] = {
    "base": "baseline",
    "new": "current",
    "diff": "both sides",
    "speedscope": "speedscope",
    "base_ranks": "all ranks of the baseline",
    "ranks": "all current ranks",
}
"""What the page calls the files."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file for the report's `traces/` folder."""

    name: str
    role: Role
    data: bytes
    selected: str = ""
    """The slice that a viewer should show first, as the query that Perfetto selects one by; empty where none is."""


@dataclass(frozen=True, slots=True)
class CallTraces:
    """The trace files of one call of a test, and why one is absent."""

    test: str
    call: str
    files: tuple[TraceFile, ...]
    problems: tuple[str, ...] = ()


def collect(run: Run) -> dict[str, tuple[CallTraces, ...]]:
    """Read the exemplars that the run asks for and draw both sides of those that have two; by test."""
    return {
        result.id: tuple(_collect_call(run, result, exemplars) for exemplars in kept(run, result))
        for result in run.results
        if kept(run, result)
    }


def _collect_call(run: Run, result: Result, exemplars: Exemplars) -> CallTraces:
    call = exemplars.call
    files: list[TraceFile] = []
    problems: list[str] = []
    sides: tuple[tuple[Role, Path | None], ...] = (("base", exemplars.base), ("new", exemplars.new))
    for role, path in sides:
        if path is None:
            continue
        try:
            files.append(TraceFile(file_name(result.id, call, role), role, read_exemplar(path)))
        except TraceError as error:
            problems.append(f"the {LABELS[role]} trace is left out: {error}")
    if len(files) == 2:
        base, new = (file.data for file in files)
        drawn: list[DrawnSide] = []
        for draw in (_for_perfetto, _for_speedscope):
            try:
                drawn = drawn or [*drawn_sides(base, new, f"{visible(result.id)} {visible(call)}".rstrip())]
                files.append(draw(run, result, call, drawn))
            except ChromeTraceError as error:
                problems.append(str(error))
            except Exception as error:
                # Whatever a trace may hold that drawing it does not expect: one picture is no reason to lose the rest.
                problems.append(
                    f"baseline and current cannot be combined in one trace: {type(error).__name__}: {error}"
                )
    for role, paths in traces_of_ranks(exemplars):
        try:
            files.append(TraceFile(file_name(result.id, call, role), role, _ranks_trace(role, paths)))
        except TraceError as error:
            problems.append(f"the trace with {LABELS[role]} is left out: {error}")
        except Exception as error:
            problems.append(f"{LABELS[role]} cannot be combined in one trace: {type(error).__name__}: {error}")
    return CallTraces(result.id, call, tuple(files), tuple(dict.fromkeys(problems)))


def _ranks_trace(role: Role, paths: Sequence[Path]) -> bytes:
    """One trace with a process for each rank, on one clock; of many ranks of those that tables show.

    Raises
    ------
    TraceError
        When a trace cannot be read, or the trace of all is larger than one that is read from a report may be.
    """
    if len(paths) == 1:
        return read_exemplar(paths[0], ALL_RANKS)
    # Imported here: few tests have ranks.
    from pytest_perfdl.analysis.ranks import activity, compare
    from pytest_perfdl.report.trace.chrome import merge_ranks
    from pytest_perfdl.report.trace.ranks import shown_ranks

    label = "baseline" if role == "base_ranks" else "current"
    traces = [loads(read_exemplar(path), label) for path in paths]
    activities = [activity(trace) for trace in traces]
    figures = compare(activities)
    shown = shown_ranks(figures)
    if len(shown) < len(traces):
        traces, activities = [traces[place] for place in shown], [activities[place] for place in shown]
        figures = compare(activities)
    data = merge_ranks(figures, activities, traces)
    unpack(data, "it", ALL_RANKS)
    return data


def _for_perfetto(run: Run, result: Result, call: str, sides: Sequence[DrawnSide]) -> TraceFile:
    causes = [cause for group in cause_groups(result, run) for cause in group.causes]
    made = regression_trace(result, call, sides, causes)
    slice_ = made.selected
    query = "" if slice_ is None else f"pid={slice_.pid}&ts={slice_.start_ns}&dur={slice_.duration_ns}"
    return TraceFile(file_name(result.id, call, "diff"), "diff", made.data, query)


def _for_speedscope(_: Run, result: Result, call: str, sides: Sequence[DrawnSide]) -> TraceFile:
    return TraceFile(file_name(result.id, call, "speedscope"), "speedscope", speedscope(result, call, sides))
