"""The story of a matching: from what is certain to what is likely, each stage on what the earlier ones left."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching import fusion, order, same_name, same_operator
from pytest_perfdl.diff.matching.groups import Matching
from pytest_perfdl.diff.matching.matched import PartialMatching, PartsOfSide
from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.diff.matching.normalized import about

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_perfdl.diff.matching.groups import Group, Weighted
    from pytest_perfdl.diff.matching.names import Rules


def match(base: Sequence[Weighted], new: Sequence[Weighted], rules: Rules = NO_RULES) -> Matching:
    """Say which parts of one step are which of another's.

    Each side is in the order in which its parts first occur in the step. Every part of both is in exactly one group;
    kinds never mix. The stages, with the confidence of what they find:

    1. exact: equal parts, 1; equal but for the number of the user's line, 0.99, or for the line, 0.98.
    2. name: the same name in the same place (operators around, module, phase), 0.97; the same normalized name there
       and the same shapes, 0.95, or others, 0.92; in the same operator with the same shapes, the same name, 0.88, or
       normalized name, 0.85.
    3. operator: what one operator does in one place with the same shapes, 0.85. Place tells more than a name does, so
       this comes before names elsewhere.
    4. name: the same normalized name and shapes anywhere, 0.75; the same name, 0.7, or normalized name, 0.65.
    5. operator: what one operator does, with the same shapes, 0.7, or with the same operators around, 0.65; what the
       nearest operator that both have around does, 0.6.
    6. fused, split: a compiler's kernel and the operators that its name lists, 0.4 to 0.7 (`fusion.by_name`).
    7. aligned: in the order of the step, 0.6 (1 - cost), of pairs that cost less than 0.5 (`order.align`).
    8. fused, split: a compiler's kernel or region and what is left in its stead, 0.4, or in its module, 0.3; with all
       operators of its phase that are left then, 0.25 (`fusion.by_region`).
    9. added, gone: the rest, 1.

    Where several parts could be paired otherwise the confidence of stages 2, 4 and 5 is 0.9 times as much; n:m groups
    of stages 3 and 5 lose 5 % for each part beyond two, up to half.

    Exchanging the sides exchanges the sides of the groups and nothing else.
    """
    # Where two ways are equally good the stages take the one that the baseline side meets first: whichever side the
    # caller calls so, the same of the two must play that part.
    if _comes_first(new, base):
        return _matched(new, base, rules).exchanged()
    return _matched(base, new, rules)


def _matched(base: Sequence[Weighted], new: Sequence[Weighted], rules: Rules) -> Matching:
    ledger = PartialMatching(
        PartsOfSide(base, dict.fromkeys(range(len(base)))), PartsOfSide(new, dict.fromkeys(range(len(new))))
    )
    same_name.equal(ledger)
    for side in (ledger.base, ledger.new):
        side.known.update((place, about(side.parts[place], rules)) for place in side.left)
    for stage in (
        same_name.in_place,
        same_operator.in_place,
        same_name.elsewhere,
        same_operator.elsewhere,
        fusion.by_name,
        order.align,
        fusion.by_place,
        fusion.by_region,
    ):
        if ledger.base.left or ledger.new.left:
            stage(ledger)
    for place in list(ledger.base.left):
        ledger.enter((place,), (), "gone", 1.0)
    for place in list(ledger.new.left):
        ledger.enter((), (place,), "added", 1.0)
    groups = tuple(sorted(ledger.groups, key=_when))
    return Matching(groups, *_summary(groups, base, new))


def _summary(
    groups: Sequence[Group], base: Sequence[Weighted], new: Sequence[Weighted]
) -> tuple[float, tuple[Group, ...]]:
    """The coverage, and the groups with one side."""

    def ns(group: Group) -> float:
        return sum(base[place].ns for place in group.base) + sum(new[place].ns for place in group.new)

    alone = [group for group in groups if not (group.base and group.new)]
    matched = sum(ns(group) for group in groups if group.base and group.new)
    every = matched + sum(map(ns, alone))
    return matched / every if every else 1.0, tuple(sorted(alone, key=lambda group: -ns(group)))


def _when(group: Group) -> tuple[int, int, bool]:
    """Where in the step a group is: by its first part on either side."""
    firsts = sorted(places[0] for places in (group.base, group.new) if places)
    return firsts[0], firsts[-1], not group.base


def _comes_first(side: Sequence[Weighted], other: Sequence[Weighted]) -> bool:
    """Whether one of two sequences comes before the other, by what they hold."""
    for mine, theirs in zip(side, other, strict=False):
        if mine != theirs:
            return _fields(mine) < _fields(theirs)
    return len(side) < len(other)


def _fields(each: Weighted) -> tuple[object, ...]:
    return (*(getattr(each.part, field.name) for field in fields(each.part)), each.count, each.ns)
