"""Adds up what belongs to one part in one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, Labels
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.tree import pair_codes
from pytest_perfdl.model.step_part import Part, PartKind
from pytest_perfdl.trace.model import I64, Rows, Trace

_KINDS: tuple[PartKind, ...] = ("kernel", "operator", "idle")


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """The steps of a trace by their parts; matrices have shape (parts, steps), times are nanoseconds."""

    on_device: bool
    step_ns: I64
    """Duration of each step: of its window with device events, of its annotation without (`analysis.events.steps`)."""
    parts: tuple[Part, ...]
    """In the order in which they first occur."""
    classes: tuple[str, ...]
    """The class of each part in the step's account (`device_account`, `host_account`)."""
    ns: I64
    """Time of the step that belongs to the part: what hides behind other work counts for that. Each column adds up
    to `step_ns` exactly."""
    busy_ns: I64
    """Time of the part itself, hidden or not: durations of the device events that the step launched; an operator's
    self time, on whichever thread."""
    count: I64
    """Occurrences: device events launched in the step, operators that begin in it; 0 for idle time."""


class TimeEntries:
    """Entries of (event, class, step, time), from which parts are made."""

    def __init__(self, trace: Trace, labels: Labels, classes: tuple[str, ...]) -> None:
        self._trace = trace
        self._labels = labels
        self._classes = classes
        self._entries: list[tuple[I64, ...]] = []

    def add(
        self,
        kind: PartKind,
        name: str,
        row: Rows,
        step: Rows,
        *,
        ns: I64 | int = 0,
        busy: I64 | int = 0,
        count: int = 0,
    ) -> None:
        """Add entries.

        Parameters
        ----------
        kind, name
            Of the part, and its class.
        row
            Events that say which part it is; -1 where nothing does.
        step
            Index of the step.
        ns, busy, count
            What each entry adds to `StepParts.ns`, `busy_ns` and `count`.
        """
        size = len(row)
        constant = (np.full(size, _KINDS.index(kind)), np.full(size, self._classes.index(name)))
        values = (np.broadcast_to(np.asarray(value, dtype=np.int64), size) for value in (ns, busy, count))
        self._entries.append((*constant, row.astype(np.int64), step.astype(np.int64), *values))

    def close(self, on_device: bool, step_ns: I64) -> StepParts:
        """Everything added up."""
        return self.close_with_places(on_device, step_ns)[0]

    def close_with_places(self, on_device: bool, step_ns: I64) -> tuple[StepParts, Rows]:
        """Everything added up, and where among the parts each entry is, as they were added; -1 if it adds nothing."""
        columns = [np.concatenate(column) for column in zip(*self._entries, strict=True)]
        says = np.logical_or.reduce([value != 0 for value in columns[-3:]])
        columns = [column[says] for column in columns]
        kind, name, row, step, *values = columns
        identity = self._identity(kind, name, row)
        code = identity[0]
        for column in identity[1:]:
            code = pair_codes(code, column)
        _, first, part = np.unique(code, return_index=True, return_inverse=True)
        part = part.reshape(-1)
        begins = np.where(row >= 0, self._trace.start[row], np.iinfo(np.int64).max)
        earliest = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(earliest, part, begins)
        order = np.lexsort((first, earliest))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        matrices = []
        for value in values:
            total = np.zeros((len(first), len(step_ns)), dtype=np.int64)
            np.add.at(total, (place[part], step), value)
            matrices.append(total)
        chosen = first[order]
        parts = tuple(self._part(*(int(column[at]) for column in identity)) for at in chosen.tolist())
        classes = tuple(self._classes[index] for index in name[chosen].tolist())
        places = np.full(len(says), -1, dtype=np.intp)
        places[says] = place[part]
        return StepParts(on_device, step_ns, parts, classes, *matrices), places

    def _identity(self, kind: I64, name: I64, row: I64) -> tuple[I64, ...]:
        """What makes entries of one part, as columns; an idle part has no shapes."""
        labels, idle = self._labels, kind == _KINDS.index("idle")

        def of(column: np.typing.NDArray[np.signedinteger], *, but: np.typing.NDArray[np.bool_]) -> I64:
            return np.where((row >= 0) & ~but, column[row], -1).astype(np.int64)

        nothing = np.zeros(len(row), dtype=bool)
        return (
            kind,
            name,
            of(self._trace.name, but=idle),
            of(labels.path, but=nothing),
            of(labels.call, but=idle),
            of(labels.module, but=nothing),
            of(labels.line, but=nothing),
            of(labels.function, but=~idle),
            np.maximum(of(labels.phase, but=nothing), 0),
            of(labels.node, but=idle),
        )

    def _part(
        self,
        kind: int,
        name: int,
        event: int,
        path: int,
        call: int,
        module: int,
        line: int,
        function: int,
        phase: int,
        node: int,
    ) -> Part:
        labels = self._labels
        name_of_node = labels.nodes[node] if node >= 0 else ("", "")
        return Part(
            kind=_KINDS[kind],
            name=self._trace.names[event] if event >= 0 else self._classes[name],
            path=labels.paths[path] if path >= 0 else (),
            shapes=operator_args(self._trace).shapes(call) if call >= 0 else "",
            module=labels.modules[module] if module >= 0 else "",
            line=labels.lines[line] if line >= 0 else "",
            function=labels.functions[function] if function >= 0 else "",
            phase=PHASES[phase],
            node=name_of_node[0],
            node_name=name_of_node[1],
        )
