"""Which of several differences make a step slow: as few as do, found with few trials.

One culprit is the usual case, so halving comes first: the half that is slow goes on, and where the first half
is not, the other one is taken to be, without a trial. What is left in the end is tried. Where that shows that no single
half is slow, since several differences act together, delta debugging decides (Zeller and Hildebrandt, IEEE Trans.
Software Eng. 2002, "Simplifying and isolating failure-inducing input", the algorithm ddmin): its result is slow, and
without any one of its members it is not, as far as trials could tell. For one difference of n, halving takes
ceil(log2 n) + 1 trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Chosen = frozenset[str]
Trial = Callable[[Chosen], bool | None]
"""Whether a step with these differences is slow; `None` if that could not be told."""


@dataclass(frozen=True, slots=True)
class Search:
    """The end of a search."""

    culprits: Chosen
    """The set that is slow, and was tried."""
    is_smallest: bool
    """Whether every smaller one that the search came to was not slow; false where trials could not tell."""


def culprit_set(differing: Sequence[str], trial: Trial, likely: Sequence[str] = ()) -> Search:
    """Find a smallest set of differences that make the step slow.

    Parameters
    ----------
    differing
        All of them, at least one. Together they are slow, and none of them is not: neither is tried.
    trial
        Tries a set. No set is tried twice.
    likely
        Those of them that are suspected for another reason, the most likely first: each is tried alone, first.
    """
    search = _Searching(tuple(differing), trial)
    for name in likely:
        if search.is_slow(frozenset((name,))):
            return Search(frozenset((name,)), is_smallest=True)
    rest = [name for name in differing if name not in likely]
    # What is suspected was tried alone, and comes last: another one is the culprit, or it acts together with others.
    return search.run([*rest, *likely])


class _Searching:
    def __init__(self, differing: Sequence[str], trial: Trial) -> None:
        self._trial = trial
        self._known: dict[Chosen, bool | None] = {frozenset(): False, frozenset(differing): True}

    def is_slow(self, chosen: Chosen) -> bool | None:
        if chosen not in self._known:
            self._known[chosen] = self._trial(chosen)
        return self._known[chosen]

    def run(self, differing: Sequence[str]) -> Search:
        slow, left = list(differing), list(differing)
        while len(left) > 1:
            first, second = left[: len(left) // 2], left[len(left) // 2 :]
            found = self.is_slow(frozenset(first))
            if found is None:
                found = False if self.is_slow(frozenset(second)) else None
            if found is None:
                break
            left = first if found else second
            if self._known.get(frozenset(left)):
                slow = left
        if len(left) == 1 and self.is_slow(frozenset(left)):
            return Search(frozenset(left), is_smallest=True)
        return self._ddmin(slow)

    def _ddmin(self, slow: list[str]) -> Search:
        parts = 2
        while len(slow) > 1:
            subsets = _split(slow, parts)
            complements = [[name for name in slow if name not in subset] for subset in subsets]
            smaller = next((each for each in subsets if self.is_slow(frozenset(each))), None)
            if smaller is not None:
                slow, parts = smaller, 2
                continue
            # Of two parts, each is the complement of the other.
            less = next((each for each in complements if parts > 2 and self.is_slow(frozenset(each))), None)
            if less is not None:
                slow, parts = less, max(parts - 1, 2)
            elif parts >= len(slow):
                break
            else:
                parts = min(2 * parts, len(slow))
        singles = [frozenset(slow) - {name} for name in slow]
        told = len(slow) == 1 or all(self._known.get(each) is False for each in singles)
        return Search(frozenset(slow), is_smallest=told)


def _split(names: Sequence[str], parts: int) -> list[list[str]]:
    """As equal parts as possible, in order.

    >>> _split(["a", "b", "c", "d", "e"], 2)
    [['a', 'b'], ['c', 'd', 'e']]
    """
    ends = [len(names) * number // parts for number in range(parts + 1)]
    return [list(names[start:end]) for start, end in itertools.pairwise(ends)]
