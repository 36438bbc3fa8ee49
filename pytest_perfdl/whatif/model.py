"""The words of a task graph: tasks on tracks, and edges that say which moment has to wait for which other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import F64, I32, I64, Rows, Trace

if TYPE_CHECKING:
    from pytest_perfdl.analysis.ranks import RankFigures


# Rows of many columns at once: what an edit leaves as it was is copied in long runs, not row by row.


Column = npt.NDArray[Any]

_RUN = 512
"""Rows that runs of neighbors must have on average to be copied run by run: fewer are gathered as fast."""


def taker(rows: Rows | npt.NDArray[np.bool_], count: int | None = None) -> Callable[..., Column]:
    """What takes some rows of any column, into a new one; rows are numbers of 0 or more, or one boolean each.

    With `count` columns are given in two parts of which this is the length of the first; rows count on in the second.
    """
    if rows.dtype == bool:
        # Where the mask changes, runs begin and end alternately.
        changes = np.flatnonzero(np.diff(rows, prepend=False, append=False))
        first, behind, total = changes[::2], changes[1::2], int(np.count_nonzero(rows))
    else:
        breaks = np.diff(rows) != 1
        if count is not None:
            breaks |= rows[1:] == count
        ends = np.flatnonzero(breaks)
        first, behind = rows[np.append(0, ends + 1)[: len(rows)]], rows[np.append(ends, -1)[: len(rows)]] + 1
        total = len(rows)
    if not total or len(first) * _RUN > total:
        return lambda *parts: (parts[0] if count is None else np.concatenate(parts))[rows]
    split = sys.maxsize if count is None else count
    runs = [
        (0, slice(since, until)) if since < split else (1, slice(since - split, until - split))
        for since, until in zip(first.tolist(), behind.tolist(), strict=True)
    ]
    return lambda *parts: np.concatenate([parts[part][run] for part, run in runs])


# The words of a task graph: tasks on tracks, and edges that say which moment has to wait for which other.


Mask = npt.NDArray[np.bool_]

NO_RELEASE = -(2**62)
"""A moment before every trace: a task that nothing but its edges holds up."""

NO_SCOPE, WHOLE_DEVICE = -1, -2
"""Values of `Tasks.scope` that are no track."""


class TaskKind(IntEnum):
    """What a task is."""

    OPERATOR = 0
    """A piece of a host thread in which this operator was innermost."""
    CALL = 1
    """The same for a runtime or driver call."""
    INPUT = 2
    """The same for waiting for the next batch."""
    GAP = 3
    """A piece of a host thread in no event: Python and the rest of the host."""
    WAIT = 4
    """The moment, without duration, at which a thread began to wait."""
    RETURN = 5
    """The moment, without duration, at which a thread went on, or could have: its edges say what for."""
    KERNEL = 6
    COPY = 7
    MEMSET = 8
    COMMUNICATION = 9
    """A communication kernel, or a collective that runs beside the host's threads."""


DEVICE_KINDS = (TaskKind.KERNEL, TaskKind.COPY, TaskKind.MEMSET, TaskKind.COMMUNICATION)
"""What runs on streams and channels."""


class EdgeKind(IntEnum):
    """Why the target of an edge has to wait."""

    THREAD = 0
    """Program order of a host thread."""
    STREAM = 1
    """Order of a stream; the lag is the kernel gap, negative under programmatic dependent launch."""
    LAUNCH = 2
    """A device task starts after its launching call has started (its correlation)."""
    SYNC = 3
    """A synchronizing call returns after the last task ahead of it, of every stream or of one."""
    COPY = 4
    """A blocking copy's call returns after its copy."""
    EVENT = 5
    """`cudaStreamWaitEvent`: a task starts after what was ahead of the recorded event."""
    OTHER_STREAM = 6
    """Inferred: it began right after another stream's task ended."""
    CONTENTION = 7
    """Inferred: it began while the last blocks of another stream's kernel made room."""
    JOIN = 8
    """A thread goes on after another has finished or begun; inferred unless one is an autograd thread."""
    SPIN = 9
    """Inferred: a thread polls for the last kernel that it launched."""
    QUEUE = 10
    """Back-pressure: a launch waits until the task `queue_depth` submissions before has made room in the queue."""
    COMMUNICATION = 11
    """A collective waits for what it reduces, or something waits for a collective, on another track."""


CHAIN_KINDS = (EdgeKind.THREAD, EdgeKind.STREAM)
"""Edges from a task to the next of its track, of which each task has one at most."""


class TrackKind(IntEnum):
    """What executes the tasks of a track, one at a time."""

    THREAD = 0
    STREAM = 1
    CHANNEL = 2
    """Where collectives run that the host's threads do not run themselves."""


@dataclass(frozen=True, slots=True)
class Track:
    """One executor: `process` is the process or device, `number` the thread or stream, as in the trace."""

    kind: TrackKind
    process: int
    number: int
    rank: int = 0
    """Number of the rank in the graph of a job; -1 where ranks meet."""


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Columns of equal length, ordered by track and, within one, in the order in which they run."""

    kind: npt.NDArray[np.int8]
    track: I32
    """Index into `TaskGraph.tracks`."""
    name: I32
    """Index into `TaskGraph.names`."""
    row: Rows
    """Row of the trace, -1 for gaps and what was inserted; an inserted task may borrow another's for its labels."""
    start: I64
    """Measured start in nanoseconds on the clock of the trace; of inserted tasks the moment at which they belong."""
    duration: I64
    """Nanoseconds."""
    release: I64
    """Earliest start in absolute time, `NO_RELEASE` for none: of what began or was launched before it."""
    submitted: I64
    """Moment on the host at which it was submitted: start of the launching or synchronizing call, else `start`."""
    launcher: Rows
    """Task of the call that launched it, -1 if unknown or on the host."""
    step: I32
    """Index of the step that it belongs to (a device task that of its launch), -1 for none."""
    scope: I32
    """What a synchronizing RETURN waits for: a track, `WHOLE_DEVICE`, or `NO_SCOPE` if its edges alone say."""
    setup: Mask
    """Whether its time belongs to no step: setup on the steps' thread."""
    unexplained: I64
    """Nanoseconds before its measured start that no edge explains: see `quality`."""

    @classmethod
    def of(cls, kind: Column, track: Column, name: Column, start: I64, duration: I64, **more: Column) -> Tasks:
        """Tasks of which not all is given: without row, launcher, step and scope, submitted when they start."""
        count = len(start)
        usual = {"release": NO_RELEASE, "scope": NO_SCOPE, "setup": False, "unexplained": 0}
        columns = {"kind": kind, "track": track, "name": name, "start": start, "duration": duration, "submitted": start}
        columns |= more
        return cls(
            **{
                column: np.array(columns[column], dtype=dtype)
                if column in columns
                else np.full(count, usual.get(column, -1), dtype=dtype)
                for column, dtype in _TASK_TYPES.items()
            }
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> I64:
        """Measured ends."""
        return self.start + self.duration

    def take(self, tasks: Rows | Mask, more: Tasks | None = None) -> Tasks:
        """Some tasks, in this order, of these and those of `more` behind them; their `launcher` is left as it is."""
        parts = (self,) if more is None else (self, more)
        take = taker(tasks, None if more is None else len(self))
        return Tasks(*(take(*(getattr(part, name) for part in parts)) for name in self.__slots__))

    def on_track(self, track: int) -> slice:
        """The tasks of one track."""
        first, behind = np.searchsorted(self.track, np.array((track, track + 1), dtype=self.track.dtype)).tolist()
        return slice(first, behind)


_TASK_TYPES: dict[str, type[np.generic]] = dict.fromkeys(Tasks.__slots__, np.int64)
_TASK_TYPES |= {"kind": np.int8, "setup": np.bool_, "row": np.intp, "launcher": np.intp}
_TASK_TYPES |= dict.fromkeys(("track", "name", "step", "scope"), np.int32)


class Edges:
    """Columns of equal length ordered by target: start[target] >= anchor(source) + lag.

    The anchor is the source's end, or its start where `at_start`. `lag` replays the trace: the edge that was
    satisfied last keeps its measured lag, the others the least that is usual for their kind (its 5th percentile), if
    they had as much. `constant_lag` is one constant per kind (the median of the binding ones) where the kind's lag
    is a property of the machine: launches, kernel gaps, returns; inferred edges keep what was measured.
    """

    __slots__ = ("_columns", "derived")

    def __init__(
        self,
        source: Rows,
        target: Rows,
        kind: npt.NDArray[np.int8],
        at_start: Mask,
        lag: I64,
        constant_lag: I64,
        confidence: F64,
    ) -> None:
        self._columns: tuple[Any, ...] | Callable[[], Sequence[Any]]
        self._columns = source, target, kind, at_start, lag, constant_lag, confidence
        self.derived: dict[str, Any] = {}
        """Results that `structure` computed from the edges, which never change."""

    @classmethod
    def later(cls, columns: Callable[[], Sequence[npt.NDArray[Any]]]) -> Edges:
        """Edges whose columns are made when one is asked for: most edited graphs are only simulated, which does not."""
        edges = object.__new__(cls)
        edges._columns, edges.derived = columns, {}
        return edges

    def _column(self, name: str) -> Column:
        if callable(self._columns):
            self._columns = tuple(self._columns())
        column: Column = self._columns[EDGE_COLUMNS.index(name)]
        return column

    @property
    def source(self) -> Rows:
        """Task from which each comes."""
        return self._column("source")

    @property
    def target(self) -> Rows:
        """Task that waits."""
        return self._column("target")

    @property
    def kind(self) -> npt.NDArray[np.int8]:
        """As `EdgeKind`."""
        return self._column("kind")

    @property
    def at_start(self) -> Mask:
        """Whether it is anchored at the source's start."""
        return self._column("at_start")

    @property
    def lag(self) -> I64:
        """Nanoseconds, as measured."""
        return self._column("lag")

    @property
    def constant_lag(self) -> I64:
        """Nanoseconds, as is usual."""
        return self._column("constant_lag")

    @property
    def confidence(self) -> F64:
        """1 for what the trace says, less for what only its times suggest."""
        return self._column("confidence")

    def with_(self, **columns: npt.NDArray[Any]) -> Edges:
        """The edges with other columns."""
        return Edges(*(columns[name] if name in columns else self._column(name) for name in EDGE_COLUMNS))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def inferred(self) -> Mask:
        """Which edges only the times of the trace suggest."""
        return np.asarray(self.confidence < 1, dtype=bool)

    def first(self, count: int) -> Rows:
        """CSR offsets: the edges into task t are those from first[t] up to first[t + 1]."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.target, minlength=count)))).astype(np.intp)

    def take(self, edges: Rows | Mask) -> Edges:
        """Some edges, in this order."""
        take = taker(edges)
        return Edges(*(take(getattr(self, name)) for name in EDGE_COLUMNS))

    @classmethod
    def joined(cls, *parts: Edges) -> Edges:
        """All edges of several sets, ordered by target; of one target as given."""
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in EDGE_COLUMNS]
        take = taker(np.argsort(columns[1], kind="stable"))
        return cls(*map(take, columns))

    @classmethod
    def of(
        cls,
        kind: EdgeKind,
        source: Rows,
        target: Rows,
        lag: I64 | int,
        constant_lag: I64 | int | None = None,
        *,
        at_start: Mask | bool = False,
        confidence: float = 1.0,
    ) -> Edges:
        """Edges of one kind."""
        count = len(source)
        measured = np.broadcast_to(np.asarray(lag, dtype=np.int64), count).copy()
        constant = measured if constant_lag is None else np.asarray(constant_lag, dtype=np.int64)
        return cls(
            source=np.asarray(source, dtype=np.intp),
            target=np.asarray(target, dtype=np.intp),
            kind=np.full(count, kind, dtype=np.int8),
            at_start=np.broadcast_to(np.asarray(at_start, dtype=bool), count).copy(),
            lag=measured,
            constant_lag=np.broadcast_to(constant, count).copy(),
            confidence=np.full(count, confidence),
        )


def mask_of(count: int, rows: Rows | Sequence[int]) -> Mask:
    """So many booleans, true at some places."""
    found = np.zeros(count, dtype=bool)
    found[rows] = True
    return found


def are_of_kinds(rows: Tasks | Edges, *kinds: TaskKind | EdgeKind) -> Mask:
    """Which tasks, or edges, are of some kinds; several times as fast as `numpy.isin` on a column of small numbers."""
    table = np.zeros(max(len(TaskKind), len(EdgeKind)), dtype=bool)
    table[list(kinds)] = True
    found: Mask = table[rows.kind]
    return found


EDGE_COLUMNS = ("source", "target", "kind", "at_start", "lag", "constant_lag", "confidence")
"""The columns of `Edges`, in the order in which its constructor takes them."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What is usual on the machine of the trace, in nanoseconds: the lags of `constant_lag` and of inserted tasks."""

    launch_lag: int = 0
    kernel_gap: int = 0
    sync_return: int = 0
    queue_depth: int = 0
    """Submissions after which a launch waits for room in its stream's queue; 0 for never."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step as measured: see `pytest_perfdl.analysis.events.steps.steps_of`."""

    number: int
    start: int
    """Start of the window."""
    end: int
    """End of the window."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """Tasks and what each has to wait for. Nothing in it changes: edits make new graphs."""

    tasks: Tasks
    edges: Edges
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    steps: tuple[StepSpan, ...] = ()
    owner: int = 0
    """The track of the steps' thread, of the first rank's in a job."""
    on_device: bool = True
    """Whether steps complete on the device, too: whether the trace has device events."""
    constants: Constants = Constants()
    trace: Trace | None = field(default=None, repr=False)
    """Where labels such as layers are looked up; `None` for graphs that were not built from a trace."""
    contradicted: int = 0
    """Edges that were left out because the times of the trace would lead in a circle."""
    rank: int | None = None
    """Number of the rank, in a part of a job."""
    job: Job | None = field(default=None, repr=False)
    """The ranks, in the graph of a job of several."""
    measured: TaskGraph | None = field(default=None, repr=False)
    """The graph before the profiler's time was taken off it, if it was: how well that explains the trace is told of."""

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def span(self) -> tuple[int, int]:
        """Measured first start and last end."""
        if not len(self):
            return 0, 0
        return int(self.tasks.start.min()), int(self.tasks.end.max())

    @property
    def begin(self) -> int:
        """The moment at which a task starts that nothing holds up: the first of all starts and releases."""
        first = int(self.tasks.start.min()) if len(self) else 0
        held = self.tasks.release > NO_RELEASE
        return int(self.tasks.release[held].min(initial=first))

    @property
    def owners(self) -> tuple[int, ...]:
        """The track of the steps' thread, of each rank."""
        return (self.owner,) if self.job is None else self.job.owners

    @property
    def is_device(self) -> Mask:
        """Which tasks run on streams and channels."""
        return are_of_kinds(self.tasks, *DEVICE_KINDS)

    def scaled(self, factor: F64 | float) -> I64:
        """Durations times a factor, or one for each task, in nanoseconds."""
        scaled: I64 = np.rint(self.tasks.duration * factor).astype(np.int64)
        return scaled

    def with_durations(self, duration: I64) -> TaskGraph:
        """The same graph with other durations, in nanoseconds."""
        return replace(self, tasks=replace(self.tasks, duration=duration))

    def name_of(self, task: int) -> str:
        """Name of one task."""
        return self.names[int(self.tasks.name[task])]

    def behind(self, tasks: Mask) -> Mask:
        """The tasks that come next on their track after some."""
        track = self.tasks.track
        return np.concatenate((np.zeros(min(len(self), 1), dtype=bool), tasks[:-1] & (track[1:] == track[:-1])))

    def named(self, predicate: Callable[[str], object]) -> Mask:
        """Which tasks have a name that satisfies a predicate."""
        names = np.array([bool(predicate(name)) for name in self.names], dtype=bool)
        found: Mask = names[self.tasks.name]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """A line for each, in the order of their last arrivals, a column for each rank. Nanoseconds as measured."""

    row: Rows
    """The row in the rank's trace, -1 where it takes no part."""
    waits: Mask
    """Whether the rank waits for all others: in a collective each does, of a sender and a receiver the receiver."""
    duration: I64
    """Waiting included."""
    transfer: I64
    """What is no waiting: the shortest duration of all, at most what passes from the last arrival to the rank's end."""
    late: I64
    """From the last arrival until the rank's transfer begins: what the ends of ranks, or their clocks, differ by."""
    kind: npt.NDArray[np.str_]
    """Of each line: "all_reduce", "send", ...: see `analysis.ranks.calls.kind_of`."""
    bytes: I64
    """Of each line, as nccl-tests count them; 0 where the traces do not say."""
    members: I64
    """Of each line the ranks of its group, whether their traces are given or not."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, lines: Rows) -> Meetings:
        """Some of them, in this order."""
        return Meetings(*(getattr(self, name)[lines] for name in self.__slots__))

    def joined(self, more: Meetings) -> Meetings:
        """These and more of the same ranks."""
        return Meetings(*(np.concatenate((getattr(self, name), getattr(more, name))) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The ranks that a graph is of, in the order of their numbers."""

    parts: tuple[TaskGraph, ...]
    """Each rank's own graph on the clock of its own trace. Edits change these, and then what couples them."""
    shifts: tuple[int, ...]
    """Nanoseconds to add to the times of each to get those of the whole graph, which are the first rank's."""
    meetings: Meetings
    figures: RankFigures
    caveat: str
    """Why predictions are to be trusted with care however well the replay fits; empty if nothing is known."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The ranks' numbers."""
        return tuple(rank.rank for rank in self.figures.ranks)

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that all ranks have."""
        return sorted(set.intersection(*({step.number for step in part.steps} for part in self.parts)))

    def step_of(self, column: int, index: I32) -> I32:
        """Places in `steps` of steps of a rank, given by their indices in its own graph; -1 for none."""
        common = {number: place for place, number in enumerate(self.steps)}
        places = [common.get(step.number, -1) for step in self.parts[column].steps]
        found: I32 = np.array([*places, -1], dtype=np.int32)[index]
        return found

    @property
    def owners(self) -> tuple[int, ...]:
        """The tracks of the ranks' steps' threads in the whole graph."""
        before = np.cumsum([0, *(len(part.tracks) for part in self.parts)]).tolist()
        return tuple(first + part.owner for first, part in zip(before, self.parts, strict=False))
