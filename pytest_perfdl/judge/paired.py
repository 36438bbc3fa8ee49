"""The paired confirmation of one test's suspects: sequential, exact whatever the noise, careful by design.

    test = PairedTest(suspects, alpha=spending.level(past))
    rounds, outcome = [], test.look([])
    while outcome.next_look:
        rounds += ...                                   # at least up to outcome.next_look, or the budget ends:
        outcome = test.look(rounds, ended=...)
    outcome.decided                                     # one MetricVerdict a suspect

The unit is the round, one fresh process of each side (`rounds`); the test is the exact one-sided signed-rank
test of the log ratios beyond the limit (`signedrank`), the looks and their levels are `sequential`'s, and the
level of a test within its suite is `spending`'s.

- `regressed`: worse by more than the limit; Holm over the test's suspects at the level of the look.
- `improved`: the same with the sides exchanged, at the same level.
- `unchanged`: both one-sided tests say that the change is smaller than the limit, at 5 % over all looks, so
  what is slower by more than its limit is called unchanged in at most 1 of 20 cases.
- `inconclusive`: no round is left, none of those left could decide, or the test was given up (`hopeless`).

The effect is the Hodges-Lehmann estimate. Its 95 % interval is a repeated confidence interval: the intervals
at all looks hold together with 95 %, so stopping when something was found does not make it too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge import futility, sequential, signedrank, timed, wording
from pytest_perfdl.judge import rounds as pairs
from pytest_perfdl.judge.verdict import MetricVerdict, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.judge.rounds import Round
    from pytest_perfdl.limits import Limit
    from pytest_perfdl.record import Better

    Floats = NDArray[np.float64]

_VERDICTS: tuple[Verdict, ...] = ("inconclusive", "regressed", "improved", "unchanged")
"""By the numbers of `sequential`."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A timed metric to be confirmed, with the limit that it is held to."""

    name: str
    limit: Limit
    unit: str = "ns"
    better: Better = "lower"

    @property
    def sign(self) -> int:
        """Of a change for the worse."""
        return 1 if self.better == "lower" else -1

    def past(self, before: Floats, after: Floats) -> Floats:
        """How far `after` is past `before` worsened by the whole limit: log ratio, above zero is too bad.

        Every round is held to the larger of both parts of its own limit. That is a monotone transformation of
        the side before, so the test keeps its level under any worsening within the limit. Minus infinity where
        a metric of which more is better could lose everything and stay within.
        """
        allowed = np.array([self.limit.allowed(value, self.unit) for value in before.tolist()])
        worst = before + self.sign * allowed
        with np.errstate(divide="ignore"):
            bound = np.log(np.maximum(worst, 0.0))
        return np.asarray(self.sign * (np.log(after) - bound))


@dataclass(frozen=True, slots=True)
class PairedOutcome:
    """What the rounds so far say."""

    decided: Mapping[str, MetricVerdict]
    undecided: tuple[str, ...]
    """Suspects that further rounds can decide."""
    next_look: int | None
    """How many rounds the next look takes; `None` when the test is over."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The sequential test of one test's suspects.

    Raises
    ------
    ValueError
        When there is nothing to test, or a limit does not fit its metric.
    """

    suspects: tuple[Suspect, ...]
    alpha: float
    """Chance that any unchanged suspect is called `regressed`, over all looks."""
    most_rounds: int = sequential.LOOKS[-1]
    plan: sequential.Plan = field(init=False)

    def __post_init__(self) -> None:
        for suspect in self.suspects:
            suspect.limit.check(suspect.unit, suspect.better)
            if suspect.limit.off:
                raise ValueError(f"{suspect.name} has no limit to confirm")
        plan = sequential.Plan.of(self.alpha, len(self.suspects), self.most_rounds)
        object.__setattr__(self, "plan", plan)

    def hopeless(self, rounds: Sequence[Round]) -> bool:
        """Whether no suspect of these rounds is on course for `regressed`, so that the test may be given up.

        See `futility`: giving up removes alarms only. A test that asks for any decision should go on all the same.
        """
        if len(rounds) < futility.FEWEST:
            return False
        outcome = self.look(rounds)
        still_open = [each for each in self.suspects if each.name in outcome.undecided]
        if not still_open:
            return True
        past = np.stack([each.past(*pairs.values(rounds, each.name)) for each in still_open])
        level = self.plan.level / self.plan.suspects
        return not bool(futility.hopeful(past, self.plan.rejecting, level).any())

    def look(self, rounds: Sequence[Round], *, ended: bool = False, given_up: bool = False) -> PairedOutcome:
        """Judge the rounds measured so far: all looks that they have passed, in order.

        A pure function of its arguments, so a kept series of rounds can be replayed. Rounds beyond the last
        look do not count.

        Parameters
        ----------
        rounds
            In the order in which they were measured, each metric positive on both sides.
        ended
            No round will follow. The end may depend on rounds and time spent, not on what was found.
        given_up
            No round will follow since those so far are `hopeless`: what is undecided stays so.

        Returns
        -------
        PairedOutcome
            All suspects are decided, as `inconclusive` where need be, when `ended` or `given_up`, after the last
            look, or when no round that is left could decide any of them. All are `invalid` when the rounds break
            the checks of `rounds.broken`.
        """
        names = tuple(suspect.name for suspect in self.suspects)
        used = rounds[: self.most_rounds]
        if reason := pairs.broken(used, names):
            shown = {each.name: self._verdict(each, [], 0, "invalid", reason) for each in self.suspects}
            return PairedOutcome(shown, (), None)
        if not used:
            return PairedOutcome({}, names, self.plan.all[0]) if not ended else self._unmeasured()
        sides = [pairs.values(used, name) for name in names]
        worse = np.stack([each.past(*side) for each, side in zip(self.suspects, sides, strict=True)])
        better = np.stack([each.past(*side[::-1]) for each, side in zip(self.suspects, sides, strict=True)])
        found, when = sequential.replay(worse, better, self.plan, self.plan.until(len(used), ended=ended))
        is_open = found == sequential.UNDECIDED
        over = ended or given_up or not bool((is_open & sequential.open_ended(worse, better, self.plan)).any())
        decided = {
            each.name: self._decided(
                each, used[:after] if after else used, _VERDICTS[code], ended=ended, given_up=given_up
            )
            for each, code, after in zip(self.suspects, found.tolist(), when.tolist(), strict=True)
            if code != sequential.UNDECIDED or over
        }
        undecided = tuple(name for name in names if name not in decided)
        upcoming = next((look for look in self.plan.all if look > len(used)), None)
        return PairedOutcome(decided, undecided, upcoming if undecided else None)

    def _unmeasured(self) -> PairedOutcome:
        reason = "no round was measured"
        shown = {each.name: self._verdict(each, [], 0, "inconclusive", reason) for each in self.suspects}
        return PairedOutcome(shown, (), None)

    def _decided(
        self, suspect: Suspect, rounds: Sequence[Round], verdict: Verdict, *, ended: bool, given_up: bool
    ) -> MetricVerdict:
        reach = len(rounds) if (ended or given_up) and verdict == "inconclusive" else self.most_rounds
        metric = self._verdict(suspect, rounds, reach, verdict, "")
        text = wording.interval(metric, wording.paired(len(rounds)))
        if verdict == "inconclusive":
            if given_up:
                text += ": not on course to be past its limit, so no more rounds were measured"
            elif metric.mde is not None:
                text += f": smallest detectable {wording.percent(metric.mde)}"
            elif reach < self.plan.least:
                text += f": {wording.paired(reach)} cannot prove it, {self.plan.least} are needed"
        return self._verdict(suspect, rounds, reach, verdict, text)

    def _verdict(
        self, suspect: Suspect, rounds: Sequence[Round], reach: int, verdict: Verdict, reason: str
    ) -> MetricVerdict:
        """The figures of a suspect after these rounds; `reach` is how many the test had to find something."""
        effect = ci95 = mde = times_over = base = new = None
        if rounds:
            before, after = pairs.values(rounds, suspect.name)
            base, new = (float(np.exp(np.log(side).mean())) for side in (before, after))
            ratios = pairs.log_ratios(rounds, suspect.name)
            averages = signedrank.averages(ratios)
            effect = timed.as_ratio(float(signedrank.center(averages)))
            ends = signedrank.interval(averages, self.plan.confidence)
            ci95 = None if ends is None else (timed.as_ratio(float(ends[0])), timed.as_ratio(float(ends[1])))
            limit = float(np.median(suspect.sign * ratios - suspect.past(before, after)))
            mde = self._detectable(ratios, limit, reach, suspect.sign)
            if verdict == "regressed" and limit > 0:
                times_over = abs(effect) / timed.worsening(limit, suspect.sign)
        return MetricVerdict(
            name=suspect.name,
            kind="timed",
            unit=suspect.unit,
            better=suspect.better,
            base=base,
            new=new,
            effect=effect,
            ci95=ci95,
            mde=mde,
            limit=suspect.limit.text,
            verdict=verdict,
            reason=reason,
            times_over=times_over,
            evidence="paired",
            rounds=len(rounds),
        )

    def _detectable(self, ratios: Floats, limit: float, rounds: int, sign: int) -> float | None:
        """Worsening that this test would find with 80 % probability in so many rounds, for normal noise.

        `limit + reach * sd` as a log ratio: section 5 of statistics.md with what few rounds really take (see
        `signedrank.reach`), at the level that Holm gives the first suspect, and with the standard deviation
        for the median absolute one. Injected into new rounds of t1.5, bimodal or neighbour's noise, what the
        latter promised was found in 49 to 64 % of the cases, what this promises in 66 to 92 %.
        """
        reach = signedrank.reach(rounds, self.plan.level / self.plan.suspects, len(ratios))
        if reach is None or not np.isfinite(limit):
            return None
        return timed.worsening(limit + reach * float(ratios.std(ddof=1)), sign)
