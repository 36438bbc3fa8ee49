"""The data of verdicts on times: paired rounds, one fresh process of each side, in random order.

The process is the statistical unit: however many steps it ran, it gives one positive number per metric. The false-alarm
guarantee depends on the random order: with it, two unchanged sides differ only in the place of their code, so the signs
of the log ratios are coin flips, whatever the noise, its tails, its modes or its drift.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.model.metrics import of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.judge.work import StepWork
    from pytest_perfdl.results.curve import RankSide

Order = Literal["base first", "head first"]
Start = Literal["forked", "started"]
"""How both processes of a round began: forked from one that had loaded the third-party modules, or started anew."""

ONE_ORDER_ALPHA = 1e-4
"""Orders are called fixed when a coin gives all of them alike less often than this: from 15 rounds on."""
ALIKE = 2
"""Rounds with the same times on both sides that count as shared state if they are at least half of all: some
may be a coarse clock's."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfiledRanks:
    """The ranks of one process of a round."""

    side: RankSide
    parts: tuple[StepParts | None, ...]
    """The breakdown of each rank's steps."""
    work: tuple[StepWork, ...]
    """What the operators of each rank's steps had to do."""


@dataclass(frozen=True, slots=True)
class TimedCases:
    """The cases of a table in one round."""

    base: Mapping[str, float]
    """Nanoseconds of a call, by id, of the cases that both sides measured."""
    head: Mapping[str, float]
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a case was not measured on a side, in one line, by id."""

    def has(self, ids: Iterable[str]) -> bool:
        """Whether the round has times of all of these cases."""
        return all(case in self.base for case in ids)


@dataclass(frozen=True, slots=True)
class Round:
    """One fresh process of the base and one of the head, measured in the same moment.

    Both profile some steps after the timed ones, or neither does: what is of profiled steps is then empty, and `base`
    and `head` lack the metrics that need a profile.
    """

    order: Order
    base: Mapping[str, float]
    """One number a metric, in its base unit; positive, but for what the test's author measures."""
    head: Mapping[str, float]
    kernels_base: Mapping[str, float] = field(default_factory=dict)
    """One positive number a kernel or operator: its time in a step."""
    kernels_head: Mapping[str, float] = field(default_factory=dict)
    parts_base: Mapping[str, StepParts] = field(default_factory=dict)
    """What the profiled steps are made of, by call."""
    parts_head: Mapping[str, StepParts] = field(default_factory=dict)
    work_base: Mapping[str, StepWork] = field(default_factory=dict)
    """What the operators of the profiled steps had to do, by call."""
    work_head: Mapping[str, StepWork] = field(default_factory=dict)
    ranks_base: Mapping[str, ProfiledRanks] = field(default_factory=dict)
    """The ranks of the profiled steps, by call; empty without ranks."""
    ranks_head: Mapping[str, ProfiledRanks] = field(default_factory=dict)
    cases: TimedCases | None = None
    """Those of a table; `None` without one."""
    start: Start = "started"
    core: int | None = None
    """The CPU that both were bound to while they warmed up and were timed; `None` where they were free."""
    together: bool = True
    """Whether both were alive at once and took turns; else one ran after the other, in this order."""

    @property
    def is_profiled(self) -> bool:
        """Whether both have profiled steps."""
        return bool(self.kernels_base or self.parts_base) and bool(self.kernels_head or self.parts_head)


def orders(seed: int, count: int) -> tuple[Order, ...]:
    """The first `count` orders that a seed decides on; a longer draw begins with a shorter one.

    >>> orders(7, 4)
    ('base first', 'head first', 'base first', 'base first')
    """
    coin = random.Random(seed)
    return tuple("head first" if coin.getrandbits(1) else "base first" for _ in range(count))


def broken(rounds: Sequence[Round], metrics: Iterable[str]) -> str:
    """Why these rounds are invalid, in one line; empty if they are valid.

    Fixed order: random orders are all equal in fifteen rounds once in 16,384 times. Eleven (once in a thousand) would
    reject valid tests too often: it occurred once in a hundred live trials.
    """
    names = tuple(metrics)
    for number, each in enumerate(rounds, 1):
        for side, values in (("baseline", each.base), ("current", each.head)):
            for name in names:
                value = values.get(name)
                if value is None:
                    return f"paired round {number}: the {side} code has no value of {name}"
                if not (math.isfinite(value) and value > 0):
                    return f"paired round {number}: {name} of the {side} code is {value:g}, so no ratio can be computed"
        if each.base is each.head:
            return f"paired round {number}: the same measurement is used for baseline and current code"
    # Custom metrics may be the same every time.
    times = [name for name in names if of(name) is not None]
    alike = [n for n, each in enumerate(rounds, 1) if times and all(each.base[m] == each.head[m] for m in times)]
    if len(alike) >= max(ALIKE, len(rounds) / 2):
        which = ", ".join(map(str, alike[:5])) + (", ..." if len(alike) > 5 else "")
        return f"baseline and current code have identical times in paired rounds {which}, so they are not independent"
    if len({each.order for each in rounds}) == 1 and 2.0 ** (1 - len(rounds)) < ONE_ORDER_ALPHA:
        side = "baseline" if rounds[0].order == "base first" else "current"
        return f"the {side} code ran first in all {len(rounds)} paired rounds, so the order was not random"
    return ""


def profiled(rounds: Sequence[Round]) -> list[Round]:
    """The rounds with profiled steps."""
    return [each for each in rounds if each.is_profiled]


def values(rounds: Sequence[Round], metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both sides' values of a metric, (base, head), one per round."""
    return (
        np.array([each.base[metric] for each in rounds], np.float64),
        np.array([each.head[metric] for each in rounds], np.float64),
    )


def log_ratios(rounds: Sequence[Round], metric: str) -> NDArray[np.float64]:
    """`log(head / base)` of a metric, one per round."""
    base, head = values(rounds, metric)
    return np.log(head) - np.log(base)


def head_second(rounds: Sequence[Round]) -> tuple[bool, ...]:
    """Whether the head ran second, one per round."""
    return tuple(each.order == "base first" for each in rounds)
