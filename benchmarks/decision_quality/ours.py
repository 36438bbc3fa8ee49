"""This project's decisions on recorded runs, by the judge's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_perfdl.judge import rounds as paired
from pytest_perfdl.judge.confirm import confirm, settled
from pytest_perfdl.judge.paired import PairedOutcome, PairedTest, Suspect
from pytest_perfdl.judge.screen import screen
from pytest_perfdl.judge.settle import settle, suspects
from pytest_perfdl.judge.spending import Spending
from pytest_perfdl.judge.verdict import Verdict
from pytest_perfdl.limits import BUILT_IN, Limits
from pytest_perfdl.options import CONFIRMING_SECONDS, RECORDING_REPEATS
from pytest_perfdl.record import Call, Key, Occasion, Plan, Record, Series
from pytest_perfdl.trial import CONFIRMING_REPEATS

STORED = RECORDING_REPEATS
"""Repeats of a baseline."""
UNPAIRED_REPEATS = CONFIRMING_REPEATS

Metrics = Mapping[str, float]
"""One number a metric, of one process."""
Draw = Callable[[], tuple[paired.Round, float]]
"""Measures one more round; with the seconds that it took."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    verdict: Verdict
    seconds: float
    """Spent on rounds, or on fresh repeats after the screen."""
    rounds: int = 0

    @property
    def alarm(self) -> bool:
        """Whether the test fails."""
        return self.verdict == "regressed"


def record(repeats: Sequence[Metrics]) -> Record:
    """A record of so many processes; rows and counts, of which there are none here, decide nothing about times."""
    series = {name: Series("timed", "ns", "lower", tuple(each[name] for each in repeats)) for name in repeats[0]}
    return Record(
        test="recorded",
        key=Key("recorded", {}),
        context={},
        test_hash="recorded",
        plan=Plan(warmup=15, steps=40),
        calls=(Call("", series, (), (1,) * len(repeats)),),
        occasions=(Occasion(len(repeats), "", None, None),),
    )


def gate(stored: Sequence[Metrics], fresh: Metrics, draw: Draw) -> Outcome:
    """`pytest --perf`: a screen by one fresh process; what it suspects goes to rounds against the baseline's commit."""
    new, base = record([fresh]), record(stored)
    judgement = screen(new, base, (), BUILT_IN)
    found = suspects(judgement, BUILT_IN, everything=False)
    if not found:
        return Outcome(judgement.verdict, 0.0)
    outcome, rounds, seconds = _rounds(found, draw, Spending(1), patient=False)
    return Outcome(settle(judgement, new, base, outcome, rounds, BUILT_IN).verdict, seconds, len(rounds))


def against(base: Metrics, fresh: Metrics, draw: Draw, limits: Limits = BUILT_IN) -> Outcome:
    """`pytest --perf --perf-against REF`: everything that has a limit goes to rounds."""
    new, old = record([fresh]), record([base])
    judgement = screen(new, old, (), limits)
    found = suspects(judgement, limits, everything=True)
    outcome, rounds, seconds = _rounds(found, draw, Spending(1, screened=False), patient=True)
    return Outcome(settle(judgement, new, old, outcome, rounds, limits).verdict, seconds, len(rounds))


def unpaired(stored: Sequence[Metrics], fresh: Sequence[Metrics], seconds: Sequence[float]) -> Outcome:
    """`pytest --perf` where there is nothing to pair with: up to five more fresh repeats settle a suspect.

    `fresh` holds the screen's process and then `UNPAIRED_REPEATS` more, `seconds` what each of these took.
    """
    limits = BUILT_IN.unpaired()
    base = record(stored)
    screened = screen(record(fresh[:1]), base, (), limits)
    if not screened.suspects:
        return Outcome(screened.verdict, 0.0)
    for drawn in range(1, UNPAIRED_REPEATS + 1):
        new, left = record(fresh[1 : 1 + drawn]), UNPAIRED_REPEATS - drawn
        if left and settled(screened, base, new, left, limits):
            break
    return Outcome(confirm(screened, base, new, limits, remaining=left).verdict, sum(seconds[:drawn]))


def _rounds(
    found: tuple[Suspect, ...], draw: Draw, spending: Spending, *, patient: bool
) -> tuple[PairedOutcome, list[paired.Round], float]:
    """Draw rounds until everything is decided, given up or the plugin's budget of seconds is spent."""
    test = PairedTest(found, spending.level(()))
    rounds: list[paired.Round] = []
    spent, ended, given_up = 0.0, False, False
    outcome = test.look(rounds)
    while outcome.next_look is not None:
        while len(rounds) < outcome.next_look and not (ended or given_up):
            drawn, seconds = draw()
            rounds.append(drawn)
            spent += seconds
            ended = spent > CONFIRMING_SECONDS
            given_up = not patient and test.hopeless(rounds)
        outcome = test.look(rounds, ended=ended, given_up=given_up)
    return outcome, rounds, spent
