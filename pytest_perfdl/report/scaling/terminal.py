"""Scaling models and predictions on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.model.kernel_names import short_names
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.scaling.wording import figure
from pytest_perfdl.scaling.model import CONSTANT
from pytest_perfdl.scaling.wording import doublings

if TYPE_CHECKING:
    from pytest_perfdl.scaling import Choice, Coefficient, Fit, Parts, TimePrediction
    from pytest_perfdl.scaling.planning import EpochCost, Next, SpeedUp

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
    rows = [("", "time", "share", *(f"doubling {visible(axis)}" for axis in axes), "fixed", "error")]
    for part in found.parts:
        ratios = doublings(part.fit, part.points)
        fixed = next((each.value for each in part.fit.coefficients if each.name == CONSTANT), 0.0)
        rows.append(
            (
                visible(part.name) + (", idle" if part.kind == "idle" else ""),
                format_quantity(part.ns, "ns"),
                format_percent(part.share, signed=False),
                *(f"{ratios[axis]:.2f}x" for axis in axes),
                format_quantity(fixed, "ns"),
                format_percent(part.fit.loo_mape, signed=False),
            )
        )
    lines += layout.rows(rows, "lrr" + "r" * len(axes) + "rr", 2, width, short_names)
    legend = "fixed: time that does not depend on size; error: leave-one-out error"
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


def _models(choice: Choice, width: int) -> list[str]:
    rows = [("Models", "leave-one-out error", "fitted in")]
    rows += [
        (
            f"  {fit.name} *" if fit is choice.chosen else f"  {fit.name}",
            format_percent(fit.loo_mape, signed=False),
            format_quantity(fit.fit_seconds * 1e9, "ns"),
        )
        for fit in choice.fits
    ]
    legend = "*: chosen model; leave-one-out error: mean error on configurations that were left out of the fit"
    return [*layout.rows(rows, "lrr", 0, width), *layout.paragraph(legend, 2, width)]


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
    rows = [(axis, "step", "speed-up" if processors else "work per second", "efficiency")]
    every = range(len(curve.sizes))
    shown = every if len(every) <= _ROWS else [row for row in every if curve.measured[row]]
    rows += [
        (
            f"{curve.sizes[row]:g}",
            format_quantity(float(curve.ns[row]), "ns"),
            f"{curve.speedup[row]:.2f}x",
            format_percent(float(curve.efficiency[row]), signed=False),
        )
        for row in shown
    ]
    yield from layout.rows(rows, "rrrr", 2, width)
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
