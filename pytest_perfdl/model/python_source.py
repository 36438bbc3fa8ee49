"""Functions of a Python text, compared by what they do rather than how they are laid out."""

from __future__ import annotations

import ast
import warnings


def parsed(source: bytes) -> ast.Module | None:
    """The syntax tree of a text; `None` if it is not Python."""
    try:
        with warnings.catch_warnings():
            # Syntax errors in the project's code are reported elsewhere.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_bodies(source: bytes) -> dict[tuple[str, str], list[str]]:
    """The code of all functions of a text, less its formatting, by class and name."""
    found: dict[tuple[str, str], list[str]] = {}

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault((owner, child.name), []).append(ast.dump(child))
            visit(child, child.name if isinstance(child, ast.ClassDef) else owner)

    if (tree := parsed(source)) is not None:
        visit(tree, "")
    return found
