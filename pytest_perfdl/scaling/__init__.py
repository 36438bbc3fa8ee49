"""Scaling: the time of a step as a function of its size.

    points = read_csv(Path("points.csv"), intrinsic=["layers"], extrinsic=["batch", "workers"])
    choice = choose(points)
    choice.explanation, choice.predict({"layers": 4, "batch": 64, "workers": 8})

- `points` holds measurements, from columns or from the records of a run (`points.points_of`).
- Forms: `laws` says what forms and curves are, with lines for one axis (`laws.Affine`, `laws.Piecewise`); `generic` is
  the published power law by global search, `physical` a sum of what the machine does.
- `choose.evaluate` fits a form with and without each configuration: errors and intervals. `choose.choose` takes the
  best, predicts, and says what it means.
- `saved` keeps a choice as plain data, and has the growth of each part of a step (`saved.parts_of`). `planning` says
  what follows from a choice, `growth` how one curve differs from another.
"""

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import (
    Choice,
    Coefficient,
    Fit,
    TimePrediction,
    candidates,
    choose,
    doublings,
    evaluate,
    importance,
    predict,
)
from pytest_perfdl.scaling.generic import Generic
from pytest_perfdl.scaling.laws import Affine, Cliff, Piecewise, find_cliff
from pytest_perfdl.scaling.physical import PROCESSORS, Feature, Physical, features
from pytest_perfdl.scaling.points import Members, Point, Points, members_of, points_of, read_csv, sizes_of
from pytest_perfdl.scaling.saved import Parts, TimePart, from_data, parts_of, to_data

__all__ = [
    "PROCESSORS",
    "Affine",
    "Choice",
    "Cliff",
    "Coefficient",
    "Feature",
    "Fit",
    "Generic",
    "Members",
    "Parts",
    "Physical",
    "Piecewise",
    "Point",
    "Points",
    "ScalingError",
    "TimePart",
    "TimePrediction",
    "candidates",
    "choose",
    "doublings",
    "evaluate",
    "features",
    "find_cliff",
    "from_data",
    "importance",
    "members_of",
    "parts_of",
    "points_of",
    "predict",
    "read_csv",
    "sizes_of",
    "to_data",
]
