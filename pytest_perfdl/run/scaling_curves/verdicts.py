"""Verdicts on curves: growth relative to the baselines' curve, and bounds of `assert_scaling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.judge.alternatives import bounded
from pytest_perfdl.model.units import format_percent, parse_quantity
from pytest_perfdl.report.scaling.wording import estimate
from pytest_perfdl.results.verdict import MetricVerdict, Verdict
from pytest_perfdl.run.scaling_curves.compared import between_occasions, means, shape_of

if TYPE_CHECKING:
    from pytest_perfdl.fixture.requests import CurveExpectation
    from pytest_perfdl.model.limits import Limit
    from pytest_perfdl.results.curve import Figure
    from pytest_perfdl.run.scaling_curves.compared import Compared
    from pytest_perfdl.run.scaling_curves.points import Family, SizePoint
    from pytest_perfdl.scaling.growth import Growth, IntervalEstimate

SUSPICION = 1.2816 / 1.96
"""Share of half a 95 % interval that a growth must reach to be suspected: one-sided p of 0.1."""
_PARTS = {"overhead": "fixed part", "per unit": "per {unit}", "complexity": "exponent"}


def suspected(growth: Growth, limit: float) -> bool:
    """Whether to measure further repeats."""
    effect = growth.effect
    return effect.value > limit and effect.value > SUSPICION * (effect.value - effect.low)


def verdict_on(growth: Growth, limit: float) -> Verdict:
    """The verdict on a growth alone: `suspect` at worst."""
    effect = growth.effect
    if effect.value > limit:
        return "suspect" if effect.low > 0 else "inconclusive"
    return "improved" if effect.high < -limit else "unchanged"


def of_growth(
    family: Family, found: Compared, verdict: Verdict, limit: Limit | None, share: float, *, paired: bool
) -> MetricVerdict:
    """The verdict on a curve relative to the baselines' curve.

    Parameters
    ----------
    limit, share
        Limit of `step_time`, and its value as a fraction; without a limit the curve is only shown.
    paired
        Whether all sizes were measured in paired rounds.
    """
    growth, base_ns = found.growth, found.base_ns
    effect = growth.effect
    return MetricVerdict(
        name=family.title,
        kind="timed",
        unit="ns",
        better="lower",
        base=base_ns,
        new=base_ns * (1 + effect.value),
        effect=effect.value,
        ci95=(effect.low, effect.high),
        limit=None if limit is None else limit.text,
        verdict=None if limit is None else verdict,
        reason=_reason(found, family, verdict),
        times_over=effect.value / share if verdict == "regressed" and share > 0 else None,
        evidence="paired" if paired else "unpaired",
    )


def of_figures(family: Family, figures: Sequence[Figure]) -> list[MetricVerdict]:
    """Both curves in three numbers, shown only: fixed part, time per unit, exponent."""
    return [
        MetricVerdict(
            name=f"{family.title}, {_PARTS[each.kind].format(unit=family.unit)}",
            kind="timed",
            unit=each.unit,
            better="lower",
            base=each.base.value,
            new=each.new.value,
            reason=f"{estimate(each.base, each.unit)} -> {estimate(each.new, each.unit)} (95% intervals)",
        )
        for each in figures
        if each.base is not None
    ]


def of_bounds(
    family: Family, expectations: Sequence[CurveExpectation], points: Sequence[SizePoint]
) -> list[MetricVerdict]:
    """The verdicts on the bounds of `assert_scaling`."""
    if not expectations:
        return []
    found = shape_of(points, means([point.new for point in points]))
    metrics = []
    for each in expectations:
        demands = (
            ("largest exponent", "1", found.exponent, None if each.exponent is None else f"{each.exponent:g}"),
            ("largest fixed part", "ns", found.fixed, each.fixed),
            (f"largest time per {family.unit}", "ns", found.slope, each.per_unit),
        )
        for part, unit, figure, text in demands:
            if text is not None:
                now = between_occasions(figure, unit)
                name, bound = f"{family.title}, {part}", parse_quantity(text, unit)
                metrics.append(bounded(name, unit, now.value, (now.low, now.high), bound, text))
    return metrics


def _reason(found: Compared, family: Family, verdict: Verdict) -> str:
    growth, effect, axis = found.growth, found.growth.effect, family.axis
    low, high = format_percent(effect.low), format_percent(effect.high)
    text = f"{format_percent(effect.value)} [{low}, {high}] at {axis} {growth.size:g} (95% interval, {found.evidence})"
    if verdict == "inconclusive":
        return f"{text}: the interval is too wide to decide"
    if verdict not in ("regressed", "suspect"):
        return text
    name = {
        "overhead": "overhead regression",
        "per unit": f"per-{family.unit} regression",
        "complexity": "complexity regression",
        "every size alike": "same change at every size",
    }[growth.kind]
    if growth.term is None:
        amount = "same relative change at every size" + ("" if found.paired else ", possibly machine drift")
    else:
        amount = _amount(growth.amount, growth.term, family)
    if growth.beside is not None:
        amount = f"{amount}, and {_amount(growth.beside.amount, growth.beside.term, family)}"
    power = growth.power
    grows = f"the added time grows like {axis}^{power.value:.1f} [{power.low:.1f}, {power.high:.1f}]"
    return f"{name}: {text}: {amount}; {grows}"


def _amount(found: IntervalEstimate, term: int, family: Family) -> str:
    sizes = {0: "at every size", 1: f"per {family.unit}"}
    return f"{estimate(found, 'ns')} more {sizes.get(term, f'per {family.axis}^{term}')}"
