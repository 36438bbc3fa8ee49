"""A step as the sum of its parts: every nanosecond of it belongs to one kernel, operator or class of idle time.

`step_parts` gives the parts of every step of a trace with who launched them, in which module and from which line, so
that two steps can be subtracted from each other without a remainder. `labels` says which part an event is of,
`host_parts` and `device_parts` say which part each moment belongs to and add up, `without_delays` excludes the time in
which other processes used the processor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_perfdl.analysis.account.accounts import (
    BUSY_CLASSES,
    HOST_IDLE_CLASSES,
    IDLE_CLASSES,
    OPERATOR_CLASSES,
    PHASES,
    busy_rows,
    idle_time,
    operator_classes,
    phases,
)
from pytest_perfdl.analysis.events.communication import covered, waits_for_collectives, waits_for_input
from pytest_perfdl.analysis.events.intervals import Intervals, Steps
from pytest_perfdl.analysis.events.launches import (
    GRAPH_LAUNCH,
    CallTree,
    Launches,
    call_tree,
    launches,
    launching_operator,
    pair_codes,
)
from pytest_perfdl.analysis.events.nesting import ownership
from pytest_perfdl.analysis.events.operators import operator_args, operator_time
from pytest_perfdl.analysis.events.origins import (
    MODULE_FRAME,
    is_comprehension,
    is_user_code,
    module_paths,
    source_lines,
)
from pytest_perfdl.analysis.events.steps import device_steps, steps_of
from pytest_perfdl.analysis.events.threads import on_thread, operator_threads
from pytest_perfdl.model.step_part import Part, PartKind
from pytest_perfdl.trace.annotations import MODULE, step_annotations
from pytest_perfdl.trace.arrays import Numbering
from pytest_perfdl.trace.model import I32, I64, Category, GraphNode, Rows, Trace, once

# Which part of the step an event is of: the operators around it, its module, line and phase.


_ADDRESS = re.compile(r"( of type object| object)? at 0x[0-9a-f]+")
_SAYS_NOTHING = re.compile(r"torch/nn/modules/module\.py\(\d+\): (_?(wrapped_)?call_impl|inner)$|^pytest_perfdl/")
"""How torch calls any module, which says nothing that the module does not, and what measures."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Columns as long as the trace; -1 for none. Device events have the labels of what launched them.

    Those of a graph have no operator and no module: what called its replay is not what put them there.
    """

    path: Rows
    """Index into `paths`: the operators around an operator, those up to its launching one of a device event. Where
    frames name functions, of all else on the host the innermost annotation, which they would hide."""
    paths: tuple[tuple[str, ...], ...]
    call: Rows
    """Index into `operator_args(trace).calls` of the operator itself, or of the launching one."""
    module: I32
    modules: tuple[str, ...]
    line: I32
    lines: tuple[str, ...]
    function: I32
    """Index into `functions`: what the user's line calls there, or else the innermost annotation."""
    functions: tuple[str, ...]
    """Without the addresses of objects, which no two processes share."""
    phase: I32
    """Index into `PHASES`."""
    node: I32
    """Index into `nodes`, of the device events that a graph launched."""
    nodes: tuple[tuple[str, str], ...]
    """`Part.node` and `Part.node_name`."""


@once
def labels(trace: Trace) -> Labels:
    """Label every row of a trace."""
    tree = call_tree(trace)
    joined = launches(trace)
    is_operator = trace.category == Category.CPU_OP
    own, around, paths = _paths(trace, tree, is_operator)
    call = operator_args(trace).call.copy()
    phase = phases(trace).copy()
    operator = launching_operator(trace)[joined.device]
    known = operator >= 0
    around[joined.device[known]] = own[operator[known]]
    call[joined.device[known]] = call[operator[known]]
    phase[joined.device[known]] = phase[operator[known]]
    module, modules = module_paths(trace)
    replayed = joined.device[joined.linked & trace.named(GRAPH_LAUNCH.search)[trace.name[joined.call]]]
    if len(replayed):
        module = module.copy()
        around[replayed] = call[replayed] = module[replayed] = -1
    node, nodes = _nodes(trace, replayed)
    line, lines = source_lines(trace)
    functions = Numbering[str]()
    frames = trace.category == Category.PYTHON_FUNCTION
    annotation = _annotations(trace, tree)
    if frames.any():
        paths = _annotated(trace, around, paths, annotation, (tree.depth >= 0) & ~is_operator)
    texts = np.array([functions[_ADDRESS.sub("", name)] for name in trace.names], dtype=np.int32)
    function = _functions(trace, tree, frames) if frames.any() else _names(trace, annotation)
    function = np.where(function >= 0, texts[function], -1).astype(np.int32)
    return Labels(around, paths, call, module, modules, line, lines, function, tuple(functions), phase, node, nodes)


def _nodes(trace: Trace, replayed: Rows) -> tuple[I32, tuple[tuple[str, str], ...]]:
    """The graph and node of each device event that has them, as an index; by the device's start."""
    found = np.full(len(trace), -1, dtype=np.int32)
    ids = [(each.graph, each.node) for each in trace.decode_args(replayed, GraphNode)]
    graphs: dict[int, set[int]] = {}
    for graph, node in ids:
        if graph and node:
            graphs.setdefault(graph, set()).add(node)
    places = {
        (graph, node): (f"{number}.{place}", f"graph {graph}, node {node}")
        for number, (graph, nodes) in enumerate(graphs.items(), 1)
        for place, node in enumerate(sorted(nodes), 1)
    }
    index = {pair: number for number, pair in enumerate(places)}
    found[replayed] = [index.get(pair, -1) for pair in ids]
    return found, tuple(places.values())


def _paths(
    trace: Trace, tree: CallTree, is_operator: np.typing.NDArray[np.bool_]
) -> tuple[Rows, Rows, tuple[tuple[str, ...], ...]]:
    """The path to and with each operator, and the path to it, as indices into the paths; one level after the other."""
    own = np.full(len(trace), -1, dtype=np.intp)
    around = np.full(len(trace), -1, dtype=np.intp)
    above = tree.nearest(is_operator)
    paths: list[tuple[str, ...]] = []
    known: dict[tuple[int, int], int] = {}
    operators = np.flatnonzero(is_operator)
    depth = tree.depth[operators]
    for level in np.unique(depth).tolist():
        rows = operators[depth == level]
        parent = tree.parent[rows]
        inside = np.where(parent >= 0, above[parent], -1)
        around[rows] = np.where(inside >= 0, own[inside], -1)
        pairs = np.stack((around[rows], trace.name[rows].astype(np.intp)), axis=1)
        distinct, index = np.unique(pairs, axis=0, return_inverse=True)
        codes = []
        for before, name in distinct.tolist():
            if (before, name) not in known:
                known[before, name] = len(paths)
                paths.append((*(paths[before] if before >= 0 else ()), trace.names[name]))
            codes.append(known[before, name])
        own[rows] = np.array(codes, dtype=np.intp)[index.reshape(-1)]
    return own, around, tuple(paths)


def _annotations(trace: Trace, tree: CallTree) -> Rows:
    """The innermost annotation around each row that is neither the step's nor a module's, -1 for none."""
    told = trace.named(lambda name: not name.startswith(MODULE))[trace.name]
    told[step_annotations(trace)[0]] = False
    return tree.nearest((trace.category == Category.USER_ANNOTATION) & told)


def _names(trace: Trace, row: Rows) -> I32:
    """Index into `Trace.names` of each row's row, -1 for none."""
    return np.where(row >= 0, trace.name[row], -1).astype(np.int32)


def _annotated(
    trace: Trace, around: Rows, paths: tuple[tuple[str, ...], ...], annotation: Rows, rows: np.typing.NDArray[np.bool_]
) -> tuple[tuple[str, ...], ...]:
    """Write a path of one annotation around each of the rows that has one; the paths with these."""
    inside = np.flatnonzero(rows & (annotation >= 0))
    names, index = np.unique(trace.name[annotation[inside]], return_inverse=True)
    around[inside] = len(paths) + index.reshape(-1)
    return (*paths, *((trace.names[name],) for name in names.tolist()))


def _functions(trace: Trace, tree: CallTree, is_frame: np.typing.NDArray[np.bool_]) -> I32:
    """Index into `Trace.names` of the first function below the innermost frame of user code, handed down from there.

    Frames of modules are not functions, a comprehension is part of its function, and how torch calls a module says
    nothing.
    """
    found = np.full(len(trace), -1, dtype=np.int32)
    user = trace.named(is_user_code)
    silent = trace.named(_says_nothing)
    is_user = is_frame & user[trace.name]
    speaks = is_frame & ~is_user & ~silent[trace.name]
    # One above the other: whether a row is inside user code, with nothing of a library in between.
    direct = is_user.copy()
    for rows in tree.levels:
        parent = tree.parent[rows]
        begins = speaks[rows] & direct[parent]
        inherits = ~is_user[rows] & ~begins
        found[rows[begins]] = trace.name[rows[begins]]
        found[rows[inherits]] = found[parent[inherits]]
        direct[rows[inherits]] = direct[parent[inherits]] & ~speaks[rows[inherits]]
    return found


def _says_nothing(name: str) -> bool:
    return name.startswith(MODULE_FRAME) or is_comprehension(name) or bool(_SAYS_NOTHING.search(name))


# Adds up what belongs to one part in one step.


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
    """The class of each part in the step's account (`accounts.device_accounts`, `accounts.host_accounts`)."""
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
        name: str | Rows,
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
            Of the part, and its class: one for all entries, or the index of each entry's own.
        row
            Events that say which part it is; -1 where nothing does.
        step
            Index of the step.
        ns, busy, count
            What each entry adds to `StepParts.ns`, `busy_ns` and `count`.
        """
        size = len(row)
        code = self._classes.index(name) if isinstance(name, str) else name
        columns = (_KINDS.index(kind), code, row, step, ns, busy, count)
        self._entries.append(tuple(np.broadcast_to(np.asarray(each, dtype=np.int64), size) for each in columns))

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
        parts = tuple(self._part([int(column[at]) for column in identity]) for at in chosen.tolist())
        classes = tuple(self._classes[index] for index in name[chosen].tolist())
        places = np.full(len(says), -1, dtype=np.intp)
        places[says] = place[part]
        return StepParts(on_device, step_ns, parts, classes, *matrices), places

    def _identity(self, kind: I64, name: I64, row: I64) -> tuple[I64, ...]:
        """What makes entries of one part, as columns; an idle part has no shapes."""
        labels, idle = self._labels, kind == _KINDS.index("idle")
        known = row >= 0

        def values(column: np.typing.NDArray[np.signedinteger], where: np.typing.NDArray[np.bool_]) -> I64:
            return np.where(where, column[row], -1).astype(np.int64)

        busy = (values(column, known & ~idle) for column in (self._trace.name, labels.call, labels.node))
        both = (values(column, known) for column in (labels.path, labels.module, labels.line))
        function, phase = values(labels.function, known & idle), np.maximum(values(labels.phase, known), 0)
        return kind, name, *busy, *both, function, phase

    def _part(self, identity: Sequence[int]) -> Part:
        kind, name, event, call, node, path, module, line, function, phase = identity
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


# Time during which other processes used the CPU, excluded from the parts of a step in which it was.
#
# The scheduler says how long a step's thread waited for a processor, not when. But a wait is one piece, as a rule of
# several milliseconds, so the part that it fell into is the one that is longer by it than in the other steps.


LEAST_NS = 500_000
"""Shorter waits are left where they are: parts differ by as much of themselves."""
FEWEST_STEPS = 3
"""With fewer steps nothing says what a part usually takes."""


def without_delays(found: StepParts, delays_ns: Sequence[int]) -> StepParts:
    """The same steps without what others took of them (`delays_ns`, of each step), as far as the parts show where.

    In each step with a delay of at least `LEAST_NS` that is taken off the part that is longest beyond its median in the
    other steps, by no more than what is beyond, then off the next. Parts that not all steps have are left alone: these
    are longer for reasons of their own. Steps on a device are, too: there the host's delay may have cost nothing.
    """
    steps = len(found.step_ns)
    if found.on_device or steps < FEWEST_STEPS or len(delays_ns) != steps:
        return found
    ns, busy = found.ns.copy(), found.busy_ns.copy()
    everywhere = (found.ns > 0).all(axis=1)
    for step in range(steps):
        left = delays_ns[step]
        usual = np.median(np.delete(found.ns, step, axis=1), axis=1)
        beyond = np.where(everywhere, found.ns[:, step] - usual, 0).astype(np.int64)
        for part in np.argsort(-beyond, kind="stable").tolist():
            if min(left, beyond[part]) < LEAST_NS:
                break
            taken = min(left, int(beyond[part]))
            ns[part, step] -= taken
            busy[part, step] = max(busy[part, step] - taken, 0)
            left -= taken
    return replace(found, step_ns=ns.sum(axis=0), ns=ns, busy_ns=busy)


# The parts of steps with device events: whose each moment of a step's window is.


def device_parts(trace: Trace, steps: Steps, joined: Launches) -> StepParts:
    """Device events by the time that they alone account for, and idle time by cause and by what ends it.

    Classes are those of `device_accounts`. A moment at which several events of a class run belongs to the one that
    started last. Idle time has the labels of the call that launched what ends it.
    """
    ledger = TimeEntries(trace, labels(trace), (*BUSY_CLASSES, *IDLE_CLASSES))
    step = np.full(len(trace), -1, dtype=np.intp)
    step[joined.device] = device_steps(trace)
    for name, (own, above) in zip(BUSY_CLASSES, busy_rows(trace), strict=True):
        launched = own[step[own] >= 0]
        ledger.add("kernel", name, launched, step[launched], busy=trace.duration[launched], count=1)
        _exposed(trace, steps, ledger, name, own, covered(trace, above))
    found = idle_time(trace)
    for name, ns in found.by_cause.items():
        some = np.flatnonzero(ns)
        ledger.add("idle", name, found.call[some], found.window[some], ns=ns[some])
    return ledger.close(True, np.array([window.window_ns for window in steps.windows], dtype=np.int64))


def _exposed(trace: Trace, steps: Steps, ledger: TimeEntries, name: str, rows: Rows, behind: Intervals) -> None:
    """Time of these events in the windows that does not hide behind the others."""
    owned = ownership(trace.start[rows], trace.end[rows])
    for index in range(len(steps.windows)):
        window = steps.windows[index]
        first = int(np.searchsorted(owned.end, window.start, side="right"))
        own = slice(first, max(first, int(np.searchsorted(owned.start, window.end))))
        time = steps.window_time(index).difference(behind.clip(window.start, window.end))
        ns = time.within(owned.start[own], owned.end[own])
        some = np.flatnonzero(ns)
        ledger.add("kernel", name, rows[owned.owner[own][some]], np.full(len(some), index), ns=ns[some])


# The parts of steps without device events: whose each moment of the step's thread is.


_NOWHERE: Rows = np.full(1, -1, dtype=np.intp)


def host_parts(trace: Trace, steps: Steps) -> StepParts:
    """Operators' self time on the step's thread, input, communication, and Python by what it was in.

    Classes are those of `host_accounts`. What runs inside input belongs to the input. The rest of the step goes to the
    innermost Python frame or annotation on its thread.
    """
    ledger = TimeEntries(trace, labels(trace), (*OPERATOR_CLASSES, *HOST_IDLE_CLASSES))
    thread = steps.thread
    waiting = waits_for_input(trace, thread)
    communicating = waits_for_collectives(trace, thread)
    for other in operator_threads(trace, thread):
        if other not in operator_time(trace):
            continue
        rows, owned = operator_time(trace)[other]
        classes = operator_classes(trace, rows)
        step = steps.of_host_time(trace.start[rows])
        began = (step >= 0) & ~waiting.contains(trace.start[rows])
        ledger.add("operator", classes[began], rows[began], step[began], count=1)
        for index in range(len(steps.windows)):
            whole = steps.host_time(index).difference(waiting)
            works = whole.difference(communicating) if other == thread else whole
            time = works.within(owned.start, owned.end)
            pieces = np.flatnonzero(time)
            owner, own, at = owned.owner[pieces], time[pieces], np.full(len(pieces), index)
            ledger.add("operator", classes[owner], rows[owner], at, ns=own if other == thread else 0, busy=own)
    _idle(trace, steps, ledger, waiting, communicating)
    return ledger.close(False, np.array([window.host_ns for window in steps.windows], dtype=np.int64))


def _idle(trace: Trace, steps: Steps, ledger: TimeEntries, waiting: Intervals, communicating: Intervals) -> None:
    thread = steps.thread
    busy = covered(trace, on_thread(trace, trace.rows(Category.CPU_OP), thread))
    around = on_thread(trace, trace.rows(Category.PYTHON_FUNCTION, Category.USER_ANNOTATION), thread)
    owned = ownership(trace.start[around], trace.end[around])
    for index in range(len(steps.windows)):
        time = steps.host_time(index)
        at = np.full(1, index)
        ledger.add("idle", "input", _NOWHERE, at, ns=waiting.intersection(time).length)
        ledger.add("idle", "communication", _NOWHERE, at, ns=communicating.intersection(time).length)
        gaps = time.difference(waiting).difference(busy).difference(communicating)
        inside = gaps.within(owned.start, owned.end)
        pieces = np.flatnonzero(inside)
        rows, own = around[owned.owner[pieces]], inside[pieces]
        ledger.add("idle", "Python and host", rows, np.full(len(pieces), index), ns=own)
        ledger.add("idle", "Python and host", _NOWHERE, at, ns=gaps.length - int(own.sum()))


# The parts of a trace's steps.


@once
def step_parts(trace: Trace) -> StepParts:
    """What every step of a trace is made of, to the nanosecond.

    With device events the step is its window and the parts are device events and causes of idle time
    (`device_parts`); without, it is the step's time on the host, of operators and Python (`host_parts`). A trace
    without any event has no steps and no parts.
    """
    joined = launches(trace)
    steps = steps_of(trace)
    if not steps.windows:
        nothing = np.zeros((0, 0), dtype=np.int64)
        return StepParts(False, np.zeros(0, dtype=np.int64), (), (), nothing, nothing, nothing)
    return device_parts(trace, steps, joined) if len(joined.device) else host_parts(trace, steps)


__all__ = ["PHASES", "StepParts", "step_parts", "without_delays"]
