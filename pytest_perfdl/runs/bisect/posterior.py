"""The rule: what measured commits say about which commit is the first slow one, and what to measure next.

The hypotheses are H_k, "commit k is the first slow one", for k = 1 to n. Commit 0 is the good end, which is not slow,
and commit n the bad one, which is: the ends were measured before and differ. Under H_k, commit j is slow if j >= k. So
a measured commit multiplies the probability of every H_k with k <= j by its odds of being slow, and

    P(H_k | measurements)  ~  prior_k * product of odds_j over all measured j >= k.

This is probabilistic bisection (Horstein, IEEE Trans. Inf. Theory 1963, "Sequential transmission using noiseless
feedback"; Waeber, Frazier, Henderson, SIAM J. Control Optim. 2013, "Bisection search with noisy responses"): the next
commit is the one that divides the probability most evenly, and may be one that was measured before, since odds that are
not clear enough get clearer with more rounds. With exact odds it is plain bisection.

*Odds* of a commit are those of its pooled rounds against the good end: P(slowdown > half of the end's) to P(not), by
`stats.evidence.Estimate`. They are clipped at 1,000,000 to 1, so that other commits can still outweigh them, however
sure the model of the noise is. Half of the end's effect is the boundary where a step of the whole size is farthest from
either side.

*Error rate.* Measuring stops at a probability of 99.9 %, so a commit that is named is a wrong one in at most 1 of 1,000
searches if the odds are right: the threshold bounds the error at whatever time the search stops (the posterior is a
martingale). Two commits decide, the named one and the one before it: each has to reach about 2,000 to 1. Simulated, 64
commits and 8 rounds a measurement: of a slowdown of twice the noise of a round, 399 of 400 searches name the commit, of
one of 1.5 times the noise 352, and none a wrong one; the others leave a range with the commit in it, two find no
difference. On recorded rounds: `benchmarks/bisect/README.md`. Odds that are too sure, such as those of a machine whose
speed differs between checkouts, are what the bound does not cover: the named commit is therefore compared with its
parent at the end, and is not named if that shows no slowdown.

*Commits that cannot be measured* separate nothing: the commits from one of them up to the next measurable one are one
candidate, and if there are several in it the answer is a range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_perfdl.stats.evidence import Estimate

SURE = 0.999
"""Probability at which a commit is named."""
CLIP = math.log(1e6)
"""Largest log odds of one commit, by time."""
EXACT = math.log(1e12)
"""Log odds of a commit whose counts say it."""
_NOTHING = 1e-4
"""A commit that divides less probability than this from the rest is not worth a measurement."""
_IMPOSSIBLE = 1e-100
_NEW = 0.5
"""A commit that was not measured yet has to divide this much better than one whose checkout is there."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Successive commits that no measurable one separates, and the probability that the first slow one is of them."""

    first: int
    last: int
    probability: float

    @property
    def commits(self) -> range:
        """Their numbers."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Posterior:
    """The probability of every commit being the first slow one.

    Parameters
    ----------
    prior
        Of the commits 1 to n, with a sum of 1.
    log_odds
        Of commits that were measured, by number: above zero for slow.
    skipped
        Commits that cannot be measured.
    """

    prior: tuple[float, ...]
    log_odds: Mapping[int, float] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()

    @property
    def last(self) -> int:
        """Number of the bad end."""
        return len(self.prior)

    @cached_property
    def probabilities(self) -> tuple[float, ...]:
        """Of the commits 1 to n."""
        logs, odds = [0.0] * self.last, 0.0
        for k in range(self.last, 0, -1):
            odds += self.log_odds.get(k, 0.0)
            logs[k - 1] = math.log(self.prior[k - 1]) + odds
        most = max(logs)
        weights = [math.exp(each - most) for each in logs]
        return tuple(each / sum(weights) for each in weights)

    @property
    def candidates(self) -> list[Candidate]:
        """All of them, in the order of the history."""
        ends = [j for j in range(1, self.last + 1) if j == self.last or j not in self.skipped]
        starts = [1, *(end + 1 for end in ends)]
        return [
            Candidate(first, last, sum(self.probabilities[first - 1 : last]))
            for first, last in zip(starts, ends, strict=False)
        ]

    @property
    def best(self) -> Candidate:
        """The most probable one."""
        return max(self.candidates, key=lambda each: each.probability)

    @property
    def is_sure(self) -> bool:
        """Whether nothing is left to measure: further rounds would separate no commits that still matter."""
        return self.best.probability >= SURE

    @property
    def likely(self) -> list[Candidate]:
        """As few as have a probability of `SURE` together, in the order of the history."""
        found: list[Candidate] = []
        for each in sorted(self.candidates, key=lambda each: -each.probability):
            if sum(other.probability for other in found) >= SURE:
                break
            found.append(each)
        return sorted(found, key=lambda each: each.first)

    def after(self, number: int) -> Posterior:
        """The posterior if a commit is as fast as the good end whatever was before it: of the later ones alone."""
        prior = tuple(_IMPOSSIBLE if k <= number else each for k, each in enumerate(self.prior, start=1))
        later = {j: odds for j, odds in self.log_odds.items() if j > number}
        return Posterior(prior, {**later, number: -EXACT}, self.skipped)

    def next_commit(self, exhausted: Iterable[int] = ()) -> int | None:
        """The commit that divides the probability most evenly; `None` if none is worth measuring.

        Parameters
        ----------
        exhausted
            Commits that are not to be measured again.
        """
        left = {*self.skipped, *exhausted, *(j for j, odds in self.log_odds.items() if abs(odds) >= CLIP)}
        best, most = None, _NOTHING
        before = 0.0
        for j in range(1, self.last):
            before += self.probabilities[j - 1]
            even = min(before, 1 - before) * (1 if j in self.log_odds else _NEW)
            if j not in left and even > most:
                best, most = j, even
        return best


def uniform(last: int) -> tuple[float, ...]:
    """The same probability for the commits 1 to `last`."""
    return (1 / last,) * last


def odds_of_rounds(differences: Iterable[float], effect: float) -> float:
    """Log odds, clipped, that rounds show a slowdown of more than half of an effect.

    Parameters
    ----------
    differences
        log(commit / good end) of each round, of all measurements of the commit.
    effect
        The bad end's, on the log scale.

    >>> round(odds_of_rounds([0.05, 0.04, 0.06], 0.05), 1), round(odds_of_rounds([0.0, 0.01, -0.01], 0.05), 1)
    (3.9, -3.9)
    """
    over = Estimate(tuple(differences)).over(effect / 2)
    return max(-CLIP, min(CLIP, _log_odds(over)))


def _log_odds(probability: float) -> float:
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else math.log(probability) - math.log1p(-probability)
