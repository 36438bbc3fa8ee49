"""Round places for the marks of an axis."""

from __future__ import annotations

import math


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round values within a range, at most `most` of them, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(40.9, 45.2)
    [42.0, 44.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]
