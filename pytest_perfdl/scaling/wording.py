"""What a fitted model says of each factor, in words."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.scaling.held_out import Fit
from pytest_perfdl.scaling.model import CONSTANT
from pytest_perfdl.scaling.points import Points

_NEGLIGIBLE = 0.001
"""Share of the least time below which a fixed part is not worth a sentence."""


def doublings(fit: Fit, points: Points) -> dict[str, float]:
    """For each factor that varies, the time with it doubled over the time without.

    Doubled about the middle of its range, from m / sqrt(2) to m sqrt(2), m the square root of its least positive
    value times its largest, others at their middle: the question is asked where the model was measured.
    """
    middle = {name: _middle(points, name) for name in points.factors}
    found = {}
    for name in points.varying:
        columns = {other: np.array([value, value]) for other, value in middle.items()}
        columns[name] = middle[name] * np.array([0.5**0.5, 2**0.5])
        less, more = fit.curve.times(columns).tolist()
        found[name] = more / less if less > 0 else float("nan")
    return found


def importance(fit: Fit, points: Points) -> tuple[str, ...]:
    """One sentence per factor, the most important first, and one for the time that does not scale.

    That last one only where the constant's interval is above zero. Like so: "doubling batch: 1.93x the time",
    "doubling workers: 0.55x the time", "12.00 ms do not depend on size".
    """
    ratios = {name: ratio for name, ratio in doublings(fit, points).items() if ratio > 0}
    ordered = sorted(ratios, key=lambda name: (-abs(np.log(ratios[name])), name))
    said = []
    for name in ordered:
        said.append(f"doubling {name}: {ratios[name]:.2f}x the time")
    fixed = next((each for each in fit.coefficients if each.name == CONSTANT), None)
    if fixed is not None and fixed.low > 0 and fixed.value >= _NEGLIGIBLE * float(points.ns.min()):
        said.append(f"{format_quantity(fixed.value, 'ns')} do not depend on size")
    return tuple(said)


def _middle(points: Points, name: str) -> float:
    column = points.columns[name]
    positive = column[column > 0]
    return float(np.sqrt(positive.min() * positive.max())) if len(positive) else 0.0
