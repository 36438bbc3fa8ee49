"""A choice among models as plain data and back: what was fitted once predicts later, without its points' file."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.affine import StraightLine
from pytest_perfdl.scaling.choose import Choice
from pytest_perfdl.scaling.generic import PowerSum
from pytest_perfdl.scaling.held_out import Coefficient, Fit
from pytest_perfdl.scaling.physical import Sum
from pytest_perfdl.scaling.piecewise import TwoLines
from pytest_perfdl.scaling.points import Point, Points

_CURVES: dict[str, type[Any]] = {
    "affine": StraightLine,
    "piecewise": TwoLines,
    "physical": Sum,
    "generic product": PowerSum,
    "generic additive": PowerSum,
}
"""What the form of each name gives."""


def to_data(choice: Choice) -> dict[str, Any]:
    """Everything that `from_data` needs: numbers, text, lists and dicts; times in nanoseconds."""
    points = choice.points
    return {
        "intrinsic": list(points.intrinsic),
        "extrinsic": list(points.extrinsic),
        "columns": {name: points.columns[name].tolist() for name in points.factors},
        "ns": points.ns.tolist(),
        "chosen": choice.chosen.name,
        "explanation": list(choice.explanation),
        "warnings": list(choice.warnings),
        "fits": [
            {
                "name": fit.name,
                "curve": msgspec.to_builtins(fit.curve),
                "replicas": msgspec.to_builtins(fit.replicas),
                "coefficients": msgspec.to_builtins(fit.coefficients),
                "errors": fit.errors.tolist(),
                "freedom": fit.freedom,
                "fit_seconds": fit.fit_seconds,
            }
            for fit in choice.fits
        ],
    }


def from_data(data: Any) -> Choice:
    """What `to_data` was given.

    Raises
    ------
    ScalingError
        The data is not of that form.
    """
    try:
        names = (*data["intrinsic"], *data["extrinsic"])
        rows = zip(*(data["columns"][name] for name in names), data["ns"], strict=True)
        points = Points.of(
            (Point(dict(zip(names, row[:-1], strict=True)), row[-1]) for row in rows),
            intrinsic=data["intrinsic"],
            extrinsic=data["extrinsic"],
        )
        fits = tuple(_fit(each) for each in data["fits"])
        (chosen,) = (fit for fit in fits if fit.name == data["chosen"])
        explanation, warnings = (tuple(map(str, data[name])) for name in ("explanation", "warnings"))
        return Choice(points, fits, chosen, explanation, warnings)
    except ScalingError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, msgspec.ValidationError) as error:
        raise ScalingError(f"the file is not a saved model ({type(error).__name__}: {error})") from None


def _fit(data: Any) -> Fit:
    kind = _CURVES[data["name"]]
    return Fit(
        name=data["name"],
        curve=msgspec.convert(data["curve"], kind),
        replicas=tuple(msgspec.convert(each, kind) for each in data["replicas"]),
        coefficients=msgspec.convert(data["coefficients"], tuple[Coefficient, ...]),
        errors=np.array(data["errors"], dtype=np.float64),
        freedom=msgspec.convert(data["freedom"], int),
        fit_seconds=msgspec.convert(data["fit_seconds"], float),
    )
