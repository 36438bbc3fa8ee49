"""Time as a sum of what the machine does: operations, arithmetic, bytes, what is not shared out, communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.laws import CONSTANT, Constant, Form
from pytest_perfdl.scaling.points import F64, Points

Share = Literal["whole", "divided", "undivided", "steps", "pairs"]
_SHARES: Mapping[Share, tuple[str, Callable[[F64, F64], F64]]] = {
    "divided": ("{0} / {1}", lambda amount, count: amount / count),
    "undivided": ("{0} * (1 - 1/{1})", lambda amount, count: amount * (1 - 1 / count)),
    "steps": ("{1} - 1", lambda _, count: count - 1),
    "pairs": ("{1} * ({1} - 1)", lambda _, count: count * (count - 1)),
}
"""How p processors share an amount, unless each does all of it: each does a part of it, or the difference between the
two, or there is one for each neighbor, or for each pair that may get in each other's way."""

PROCESSORS = ("processors", "processes", "workers", "threads", "ranks", "devices", "gpus", "nodes")
"""Factors that are taken for the number of processors."""
OPERATIONS = ("operations", "ops", "kernels", "launches")
"""Factors that are counts of calls: each processor makes all of them."""
AMOUNTS = ("flops", "bytes")
"""Factors that are amounts of work: processors share them."""
COMMUNICATED = ("comm_bytes",)
"""Factors that are bytes to exchange between processors."""

_NOTHING = 1e-9
"""A feature that is nowhere more of the time than this is none."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A product of powers of factors, shared by processors in one of four ways."""

    powers: tuple[tuple[str, int], ...] = ()
    share: Share = "whole"
    processors: str = ""

    @property
    def name(self) -> str:
        """A formula: "batch * layers^2 / workers"."""
        amount = " * ".join(f"{name}^{power}" if power > 1 else name for name, power in self.powers)
        if self.share == "whole":
            return amount or CONSTANT
        return _SHARES[self.share][0].format(amount or 1, self.processors)

    def column(self, columns: Mapping[str, F64]) -> F64:
        """Its amount for each row."""
        amount = np.ones(len(next(iter(columns.values()))))
        for name, power in self.powers:
            amount = amount * columns[name] ** power
        return amount if self.share == "whole" else _SHARES[self.share][1](amount, columns[self.processors])


def features(points: Points) -> tuple[Feature, ...]:
    """What the time may be made of, judged by the factors' names.

    With counted work among the factors: 1, operations, flops / p, flops (1 - 1/p), bytes / p, bytes (1 - 1/p), and
    comm_bytes (1 - 1/p), which is a ring all-reduce's traffic up to a factor of 2, with its p - 1 steps. Work over p
    beside work times 1 - 1/p is Amdahl's law: the ratio of the two coefficients is the serial share. With p (p - 1)
    beside them it is the universal scalability law (Gunther, "Guerrilla Capacity Planning", 2007), by which more
    processors may do less, as processes do that wait for each other on fewer cores. Where nothing was counted, products
    of powers of the other factors stand for work: up to the square of each and degree 4 for up to three factors, plain
    products of up to three for more.

    Raises
    ------
    ScalingError
        There are fewer than one processors.
    """
    varying = points.varying
    count = next((name for name in PROCESSORS if name in varying), "")
    if count and points.columns[count].min() < 1:
        raise ScalingError(f"factor {count} counts processors, but has values below 1: remove these points")
    shares: tuple[Share, ...] = ("divided", "undivided") if count else ("whole",)
    counted = [name for name in varying if name in OPERATIONS + AMOUNTS]
    found = [Feature()]
    if counted:
        found += [Feature(((name, 1),)) for name in counted if name in OPERATIONS]
        work: list[tuple[tuple[str, int], ...]] = [((name, 1),) for name in counted if name in AMOUNTS]
    else:
        work = _products([name for name in varying if name not in (count, *COMMUNICATED)]) or [()]
    found += [Feature(powers, share, count) for powers in work for share in shares if powers or share == "divided"]
    if count:
        found += [Feature(((name, 1),), "undivided", count) for name in COMMUNICATED if name in varying]
        found += [Feature((), "steps", count), Feature((), "pairs", count)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Sum:
    """t = sum of coefficient * feature, in nanoseconds, no coefficient negative."""

    features: tuple[Feature, ...]
    coefficients: tuple[float, ...]
    """Nanoseconds per unit of each feature."""

    def constants(self) -> tuple[Constant, ...]:
        """Nanoseconds per unit of each feature, most of them zero."""
        return tuple(
            Constant(feature.name if feature.name == CONSTANT else f"per {feature.name}", value, "ns")
            for feature, value in zip(self.features, self.coefficients, strict=True)
        )

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row."""
        used = [(feature, value) for feature, value in zip(self.features, self.coefficients, strict=True) if value]
        total = np.zeros(len(next(iter(columns.values()))))
        for feature, value in used:
            total += value * feature.column(columns)
        return total


def nearest_sum(chosen: tuple[Feature, ...], points: Points) -> Sum:
    """Non-negative least squares of relative residuals over features.

    Minimizes sum ((sum_k c_k f_k - t) / t)^2 subject to c_k >= 0. The bound alone keeps most coefficients at zero, so
    that many features do not overfit few points (Lawson and Hanson, "Solving Least Squares Problems", 1974, ch. 23).

    Raises
    ------
    ScalingError
        The solver gives up.
    """
    from scipy.optimize import nnls

    matrix = np.column_stack([feature.column(points.columns) for feature in chosen]) / points.ns[:, None]
    size = matrix.max(axis=0)
    size[size <= 0] = 1.0
    try:
        solution, _ = nnls(matrix / size, np.ones(len(points)))
    except RuntimeError as error:
        raise ScalingError(f"the coefficients of the model could not be computed ({error})") from None
    # Columns are scaled to a largest value of 1, so a coefficient is the largest share of the time it explains.
    solution = np.where(solution > _NOTHING, solution, 0.0)
    return Sum(chosen, tuple((solution / size).tolist()))


PHYSICAL = Form(
    "physical",
    Sum,
    fit=lambda points: nearest_sum(features(points), points),
    refit=lambda curve, points: nearest_sum(curve.features, points),
)
"""The sum of what the machine does that is nearest to points."""


def _products(names: Sequence[str]) -> list[tuple[tuple[str, int], ...]]:
    """Products of powers of factors, simplest first."""
    few = len(names) <= 3
    powers = [each for each in product(range(3 if few else 2), repeat=len(names)) if 0 < sum(each) <= (4 if few else 3)]
    powers.sort(key=lambda each: (sum(each), [-power for power in each]))
    return [tuple((name, power) for name, power in zip(names, each, strict=True) if power) for each in powers]
