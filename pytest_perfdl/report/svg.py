"""Pictures of values as inline SVG: axes, and what is drawn at their places. Every text in them is escaped.

The class of what is drawn is what `templates/style.css` gives a color to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from pytest_perfdl.model.visible import visible

Places = Iterable[tuple[float, float]]
"""Places in a picture: right from its left edge, and down from its top."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Places of values between two ends, which lie at two pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; on a logarithmic axis, that of its lower end for all below."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int = 4) -> list[float]:
        """Round values within the axis."""
        if self.high == self.low:
            return [self.low]
        return _by_powers(self.low, self.high, most) if self.logarithmic else ticks(self.low, self.high, most)


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


def _by_powers(low: float, high: float, most: int) -> list[float]:
    """Values of 1, 2 or 5 times a power of ten within a range, or fewer; within a narrow one, even steps.

    >>> _by_powers(1.8, 64, 6), _by_powers(3, 20000, 4), _by_powers(12, 19, 4)
    ([2.0, 5.0, 10.0, 20.0, 50.0], [10.0, 100.0, 1000.0, 10000.0], [12.0, 14.0, 16.0, 18.0])
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine = [factor * power for power in powers for factor in (1, 2, 5) if low <= factor * power <= high]
    found = fine if len(fine) <= most else [power for power in powers if low <= power <= high]
    return found[:: -(-len(found) // most)] if len(found) > 1 else ticks(low, high, most)


def picture(kind: str, label: str, width: float, height: float, parts: Iterable[str], *, sized: bool = False) -> Markup:
    """A picture, as wide as its place in a page, or `sized` in pixels, also as a file.

    `label` is what a screen reader says, which passes over a picture without a label.
    """
    said = {"role": "img", "aria-label": visible(label)} if label else {"aria-hidden": "true"}
    values: dict[str, str | float] = {"class": kind, **said}
    if sized:
        values |= {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
    values["viewBox"] = f"0 0 {_number(width)} {_number(height)}"
    return Markup("<svg{}>{}</svg>").format(_attributes(values), Markup("".join(parts)))


def text(words: str, x: float, y: float, kind: str = "", *, anchor: str = "middle") -> Markup:
    """A text whose `anchor` is at x, and whose line is at y; without an anchor, where its style says."""
    return _element("text", visible(words), {"class": kind, "x": x, "y": y, "text-anchor": anchor})


def dot(kind: str, x: float, y: float, size: float, title: str) -> Markup:
    """A point with what a pointer reads of it, one or more lines."""
    return _element("circle", _title(title), {"class": kind, "cx": x, "cy": y, "r": size})


def line(kind: str, places: Places) -> Markup:
    """A line from place to place."""
    return _element("polyline", "", {"class": kind, "points": _places(places)})


def band(kind: str, upper: Places, lower: Places) -> Markup:
    """What lies between two lines, each in the order of x."""
    return _element("polygon", "", {"class": kind, "points": _places([*upper, *reversed([*lower])])})


def box(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    """A rectangle from its upper left corner on."""
    return _element("rect", "", {"class": kind, "x": x, "y": y, "width": width, "height": height})


def path(kind: str, drawn: str) -> Markup:
    """Any lines and areas, in the commands of SVG."""
    return _element("path", "", {"class": kind, "d": drawn})


def rule(kind: str, x: float, top: float, bottom: float) -> Markup:
    """A vertical line."""
    return path(kind, f"M{x:.1f},{_number(top)}V{_number(bottom)}")


def target(kind: str, x: float, top: float, bottom: float, title: str) -> Markup:
    """A vertical line with what a pointer reads of it, and a wider one that is not seen, for a pointer to find."""
    rules = rule("target", x, top, bottom) + rule("", x, top, bottom)
    return _element("g", _title(title) + rules, {"class": kind})


def frame(axis: Axis, marks: Iterable[tuple[float, str]], left: float, right: float) -> Iterator[Markup]:
    """A horizontal line at each marked value of an upright axis, its text on the left."""
    for value, words in marks:
        y = axis.at(value)
        yield path("frame", f"M{_number(left)},{y:.1f}H{_number(right)}")
        yield text(words, left - 8, y + 4, anchor="end")


def _title(lines: str) -> Markup:
    return _element("title", "\n".join(map(visible, lines.split("\n"))), {})


def _element(name: str, inside: str, attributes: Mapping[str, str | float]) -> Markup:
    if not inside:
        return Markup(f"<{name}{_attributes(attributes)}/>")
    return Markup("<{0}{1}>{2}</{0}>").format(name, _attributes(attributes), inside)


def _attributes(values: Mapping[str, str | float]) -> Markup:
    told = {name: value if isinstance(value, str) else _number(value) for name, value in values.items()}
    return Markup("".join(f' {name}="{escape(value)}"' for name, value in told.items() if value))


def _number(value: float) -> str:
    """A place or length in pixels, to a tenth.

    >>> _number(12.34), _number(12.0)
    ('12.3', '12')
    """
    return f"{value:.1f}".removesuffix(".0")


def _places(places: Places) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
