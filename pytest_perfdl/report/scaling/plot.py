"""A curve of times over sizes as SVG: points, the model's line with its 95 % band, and another curve beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pytest_perfdl.report.strip import ticks
from pytest_perfdl.units import format_quantity

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 30, 46
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:currentColor}.frame{stroke:currentColor;stroke-opacity:.25;fill:none}"
    ".band{fill:#3a78c2;fill-opacity:.18}.line{stroke:#3a78c2;stroke-width:2;fill:none}"
    ".base{stroke:#8a8a8a;stroke-width:2;stroke-dasharray:6 4;fill:none}.point{fill:#3a78c2}"
    ".point.of-base{fill:none;stroke:#8a8a8a;stroke-width:1.5}svg{color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#181818}}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """Times in nanoseconds over sizes, with the ends of their interval where there is one."""

    sizes: Sequence[float]
    ns: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def plot(
    axis: str,
    line: Line,
    points: Sequence[tuple[float, float]],
    *,
    base: Line | None = None,
    base_points: Sequence[tuple[float, float]] = (),
) -> str:
    """Draw a curve.

    Parameters
    ----------
    axis
        What the sizes are.
    line
        The model, at two sizes or more, in their order.
    points
        What was measured: sizes and nanoseconds.
    base, base_points
        The same of the curve that it is held against, drawn dashed and hollow.
    """
    others = [base] if base is not None else []
    sizes = [size for each in (line, *others) for size in each.sizes] + [size for size, _ in (*points, *base_points)]
    times = [ns for each in (line, *others) for ns in (*each.ns, *each.high)] + [
        ns for _, ns in (*points, *base_points)
    ]
    first, last, most = min(sizes), max(sizes), max(times) * 1.05
    span = (last - first) or 1.0

    def at(size: float, ns: float) -> str:
        x = _LEFT + (size - first) / span * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - ns / most * (HEIGHT - _TOP - _BOTTOM)
        return f"{x:.1f},{y:.1f}"

    def dot(size: float, ns: float, kind: str) -> str:
        x, y = at(size, ns).split(",")
        title = f"{axis} {size:g}: {format_quantity(ns, 'ns')}"
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="3.5"><title>{escape(title)}</title></circle>'

    parts = []
    for tick in ticks(0.0, most):
        x, y = at(first, tick).split(",")
        parts.append(f'<path class="frame" d="M{x},{y}H{WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{format_quantity(tick, "ns")}</text>'
        )
    for tick in ticks(first, last, 6) if last > first else [first]:
        x, y = at(tick, 0.0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    if line.low:
        edge = [at(size, ns) for size, ns in zip(line.sizes, line.high, strict=True)]
        edge += [at(size, ns) for size, ns in reversed(list(zip(line.sizes, line.low, strict=True)))]
        parts.append(f'<polygon class="band" points="{" ".join(edge)}"/>')
    for each, kind in (*((other, "base") for other in others), (line, "line")):
        parts.append(f'<polyline class="{kind}" points="{" ".join(map(at, each.sizes, each.ns))}"/>')
    parts += [dot(*point, "point of-base") for point in base_points] + [dot(*point, "point") for point in points]
    said = "points: measured; line: model" + ("; band: 95% interval" if line.low else "")
    said += "; dashed and hollow: baseline" if base is not None else ""
    parts.append(f'<text x="{_LEFT}" y="18">time of a step, {escape(said)}</text>')
    parts.append(f'<text x="{(WIDTH + _LEFT) // 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>')
    label = escape(f"time of a step over {axis}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}"><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )
