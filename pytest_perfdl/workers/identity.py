"""The identity of a test: its source and parameters."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from functools import lru_cache
from importlib.util import decode_source
from pathlib import Path
from typing import Any

import pytest

from pytest_perfdl.model.python_source import parsed


def test_hash(item: pytest.Function) -> str:
    """Identifies the test's own source and parameters.

    Decorators are left out (a new limit is no new test), and so are comments and blank lines.
    """
    parts = [_source(item.function)]
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        parts.append(callspec.id)
        simple = (str, int, float, bool, type(None))
        parts += [f"{name}={value!r}" for name, value in sorted(callspec.params.items()) if isinstance(value, simple)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _source(function: Any) -> str:
    definition = _definition(function)
    if definition is None:
        return getattr(function, "__qualname__", "")
    return "\n".join(line.rstrip() for line in definition if line.strip() and not line.strip().startswith("#"))


def _definition(function: Any) -> list[str] | None:
    """Lines from `def` on, without indentation; `None` where they cannot be read, or would not parse so."""
    try:
        code = inspect.unwrap(function).__code__
        stat = Path(code.co_filename).stat()
        lines, places = _definitions(code.co_filename, stat.st_mtime_ns, stat.st_size)
        first, start, end = places[code.co_firstlineno]
    except (AttributeError, OSError, SyntaxError, ValueError, KeyError):
        return _searched(function)
    source = textwrap.dedent("\n".join(lines[first - 1 : end])).splitlines()
    # A text of several lines may reach further left than the function.
    return None if source[0][0].isspace() else source[start - first :]


@lru_cache(maxsize=64)
def _definitions(path: str, _mtime_ns: int, _size: int) -> tuple[list[str], dict[int, tuple[int, int, int]]]:
    """Lines of a file, and where its functions are: first line, with decorators -> that line, `def`, last line.

    `inspect.getsource` reads on from each function anew, which takes a third of collecting a thousand tests.
    """
    data = Path(path).read_bytes()
    tree = parsed(data)
    found: dict[int, tuple[int, int, int]] = {}
    left: list[ast.AST] = [] if tree is None else [tree]
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[first] = first, node.lineno, node.end_lineno
        # Expressions hold no functions, and are most of a tree.
        left += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return decode_source(data).split("\n"), found


def _searched(function: Any) -> list[str] | None:
    """The same of what is no `def` of a file: a lambda, or a function made from a text."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return source.splitlines()[definition.lineno - 1 :]
