"""The stages that go by what launched a kernel: all kernels below one operator on both sides are the same work."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching.order import WHATEVER, pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pytest_perfdl.diff.matching.matched import PartialMatching, PartsOfSide
    from pytest_perfdl.diff.matching.normalized import About

MOST = 16
"""Parts of both sides in a group: what one operator does. More say that it was no operator but a region."""
CROWDED = 0.05
"""What each part beyond two takes from a group's confidence, down to half of it."""
_ONE_THING = re.compile(r"(?!autograd::|torch::)\w+(?:::\w+)+|\w+Backward")
"""What does one thing, so that all below it is one work: not a region, an
optimizer's step, or the engine's evaluation of a node, which also sums gradients."""


def in_place(ledger: PartialMatching) -> None:
    """Group what one operator does in one place, with the same shapes: one with one, or n with m.

    Then a kernel that has no other side joins the pair that its operator has, if that is the only one and its kernel
    was exchanged for another: the second kernel is a part of that exchange (a product whose k is now split, and the
    sum over the pieces).
    """
    theirs = ledger.new.classes(_place)
    for place, mine in ledger.base.classes(_place).items():
        if place in theirs:
            _group(ledger, mine, theirs[place], 0.85)
    _join_pairs(ledger)


def elsewhere(ledger: PartialMatching) -> None:
    """Group what one operator does elsewhere: with the same shapes, or with the same operators around.

    Last comes what is below the nearest operator that both sides have around, whatever it hands the work to.
    """
    _by_instance(ledger, _operator_with_shapes, 0.7)
    _by_instance(ledger, _path, 0.65)
    _below_common_operators(ledger)


def _group(ledger: PartialMatching, base: Sequence[int], new: Sequence[int], confidence: float) -> None:
    """Enter the parts as a group, unless they are no one operator's."""
    each = ledger.base.known[base[0]]
    count = len(base) + len(new)
    if (_is_operator(each.operator) and count <= MOST) or (count == 2 and each.part.shapes):
        ledger.enter(base, new, "operator", confidence * max(0.5, 1 - CROWDED * (count - 2)))


def _join_pairs(ledger: PartialMatching) -> None:
    pairs_of: dict[Hashable, list[int]] = {}
    for number, group in enumerate(ledger.groups):
        if group.by == "name" and len(group.base) == len(group.new) == 1:
            base, new = ledger.base.known[group.base[0]], ledger.new.known[group.new[0]]
            if base.part.kind == "kernel" and base.place == new.place and base.exact != new.exact:
                pairs_of.setdefault(base.place, []).append(number)
    mine, theirs = ledger.base.classes(_place), ledger.new.classes(_place)
    for place, numbers in pairs_of.items():
        alone = (mine.get(place, []), theirs.get(place, []))
        more = len(alone[0]) + len(alone[1])
        if len(numbers) == 1 and more and not all(alone) and more + 2 <= MOST:
            confidence = 0.85 * max(0.5, 1 - CROWDED * more)
            ledger.join(numbers[0], *alone, "operator", confidence)


def _by_instance(ledger: PartialMatching, key: Callable[[About], Hashable], confidence: float) -> None:
    """Pair the places of one key in order, and group what each pair of places holds."""
    mine, theirs = ledger.base.classes(key), ledger.new.classes(key)
    for value, places in mine.items():
        if value not in theirs:
            continue
        base, new = _instances(ledger.base, places), _instances(ledger.new, theirs[value])
        sure = 1.0 if len(base) == len(new) == 1 else 0.9
        for first, second in pairs(ledger, [*base], [*new], WHATEVER):
            _group(ledger, base[first], new[second], confidence * sure)


def _below_common_operators(ledger: PartialMatching) -> None:
    """The deepest operator on both sides' paths first; as many places below it on both sides are paired in order."""
    sides = ledger.base, ledger.new
    deepest = min(max((len(side.known[place].path) for place in side.left), default=0) for side in sides)
    for depth in range(deepest, 0, -1):

        def ancestor(each: About, depth: int = depth) -> Hashable:
            if len(each.path) < depth or not _is_operator(each.path[depth - 1]):
                return None
            return (each.part.kind, each.path[:depth], each.part.module, each.part.phase)

        mine, theirs = ledger.base.classes(ancestor), ledger.new.classes(ancestor)
        for value, places in mine.items():
            if value not in theirs:
                continue
            base, new = _instances(ledger.base, places), _instances(ledger.new, theirs[value])
            if len(base) == len(new):
                couples = [*zip(base.values(), new.values(), strict=True)]
            else:
                couples = [(places, theirs[value])]
            for first, second in couples:
                count = len(first) + len(second)
                if count <= MOST:
                    confidence = 0.6 * max(0.5, 1 - CROWDED * (count - 2))
                    ledger.enter(first, second, "operator", confidence)


@lru_cache(maxsize=1 << 14)
def _is_operator(name: str) -> bool:
    return bool(_ONE_THING.fullmatch(name))


def _instances(side: PartsOfSide, places: Sequence[int]) -> dict[int, list[int]]:
    """The parts by their place in the model, each under the first of them."""
    first: dict[Hashable, int] = {}
    found: dict[int, list[int]] = {}
    for place in places:
        head = first.setdefault(side.known[place].place, place)
        found.setdefault(head, []).append(place)
    return found


def _place(each: About) -> Hashable:
    return each.place if each.path else None


def _operator_with_shapes(each: About) -> Hashable:
    part = each.part
    return (part.kind, each.operator, part.shapes, part.phase) if each.path and part.shapes else None


def _path(each: About) -> Hashable:
    return (each.path, each.part.phase) if each.path and each.part.kind == "kernel" else None
