"""A curve of times over sizes as SVG: points, the model's line with its 95 % band, and another curve beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report.ticks import ticks

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 30, 46
_APART = 3
"""Half the distance of the points of two sides at one size: their intervals must not hide each other."""
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:currentColor}.frame{stroke:currentColor;stroke-opacity:.25;fill:none}"
    ".band{fill:#3a78c2;fill-opacity:.18}.line{stroke:#3a78c2;stroke-width:2;fill:none}.point{fill:#3a78c2}"
    "svg{color:#222;background:#fff}@media(prefers-color-scheme:dark){svg{color:#ddd;background:#181818}}"
)


@dataclass(frozen=True, slots=True)
class PlottedLine:
    """Times in nanoseconds over sizes, with the ends of their interval where there is one."""

    sizes: Sequence[float]
    ns: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class PlottedSide:
    """What is drawn of one curve: what was measured, and the model in the order of its sizes."""

    points: PlottedLine
    line: PlottedLine


def plot(axis: str, line: PlottedLine, points: Sequence[tuple[float, float]]) -> str:
    """A model's curve, as a file of its own.

    Parameters
    ----------
    axis
        What the sizes are.
    line
        The model, in the order of sizes.
    points
        What was measured: sizes and nanoseconds.
    """
    drawn = "".join(
        _drawn(
            axis, PlottedSide(PlottedLine([size for size, _ in points], [ns for _, ns in points]), line), None, False
        )
    )
    said = "points: measured; line: model" + ("; band: 95% interval" if line.low else "")
    label = escape(f"step time over {visible(axis)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}"><style>{_STYLE}</style>{drawn}'
        f'<text x="{_LEFT}" y="18">step time, {said}</text></svg>\n'
    )


def inline(axis: str, new: PlottedSide, base: PlottedSide | None, *, logarithmic: bool, label: str) -> Markup:
    """A curve and the one that it is held against, which is dashed and hollow, to stand in a page that has the style.

    Parameters
    ----------
    logarithmic
        Whether both axes are.
    label
        What a screen reader says.
    """
    drawn = Markup("".join(_drawn(axis, new, base, logarithmic)))
    return Markup('<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        visible(label), WIDTH, HEIGHT, drawn
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Places of values between two ends, which lie at two pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        low, high, value = self.low, self.high, max(value, self.low)
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        if self.high == self.low:
            return [self.low]
        return _by_powers(self.low, self.high, most) if self.logarithmic else ticks(self.low, self.high, most)


def _drawn(axis: str, new: PlottedSide, base: PlottedSide | None, logarithmic: bool) -> Iterator[str]:
    """Everything inside the picture, in the order of painting."""
    sides = [(base, " of-base", "baseline, ", -_APART)] if base is not None else []
    sides.append((new, "", "", _APART if base is not None else 0))
    lines = [line for side, *_ in sides for line in (side.points, side.line)]
    sizes = [size for line in lines for size in line.sizes]
    most = max(ns for line in lines for ns in (*line.ns, *line.high)) * 1.05
    # A band may reach down to zero, which a logarithmic axis has no place for.
    tellable = [ns for line in lines for ns in line.ns] + [ns for side, *_ in sides for ns in side.points.low]
    least = min((ns for ns in tellable if ns > 0), default=most) * 0.95 if logarithmic else 0.0
    across = _Scale(min(sizes), max(sizes), _LEFT, WIDTH - _RIGHT, logarithmic)
    up = _Scale(least, most, HEIGHT - _BOTTOM, _TOP, logarithmic)

    def places(sizes: Sequence[float], times: Sequence[float]) -> str:
        return " ".join(f"{across.at(size):.1f},{up.at(ns):.1f}" for size, ns in zip(sizes, times, strict=True))

    for tick in up.ticks(5):
        y = up.at(tick)
        yield f'<path class="frame" d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_quantity(tick, "ns")}</text>'
    for tick in across.ticks(6):
        yield f'<text x="{across.at(tick):.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
    for side, of, *_ in sides:
        line = side.line
        if line.low:
            edge = f"{places(line.sizes, line.high)} {places(line.sizes[::-1], line.low[::-1])}"
            yield f'<polygon class="band{of}" points="{edge}"/>'
    for side, of, *_ in sides:
        if side.line.sizes:
            yield f'<polyline class="line{of}" points="{places(side.line.sizes, side.line.ns)}"/>'
    for side, of, whose, aside in sides:
        points = side.points
        for number, (size, ns) in enumerate(zip(points.sizes, points.ns, strict=True)):
            x, said = across.at(size) + aside, f"{whose}{axis} {size:g}: {format_quantity(ns, 'ns')}"
            if points.low:
                low, high = points.low[number], points.high[number]
                said += f" [{format_quantity(low, 'ns')}, {format_quantity(high, 'ns')}]"
                yield f'<path class="whisker{of}" d="M{x:.1f},{up.at(low):.1f}V{up.at(high):.1f}"/>'
            yield (
                f'<circle class="point{of}" cx="{x:.1f}" cy="{up.at(ns):.1f}" r="3.5">'
                f"<title>{escape(visible(said))}</title></circle>"
            )
    middle = (WIDTH + _LEFT) // 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(visible(axis))}</text>'


def _by_powers(low: float, high: float, most: int) -> list[float]:
    """Values of 1, 2 or 5 times a power of ten within a range, or fewer; within a narrow one, even steps.

    >>> _by_powers(1.8, 64, 6), _by_powers(3, 20000, 4), _by_powers(12, 19, 4)
    ([2.0, 5.0, 10.0, 20.0, 50.0], [10.0, 100.0, 1000.0, 10000.0], [12.0, 14.0, 16.0, 18.0])
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine = [factor * power for power in powers for factor in (1, 2, 5) if low <= factor * power <= high]
    found = fine if len(fine) <= most else [power for power in powers if low <= power <= high]
    return found[:: -(-len(found) // most)] if len(found) > 1 else ticks(low, high, most)
