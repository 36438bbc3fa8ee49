"""Which tasks an edit means: by name, kind, track, layer, operator, phase, step or any condition."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from pytest_perfdl.analysis.account.parts import PHASES, Labels, labels
from pytest_perfdl.analysis.events.launches import call_tree, launches
from pytest_perfdl.analysis.events.operators import operator_args
from pytest_perfdl.model.errors import SelectionError
from pytest_perfdl.model.selection import Selection
from pytest_perfdl.trace.model import I32, Category, Rows, Trace
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind, Track, TrackKind, mask_of

Selector = Mask | Rows | Callable[[TaskGraph], Mask | Rows]
"""One boolean per task, or the tasks' numbers, or what makes them of a graph, such as a `Select`."""


def select_tasks(graph: TaskGraph, selector: Selector) -> Mask:
    """One boolean per task.

    Raises
    ------
    ValueError
        If it is not one value per task.
    """
    found = np.asarray(selector(graph) if callable(selector) else selector)
    mask = mask_of(len(graph), found.astype(np.intp)) if found.dtype.kind == "i" else found.astype(bool)
    if mask.shape != (len(graph),):
        raise ValueError(f"expected a selection of {len(graph)} tasks, got an array of shape {mask.shape}")
    return mask


@dataclass(frozen=True, slots=True)
class Select:
    """Tasks that fulfil every condition that is given; without one, all.

    Select(name="gemm", device=True) | Select(operator="aten::dropout")
    """

    name: str | None = None
    """Regular expression that the task's name contains, whatever the case."""
    kind: TaskKind | None = None
    track: Track | TrackKind | int | None = None
    """A track, its kind, or its index in the graph."""
    device: bool | None = None
    """Whether it runs on a stream or channel."""
    operator: str | None = None
    """Name of an operator, `*` and `?` as in file names: tasks inside it, those of the device that it launched, too."""
    layer: str | None = None
    """Path of a module, likewise: tasks of it and of the modules inside it."""
    phase: str | None = None
    """"forward", "backward" or "optimizer"."""
    step: int | None = None
    """Index of the step in the graph."""
    row: int | None = None
    """Row of the trace."""
    rank: int | None = None
    """Number of the rank, in a job of several."""
    where: Callable[[TaskGraph], Mask] | None = None
    """Any further condition: one boolean per task."""

    def __call__(self, graph: TaskGraph) -> Mask:
        """One boolean per task of a graph.

        Raises
        ------
        ValueError
            If the graph has no trace to look labels up in, or a phase is unknown.
        """
        tasks = graph.tasks
        found = np.ones(len(graph), dtype=bool)
        if self.name is not None:
            found &= graph.named(re.compile(self.name, re.IGNORECASE).search)
        for column, wanted in ((tasks.kind, self.kind), (tasks.step, self.step), (tasks.row, self.row)):
            if wanted is not None:
                found &= column == wanted
        if self.track is not None:
            found &= np.isin(tasks.track, _tracks(graph, self.track))
        if self.device is not None:
            found &= graph.is_device == self.device
        if self.rank is not None:
            found &= _tasks_of_rank(graph, self.rank)
        if self.operator is not None:
            found &= _inside_operators(graph, partial(fnmatchcase, pat=self.operator))
        if self.layer is not None:
            found &= tasks_of_rows(graph, _rows_in_layer(labels(_trace(graph)), self.layer))
        if self.phase is not None:
            if self.phase not in PHASES[1:]:
                raise ValueError(f"there is no phase {self.phase!r}; known phases: {', '.join(PHASES[1:])}")
            found &= _in_phases(graph, (self.phase,))
        if self.where is not None:
            found &= select_tasks(graph, self.where)
        return found

    def __or__(self, other: Select) -> Select:
        return Select(where=lambda graph: self(graph) | other(graph))


@dataclass(frozen=True, slots=True)
class Selected:
    """Tasks that a selection of the command line means.

    In a job ranks are asked one by one, of which not each has to have such a task: see `check`.
    """

    selection: Selection
    text: str
    """As it was given."""

    def __call__(self, graph: TaskGraph) -> Mask:
        """One boolean per task of a graph.

        Raises
        ------
        SelectionError
            If no task is meant: a question about nothing is a mistake in the question.
        """
        found = self._of(graph)
        if graph.rank is None and not found.any():
            raise self._nothing
        return found

    def check(self, ranks: Sequence[TaskGraph]) -> None:
        """One of the ranks of a job has to have such a task.

        Raises
        ------
        SelectionError
        """
        if not any(self._of(graph).any() for graph in ranks):
            raise self._nothing

    @property
    def _nothing(self) -> SelectionError:
        return SelectionError(f"{self.text!r} matches nothing in the trace")

    def _of(self, graph: TaskGraph) -> Mask:
        selection, tasks = self.selection, graph.tasks
        found = np.ones(len(graph), dtype=bool)
        if selection.steps:
            wanted = [selection.has_step(step.number) for step in graph.steps]
            found &= np.array([*wanted, False], dtype=bool)[tasks.step]
        if kinds := selection.words.get("kind"):
            found &= np.isin(tasks.kind, [TaskKind[kind.upper()] for kind in kinds])
        if streams := selection.numbers.get("stream"):
            own = [track.kind == TrackKind.STREAM and track.number in streams for track in graph.tracks]
            found &= np.array(own, dtype=bool)[tasks.track]
        if ranks := selection.numbers.get("rank"):
            found &= np.any([_tasks_of_rank(graph, rank) for rank in ranks], axis=0)
        if phases := selection.words.get("phase"):
            found &= _in_phases(graph, phases)
        if selection.patterns.get("name"):
            found &= graph.named(partial(selection.matches, "name"))
        if selection.patterns.get("operator"):
            found &= _inside_operators(graph, partial(selection.matches, "operator"))
        for condition in ("module", "shapes", "line"):
            if selection.patterns.get(condition):
                index, texts = _texts_of_rows(_trace(graph), condition)
                matching = np.array([*(selection.matches(condition, text) for text in texts), False], dtype=bool)
                found &= tasks_of_rows(graph, matching[index])
        return found


def _texts_of_rows(trace: Trace, condition: str) -> tuple[Rows | I32, Sequence[str]]:
    """What each row of a trace is of, as an index into texts, -1 for none."""
    marks = labels(trace)
    if condition == "module":
        return marks.module, marks.modules
    if condition == "line":
        return marks.line, marks.lines
    args = operator_args(trace)
    return marks.call, [args.shapes(call) for call in range(len(args.calls))]


def _tracks(graph: TaskGraph, track: Track | TrackKind | int) -> list[int]:
    if isinstance(track, Track):
        return [number for number, each in enumerate(graph.tracks) if each == track]
    if isinstance(track, TrackKind):
        return [number for number, each in enumerate(graph.tracks) if each.kind == track]
    return [track]


def _tasks_of_rank(graph: TaskGraph, rank: int) -> Mask:
    if graph.job is None:
        return np.full(len(graph), graph.rank == rank)
    found: Mask = np.array([track.rank == rank for track in graph.tracks], dtype=bool)[graph.tasks.track]
    return found


def _trace(graph: TaskGraph) -> Trace:
    if graph.trace is None:
        raise ValueError("operators, layers and phases can only be selected in a graph that was made from a trace")
    return graph.trace


def tasks_of_rows(graph: TaskGraph, mask: Mask) -> Mask:
    """Which tasks are of rows of the trace that a mask has."""
    rows = graph.tasks.row
    return np.where(rows >= 0, mask[rows], False)


def _in_phases(graph: TaskGraph, phases: Collection[str]) -> Mask:
    return tasks_of_rows(graph, np.isin(labels(_trace(graph)).phase, [PHASES.index(phase) for phase in phases]))


def _inside_operators(graph: TaskGraph, predicate: Callable[[str], object]) -> Mask:
    trace = _trace(graph)
    return tasks_of_rows(graph, with_launched(trace, rows_inside(trace, predicate)))


def rows_inside(trace: Trace, predicate: Callable[[str], object]) -> Mask:
    """Rows of operators whose name satisfies a predicate, and of what the host runs inside them."""
    operators = trace.named(predicate)[trace.name] & (trace.category == Category.CPU_OP)
    return np.asarray(call_tree(trace).outermost(operators) >= 0, dtype=bool)


def with_launched(trace: Trace, rows: Mask) -> Mask:
    """Rows of calls, and of what they launched."""
    found: Mask = rows.copy()
    joined = launches(trace)
    linked = joined.linked
    found[joined.device[linked]] |= rows[joined.call[linked]]
    return found


def _rows_in_layer(marks: Labels, layer: str) -> Mask:
    inside = [fnmatchcase(path, layer) or fnmatchcase(path, f"{layer}.*") for path in marks.modules]
    return np.array([*inside, False], dtype=bool)[marks.module]
