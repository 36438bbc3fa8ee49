"""Every kernel, copy and memset of a file by name: how often, how long, and how much of it nothing hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_perfdl.analysis.efficiency.sm import LaunchGeometry, launch_geometry, weighted_mean
from pytest_perfdl.analysis.events.communication import communication_evidence
from pytest_perfdl.trace.model import F64, I64, Category, Rows, Trace

KernelKind = Literal["compute", "communication", "copy"]
_KINDS: tuple[KernelKind, ...] = ("compute", "communication", "copy")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """The device events of one name and kind."""

    name: str
    kind: KernelKind
    """Memsets are copies."""
    count: int
    total_ns: int
    """Sum of durations; events that run at once count each."""
    min_ns: int
    max_ns: int
    exposed_ns: int
    """Time that only this row fills: |U(own) minus U(other rows of its kind or of one before it)|.

    The order of kinds is compute, communication, copy, as in *exposed communication* and *exposed copies*, so
    that the exposed times of a kind's rows add up to at most that kind's.
    """
    occupancy_est: float | None
    """Duration-weighted mean of `est. achieved occupancy %`, 0 to 100; `None` where the trace has none."""
    blocks_per_sm: float | None
    """Duration-weighted mean of `blocks per SM`; `None` where the trace has none."""

    @property
    def mean_ns(self) -> float:
        """`total_ns / count`."""
        return self.total_ns / self.count


def kernel_table(trace: Trace) -> tuple[KernelRow, ...]:
    """All device events by name and kind, the longest total first, then by name.

    Events count wherever they run, inside steps or not, linked to a launch or not.
    """
    device = trace.device_rows()
    if len(device) == 0:
        return ()
    kind = np.full(len(device), _KINDS.index("copy"), dtype=np.intp)
    is_kernel = trace.category[device] == Category.KERNEL
    evidence = communication_evidence(trace)
    kind[is_kernel] = np.where(evidence[device[is_kernel]] >= 0, 1, 0)
    keys, group = np.unique(trace.name[device].astype(np.intp) * len(_KINDS) + kind, return_inverse=True)
    kind_of = keys % len(_KINDS)
    duration = trace.duration[device]
    count = np.bincount(group)
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    order = np.argsort(group, kind="stable")
    total, least, most = (function.reduceat(duration[order], first) for function in (np.add, np.minimum, np.maximum))
    exposed = _exposed(trace.start[device], duration, group, kind_of)
    occupancy, blocks = _geometry_of(trace, device, launch_geometry(trace))
    rows = []
    for index, members in enumerate(np.split(order, first[1:])):
        rows.append(
            KernelRow(
                name=trace.names[int(keys[index]) // len(_KINDS)],
                kind=_KINDS[int(kind_of[index])],
                count=int(count[index]),
                total_ns=int(total[index]),
                min_ns=int(least[index]),
                max_ns=int(most[index]),
                exposed_ns=int(exposed[index]),
                occupancy_est=weighted_mean(occupancy[members], duration[members]),
                blocks_per_sm=weighted_mean(blocks[members], duration[members]),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))


def _geometry_of(trace: Trace, device: Rows, geometry: LaunchGeometry) -> tuple[F64, F64]:
    """Occupancy and blocks per SM of each device event, NaN for copies."""
    columns = []
    for values in (geometry.occupancy, geometry.blocks_per_sm):
        column = np.full(len(trace), np.nan)
        column[geometry.rows] = values
        columns.append(column[device])
    return columns[0], columns[1]


def _exposed(start: I64, duration: I64, group: Rows, kind_of: Rows) -> I64:
    """Nanoseconds of each group during which no other group of its kind or of an earlier one runs."""
    bounds, place = np.unique(np.concatenate((start, start + duration)), return_inverse=True)
    opens, closes, group = _union_by_group(place[: len(start)], place[len(start) :], group, len(bounds))
    step = np.diff(bounds)
    exposed = np.zeros(len(kind_of), dtype=np.int64)
    for kind in range(len(_KINDS)):
        use = kind_of[group] <= kind
        # Where one group runs, the sum of the running groups' numbers is its number.
        running, number = np.zeros((2, len(bounds)), dtype=np.int64)
        for at, sign in ((opens[use], 1), (closes[use], -1)):
            np.add.at(running, at, sign)
            np.add.at(number, at, sign * group[use])
        alone = np.cumsum(running)[:-1] == 1
        owner = np.cumsum(number)[:-1][alone]
        own = np.zeros(len(kind_of), dtype=np.int64)
        np.add.at(own, owner, step[alone])
        exposed[kind_of == kind] = own[kind_of == kind]
    return exposed


def _union_by_group(opens: Rows, closes: Rows, group: Rows, places: int) -> tuple[Rows, Rows, Rows]:
    """The union of each group's intervals; times are places in an order, from 0 to `places - 1`."""
    order = np.lexsort((opens, group))
    opens, closes, group = opens[order], closes[order], group[order]
    # Groups lie behind one another on one line, so that one running maximum serves all.
    shift = group * np.intp(places)
    reach = np.maximum.accumulate(closes + shift)
    first = np.concatenate(([True], opens[1:] + shift[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return opens[first], reach[last] - shift[last], group[first]
