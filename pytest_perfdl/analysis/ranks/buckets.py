"""The collectives of a step in their order, over all steps: how large, how long, how well hidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from pytest_perfdl.analysis.ranks.figures import Bucket, Collective


def buckets_of(collectives: Sequence[Collective]) -> tuple[Bucket, ...]:
    """The nth collective of each kind, group and set of members in every step, in the order of the step.

    Parameters
    ----------
    collectives
        By time; those outside of steps are left out.
    """
    counts: defaultdict[tuple[int | None, str, str, tuple[int, ...]], int] = defaultdict(int)
    found: defaultdict[tuple[str, str, tuple[int, ...], int], list[Collective]] = defaultdict(list)
    first: dict[tuple[str, str, tuple[int, ...], int], int] = {}
    place: defaultdict[int | None, int] = defaultdict(int)
    for each in collectives:
        if each.step is None:
            continue
        key = each.kind, each.group, each.ranks
        here = (each.step, *key)
        of = (*key, counts[here])
        counts[here] += 1
        found[of].append(each)
        first.setdefault(of, place[each.step])
        place[each.step] += 1
    return tuple(_bucket(*key, found[key]) for key in sorted(found, key=lambda key: (first[key], key)))


def _bucket(kind: str, group: str, ranks: tuple[int, ...], index: int, found: Sequence[Collective]) -> Bucket:
    durations = [length for each in found for length in each.duration_ns]
    exposed = sum(length for each in found for length in each.exposed_ns)
    transfer = round(float(np.median([each.transfer_ns for each in found])))
    sizes = {each.bytes for each in found}
    size = sizes.pop() if len(sizes) == 1 else None
    members = max(max(each.group_size for each in found), len(ranks))
    return Bucket(
        kind=kind,
        group=group,
        ranks=ranks,
        index=index,
        steps=len(found),
        bytes=size,
        transfer_ns=transfer,
        duration_ns=round(float(np.median(durations))),
        hidden_share=max(1 - exposed / sum(durations), 0.0) if sum(durations) else 0.0,
        bus_bandwidth=bus_bandwidth(kind, size, members, transfer),
    )


def bus_bandwidth(kind: str, size: int | None, ranks: int, transfer_ns: int) -> float | None:
    """Bytes per second over the slowest link: nccl-tests, doc/PERFORMANCE.md.

    With n ranks, bytes / time times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, and
    1 for broadcast, reduce, send and receive. `None` where bytes or time are unknown or zero.

    >>> bus_bandwidth("all_reduce", 1000, 4, 500)
    3000000000.0
    """
    if not size or transfer_ns <= 0 or ranks < 2:
        return None
    factor = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}.get(kind)
    return size / transfer_ns * 1e9 * (factor * (ranks - 1) / ranks if factor is not None else 1.0)
