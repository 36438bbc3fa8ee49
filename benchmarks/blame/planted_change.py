"""What a planted change is, and what is a right answer to it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "scratch" / "src"
PACKAGE = "blamed"
NOWHERE = ("",)
"""The module of what happens in none."""

Changes = Literal["counts", "duration"]
"""Whether operators come, go or occur more often, or everything occurs as often and only takes longer."""


@dataclass(frozen=True)
class Plant:
    """A change for the worse and what blame must find out about it."""

    model: str
    what: str
    changes: Changes
    sized: float
    """Percent by which the step was meant to take longer."""
    names: tuple[str, ...]
    """Patterns of the operators, functions or classes of the account that may rightly be named first."""
    modules: tuple[str, ...] = NOWHERE
    """One of these paths must be named; none where the only one is empty."""
    function: str = ""
    """Where it happens, "gpt.MLP.forward"; empty where no line can be asked for."""
    python: bool = False
    """Whether Python is to blame: then the function and its line must be named."""

    def explains(self, name: str) -> bool:
        """Whether this is a right name; of an exchange, "a, b -> c", one of its names must be.

        >>> Plant("gpt", "", "counts", 3, ("aten::bmm",)).explains("aten::sdpa -> aten::bmm, aten::mul and 2 more")
        True
        """
        parts = [part.split(" and ")[0] for side in name.split(" -> ") for part in side.split(", ")]
        return any(fnmatchcase(part, pattern) for part in (name, *parts) for pattern in self.names)

    @property
    def line(self) -> str:
        """The line to be named, as profilers write it: "blamed/gpt.py(41): forward"; empty for none."""
        return first_line(self.function) if self.function else ""


@cache
def first_line(function: str) -> str:
    """Where a function of the models begins: "gpt.MLP.forward" is at "blamed/gpt.py(41): forward".

    Raises
    ------
    KeyError
        When there is no such function.
    """
    module, *names = function.split(".")
    node: ast.AST = ast.parse((SOURCE / PACKAGE / f"{module}.py").read_text())
    for name in names:
        inner = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == name]
        if not inner:
            raise KeyError(function)
        node = inner[0]
    assert isinstance(node, ast.FunctionDef)
    return f"{PACKAGE}/{module}.py({node.lineno}): {node.name}"
