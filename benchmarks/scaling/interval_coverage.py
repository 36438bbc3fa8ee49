"""Do the coefficients' intervals hold what they promise? Known constants, 5 % noise, 40 points, 100 trials a model.

    python benchmarks/scaling/interval_coverage.py [--trials 100] [--noise 0.05]

Prints for every coefficient how often its 95 % interval held the true value, and how wide it was: the median standard
error that the jackknife gave, over the standard deviation of the estimate between trials, which is the true one. A
coverage without the width is meaningless: wide intervals hold everything. Exit code 1 when a coefficient lies in its
interval in less than 90 % of the trials, or its standard error is off by more than a factor of 2.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product

import numpy as np

from pytest_perfdl.scaling.choose import evaluate
from pytest_perfdl.scaling.generic import ADDITIVE, PRODUCT
from pytest_perfdl.scaling.laws import AFFINE, Curve
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.points import Points
from pytest_perfdl.stats.quantiles import student

LEAST_COVERED = 0.90
MOST_OFF = 2.0
AXES = {"layers": (1, 2, 4, 8), "batch": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}
WORK = {"flops": (1e8, 2e8, 4e8, 8e8, 1.6e9, 3.2e9, 6.4e9, 1.28e10), "workers": (1, 2, 3, 4, 8)}


@dataclass(frozen=True, slots=True)
class Case:
    """A form of model, and a time that follows it exactly."""

    form: object
    kinds: dict
    sizes: dict
    time: object
    """Nanoseconds as a function of the factors."""
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one coefficient over all trials."""

    model: str
    coefficient: str
    true: float
    covered: float
    """Share of the trials."""
    width: float
    """Median standard error that was claimed, over the true one."""

    @property
    def holds(self):
        return self.covered >= LEAST_COVERED and 1 / MOST_OFF <= self.width <= MOST_OFF


CASES = {
    "affine": Case(
        AFFINE, {"extrinsic": ["batch"]}, {"batch": (2, 4, 6, 8, 12, 16, 24, 32)}, lambda batch: 12e6 + 1e6 * batch, 5
    ),
    "generic product": Case(
        PRODUCT,
        {"intrinsic": ["layers"], "extrinsic": ["batch"]},
        AXES,
        lambda layers, batch: 2e6 * layers**1.2 * batch**0.7 + 12e6,
    ),
    "generic additive": Case(
        ADDITIVE,
        {"intrinsic": ["layers"], "extrinsic": ["batch"]},
        AXES,
        lambda layers, batch: 4e6 * layers**1.2 + 3e6 * batch**0.7 + 6e6,
    ),
    "physical": Case(
        PHYSICAL,
        {"intrinsic": ["flops"], "extrinsic": ["workers"]},
        WORK,
        lambda flops, workers: (
            4e6
            + 1e-2 * flops / workers
            + 3e-3 * flops * (1 - 1 / workers)
            + 2e6 * (workers - 1)
            + 5e5 * workers * (workers - 1)
        ),
    ),
}


def points_of(case, noise, random):
    found = []
    for sizes in product(*case.sizes.values()):
        factors = dict(zip(case.sizes, map(float, sizes), strict=True))
        for _ in range(case.repeats):
            found.append((factors, case.time(**factors) * (1 + noise * random.standard_normal())))
    return Points.of(found, **case.kinds)


def rows_of(case, *, trials=100, noise=0.05, seed=0):
    """Each coefficient's coverage and width, by trials that differ in their noise only."""
    exact: Curve = case.form.fit(points_of(case, 0.0, np.random.default_rng(0)))
    true = {each.name: each.value for each in exact.constants()}
    values, errors, covered = ({name: [] for name in true} for _ in range(3))
    for trial in range(trials):
        points = points_of(case, noise, np.random.default_rng((seed, trial)))
        fit = evaluate(case.form, points)
        found = {each.name: each for each in fit.coefficients}
        for name, value in true.items():
            each = found.get(name)
            values[name].append(each.value if each else 0.0)
            half = (each.high - each.low) / 2 if each else 0.0
            errors[name].append(half / student(0.975, fit.freedom))
            covered[name].append(abs(value - values[name][-1]) <= half + 1e-9 * abs(value))
    return [
        Row(
            case.form.name,
            name,
            true[name],
            float(np.mean(covered[name])),
            float(np.median(errors[name]) / max(np.std(values[name], ddof=1), 1e-12)),
        )
        for name in true
        if any(values[name])
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = [
        row
        for case in CASES.values()
        for row in rows_of(case, trials=arguments.trials, noise=arguments.noise, seed=arguments.seed)
    ]
    print(f"{arguments.trials} trials, 40 points, noise {arguments.noise:.0%}")
    print(f"{'model':18} {'coefficient':28} {'true':>12} {'in 95 % interval':>17} {'error claimed / true':>21}")
    for row in rows:
        mark = "" if row.holds else "  FAILS"
        print(f"{row.model:18} {row.coefficient:28} {row.true:12.4g} {row.covered:17.0%} {row.width:21.2f}{mark}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
