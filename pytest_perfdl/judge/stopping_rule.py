"""The stopping rule of paired rounds, with its error level (`ALPHA`) and least number of rounds (`LEAST_ROUNDS`).

One rule, applied after every round, decides whether to continue, and gives the verdicts on a test's times:

    gate = Gate(held, tests=40)
    rounds, outcome = [], gate.look([])
    while outcome.open:
        rounds += ...                                   # one more; or the budget ends:
        outcome = gate.look(rounds, Spent(seconds, budget))
    outcome.verdicts                                    # one MetricVerdict per metric

The unit is the round, one fresh process of each side (`round_data`). For every metric, rounds give an estimate of the
slowdown, and the evidence that there is one (`evidence`). A test ends

- `regressed` if the combined evidence of its metrics (their mean) is at least `tests / ALPHA`, and a metric with an
  evidence of at least `OWN_EVIDENCE` is over its limit with a probability of `OVER`. For unchanged code the former
  happens in at most `ALPHA` of all runs, whatever the noise; the latter keeps slowdowns below the limit from failing,
  as far as the estimate is right.
- `unchanged` if a slowdown above the limit is excluded with `EXCLUDED`, after `LEAST_ROUNDS` rounds in which both sides
  ran first at least once; `improved` if the mirrored evidence shows it.

Otherwise the time budget ends it: `suspect` if a metric is over its limit with a probability of `OVER`, after twice the
budget and at least `LEAST_ROUNDS` rounds; `unchanged` with its bound if that is within the resolution; `inconclusive`
in all other cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge import reasons
from pytest_perfdl.judge import round_data as pairs
from pytest_perfdl.judge.log_ratios import with_change, worsening
from pytest_perfdl.model.metrics import STEP_TIMES, general, is_utilization
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.results.verdict import MetricVerdict, Verdict
from pytest_perfdl.stats import evidence
from pytest_perfdl.stats.evidence import Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.model.limits import Limit
    from pytest_perfdl.model.record import Better

    Floats = NDArray[np.float64]

ALPHA = 0.005
"""False-positive rate of a whole run: probability that any unchanged test is `regressed` because of its step times."""
OWN_EVIDENCE = 20.0
"""Minimum evidence of a single metric to be reported, and of a speed-up."""
OVER = 0.95
"""Probability of being over the limit from which a time counts as slower."""
EXCLUDED = 0.975
"""Confidence level of excluded slowdowns."""
LEAST_ROUNDS = 3
"""Minimum number of rounds to exclude or suspect anything: by chance, all of three are on one side once in eight
times."""
_LARGER = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Limits that are suggested for a test whose noise is far above its own."""
_UNKNOWN = "the value is missing, 0 or below in some paired rounds, so it is not compared"
EVERY_ROUND = 8
"""A suspect whose step was over its limit in every one of this many rounds, and log2(times of steps in the run) more,
fails: symmetric noise does that to a step at its limit, or to any step if the limit is far below the noise, once in
256 runs. With `ALPHA` this stays below 1 %."""


@dataclass(frozen=True, slots=True)
class Held:
    """A timed metric with a limit, compared in paired rounds."""

    name: str
    limit: Limit
    unit: str = "ns"
    better: Better = "lower"

    @property
    def sign(self) -> int:
        """Of a change for the worse."""
        return 1 if self.better == "lower" else -1

    @property
    def decides(self) -> bool:
        """Whether a test is `unchanged` only if more than this metric's limit is excluded, whatever else is held.

        A block's mean holds every step's outlier, so it is noisier than the quartile of steps: beside that it may fail
        a test, as where one step of five got slower, and need not clear it.
        """
        return general(self.name) != "block_time"

    @property
    def bet(self) -> float:
        """The relative limit on the log scale: what evidence is collected against. It must not depend on the sides."""
        return self.log(self.limit.relative or 0.0)

    def log(self, share: float) -> float:
        """A worsening by a share on the log scale: a longer time, or a smaller throughput."""
        return math.log1p(share) if self.sign > 0 else -math.log1p(-min(share, 0.99))

    def bound(self, base: Floats) -> float:
        """The limit on the log scale for a base of these values: the median of what each value allows.

        Infinite where a metric of which more is better could lose everything and stay within.
        """
        allowed = np.array([self.limit.allowed(value, self.unit) for value in base.tolist()])
        with np.errstate(divide="ignore"):
            worst = np.log(np.maximum(base + self.sign * allowed, 0.0))
        return float(np.median(self.sign * (worst - np.log(base))))


@dataclass(frozen=True, slots=True)
class Spent:
    """Time that the rounds of a test have used of its budget, in seconds."""

    seconds: float
    budget: float

    @property
    def ended(self) -> bool:
        """Whether no further round runs, except for a suspect."""
        return self.seconds >= self.budget

    @property
    def most(self) -> float:
        """Seconds that may be used, a suspect's extension included once it has begun."""
        return 2 * self.budget if self.ended else self.budget

    @property
    def extension_ended(self) -> bool:
        """Whether no further round runs at all."""
        return self.seconds >= 2 * self.budget


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What the rounds so far say."""

    open: bool
    """Whether to measure another round."""
    leans: bool = False
    """Whether a time looks worse or better than its limit allows, so that its cause will be asked for."""
    verdicts: Mapping[str, MetricVerdict] = field(default_factory=dict)
    """By metric; empty while it is open."""
    cases: frozenset[str] = frozenset()
    """Cases of a table that the next round measures."""


@dataclass(frozen=True, slots=True)
class _State:
    """One metric after some rounds."""

    held: Held
    head: Floats
    differences: tuple[float, ...]
    """log(head / base) of each round, above zero for worse."""
    estimate: Estimate
    limit: float
    evidence: float

    @property
    def mixed(self) -> bool:
        """Whether each side went first in some round."""
        return len(set(self.estimate.head_second)) > 1

    @property
    def over(self) -> float:
        return self.estimate.over(self.limit)

    @property
    def under(self) -> float:
        """Probability that it is better by more than the limit."""
        return 1 - self.estimate.over(-self.limit)

    @property
    def faster(self) -> bool:
        """Whether it is better by more than the limit, as far as the estimate tells."""
        return self.under >= OVER

    @property
    def surely_faster(self) -> bool:
        mirrored = (-each for each in self.differences)
        return self.faster and evidence.evidence(mirrored, self.held.bet) >= OWN_EVIDENCE

    def excludes(self, bound: float, least: int) -> bool:
        """Whether more than a bound on the log scale is excluded.

        Rounds in which the same side always went first say the same of the order as of the code: were the second
        process of a round always 5 % slower, three of them would clear a slowdown once in eight times.
        """
        if len(self.differences) < least or self.estimate.over(bound) > 1 - EXCLUDED:
            return False
        return least < LEAST_ROUNDS or (self.mixed and evidence.rarely_so_few(self.differences, bound))


@dataclass(frozen=True, slots=True)
class Gate:
    """The rule for the times of one test.

    Raises
    ------
    ValueError
        When there is nothing to judge, or a limit does not fit its metric.
    """

    held: tuple[Held, ...]
    tests: int = 1
    """Number of tests, and of comparisons in them, that share `ALPHA`."""
    resolution: float | None = None
    """Slowdown (a fraction) to exclude for `unchanged` when the time budget ends; `None` for twice the limit."""
    least: int = LEAST_ROUNDS
    """Minimum number of rounds to exclude or suspect anything."""

    def __post_init__(self) -> None:
        if not self.held or self.tests < 1:
            raise ValueError(f"cannot decide on {len(self.held)} metrics of {self.tests} tests")
        for each in self.held:
            each.limit.check(each.unit, each.better)
            if each.limit.off:
                raise ValueError(f"{each.name} has no limit")

    def decides(self, held: Held) -> bool:
        """Whether the test is `unchanged` only if more than this metric's limit is excluded."""
        call = held.name.rpartition(".")[0]
        return held.decides or metric_name(call, "step_time") not in {each.name for each in self.held}

    @property
    def needed(self) -> float:
        """The evidence at which a test may fail: T of Ville's inequality."""
        return self.tests / ALPHA

    @property
    def least_to_fail(self) -> int:
        """The least number of rounds that can fail a test."""
        return evidence.least_rounds(self.needed)

    @property
    def every_round(self) -> int:
        """The least number of rounds, all past the limit, for which a suspect fails."""
        steps = sum(general(each.name) == "step_time" for each in self.held)
        return math.ceil(EVERY_ROUND + math.log2(self.tests * max(steps, 1)))

    def look(self, rounds: Sequence[Round], spent: Spent | None = None) -> GateOutcome:
        """Decide from the rounds measured so far; a pure function, so that saved rounds can be replayed.

        Parameters
        ----------
        rounds
            In the order in which they were measured. A metric that is missing, 0 or below in some of them has no ratio,
            and is set apart.
        spent
            Time used of the budget; `None` for no budget.
        """
        if unknown := self._unknown(rounds):
            rest = tuple(each for each in self.held if each not in unknown)
            found = replace(self, held=rest).look(rounds, spent) if rest else GateOutcome(open=False)
            apart = [self._without_ratio(each, rounds, spent) for each in unknown]
            fails = any(each.verdict == "regressed" for each in found.verdicts.values())
            if found.open or (not fails and any(is_open for _, is_open in apart)):
                return GateOutcome(True, leans=found.leans)
            return GateOutcome(False, verdicts={**found.verdicts, **{each.name: each for each, _ in apart}})
        names = tuple(each.name for each in self.held)
        if reason := pairs.broken(rounds, names):
            return GateOutcome(
                False, verdicts={each.name: _shown(each, "invalid", reason, len(rounds)) for each in self.held}
            )
        ended, extension_ended = (spent.ended, spent.extension_ended) if spent else (False, False)
        if not rounds:
            reason = "no paired round was measured"
            shown = {each.name: _shown(each, "inconclusive", reason, 0) for each in self.held}
            return GateOutcome(False, verdicts=shown) if ended else GateOutcome(True)
        states = [_state(each, rounds) for each in self.held]
        silent = self._silent(states)
        if worse := [each for each in self._regressed(states) if each.held.name not in silent]:
            return self._ended_with(states, spent, worse, silent)
        judged = [each for each in states if each.held.name not in silent]
        quiet = all(each.over < 0.5 for each in judged)
        deciding = [each for each in judged if self.decides(each.held)]
        clear = quiet and all(each.excludes(each.limit, self.least) for each in deciding)
        # A speed-up that looks certain gets the few more rounds that confirm it.
        if clear and (ended or all(each.surely_faster or not each.faster for each in deciding)):
            return self._ended_with(states, spent, (), silent)
        suspected = any(each.over >= OVER for each in judged)
        if extension_ended or (ended and not suspected):
            return self._ended_with(states, spent, (), silent)
        return GateOutcome(True, leans=any(max(each.over, each.under) >= 0.5 for each in judged))

    def _unknown(self, rounds: Sequence[Round]) -> list[Held]:
        """Metrics that some process of the rounds lacks, or that are 0 or below: any but times of steps may be."""
        sides = [side for each in rounds for side in (each.base, each.head)]
        return [
            each
            for each in self.held
            if general(each.name) not in STEP_TIMES and not all(side.get(each.name, 0.0) > 0 for side in sides)
        ]

    def _without_ratio(self, held: Held, rounds: Sequence[Round], spent: Spent | None) -> tuple[MetricVerdict, bool]:
        """The verdict on such a metric, by its absolute limit if it has one, and whether more rounds may change it.

        Past its limit in every one of enough rounds it fails, as a suspect does; within it in all it is unchanged.
        """
        count = len(rounds)
        shown = _shown(held, "inconclusive", _UNKNOWN, count)
        if any(held.name not in side for each in rounds for side in (each.base, each.head)):
            return shown, False
        base, head = pairs.values(rounds, held.name)
        shown = replace(shown, base=float(np.median(base)), new=float(np.median(head)))
        if held.limit.absolute is None or is_utilization(held.name):
            return shown, False
        allowed = [held.limit.allowed(value, held.unit) for value in base.tolist()]
        past = int(np.sum(held.sign * (head - base) > np.array(allowed)))
        text = reasons.without_ratio(shown, reasons.name_rounds(count))
        if count < self.least or 0 < past < count:
            shown = reasons.with_reason(shown, text, f"past the limit in {past} of them")
            return shown, count < self.least and not (spent and spent.ended)
        verdict: Verdict = "unchanged" if not past else "regressed" if count >= self.every_round else "suspect"
        shown = reasons.with_reason(replace(shown, verdict=verdict), text)
        return shown, verdict == "suspect" and not (spent and spent.extension_ended)

    def _silent(self, states: Sequence[_State]) -> Mapping[str, str]:
        """Utilization metrics of steps that did not get slower, with the reason why they are not compared.

        Removing unnecessary work makes a step faster and may reduce utilization: that is not a regression.
        """
        centers = {each.held.name: each.estimate.center for each in states}
        found = {}
        for name in (each.held.name for each in states if is_utilization(each.held.name)):
            call = name.rpartition(".")[0]
            step = next((each for each in STEP_TIMES if metric_name(call, each) in centers), None)
            if step is not None and centers[metric_name(call, step)] < 0:
                found[name] = f"not compared, because {step} did not get slower"
        return found

    def _ended_with(
        self, states: Sequence[_State], spent: Spent | None, worse: Sequence[_State], silent: Mapping[str, str]
    ) -> GateOutcome:
        """The verdicts on all metrics."""
        found = {}
        for each in states:
            name = each.held.name
            why = silent.get(name)
            said = self._verdict(each, each in worse, spent) if why is None else None
            found[name] = said or replace(_figures(each), verdict="unchanged", reason=why or "")
        return GateOutcome(False, verdicts=found)

    def _regressed(self, states: Sequence[_State]) -> list[_State]:
        """The metrics that fail the test."""
        if sum(each.evidence for each in states) / len(states) < self.needed:
            return []
        return [each for each in states if each.evidence >= OWN_EVIDENCE and each.over >= OVER]

    def _verdict(self, state: _State, regressed: bool, spent: Spent | None) -> MetricVerdict:
        shown = _figures(state)
        verdict, why = ("regressed", "") if regressed else self._ended(state, spent)
        text = reasons.interval(shown, reasons.name_rounds(len(state.differences)))
        times_over = None
        if verdict == "regressed" and shown.effect is not None and 0 < state.limit < math.inf:
            times_over = abs(shown.effect) / worsening(state.limit, state.held.sign)
        every = general(state.held.name) == "step_time" and len(state.differences) >= self.every_round
        shown = replace(
            shown,
            verdict=verdict,
            times_over=times_over,
            in_every_round=verdict == "suspect" and every and min(state.differences) > state.limit,
        )
        return reasons.with_reason(shown, text, why)

    def _ended(self, state: _State, spent: Spent | None) -> tuple[Verdict | None, str]:
        """The verdict on a metric that does not fail the test, and its reason."""
        rounds = len(state.differences)
        if state.surely_faster:
            return "improved", ""
        resolution = 2 * state.limit if self.resolution is None else state.held.log(self.resolution)
        if state.excludes(state.limit, self.least) or (
            state.over < 0.5 and state.excludes(max(resolution, state.limit), self.least)
        ):
            bound = worsening(state.estimate.interval[1], state.held.sign)
            if bound <= 0:
                return "unchanged", "no slowdown"
            found = "no slowdown detected"
            if state.estimate.interval[0] > 0:
                within = state.excludes(state.limit, self.least)
                found = (
                    "slower than the baseline, but within the limit"
                    if within
                    else "slower than the baseline, possibly within the limit"
                )
            excluded = f"{found}; a slowdown above {reasons.percent(bound)} is excluded (97.5% confidence)"
            return "unchanged", f"{excluded}{self._cheaper(state, spent)}"
        # The interval of one or two rounds is that of ordinary noise: on a busy machine it accuses the same code.
        if rounds >= self.least and state.over >= OVER:
            past = sum(each > state.limit for each in state.differences)
            seen = f"over the limit in {'all' if past == rounds else f'{past} of'} {reasons.name_rounds(rounds)}"
            if spent is None or not spent.ended:
                # Another metric has failed the test: no more rounds were needed.
                return "suspect", seen
            wanted = _round_up(max(self.least_to_fail + 1, 2 * rounds) * spent.seconds / rounds)
            return (
                "suspect",
                f"{seen}; stopped by --perf-budget={spent.budget:g}; a certain verdict needs about {wanted} s",
            )
        if not self.decides(state.held):
            return None, ""
        if rounds < self.least:
            return (
                "inconclusive",
                f"at least {self.least} paired rounds are needed, but only {rounds} fit into --perf-budget",
            )
        if self.least >= LEAST_ROUNDS and not state.mixed:
            return (
                "inconclusive",
                "the same code ran first in all paired rounds, so more rounds are needed (--perf-budget)",
            )
        bound = worsening(state.estimate.interval[1], state.held.sign)
        text = f"a slowdown of up to {reasons.percent(bound)} cannot be excluded"
        return "inconclusive", f"{text}{self._cheaper(state, spent)}"

    def _cheaper(self, state: _State, spent: Spent | None) -> str:
        """Of a test that the time budget ended: the limit that it could be held to in a fifth of that, if any.

        The interval's half width shrinks with the root of the number of rounds.
        """
        if spent is None or not spent.ended or not state.held.limit.relative or state.excludes(state.limit, self.least):
            return ""
        low, high = state.estimate.interval
        rounds = len(state.differences)
        for share in _LARGER:
            limit = state.held.log(share)
            needed = max(self.least + 1, math.ceil(rounds * ((high - low) / 2 / limit) ** 2))
            if limit > state.limit and needed <= rounds / 5:
                seconds = _round_up(needed * spent.seconds / rounds)
                held = f"at this noise, a limit of {share:.0%} needs about {seconds} s"
                return f"; stopped by --perf-budget={spent.budget:g}: {held}"
        return ""


def _state(held: Held, rounds: Sequence[Round]) -> _State:
    base, head = pairs.values(rounds, held.name)
    differences = tuple((held.sign * (np.log(head) - np.log(base))).tolist())
    return _State(
        held,
        head,
        differences,
        Estimate(differences, pairs.head_second(rounds)),
        held.bound(base),
        evidence.evidence(differences, held.bet),
    )


def _figures(state: _State) -> MetricVerdict:
    """A metric with its numbers, and the slowdown that is excluded."""
    held = state.held
    shown = add_estimate(_shown(held, None, "", len(state.differences)), state.head, state.estimate)
    return replace(shown, excluded=worsening(state.estimate.interval[1], held.sign))


def add_estimate(metric: MetricVerdict, head: Floats, estimate: Estimate) -> MetricVerdict:
    """A metric with the current side's median, and the effect and interval of the posterior."""
    sign = 1 if metric.better == "lower" else -1
    low, high = sorted(sign * end for end in estimate.interval)
    return with_change(metric, float(np.median(head)), sign * estimate.center, (low, high))


def _shown(held: Held, verdict: Verdict | None, reason: str, rounds: int) -> MetricVerdict:
    return MetricVerdict(
        name=held.name,
        kind="timed",
        unit=held.unit,
        better=held.better,
        base=None,
        new=None,
        limit=held.limit,
        verdict=verdict,
        reason=reason,
        evidence="paired",
        rounds=rounds,
    )


def _round_up(seconds: float) -> int:
    """Round up to two digits.

    >>> _round_up(117.3), _round_up(41.0), _round_up(8.2)
    (120, 41, 9)
    """
    grain = 10 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1)
    return int(math.ceil(seconds / grain) * grain)
