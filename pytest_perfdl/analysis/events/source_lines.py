"""Which line of the user's code each event comes from."""

from __future__ import annotations

import re
import sys

import numpy as np

from pytest_perfdl.analysis.events.inherit import inherited
from pytest_perfdl.analysis.events.operator_args import operator_args
from pytest_perfdl.analysis.events.tree import CallTree
from pytest_perfdl.trace.cached import once
from pytest_perfdl.trace.model import I32, Category, Trace

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
def source_lines(trace: Trace, tree: CallTree) -> tuple[I32, tuple[str, ...]]:
    """The source line of each row as an index into the lines, -1 for none; and the lines, "train.py(12): step".

    It is the innermost Python frame around an event that is the user's code (see `is_user_code`), named as the
    profiler names it: its line is where the function begins. A comprehension is part of its function, whatever the
    version of Python. Operators of older traces carry their frames as `Call stack`, the innermost first. Events inherit
    lines as `inherited` says, backward operators from their forward operators.
    """
    lines: dict[str, int] = {}
    own = np.full(len(trace), -1, dtype=np.int32)
    frames = np.flatnonzero(trace.category == Category.PYTHON_FUNCTION)
    user = np.zeros(len(trace.names), dtype=bool)
    for name in np.unique(trace.name[frames]).tolist():
        user[name] = is_user_code(trace.names[name])
    for row in frames[user[trace.name[frames]]].tolist():
        own[row] = lines.setdefault(trace.name_of(row), len(lines))
    _from_stacks(trace, own, lines)
    return inherited(trace, tree, own), tuple(lines)


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


def _from_stacks(trace: Trace, own: I32, lines: dict[str, int]) -> None:
    args = operator_args(trace)
    frames = [next(filter(is_user_code, map(str.strip, text.split(";"))), None) for text in args.stacks]
    index = np.array([-1 if frame is None else lines.setdefault(frame, len(lines)) for frame in frames], dtype=np.int32)
    rows = np.flatnonzero(args.stack >= 0)
    rows = rows[index[args.stack[rows]] >= 0]
    own[rows] = index[args.stack[rows]]
