"""Quantities as text: parsed on input, formatted on output."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
"""Units of time, in nanoseconds."""
SIZES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TB": 10**12,
    "TiB": 2**40,
}
"""Units of size, in bytes."""
_COUNT = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_FLOP = {"flop": 1, "kflop": 10**3, "Mflop": 10**6, "Gflop": 10**9, "Tflop": 10**12}
_FLOP_RATE = {f"{name}/s": scale for name, scale in _FLOP.items()}
_SCALES = {"ns": TIMES, "B": SIZES, "1": _COUNT, "flop": {**_COUNT, **_FLOP}, "flop/s": _FLOP_RATE}
_STEPS: dict[str, tuple[tuple[int, str], ...]] = {
    "ns": ((10**9, "s"), (10**6, "ms"), (10**3, "µs")),
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
    "B/s": ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s")),
    "flop": ((10**12, "Tflop"), (10**9, "Gflop"), (10**6, "Mflop"), (10**3, "kflop")),
    "flop/s": ((10**12, "Tflop/s"), (10**9, "Gflop/s"), (10**6, "Mflop/s"), (10**3, "kflop/s")),
}
"""Units that values are shown in, largest first; below the last, the base unit."""
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ%/]*)\s*")


def parse_quantity(text: str, unit: str) -> float:
    """Read "45ms", "2GiB" or "12" in the base unit `unit` ("ns", "B", "1", "flop" or a metric's own).

    Raises
    ------
    ValueError
        One line that says what was expected.
    """
    match = _QUANTITY.fullmatch(text)
    scales = _SCALES.get(unit, {"": 1, unit: 1})
    if match is None or match[2] not in scales:
        known = ", ".join(name for name in scales if name)
        raise ValueError(f"{text.strip()!r} is not a quantity" + (f" in {known}" if known else ""))
    value = float(match[1]) * scales[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"{text.strip()!r} is not a finite quantity")
    return value


def format_quantity(value: float, unit: str, *, signed: bool = False) -> str:
    """Show a value of base unit `unit` with an adaptive unit and four significant digits.

    >>> format_quantity(41200000, "ns"), format_quantity(1536, "B"), format_quantity(1699, "1")
    ('41.20 ms', '1.500 KiB', '1699')
    """
    sign = "+" if signed and value > 0 else "-" if value < 0 else ""
    size = abs(value)
    for scale, name in _STEPS.get(unit, ()):
        if _rounded(size / scale) >= 1:
            return f"{sign}{_digits(size / scale)} {name}"
    if unit in _STEPS:
        return f"{sign}{size:.0f} {unit}"
    number = f"{size:.0f}" if float(size).is_integer() and size < 10**9 else _digits(size)
    return f"{sign}{number}" if unit in ("1", "") else f"{sign}{number} {unit}"


def format_percent(ratio: float, *, signed: bool = True) -> str:
    """Show a ratio as a percentage: one decimal below 100 %, none above.

    >>> format_percent(0.094), format_percent(1.5)
    ('+9.4%', '+150%')
    """
    percent = ratio * 100
    sign = "+" if signed else ""
    return f"{percent:{sign}.0f}%" if abs(percent) >= 99.95 else f"{percent:{sign}.1f}%"


def _digits(value: float) -> str:
    """Four significant digits without an exponent."""
    rounded = _rounded(value)
    if rounded == 0 or rounded >= 1000:
        return f"{value:.0f}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(rounded)))}f}"


def _rounded(value: float) -> float:
    return float(f"{value:.3e}")


def duration(seconds: float) -> str:
    """Minutes and seconds in words.

    >>> duration(80.4), duration(7.6), duration(3700)
    ('1 min 20 s', '8 s', '1 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Count with its noun.

    >>> plural(1, "test"), plural(2, "test"), plural(1200, "copy", "copies")
    ('1 test', '2 tests', '1,200 copies')
    """
    return f"{number} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


_NAMED = 3
"""How many of several names a message has."""


def some(names: Sequence[str]) -> str:
    """The first of several names, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
