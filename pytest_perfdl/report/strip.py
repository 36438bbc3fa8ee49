"""A strip plot: every repeat of a metric as a mark on a line, baseline above, this run below.

Positions are percentages of the width and sizes are pixels, so that text and marks keep their size on a phone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from markupsafe import Markup

from pytest_perfdl.units import format_quantity

_BASE_Y, _NEW_Y, _AXIS_Y, _HEIGHT = 14, 38, 56, 76
_PADDING = 0.06
"""Free space at either end, as a share of the range."""


def strip(name: str, unit: str, base: Sequence[float], new: Sequence[float]) -> Markup | None:
    """The plot as inline SVG; `None` when there is no finite value to show."""
    sides = [[value for value in side if math.isfinite(value)] for side in (base, new)]
    if not sides[0] and not sides[1]:
        return None
    low, high = min(sides[0] + sides[1]), max(sides[0] + sides[1])
    pad = (high - low) * _PADDING or abs(high) * 0.01 or 1.0
    low, high = low - pad, high + pad

    def at(value: float) -> str:
        return f"{(value - low) / (high - low) * 100:.2f}%"

    parts = [
        Markup('<line class="tick" x1="{0}" x2="{0}" y1="4" y2="{1}"/><text x="{0}" y="{2}">{3}</text>').format(
            at(tick), _AXIS_Y, _HEIGHT - 4, format_quantity(tick, unit)
        )
        for tick in ticks(low, high)
    ]
    parts.append(Markup('<line class="axis" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(_AXIS_Y))
    for side, middle, kind in zip(sides, (_BASE_Y, _NEW_Y), ("base", "new"), strict=True):
        if side:
            parts.append(
                Markup('<line class="median {3}" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                    at(statistics.median(side)), middle - 10, middle + 10, kind
                )
            )
        parts += [
            _mark(kind, at(value), middle, number, format_quantity(value, unit)) for number, value in enumerate(side, 1)
        ]
    label = f"{name} of every repeat. {_said('Baseline', sides[0], unit)} {_said('This run', sides[1], unit)}"
    return Markup('<svg class="strip" role="img" aria-label="{}" height="{}">{}</svg>').format(
        label.rstrip(), _HEIGHT, Markup("").join(parts)
    )


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round values within a range, at most `most` of them, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(40.9, 45.2)
    [42.0, 44.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _mark(kind: str, x: str, y: int, number: int, text: str) -> Markup:
    title = Markup("<title>repeat {}: {}</title>").format(number, text)
    if kind == "base":
        return Markup('<circle class="base" cx="{}" cy="{}" r="4">{}</circle>').format(x, y, title)
    return Markup('<svg class="mark" x="{}" y="{}"><path class="new" d="M0-5 5 0 0 5-5 0z">{}</path></svg>').format(
        x, y, title
    )


def _said(side: str, values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    middle, low, high = (
        format_quantity(value, unit) for value in (statistics.median(values), min(values), max(values))
    )
    return f"{side}: median {middle}, from {low} to {high}, {len(values)} in all."
