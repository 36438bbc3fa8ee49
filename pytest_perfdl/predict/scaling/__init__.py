"""Scaling: the time of a step as a function of its size.

    points = read_csv(Path("points.csv"), intrinsic=["layers"], extrinsic=["batch", "workers"])
    choice = choose(points)
    choice.explanation, choice.predict({"layers": 4, "batch": 64, "workers": 8})

- `points` holds measurements, `model` what forms and curves are.
- Forms: `generic` the published power law by global search, `physical` a sum of what the machine does, `affine` and
  `piecewise` for one axis.
- `held_out` fits a form with and without each configuration: errors and intervals. `choose` takes the best and
  predicts; `wording` says what a model means.
"""

from pytest_perfdl.predict.scaling.affine import Affine
from pytest_perfdl.predict.scaling.choose import Choice, Prediction, candidates, choose, predict
from pytest_perfdl.predict.scaling.generic import Generic
from pytest_perfdl.predict.scaling.held_out import Coefficient, Fit, evaluate
from pytest_perfdl.predict.scaling.physical import Feature, Physical, features
from pytest_perfdl.predict.scaling.piecewise import Cliff, Piecewise, find_cliff
from pytest_perfdl.predict.scaling.points import Point, Points, ScalingError, read_csv
from pytest_perfdl.predict.scaling.wording import doublings, importance

__all__ = [
    "Affine",
    "Choice",
    "Cliff",
    "Coefficient",
    "Feature",
    "Fit",
    "Generic",
    "Physical",
    "Piecewise",
    "Point",
    "Points",
    "Prediction",
    "ScalingError",
    "candidates",
    "choose",
    "doublings",
    "evaluate",
    "features",
    "find_cliff",
    "importance",
    "predict",
    "read_csv",
]
