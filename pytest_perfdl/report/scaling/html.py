"""The curve of a test's sizes on the page: its picture, the same in words, and the rows below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report.scaling.plot import PlottedLine, PlottedSide, inline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pytest_perfdl.results.curve import CurveTime, Figure, Fitted, JudgedCurve, Size

WIDE = 8
"""Sizes that differ by more than this factor are drawn on logarithmic axes."""


def picture(curve: JudgedCurve) -> Markup:
    """Points of both sides with their intervals, and the curves fitted to them with their bands."""
    new = PlottedSide(
        _line([(each.size, each.new) for each in curve.sizes]), _line([(e.size, e.new) for e in curve.fitted])
    )
    base = PlottedSide(_line(_bases(curve.sizes)), _line(_bases(curve.fitted))) if has_base(curve) else None
    return inline(curve.axis, new, base, logarithmic=logarithmic(curve), label=_said(curve))


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


def _said(curve: JudgedCurve) -> str:
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
