"""Which module of the model each event belongs to, from what the trace says and never from names of its own."""

from __future__ import annotations

import re

import numpy as np

from pytest_perfdl.analysis.events.inherit import inherited
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.tree import CallTree
from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, Category, Trace

FRAME = "nn.Module: "
"""How the profiler names the frame of a module's call; `Linear_0` behind it is class and number of the instance."""

_LEVEL = re.compile(r"([^.()]+)\(([^()]*)\)")
"""One level of a module hierarchy: attribute and class, `attn(Attention)`."""


@once
def module_paths(trace: Trace, tree: CallTree) -> tuple[I32, tuple[str, ...]]:
    """The module of each row as an index into the paths, -1 for none; and the paths.

    A path names modules from the outermost to the innermost, joined by ".". It comes from our own ranges around
    modules where there are any (`MODULE`), which hold it whole, by the names of attributes. Else it comes from the
    `Module Hierarchy` of an operator (`with_modules`; written by TorchScript only), where
    `TOP(Net)::forward.layers(Block)::forward.` is 'Net.layers', or from the Python frames of modules (`with_stack`),
    where `nn.Module: Block_1` inside `nn.Module: Net_0` is 'Net_0.Block_1'. Operators, calls, frames and device
    events inherit it as `inherited` says, backward operators from their forward operators.
    """
    paths: dict[str, int] = {}
    own = np.full(len(trace), -1, dtype=np.int32)
    if not _from_ranges(trace, own, paths):
        _from_frames(trace, tree, own, paths)
        _from_hierarchies(trace, own, paths)
    return inherited(trace, tree, own), tuple(paths)


def parent_path(path: str) -> str:
    """The path of the module around one, empty for an outermost one.

    >>> parent_path("Net_0.Block_1")
    'Net_0'
    """
    return path.rpartition(".")[0]


def _from_ranges(trace: Trace, own: I32, paths: dict[str, int]) -> bool:
    """Whether the trace has our ranges, and if so their paths."""
    rows = trace.matching(lambda name: name.startswith(MODULE), trace.rows(Category.USER_ANNOTATION))
    index = {
        name: paths.setdefault(trace.names[name].removeprefix(MODULE), len(paths)) for name in trace.name[rows].tolist()
    }
    own[rows] = [index[name] for name in trace.name[rows].tolist()]
    return bool(len(rows))


def _from_frames(trace: Trace, tree: CallTree, own: I32, paths: dict[str, int]) -> None:
    named = trace.named(lambda name: name.startswith(FRAME))
    is_frame = (trace.category == Category.PYTHON_FUNCTION) & named[trace.name]
    frames = np.flatnonzero(is_frame)
    frames = frames[np.argsort(tree.depth[frames], kind="stable")]
    around = tree.nearest(is_frame)[tree.parent[frames]]
    around[tree.parent[frames] < 0] = -1
    path_of = {-1: ""}
    for row, above in zip(frames.tolist(), around.tolist(), strict=True):
        name = trace.name_of(row).removeprefix(FRAME)
        path = path_of[row] = f"{path_of[above]}.{name}" if above >= 0 else name
        own[row] = paths.setdefault(path, len(paths))


def _from_hierarchies(trace: Trace, own: I32, paths: dict[str, int]) -> None:
    args = operator_args(trace)
    spelt = [_path(text) for text in args.hierarchies]
    index = np.array([paths.setdefault(path, len(paths)) if path else -1 for path in spelt], dtype=np.int32)
    rows = np.flatnonzero(args.hierarchy >= 0)
    rows = rows[index[args.hierarchy[rows]] >= 0]
    own[rows] = index[args.hierarchy[rows]]


def _path(hierarchy: str) -> str:
    """The path that a hierarchy spells; `SELF` is a method of the module at hand, what has no class is a function."""
    levels = []
    for attribute, kind in _LEVEL.findall(hierarchy):
        if attribute.upper() == "TOP":
            levels.append(kind or "TOP")
        elif attribute.upper() != "SELF":
            levels.append(attribute.rpartition(":")[2])
    return ".".join(levels)
