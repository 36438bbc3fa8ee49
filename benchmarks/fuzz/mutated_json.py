"""JSON that is nearly right: parts replaced, removed, repeated and exchanged, by a seeded source of chance."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (
    *(0, -1, 1, 2, 0.5, 1e308, -1e308, 1e-308, 5e-324, 1e100, 1e101, 2**31, 2**53, 2**61, 2**62, 2**63, 2**64, 10**30),
    *(10**400, -(2**63), -(2**64), float("nan"), float("inf"), -float("inf"), 1e18, 3e18, 1.5, 100_000, 10**9),
)
WORDS = (
    *("", "a", "..", ".", "/", "../x", "/etc/passwd", "traces/../../x", "traces/x.json.gz", "x\x00y", "\ud800", "\n"),
    *("::", "a::b", "::b", "a::", "tests/t.py::test[x]", "-x", "--index-output=x", "--help", "\x1b[2J\x1b]0;x\x07"),
    *("::stop-commands::x", "##[add-mask]x", "x" * 5000, "a<" * 3000, "f(" * 3000, "<script>", "\u202e", "é" * 300),
    *(
        "timed",
        "counted",
        "ns",
        "B",
        "lower",
        "higher",
        "operator",
        "kernel",
        "idle",
        "regressed",
        "missing",
        "invalid",
    ),
    *("NaN", "Infinity", "1e9999999", "0x10", "1_000", "null", "true", "a" * 40, "0" * 64, "../" * 50 + "x", "C:\\x"),
    *("gpu_kernel_impl<" * 300, "/".join("d" * 200 for _ in range(30)), "con", "step_time", "block_time", "forward"),
)


def replacement(draw: random.Random) -> Any:
    """Anything that JSON can say, most of it where it does not belong."""
    kind = draw.randrange(8)
    if kind < 3:
        return draw.choice(NUMBERS)
    if kind < 5:
        return draw.choice(WORDS)
    if kind == 5:
        return draw.choice((None, True, False, [], {}, [None], [[]], {"": None}))
    if kind == 6:
        return [draw.choice(NUMBERS) for _ in range(draw.choice((1, 2, 5, 300)))]
    value: Any = draw.choice(NUMBERS)
    for _ in range(draw.choice((2, 50, 400))):
        value = [value] if draw.random() < 0.5 else {draw.choice(WORDS): value}
    return value


def mutated(data: Any, draw: random.Random) -> Any:
    """A copy with a few places changed."""
    data = copy.deepcopy(data)
    if draw.random() < 0.5:
        return _bent(data, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = _changed(data, draw)
    return data


def text_of(data: Any) -> bytes:
    """JSON as a hostile writer may write it: with NaN, and surrogates as escapes."""
    return json.dumps(data).encode()


def _changed(data: Any, draw: random.Random) -> Any:
    places = list(_places(data))
    if not places:
        return replacement(draw)
    holder, key = draw.choice(places)
    kind = draw.randrange(10)
    if kind < 5:
        holder[key] = replacement(draw)
    elif kind == 5:
        del holder[key]
    elif kind == 6 and isinstance(holder, list):
        holder.extend([holder[key]] * draw.choice((1, 2, 50)))
    elif kind == 6:
        holder[draw.choice(WORDS)] = holder[key]
    elif kind == 7:
        other, name = draw.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif kind == 8 and isinstance(holder[key], str):
        place = draw.randrange(len(holder[key]) + 1)
        holder[key] = holder[key][:place] + draw.choice(WORDS) + holder[key][place:]
    elif isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = draw.choice((-holder[key], holder[key] * 1000, holder[key] // 3, str(holder[key])[:50]))
    else:
        holder[key] = draw.choice(WORDS)
    return data


BENT = (0, 1, 2, 3, 1000, -1, 0.5, 1e-100, 1e100, -1e100, 2**61, -(2**61), 2**31, 1e18, 1e9, 1e-9, 100_000)
"""Numbers that a reader may let through."""


def _bent(data: Any, draw: random.Random) -> Any:
    """Numbers for numbers and words for words: what gets past types."""
    places = [(holder, key) for holder, key in _places(data) if isinstance(holder[key], (int, float, str))]
    for holder, key in draw.sample(places, min(len(places), draw.choice((1, 2, 5, 20)))):
        if isinstance(holder[key], str):
            holder[key] = draw.choice(WORDS) if draw.random() < 0.3 else holder[key] + draw.choice(("", "x", "\u202e"))
        elif not isinstance(holder[key], bool):
            holder[key] = draw.choice(BENT)
    return data


def _places(data: Any) -> Any:
    """Every (mapping or list, key or index), outer ones as likely as inner ones by their number."""
    stack = [data]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                stack.append(holder[key])
