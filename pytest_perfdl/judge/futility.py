"""Whether more rounds can be expected to show a regression: conditional power, which may stop a test but not decide it.

Most suspects of a screen are chance. Their rounds soon lie so far within the limit that a regression is out of reach
for any likely future, long before the last look proves it or "unchanged" is shown. To stop there removes alarms only,
so no level is spent (non-binding futility: Jennison and Turnbull, Group Sequential Methods, 2000, section 10.2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from pytest_perfdl.judge import signedrank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST = 5
"""Rounds below which a trend is not looked at."""
LEAST_POWER = 0.05
"""A suspect with less conditional power at every look to come is given up."""
OPTIMISM = 0.95
"""The future is taken to be as bad as the upper bound of this confidence for the mean of the rounds so far."""
_RANKS = math.sqrt(math.pi / 3)
"""How much more the signed-rank test asks for than that of the mean, for normal noise."""
_MAD = 1.4826
"""Of a normal deviation to the median absolute one."""


def hopeful(past: Floats, looks: Sequence[int], level: float) -> NDArray[np.bool_]:
    """Whether each suspect's rounds may yet lead to a rejection, were they to go on as badly as they plausibly do.

    With n rounds of centre x (Hodges-Lehmann) and standard deviation s, the mean of the r rounds to the look at
    m = n + r is taken to be normal about d = x + z_OPTIMISM s / sqrt(n) with the deviation s / sqrt(r). Rejecting takes
    a mean of all of at least c = sqrt(pi / 3) z_(1 - level) s' / sqrt(m), so the conditional power is
    Phi((n x + r d - m c) / (s sqrt(r))). s' is the deviation without spikes, which ranks do not mind: from the median
    absolute deviation, at least s / 2 and at most s.

    Of synthetic suspects with 5 % noise a round, unchanged ones are given up after 6 rounds in the mean instead of 29,
    and as many of those slower by 5, 10 and 20 % are found; where a neighbour doubles one round in ten, 75 % of those
    slower by 10 % instead of 86 % (`benchmarks/decision_quality/synthetic.py`).

    Parameters
    ----------
    past
        How far each round is past the limit on the log scale, shape (..., rounds).
    looks
        Numbers of rounds at which the test may reject.
    level
        Of the test at one look.

    Returns
    -------
    Array of shape (...): `True` with fewer than `FEWEST` rounds, and `False` when no look is to come.
    """
    drawn = past.shape[-1]
    found = np.zeros(past.shape[:-1], np.bool_)
    if drawn < FEWEST:
        return ~found
    middle = np.median(past, axis=-1, keepdims=True)
    spread = np.maximum(past.std(axis=-1, ddof=1), np.finfo(np.float64).tiny)
    quiet = np.clip(_MAD * np.median(np.abs(past - middle), axis=-1), spread / 2, spread)
    center = signedrank.center(signedrank.averages(past))
    trend = center + ndtri(OPTIMISM) * spread / math.sqrt(drawn)
    for look in (look for look in looks if look > drawn):
        left = look - drawn
        needed = _RANKS * ndtri(1 - level) * quiet * math.sqrt(look)
        found |= ndtr((drawn * center + left * trend - needed) / (spread * math.sqrt(left))) >= LEAST_POWER
    return found
