"""Reads files from others with a limit, so that a small file cannot use much memory."""

from __future__ import annotations

import ast
import errno
import os
import warnings
import zlib
from pathlib import Path

_GZIP = 31
"""`wbits` of the gzip format."""


def read_bytes(path: Path | str, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises
    ------
    OSError
        When it cannot be read, or is larger.
    """
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        # Not the limit at once, for which memory would be reserved; more where a file has no size, or grows.
        data = file.read(size_bytes + 1) if size_bytes <= limit else b""
        if size_bytes < len(data) <= limit:
            data += file.read(limit + 1 - len(data))
    if max(size_bytes, len(data)) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {size(limit)}", str(path))
    return data


def gunzip(data: bytes, limit: int) -> bytes:
    """The text of one gzip member, of at most `limit` bytes.

    Raises
    ------
    ValueError
        When it is no gzip data, damaged, or larger; one line without the file's name.
    """
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"invalid gzip data ({error})") from None
    if len(text) > limit:
        raise ValueError(f"larger than {size(limit)} decompressed")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("invalid gzip data (truncated, or followed by other data)")
    return text


def size(limit: int) -> str:
    """A limit as messages say it.

    >>> size(256 * 1024), size(32 * 2**20)
    ('256 KiB', '32 MiB')
    """
    return f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit // 2**10} KiB"


# Functions of a Python text, compared by what they do rather than how they are laid out.


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
