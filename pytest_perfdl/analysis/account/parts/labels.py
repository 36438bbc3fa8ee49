"""Which part of the step an event is of: the operators around it, its module, line and phase."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.events.launches import GRAPH_LAUNCH, launches
from pytest_perfdl.analysis.events.modules import FRAME, module_paths
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.source_lines import is_comprehension, is_user_code, source_lines
from pytest_perfdl.analysis.events.threads import backward_rows, optimizer_rows
from pytest_perfdl.analysis.events.tree import CallTree, call_tree, launching_operator
from pytest_perfdl.model.step_part import Phase
from pytest_perfdl.trace.annotations import MODULE, step_annotations
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, Category, GraphNode, Rows, Trace
from pytest_perfdl.trace.numbering import Numbering

PHASES: tuple[Phase, ...] = ("", "forward", "backward", "optimizer")
"""By the numbers in `Labels.phase`."""

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
    phase = _phases(trace, tree, is_operator)
    operator = launching_operator(trace, tree, joined)[joined.device]
    known = operator >= 0
    around[joined.device[known]] = own[operator[known]]
    call[joined.device[known]] = call[operator[known]]
    phase[joined.device[known]] = phase[operator[known]]
    module, modules = module_paths(trace, tree)
    replayed = joined.device[joined.linked & trace.named(GRAPH_LAUNCH.search)[trace.name[joined.call]]]
    if len(replayed):
        module = module.copy()
        around[replayed] = call[replayed] = module[replayed] = -1
    node, nodes = _nodes(trace, replayed)
    line, lines = source_lines(trace, tree)
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


def _phases(trace: Trace, tree: CallTree, is_operator: np.typing.NDArray[np.bool_]) -> I32:
    """Optimizer inside its annotations, backward inside what the autograd engine runs, else forward."""
    is_update = np.zeros(len(trace), dtype=bool)
    is_update[optimizer_rows(trace)] = True
    is_engine = np.zeros(len(trace), dtype=bool)
    is_engine[backward_rows(trace)] = True
    phase = np.where(is_operator, PHASES.index("forward"), 0).astype(np.int32)
    phase[(tree.nearest(is_engine) >= 0)] = PHASES.index("backward")
    phase[(tree.nearest(is_update) >= 0)] = PHASES.index("optimizer")
    return phase


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
    return name.startswith(FRAME) or is_comprehension(name) or bool(_SAYS_NOTHING.search(name))
