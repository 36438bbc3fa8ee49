"""The rank that makes the others wait step after step, since when, and because of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.ranks.figures import Cause, Straggler
from pytest_perfdl.trace.model import F64, I64

LEAST_STEPS = 3
"""A rank that is late in fewer steps had a hiccup; a straggler is late from one step on in all that follow."""

LEAST_SHARE = 0.02
"""Of a step; what costs less is no straggler, as ranks are never equally fast."""

LONE_SHARE = 0.1
"""The same for one class of a rank that no other has equally much of, where it was no less before: a stage may have
more to do by its nature. From 10 % on Lin et al. call a job straggling."""

NOISE = 5.0
"""How many standard errors a rank's lateness must be above zero: with 1024 ranks and 100 steps to begin at there are
10^5 chances for a false one, each less likely than 3e-7."""

RISE = 2.0
"""By which factor the level has to rise for the rank not to have been a straggler before."""

SPLITS = 64
"""Steps at which a change of the level is looked for, spread over all; then those around the best one."""

MOSTLY = 0.6
"""Share of the steps since then in which the rank has most work of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What each rank did in each step, arrays of shape (steps, ranks), nanoseconds."""

    window_ns: I64
    classes: Mapping[Cause, I64]
    """Own work by class: time in which the rank computes, waits for input, or its host holds it up."""
    late_host_ns: I64
    """What the host has not launched while something is communicated, and no other rank is waited for. No class of the
    step: there it is exposed communication."""
    held_ns: I64
    """By how much it starts collectives later than the last of the others, summed over the step."""
    link_late_ns: I64
    """By how much it ends collectives later than the first, and messages to it take longer than others, summed."""
    link_excess_ns: I64
    """How much longer what it is the last to end is for it: see `meetings.by_step`."""
    roles: Mapping[Cause, tuple[int, ...]]
    """By class: ranks with the same number have equally much of it to do; stages of a pipeline may not."""

    @property
    def own_ns(self) -> I64:
        """Own work: the step without exposed communication."""
        return np.asarray(sum(self.classes.values()))


def find(evidence: Evidence, numbers: Sequence[int], ranks: Sequence[int], *, least_ns: int) -> Straggler | None:
    """The straggler, or `None` where the ranks are balanced or the figures do not allow to say.

    Synchronous ranks have equally long steps, so what tells the one that others wait for is not its step. Two series of
    each rank are looked at. Its *own work* (computing, input, and what the host or copies hold up), class by class less
    the median of the others that have equally much to do; the cause is then the class that it has most in excess. And
    by how much it ends collectives *later* than others, which is what a slow link does.

    The rule has three parts, like the detection of Greyhound (Wu et al., USENIX ATC 2025): the level of a series may
    change once, at the step that fits best (least absolute deviations); the change is verified for each rank, by its
    size against the noise of all ranks about their levels, by the share of the steps in which the rank is ahead of all
    others, and by its cost, against a least share of the step; and the slow part is told by comparing the rank with the
    others. Of several that are verified the costliest is named.

    *Cost* is what the step would be shorter with the next slowest rank in the straggler's place (a what-if of one rank,
    as in Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025): of own work
    what it has more than any other rank, at most by how much it holds up collectives; of a link its excess.

    Parameters
    ----------
    evidence
        Of the steps that all ranks have.
    numbers, ranks
        Numbers of the steps and of the ranks.
    least_ns
        A cost below this is no straggling, since clocks do not tell it.
    """
    steps, count = evidence.window_ns.shape
    if steps < LEAST_STEPS or count < 2:
        return None
    # The first stage of a pipeline launches late by its nature: no waiting for a stage before hides its Python.
    late_host = evidence.late_host_ns * (len(set(evidence.roles["host"])) == 1)
    own = evidence.own_ns + late_host
    classes: dict[Cause, I64] = {**evidence.classes, "host": evidence.classes["host"] + late_host}
    step_ns = float(np.median(evidence.window_ns))
    excess = {cause: _excess(each, evidence.roles[cause], LONE_SHARE * step_ns) for cause, each in classes.items()}
    late = np.asarray(sum(excess.values()))
    alike = all(len(set(evidence.roles[cause])) == 1 for cause in excess)
    cost = np.minimum(own - _others(own, np.max) if alike else late, evidence.held_ns)
    least_cost = max(least_ns, LEAST_SHARE * step_ns)
    work = _persistent(late, cost, least_cost)
    behind = evidence.link_late_ns - _others(evidence.link_late_ns, np.median)
    link = _persistent(behind, evidence.link_excess_ns.astype(np.float64), least_cost)
    if work is None and link is None:
        return None
    if work is None or (link is not None and link.cost > work.cost):
        assert link is not None
        return Straggler(ranks[link.place], numbers[link.first], "communication", round(link.cost))
    cause: Cause = max(excess, key=lambda each: float(np.median(excess[each][work.first :, work.place])))
    return Straggler(ranks[work.place], numbers[work.first], cause, round(work.cost))


@dataclass(frozen=True, slots=True)
class _Found:
    place: int
    first: int
    """Index of the step."""
    cost: float


def _excess(values: I64, roles: Sequence[int], least: float) -> F64:
    """What each rank has more of a class than the median of the others that have equally much of it to do.

    One that no other rank has as much as is compared with all others, less what it has by its nature.
    """
    found = np.empty(values.shape)
    for place, role in enumerate(roles):
        others = [other for other in range(len(roles)) if other != place]
        peers = [other for other in others if roles[other] == role]
        found[:, place] = values[:, place] - np.median(values[:, peers or others], axis=1)
        if not peers:
            found[:, place] -= _nature(found[:, place], least)
    return found


def _nature(excess: F64, least: float) -> float:
    """What a stage of its own has more than others because it has more to do: as much as before its level changed.

    From `least` on it is too much to be that. Fewer than `LEAST_STEPS` steps before do not show that it has less to do:
    in the first one, devices may still run what was launched before.
    """
    first = _since(excess, 1.0)
    level = float(np.median(excess[: first or None]))
    return 0.0 if level >= least else max(level, 0.0) if first < LEAST_STEPS else level


def _persistent(late: F64, cost: F64, least: float) -> _Found | None:
    """The rank that is late from one step on in all that follow, by more than noise and at a cost; the costliest."""
    steps, count = late.shape
    since = [_since(late[:, place]) for place in range(count)]
    left = np.concatenate([_about_levels(late[:, place], first) for place, first in enumerate(since)])
    # A level per rank, or two, is fitted: what is left is that much smaller than the noise.
    noise = 1.4826 * float(np.median(np.abs(left))) * float(np.sqrt(steps / (steps - 1)))
    most = _others(late, np.max)
    found = []
    for place, first in enumerate(since):
        behind = late[first:, place]
        verified = (
            np.count_nonzero(behind * 2 > np.median(behind)) >= LEAST_STEPS
            and float(np.median(behind)) >= NOISE * 1.2533 * noise / float(np.sqrt(len(behind)))
            and float(np.mean(behind > most[first:, place])) >= MOSTLY
        )
        costs = float(np.median(cost[first:, place]))
        if verified and costs >= least:
            found.append(_Found(place, first, costs))
    return max(found, key=lambda each: each.cost, default=None)


def _others(values: npt.NDArray[Any], summary: Callable[..., Any]) -> F64:
    """For each rank a summary of the other ranks' values in each step."""
    columns = range(values.shape[1])
    found = [summary(np.delete(values, column, axis=1), axis=1) for column in columns]
    return np.stack(found, axis=1).astype(np.float64)


def _since(late: F64, rise: float = RISE) -> int:
    """Step from which on the level is another, 0 where one level fits as well, or the rank was late before.

    A second level has to reduce the absolute deviations by more than chance would: by a third. What is above the
    `LEAST_STEPS`-th largest value was there in fewer steps, so that it is no level, but a hiccup.
    """
    late = np.minimum(late, np.sort(late)[-LEAST_STEPS])
    most = len(late) - LEAST_STEPS
    apart = max(most // SPLITS, 1)
    tried = {split: _two_levels(late, split, rise) for split in range(1, most + 1, apart)}
    if tried and apart > 1:
        near = min(tried, key=lambda split: tried[split])
        around = range(max(near - apart + 1, 1), min(near + apart, most + 1))
        tried |= {split: _two_levels(late, split, rise) for split in around}
    best = min(tried, key=lambda split: tried[split], default=0)
    one = float(np.abs(late - np.median(late)).sum())
    return best if tried and tried[best] < one * 2 / 3 else 0


def _two_levels(late: F64, split: int, rise: float) -> float:
    """Absolute deviations from a level before and one after; infinite where it does not rise by a factor."""
    before, after = np.median(late[:split]), np.median(late[split:])
    if after <= max(rise * before, before, 0.0):
        return float("inf")
    return float(np.abs(late[:split] - before).sum() + np.abs(late[split:] - after).sum())


def _about_levels(late: F64, first: int) -> F64:
    parts = [late[:first], late[first:]]
    return np.concatenate([part - np.median(part) for part in parts if len(part)])
