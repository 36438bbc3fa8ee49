"""The order of the stages of a matching, its ledger, and the stage for what a compiler fused."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_perfdl.diff.matching import stages
from pytest_perfdl.diff.matching.names import NO_RULES, about
from pytest_perfdl.diff.matching.stages import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pytest_perfdl.diff.matching.names import About, Rules
    from pytest_perfdl.diff.matching.stages import By, Weighted


# What is matched so far and what is left: every part is entered exactly once.


@dataclass(slots=True)
class PartsOfSide:
    """One side's parts, and which of them are left."""

    parts: Sequence[Weighted]
    left: dict[int, None]
    """Places in `parts`, ascending."""
    known: dict[int, About] = field(default_factory=dict)
    """Of all that the exact stage left."""

    def classes(self, key: Callable[[About], Hashable]) -> dict[Hashable, list[int]]:
        """The parts that are left by key, without those whose key is `None`."""
        found: dict[Hashable, list[int]] = {}
        for place in self.left:
            if (value := key(self.known[place])) is not None:
                found.setdefault(value, []).append(place)
        return found

    def largest(self, places: Iterable[int], most: int) -> list[int]:
        """Of these the `most` that take most time, of equals the first, in order."""
        every = list(places)
        if len(every) <= most:
            return every
        return sorted(sorted(every, key=lambda place: (-self.parts[place].ns, place))[:most])


@dataclass(slots=True)
class PartialMatching:
    """Both sides, and the groups that were found."""

    base: PartsOfSide
    new: PartsOfSide
    groups: list[Group] = field(default_factory=list)

    def enter(self, base: Sequence[int], new: Sequence[int], by: By, confidence: float) -> None:
        """Group these parts, which must be left."""
        for side, places in ((self.base, base), (self.new, new)):
            for place in places:
                del side.left[place]
        self.groups.append(Group(tuple(sorted(base)), tuple(sorted(new)), by, confidence))

    def enter_fused(self, side: PartsOfSide, fused: Sequence[int], replaced: Sequence[int], confidence: float) -> None:
        """Group what a compiler made, on this side, with the parts of the other side that went into it."""
        if side is self.new:
            self.enter(replaced, fused, "fused", confidence)
        else:
            self.enter(fused, replaced, "split", confidence)

    def join(self, number: int, base: Sequence[int], new: Sequence[int], by: By, confidence: float) -> None:
        """Add parts that are left to a group, by its place in `groups`."""
        group = self.groups.pop(number)
        self.enter(base, new, by, confidence)
        more = self.groups.pop()
        self.groups.insert(
            number, Group(tuple(sorted(group.base + more.base)), tuple(sorted(group.new + more.new)), by, confidence)
        )


# The stages for what a compiler fused: many operators' work on one side, one kernel's or region's on the other.


MOST = 500
"""Parts a side that are looked at, those that take most time."""
NAMED, SAME_NEIGHBOURS, SAME_MODULE = 4, 2, 1
"""What it weighs that a fused kernel's name lists an operator, that both stand between the same matched parts, and that
both are known to be in one module: less than that one more part is accounted for."""
IN_REGION = 0.25
"""Confidence of a group with all that is left of its phase."""
_DENSE = re.compile(r"gemm|conv|attention|flash|nccl|memcpy|memset|[ad]{0,3}b?mm\b|matmul|linear", re.IGNORECASE)
"""Kernels that no compiler fuses with others unless it says so in the name."""

_Scores: TypeAlias = npt.NDArray[np.int32]
_SideAndGaps: TypeAlias = "tuple[PartsOfSide, list[int]]"


def by_name(ledger: PartialMatching) -> None:
    """Group each compiler's kernel with the parts whose operators its name lists.

    The parts are shared out among the kernels in the order of the step, so that as many as can be are in one that
    lists them. Confidence: 0.4, and 0.3 for the share of the listed words that the parts account for.
    """
    base, new = _gaps(ledger)
    _share_out(ledger, (ledger.base, base), (ledger.new, new))
    _share_out(ledger, (ledger.new, new), (ledger.base, base))


def by_place(ledger: PartialMatching) -> None:
    """Group the compilers' kernels and regions that are left with the parts in whose stead they are.

    That is what is left between the same two matched parts in no other module, else what is in the same module. Only
    parts of one kind and phase, and of kernels only such as compilers fuse. Confidence: 0.4 and 0.3.
    """
    gaps = _gaps(ledger)
    for number, confidence in ((0, 0.4), (1, 0.3)):
        keys: list[dict[int, Hashable]] = []
        for side, gap in zip((ledger.base, ledger.new), gaps, strict=True):
            found: dict[int, Hashable] = {}
            for place in side.left:
                part = side.known[place].part
                where = bisect_left(gap, place) if number == 0 else part.module
                if number == 0 or part.module:
                    found[place] = (part.kind, part.phase, where)
            keys.append(found)
        _in_stead(ledger, keys[0], keys[1], confidence)


def by_region(ledger: PartialMatching) -> None:
    """Join what is left of a phase to the group of the region that its operators went into.

    A region is one part from its first operator to its last, so what it replaced may stand behind operators that it
    still calls, where no neighbors tell. Of several regions it is the last one that begins before it, in no other
    module. Confidence of the groups that grow: `IN_REGION`.
    """
    for side, other, by in ((ledger.new, ledger.base, "fused"), (ledger.base, ledger.new, "split")):
        regions = [
            (number, *found)
            for number, group in enumerate(ledger.groups)
            if group.by == by
            for found in _region(ledger, group, side)
        ]
        joined: dict[int, list[int]] = {}
        for place in other.left:
            each = other.known[place]
            if each.part.kind != "operator" or not _fusible(each):
                continue
            mine = [
                (begins, number)
                for number, begins, region in regions
                if region.part.phase == each.part.phase and _one_in_the_other(region.part.module, each.part.module)
            ]
            if mine:
                before = [found for found in mine if found[0] <= place]
                joined.setdefault(max(before)[1] if before else min(mine)[1], []).append(place)
        for number, places in joined.items():
            base, new = (places, ()) if other is ledger.base else ((), places)
            ledger.join(number, base, new, ledger.groups[number].by, min(IN_REGION, ledger.groups[number].confidence))


def _region(ledger: PartialMatching, group: Group, side: PartsOfSide) -> list[tuple[int, About]]:
    """A compiler's region on this side of a group of one phase, with where what it replaced begins."""
    own, others = (group.new, group.base) if side is ledger.new else (group.base, group.new)
    phases = {ledger.base.parts[place].part.phase for place in group.base}
    phases |= {ledger.new.parts[place].part.phase for place in group.new}
    regions = (side.known[place] for place in own)
    found = [(min(others), each) for each in regions if each.part.kind == "operator" and each.replaced == ""]
    return found[:1] if len(phases) == 1 else []


def _share_out(ledger: PartialMatching, replaced_on: _SideAndGaps, fused_on: _SideAndGaps) -> None:
    """Group parts of the one side with the compilers' kernels of the other."""
    (many, many_gaps), (few, few_gaps) = replaced_on, fused_on
    kinds = {few.known[place].part.kind for place in few.left if few.known[place].replaced}
    for kind in sorted(kinds):
        fused = few.largest(
            (place for place in few.left if few.known[place].part.kind == kind and few.known[place].replaced), MOST
        )
        parts = many.largest((place for place in many.left if many.known[place].part.kind == kind), MOST)
        if not parts:
            continue
        score = _scores([many.known[place] for place in parts], [few.known[place] for place in fused])
        gaps = [
            np.array([bisect_left(bounds, place) for place in places])
            for bounds, places in ((many_gaps, parts), (few_gaps, fused))
        ]
        score += SAME_NEIGHBOURS * ((score > 0) & (gaps[0][:, None] == gaps[1]))
        members: dict[int, list[int]] = {}
        for row, column in _in_order(score):
            members.setdefault(fused[column], []).append(parts[row])
        for place, found in members.items():
            replaced = _of_one_phase(many, found)
            confidence = 0.4 + 0.3 * _accounted(few.known[place], [many.known[each] for each in replaced])
            ledger.enter_fused(few, (place,), replaced, confidence)


def _of_one_phase(side: PartsOfSide, places: Sequence[int]) -> list[int]:
    """Without those of other phases than the one that takes most: what is in none may list operators of several."""
    ns: dict[str, float] = {}
    for place in places:
        phase = side.known[place].part.phase
        if phase:
            ns[phase] = ns.get(phase, 0.0) + side.parts[place].ns
    most = max(ns, key=lambda phase: ns[phase], default="")
    return [place for place in places if side.known[place].part.phase in ("", most)]


def _scores(parts: Sequence[About], fused: Sequence[About]) -> _Scores:
    """What speaks for each part being in each fused kernel, shape (parts, fused); 0: nothing."""
    sorts: dict[tuple[frozenset[str], str | None], int] = {}
    rows = [sorts.setdefault((part.operators, part.replaced), len(sorts)) for part in parts]
    names: dict[str, int] = {}
    columns = [names.setdefault(kernel.replaced or "", len(names)) for kernel in fused]
    table = np.array([[_lists(name, *sort) for name in names] for sort in sorts], dtype=bool)
    phase, module = np.array([[part.part.phase, part.part.module] for part in parts]).T[:, :, None]
    fused_phase, fused_module = np.array([[kernel.part.phase, kernel.part.module] for kernel in fused]).T
    may_be = table[np.ix_(rows, columns)] & ((phase == fused_phase) | (phase == "") | (fused_phase == ""))
    found: _Scores = may_be * (NAMED + SAME_MODULE * ((module == fused_module) & (module != ""))).astype(np.int32)
    return found


def _lists(names: str, operators: frozenset[str], own: str | None) -> bool:
    """Whether a fused kernel's name holds one of the operators, or all that a smaller fused kernel's does."""
    if own is not None:
        return bool(own) and {*own.split("_")} < {*names.split("_")}
    return any(f"_{operator}_" in f"_{names}_" for operator in operators)


def _in_order(score: _Scores) -> list[tuple[int, int]]:
    """Rows shared out among columns in ascending order so that the sum of their scores is largest, but for zeros."""
    rows, columns = score.shape
    best = np.zeros((rows + 1, columns), dtype=np.int32)
    for row in range(rows):
        best[row + 1] = np.maximum.accumulate(best[row] + score[row])
    pairs = []
    column = columns - 1
    for row in range(rows - 1, -1, -1):
        column = int(np.searchsorted(best[row + 1, : column + 1], best[row + 1, column]))
        if score[row, column]:
            pairs.append((row, column))
    return pairs[::-1]


def _accounted(fused: About, parts: Sequence[About]) -> float:
    """The share of the words in a fused kernel's name that these parts account for."""
    named = [word for word in (fused.replaced or "").split("_") if word]
    told = {word for part in parts for operator in part.operators for word in operator.split("_")}
    told |= {word for part in parts for word in (part.replaced or "").split("_")}
    return sum(word in told for word in named) / len(named)


def _in_stead(
    ledger: PartialMatching, mine: dict[int, Hashable], theirs: dict[int, Hashable], confidence: float
) -> None:
    """Group fused and not fused parts of one key."""
    for fused_side, other, fused_keys, keys in (
        (ledger.new, ledger.base, theirs, mine),
        (ledger.base, ledger.new, mine, theirs),
    ):
        fused: dict[Hashable, list[int]] = {}
        for place, key in fused_keys.items():
            if place in fused_side.left and fused_side.known[place].replaced is not None:
                fused.setdefault(key, []).append(place)
        parts: dict[Hashable, list[int]] = {}
        for place, key in keys.items():
            if key in fused and place in other.left and _fusible(other.known[place]):
                module = other.known[place].part.module
                if any(_one_in_the_other(module, fused_side.known[each].part.module) for each in fused[key]):
                    parts.setdefault(key, []).append(place)
        for key, replaced in parts.items():
            ledger.enter_fused(fused_side, fused[key], replaced, confidence)


def _one_in_the_other(module: str, other: str) -> bool:
    """Whether one module's path may be the other's or within it; what is not known may be anywhere."""
    return not (module and other) or f"{module}.".startswith(f"{other}.") or f"{other}.".startswith(f"{module}.")


def _fusible(each: About) -> bool:
    """Whether a compiler may have taken it into a kernel or region that does not name it."""
    if each.replaced is not None:
        return False
    return each.part.kind == "operator" or not (_DENSE.search(each.name) or _DENSE.search(each.operator))


def _gaps(ledger: PartialMatching) -> tuple[list[int], list[int]]:
    """Places on each side between which stands the same: a longest ascending sequence of matched pairs."""
    pairs = sorted((group.base[0], group.new[0]) for group in ledger.groups if len(group.base) == len(group.new) == 1)
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, new) in enumerate(pairs):
        length = bisect_left(ends, new)
        before.append(last[length - 1] if length else -1)
        ends[length:] = [new, *ends[length + 1 :]]
        last[length:] = [number, *last[length + 1 :]]
    chain = []
    number = last[-1] if last else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    chain.reverse()
    return [base for base, _ in chain], [new for _, new in chain]


# The story of a matching: from what is certain to what is likely, each stage on what the earlier ones left.


def match(base: Sequence[Weighted], new: Sequence[Weighted], rules: Rules = NO_RULES) -> tuple[Group, ...]:
    """Say which parts of one step are which of another's.

    Each side is in the order in which its parts first occur in the step, and so are the groups. Every part of both is
    in exactly one; kinds never mix. The stages, with the confidence of what they find:

    1. exact: equal parts, 1; equal but for the number of the user's line, 0.99, or for the line, 0.98.
    2. name: the same name in the same place (operators around, module, phase), 0.97; the same normalized name there
       and the same shapes, 0.95, or others, 0.92; in the same operator with the same shapes, the same name, 0.88, or
       normalized name, 0.85.
    3. operator: what one operator does in one place with the same shapes, 0.85. Place tells more than a name does, so
       this comes before names elsewhere.
    4. name: the same normalized name and shapes anywhere, 0.75; the same name, 0.7, or normalized name, 0.65.
    5. operator: what one operator does, with the same shapes, 0.7, or with the same operators around, 0.65; what the
       nearest operator that both have around does, 0.6.
    6. fused, split: a compiler's kernel and the operators that its name lists, 0.4 to 0.7 (`match.by_name`).
    7. aligned: in the order of the step, 0.6 (1 - cost), of pairs that cost less than 0.5 (`stages.align`).
    8. fused, split: a compiler's kernel or region and what is left in its stead, 0.4, or in its module, 0.3; with all
       operators of its phase that are left then, 0.25 (`match.by_region`).
    9. added, gone: the rest, 1.

    Where several parts could be paired otherwise the confidence of stages 2, 4 and 5 is 0.9 times as much; n:m groups
    of stages 3 and 5 lose 5 % for each part beyond two, up to half.

    Exchanging the sides exchanges the sides of the groups and nothing else.
    """
    # Where two ways are equally good the stages take the one that the baseline side meets first: whichever side the
    # caller calls so, the same of the two must play that part.
    if _comes_first(new, base):
        return tuple(group.exchanged() for group in _run_stages(new, base, rules))
    return _run_stages(base, new, rules)


def _run_stages(base: Sequence[Weighted], new: Sequence[Weighted], rules: Rules) -> tuple[Group, ...]:
    ledger = PartialMatching(
        PartsOfSide(base, dict.fromkeys(range(len(base)))), PartsOfSide(new, dict.fromkeys(range(len(new))))
    )
    stages.equal(ledger)
    for side in (ledger.base, ledger.new):
        side.known.update((place, about(side.parts[place], rules)) for place in side.left)
    for stage in (
        stages.pair_in_place,
        stages.group_in_place,
        stages.pair_elsewhere,
        stages.group_elsewhere,
        by_name,
        stages.align,
        by_place,
        by_region,
    ):
        if ledger.base.left or ledger.new.left:
            stage(ledger)
    for place in list(ledger.base.left):
        ledger.enter((place,), (), "gone", 1.0)
    for place in list(ledger.new.left):
        ledger.enter((), (place,), "added", 1.0)
    return tuple(sorted(ledger.groups, key=_when))


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
