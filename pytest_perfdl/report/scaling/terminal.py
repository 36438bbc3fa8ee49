"""Scaling models and predictions on the terminal, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import layout
from pytest_perfdl.report.scaling.wording import figure
from pytest_perfdl.report.words import visible
from pytest_perfdl.scaling.model import CONSTANT
from pytest_perfdl.scaling.wording import doublings

if TYPE_CHECKING:
    from pytest_perfdl.scaling import Choice, Coefficient, Fit, Parts, TimePrediction
    from pytest_perfdl.scaling.planning import EpochCost, Next, SpeedUp

_ROWS = 12
"""A curve of more sizes is shown at those that were measured."""


def fitted(choice: Choice, width: int) -> str:
    """What was chosen and why, every model's error, the chosen one's coefficients. Example.

    48 points of 16 configurations: layers, batch
    generic product: 1.2% off on configurations left out (physical 1.9%)
    doubling batch costs 1.93x
    12.00 ms do not scale
    replicates spread by 1.1%

    model               off on what was left out    fitted in
    generic product *                       1.2%      0.412 s
    physical                                1.9%     0.310 ms

    generic product, 95% intervals (jackknife)
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

    of the profiled step at batch 32, 1.204 ms, and how each part grows (physical models)
    part                       time  share  doubling batch  does not scale  off on what was left out
    aten::mm               812.0 µs  67.4%           1.82x        20.10 µs                      3.1%
    Python and host, idle  301.0 µs  25.0%           1.01x        280.0 µs                      2.0%
    7.6% is in parts that are small, or not there at every size
    """
    axes = found.parts[0].points.varying if found.parts else ()
    step = format_quantity(found.ns, "ns")
    lines = layout.paragraph(
        f"of the profiled step at {_at(found.at)}, {step}, and how each part grows (physical models)", 0, width
    )
    head = ("part", "time", "share", *(f"doubling {visible(axis)}" for axis in axes), "does not scale")
    rows = [(*head, "off on what was left out")]
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
    lines += layout.rows(rows, "lrr" + "r" * len(axes) + "rr", 0, width)
    if found.elsewhere > 0:
        rest = format_percent(found.elsewhere, signed=False)
        lines += layout.paragraph(f"{rest} is in parts that are small, or not there at every size", 0, width)
    return "\n".join(lines)


def predicted(
    fit: Fit,
    at: Mapping[str, float],
    found: TimePrediction,
    curves: Sequence[SpeedUp],
    following: Next,
    cost: EpochCost | None,
    width: int,
) -> str:
    """A prediction with its interval, then curves, cost and the next measurement."""
    ends = f"[{format_quantity(found.low, 'ns')}, {format_quantity(found.high, 'ns')}]"
    lines = layout.paragraph(
        f"{_at(at)}: {format_quantity(found.ns, 'ns')}  {ends} (95% interval, {fit.name})", 0, width
    )
    for warning in found.warnings:
        lines += layout.paragraph(
            f"warning: {visible(warning)}; the interval is widened {found.stretch:.3g}x", 0, width
        )
    if cost is not None:
        lines += layout.paragraph(_cost(cost), 0, width)
    for curve in curves:
        lines += ["", *_curve(curve, width)]
    return "\n".join([*lines, "", *_next(following, width)])


def _models(choice: Choice, width: int) -> list[str]:
    rows = [("model", "off on what was left out", "fitted in")]
    rows += [
        (
            f"{fit.name} *" if fit is choice.chosen else fit.name,
            format_percent(fit.loo_mape, signed=False),
            format_quantity(fit.fit_seconds * 1e9, "ns"),
        )
        for fit in choice.fits
    ]
    return layout.rows(rows, "lrr", 0, width)


def _coefficients(fit: Fit, width: int) -> Iterator[str]:
    yield f"{fit.name}, 95% intervals (jackknife)"
    rows = [(visible(each.name), _value(each, each.value), _interval(each)) for each in fit.coefficients]
    yield from layout.rows(rows, "lrl", 2, width) if rows else ["  every coefficient is zero"]


def _interval(each: Coefficient) -> str:
    return f"[{_value(each, each.low)}, {_value(each, each.high)}]"


def _value(each: Coefficient, value: float) -> str:
    if each.unit == "1":
        return f"{value:.3f}"
    return figure(value, each.unit)


def _curve(curve: SpeedUp, width: int) -> Iterator[str]:
    processors = curve.kind == "processors"
    rows = [(visible(curve.axis), "step", "speed-up" if processors else "work per second", "efficiency")]
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
    yield from layout.rows(rows, "lrrr", 0, width)
    first, last = float(curve.sizes[0]), float(curve.sizes[-1])
    if curve.knee is not None:
        yield f"beyond {curve.axis} {curve.knee:g} less than 5% of speed is gained (looked at up to {last:g})"
    else:
        yield f"speed grows over the whole measured range, {curve.axis} {first:g} to {last:g}: no knee"


def _next(following: Next, width: int) -> list[str]:
    what = "measure again" if following.measured else "measure"
    before, after = (format_quantity(ns, "ns") for ns in (following.before_ns, following.after_ns))
    text = (
        f"next: {what} {_at(following.at)}; the curve's standard error here is expected to go from {before} to {after}"
    )
    return layout.paragraph(text, 0, width)


def _cost(cost: EpochCost) -> str:
    hours, low, high = cost.hours
    text = f"an epoch of {cost.steps:,.0f} steps takes {_hours(hours)}  [{_hours(low)}, {_hours(high)}]"
    if cost.price is not None:
        price, cheap, dear = cost.price
        text += f" and costs {price:.2f}  [{cheap:.2f}, {dear:.2f}]"
    return f"{text} (95% intervals)"


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 1 else format_quantity(hours * 3600e9, "ns")


def _at(at: Mapping[str, float]) -> str:
    return ", ".join(f"{visible(name)} {value:g}" for name, value in at.items())


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(visible, names))
