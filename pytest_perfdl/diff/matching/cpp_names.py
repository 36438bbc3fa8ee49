"""A C++ kernel's demangled name without what the compiler and the dispatch put there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 64
"""Levels of brackets that are looked into: each takes a pass over the name."""
_IS_CPP = re.compile(r"[<{]|\w\(|::\(|^void ")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::|<unnamed>::")
_LAMBDA = re.compile(
    r"\{lambda\(([^{}]*)\)(?:#\d+)?\}"
    r"|\[lambda\(([^\[\]]*)\) ?\(instance \d+\)\]"
    r"|'lambda\d*'\(([^()']*)\)"
)
_NAMESPACES = re.compile(
    r"\b(?:at|native|c10|cuda|hip|detail|std|memory|templates|binary_internal|at_(?:cuda|hip)_detail|cutlass"
    r"|(?:pytorch_)?flash)::"
)
_PARENTHESES = re.compile(r"\([^()]*\)")
_QUALIFIERS = re.compile(r"\s*\bconst\b|\s*[*&]+")
_DISPATCH = re.compile(r"lambda\[\]::operator::")
_TEMPLATE = re.compile(r"<([^<>]*)>")
_CONSTANT = re.compile(r"-?\d[\d.]*[uUlLf]*|true|false|[^A-Za-z]*")
_ACCESS = re.compile(
    r"(?:Array|array|(?:Trivial)?OffsetCalculator|(?:Load|Store)With\w*|MemBoundScaling)(?:$|\u27e8|::)"
)
_RETURNED = re.compile(r"^\S*[^ :] (?=\S+$)")


def flattened(name: str) -> str:
    """A C++ name as the function with the types that it is made for, one of each; any other name as it is.

    Gone are return type and parameters, which follow from the rest, namespaces of torch and of the standard library,
    compile-time constants (block sizes, vector widths, flags), the numbers of lambdas, and how elements are addressed.

    >>> flattened("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    ...           "at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)")
    'vectorized_elementwise_kernel<FillFunctor<float>>'
    """
    if not _IS_CPP.search(name):
        return name
    text = _NAMESPACES.sub("", _UNNAMED.sub("", name))
    text = _until_same(_LAMBDA, _lambda, text)
    text = _until_same(_PARENTHESES, "", text)
    text = _DISPATCH.sub("", _QUALIFIERS.sub("", text))
    # Inner brackets become others, so that those around them are the innermost of the next round.
    text = _until_same(_TEMPLATE, _arguments, text)
    text = _RETURNED.sub("", text.strip()).replace("\u27e8", "<").replace("\u27e9", ">")
    return text or name


def _until_same(pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(_ROUNDS):
        text, changed = pattern.subn(replacement, text)
        if not changed:
            break
    return text


def _lambda(found: re.Match[str]) -> str:
    arguments = next(group for group in found.groups() if group is not None)
    return f"lambda[{arguments.replace(', ', ';')}]"


def _arguments(found: re.Match[str]) -> str:
    arguments = (argument.strip().replace(" ", "_") for argument in _top_level(found[1]))
    kept = dict.fromkeys(
        argument for argument in arguments if not (_CONSTANT.fullmatch(argument) or _ACCESS.match(argument))
    )
    return f"\u27e8{','.join(kept)}\u27e9" if kept else ""


def _top_level(arguments: str) -> list[str]:
    """Split at the commas that are in no inner template."""
    found, depth = [""], 0
    for piece in re.split(r"([,\u27e8\u27e9])", arguments):
        if piece == "," and not depth:
            found.append("")
            continue
        depth += (piece == "\u27e8") - (piece == "\u27e9")
        found[-1] += piece
    return found
