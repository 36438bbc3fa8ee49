"""The stages that go by order and likeness: pairs within a class, and the alignment of what no class joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching.likeness import UNIT, cheapest_in_order, costs

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from pytest_perfdl.diff.matching.matched import PartialMatching
    from pytest_perfdl.diff.matching.normalized import About

MOST = 700
"""Parts a side that are aligned, those that take most time: a table of both sides' is half a million
cells."""
EVENLY = 0.5
"""Least cost that is too much. More of what is known must speak for a pair than against it: two names that share no
word (`likeness.NAME`) are a pair only where next to everything else agrees."""
WHATEVER = 10.0
"""A limit above any cost: as many pairs as there can be."""
ALIGNED = 0.6
"""Confidence of an aligned pair that nothing speaks against."""


def pairs(ledger: PartialMatching, base: Sequence[int], new: Sequence[int], limit: float) -> list[tuple[int, int]]:
    """Pair the places of one class: one and one as they are, else in order by cost, below the limit.

    As many on both sides are paired the k-th with the k-th where there is no limit, as are more than `MOST`.
    """
    if len(base) == len(new) == 1:
        return [(base[0], new[0])]
    if limit == WHATEVER and (len(base) == len(new) or max(len(base), len(new)) > MOST):
        return list(zip(base, new, strict=False))
    return [(mine, theirs) for mine, theirs, _ in _by_cost(ledger, base, new, limit)]


def align(ledger: PartialMatching) -> None:
    """Pair what is left in the order of the step, kind by kind, where more speaks for a pair than against it.

    A pair's confidence is `ALIGNED` times one minus its cost. Idle time is not aligned: what a program now does is not
    what it did before because it takes as long.
    """
    mine, theirs = ledger.base.classes(_kind), ledger.new.classes(_kind)
    for kind, places in mine.items():
        if kind in theirs:
            for base, new, cost in _by_cost(ledger, places, theirs[kind], EVENLY):
                ledger.enter((base,), (new,), "aligned", ALIGNED * (1 - cost))


def _by_cost(
    ledger: PartialMatching, base: Sequence[int], new: Sequence[int], limit: float
) -> list[tuple[int, int, float]]:
    mine, theirs = ledger.base.largest(base, MOST), ledger.new.largest(new, MOST)
    cost = costs([ledger.base.known[place] for place in mine], [ledger.new.known[place] for place in theirs])
    return [
        (mine[row], theirs[column], int(cost[row, column]) / UNIT) for row, column in cheapest_in_order(cost, limit)
    ]


def _kind(each: About) -> Hashable:
    return each.part.kind if each.part.kind != "idle" else None
