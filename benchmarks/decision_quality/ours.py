"""This project's decisions on recorded or simulated rounds, by the judge's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shortcut import Shortcut

from pytest_perfdl.config.options import BUDGET_SECONDS, FAILS, RECORDING_REPEATS
from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS, confirm, is_settled
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN, Limits
from pytest_perfdl.model.record import Call, Key, MeasurementPlan, Occasion, Record, Series
from pytest_perfdl.results.verdict import Judgement, Verdict, parse_fail_on

STORED = RECORDING_REPEATS
"""Repeats of a baseline."""
NAMES = ("step_time", "block_time")
"""The times of a step that have a limit unless a project says otherwise; of a loop that others feed only the second."""

Metrics = Mapping[str, float]
"""One number a metric, of one process."""
Draw = Callable[[], tuple[Round, float]]
"""Measures one more round; with the seconds that it took."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    verdict: Verdict
    fails: bool
    """With the default `--perf-fail-on`."""
    seconds: float
    """Spent on rounds, or on fresh repeats after the first."""
    rounds: int = 0
    excluded: float = math.nan
    """A slowdown of the first of its times by more than this is excluded, as a share; not a number without rounds."""

    @property
    def positive(self) -> bool:
        """Whether the test ends with a statement that it did not get slower."""
        return self.verdict in ("unchanged", "improved")


def record(repeats: Sequence[Metrics]) -> Record:
    """A record of so many processes; rows and counts, of which there are none here, decide nothing about times."""
    series = {name: Series("timed", "ns", "lower", tuple(each[name] for each in repeats)) for name in repeats[0]}
    return Record(
        test="recorded",
        key=Key("recorded", {}),
        context={},
        test_hash="recorded",
        plan=MeasurementPlan(warmup=15, steps=40),
        calls=(Call("", series, (), (1,) * len(repeats)),),
        occasions=(Occasion(len(repeats), "", None, None),),
    )


class Perf:
    """`pytest --perf` where there is a pair, with the commit named or not: rounds until the gate or the budget ends.

    Parameters
    ----------
    tests
        How many are measured in the run.
    limits
        Relative ones.
    budget
        Seconds of rounds.
    """

    def __init__(self, *, tests: int = 1, limits: Limits = BUILT_IN, budget: float = BUDGET_SECONDS) -> None:
        self._tests, self._limits, self._budget = tests, limits, budget
        self._known: dict[tuple[str, ...], tuple[Gate, Judgement, Record]] = {}

    def gate(self, names: tuple[str, ...]) -> Gate:
        """The gate of a test with these times."""
        return self._of(names)[0]

    def decide(self, draw: Draw) -> Outcome:
        """Draw rounds until there is a verdict."""
        drawn, seconds = draw()
        gate, found, once = self._of(tuple(drawn.base))
        shortcut = Shortcut(gate)
        rounds: list[Round] = []
        while True:
            rounds.append(drawn)
            shortcut.add(drawn)
            spent = Spent(seconds, self._budget)
            if not shortcut.surely_open(spent) and not (outcome := gate.look(rounds, spent)).open:
                break
            drawn, took = draw()
            seconds += took
        judged = settle(found, once, once, once, outcome.verdicts, rounds, self._limits)
        excluded = outcome.verdicts[gate.held[0].name].excluded
        return Outcome(judged.verdict, _fails(judged), seconds, len(rounds), math.nan if excluded is None else excluded)

    def _of(self, names: tuple[str, ...]) -> tuple[Gate, Judgement, Record]:
        """The gate, and what is known before rounds: no more than that these times are to be judged."""
        if names not in self._known:
            once = record([dict.fromkeys(names, 1e6)])
            found = standing(once, once, (), self._limits)
            self._known[names] = Gate(select_held(found, self._limits), self._tests), found, once
        return self._known[names]


def unpaired(stored: Sequence[Metrics], fresh: Sequence[Metrics], seconds: Sequence[float]) -> Outcome:
    """`pytest --perf` where there is nothing to pair with: up to five fresh repeats, as long as they can matter.

    `fresh` holds the first process and then up to `MOST_REPEATS - 1` more; `seconds` is what each of these took.
    """
    limits, base = BUILT_IN.unpaired(), record(stored)
    drawn = 1
    found = standing(record(fresh[:drawn]), base, (), limits)
    while (left := MOST_REPEATS - drawn) > 0 and not is_settled(found, base, record(fresh[:drawn]), left, limits):
        drawn += 1
    judged = confirm(found, base, record(fresh[:drawn]), limits, remaining=left)
    return Outcome(judged.verdict, _fails(judged), sum(seconds[: drawn - 1]))


def _fails(judged: Judgement) -> bool:
    return judged.fails(_FAIL_ON)


_FAIL_ON = parse_fail_on(FAILS)
