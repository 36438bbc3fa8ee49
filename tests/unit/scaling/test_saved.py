"""A choice as plain data and back: every form predicts as it did, and what is broken is refused in one line."""

import json

import pytest

from pytest_perfdl.model.errors import OtherSchemaError, ScalingError
from pytest_perfdl.scaling.choose import choose, predict
from pytest_perfdl.scaling.saved import from_data, to_data
from unit.scaling.sizes import grid, line

SIZES = (2, 4, 6, 8, 16, 24, 32, 64)
MADE = {
    "affine": line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=0.02),
    "piecewise": line(lambda batch: 12e6 + 1e6 * batch if batch <= 8 else 40e6 + 2e6 * batch, SIZES, noise=0.005),
    "two kinds": grid(
        lambda layers, workers: 2e6 * layers**1.4 / workers + 5e6,
        noise=0.02,
        intrinsic=["layers"],
        extrinsic=["workers"],
        layers=(1, 2, 4, 8),
        workers=(1, 2, 4),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_what_was_saved_predicts_as_before(name):
    choice = choose(MADE[name])
    again = from_data(json.loads(json.dumps(to_data(choice))))
    assert again.chosen.name == choice.chosen.name
    assert (again.explanation, again.warnings) == (choice.explanation, choice.warnings)
    at = {factor: float(choice.points.columns[factor].max()) for factor in choice.points.factors}
    for fit, other in zip(choice.fits, again.fits, strict=True):
        assert other.coefficients == fit.coefficients
        assert other.loo_mape == fit.loo_mape
        assert predict(other, again.points, at) == predict(fit, choice.points, at)


def broken(**changes):
    return {**to_data(choose(MADE["affine"])), **changes}


@pytest.mark.parametrize(
    "data, problem",
    [
        pytest.param(None, "the file is not a saved model", id="nothing"),
        pytest.param([], "the file is not a saved model", id="list"),
        pytest.param({}, "the file is not a saved model", id="empty"),
        pytest.param(broken(chosen="cubic"), "the file is not a saved model", id="unknown choice"),
        pytest.param(broken(fits=[{"name": "cubic"}]), "the file is not a saved model", id="unknown form"),
        pytest.param(broken(ns=[1.0]), "the file is not a saved model", id="ragged"),
        pytest.param(broken(ns=[-1.0] * 8), "must be finite and positive", id="negative"),
        pytest.param(broken(columns={}), "the file is not a saved model", id="no columns"),
    ],
)
def test_what_is_no_model_is_refused(data, problem):
    with pytest.raises(ScalingError, match=problem):
        from_data(data)


@pytest.mark.parametrize("schema", [0, 2, "1"])
def test_a_model_of_another_version_is_refused(schema):
    with pytest.raises(OtherSchemaError, match=rf"another version .* \(schema {schema}, this one reads 1\)"):
        from_data(broken(schema=schema))
