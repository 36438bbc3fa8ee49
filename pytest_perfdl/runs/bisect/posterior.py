"""How probable each commit or set of changes is to be the one: before any measurement, and after each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.model.untrusted_files import function_bodies
from pytest_perfdl.results.verdict import SourceDiff
from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.stats.evidence import Estimate
from pytest_perfdl.system.git import content

# The rule: what measured commits say about which commit is the first slow one, and what to measure next.
#
# The hypotheses are H_k, "commit k is the first slow one", for k = 1 to n. Commit 0 is the good end, which is not slow,
# and commit n the bad one, which is: the ends were measured before and differ. Under H_k, commit j is slow if j >= k.
# So a measured commit multiplies the probability of every H_k with k <= j by its odds of being slow, and
#
#     P(H_k | measurements)  ~  prior_k * product of odds_j over all measured j >= k.
#
# This is probabilistic bisection (Horstein, IEEE Trans. Inf. Theory 1963, "Sequential transmission using noiseless
# feedback"; Waeber, Frazier, Henderson, SIAM J. Control Optim. 2013, "Bisection search with noisy responses"): the next
# commit is the one that divides the probability most evenly, and may be one that was measured before, since odds that
# are not clear enough get clearer with more rounds. With exact odds it is plain bisection.
#
# *Odds* of a commit are those of its pooled rounds against the good end: P(slowdown > half of the end's) to P(not), by
# `stats.evidence.Estimate`. They are clipped at 1,000,000 to 1, so that other commits can still outweigh them, however
# sure the model of the noise is. Half of the end's effect is the boundary where a step of the whole size is farthest
# from either side.
#
# *Error rate.* Measuring stops at a probability of 99.9 %, so a commit that is named is a wrong one in at most 1 of
# 1,000 searches if the odds are right: the threshold bounds the error at whatever time the search stops (the posterior
# is a martingale). Two commits decide, the named one and the one before it: each has to reach about 2,000 to 1.
# Simulated, 64 commits and 8 rounds a measurement: of a slowdown of twice the noise of a round, 399 of 400 searches
# name the commit, of one of 1.5 times the noise 352, and none a wrong one; the others leave a range with the commit in
# it, two find no difference. On recorded rounds: `benchmarks/bisect/README.md`. Odds that are too sure, such as those
# of a machine whose speed differs between checkouts, are what the bound does not cover: the named commit is therefore
# compared with its parent at the end, and is not named if that shows no slowdown.
#
# *Commits that cannot be measured* separate nothing: the commits from one of them up to the next measurable one are one
# candidate, and if there are several in it the answer is a range.


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


# How probable each commit is before it is measured, from the files and functions that it changes.


FUNCTION, FILE, DOCUMENTS = 20.0, 3.0, 0.1
"""Weight of a commit that changes a blamed function, another part of its file, and nothing but documents; else 1."""
UNIFORM = 0.25
"""Share that is divided evenly: no commit has less than a quarter of what it would have without a prior. A search
divides the probability by two with a commit, so a prior that misleads costs two more commits at most."""
_TEXTS = (".md", ".rst", ".txt", ".ipynb", ".png", ".svg")


@dataclass(frozen=True, slots=True)
class Blamed:
    """Where the causes of the whole change are: pairs of a file and a function's name."""

    functions: frozenset[tuple[str, str]]

    @property
    def files(self) -> frozenset[str]:
        """Their files, as the end of a path."""
        return frozenset(file for file, _ in self.functions)

    @classmethod
    def of(cls, blame: Iterable[Mapping[str, Any]], diffs: Iterable[SourceDiff]) -> Blamed:
        """From the causes and source diffs of the bad end against the good one."""
        found = {(each.file, each.function.rpartition(".")[2]) for each in diffs}
        for each in blame:
            if match := FRAME.fullmatch(str(each.get("line", ""))):
                found.add((match["path"], match["function"].rpartition(".")[2]))
        return cls(frozenset(found))


def prior_of(history: History, blamed: Blamed, laid_over: Iterable[str] = ()) -> tuple[float, ...]:
    """The probability of the commits 1 to n.

    Parameters
    ----------
    laid_over
        Files that every commit runs in the version of one of them, from the top of the repository: a commit that
        changes nothing else changes nothing that is measured.
    """
    same = frozenset(laid_over)
    weights = [
        _weight(history.top, before, commit, blamed, same)
        for before, commit in zip(history.commits, history.commits[1:], strict=False)
    ]
    return mixed(weights)


def mixed(weights: Sequence[float]) -> tuple[float, ...]:
    """Probabilities in proportion to weights, `UNIFORM` of them divided evenly.

    >>> [round(each, 3) for each in mixed([1, 1, 18])]
    [0.121, 0.121, 0.758]
    """
    even = uniform(len(weights))
    return tuple(
        UNIFORM * each + (1 - UNIFORM) * weight / sum(weights) for each, weight in zip(even, weights, strict=True)
    )


def _weight(top: Path, before: Commit, commit: Commit, blamed: Blamed, laid_over: frozenset[str]) -> float:
    code = [file for file in commit.files if file not in laid_over and not file.endswith(_TEXTS)]
    if not code:
        return DOCUMENTS
    touched = [file for file in code if any(_ends_with(file, each) for each in blamed.files)]
    if any(_changes(top, before, commit, file, blamed) for file in touched):
        return FUNCTION
    return FILE if touched else 1.0


def _changes(top: Path, before: Commit, commit: Commit, file: str, blamed: Blamed) -> bool:
    """Whether one of the blamed functions of a file is another after the commit."""
    names = {name for each, name in blamed.functions if _ends_with(file, each)}
    old, new = (
        {key: code for key, code in _functions(top, each, file).items() if key[1] in names} for each in (before, commit)
    )
    return old != new


def _functions(top: Path, commit: Commit, file: str) -> dict[tuple[str, str], list[str]]:
    if commit.is_working_tree:
        path = top / file
        return function_bodies(path.read_bytes()) if path.is_file() else {}
    return function_bodies(content(top, commit.sha, file) or b"")


def _ends_with(file: str, end: str) -> bool:
    """Whether a path is, or ends with, another: a line of a cause has a path from an entry of `sys.path`."""
    return file == end or file.endswith(f"/{end}")


# Which of several differences make a step slow: as few as do, found with few trials.
#
# One culprit is the usual case, so halving comes first: the half that is slow goes on, and where the first half is not,
# the other one is taken to be, without a trial. What is left in the end is tried. Where that shows that no single half
# is slow, since several differences act together, delta debugging decides (Zeller and Hildebrandt, IEEE Trans. Software
# Eng. 2002, "Simplifying and isolating failure-inducing input", the algorithm ddmin): its result is slow, and without
# any one of its members it is not, as far as trials could tell. For one difference of n, halving takes ceil(log2 n) + 1
# trials.


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
