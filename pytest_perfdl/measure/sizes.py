"""The number of steps that a process runs: the requested number, or fewer to fit into the time budget.

A reduction is reported (`reduction_note`). A quarter of the time is for warm-up, half for timed steps, and a quarter
for profiled and counted steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_perfdl.model.record import MeasurementPlan
from pytest_perfdl.model.units import format_quantity

ROUNDS = 8
"""Rounds that a budget is to hold, those that a verdict needs: steps are reduced for it, not the rounds."""
FEWEST_ROUNDS = 2
"""The same where starting the processes of a round takes most of the budget."""
LEAST_CYCLES = 8
"""Timed cycles in a repeat, so that the quartile over cycles means something with a long period."""
MOST_WARMUP = 6
"""Warm-up gives up after this many times its least number of steps."""
WARMUP, TIMED, PROFILED = 0.25, 0.5, 0.25
"""Shares of a process' seconds."""
_LEAST_TURNS = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Steps of one call in one process; all are whole periods."""

    warmup: int
    """Warm-up steps, at least."""
    most: int
    """The same, at most."""
    block: int
    """Warm-up steps after which it is asked whether they settle."""
    turns: int
    """Turns, or blocks, of the timed pass."""
    steps: int
    """Timed steps in a turn."""
    profiled: int
    """Steps that the profiler keeps."""


def full(plan: MeasurementPlan, period: int, turns: int) -> Sizes:
    """What the test asks for."""
    warmup = _whole(max(plan.warmup, period), period)
    return Sizes(
        warmup=warmup,
        most=max(warmup * MOST_WARMUP, _whole(60, period)),
        block=_whole(5, period),
        turns=turns,
        steps=_whole(max(plan.steps, LEAST_CYCLES * period) / turns, period),
        profiled=_whole(plan.profiled, period),
    )


def within(wanted: Sizes, period: int, step_ns: int, seconds: float, *, besides: int = 0) -> Sizes:
    """As much of it as some seconds hold: never less than one period a turn, two turns a process.

    Parameters
    ----------
    wanted
        What the test asks for.
    step_ns
        What a step takes; 0 where that is not known, and nothing is reduced.
    seconds
        For all steps of the process.
    besides
        Steps that are counted or not kept, beside those that the profiler keeps.

    >>> within(Sizes(15, 90, 5, turns=8, steps=5, profiled=4), 1, 1_000_000_000, 10.0)
    Sizes(warmup=2, most=2, block=2, turns=5, steps=1, profiled=2)
    """
    if not step_ns or math.isinf(seconds):
        return wanted
    cycles = seconds * 1e9 / (step_ns * period)
    warmup = min(wanted.warmup, max(1, int(cycles * WARMUP)) * period)
    timed = max(_LEAST_TURNS, int(cycles * TIMED))
    turns = min(wanted.turns, timed)
    return Sizes(
        warmup=warmup,
        most=max(warmup, min(wanted.most, int(cycles * WARMUP) * period)),
        block=min(wanted.block, warmup),
        turns=turns,
        steps=min(wanted.steps, timed // turns * period),
        profiled=min(wanted.profiled, max(1, int(cycles * PROFILED) - besides // period) * period),
    )


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long a process may take."""

    seconds: float
    setting: str = "--perf-timeout"
    """Where that is set."""
    elapsed: float = 0.0
    """Seconds that have passed when its steps begin."""

    @property
    def left(self) -> float:
        """Seconds for its steps."""
        return self.seconds - self.elapsed


_MARGIN = 1.3
"""What is suggested holds so many times what is expected."""
_FEWER = ((30, None), (20, None), (15, None), (10, None), (8, None), (8, 5), (8, 2), (8, 1))
"""Timed steps and least number of warm-up steps that are tried for a suggestion; `None` for as many as planned."""
_SMALLER = (0.7, 0.5, 0.3, 0.2)
"""Shares of the time that is left which the steps are reduced to for a suggestion."""


def step_count(sizes: Sizes, besides: int) -> int:
    """All steps of a process, of which `besides` are neither warm-up nor timed nor kept."""
    return sizes.warmup + sizes.turns * sizes.steps + sizes.profiled + besides


def longest_ns(wanted: Sizes, period: int, seconds: float, left: float, *, besides: int) -> float:
    """The longest step with which a process ends in time, even with its steps reduced to what `seconds` hold."""
    least = step_count(within(wanted, period, 2**62, 0.0, besides=besides), besides)
    first, last = left * 1e9 / step_count(wanted, besides), left * 1e9 / least
    for tried in range(100, 0, -1):
        step_ns = max(1, int(first * (last / first) ** (tried / 100)))
        if step_count(within(wanted, period, step_ns, seconds, besides=besides), besides) * step_ns <= left * 1e9:
            return step_ns
    return first


def cannot_finish(
    plan: MeasurementPlan, period: int, turns: int, step_ns: int, seconds: float, limit: TimeLimit, *, besides: int
) -> str:
    """Why a process will not end in time, with settings that help, in one line; empty where it will.

    >>> cannot_finish(MeasurementPlan(15, 40), 1, 4, 10**9, 300.0, TimeLimit(60.0), besides=4).partition(": ")[0]
    'one step takes 1.000 s; 63 steps need 63 s, more than --perf-timeout=60'
    """

    def needed(of: MeasurementPlan, share: float = seconds) -> tuple[int, float]:
        count = step_count(within(full(of, period, turns), period, step_ns, share, besides=besides), besides)
        return count, count * step_ns / 1e9

    def fits(of: MeasurementPlan, share: float = seconds) -> bool:
        return _MARGIN * needed(of, share)[1] <= limit.left

    count, need = needed(plan)
    if need <= limit.left:
        return ""
    fewer = (
        f"--perf-steps={steps}" + ("" if warmup is None else f" --perf-warmup={warmup}")
        for steps, warmup in _FEWER
        if steps < plan.steps
        and fits(replace(plan, steps=steps, warmup=plan.warmup if warmup is None else min(warmup, plan.warmup)))
    )
    budgets = (_round_down(ROUNDS * limit.left * share) for share in _SMALLER)
    smaller = (f"--perf-budget={budget}" for budget in budgets if fits(plan, budget / ROUNDS))
    less = next(itertools.chain(fewer, smaller), "")
    longer = f"{limit.setting}={_round_up(_MARGIN * (need + limit.elapsed))}"
    given = f"{limit.setting}={limit.seconds:g}"
    short = f"more than {given}" if need > limit.seconds else f"but {given} leaves only {limit.left:.0f} s after setup"
    return (
        f"one step takes {format_quantity(float(step_ns), 'ns')}; {count} steps need {need:.0f} s, {short}: "
        f"{f'add {less}, or set' if less else 'set'} {longer}"
    )


def _round_up(seconds: float) -> int:
    """To two digits, so that it reads like a setting."""
    unit = _unit(seconds)
    return math.ceil(seconds / unit) * unit


def _round_down(seconds: float) -> int:
    unit = _unit(seconds)
    return max(1, math.floor(seconds / unit) * unit)


def _unit(seconds: float) -> int:
    return int(10 ** max(0, math.floor(math.log10(max(seconds, 1.0))) - 1))


def reduction_note(wanted: Sizes, sizes: Sizes, step_ns: int, start: float = 0.0) -> str:
    """Which numbers of steps were reduced, and why, in one line; empty if none were.

    `start` is how many seconds a process takes up to its first step, if that is more than its steps may take.
    """
    parts = [
        f"{now} of {before} {what}"
        for what, now, before in (
            ("warm-up steps", sizes.warmup, wanted.warmup),
            ("timed steps", sizes.turns * sizes.steps, wanted.turns * wanted.steps),
            ("profiled steps", sizes.profiled, wanted.profiled),
        )
        if now < before
    ]
    if not parts:
        return ""
    starting = f", and starting a process {format_quantity(start * 1e9, 'ns')}" if start else ""
    return (
        f"the time budget (--perf-budget) allows only {', '.join(parts)}, because one step takes "
        f"{format_quantity(float(step_ns), 'ns')}"
        f"{starting}"
    )


class Pace:
    """The sizes of the calls of a test's rounds, the same for both sides of a round.

    Parameters
    ----------
    seconds
        For the steps of one process.
    step_ns
        What the steps of each call take, of the slower side, where that is known beforehand. Where it is not, the
        warm-up of a round says it, and its timed steps do for those after it.
    start
        Seconds up to the first step of a process.
    """

    def __init__(self, seconds: float = math.inf, step_ns: Mapping[str, int] | None = None, start: float = 0.0) -> None:
        self._seconds = seconds
        self._start = start if start > seconds else 0.0
        self._known = dict(step_ns or {})
        self._warm: dict[str, tuple[int, int]] = {}
        self._agreed: dict[str, Sizes] = {}
        self.note = ""
        """Which numbers were reduced, in one line; empty if no number was reduced."""

    def begin(self) -> None:
        """A round begins: its sizes are still to be agreed on."""
        self._agreed.clear()
        self._warm.clear()

    def warmup_seconds(self, call: str) -> float:
        """How long the warm-up of a call may take whose steps are not known; infinite where they are."""
        return math.inf if call in self._known else self._share(call) * WARMUP

    def before(self, wanted: Sizes, period: int, call: str) -> Sizes:
        """Sizes of the warm-up: what is known before it."""
        return within(wanted, period, self._known.get(call, 0), self._share(call))

    def warmed_up(self, call: str, steps: int, step_ns: int) -> None:
        """One of the two has warmed up, with so many steps; what a step took in the end."""
        most, slowest = self._warm.get(call, (steps, 0))
        self._warm[call] = min(most, steps), max(slowest, step_ns)

    def agreed(self, wanted: Sizes, period: int, call: str, *, besides: int = 0) -> Sizes:
        """Sizes of all that comes after the warm-up, once the first of the two has asked."""
        if call not in self._agreed:
            ran, step_ns = self._warm.get(call, (wanted.warmup, 0))
            step_ns = self._known.get(call, step_ns)
            sizes = within(wanted, period, step_ns, self._share(call), besides=besides)
            self._agreed[call] = replace(sizes, warmup=min(wanted.warmup, ran))
            self.note = self.note or reduction_note(wanted, self._agreed[call], step_ns, self._start)
        return self._agreed[call]

    def timed(self, call: str, step_ns: int) -> None:
        """What a step took in the timed steps of a round."""
        self._known.setdefault(call, step_ns)

    def _share(self, call: str) -> float:
        """Of several calls each gets what it takes of their time, or an equal part if that is more."""
        total = sum(self._known.values())
        if not total or call not in self._known:
            return self._seconds
        return self._seconds * max(self._known[call] / total, 1 / len(self._known))


def seconds_of_steps(budget: float, start: float) -> float:
    """Seconds for the steps of one of a round's two processes.

    A budget is to hold `ROUNDS` of them; fewer, but two, where starting both takes more than half of it.

    >>> seconds_of_steps(300, 3)
    17.25
    >>> seconds_of_steps(300, 60)
    45.0
    """
    rounds = max(FEWEST_ROUNDS, min(ROUNDS, int(budget / (2 * start)))) if start else ROUNDS
    return max(0.0, budget / rounds - start) / 2


def _whole(steps: float, period: int) -> int:
    """Rounded up to whole periods, so that every window holds every kind of step equally often."""
    return math.ceil(steps / period) * period
