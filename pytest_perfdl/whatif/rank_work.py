"""What each rank of a job works between the collectives that couple it with others, and how much that varies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import F64, I64, Rows
from pytest_perfdl.whatif.from_trace.job import communication_tasks
from pytest_perfdl.whatif.model import EdgeKind, Job, Mask, TaskGraph, TaskKind, TrackKind, are_of_kinds

_WAITING = (TaskKind.COMMUNICATION, TaskKind.WAIT, TaskKind.RETURN)
"""What is no work of a rank."""

_NEVER = 2**62
"""A moment behind every trace."""


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """The work of ranks in the steps that all of them have, in segments from one coupling collective to the next."""

    segment: tuple[npt.NDArray[np.int32], ...]
    """Of each rank the segment of each task within its step, -1 for what is no work or belongs to no common step."""
    step: tuple[npt.NDArray[np.int32], ...]
    """Of each rank the common step of each task, -1 for none."""
    host: F64
    """Nanoseconds of host threads by rank, step and segment."""
    device: F64
    """The same of computing on the device."""

    @property
    def deciding(self) -> F64:
        """The work that decides how long a segment takes: of the device or of the host, whichever is more."""
        return np.maximum(self.host, self.device)


def rank_work(job: Job, lines: Rows) -> RankWork:
    """Divide the work of all ranks at some lines of `job.meetings`, the same number in each step.

    A task belongs to the segment of the last collective that was asked for before it was submitted. On the steps'
    thread and on streams alike: a kernel that is launched before a collective comes before it.
    """
    segments, steps = [], []
    for column, part in enumerate(job.parts):
        own_step = job.step_of(column, part.tasks.step)
        asked = asking_moments(part, job.meetings.row[lines, column])
        asked = np.sort(asked[asked < _NEVER])
        number = np.searchsorted(asked, part.tasks.submitted, side="right")
        first = np.full(len(job.steps), _NEVER)
        np.minimum.at(first, own_step[own_step >= 0], number[own_step >= 0])
        works = (own_step >= 0) & ~are_of_kinds(part.tasks, *_WAITING) & _decides(part)
        segments.append(np.where(works, number - first[own_step], -1).astype(np.int32))
        steps.append(own_step)
    count = 1 + max((int(own.max(initial=0)) for own in segments), default=0)
    shape = len(job.parts), len(job.steps), count
    host, device = np.zeros(shape), np.zeros(shape)
    for rank, (part, segment, step) in enumerate(zip(job.parts, segments, steps, strict=True)):
        for table, chosen in ((host, ~part.is_device), (device, part.is_device)):
            own = (segment >= 0) & chosen
            np.add.at(table[rank], (step[own], segment[own]), part.tasks.duration[own])
    return RankWork(tuple(segments), tuple(steps), host, device)


def _decides(part: TaskGraph) -> Mask:
    """The steps' thread and the streams: other threads work beside them."""
    kinds = np.array([track.kind != TrackKind.THREAD for track in part.tracks], dtype=bool)
    kinds[part.owner] = True
    found: Mask = kinds[part.tasks.track]
    return found


def asking_moments(part: TaskGraph, rows: Rows) -> I64:
    """When a rank's host asked for each collective, on the clock of its trace; the largest number where it does not.

    The launching call's start; of a collective beside the host's threads the moment of the task that asks for it.
    """
    tasks = communication_tasks(part, rows)
    there = tasks >= 0
    found = np.full(len(rows), _NEVER)
    found[there] = part.tasks.submitted[tasks[there]]
    edges = part.edges
    on_host = ~part.is_device[edges.source]
    own = np.flatnonzero((edges.kind == EdgeKind.COMMUNICATION) & on_host & np.isin(edges.target, tasks[there]))
    source = edges.source[own]
    moment = np.where(edges.at_start[own], part.tasks.start[source], part.tasks.end[source])
    asked = dict(zip(edges.target[own].tolist(), moment.tolist(), strict=True))
    for line in np.flatnonzero(there).tolist():
        found[line] = asked.get(int(tasks[line]), found[line])
    return found


def blocking_lines(job: Job) -> Rows:
    """The meetings that hold ranks up before they ask for the next one, in `job.meetings`.

    Between two of these a rank works without regard to the others. A bucket of gradients does not block: its rank asks
    for the next one while it is exchanged, and waits for all of them together behind the last.
    """
    found = np.zeros(len(job.meetings), dtype=bool)
    for column, part in enumerate(job.parts):
        asked, waited = _moments(part, job.meetings.row[:, column])
        order = np.flatnonzero(asked < _NEVER)
        order = order[np.argsort(asked[order], kind="stable")]
        following = np.append(asked[order][1:], _NEVER)
        found[order] |= waited[order] <= following
        found[order[-1:]] = True
    return np.flatnonzero(found)


def _moments(part: TaskGraph, rows: Rows) -> tuple[I64, I64]:
    """When each collective is asked for, and when something is submitted that waits for it; `_NEVER` for nothing."""
    tasks, edges = communication_tasks(part, rows), part.edges
    waiting = np.flatnonzero(~are_of_kinds(part.tasks, TaskKind.COMMUNICATION)[edges.target])
    first = np.full(len(part), _NEVER)
    np.minimum.at(first, edges.source[waiting], part.tasks.submitted[edges.target[waiting]])
    return asking_moments(part, rows), np.where(tasks >= 0, first[tasks], _NEVER)


def variation(work: F64) -> tuple[float, float, float]:
    """Standard deviation of ranks around the mean of all in the same step, and the ends of its 90 % interval.

    From work by rank and step, in its unit.

    The sum of squares around the means of the steps over (k - 1) S degrees of freedom, for k ranks and S steps; with a
    chi-squared interval. Where the means of ranks differ by more than their steps explain, only k - 1 degrees of
    freedom are left for the interval.
    """
    from scipy.stats import chi2, f

    ranks, steps = work.shape
    apart = work - work.mean(axis=0)
    free = (ranks - 1) * steps
    square = float((apart**2).sum()) / max(free, 1)
    if square == 0:
        return 0.0, 0.0, 0.0
    # Whether ranks differ from each other in all steps (F test at 1 %), so that there are few samples.
    lasting = False
    if steps > 1:
        between = steps * float((apart.mean(axis=1) ** 2).sum()) / (ranks - 1)
        within = float(((apart - apart.mean(axis=1, keepdims=True)) ** 2).sum()) / ((ranks - 1) * (steps - 1))
        lasting = within == 0 or between / within > f.ppf(0.99, ranks - 1, (ranks - 1) * (steps - 1))
    degrees = ranks - 1 if lasting else free
    least, most = (square * degrees / float(chi2.ppf(share, degrees)) for share in (0.95, 0.05))
    return square**0.5, least**0.5, most**0.5


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """The mean of the largest of `count` standard normal values, by integration over its distribution function.

    E[max] = integral of x n phi(x) Phi(x)^(n-1) (David and Nagaraja, "Order Statistics", 2003, section 3.1).

    >>> round(expected_maximum(2), 6), round(expected_maximum(1000), 3)
    (0.56419, 3.241)
    """
    from scipy.stats import norm

    points = np.linspace(-9.0, 9.0, 20_001)
    density = count * norm.pdf(points) * norm.cdf(points) ** (count - 1)
    return float((points * density).sum() * (points[1] - points[0]))


def harmonic(count: int) -> float:
    """1 + 1/2 + ... + 1/n: the mean of the largest of n exponential values of mean 1 (Renyi, 1953).

    >>> harmonic(1), harmonic(2)
    (1.0, 1.5)
    """
    return float((1 / np.arange(1, count + 1)).sum())
