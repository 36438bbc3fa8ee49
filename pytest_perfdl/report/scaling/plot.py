"""A curve of times over sizes as SVG: points, the model's line with its 95 % band, and another curve beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report import svg
from pytest_perfdl.report.svg import Axis

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
    side = PlottedSide(PlottedLine([size for size, _ in points], [ns for _, ns in points]), line)
    said = "points: measured; line: model" + ("; band: 95% interval" if line.low else "")
    parts = (
        Markup("<style>{}</style>").format(Markup(_STYLE)),
        *_drawn(axis, side, None, False),
        svg.text(f"step time, {said}", _LEFT, 18, anchor=""),
    )
    return svg.picture("", f"step time over {axis}", WIDTH, HEIGHT, parts, sized=True) + "\n"


def inline(axis: str, new: PlottedSide, base: PlottedSide | None, *, logarithmic: bool, label: str) -> Markup:
    """A curve and the one that it is held against, which is dashed and hollow, to stand in a page that has the style.

    Parameters
    ----------
    logarithmic
        Whether both axes are.
    label
        What a screen reader says.
    """
    return svg.picture("plot", label, WIDTH, HEIGHT, _drawn(axis, new, base, logarithmic))


def _drawn(axis: str, new: PlottedSide, base: PlottedSide | None, logarithmic: bool) -> Iterator[Markup]:
    """Everything inside the picture, in the order of painting."""
    sides = [(base, " of-base", "baseline, ", -_APART)] if base is not None else []
    sides.append((new, "", "", _APART if base is not None else 0))
    lines = [line for side, *_ in sides for line in (side.points, side.line)]
    sizes = [size for line in lines for size in line.sizes]
    most = max(ns for line in lines for ns in (*line.ns, *line.high)) * 1.05
    # A band may reach down to zero, which a logarithmic axis has no place for.
    tellable = [ns for line in lines for ns in line.ns] + [ns for side, *_ in sides for ns in side.points.low]
    least = min((ns for ns in tellable if ns > 0), default=most) * 0.95 if logarithmic else 0.0
    across = Axis(min(sizes), max(sizes), _LEFT, WIDTH - _RIGHT, logarithmic)
    up = Axis(least, most, HEIGHT - _BOTTOM, _TOP, logarithmic)

    def places(sizes: Sequence[float], times: Sequence[float]) -> list[tuple[float, float]]:
        return [(across.at(size), up.at(ns)) for size, ns in zip(sizes, times, strict=True)]

    yield from svg.frame(up, [(tick, format_quantity(tick, "ns")) for tick in up.ticks(5)], _LEFT, WIDTH - _RIGHT)
    for tick in across.ticks(6):
        yield svg.text(f"{tick:g}", across.at(tick), HEIGHT - _BOTTOM + 18)
    for side, of, *_ in sides:
        line = side.line
        if line.low:
            yield svg.band(f"band{of}", places(line.sizes, line.high), places(line.sizes, line.low))
    for side, of, *_ in sides:
        if side.line.sizes:
            yield svg.line(f"line{of}", places(side.line.sizes, side.line.ns))
    for side, of, whose, aside in sides:
        points = side.points
        for number, (size, ns) in enumerate(zip(points.sizes, points.ns, strict=True)):
            x, said = across.at(size) + aside, f"{whose}{axis} {size:g}: {format_quantity(ns, 'ns')}"
            if points.low:
                low, high = points.low[number], points.high[number]
                said += f" [{format_quantity(low, 'ns')}, {format_quantity(high, 'ns')}]"
                yield svg.rule(f"whisker{of}", x, up.at(low), up.at(high))
            yield svg.dot(f"point{of}", x, up.at(ns), 3.5, said)
    yield svg.text(axis, (WIDTH + _LEFT) / 2, HEIGHT - 8)
