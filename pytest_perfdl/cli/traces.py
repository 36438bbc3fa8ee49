"""The traces that a command is given: which files, which annotations are steps, peak rates, and many read at once."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import recordings_of, say
from pytest_perfdl.model.errors import CommandError, NotATrace, SelectionError, TraceError
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.trace import Trace, read
from pytest_perfdl.trace.reader import nothing_in, refusal_of
from pytest_perfdl.trace.recordings import several

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.summary import TraceSummary
    from pytest_perfdl.analysis.ranks import RankActivity
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.model.selection import Selection


# `--step-name`: annotations that are the steps, in place of `ProfilerStep#N`.


_LISTED = 8
"""Names of annotations that an error lists."""
_LONGEST = 60


def add_step_name(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--step-name",
        metavar="REGEX",
        type=_pattern,
        help="the steps are the annotations (record_function) whose whole name matches REGEX, such as 'execute_.*', "
        "instead of ProfilerStep#N; steps for which the groups of REGEX capture different text are different kinds of "
        "steps, which are not mixed",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def with_step_name(traces: Sequence[Trace], pattern: re.Pattern[str] | None) -> tuple[Trace, ...]:
    """The traces with the annotations that are their steps.

    Raises
    ------
    CommandError
        When a trace has none.
    """
    from pytest_perfdl.trace.annotations import step_annotations

    if pattern is None:
        return tuple(traces)
    found = tuple(replace(trace, step_name=pattern) for trace in traces)
    for trace in found:
        if not len(step_annotations(trace)[0]):
            raise CommandError(
                f"--step-name {pattern.pattern!r}: no annotation of {trace.source} has a name that matches as a whole; "
                f"{_list_annotations(trace)}"
            )
    return found


def _list_annotations(trace: Trace) -> str:
    """Which annotations there are, the most frequent first."""
    from pytest_perfdl.trace.annotations import NUMBER
    from pytest_perfdl.trace.model import Category

    rows = trace.rows(Category.USER_ANNOTATION)
    counts = Counter[str]()
    shown: dict[str, str] = {}
    for name, count in Counter(trace.name[rows].tolist()).items():
        # Names that differ in numbers only are one.
        key = NUMBER.sub("#", trace.names[name])
        counts[key] += count
        shown.setdefault(key, trace.names[name])
    parts = [f"{shown[key][:_LONGEST]!r} ({count:,})" for key, count in counts.most_common(_LISTED)]
    if not parts:
        return "it has no annotations"
    more = f", and {plural(len(counts) - _LISTED, 'other name')}" if len(counts) > _LISTED else ""
    return f"its annotations are {', '.join(parts)}{more}"


# `--peaks`: peak rates of the hardware, from the command line.


def add_peaks(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--peaks",
        metavar="NAME=RATE",
        action="append",
        default=[],
        help="peak rates of the hardware per second, such as float32=67Tflop and bandwidth=3.35TB, or a machine.json "
        "file of `perfdl constants`; used for the roofline (default: built-in rates for the device of the trace)",
    )


def parse_peaks(texts: Sequence[str]) -> Peaks | None:
    """The peaks that the option was given; `None` without it.

    Raises
    ------
    CommandError
        When they cannot be read, or say nothing of the memory.
    """
    from pytest_perfdl.machine.rates import ELEMENT_TYPES, Peaks
    from pytest_perfdl.model.units import parse_quantity

    if not texts:
        return None
    if len(texts) == 1 and texts[0].endswith(".json"):
        return _measured_peaks(Path(texts[0]))
    flops: dict[str, float] = {}
    bandwidth = None
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name != "bandwidth" and name not in ELEMENT_TYPES:
                raise ValueError(
                    f"{text!r} is not NAME=RATE, where NAME is one of bandwidth, {', '.join(ELEMENT_TYPES)}"
                )
            rate = parse_quantity(value, "B" if name == "bandwidth" else "flop")
            if rate <= 0:
                raise ValueError(f"{text!r} must be above 0")
            if name == "bandwidth":
                bandwidth = rate
            else:
                flops[name] = rate
        except ValueError as error:
            raise CommandError(f"--peaks {error}: write float32=67Tflop or bandwidth=3.35TB (per second)") from error
    if bandwidth is None:
        raise CommandError("--peaks also needs the memory bandwidth: add bandwidth=3.35TB (bytes per second)")
    return Peaks(flops, bandwidth)


def _measured_peaks(path: Path) -> Peaks:
    """The peak rates of a machine that a project keeps."""
    from pytest_perfdl.machine.rates import Machine

    peaks = Machine.load(path).peaks
    if peaks is None:
        raise CommandError(f"{path} contains no peak rates: run `perfdl constants` to measure peak rates")
    return peaks


# The traces that a command is given: files, and what is a trace in a folder; everything else in it is named.


_NAMED = 8
"""Files that are named one by one."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder and of those in it, in the order of their paths, without hidden ones."""

    path: Path
    traces: Sequence[Path]
    others: Mapping[Path, TraceError]
    """Why each of the others is no trace."""

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Look into every file; only the beginnings are read."""
        files = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        found = {file: refusal_of(file) for file in files}
        return cls(
            path,
            [file for file, error in found.items() if error is None],
            {file: error for file, error in found.items() if error is not None},
        )

    def listed(self, files: Iterable[Path]) -> str:
        """The files with what they are, the first of them one by one."""
        shown = [f"{file.relative_to(self.path)} ({self._what(file)})" for file in files]
        more = f", and {plural(len(shown) - _NAMED, 'more file')}" if len(shown) > _NAMED else ""
        return ", ".join(shown[:_NAMED]) + more

    def name_others(self, command: str, files: Sequence[Path], one: str = "trace") -> None:
        """Print which files were left out, in one line."""
        if files:
            said = f"is not a {one} and was" if len(files) == 1 else f"are not {one}s and were"
            line = f"{plural(len(files), 'file')} in {self.path} {said} left out: {self.listed(files)}"
            say(f"perfdl {command}: {visible(line)}", error=True)

    def _what(self, file: Path) -> str:
        error = self.others.get(file)
        if error is None:
            return "a trace"
        what = error.what if isinstance(error, NotATrace) else ""
        return what or str(error).removeprefix(f"{file} ").removeprefix("is ")


def trace_files(names: Sequence[str], command: str) -> list[str]:
    """The files, in the place of a folder the traces in it; what else is in it is printed.

    Raises
    ------
    CommandError
        When a folder has no traces.
    """
    found: list[str] = []
    for name in names:
        if not Path(name).is_dir():
            found.append(name)
            continue
        folder = Folder.of(Path(name))
        if not folder.traces:
            has = f"it has {folder.listed(folder.others)}" if folder.others else "it has no files"
            raise CommandError(f"{name} contains no traces: {has}")
        folder.name_others(command, list(folder.others))
        found += map(str, folder.traces)
    return found


def recordings_in(trace: Trace, *, memory: bool = False, step_name: re.Pattern[str] | None = None) -> tuple[Trace, ...]:
    """The trace, or that of each process where its file holds several, which is said.

    Parameters
    ----------
    memory
        Whether memory events are enough.
    step_name
        Names of the annotations that are the steps (`--step-name`).

    Raises
    ------
    CommandError, TraceError
        If nothing of it can be analyzed, no annotation is a step by this name, or its processes or the sides of a
        comparison cannot be told apart; the message is one line.
    """
    found = recordings_of(trace)
    if why := nothing_in(trace, memory=memory):
        raise CommandError(f"{trace.source} {why}")
    if len(found) > 1:
        say(visible(f"{several(trace, found)}: read as ranks"), error=True)
    return with_step_name(found, step_name)


# Many traces read at once, each in a process of its own that hands back what is said of it, not the trace.


WORTH = 32 * 2**20
"""Bytes of text of all files from which processes of their own are worth their start."""

PROCESS_BYTES = 160 * 2**20
"""What a process takes before it has read anything."""

PER_BYTE = 8
"""Bytes of memory that reading and analyzing may take per byte of the trace's text; 2 to 3 were measured."""

MEMORY_SHARE = 0.8
"""Of the free memory, for all processes together."""


@dataclass(frozen=True, slots=True)
class ReadRank:
    """What is said of one trace: of the selected part."""

    rank: int | None
    """Its number, as `distributedInfo` says."""
    activity: RankActivity | None
    """`None` where nothing is selected in it."""
    summary: TraceSummary | None
    problem: str = ""
    """Why nothing is selected."""


def read_ranks(
    file: str, selection: Selection, peaks: Peaks | None, step_name: re.Pattern[str] | None = None
) -> list[ReadRank]:
    """Read one file and say all of its trace, or of the trace of each process in it.

    Raises
    ------
    TraceError, CommandError
        The file cannot be used.
    """
    return [_read_rank(each, selection, peaks) for each in recordings_in(read(file), step_name=step_name)]


def _read_rank(whole: Trace, selection: Selection, peaks: Peaks | None) -> ReadRank:
    from pytest_perfdl.analysis.overview.selection import of_largest_group, select
    from pytest_perfdl.analysis.overview.summary import summarize
    from pytest_perfdl.analysis.ranks import activity
    from pytest_perfdl.analysis.ranks.activity import rank_of

    rank = rank_of(whole)[0]
    try:
        trace = select(whole, selection)
    except SelectionError as error:
        return ReadRank(rank, None, None, str(error))
    return ReadRank(rank, activity(of_largest_group(trace)), summarize(trace, peaks))


def in_processes(files: Sequence[str]) -> int:
    """How many processes should read the files; 1 where this one reads them all as fast."""
    from pytest_perfdl.machine.proc import free_bytes

    sizes = sorted(map(text_bytes, files), reverse=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(files) < 2 or sum(sizes) < WORTH or cores < 2:
        return 1
    free = free_bytes()
    wanted = PROCESS_BYTES + PER_BYTE * sizes[0]
    allowed = cores if free is None else int(MEMORY_SHARE * free / wanted)
    return max(1, min(cores, allowed, len(files)))


def text_bytes(file: str) -> int:
    """Bytes of a trace's text, for gzip as its last bytes say (modulo 4 GiB); 0 for a file that cannot be read."""
    try:
        with Path(file).open("rb") as opened:
            packed = opened.read(2) == b"\x1f\x8b"
            size = opened.seek(0, os.SEEK_END)
            if not packed or size < 18:
                return size
            opened.seek(-4, os.SEEK_END)
            return max(int.from_bytes(opened.read(4), "little"), size)
    except OSError:
        return 0
