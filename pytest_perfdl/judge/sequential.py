"""Looks at a growing series of rounds: when a paired test may decide, and what it then decides.

A look is a chance of a false alarm, so each costs: a test's level is split evenly over the looks at which it
may reject (Bonferroni), and at each look Holm's procedure runs over the suspects' smallest p-values so far.
Together they are one closed procedure: for a set of k true nulls, the chance that any of their p-values at any
of the L looks is at most alpha / (L k) is at most alpha; hence a suspect that an earlier look rejected counts
as rejected at every later one, and what it leaves to the others is theirs.

A look that cannot reject gets no share: n rounds never give less than 2**-n. Where a test's level asks for
more rounds than the first look has, rejecting starts later, and the share is split over fewer looks.
"Unchanged" has looks and a level of its own (an error of another kind), so that most tests still end at the
first look. Whatever stops early without rejecting (unchanged, futility) only removes alarms: it is free.

Everything here is a pure function of the rounds and works on one test or on thousands at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge.signedrank import least_rounds, p_above, positive_averages, tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOOKS = (10, 15, 20, 30)
UNCHANGED_ALPHA = 0.05
"""Share of the tests slower by more than their limit that may be called unchanged, over all looks."""
CONFIDENCE = 0.95
"""Of the intervals at all looks together: repeated confidence intervals (Jennison and Turnbull 1984)."""

UNDECIDED, REGRESSED, IMPROVED, UNCHANGED = range(4)


@dataclass(frozen=True, slots=True)
class Look:
    """A number of rounds after which something may be decided."""

    rounds: int
    rejects: bool
    clears: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """When to look, and at what level."""

    rejecting: tuple[int, ...]
    """Looks at which `regressed` and `improved` may be said; empty when the rounds allowed cannot show it."""
    clearing: tuple[int, ...]
    """Looks at which `unchanged` may be said."""
    level: float
    """Of the Holm procedure at one look."""
    suspects: int

    @classmethod
    def of(cls, alpha: float, suspects: int, most: int = LOOKS[-1]) -> Plan:
        """The looks of a test of this level with so many suspect metrics and at most `most` rounds.

        >>> Plan.of(0.005, 1).rejecting, Plan.of(0.005, 2).rejecting, Plan.of(0.00025, 2).rejecting
        ((10, 15, 20, 30), (11, 15, 20, 30), (15, 20, 30))

        Raises
        ------
        ValueError
            When the level is no probability above 0, or there is nothing to judge.
        """
        if not 0 < alpha < 1 or suspects < 1 or most < 1:
            raise ValueError(f"no test of level {alpha:g} with {suspects} suspects in {most} rounds")
        clearing = tuple(sorted({*(look for look in LOOKS if look < most), most}))
        for count in range(len(clearing), 0, -1):
            least = least_rounds(alpha / (suspects * count))
            if least <= most:
                rejecting = tuple(sorted({max(look, least) for look in clearing[-count:]}))
                return cls(rejecting, clearing, alpha / len(rejecting), suspects)
        return cls((), clearing, alpha, suspects)

    @property
    def all(self) -> tuple[int, ...]:
        """Every look, in order."""
        return tuple(sorted({*self.rejecting, *self.clearing}))

    @property
    def least(self) -> int:
        """The least number of rounds that can reject."""
        return self.rejecting[0] if self.rejecting else least_rounds(self.level / self.suspects)

    @property
    def clearing_level(self) -> float:
        """Of each of the two one-sided tests behind `unchanged`, at one look."""
        return UNCHANGED_ALPHA / len(self.clearing)

    @property
    def confidence(self) -> float:
        """Of one interval, so that those of all looks hold together."""
        return 1 - (1 - CONFIDENCE) / len(self.all)

    def until(self, rounds: int, *, ended: bool = False) -> tuple[Look, ...]:
        """The looks that `rounds` rounds have passed.

        When a budget `ended` the rounds between two looks, the next look is taken there, at its own level. The
        end must not depend on which side was slower; time spent does not, a round takes the same time with
        its labels exchanged.
        """
        looks = [Look(n, n in self.rejecting, n in self.clearing) for n in self.all if n <= rounds]
        if ended and rounds and (not looks or looks[-1].rounds < rounds < self.all[-1]):
            rejects = bool(self.rejecting) and rounds >= least_rounds(self.level / self.suspects)
            looks.append(Look(rounds, rejects, clears=True))
        return tuple(looks)


def holm(p: Floats, level: float) -> NDArray[np.bool_]:
    """Which hypotheses Holm's procedure rejects; those of one family run along the last axis."""
    order = np.argsort(p, axis=-1, kind="stable")
    bounds = level / np.arange(p.shape[-1], 0, -1)
    passed = np.logical_and.accumulate(np.take_along_axis(p, order, -1) <= bounds, axis=-1)
    rejected = np.empty(p.shape, np.bool_)
    np.put_along_axis(rejected, order, passed, -1)
    return rejected


def replay(
    worse: Floats, better: Floats, plan: Plan, looks: Sequence[Look]
) -> tuple[NDArray[np.int8], NDArray[np.int16]]:
    """What each suspect was decided to be, and after how many rounds (0 while undecided).

    Parameters
    ----------
    worse
        How far each round's head is past the limit on the log scale, shape (..., suspects, rounds): above zero
        is worse than the base by more than the limit.
    better
        The same with the sides exchanged: above zero is better by more than the limit.
    """
    decided = np.zeros(worse.shape[:-1], np.int8)
    when = np.zeros(worse.shape[:-1], np.int16)
    p_worse = np.ones(worse.shape[:-1])
    p_better = np.ones(worse.shape[:-1])
    for look in looks:
        slower, faster = worse[..., : look.rounds], better[..., : look.rounds]
        found = np.zeros_like(decided)
        if look.clears:
            within = np.maximum(p_above(-slower), p_above(-faster)) <= plan.clearing_level
            found[within] = UNCHANGED
        if look.rejects:
            p_worse = np.minimum(p_worse, p_above(slower))
            p_better = np.minimum(p_better, p_above(faster))
            found[holm(p_better, plan.level)] = IMPROVED
            found[holm(p_worse, plan.level)] = REGRESSED
        fresh = (decided == UNDECIDED) & (found != UNDECIDED)
        decided[fresh], when[fresh] = found[fresh], look.rounds
    return decided, when


def open_ended(worse: Floats, better: Floats, plan: Plan) -> NDArray[np.bool_]:
    """Whether further rounds could still decide, for each suspect; shapes as for `replay`.

    The most that a later look of m rounds can count is what there is now plus all averages with a new round
    in them, the ranks n + 1 to m. Levels are taken as wide as they can become, so "no" is certain.
    """
    drawn = worse.shape[-1]
    hopeful = np.zeros(worse.shape[:-1], np.bool_)
    for looks, level, series in (
        (plan.rejecting, plan.level, (worse,)),
        (plan.rejecting, plan.level, (better,)),
        (plan.clearing, plan.clearing_level, (-worse, -better)),
    ):
        counts = [positive_averages(each) for each in series]
        for rounds in (look for look in looks if look > drawn):
            added = (rounds * (rounds + 1) - drawn * (drawn + 1)) // 2
            table = tail(rounds)
            hopeful |= np.logical_and.reduce([table[count + added] <= level for count in counts])
    return hopeful
