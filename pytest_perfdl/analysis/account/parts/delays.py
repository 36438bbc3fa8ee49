"""Time during which other processes used the CPU, excluded from the parts of a step in which it was.

The scheduler says how long a step's thread waited for a processor, not when. But a wait is one piece, as a rule of
several milliseconds, so the part that it fell into is the one that is longer by it than in the other steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_perfdl.analysis.account.parts.sums import StepParts

LEAST_NS = 500_000
"""Shorter waits are left where they are: parts differ by as much of themselves."""
FEWEST_STEPS = 3
"""With fewer steps nothing says what a part usually takes."""


def without_delays(found: StepParts, delays_ns: Sequence[int]) -> StepParts:
    """The same steps without what others took of them, as far as the parts show where.

    In each step with a delay of at least `LEAST_NS` that is taken off the part that is longest beyond its median in the
    other steps, by no more than what is beyond, then off the next. Parts that not all steps have are left alone: these
    are longer for reasons of their own. Steps on a device are, too: there the host's delay may have cost nothing.

    Parameters
    ----------
    delays_ns
        For each step how long its thread waited for a processor, nanoseconds.
    """
    steps = len(found.step_ns)
    if found.on_device or steps < FEWEST_STEPS or len(delays_ns) != steps:
        return found
    ns, busy = found.ns.copy(), found.busy_ns.copy()
    everywhere = (found.ns > 0).all(axis=1)
    for step in range(steps):
        left = delays_ns[step]
        usual = np.median(np.delete(found.ns, step, axis=1), axis=1)
        beyond = np.where(everywhere, found.ns[:, step] - usual, 0).astype(np.int64)
        for part in np.argsort(-beyond, kind="stable").tolist():
            if min(left, beyond[part]) < LEAST_NS:
                break
            taken = min(left, int(beyond[part]))
            ns[part, step] -= taken
            busy[part, step] = max(busy[part, step] - taken, 0)
            left -= taken
    return replace(found, step_ns=ns.sum(axis=0), ns=ns, busy_ns=busy)
