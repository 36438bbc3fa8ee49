"""Quantiles of samples, and of the distributions that intervals use."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile of a non-empty sample, with linear interpolation (Hyndman and Fan's type 7, as numpy's).

    >>> quantile([0.01, 0.03, 0.02], 0.99), quantile([40, 10, 30, 20, 50], 0.25)
    (0.0298, 20.0)
    """
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's distribution; of the normal one for infinite degrees of freedom.

    >>> round(student(0.975, 10), 3), round(student(0.975, math.inf), 3)
    (2.228, 1.96)
    """
    # Imported here: whoever only measures has no need of it.
    from scipy.special import ndtri, stdtrit

    return float(ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability))
