"""Points made of a formula: a grid of sizes, with seeded noise that is a share of the time."""

import itertools

import numpy as np

from pytest_perfdl.scaling.points import Points


def grid(formula, *, noise=0.0, seed=0, repeats=1, intrinsic=(), extrinsic=(), **axes):
    """Every combination of the axes' sizes, `repeats` times."""
    random = np.random.default_rng(seed)
    points = []
    for sizes in itertools.product(*axes.values()):
        factors = dict(zip(axes, map(float, sizes), strict=True))
        for _ in range(repeats):
            points.append((factors, formula(**factors) * (1 + noise * random.standard_normal())))
    return Points.of(points, intrinsic=intrinsic, extrinsic=extrinsic)


def line(formula, sizes, **more):
    """Sizes of one axis, the batch."""
    return grid(formula, extrinsic=["batch"], batch=sizes, **more)


def values(fit):
    return {each.name: each.value for each in fit.coefficients}
