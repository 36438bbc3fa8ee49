"""The layers of a model in a task graph: which tasks are their forward and backward passes, and what they keep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, Category, Rows, Trace
from pytest_perfdl.whatif.facts import Gradients, gradients
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind
from pytest_perfdl.whatif.transform import Context, NotRecorded

_NUMBERED = re.compile(r"^(.*?[._])\d+$")
_BACKWARD = PHASES.index("backward")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One module in one step."""

    path: str
    step: int
    forward: Rows
    """Its tasks, gaps of the host within it included, in the order of the graph."""
    backward: Rows

    def times(self, graph: TaskGraph, *, backward: bool = False) -> tuple[int, int]:
        """Nanoseconds of a pass on the host and on the device."""
        own = self.backward if backward else self.forward
        device = graph.is_device[own]
        duration = graph.tasks.duration[own]
        return int(duration[~device].sum()), int(duration[device].sum())

    def first_backward(self, graph: TaskGraph) -> tuple[int, int]:
        """The first task of its backward pass on the host, and the first on the device; -1 for none."""
        device = graph.is_device[self.backward]
        return _first(graph, self.backward[~device]), _first(graph, self.backward[device])

    def last_forward(self, graph: TaskGraph) -> tuple[int, int]:
        """The last task of its forward pass on the host, and the last on the device; -1 for none."""
        device = graph.is_device[self.forward]
        return _last(graph, self.forward[~device]), _last(graph, self.forward[device])


def _first(graph: TaskGraph, own: Rows) -> int:
    return int(own[np.argmin(graph.tasks.start[own])]) if len(own) else -1


def _last(graph: TaskGraph, own: Rows) -> int:
    return int(own[np.argmax(graph.tasks.end[own])]) if len(own) else -1


def layers(context: Context, pattern: str = "") -> list[Layer]:
    """The outermost modules whose path fits a pattern (`*` and `?` as in file names), step by step.

    Without a pattern the modules that repeat: those that differ in the number at the end of their path, of the group
    that most tasks belong to, such as `GPT.blocks.0`, `GPT.blocks.1`.

    Raises
    ------
    NotApplicable
        If the trace has no modules, or none that fits.
    """
    graph, marks = context.graph, labels(context.trace)
    if not marks.modules:
        raise NotRecorded(
            "the trace has no modules: profile with with_modules=True and with_stack=True, or with pytest --perf"
        )
    row = graph.tasks.row
    module = np.where(row >= 0, marks.module[row], -1)
    chosen = _fitting(marks.modules, pattern) if pattern else _repeating(marks.modules, module)
    if not chosen:
        raise NotRecorded(
            f"no module matches {pattern!r}" if pattern else "no module is repeated: select the layers with layer=..."
        )
    of = np.array([*(_within(path, chosen) for path in marks.modules), -1], dtype=np.intp)
    unit = _with_gaps(graph, of[module])
    backward = np.where(row >= 0, marks.phase[row] == _BACKWARD, False)
    backward |= (row < 0) & np.concatenate(([False], backward[:-1]))
    found = []
    order = np.argsort(unit, kind="stable")
    bounds = np.searchsorted(unit[order], np.arange(len(chosen) + 1))
    for number, path in enumerate(chosen):
        own = order[bounds[number] : bounds[number + 1]]
        for step in range(max(len(graph.steps), 1)):
            mine = own[graph.tasks.step[own] == step] if graph.steps else own
            if len(mine):
                found.append(Layer(path, step, mine[~backward[mine]], mine[backward[mine]]))
    start = graph.tasks.start
    return sorted(found, key=lambda layer: (layer.step, int(start[layer.forward].min()) if len(layer.forward) else 0))


def _fitting(modules: tuple[str, ...], pattern: str) -> list[str]:
    fits = [path for path in modules if fnmatchcase(path, pattern)]
    return [path for path in fits if not any(path.startswith(f"{other}.") for other in fits)]


def _repeating(modules: tuple[str, ...], module: Rows) -> list[str]:
    counts = np.bincount(module[module >= 0], minlength=len(modules))
    groups: dict[str, dict[str, int]] = {}
    for path in modules:
        # A module counts for all those around it.
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            around = ".".join(parts[:depth])
            if match := _NUMBERED.match(around):
                group = groups.setdefault(match[1], {})
                group[around] = group.get(around, 0) + int(counts[modules.index(path)])
    several = {key: group for key, group in groups.items() if len(group) > 1}
    best = max(several.values(), key=lambda group: sum(group.values()), default={})
    return list(best)


def _within(path: str, chosen: list[str]) -> int:
    return next((n for n, other in enumerate(chosen) if path == other or path.startswith(f"{other}.")), -1)


def _with_gaps(graph: TaskGraph, unit: Rows) -> Rows:
    """Gaps between two tasks of one layer belong to it."""
    found: Rows = unit.copy()
    known = np.where(graph.tasks.row >= 0, np.arange(len(unit)), 0)
    before = unit[np.maximum.accumulate(known)]
    known = np.where(graph.tasks.row >= 0, np.arange(len(unit)), len(unit) - 1)
    after = unit[np.minimum.accumulate(known[::-1])[::-1]]
    gaps = (graph.tasks.kind == TaskKind.GAP) & (before == after)
    found[gaps] = before[gaps]
    return found


@once
def gradient_modules(trace: Trace) -> I32:
    """The module of each gradient: that of the backward operator before its accumulation, as an index; -1 for none."""
    marks, sizes = labels(trace), gradients(trace)
    rows = np.flatnonzero((trace.category == Category.CPU_OP) & (marks.phase == _BACKWARD) & (marks.module >= 0))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    if not len(rows):
        return np.full(len(sizes.row), -1, dtype=np.int32)
    place = np.searchsorted(trace.start[rows], trace.start[sizes.row], side="right") - 1
    return np.where(place >= 0, marks.module[rows[np.maximum(place, 0)]], -1).astype(np.int32)


def gradient_share(trace: Trace, paths: set[str]) -> float:
    """Share of the gradients' elements that modules have, 0 to 1; 0 if none are known."""
    sizes: Gradients = gradients(trace)
    marks = labels(trace)
    chosen = list(paths)
    of = np.array([*(_within(path, chosen) for path in marks.modules), -1], dtype=np.intp)
    own = of[gradient_modules(trace)] >= 0
    whole = int(sizes.elements.sum())
    return float(sizes.elements[own].sum() / whole) if whole else 0.0


def saved(context: Context, layer: Layer) -> Mask:
    """Allocations that a layer's forward pass makes and its backward pass still needs, but for its result.

    One boolean for each of `context.memory`: made between the first and the last moment of the forward pass on the
    host, freed after the backward pass of the layer began. The last that outlives the forward pass is its result, which
    the next layer gets.
    """
    memory, graph = context.memory, context.graph
    if memory is None or not len(layer.forward) or not len(layer.backward):
        return np.zeros(0 if memory is None else len(memory), dtype=bool)
    opened, closed, returned = bounds(graph, layer)
    left = (memory.begin >= opened) & (memory.begin <= closed) & (memory.end > closed) & (memory.row >= 0)
    found: Mask = left & (memory.end > returned)
    found[np.flatnonzero(left)[-1:]] = False
    return found


def bounds(graph: TaskGraph, layer: Layer) -> tuple[int, int, int]:
    """When the host began and ended a layer's forward pass, and when it began the backward pass."""
    tasks = graph.tasks
    forward, backward = (own[~graph.is_device[own]] for own in (layer.forward, layer.backward))
    if not len(forward) or not len(backward):
        return 0, 0, 0
    return int(tasks.start[forward].min()), int(tasks.end[forward].max()), int(tasks.start[backward].min())
