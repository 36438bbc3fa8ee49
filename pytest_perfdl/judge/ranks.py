"""Which rank a change of a step comes from: the slow rank's work, not the waiting of the others.

Ranks wait for each other in their collectives, so all of them get slower when one does. A rank's *own work* is its step
without that waiting. If the own work of one rank grew by most of what the step grew, that rank is the cause; if no
rank's did, communication is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.judge.round_data import ProfiledRanks
from pytest_perfdl.judge.work import StepWork, join_work
from pytest_perfdl.results.curve import RankCause, RankComparison, RankSide, RankTimes
from pytest_perfdl.results.verdict import Cause

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.measure.commands import Profiled

COMMUNICATION = "communication"
"""Name of the cause of a change of all ranks' communication."""
MOST = 0.5
"""Share of the change of a step that is most of it."""
APART = 0.25
"""Share of the change of a rank's own work by which it must have changed more than every other rank's, for it to be
that rank's change and not all ranks'."""
_OWN: tuple[RankCause, ...] = ("compute", "input", "host")
_CLASSES: tuple[RankCause, ...] = (*_OWN, "communication")


def profiled_ranks(profiled: Profiled) -> ProfiledRanks | None:
    """The ranks of a profiled job; `None` without ranks, or if they could not be compared."""
    side = rank_side(profiled)
    if side is None:
        return None
    work = tuple(StepWork(len(rank.step_ns), rank.work) for rank in profiled.ranks)
    return ProfiledRanks(side, tuple(rank.parts for rank in profiled.ranks), work)


def traffic(profiled: Profiled) -> dict[str, float]:
    """Exact counts of the ranks' communication, means per step over all ranks; empty without ranks.

    Bytes are absent where the trace does not say the size of a call.
    """
    found: dict[str, float] = {}
    parts = [part.traffic for part in profiled.ranks]
    if not parts or any(part is None for part in parts):
        return found
    calls = [sum(each.calls) / len(each.calls) for part in parts for each in part or () if each.calls]
    found["collectives"] = sum(calls)
    sizes = [each.bytes for part in parts for each in part or ()]
    known = [[size for size in each if size is not None] for each in sizes]
    if all(len(some) == len(every) for some, every in zip(known, sizes, strict=True)):
        found["collective_bytes"] = sum(sum(each) / len(each) for each in known if each)
    return found


def rank_side(profiled: Profiled) -> RankSide | None:
    """What the ranks of a profiled job do in a step; `None` without ranks, or if they could not be compared."""
    figures = profiled.figures
    if figures is None or not figures.step_numbers:
        return None
    steps = len(figures.step_numbers)
    counts = traffic(profiled)
    ranks = []
    for rank, own in zip(figures.ranks, profiled.ranks, strict=True):
        delay = sum(own.delay_ns) / max(len(own.delay_ns), 1)
        own_ns = round(max(sum(rank.own_ns) / steps - delay, 0.0))
        times = {f"{name}_ns": round(own.classes.get(name, 0.0)) for name in _CLASSES}
        ranks.append(RankTimes(own_ns, **times, overlap=rank.overlap))
    return RankSide(
        ranks=tuple(ranks),
        step_ns=round(sum(rank.step_mean_ns for rank in figures.ranks) / len(figures.ranks)),
        waits_ns=tuple(tuple(round(ns / steps) for ns in row) for row in figures.exposed_waits_ns),
        collectives=counts.get("collectives", 0.0),
        collective_bytes=counts.get("collective_bytes"),
    )


def mean_side(sides: Sequence[RankSide]) -> RankSide:
    """The mean of several processes of one side, at least one."""
    count = len(sides)

    def mean(values: Sequence[float]) -> int:
        return round(sum(values) / count)

    ranks = []
    for times in zip(*(side.ranks for side in sides), strict=True):
        overlap = [each.overlap for each in times if each.overlap is not None]
        means = {f"{name}_ns": mean([each.of(name) for each in times]) for name in _CLASSES}
        own_ns = mean([each.own_ns for each in times])
        ranks.append(RankTimes(own_ns, **means, overlap=sum(overlap) / len(overlap) if overlap else None))
    size = range(len(ranks))
    known = [side.collective_bytes for side in sides if side.collective_bytes is not None]
    return RankSide(
        ranks=tuple(ranks),
        step_ns=mean([side.step_ns for side in sides]),
        waits_ns=tuple(tuple(mean([side.waits_ns[i][j] for side in sides]) for j in size) for i in size),
        collectives=sum(side.collectives for side in sides) / count,
        collective_bytes=sum(known) / count if len(known) == count else None,
    )


def compare_ranks(call: str, base: RankSide, new: RankSide) -> RankComparison:
    """Both sides of a call, with the rank and the class of time that the change of the step comes from.

    Of the rank whose own work changed most the way the step did, the step changed by that and by its communication;
    what other processes had of the CPU is in neither. The change is that rank's if its own work is at least `MOST` of
    it, and changed by `APART` of it more than every other rank's; it is communication's if own work is less.
    """
    change = new.step_ns - base.step_ns
    if len(base.ranks) != len(new.ranks) or not change:
        return RankComparison(call, base, new)
    sign = 1 if change > 0 else -1
    grown = [sign * (now.own_ns - before.own_ns) for before, now in zip(base.ranks, new.ranks, strict=True)]
    first = max(range(len(grown)), key=grown.__getitem__)
    before, now = base.ranks[first], new.ranks[first]
    whole = grown[first] + sign * (now.communication_ns - before.communication_ns)
    if grown[first] <= 0 or grown[first] < MOST * whole:
        return RankComparison(call, base, new, None, "communication")
    cause = max(_OWN, key=lambda name: sign * (now.of(name) - before.of(name)))
    others = [ns for rank, ns in enumerate(grown) if rank != first]
    is_apart = bool(others) and grown[first] - max(others) >= APART * grown[first]
    return RankComparison(call, base, new, first if is_apart else None, cause)


def comparisons(rounds: Sequence[Round]) -> dict[str, RankComparison]:
    """The ranks of every call in all rounds; empty without ranks."""
    if not rounds:
        return {}
    found = {}
    for call in rounds[0].ranks_head:
        if all(call in each.ranks_base and call in each.ranks_head for each in rounds):
            base = mean_side([each.ranks_base[call].side for each in rounds])
            new = mean_side([each.ranks_head[call].side for each in rounds])
            found[call] = compare_ranks(call, base, new)
    return found


def find_explaining(comparison: RankComparison) -> int:
    """The rank whose breakdown explains the change: that of the cause, else the one that waits or transfers most."""
    if comparison.rank is not None or comparison.base is None:
        return comparison.rank or 0
    cause = comparison.cause or "compute"
    pairs = zip(comparison.base.ranks, comparison.new.ranks, strict=False)
    grown = [abs(now.of(cause) - before.of(cause)) for before, now in pairs]
    return max(range(len(grown)), key=grown.__getitem__)


Side = Literal["base", "head"]


def parts_of_ranks(rounds: Sequence[Round], side: Side, ranks: Mapping[str, int]) -> list[dict[str, StepParts]]:
    """For every round the breakdowns of one side, each of the rank that explains its call."""
    found = []
    for each in rounds:
        parts, of_ranks = (each.parts_base, each.ranks_base) if side == "base" else (each.parts_head, each.ranks_head)
        chosen = {call: of_ranks[call].parts[rank] for call, rank in ranks.items()}
        found.append({**parts, **{call: own for call, own in chosen.items() if own is not None}})
    return found


def work_of_ranks(rounds: Sequence[Round], side: Side, ranks: Mapping[str, int]) -> dict[str, list[StepWork]]:
    """By call the work of one side's operators in every round, of the rank that explains the call."""
    found = []
    for each in rounds:
        work, of_ranks = (each.work_base, each.ranks_base) if side == "base" else (each.work_head, each.ranks_head)
        found.append({**work, **{call: of_ranks[call].work[rank] for call, rank in ranks.items()}})
    return join_work(found)


def blame_ranks(causes: Sequence[Cause], compared: Mapping[str, RankComparison]) -> tuple[Cause, ...]:
    """The causes with the rank that they are of; where communication changed, it comes first.

    Its time is the mean over the ranks of the communication, and waiting in it, that nothing hides.
    """
    found = [replace(cause, rank=compared[cause.call].rank) if cause.call in compared else cause for cause in causes]
    for call, each in compared.items():
        if each.cause != COMMUNICATION or each.base is None:
            continue
        before, now = (_mean_communication(side) for side in (each.base, each.new))
        step = each.new.step_ns - each.base.step_ns
        first = Cause(
            kind="idle",
            name=COMMUNICATION,
            call=call,
            base_count=each.base.collectives,
            new_count=each.new.collectives,
            base_ns=before,
            new_ns=now,
            share=(now - before) / step if step else None,
        )
        found = [first, *(cause for cause in found if (cause.call, cause.name) != (call, COMMUNICATION))]
    return tuple(found)


def _mean_communication(side: RankSide) -> int:
    return round(sum(rank.communication_ns for rank in side.ranks) / len(side.ranks))
