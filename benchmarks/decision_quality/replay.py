"""Replays a recording: many decisions a rule, drawn from the recorded processes and rounds.

*Stored, then fresh*, as every tool here is used: the stored processes are successive unchanged ones, the fresh
ones successive processes of the wanted slowdown, all of them later, as they were recorded. *Rounds*, ours alone:
drawn from the recorded rounds of the wanted slowdown, with replacement, in an order that a coin draws as it did when
they were recorded; of a round of two unchanged sides it decides which one is called the head's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from ours import STORED, UNPAIRED_REPEATS, Draw, Outcome, against, gate, unpaired
from recording import PLUGIN_STEPS, Process, Round, Run
from rules import Rule
from scipy import stats

from pytest_perfdl.judge import rounds as paired
from pytest_perfdl.limits import Limits

UNCHANGED = 0.0
_ORDERS: tuple[paired.Order, paired.Order] = ("base first", "head first")
_OTHER: dict[str, str] = dict(zip(_ORDERS, reversed(_ORDERS), strict=True))


@dataclass(frozen=True)
class Decision:
    """One verdict of one rule."""

    alarm: bool
    seconds: float


@dataclass(frozen=True)
class Tally:
    """Many decisions of one rule on one slowdown."""

    alarms: int
    decisions: int
    seconds: float
    """Mean until the verdict."""

    @classmethod
    def of(cls, decisions: Sequence[Decision]) -> Tally:
        """Count them."""
        seconds = sum(each.seconds for each in decisions) / len(decisions)
        return cls(sum(each.alarm for each in decisions), len(decisions), seconds)

    @property
    def share(self) -> float:
        """Of alarms."""
        return self.alarms / self.decisions

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's interval of the share."""
        return wilson(self.alarms, self.decisions, confidence)


def wilson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927)."""
    z = float(stats.norm.ppf((1 + confidence) / 2))
    share, weight = hits / trials, z * z / trials
    center = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / trials / 4)
    return max(0.0, center - half), min(1.0, center + half)


class NotRecorded(Exception):
    """The recording has too few runs of some kind; the message names it."""


class Pool:
    """The runs of one workload."""

    def __init__(self, runs: Sequence[Run], workload: str) -> None:
        mine = sorted((run for run in runs if run.workload == workload), key=lambda run: run.at)
        self.workload = workload
        self._processes = [run for run in mine if isinstance(run, Process)]
        self._rounds = [run for run in mine if isinstance(run, Round)]
        self._metrics: dict[int, dict[str, float]] = {}

    @cached_property
    def unchanged(self) -> list[Process]:
        """Processes of unchanged code, in the order of time."""
        return self.slowed(UNCHANGED)

    def slowed(self, share: float) -> list[Process]:
        """Processes with this slowdown, in the order of time."""
        return [each for each in self._processes if each.share == share]

    def rounds(self, share: float) -> list[Round]:
        """Rounds with this slowdown of the head.

        Raises
        ------
        NotRecorded
        """
        found = [each for each in self._rounds if each.share == share]
        if not found:
            raise NotRecorded(f"no rounds of {self.workload} at {share:+.0%}")
        return found

    def draw(
        self, stored: int, fresh: int, share: float, rng: np.random.Generator
    ) -> tuple[list[Process], list[Process]]:
        """Successive unchanged processes and, of those recorded later, successive ones of the slowdown.

        Raises
        ------
        NotRecorded
        """
        later = self.slowed(share)
        last = [each.at for each in later][-fresh] if len(later) >= fresh else -math.inf
        starts = [i for i in range(len(self.unchanged) - stored + 1) if self.unchanged[i + stored - 1].at < last]
        if not starts:
            raise NotRecorded(
                f"no {fresh} processes of {self.workload} at {share:+.0%} later than {stored} unchanged ones"
            )
        start = int(rng.choice(starts))
        before = self.unchanged[start : start + stored]
        following = [each for each in later if each.at > before[-1].at]
        first = int(rng.integers(len(following) - fresh + 1))
        return before, following[first : first + fresh]

    def metrics(self, process: Process) -> dict[str, float]:
        """The plugin's metrics of a process."""
        known = self._metrics.get(id(process))
        if known is None:
            known = self._metrics[id(process)] = process.measured.metrics()
        return known

    def drawing(self, share: float, rng: np.random.Generator) -> Draw:
        """Draws rounds with this slowdown, each in an order drawn by a coin.

        Raises
        ------
        NotRecorded
        """
        sides = [(each, each.base.metrics(), each.head.metrics()) for each in self.rounds(share)]
        if share == UNCHANGED:
            # Of two unchanged sides the coin only decides which is called the head.
            sides += [(replace(each, order=_OTHER[each.order]), head, base) for each, base, head in sides]
        pools = {order: [drawn for drawn in sides if drawn[0].order == order] for order in _ORDERS}
        for order, pool in pools.items():
            if not pool:
                raise NotRecorded(f"no rounds of {self.workload} at {share:+.0%} that ran {order}")

        def draw() -> tuple[paired.Round, float]:
            order = _ORDERS[int(rng.integers(2))]
            pool = pools[order]
            recorded, base, head = pool[int(rng.integers(len(pool)))]
            return paired.Round(order, base, head), recorded.seconds

        return draw


def process_seconds(process: Process, steps: int) -> float:
    """Starting a process, warming up and so many steps, by what was measured of it."""
    median = float(np.median(process.measured.steps))
    return (
        process.start_seconds + (process.measured.warmup * median + float(process.measured.steps[:steps].sum())) / 1e9
    )


Decide = Callable[[Pool, float, np.random.Generator], Callable[[], Decision]]
"""For a pool and a slowdown: makes one decision a call."""


def other(rule: Rule) -> Decide:
    """Decisions of another tool's rule."""

    def deciding(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
        def decide() -> Decision:
            stored, fresh = pool.draw(rule.stored, rule.fresh, share, rng)
            alarm = rule.slower([each.measured.steps for each in stored], [each.measured.steps for each in fresh])
            return Decision(alarm, sum(process_seconds(each, rule.taken(each.measured.steps)) for each in fresh))

        return decide

    return deciding


def our_gate(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
    """Decisions of `pytest --perf` with a baseline whose commit is there."""
    draw = pool.drawing(share, rng)

    def decide() -> Decision:
        stored, (fresh,) = pool.draw(STORED, 1, share, rng)
        found = gate([pool.metrics(each) for each in stored], pool.metrics(fresh), draw)
        return _decision(found, [fresh])

    return decide


def our_against(limits: Limits) -> Decide:
    """Decisions of `pytest --perf-against`; one process of either side first, for what is counted."""

    def deciding(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
        draw = pool.drawing(share, rng)

        def decide() -> Decision:
            (base,), (fresh,) = pool.draw(1, 1, share, rng)
            return _decision(against(pool.metrics(base), pool.metrics(fresh), draw, limits), [base, fresh])

        return decide

    return deciding


def our_unpaired(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
    """Decisions of `pytest --perf` without anything to pair with."""

    def decide() -> Decision:
        stored, fresh = pool.draw(STORED, 1 + UNPAIRED_REPEATS, share, rng)
        seconds = [process_seconds(each, PLUGIN_STEPS) for each in fresh[1:]]
        found = unpaired([pool.metrics(each) for each in stored], [pool.metrics(each) for each in fresh], seconds)
        return _decision(found, fresh[:1])

    return decide


def _decision(found: Outcome, screened: Sequence[Process]) -> Decision:
    return Decision(found.alarm, found.seconds + sum(process_seconds(each, PLUGIN_STEPS) for each in screened))


def tally(decide: Decide, pools: Sequence[Pool], share: float, decisions: int, seed: Sequence[int]) -> Tally:
    """So many decisions on each pool.

    Raises
    ------
    NotRecorded
    """
    made = []
    for number, pool in enumerate(pools):
        one = decide(pool, share, np.random.default_rng([*seed, number, round(1000 * share)]))
        made += [one() for _ in range(decisions)]
    return Tally.of(made)
