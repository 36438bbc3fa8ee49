"""Which calls of several ranks are the same collective, or the two ends of one message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.ranks.activity import RankActivity
from pytest_perfdl.analysis.ranks.calls import ROOTED
from pytest_perfdl.trace.model import I64, Rows

SHIFTS = 4
"""Collectives that one rank may have recorded and another not, at the beginning, when numbers differ."""

OVERLAP = 2
"""A collective of a device runs on all ranks for at least one part in so many of the shortest rank's time; what does
not, and has no sequence number, is not the same one."""

TOLERANCE_NS = 10_000
"""How much before the last rank's start a collective on the CPU may end on another rank, as the clocks disagree."""

STEADY = 3
"""Ends of calls that are one collective differ as steadily as those of the steadiest groups, up to this factor."""

STEADY_NS = 2_000
"""And up to this, which ends of one collective vary by anyway."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What turns one rank's times into those of the first rank."""

    offset: int = 0
    """Nanoseconds to add at the moment `at`."""
    drift: float = 0.0
    """What the offset changes by per nanosecond."""
    at: int = 0

    def moved(self, time: I64) -> I64:
        """Moments of the rank on the first rank's clock."""
        return np.asarray(time + self.offset + np.rint((time - self.at) * self.drift).astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Calls of one group and kind that belong together: one line per collective, one column per member."""

    group: str
    kind: str
    places: tuple[int, ...]
    """Places of the members among the ranks given; of a message sender and receiver."""
    call: Rows
    """Index into each member's `Calls`, shape (collectives, members)."""
    certain: bool
    """Whether the trace says that they belong together: by sequence number."""

    @property
    def message(self) -> bool:
        """Whether these are messages from one rank to another."""
        return self.kind == "send"

    def times(self, ranks: Sequence[RankActivity], clocks: Sequence[Clock]) -> tuple[I64, I64]:
        """Starts and ends on the first rank's clock, of the shape of `call`."""
        columns = list(zip(self.places, self.call.T, strict=True))
        start = [clocks[place].moved(ranks[place].calls.start[own]) for place, own in columns]
        end = [clocks[place].moved(ranks[place].calls.end[own]) for place, own in columns]
        return np.stack(start, axis=1), np.stack(end, axis=1)

    def only(self, keep: npt.NDArray[np.bool_]) -> Matched:
        """Some of the collectives."""
        return Matched(self.group, self.kind, self.places, self.call[keep], self.certain)

    def columns(self, kept: Sequence[int], lines: npt.NDArray[np.bool_]) -> Matched:
        """Some collectives of some members."""
        places = tuple(self.places[column] for column in kept)
        return Matched(self.group, self.kind, places, self.call[lines][:, list(kept)], self.certain)


def candidates(ranks: Sequence[RankActivity], numbers: Sequence[int]) -> list[Matched]:
    """Calls that may be the same: by group, kind and `Seq`, or by order.

    A group's members are the given ranks that the group lists, or that have calls in it where it lists none. Messages
    are paired by group, sender and receiver.
    """
    calls: defaultdict[tuple[str, tuple[int, ...], str], dict[int, list[int]]] = defaultdict(dict)
    sent: defaultdict[tuple[str, int, int], dict[str, list[int]]] = defaultdict(dict)
    for place, (rank, number) in enumerate(zip(ranks, numbers, strict=True)):
        own = rank.calls
        columns = (own.kinds, own.group, own.members, own.peer.tolist())
        for index, (kind, group, members, peer) in enumerate(zip(*columns, strict=True)):
            if kind in ("send", "recv") and peer >= 0:
                ends = (number, peer) if kind == "send" else (peer, number)
                message = (group, *ends)
                sent[message].setdefault(kind, []).append(index)
            else:
                key = kind if kind != "other" else own.name[index]
                calls[group, members, key].setdefault(place, []).append(index)
    found: list[Matched] = []
    for (group, members, kind), by_place in calls.items():
        expected = {place for place, number in enumerate(numbers) if number in members} or set(by_place)
        if len(expected) > 1 and expected == set(by_place):
            found += _grouped(_paired(ranks, group, kind if kind.islower() else "other", by_place), ranks, numbers)
    place_of = {number: place for place, number in enumerate(numbers)}
    for (group, source, target), by_kind in sent.items():
        if len(by_kind) == 2 and source in place_of and target in place_of and source != target:
            ends_of = {place_of[source]: by_kind["send"], place_of[target]: by_kind["recv"]}
            found.append(_paired(ranks, group, "send", ends_of))
    return [each for each in found if len(each.call)]


def _paired(ranks: Sequence[RankActivity], group: str, kind: str, by_place: Mapping[int, Sequence[int]]) -> Matched:
    """Pairs by `Seq`; messages by order, as each rank counts its own."""
    own = {place: np.array(indices, dtype=np.intp) for place, indices in by_place.items()}
    keyed = {place: _keys(ranks[place].calls.sequence[indices]) for place, indices in own.items()}
    certain = all(keyed.values()) and kind != "send"
    if certain:
        common = sorted(set.intersection(*(set(keys) for keys in keyed.values())))
        place_in = {place: {key: at for at, key in enumerate(keys)} for place, keys in keyed.items()}
        chosen = {place: [place_in[place][key] for key in common] for place in own}
    else:
        chosen = _by_order({place: ranks[place].calls.end[indices] for place, indices in own.items()})
    columns = [own[place][np.array(chosen[place], dtype=np.intp)] for place in own]
    return Matched(group, kind, tuple(own), np.stack(columns, axis=1), certain)


def _keys(sequence: I64) -> list[tuple[int, int]]:
    """`Seq` of each call and how many before it have the same; empty if one has none."""
    if len(sequence) and int(sequence.min()) < 0:
        return []
    seen: defaultdict[int, int] = defaultdict(int)
    keys = []
    for number in sequence.tolist():
        keys.append((number, seen[number]))
        seen[number] += 1
    return keys


def _by_order(ends: Mapping[int, I64]) -> dict[int, list[int]]:
    """Places that belong together: the nth with the nth, where numbers differ shifted so that ends agree best."""
    count = min(len(each) for each in ends.values())
    shortest = next(each for each in ends.values() if len(each) == count)
    places = {}
    for rank, each in ends.items():
        shifts = range(min(SHIFTS, len(each) - count) + 1)
        spread = [_spread(each[shift : shift + count] - shortest) for shift in shifts]
        best = spread.index(min(spread))
        places[rank] = list(range(best, best + count))
    return places


def _spread(values: I64) -> float:
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def together(start: I64, end: I64, *, kind: str = "", on_device: bool = True) -> npt.NDArray[np.bool_]:
    """Which collectives run on all ranks at once long enough to be one: see `OVERLAP` and `TOLERANCE_NS`.

    On the CPU threads wait for a core, so that there only the order counts: none ends before all have started; and
    with one rank as root not even that.
    """
    shared = end.min(axis=1) - start.max(axis=1)
    if on_device:
        return np.asarray((shared * OVERLAP >= (end - start).min(axis=1)) & (shared >= 0))
    return np.asarray((shared >= -TOLERANCE_NS) | (kind in ROOTED))


def confirmed(matched: Sequence[Matched], ranks: Sequence[RankActivity], clocks: Sequence[Clock]) -> Iterator[Matched]:
    """What is the same collective indeed, once the clocks are aligned.

    Calls that a sequence number pairs are taken as they are, and so are messages. Of others those that do not run
    together are left out.
    """
    for each in matched:
        if each.certain or each.message:
            yield each
        else:
            on_device = any(ranks[place].on_device for place in each.places)
            yield each.only(together(*each.times(ranks, clocks), kind=each.kind, on_device=on_device))


def _grouped(each: Matched, ranks: Sequence[RankActivity], numbers: Sequence[int]) -> Iterator[Matched]:
    """Calls of groups that the trace does not name (gloo), told apart by size and by how steadily their ends differ.

    The nth call of a kind may be one of all ranks, or one of several smaller groups each. On whichever clocks, the ends
    of one collective differ by about the same each time; those of calls of different groups do not. So calls of a size
    are those of the largest groups that `distributedInfo` lists whose ends differ about as steadily as any.
    """
    partitions = _partitions(each, ranks, numbers) if each.group == "host" and not each.certain else []
    if not partitions:
        yield each
        return
    ways = sorted([[list(range(len(each.places)))], *partitions], key=len)
    size = ranks[each.places[0]].calls.bytes[each.call[:, 0]]
    _, end = each.times(ranks, [Clock()] * len(ranks))
    for own in np.unique(size):
        lines = size == own
        varies = [max(_varying(end[lines][:, columns]) for columns in way) for way in ways]
        limit = STEADY * min(varies) + STEADY_NS
        for columns in next(way for way, each_ in zip(ways, varies, strict=True) if each_ <= limit):
            yield each.columns(columns, lines)


def _varying(end: I64) -> float:
    """Median deviation of the ends' differences to the first member from their median, the worst member's."""
    apart = end - end[:, :1]
    return float(np.median(np.abs(apart - np.median(apart, axis=0)), axis=0).max())


def _partitions(each: Matched, ranks: Sequence[RankActivity], numbers: Sequence[int]) -> list[list[list[int]]]:
    """Ways to split the members into groups of one size that `distributedInfo` lists, as columns."""
    sets = {frozenset(members) for place in each.places for members in ranks[place].groups.values()}
    given = [numbers[place] for place in each.places]
    groups = sorted({tuple(at for at, number in enumerate(given) if number in members) for members in sets})
    groups = [group for group in groups if 1 < len(group) < len(given)]
    found = []
    for first in groups:
        if first[0] != 0:
            continue
        parts, left = [list(first)], set(range(len(given))) - set(first)
        for group in groups:
            if len(group) == len(first) and left.issuperset(group):
                parts.append(list(group))
                left -= set(group)
        if not left:
            found.append(parts)
    return found
