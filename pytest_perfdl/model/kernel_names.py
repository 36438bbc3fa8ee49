"""Short names of GPU kernels for tables: the function's name first, template arguments as far as there is room.

A demangled name as a trace has it is up to thousands of characters long: the return type, namespaces, template
arguments and the argument list, which repeats them. `short_name` keeps the function and its template arguments without
namespaces, as the short names of `nsys stats` do; `short_names` fits the names of one table into a column so that
distinct kernels differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MARK = "..."
_LEAST_DIFFERENCE = 8
"""Characters of what tells two names apart that are shown at least."""
_GENERIC = re.compile(r"[Kk]ernel\d*|run|apply|operator.*")
"""Function names that say nothing without their namespace: `cutlass::Kernel2`, `gemvx::kernel`."""
_NAMESPACE = re.compile(r"(?:\b[A-Za-z_]\w*|\(anonymous namespace\)|<unnamed>)::(?=[\w(<])")
_CLONE = re.compile(r"(?: const)?(?: \[clone [^\]]*\])*$")
_TOKEN = re.compile(r"[A-Za-z0-9.]+")
_BETWEEN = re.compile(r" -> |, | and \d+ more$| and ")
_OPEN, _CLOSE = "<([{", ">)]}"


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces and argument list; what is not C++ stays as it is.

    Of several names, "a, b -> c", each is shortened.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float*)")
    'vectorized_elementwise_kernel<4, FillFunctor<float>>'
    >>> short_name("aten::mm"), short_name("Memcpy HtoD (Pageable -> Device)")
    ('aten::mm', 'Memcpy HtoD (Pageable -> Device)')
    >>> short_name("void old<int>(float*) -> void ns::new_one<int>(float*)")
    'old<int> -> new_one<int>'
    """
    function, arguments = _divide(name)
    return function + arguments


def short_names(names: Iterable[str], width: int) -> Mapping[str, str]:
    """Every name in at most `width` columns, cut at the end; distinct names stay distinct.

    Where names are equal up to the cut, the template arguments that they share are left out instead, so that the first
    difference shows. Names that differ in nothing that is shown are numbered in alphabetical order.

    >>> long = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{}_tn_align8>(int)"
    >>> sorted(short_names([long.format("64x64_64x6"), long.format("128x64_32x6")], 41).values())
    ['cutlass::Kernel2<...128x64_32x6_tn_ali...', 'cutlass::Kernel2<...64x64_64x6_tn_align8>']
    """
    width = max(width, len(MARK) + 2 * _LEAST_DIFFERENCE)
    known = {name: _divide(name) for name in sorted(set(names))}
    texts = {name: function + arguments for name, (function, arguments) in known.items()}
    for group in _alike(texts):
        # What a short name leaves out tells these apart, so the whole name follows it.
        texts.update({name: f"{texts[name]} {name}" for name in group})
    shown = {name: _cut(function + arguments, width) for name, (function, arguments) in known.items()}
    for group in _alike(shown):
        heads = {name: _head(*known[name], width) for name in group}
        shown.update(_apart({name: texts[name] for name in group}, heads, width))
    taken = set(shown.values())
    for group in _alike(shown):
        number = 1
        for name in group[1:]:
            while (numbered := _number(shown[name], number := number + 1, width)) in taken:
                pass
            shown[name] = numbered
            taken.add(numbered)
    return shown


def _divide(name: str) -> tuple[str, str]:
    """The function's name and its template arguments, both without namespaces; ("name", "") of what is not C++."""
    text = name.strip()
    names = _separate(text)
    if len(names) > 1:
        return "".join(part if place % 2 else short_name(part) for place, part in enumerate(names)), ""
    whole = _CLONE.sub("", text)
    end = _argument_list(whole)
    if end is None and not whole.startswith("void "):
        return text, ""
    whole = _without_return_type(whole[:end])
    start = _template_list(whole)
    function, arguments = (whole, "") if start is None else (whole[:start], whole[start:])
    return _function(function), _simple(arguments)


def _separate(text: str) -> list[str]:
    """Names and what is between them, in turn: "a, b -> c" has commas and an arrow outside of brackets."""
    found, begin, depth, place = [], 0, 0, 0
    while place < len(text):
        if depth == 0 and (match := _BETWEEN.match(text, place)):
            found += [text[begin:place], match[0]]
            begin = place = match.end()
            continue
        depth += (text[place] in _OPEN) - (text[place] in _CLOSE and text[place - 1 : place + 1] != "->")
        place += 1
    return [*found, text[begin:]]


def _argument_list(text: str) -> int | None:
    """Where the argument list begins that ends the text."""
    if not text.endswith(")"):
        return None
    start = _opening(text, len(text) - 1)
    # "Memcpy HtoD (Pageable -> Device)" is a sentence, and `operator()` without its list a name.
    if start is None or start == 0 or text[start - 1] == " " or text[:start].endswith("operator"):
        return None
    return start


def _template_list(text: str) -> int | None:
    """Where the template arguments begin that end the text."""
    return _opening(text, len(text) - 1) if text.endswith(">") and not text.endswith("operator>") else None


def _opening(text: str, end: int) -> int | None:
    """The bracket that the one at `end` closes; `None` where they do not match."""
    depth = 0
    for place in range(end, -1, -1):
        if text[place] in _CLOSE and text[place - 1 : place + 1] != "->":
            depth += 1
        elif text[place] in _OPEN:
            depth -= 1
            if depth == 0:
                return place
    return None


def _without_return_type(text: str) -> str:
    """What follows the last space outside of all brackets: "void f", "std::enable_if<true>::type f"."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        if text[place] in _CLOSE:
            depth += 1
        elif text[place] in _OPEN:
            depth -= 1
        elif text[place] == " " and depth == 0:
            return text[place + 1 :]
    return text


def _function(text: str) -> str:
    """The function's name; with the innermost namespace where it is a name that many libraries give."""
    text = text.replace("(anonymous namespace)::", "")
    *outer, name = re.split(r"::(?![^<]*>)", text)
    return f"{outer[-1]}::{name}" if outer and _GENERIC.fullmatch(name) else name


def _simple(arguments: str) -> str:
    """Template arguments without namespaces, and of a lambda the function that it is in and its own arguments."""
    text = arguments.replace("(anonymous namespace)::", "").replace("::operator()() const", "")
    text = re.sub(r"(?:\{lambda\(\)#\d+\}::)+(?=\{)", "", _NAMESPACE.sub("", text))
    text = re.sub(r"\{lambda\(([^{}]*)\)#\d+\}", r"{\1}", text)
    text = re.sub(r"\{([^{}]*)\}", r"lambda(\1)", _without_lists(text))
    return re.sub(r" (?=>)", "", text)


def _without_lists(text: str) -> str:
    """Without the argument lists of functions: "f(int)::{float}" -> "f::{float}"."""
    kept, depth = [], 0
    for place, char in enumerate(text):
        called = char == "(" and place > 0 and (text[place - 1].isalnum() or text[place - 1] in "_>")
        if depth or called:
            depth += (char == "(") - (char == ")")
        else:
            kept.append(char)
    return "".join(kept)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - len(MARK)] + MARK


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    """Names that are shown as one text, in alphabetical order."""
    groups: dict[str, list[str]] = {}
    for name, text in sorted(shown.items()):
        groups.setdefault(text, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _apart(texts: Mapping[str, str], heads: Mapping[str, str], width: int) -> dict[str, str]:
    """What tells the names of a group apart: their heads, and their texts from where they first differ."""
    first = _first_difference(list(texts.values()))
    starts = {name: _token_start(text, first) for name, text in texts.items()}
    found = {name: _cut(heads[name] + MARK + text[starts[name] :], width) for name, text in texts.items()}
    for group in _alike(found):
        # These differ after the cut: what tells them from the others of the group comes before it, as far as it fits.
        room = width - len(MARK) - _LEAST_DIFFERENCE - 2
        longer = {name: _strip_end(found[name].removesuffix(MARK)[:room]) for name in group}
        known = {name: texts[name] for name in group}
        if longer[group[0]] != heads[group[0]]:
            found.update(_apart(known, longer, width))
    return found


def _strip_end(text: str) -> str:
    """Without the punctuation at the end."""
    return text.rstrip("_,. <:")


def _head(function: str, arguments: str, width: int) -> str:
    """The function's name with the bracket after it, cut so that a difference fits after it."""
    bracket = "<" if arguments else ""
    room = width - len(MARK) - 2 * _LEAST_DIFFERENCE - len(bracket)
    return function + bracket if len(function) <= room else function[: max(room - len(MARK), 1)]


def _first_difference(texts: list[str]) -> int:
    low, high = min(texts), max(texts)
    return next((place for place, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))


def _token_start(text: str, place: int) -> int:
    """Where the word or number begins that is at a place, but not far before it."""
    start = place
    while start > 0 and place - start < _LEAST_DIFFERENCE and _TOKEN.fullmatch(text[start - 1]):
        start -= 1
    return start


def _number(text: str, number: int, width: int) -> str:
    suffix = f" #{number}"
    return _cut(text, width - len(suffix)) + suffix
