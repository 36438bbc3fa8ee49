"""Find the bottleneck of a trace, and where a step's time goes.

Several files, or those of a folder, are the ranks of one job.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import print_json, recordings_of, rewrite, say, width
from pytest_perfdl.cli.traces import (
    add_peaks,
    add_step_name,
    in_processes,
    parse_peaks,
    read_ranks,
    recordings_in,
    trace_files,
    with_step_name,
)
from pytest_perfdl.model.errors import CommandError, SelectionError, TraceError
from pytest_perfdl.model.selection import HELP, Selection, parse
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankActivity, RankFigures
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.trace import Trace

_REPORTED = 2
"""Ranks of which all are reported one by one; of more two are."""
_LARGE = 64 * 2**20
"""Bytes on disk from which reading shows its progress."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="Chrome trace of the PyTorch profiler (.json or .json.gz); several traces, or a folder, must be the "
        "ranks of one distributed job",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained HTML report")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write the traces of all ranks as one Chrome trace, on one clock; compressed if FILE ends in .gz",
    )
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"analyze only a part of the trace: {HELP}; repeatable",
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="maximum number of rows per table (default: %(default)s)"
    )
    parser.add_argument(
        "--advise",
        action="store_true",
        help="also simulate optimizations, and print how much faster each makes the step",
    )
    add_step_name(parser)
    add_peaks(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse and report; 2 when a file cannot be read."""
    if arguments.top < 1:
        raise CommandError("--top must be at least 1")
    files = trace_files(arguments.files, "trace")
    try:
        selection = parse(arguments.select)
    except SelectionError as error:
        raise CommandError(f"--select {error}") from error
    peaks = parse_peaks(arguments.peaks)
    if len(files) > 1 and not arguments.advise:
        found = _ranks(files, selection, peaks, arguments.step_name)
    else:
        found = _traces(files, selection, peaks, arguments.step_name, advise=arguments.advise)
    found = _drop_ranks_without_steps(found)
    summaries, across, advised = found.summaries, found.across, found.advised
    if arguments.trace is not None and across is None:
        raise CommandError(
            "--trace needs several ranks: --select leaves one"
            if len(files) > 1
            else "--trace needs the traces of several ranks: a single trace is a Chrome trace already"
        )
    for summary in summaries:
        for finding in summary.findings:
            say(f"perfdl trace: {visible(f'{summary.source}: {finding}')}", error=True)
    if arguments.html is not None:
        from pytest_perfdl.report.trace.html import write_page

        write_page(arguments.html, summaries, across, selection, advised, found.activities)
        say(f"wrote {arguments.html}", error=arguments.json)
    if arguments.trace is not None and across is not None:
        from pytest_perfdl.report.trace.chrome import write_merged

        write_merged(arguments.trace, across, found.activities, found.traces())
        say(f"wrote {arguments.trace}", error=arguments.json)
    if arguments.json:
        from pytest_perfdl.report.trace.json import to_json

        print_json(to_json(summaries, across, advised, selection))
    elif arguments.html is None and arguments.trace is None:
        from pytest_perfdl.report.trace import terminal
        from pytest_perfdl.report.trace.ranks import choose_reported

        pages = [] if across is None else [terminal.across_ranks(across, arguments.top, width())]
        places = range(len(summaries)) if across is None else choose_reported(across, _REPORTED)
        pages += [
            terminal.report(summaries[place], selection, arguments.top, width(), advised[place]) for place in places
        ]
        if len(places) < len(summaries):
            pages.append("Add --select rank=N for the report on another rank.")
        if not arguments.advise:
            pages.append("Add --advise to predict which optimizations make the step faster.")
        say("\n\n".join(pages))
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What is said of the traces, and how to have them again; of several ranks in the order of their numbers."""

    summaries: Sequence[TraceSummary]
    advised: Sequence[Answers | None]
    across: RankFigures | None
    """`None` for one trace."""
    activities: Sequence[RankActivity]
    traces: Callable[[], Iterator[Trace]]
    """The traces one after the other, the selected part."""


def _ranks(
    files: Sequence[str], selection: Selection, peaks: Peaks | None, step_name: re.Pattern[str] | None
) -> _Found:
    """What is said of the selected ranks of a job, each reduced on its own, several at a time."""
    from pytest_perfdl.analysis.overview.selection import select
    from pytest_perfdl.analysis.ranks import compare
    from pytest_perfdl.analysis.ranks.compare import numbered

    one = partial(read_ranks, selection=selection, peaks=peaks, step_name=step_name)
    processes = in_processes(files)
    if processes > 1:
        from pytest_perfdl.cli.trace_processes import read_in_processes

        each_file = read_in_processes(files, processes, one)
    else:
        each_file = list(map(one, files))
    found = [rank for ranks in each_file for rank in ranks]
    source = [(file, place) for file, ranks in zip(files, each_file, strict=True) for place in range(len(ranks))]
    numbers = numbered([each.rank for each in found])
    wanted = selection.numbers.get("rank")
    chosen = sorted((number, place) for place, number in enumerate(numbers) if not wanted or number in wanted)
    if not chosen:
        raise CommandError(
            f"--select: nothing in the job is selected: the ranks of the job are {', '.join(map(str, sorted(numbers)))}"
        )
    ranks = [found[place] for _, place in chosen]
    for each in ranks:
        if each.problem:
            raise CommandError(f"--select: {each.problem}")
    activities = [each.activity for each in ranks if each.activity is not None]

    def again(file: str, place: int) -> Trace:
        return with_step_name(recordings_of(_read(file)), step_name)[place]

    return _Found(
        [each.summary for each in ranks if each.summary is not None],
        [None] * len(ranks),
        compare(activities) if len(activities) > 1 else None,
        activities,
        lambda: (select(again(*source[place]), selection) for _, place in chosen),
    )


def _traces(
    files: Sequence[str],
    selection: Selection,
    peaks: Peaks | None,
    step_name: re.Pattern[str] | None,
    *,
    advise: bool,
) -> _Found:
    """The same of traces that are all in memory, as simulating them needs; and what would make the step faster."""
    from pytest_perfdl.analysis.overview.selection import of_largest_group, of_ranks, select
    from pytest_perfdl.analysis.overview.summary import summarize

    traces = [
        trace for file in files for trace in recordings_in(_read(file), memory=len(files) == 1, step_name=step_name)
    ]
    try:
        traces = [select(trace, selection) for trace in of_ranks(traces, selection)]
    except SelectionError as error:
        raise CommandError(f"--select: {error}") from error
    across, activities = None, []
    if len(traces) > 1:
        from pytest_perfdl.analysis.ranks import activity, compare, rank_numbers

        numbers = rank_numbers(traces)
        traces = [traces[place] for place in sorted(range(len(traces)), key=numbers.__getitem__)]
        activities = [activity(of_largest_group(trace)) for trace in traces]
        across = compare(activities)
    summaries = [summarize(trace, peaks) for trace in traces]
    advised = [_advise(trace, peaks) if advise else None for trace in traces]
    return _Found(summaries, advised, across, activities, lambda: iter(traces))


def _drop_ranks_without_steps(found: _Found) -> _Found:
    """Without ranks of which no step can be used, where others have some: they would count as ranks that do nothing."""
    kept = [place for place, each in enumerate(found.activities) if len(each.steps)]
    if found.across is None or len(kept) in (0, len(found.activities)):
        return found
    from pytest_perfdl.analysis.ranks import compare

    ranks = found.across.ranks
    notes = [
        f"rank {rank.rank} is left out of the comparison: no step of {rank.source} can be used"
        for place, rank in enumerate(ranks)
        if place not in kept
    ]
    for note in notes:
        say(f"perfdl trace: {visible(note)}", error=True)
    activities = [found.activities[place] for place in kept]
    across = compare(activities) if len(kept) > 1 else None
    return _Found(
        [found.summaries[place] for place in kept],
        [found.advised[place] for place in kept],
        None if across is None else replace(across, findings=(*notes, *across.findings)),
        activities,
        lambda: (trace for place, trace in enumerate(found.traces()) if place in kept),
    )


def _read(file: str) -> Trace:
    from pytest_perfdl.trace import read

    path = Path(file)
    large = path.is_file() and path.stat().st_size >= _LARGE and sys.stderr.isatty()
    try:
        return read(path, progress=_progress(path) if large else None)
    finally:
        if large:
            rewrite("")


def _advise(trace: Trace, peaks: Peaks | None) -> Answers | None:
    """What would make the step faster; `None` for a trace without operators, calls, kernels or a step to simulate."""
    from pytest_perfdl.machine.rates import Machine
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import advise
    from pytest_perfdl.whatif.from_trace.graph import task_graph
    from pytest_perfdl.whatif.machine import ACHIEVED
    from pytest_perfdl.whatif.predict import Base
    from pytest_perfdl.whatif.transform import Context

    try:
        graph = task_graph(trace)
    except TraceError as error:
        say(f"perfdl trace: no advice: {visible(str(error))}", error=True)
        return None
    if not len(graph):
        return None
    machine = Machine()
    if peaks is not None:
        machine = machine.with_(flops_per_s=peaks.flops_per_s, memory_bytes_per_s=ACHIEVED * peaks.bytes_per_s)
    context, base = Context(graph, machine), Base.of(graph)
    return Answers(trace.source, graph, base, advice=advise(context, base))


def _progress(path: Path) -> Callable[[int, int], None]:
    """Rewrites one line on stderr with the share that is read."""

    def show(done: int, total: int) -> None:
        rewrite(f"reading {path.name}: {done / max(total, 1):.0%}")

    return show
