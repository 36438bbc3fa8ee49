"""Scaling models and predictions as plain data: times in seconds, errors as ratios, null for what cannot be stated."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from pytest_perfdl.scaling.saved import to_data
from pytest_perfdl.scaling.wording import doublings

if TYPE_CHECKING:
    from pytest_perfdl.scaling import Choice, Coefficient, Fit, Parts, TimePrediction
    from pytest_perfdl.scaling.planning import EpochCost, Next, SpeedUp

SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""
_SECONDS = {"ns": (1e-9, "s"), "1": (1.0, "1")}


def fitted(choice: Choice, parts: Parts | None = None) -> dict[str, Any]:
    """Every model, least error first; `saved` is what `perfdl scaling predict` reads.

    `parts` is there where they were asked for.
    """
    return {
        "schema": SCHEMA,
        "models": [_model(fit) for fit in choice.fits],
        "chosen": choice.chosen.name,
        "explanation": list(choice.explanation),
        "warnings": list(choice.warnings),
        "points": len(choice.points),
        "configurations": len(choice.points.configurations()),
        "replicate_spread": choice.points.replicate_spread(),
        **({} if parts is None else {"parts": _parts(parts)}),
        "saved": to_data(choice),
    }


def predicted(
    fit: Fit,
    at: dict[str, float],
    found: TimePrediction,
    curves: list[SpeedUp],
    following: Next,
    cost: EpochCost | None,
) -> dict[str, Any]:
    """A prediction with the plans made of it."""
    return {
        "schema": SCHEMA,
        "model": fit.name,
        "loo_mape": _number(fit.loo_mape),
        "at": at,
        "time_s": found.ns / 1e9,
        "ci95_s": [found.low / 1e9, found.high / 1e9],
        "stretch": found.stretch,
        "warnings": list(found.warnings),
        "curves": [
            {
                "axis": curve.axis,
                "kind": curve.kind,
                "sizes": curve.sizes.tolist(),
                "time_s": (curve.ns / 1e9).tolist(),
                "speedup": curve.speedup.tolist(),
                "efficiency": curve.efficiency.tolist(),
                "knee": curve.knee,
            }
            for curve in curves
        ],
        "next": {
            "at": dict(following.at),
            "measured": following.measured,
            "standard_error_s": following.before_ns / 1e9,
            "expected_standard_error_s": following.after_ns / 1e9,
        },
        "epoch": None
        if cost is None
        else {
            "steps": cost.steps,
            "hours": cost.hours[0],
            "hours_ci95": list(cost.hours[1:]),
            "price": None if cost.price is None else cost.price[0],
            "price_ci95": None if cost.price is None else list(cost.price[1:]),
        },
    }


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
        "at": dict(found.at),
        "profiled_step_s": found.ns / 1e9,
        "elsewhere": found.elsewhere,
        "parts": [
            {
                "kind": part.kind,
                "name": part.name,
                "time_s": part.ns / 1e9,
                "share": part.share,
                "doubling": {name: _number(ratio) for name, ratio in doublings(part.fit, part.points).items()},
                "model": _model(part.fit),
            }
            for part in found.parts
        ],
    }


def _model(fit: Fit) -> dict[str, Any]:
    return {
        "name": fit.name,
        "loo_mape": _number(fit.loo_mape),
        "fit_seconds": fit.fit_seconds,
        "coefficients": {each.name: _coefficient(each) for each in fit.coefficients},
    }


def _coefficient(each: Coefficient) -> dict[str, Any]:
    scale, unit = _SECONDS[each.unit]
    ends = [_number(each.low * scale), _number(each.high * scale)]
    return {"value": each.value * scale, "ci95": None if None in ends else ends, "unit": unit}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
