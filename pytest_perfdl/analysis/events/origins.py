"""Where events come from: the module of the model, the line of the user's code, the operator of the forward pass."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import numpy as np

from pytest_perfdl.analysis.events.launches import CallTree, call_tree, launches, launching_operator, pair_codes
from pytest_perfdl.analysis.events.operators import operator_args
from pytest_perfdl.analysis.events.threads import AUTOGRAD
from pytest_perfdl.trace.annotations import MODULE
from pytest_perfdl.trace.model import I32, I64, Category, Rows, Trace, once

# Which operator of the forward pass a backward operator belongs to.


@once
def forward_of(trace: Trace) -> Rows:
    """For each row that is a backward operator the row of its forward operator; -1 for all others, and where unknown.

    Backward operators are those that autograd's engine runs: `AddmmBackward0` and the
    `autograd::engine::evaluate_function: AddmmBackward0` around it, not the operators inside them. They carry the
    `Sequence number` of the graph node that they evaluate. An operator of the forward pass carries the number that
    the next node of its thread will get, so several may carry one number: the last of them to start, before the
    backward operator did, made the node.

    Numbers are counted by thread. `Fwd thread id` tells the forward threads apart, but is no thread id of the
    system: each stands for the thread whose forward operators carry most of its numbers, of equal ones the one
    that ran first and that no smaller id stands for. In traces without it, backward operators are known by name.
    """
    found = np.full(len(trace), -1, dtype=np.intp)
    args = operator_args(trace)
    operators = np.flatnonzero(args.sequence >= 0)
    number, forward_thread = args.sequence[operators], args.forward_thread[operators]
    named = trace.named(AUTOGRAD.match)
    is_backward = (forward_thread > 0) | ((forward_thread < 0) & named[trace.name[operators]])
    forward, backward = operators[~is_backward], operators[is_backward]
    if len(forward) == 0 or len(backward) == 0:
        return found
    thread = pair_codes(trace.pid[forward], trace.tid[forward])
    ids = pair_codes(trace.pid[backward], forward_thread[is_backward])
    # A number on a thread is one key; those of backward operators that no thread carries match nothing.
    keys = np.unique(number, return_inverse=True)[1].reshape(-1)
    count = int(keys.max()) + 1
    stands_for = _threads_of_ids(ids, keys[is_backward], thread, keys[~is_backward], trace, forward, backward)
    asked = stands_for[ids] * count + keys[is_backward]
    offered = thread * count + keys[~is_backward]
    found[backward] = _last_before(asked, trace.start[backward], offered, trace.start[forward], forward)
    return found


def _threads_of_ids(
    ids: Rows, asked: Rows, thread: Rows, offered: Rows, trace: Trace, forward: Rows, backward: Rows
) -> Rows:
    """The thread that each forward thread id stands for, by how many numbers they share; -1 for none."""
    begins = np.full(int(thread.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, thread, trace.start[forward])
    owner = np.zeros(len(begins), dtype=np.int64)
    owner[thread] = trace.pid[forward]
    numbers = {int(code): np.unique(offered[thread == code]) for code in np.unique(thread)}
    found = np.full(int(ids.max()) + 1, -1, dtype=np.intp)
    for code in np.unique(ids).tolist():
        own = np.unique(asked[ids == code])
        pid = trace.pid[backward[np.argmax(ids == code)]]
        ranked = sorted(
            (-len(np.intersect1d(own, theirs, assume_unique=True)), other in found, int(begins[other]), other)
            for other, theirs in numbers.items()
            if owner[other] == pid
        )
        if ranked and ranked[0][0] < 0:
            found[code] = ranked[0][-1]
    return found


def _last_before(asked: Rows, at: I64, offered: Rows, started: I64, rows: Rows) -> Rows:
    """For each asked key the row that offers it and started last, before the given moment; -1 for none."""
    is_asked = np.concatenate((np.zeros(len(offered), dtype=bool), np.ones(len(asked), dtype=bool)))
    key = np.concatenate((offered, asked))
    order = np.lexsort((~is_asked, np.concatenate((started, at)), key))
    place = np.where(is_asked[order], -1, np.arange(len(order)))
    latest = np.maximum.accumulate(place)
    known = latest >= 0
    match = np.zeros(len(order), dtype=bool)
    match[known] = key[order][latest[known]] == key[order][known]
    found = np.full(len(asked), -1, dtype=np.intp)
    hits = np.flatnonzero(match & is_asked[order])
    found[order[hits] - len(offered)] = rows[order[latest[hits]]]
    return found


# What a row has by itself, handed down the call tree, over the autograd engine and to the device.


def inherit(trace: Trace, own: I32) -> I32:
    """For each row the value, at least 0, of the nearest of itself and its ancestors that has one; -1 for none.

    A backward operator without a value of its own takes that of its forward operator (see `forward_of`), and what
    runs inside it inherits that before anything around it: on CPUs the engine runs inside the frame that calls
    `backward()`, which says nothing about the layer. A device event takes the value of the call that launched it,
    without one that of its launching operator.
    """
    if not (own >= 0).any():
        return own
    tree = call_tree(trace)
    value = _hand_down(tree, own)
    forward = forward_of(trace)
    backward = np.flatnonzero((forward >= 0) & (own < 0))
    given = own.copy()
    # Where a backward pass recomputes a forward one (checkpoints), values arrive one pass after the other.
    while len(backward) and (value[forward[backward]] != given[backward]).any():
        given[backward] = value[forward[backward]]
        value = _hand_down(tree, given)
    joined = launches(trace)
    operator = launching_operator(trace)[joined.device]
    source = np.where(joined.linked, joined.call, operator)
    value[joined.device] = np.where(source >= 0, value[source], -1)
    return value


def _hand_down(tree: CallTree, own: I32) -> I32:
    source = tree.nearest(own >= 0)
    return np.where(source >= 0, own[source], -1).astype(np.int32)


# Which module of the model each event belongs to, from what the trace says and never from names of its own.


MODULE_FRAME = "nn.Module: "
"""How the profiler names the frame of a module's call; `Linear_0` behind it is class and number of the instance."""

_LEVEL = re.compile(r"([^.()]+)\(([^()]*)\)")
"""One level of a module hierarchy: attribute and class, `attn(Attention)`."""


@once
def module_paths(trace: Trace) -> tuple[I32, tuple[str, ...]]:
    """The module of each row as an index into the paths, -1 for none; and the paths.

    A path names modules from the outermost to the innermost, joined by ".". It comes from our own ranges around
    modules where there are any (`MODULE`), which hold it whole, by the names of attributes. Else it comes from the
    `Module Hierarchy` of an operator (`with_modules`; written by TorchScript only), where
    `TOP(Net)::forward.layers(Block)::forward.` is 'Net.layers', or from the Python frames of modules (`with_stack`),
    where `nn.Module: Block_1` inside `nn.Module: Net_0` is 'Net_0.Block_1'. Operators, calls, frames and device
    events inherit it as `inherit` says, backward operators from their forward operators.
    """
    paths: dict[str, int] = {}
    own = np.full(len(trace), -1, dtype=np.int32)
    if not _from_ranges(trace, own, paths):
        _from_frames(trace, own, paths)
        args = operator_args(trace)
        _from_texts(own, args.hierarchy, [_path(text) for text in args.hierarchies], paths)
    return inherit(trace, own), tuple(paths)


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


def _from_frames(trace: Trace, own: I32, paths: dict[str, int]) -> None:
    tree = call_tree(trace)
    named = trace.named(lambda name: name.startswith(MODULE_FRAME))
    is_frame = (trace.category == Category.PYTHON_FUNCTION) & named[trace.name]
    frames = np.flatnonzero(is_frame)
    frames = frames[np.argsort(tree.depth[frames], kind="stable")]
    around = tree.nearest(is_frame)[tree.parent[frames]]
    around[tree.parent[frames] < 0] = -1
    path_of = {-1: ""}
    for row, above in zip(frames.tolist(), around.tolist(), strict=True):
        name = trace.name_of(row).removeprefix(MODULE_FRAME)
        path = path_of[row] = f"{path_of[above]}.{name}" if above >= 0 else name
        own[row] = paths.setdefault(path, len(paths))


def _from_texts(own: I32, column: I32, named: Sequence[str | None], known: dict[str, int]) -> None:
    """What operators' own arguments say; `column` has the index into `named` of each row, -1 for none."""
    index = np.array([known.setdefault(name, len(known)) if name else -1 for name in named], dtype=np.int32)
    rows = np.flatnonzero(column >= 0)
    rows = rows[index[column[rows]] >= 0]
    own[rows] = index[column[rows]]


def _path(hierarchy: str) -> str:
    """The path that a hierarchy spells; `SELF` is a method of the module at hand, what has no class is a function."""
    levels = []
    for attribute, kind in _LEVEL.findall(hierarchy):
        if attribute.upper() == "TOP":
            levels.append(kind or "TOP")
        elif attribute.upper() != "SELF":
            levels.append(attribute.rpartition(":")[2])
    return ".".join(levels)


# Which line of the user's code each event comes from.


FRAME = re.compile(r"(?P<path>[^<].*)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
"""A frame of Python code; what the interpreter or the profiler made up begins with "<" or with `nn.Module:`."""

_INSTALLED = re.compile(
    r"(^|/)(site|dist)-packages/|(^|/)lib(64)?/python\d[^/]*/|/python[^/]*/lib/"
    r"|^(torch|functorch|torchgen|triton|numpy|_pytest|pluggy|pytest_perfdl)/"
    r"|/torch/(_\w+|amp|ao|autograd|cuda|distributed|functional|fx|jit|library|nn|optim|profiler|utils)(/|\.py$)",
    re.IGNORECASE,
)
"""Paths of what is installed: packages, Python's library, and torch wherever it lies."""

_LIBRARY_PACKAGES = frozenset(
    (
        *("asyncio", "collections", "concurrent", "ctypes", "email", "encodings", "html", "http", "importlib", "json"),
        *("logging", "multiprocessing", "pathlib", "re", "sqlite3", "sysconfig", "unittest", "urllib", "wsgiref"),
        *("xml", "xmlrpc", "zipfile", "zoneinfo"),
    )
)
"""Packages of Python's library that run code while a model does. The profiler cuts the prefix of `sys.path` off."""

_LIBRARY_MODULES = sys.stdlib_module_names - {"code", "profile", "site", "statistics", "this", "trace"}
"""Modules of Python's library, but for those after which people are apt to name scripts."""


_INLINED = ("): <listcomp>", "): <dictcomp>", "): <setcomp>")
"""Ends of frames that only Python before 3.12 has: later ones run a comprehension in its function (PEP 709)."""


@once
def source_lines(trace: Trace) -> tuple[I32, tuple[str, ...]]:
    """The source line of each row as an index into the lines, -1 for none; and the lines, "train.py(12): step".

    It is the innermost Python frame around an event that is the user's code (see `is_user_code`), named as the
    profiler names it: its line is where the function begins. A comprehension is part of its function, whatever the
    version of Python. Operators of older traces carry their frames as `Call stack`, the innermost first. Events inherit
    lines as `inherit` says, backward operators from their forward operators.
    """
    lines: dict[str, int] = {}
    own = np.full(len(trace), -1, dtype=np.int32)
    frames = np.flatnonzero(trace.category == Category.PYTHON_FUNCTION)
    user = np.zeros(len(trace.names), dtype=bool)
    for name in np.unique(trace.name[frames]).tolist():
        user[name] = is_user_code(trace.names[name])
    for row in frames[user[trace.name[frames]]].tolist():
        own[row] = lines.setdefault(trace.name_of(row), len(lines))
    args = operator_args(trace)
    innermost = [next(filter(is_user_code, map(str.strip, text.split(";"))), None) for text in args.stacks]
    _from_texts(own, args.stack, innermost, lines)
    return inherit(trace, own), tuple(lines)


def is_user_code(frame: str) -> bool:
    """Whether a frame, "train.py(12): step", is a function outside torch, installed packages and Python's library.

    >>> is_user_code("train.py(12): step"), is_user_code("torch/nn/functional.py(12): linear")
    (True, False)
    """
    match = FRAME.match(frame)
    if match is None or frame.startswith("nn.Module:") or is_comprehension(frame):
        return False
    path = match["path"].replace("\\", "/")
    first, _, rest = path.partition("/")
    if rest:
        return first not in _LIBRARY_PACKAGES and not _INSTALLED.search(path)
    return path.removesuffix(".py") not in _LIBRARY_MODULES


def is_function(frame: re.Match[str], file: str, name: str) -> bool:
    """Whether a frame (`FRAME`) is of a function of this name in this file, of whichever class.

    Either path may be the end of the other: Python knows files by the folder that they are imported from.
    """
    path = frame["path"].replace("\\", "/")
    named = frame["function"].rpartition(".")[2] == name
    return named and (f"/{path}".endswith(f"/{file}") or f"/{file}".endswith(f"/{path}"))


def is_comprehension(frame: str) -> bool:
    """Whether a frame is that of a list, dictionary or set comprehension.

    >>> is_comprehension("train.py(12): <listcomp>"), is_comprehension("train.py(12): <genexpr>")
    (True, False)
    """
    return frame.endswith(_INLINED)
