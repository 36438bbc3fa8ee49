"""Times over sizes, as `perfdl scaling` says them and as the page of a run shows them.

- `fitted` and `predicted`: models and predictions on the terminal; `fitted_json`, `predicted_json`: as plain data.
- `picture` and `rows`: what the page of a run shows of a test's curve.
- `plot` draws curves, `figure` and `estimate` format their numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pytest_perfdl.model.json import plain
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout, svg
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.svg import Axis
from pytest_perfdl.scaling.choose import doublings
from pytest_perfdl.scaling.laws import CONSTANT
from pytest_perfdl.scaling.saved import to_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.results.curve import CurveTime, Figure, Fitted, JudgedCurve, Size
    from pytest_perfdl.scaling.choose import Choice, Coefficient, Fit, TimePrediction
    from pytest_perfdl.scaling.growth import IntervalEstimate
    from pytest_perfdl.scaling.planning import EpochCost, Next, SpeedUp
    from pytest_perfdl.scaling.saved import Parts


# A curve of times over sizes as SVG: points, the model's line with its 95 % band, and another curve beside it.


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
        *_draw(axis, side, None, False),
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
    return svg.picture("plot", label, WIDTH, HEIGHT, _draw(axis, new, base, logarithmic))


def _draw(axis: str, new: PlottedSide, base: PlottedSide | None, logarithmic: bool) -> Iterator[Markup]:
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


# The curve of a test's sizes on the page: its picture, the same in words, and the rows below.


WIDE = 8
"""Sizes that differ by more than this factor are drawn on logarithmic axes."""


def picture(curve: JudgedCurve) -> Markup:
    """Points of both sides with their intervals, and the curves fitted to them with their bands."""
    new = PlottedSide(
        _line([(each.size, each.new) for each in curve.sizes]), _line([(e.size, e.new) for e in curve.fitted])
    )
    base = PlottedSide(_line(_bases(curve.sizes)), _line(_bases(curve.fitted))) if has_base(curve) else None
    return inline(curve.axis, new, base, logarithmic=logarithmic(curve), label=_label(curve))


def rows(curve: JudgedCurve) -> list[tuple[Size, Fitted | None]]:
    """The picture as a table: every size with what the fitted curves are there."""
    fitted = {each.size: each for each in curve.fitted}
    return [(each, fitted.get(each.size)) for each in curve.sizes]


def logarithmic(curve: JudgedCurve) -> bool:
    """Whether the axes of its picture are."""
    sizes = [each.size for each in curve.sizes]
    return max(sizes) > WIDE * min(sizes)


def has_base(curve: JudgedCurve) -> bool:
    """Whether any size has a baseline."""
    return any(each.base is not None for each in curve.sizes)


def figure_words(curve: JudgedCurve, figure: Figure) -> tuple[str, str]:
    """The name of a number by its kind of growth, and what it is."""
    return {
        "overhead": ("Overhead", f"fixed time: value of the fitted line at {curve.axis} 0"),
        "per unit": (f"Per {curve.unit}", f"time per additional {curve.unit}: slope of the fitted line"),
        "complexity": ("Complexity", f"exponent: at larger sizes, the time grows with this power of {curve.axis}"),
    }[figure.kind]


def _label(curve: JudgedCurve) -> str:
    told = [f"{curve.name}."]
    for side, times in (
        ("Current", [(each.size, each.new) for each in curve.sizes]),
        ("Baseline", _bases(curve.sizes)),
    ):
        listed = [f"{format_quantity(time.value, 'ns')} at {curve.axis} {size:g}" for size, time in times]
        told += [f"{side}: {', '.join(listed)}."] if listed else []
    return " ".join([*told, "The tables below have all numbers with their intervals."])


def _bases(part: Sequence[Size] | Sequence[Fitted]) -> list[tuple[float, CurveTime]]:
    return [(each.size, each.base) for each in part if each.base is not None]


def _line(times: Sequence[tuple[float, CurveTime]]) -> PlottedLine:
    return PlottedLine(
        [size for size, _ in times],
        [time.value for _, time in times],
        [time.low for _, time in times],
        [time.high for _, time in times],
    )


# Scaling models and predictions as plain data: times in seconds, errors as ratios, null for what cannot be stated.


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""
_SECONDS = {"ns": (1e-9, "s"), "1": (1.0, "1")}


def fitted_json(choice: Choice, parts: Parts | None = None) -> dict[str, Any]:
    """Every model, least error first; `saved` is what `perfdl scaling predict` reads.

    `parts` is there where they were asked for.
    """
    data = {
        "schema": SCHEMA,
        "models": [_model(fit) for fit in choice.fits],
        "chosen": choice.chosen.name,
        "explanation": choice.explanation,
        "warnings": choice.warnings,
        "points": len(choice.points),
        "configurations": len(choice.points.configurations()),
        "replicate_spread": choice.points.replicate_spread(),
        **({} if parts is None else {"parts": _parts(parts)}),
    }
    return {**plain(data), "saved": to_data(choice)}


def predicted_json(
    fit: Fit,
    at: dict[str, float],
    found: TimePrediction,
    curves: list[SpeedUp],
    following: Next,
    cost: EpochCost | None,
) -> dict[str, Any]:
    """A prediction with the plans made of it."""
    data = {
        "schema": SCHEMA,
        "model": fit.name,
        "loo_mape": fit.loo_mape,
        "at": at,
        "time_s": found.ns / 1e9,
        "ci95_s": [found.low / 1e9, found.high / 1e9],
        "stretch": found.stretch,
        "warnings": found.warnings,
        "curves": [
            {
                "axis": curve.axis,
                "kind": curve.kind,
                "sizes": curve.sizes,
                "time_s": curve.ns / 1e9,
                "speedup": curve.speedup,
                "efficiency": curve.efficiency,
                "knee": curve.knee,
            }
            for curve in curves
        ],
        "next": {
            "at": following.at,
            "measured": following.measured,
            "standard_error_s": following.before_ns / 1e9,
            "expected_standard_error_s": following.after_ns / 1e9,
        },
        "epoch": None if cost is None else _epoch(cost),
    }
    return dict(plain(data))


def _epoch(cost: EpochCost) -> dict[str, Any]:
    (hours, *hours_ci95), (price, *price_ci95) = cost.hours, cost.price or (None,)
    ends = price_ci95 or None
    return {"steps": cost.steps, "hours": hours, "hours_ci95": hours_ci95, "price": price, "price_ci95": ends}


def dump(data: dict[str, Any]) -> str:
    """As text that ends with a newline; `saved`, which is for programs only, on one line."""
    shown = {name: value for name, value in data.items() if name != "saved"}
    text = json.dumps(shown, indent=1, allow_nan=False)
    if "saved" in data:
        saved = json.dumps(data["saved"], allow_nan=False, separators=(",", ":"))
        text = f'{text[:-2]},\n "saved": {saved}\n}}'
    return text + "\n"


def _parts(found: Parts) -> dict[str, Any]:
    return {
        "at": found.at,
        "profiled_step_s": found.ns / 1e9,
        "elsewhere": found.elsewhere,
        "parts": [
            {
                "kind": part.kind,
                "name": part.name,
                "time_s": part.ns / 1e9,
                "share": part.share,
                "doubling": doublings(part.fit, part.points),
                "model": _model(part.fit),
            }
            for part in found.parts
        ],
    }


def _model(fit: Fit) -> dict[str, Any]:
    return {
        "name": fit.name,
        "loo_mape": fit.loo_mape,
        "fit_seconds": fit.fit_seconds,
        "coefficients": {each.name: _coefficient(each) for each in fit.coefficients},
    }


def _coefficient(each: Coefficient) -> dict[str, Any]:
    scale, unit = _SECONDS[each.unit]
    ends = [each.low * scale, each.high * scale]
    return {"value": each.value * scale, "ci95": ends if all(map(math.isfinite, ends)) else None, "unit": unit}


# Figures of curves as text.


def figure(value: float, unit: str, *, signed: bool = False) -> str:
    """A time, or a bare number ("1") with two decimals.

    A time per unit of size is often less than a nanosecond, which times of steps never are.

    >>> figure(0.0421, "ns"), figure(7145.2, "ns"), figure(1.9, "1", signed=True)
    ('0.0421 ns', '7.145 µs', '+1.90')
    """
    sign = "+" if signed else ""
    if unit == "1":
        return f"{value:{sign}.2f}"
    return f"{value:{sign}.3g} ns" if abs(value) < 10 else format_quantity(value, unit, signed=signed)


def estimate(found: IntervalEstimate, unit: str) -> str:
    """A figure with its interval, "7.145 µs [4.179 µs, 10.11 µs]"."""
    return f"{figure(found.value, unit)} [{figure(found.low, unit)}, {figure(found.high, unit)}]"


# Scaling models and predictions on the terminal.


_ROWS = 12
"""A curve of more sizes is shown at those that were measured."""


def fitted(choice: Choice, width: int) -> str:
    """The chosen model and why, every model's error, the chosen one's coefficients. Example.

    48 points of 16 configurations: layers, batch
    generic product: leave-one-out error 1.2% (physical 1.9%)
    doubling batch: 1.93x the time
    12.00 ms do not depend on size
    repeated measurements differ by 1.1%

    Models               leave-one-out error  fitted in
      generic product *                 1.2%    0.412 s
      physical                          1.9%   0.310 ms

    Coefficients of generic product, 95% intervals (jackknife)
      exponent of batch             0.948  [0.921, 0.975]
      constant                   12.00 ms  [11.40 ms, 12.60 ms]
    """
    points = choice.points
    count = plural(len(points.configurations()), "configuration")
    lines = layout.paragraph(f"{plural(len(points), 'point')} of {count}: {_list(points.factors)}", 0, width)
    for sentence in choice.explanation:
        lines += layout.paragraph(visible(sentence), 0, width)
    lines += ["", *_models(choice, width), "", *_coefficients(choice.chosen, width)]
    for warning in choice.warnings:
        lines += layout.paragraph(f"warning: {visible(warning)}", 0, width)
    return "\n".join(lines)


def parts(found: Parts, width: int) -> str:
    """How each part of the step grows. Example.

    Parts of the profiled step at batch 32 (1.204 ms), and how each grows (physical models)
                               time  share  doubling batch     fixed  error
      aten::mm             812.0 µs  67.4%           1.82x  20.10 µs   3.1%
      Python and host      301.0 µs  25.0%           1.01x  280.0 µs   2.0%
    """
    axes = found.parts[0].points.varying if found.parts else ()
    step = format_quantity(found.ns, "ns")
    lines = layout.paragraph(
        f"Parts of the profiled step at {_at(found.at)} ({step}), and how each grows (physical models)", 0, width
    )
    rows = [(part, doublings(part.fit, part.points)) for part in found.parts]
    columns = [
        Column("Part", lambda row: row[0].name + (", idle" if row[0].kind == "idle" else ""), "name"),
        Column("Time", lambda row: row[0].ns, "ns"),
        Column("Share", lambda row: row[0].share, "share"),
        *map(_doubling, axes),
        Column("Fixed", lambda row: _fixed(row[0].fit), "ns", "time that does not depend on size"),
        Column("Error", lambda row: _error(row[0].fit), "figure", "leave-one-out error"),
    ]
    table = Table("Parts", columns, rows)
    lines += layout.table(table, width)
    legend = table.short_legend
    if found.elsewhere > 0:
        rest = format_percent(found.elsewhere, signed=False)
        legend += f"; {rest} of the step is in parts that are small or not present at every size"
    return "\n".join([*lines, *layout.paragraph(legend, 2, width)])


def predicted(
    fit: Fit,
    at: Mapping[str, float],
    found: TimePrediction,
    curves: Sequence[SpeedUp],
    following: Next,
    cost: EpochCost | None,
    width: int,
) -> str:
    """A prediction with its interval, the cost, curves, and the next measurement."""
    ends = f"[{format_quantity(found.low, 'ns')}, {format_quantity(found.high, 'ns')}]"
    lines = layout.paragraph(
        f"{_at(at)}: {format_quantity(found.ns, 'ns')}  {ends} (95% interval, {fit.name})", 0, width
    )
    for warning in found.warnings:
        lines += layout.paragraph(
            f"warning: {visible(warning)}; the interval is widened by a factor of {found.stretch:.3g}",
            0,
            width,
        )
    if cost is not None:
        lines += layout.paragraph(_cost(cost), 0, width)
    for curve in curves:
        lines += ["", *_curve(curve, width)]
    return "\n".join([*lines, "", *_next(following, width)])


def _doubling(axis: str) -> Column:
    return Column(f"Doubling {visible(axis)}", lambda row: f"{row[1][axis]:.2f}x", "figure")


def _fixed(fit: Fit) -> float:
    return next((each.value for each in fit.coefficients if each.name == CONSTANT), 0.0)


def _error(fit: Fit) -> str:
    return format_percent(fit.loo_mape, signed=False)


def _models(choice: Choice, width: int) -> list[str]:
    columns = (
        Column("Model", lambda fit: f"  {fit.name}{' *' if fit is choice.chosen else ''}", short="Models"),
        Column("Leave-one-out error", _error, "figure", "mean error on configurations that were left out of the fit"),
        Column("Fitted in", lambda fit: fit.fit_seconds * 1e9, "ns"),
    )
    table = Table("Models", columns, choice.fits)
    legend = f"*: chosen model; {table.short_legend}"
    return [*layout.table(table, width, indent=0), *layout.paragraph(legend, 2, width)]


def _coefficients(fit: Fit, width: int) -> Iterator[str]:
    yield f"Coefficients of {fit.name}, 95% intervals (jackknife)"
    rows = [(visible(each.name), _value(each, each.value), _interval(each)) for each in fit.coefficients]
    yield from layout.rows(rows, "lrl", 2, width) if rows else ["  all are zero"]


def _interval(each: Coefficient) -> str:
    return f"[{_value(each, each.low)}, {_value(each, each.high)}]"


def _value(each: Coefficient, value: float) -> str:
    if each.unit == "1":
        return f"{value:.3f}"
    return figure(value, each.unit)


def _curve(curve: SpeedUp, width: int) -> Iterator[str]:
    processors = curve.kind == "processors"
    axis = visible(curve.axis)
    yield f"Speed-up along {axis}" if processors else f"Throughput along {axis}"
    every = range(len(curve.sizes))
    shown = every if len(every) <= _ROWS else [row for row in every if curve.measured[row]]
    columns = (
        Column("Size", lambda row: f"{curve.sizes[row]:g}", "figure", short=axis),
        Column("Step", lambda row: float(curve.ns[row]), "ns"),
        Column("Speed-up" if processors else "Work per second", lambda row: f"{curve.speedup[row]:.2f}x", "figure"),
        Column("Efficiency", lambda row: float(curve.efficiency[row]), "share"),
    )
    yield from layout.table(Table("Speed-up", columns, shown), width)
    first, last = float(curve.sizes[0]), float(curve.sizes[-1])
    if curve.knee is not None:
        text = f"beyond {axis} {curve.knee:g} the speed grows by less than 5% (up to {last:g})"
    else:
        text = f"the speed grows over the whole measured range, {axis} {first:g} to {last:g}"
    yield from layout.paragraph(text, 2, width)


def _next(following: Next, width: int) -> list[str]:
    again = " again" if following.measured else ""
    before, after = (format_quantity(ns, "ns") for ns in (following.before_ns, following.after_ns))
    text = (
        f"Best next measurement: {_at(following.at)}{again}. It should reduce the standard error of this prediction "
        f"from {before} to {after}."
    )
    return layout.paragraph(text, 0, width)


def _cost(cost: EpochCost) -> str:
    hours, low, high = cost.hours
    text = f"{cost.steps:,.0f} steps take {_hours(hours)} [{_hours(low)}, {_hours(high)}]"
    if cost.price is not None:
        price, cheap, dear = cost.price
        text += f" and cost {price:.2f} [{cheap:.2f}, {dear:.2f}]"
    return f"{text} (95% intervals)"


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 1 else format_quantity(hours * 3600e9, "ns")


def _at(at: Mapping[str, float]) -> str:
    return ", ".join(f"{visible(name)} {value:g}" for name, value in at.items())


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(visible, names))
