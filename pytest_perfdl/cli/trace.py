"""Find the bottleneck of a trace, and where a step's time goes.

Several files are the ranks of one job.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import one_run, print_json, rewrite, say, width
from pytest_perfdl.cli.peaks import add_peaks, parse_peaks
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.selection import HELP, parse
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankFigures
    from pytest_perfdl.machine.peaks import Peaks
    from pytest_perfdl.model.selection import Selection
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.trace import Trace

_LARGE = 64 * 2**20
"""Bytes on disk from which reading shows its progress."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="Chrome trace of the PyTorch profiler (.json or .json.gz); several traces must be the ranks of one "
        "distributed job",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained HTML report")
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
    add_peaks(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, analyse and report; 2 when a file cannot be read."""
    from pytest_perfdl.model.errors import SelectionError

    if arguments.top < 1:
        raise CommandError("--top must be at least 1")
    try:
        selection = parse(arguments.select)
    except SelectionError as error:
        raise CommandError(f"--select {error}") from error
    peaks = parse_peaks(arguments.peaks)
    if len(arguments.files) > 1 and not arguments.advise:
        summaries, across = _ranks(arguments.files, selection, peaks)
        advised: list[Answers | None] = [None] * len(summaries)
    else:
        summaries, across, advised = _traces(arguments.files, selection, peaks, advise=arguments.advise)
    for summary in summaries:
        for finding in summary.findings:
            say(f"perfdl trace: {visible(f'{summary.source}: {finding}')}", error=True)
    if arguments.html is not None:
        from pytest_perfdl.report.trace.html import write_page

        write_page(arguments.html, summaries, across, selection, advised)
        say(f"wrote {arguments.html}", error=arguments.json)
    if arguments.json:
        from pytest_perfdl.report.trace.json import to_json

        print_json(to_json(summaries, across, advised, selection))
    elif arguments.html is None:
        from pytest_perfdl.report.trace import terminal

        pages = [
            terminal.report(summary, selection, arguments.top, width(), answers)
            for summary, answers in zip(summaries, advised, strict=True)
        ]
        if across is not None:
            pages.append(terminal.across_ranks(across, width()))
        if not arguments.advise:
            pages.append("Add --advise to predict which optimizations make the step faster.")
        say("\n\n".join(pages))
    return 0


def _ranks(
    files: Sequence[str], selection: Selection, peaks: Peaks | None
) -> tuple[list[TraceSummary], RankFigures | None]:
    """What is said of the selected ranks of a job, each reduced on its own, several at a time."""
    from pytest_perfdl.analysis.ranks import compare
    from pytest_perfdl.analysis.ranks.compare import numbered
    from pytest_perfdl.cli.trace_processes import in_processes, read_in_processes, read_rank

    one = partial(read_rank, selection=selection, peaks=peaks)
    processes = in_processes(files)
    found = read_in_processes(files, processes, one) if processes > 1 else list(map(one, files))
    numbers = numbered([each.rank for each in found])
    wanted = selection.numbers.get("rank")
    chosen = [each for each, number in zip(found, numbers, strict=True) if not wanted or number in wanted]
    if not chosen:
        raise CommandError(
            f"--select: nothing in the job is selected: the ranks of the job are {', '.join(map(str, sorted(numbers)))}"
        )
    for each in chosen:
        if each.problem:
            raise CommandError(f"--select: {each.problem}")
    activities = [each.activity for each in chosen if each.activity is not None]
    summaries = [each.summary for each in chosen if each.summary is not None]
    return summaries, compare(activities) if len(activities) > 1 else None


def _traces(
    files: Sequence[str], selection: Selection, peaks: Peaks | None, *, advise: bool
) -> tuple[list[TraceSummary], RankFigures | None, list[Answers | None]]:
    """The same of traces that are all in memory, as simulating them needs; and what would make the step faster."""
    from pytest_perfdl.analysis.overview.selection import of_ranks, select
    from pytest_perfdl.analysis.overview.summary import summarize
    from pytest_perfdl.analysis.ranks import ranks
    from pytest_perfdl.model.errors import SelectionError

    traces = [_read(file) for file in files]
    try:
        traces = [select(trace, selection) for trace in of_ranks(traces, selection)]
    except SelectionError as error:
        raise CommandError(f"--select: {error}") from error
    summaries = [summarize(trace, peaks) for trace in traces]
    advised = [_advised(trace, peaks) if advise else None for trace in traces]
    return summaries, ranks(traces) if len(traces) > 1 else None, advised


def _read(file: str) -> Trace:
    from pytest_perfdl.trace import read

    path = Path(file)
    large = path.is_file() and path.stat().st_size >= _LARGE and sys.stderr.isatty()
    try:
        return one_run(read(path, progress=_progress(path) if large else None))
    finally:
        if large:
            rewrite("")


def _advised(trace: Trace, peaks: Peaks | None) -> Answers | None:
    """What would make the step faster; `None` for a trace without operators, calls and kernels."""
    from pytest_perfdl.machine.constants import Machine
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import advise
    from pytest_perfdl.whatif.from_trace.graph import task_graph
    from pytest_perfdl.whatif.machine import ACHIEVED
    from pytest_perfdl.whatif.predict import Base
    from pytest_perfdl.whatif.transform import Context

    graph = task_graph(trace)
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
