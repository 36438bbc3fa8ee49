"""How a suite's chance of a false alarm is shared between the tests that go to confirmation.

pytest judges tests one after the other, so Holm's procedure over all suspects of a suite is impossible: the
first verdict stands before the last suspect is known. Instead test j gets alpha * w_j, from weights that are
fixed beforehand and sum to one (alpha spending), and a test all of whose suspects were confirmed passes its
level on to the next (online fallback, Tian and Ramdas 2021): what really got slower costs the rest nothing.

Why the chance of any false alarm stays below alpha, whatever the tests have in common: let i1 < i2 < ... be
the tests with a suspect that did not get worse than its limit. Until the first of them is wrongly called
`regressed`, none of them has passed anything on; so the level of ik is at most alpha times w_ik plus the
weights of the truly slower tests between ik-1 and ik. These shares do not overlap and sum to at most alpha.
And at whatever level its past has given it, a test keeps that level: its rounds are fresh processes whose
order was drawn by new coins, so given everything that happened before, the screen's choice of suspects, their
number and the looks that the level allows included, the signs of its rounds are still fair (`rounds`).

The weights, from a study of 5 % slowdowns with a limit of 3 %, noise of 1.6 % a round, two metrics, 30 rounds
(found in % of 4000 simulated tests, with mean rounds to the verdict; suites of 20):

    weight of test j             1st        5th        20th
    1 / (j (j + 1))              99 (18.0)  93 (24.1)  77 (27.5)
    c / ((j + 1) log(j + 1)^2)   99 (17.9)  92 (24.4)  77 (27.6)
    c / j^1.5                    99 (19.0)  93 (23.9)  80 (27.4)
    1 / 20                       95 (23.1)  96 (23.0)  95 (23.1)
    half 1/20, half the first    98 (19.5)  94 (23.1)  92 (24.4)

A smaller level costs rounds only as its logarithm. So after a screen, which leaves few suspects, half is shared
evenly and half favours the first; without a screen, where every test is confirmed, it is shared evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FAMILY_ALPHA = 0.005
"""A suite's chance of a false alarm from times of steps, and again from kernels: 1 % together."""


@dataclass(frozen=True, slots=True)
class Spending:
    """The levels of a suite's confirmations.

    Raises
    ------
    ValueError
        When the suite has no test.
    """

    tests: int
    """How many may need confirming: all that were collected, known before the first is measured."""
    screened: bool = True
    """Whether only suspects of a screen are confirmed; without one (`--perf-against`) all tests are."""
    alpha: float = FAMILY_ALPHA

    def __post_init__(self) -> None:
        if self.tests < 1:
            raise ValueError(f"no level for a suite of {self.tests} tests")

    def weight(self, number: int) -> float:
        """Share of the `number`-th test that goes to confirmation, from 1; nothing after the last.

        >>> [round(Spending(4).weight(j), 3) for j in range(1, 6)], Spending(4, screened=False).weight(3)
        ([0.438, 0.229, 0.177, 0.156, 0.0], 0.25)
        """
        if not 1 <= number <= self.tests:
            return 0.0
        even = 1 / self.tests
        if not self.screened:
            return even
        # The sum of 1 / (j (j + 1)) up to n is n / (n + 1).
        return even / 2 + (self.tests + 1) / self.tests / (2 * number * (number + 1))

    def level(self, past: Sequence[bool]) -> float:
        """The level of the next test to be confirmed.

        Parameters
        ----------
        past
            For every test that was confirmed before, in order, whether all its suspects were found `regressed`.

        Raises
        ------
        ValueError
            When more tests go to confirmation than were announced: the alpha is spent.
        """
        number = len(past) + 1
        if number > self.tests:
            raise ValueError(f"a suite of {self.tests} tests confirms no {number} of them: its alpha is spent")
        share = self.weight(number)
        for earlier in range(len(past), 0, -1):
            if not past[earlier - 1]:
                break
            share += self.weight(earlier)
        return self.alpha * share
