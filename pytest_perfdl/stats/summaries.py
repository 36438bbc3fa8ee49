"""Statistics of a sample of times, as pytest-benchmark defines and names them."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any


def summarize(data: Sequence[float]) -> dict[str, Any]:
    """The statistics of pytest-benchmark, by its definitions (`pytest_benchmark.stats.Stats`), in seconds.

    Quartiles are medians of the halves of an even number of values, and method 3 of Wikipedia's "Quartile" for an odd
    number.
    """
    values, count = sorted(data), len(data)
    total, mean = sum(data), statistics.mean(data)
    deviation = statistics.stdev(data) if count > 1 else 0
    low, high = _quartiles(values)
    spread = high - low
    floor, ceiling = low - 1.5 * spread, high + 1.5 * spread
    far = sum(not mean - deviation <= value <= mean + deviation for value in data)
    outliers = sum(not floor <= value <= ceiling for value in data)
    return {
        "min": values[0],
        "max": values[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": count,
        "median": statistics.median(data),
        "iqr": spread,
        "q1": low,
        "q3": high,
        "iqr_outliers": outliers,
        "stddev_outliers": far,
        "outliers": f"{far};{outliers}",
        "ld15iqr": values[bisect_left(values, floor)],
        "hd15iqr": values[bisect_right(values, ceiling) - 1],
        "ops": count / total if total else 0,
        "total": total,
        "data": list(data),
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    if count == 1:
        return values[0], values[0]
    if count % 2 == 0:
        return statistics.median(values[: count // 2]), statistics.median(values[count // 2 :])
    part = count // 4
    if count % 4 == 1:
        return (
            0.25 * values[part - 1] + 0.75 * values[part],
            0.75 * values[3 * part] + 0.25 * values[3 * part + 1],
        )
    return (
        0.75 * values[part] + 0.25 * values[part + 1],
        0.25 * values[3 * part + 1] + 0.75 * values[3 * part + 2],
    )
