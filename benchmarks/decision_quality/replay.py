"""Replays a recording: many decisions a rule, drawn from the recorded processes and rounds.

*Stored, then fresh*, as every tool here is used: the stored processes are successive unchanged ones, the fresh
ones successive processes of the wanted slowdown, all of them later, as they were recorded. *Rounds*, ours alone:
drawn from the rounds of one cell and slowdown, with replacement, in an order that a lot draws anew. They keep the
sides that the lot gave them when they were recorded: what by chance leans to one side there does so here, in every
decision, so the few rounds that there are of a kind limit what false alarms in replays can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from ours import STORED, Draw, Outcome, unpaired
from recording import PLUGIN_STEPS, RUN_SECONDS, Cell, First, Process, Round, Run
from rules import Rule
from scipy import stats

from pytest_perfdl.judge import round_data as paired
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS

UNCHANGED = 0.0
_ORDERS: tuple[paired.Order, paired.Order] = ("base first", "head first")


@dataclass(frozen=True)
class Decision:
    """One verdict of one rule."""

    alarm: bool
    seconds: float
    positive: bool | None = None
    """Whether it says that there is no slowdown; `None` for a rule that says nothing of the kind."""
    excluded: float = math.nan
    """A slowdown by more than this share is excluded, where that is said."""
    rounds: int = 0


@dataclass(frozen=True)
class Tally:
    """Many decisions of one rule on one slowdown."""

    alarms: int
    decisions: int
    seconds: float
    """Mean until the verdict."""
    late: float = math.nan
    """The seconds that nine of ten decisions take at most."""
    positive: int | None = None
    """How many say that there is no slowdown; `None` where none could."""
    excluded: float = math.nan
    """Median of what is excluded where there is no slowdown."""
    rounds: float = 0.0
    """Mean."""

    @classmethod
    def of(cls, decisions: Sequence[Decision]) -> Tally:
        """Count them."""
        seconds = [each.seconds for each in decisions]
        telling = [each.positive for each in decisions if each.positive is not None]
        bounds = [each.excluded for each in decisions if each.positive]
        return cls(
            alarms=sum(each.alarm for each in decisions),
            decisions=len(decisions),
            seconds=sum(seconds) / len(seconds),
            late=float(np.quantile(seconds, 0.9)),
            positive=sum(telling) if telling else None,
            excluded=float(np.median(bounds)) if bounds else math.nan,
            rounds=sum(each.rounds for each in decisions) / len(decisions),
        )

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
    """The runs of one workload, and of its rounds those of one cell.

    Raises
    ------
    NotRecorded
        When there are rounds of several cells and none is chosen.
    """

    def __init__(self, runs: Sequence[Run], workload: str, cell: Cell | None = None) -> None:
        mine = sorted((run for run in runs if run.workload == workload), key=lambda run: run.at)
        self.workload = workload
        self._processes = [run for run in mine if isinstance(run, Process)]
        self._rounds = [run for run in mine if isinstance(run, Round) and cell in (None, run.cell)]
        times = [each.at for each in self._rounds]
        since, until = min(times, default=0.0) - RUN_SECONDS, max(times, default=math.inf)
        # Those of runs that measured such rounds: cells may be recorded again on another day, with another version.
        self._firsts = [run for run in mine if isinstance(run, First) and since <= run.at <= until]
        self._metrics: dict[int, dict[str, float]] = {}
        if len(found := {each.cell for each in self._rounds}) > 1:
            raise NotRecorded(f"rounds of {workload} are of {len(found)} cells: choose one")

    @cached_property
    def unchanged(self) -> list[Process]:
        """Processes of unchanged code, in the order of time."""
        return self.slowed(UNCHANGED)

    def slowed(self, share: float) -> list[Process]:
        """Processes with this slowdown, in the order of time."""
        return [each for each in self._processes if each.share == share]

    @property
    def shares(self) -> set[float]:
        """Slowdowns of its rounds."""
        return {each.share for each in self._rounds}

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
        """Draws rounds with this slowdown, each in an order drawn at random.

        Raises
        ------
        NotRecorded
        """
        known = self.rounds(share)
        pools = {
            order: [(paired.Round(order, each.base, each.head), each.seconds) for each in known if each.order == order]
            for order in _ORDERS
        }
        for order, pool in pools.items():
            if not pool:
                raise NotRecorded(f"no rounds of {self.workload} at {share:+.0%} that ran {order}")

        def draw() -> tuple[paired.Round, float]:
            pool = pools[_ORDERS[int(rng.integers(2))]]
            return pool[int(rng.integers(len(pool)))]

        return draw

    def first_seconds(self, share: float, rng: np.random.Generator) -> float:
        """What the first process of each side takes, one after the other, before any round.

        Of recordings that have none: two processes of so many steps as the plugin times, which profile nothing.
        """
        if self._firsts:
            drawn = self._firsts[int(rng.integers(len(self._firsts)))]
            return drawn.base_seconds + drawn.head_seconds
        sides = (self.unchanged, self.slowed(share))
        return sum(process_seconds(side[int(rng.integers(len(side)))], PLUGIN_STEPS) for side in sides)


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


class Paired(Protocol):
    """A rule that decides by rounds."""

    def decide(self, draw: Draw) -> Outcome:
        """Draw rounds until there is a verdict."""
        ...


def by_rounds(rule: Paired) -> Decide:
    """Decisions of a rule for rounds, the first processes' seconds included."""

    def deciding(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
        draw = pool.drawing(share, rng)
        return lambda: _decision(rule.decide(draw), pool.first_seconds(share, rng))

    return deciding


def our_unpaired(pool: Pool, share: float, rng: np.random.Generator) -> Callable[[], Decision]:
    """Decisions of `pytest --perf` without anything to pair with."""

    def decide() -> Decision:
        stored, fresh = pool.draw(STORED, MOST_REPEATS, share, rng)
        seconds = [process_seconds(each, PLUGIN_STEPS) for each in fresh]
        found = unpaired([pool.metrics(each) for each in stored], [pool.metrics(each) for each in fresh], seconds[1:])
        return _decision(found, seconds[0])

    return decide


def _decision(found: Outcome, before: float) -> Decision:
    return Decision(found.fails, found.seconds + before, found.positive, found.excluded, found.rounds)


def suites(
    rule: Paired, pools: Sequence[Pool], count: int, tests: int, seed: Sequence[int]
) -> tuple[int, list[Outcome]]:
    """Suites of so many unchanged tests, whose workloads take turns: how many of them fail, and every test's outcome.

    Raises
    ------
    NotRecorded
    """
    rng = np.random.default_rng(seed)
    draws = [pool.drawing(UNCHANGED, rng) for pool in pools]
    made = [[rule.decide(draws[number % len(draws)]) for number in range(tests)] for _ in range(count)]
    return sum(any(each.fails for each in suite) for suite in made), [each for suite in made for each in suite]


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
