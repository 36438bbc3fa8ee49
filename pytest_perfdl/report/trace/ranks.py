"""What is said about the ranks of a job, on the terminal and on a page: the verdict, telling ranks, waits.

Times are means per step, over the steps that all ranks have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_perfdl.model.kernel_names import short_name
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report.ranks import choose_telling

if TYPE_CHECKING:
    from pytest_perfdl.analysis.ranks import Bucket, Rank, RankFigures

SLOWER = {
    "compute": "it computes longer than the other ranks",
    "input": "it waits longer for input data than the other ranks",
    "host": "Python and launches take longer on it than on the other ranks",
    "communication": "transfers to it take longer than to the other ranks",
}
"""What a straggler's cause is called."""

NEARLY_NOTHING = 0.001
"""Share of the step of which it is not told which rank was waited for."""


def verdict(ranks: RankFigures) -> tuple[str, str]:
    """Which rank holds the job up, in a sentence, and what that costs in another, which may be empty.

    Example: "Rank 6 of 8 is a straggler since step 5: it computes longer than the other ranks." and "Without that a
    step would take 4.500 ms less (8.2% of 55.1 ms)."
    """
    count, found = len(ranks.ranks), ranks.straggler
    step = step_ns(ranks)
    if found is not None:
        share = (
            f" ({format_percent(found.cost_ns / step, signed=False)} of {format_quantity(step, 'ns')})" if step else ""
        )
        later = ranks.step_numbers and found.since_step > ranks.step_numbers[0]
        since = f" since step {found.since_step}" if later else ""
        return (
            f"Rank {found.rank} of {count} is a straggler{since}: {SLOWER[found.cause]}.",
            f"Without that a step would take {format_quantity(found.cost_ns, 'ns')} less{share}.",
        )
    if ranks.known:
        said = f"None of the {count} ranks is a straggler: none is slower than the others step after step."
    else:
        common = len(ranks.step_numbers)
        why = "they have " + (f"only {plural(common, 'step')}" if common else "no steps") + " in common"
        why = why if ranks.collectives else "no collective was found on several of them"
        said = f"Whether one of the {count} ranks is slower than the others is unknown: {why}."
    if ranks.imbalance is None or ranks.imbalance <= 1:
        return said, ""
    more = format_percent(ranks.imbalance - 1, signed=False)
    return said, f"In each step, the rank with most work of its own has {more} more than the mean of all ranks."


def step_ns(ranks: RankFigures) -> float:
    """Mean step of all ranks; 0 without steps."""
    return sum(rank.step_mean_ns for rank in ranks.ranks) / len(ranks.ranks)


def own_ns(rank: Rank) -> float:
    """Mean own work of a rank in a step: computing, input and host; 0 without steps."""
    return sum(rank.own_ns) / len(rank.own_ns) if rank.own_ns else 0.0


def exposed_ns(rank: Rank, count: int) -> float:
    """Mean communication of a rank in a step while it computes nothing, with waiting.

    Parameters
    ----------
    count
        What totals are divided by where the ranks have no steps in common: `steps`.
    """
    return rank.parts_ns["communication"] if rank.parts_ns else rank.exposed_communication_ns / count


def steps(ranks: RankFigures) -> int:
    """What totals over the traces are divided by: the steps that all ranks have; 1 where there are none."""
    return max(len(ranks.step_numbers), 1)


def waits_per_step(ranks: RankFigures) -> list[list[float]]:
    """Nanoseconds per step that the rank of each row waits for the rank of each column and computes nothing."""
    return [[ns / steps(ranks) for ns in row] for row in ranks.exposed_waits_ns]


def waits_mostly_for(ranks: RankFigures, place: int) -> str:
    """The rank that another waits for longest; empty where that is nearly nothing."""
    row = ranks.exposed_waits_ns[place]
    tells = max(row, default=0) > NEARLY_NOTHING * steps(ranks) * step_ns(ranks)
    return f"rank {ranks.ranks[row.index(max(row))].rank}" if tells else ""


def straggler_place(ranks: RankFigures) -> int | None:
    """Place of the straggler among the ranks; `None` without one."""
    found = ranks.straggler
    return None if found is None else next(at for at, rank in enumerate(ranks.ranks) if rank.rank == found.rank)


def shown_ranks(ranks: RankFigures) -> list[int]:
    """Places of the ranks that a table shows: all, or of more than `ALIKE` the telling ones."""
    return choose_telling([own_ns(rank) for rank in ranks.ranks], ranks.exposed_waits_ns, straggler_place(ranks))


def others_line(ranks: RankFigures, shown: Sequence[int]) -> str:
    """What the ranks that a table leaves out have in common; empty if it has all."""
    left = [rank for place, rank in enumerate(ranks.ranks) if place not in set(shown)]
    if not left:
        return ""
    own = [own_ns(rank) for rank in left]
    waits = [rank.exposed_waiting_ns / steps(ranks) for rank in left]
    return f"{plural(len(left), 'other rank')}: own work {_range(own)}, waiting {_range(waits)}; --json has all of them"


def _range(values: Sequence[float]) -> str:
    low, high = (format_quantity(value, "ns") for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def by_time(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Those that take most time first."""
    return sorted(buckets, key=lambda each: -each.duration_ns * each.steps)


def bucket_names(buckets: Sequence[Bucket], ranks: RankFigures) -> list[str]:
    """Collectives of the step by kind and place: "all_reduce 3"; of some ranks only "all_gather 1, ranks 0 and 4".

    A message has its sender and receiver; what is of no known kind has the name of its kernel. The group is told where
    nothing else tells two of them apart.
    """
    names: dict[tuple[str, str, tuple[int, ...]], str] = {}
    for each in ranks.collectives:
        names.setdefault((each.kind, each.group, each.ranks), each.name)
    found = [_bucket_name(each, ranks, names) for each in buckets]
    twice = {name for name, count in Counter(found).items() if count > 1}
    return [f"{name}, group {each.group}" if name in twice else name for name, each in zip(found, buckets, strict=True)]


def _bucket_name(bucket: Bucket, ranks: RankFigures, names: Mapping[tuple[str, str, tuple[int, ...]], str]) -> str:
    kind = bucket.kind
    if kind == "other":
        kind = short_name(names.get((kind, bucket.group, bucket.ranks), kind))
    name = f"{kind} {bucket.index + 1}"
    if kind == "send":
        return f"{name}, rank {bucket.ranks[0]} to {bucket.ranks[-1]}"
    if len(bucket.ranks) == len(ranks.ranks):
        return name
    *first, last = map(str, bucket.ranks)
    return f"{name}, ranks {', '.join(first)} and {last}" if first else name


def clocks_line(ranks: RankFigures) -> str:
    """How many collectives were matched, and how well clocks agree; empty without any."""
    if not ranks.collectives:
        return ""
    fact = (
        f"{plural(len(ranks.collectives), 'collective')} matched across ranks; their starts differ by "
        f"{format_quantity(ranks.skew_median_ns, 'ns')} (median), at most {format_quantity(ranks.skew_max_ns, 'ns')}"
    )
    within = format_quantity(ranks.residual_ns, "ns")
    return f"{fact}. The clocks of the ranks are aligned on the ends of collectives, within {within}."


def choose_reported(ranks: RankFigures, most: int) -> list[int]:
    """Places of the ranks whose traces are reported in full: all, or of more than `most` the straggler's and another's.

    The other one is for comparison; it is the only one without a straggler.
    """
    places = list(range(len(ranks.ranks)))
    if len(places) <= most:
        return places
    found = straggler_place(ranks)
    return places[:1] if found is None else [found, next(place for place in places if place != found)]
