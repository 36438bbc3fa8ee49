"""The identity of a test: its source and parameters."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import Any

import pytest


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
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return getattr(function, "__qualname__", "")
    lines = source.splitlines()[definition.lineno - 1 :]
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.strip().startswith("#"))
