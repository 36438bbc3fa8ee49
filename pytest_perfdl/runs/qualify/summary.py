"""What all runs of a campaign say: false alarms, slowdowns found, and the limits that follow.

A trial is one test in one run, judged on its speed. Tests without a baseline (alternatives alone), and
verdicts such as `invalid` or `unmeasured`, are no trials; they are counted apart.

The rule for limits. For each time that the suite holds to a limit, over all its tests: the limit is the smallest tested
effect that was found (the time's own verdict was `regressed`) in at least `FOUND` of the trials and is not below the
`NOISE` quantile of the size of the effect on unchanged code. A smaller limit would promise what this machine does not
show, or lie within what unchanged code does by itself. Effects were looked for under the limits of today, so an effect
that is within one of those cannot be found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_perfdl.model.metrics import general
from pytest_perfdl.results.verdict import Verdict
from pytest_perfdl.runs.qualify.outcomes import Basis, Case, Outcome
from pytest_perfdl.stats.bounds import Rate
from pytest_perfdl.stats.quantiles import quantile

FOUND = 0.8
"""Share of the trials in which an effect must be found to count as one that is found."""
NOISE = 0.99
"""Quantile of what unchanged code does by itself."""
TOGETHER = "all tests together"


@dataclass(frozen=True, slots=True)
class Tally:
    """Trials of one test, or of all, under one share of delay."""

    judged: int
    regressed: int
    paired: int
    """Of the regressed ones, those confirmed in pairs."""
    unpaired: int
    """Of the regressed ones, those confirmed against stored repeats alone."""
    suspect: int

    @classmethod
    def of(cls, trials: Iterable[Case]) -> Tally:
        """Count trials."""
        counts: Counter[tuple[Verdict, Basis]] = Counter((trial.verdict, trial.basis) for trial in trials)

        def number(verdict: Verdict) -> int:
            return sum(count for (found, _), count in counts.items() if found == verdict)

        return cls(
            judged=sum(counts.values()),
            regressed=number("regressed"),
            paired=counts["regressed", "paired"],
            unpaired=counts["regressed", "unpaired"],
            suspect=number("suspect"),
        )

    @property
    def found(self) -> Rate:
        """How often the verdict was `regressed`."""
        return Rate(self.regressed, self.judged)

    @property
    def suspected(self) -> Rate:
        """How often it was `suspect`."""
        return Rate(self.suspect, self.judged)


@dataclass(frozen=True, slots=True)
class DetectionLimit:
    """What one time of this suite can be held to on this machine."""

    metric: str
    noise: float | None
    """`NOISE` quantile of the size of the effect on unchanged code; `None` where nothing unchanged was judged."""
    found: Mapping[float, Rate]
    """By effect."""
    share: float | None
    """The limit by the rule above; `None` when no tested effect meets it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of a campaign."""

    runs: Mapping[float, int]
    """By effect; 0 is unchanged code."""
    alarms: Mapping[str, Tally]
    """Unchanged code, by test; `TOGETHER` first."""
    alarmed_runs: Rate
    """Runs of unchanged code in which any test was `regressed`."""
    effects: Mapping[float, Mapping[str, Tally]]
    """Slowed code: effect -> test -> trials; `TOGETHER` first."""
    limits: tuple[DetectionLimit, ...]
    """By metric, for those that a limit is held to."""
    unjudged: Mapping[str, int]
    """Verdict -> how often it stood in the place of one on speed."""
    left_out: tuple[str, ...]
    """Tests that were never compared with a baseline."""
    commits: tuple[str, ...]
    keys: tuple[str, ...]

    def smallest_found(self, test: str = TOGETHER) -> float | None:
        """The smallest tested effect that was found in at least `FOUND` of a test's trials."""
        return _smallest({share: tallies[test].found for share, tallies in self.effects.items() if test in tallies})


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    """Join the runs of a campaign."""
    shares = sorted({outcome.inject for outcome in outcomes})
    cases = [case for outcome in outcomes for case in outcome.cases]
    compared = {case.id for case in cases if case.compared}
    unchanged = [outcome for outcome in outcomes if outcome.inject == 0]
    alarmed = [outcome for outcome in unchanged if any(_is_alarm(case) for case in outcome.cases)]
    return Summary(
        runs={share: sum(outcome.inject == share for outcome in outcomes) for share in shares},
        alarms=_tallies(unchanged),
        alarmed_runs=Rate(len(alarmed), sum(any(case.judged for case in outcome.cases) for outcome in unchanged)),
        effects={share: _tallies([o for o in outcomes if o.inject == share]) for share in shares if share},
        limits=tuple(_limit(name, outcomes) for name in _metrics(outcomes)),
        unjudged=Counter(case.verdict for case in cases if case.id in compared and not case.judged),
        left_out=tuple(sorted({case.id for case in cases} - compared)),
        commits=tuple(dict.fromkeys(outcome.commit for outcome in outcomes if outcome.commit)),
        keys=tuple(dict.fromkeys(outcome.key for outcome in outcomes)),
    )


def _is_alarm(case: Case) -> bool:
    return case.judged and case.verdict == "regressed"


def _tallies(outcomes: Sequence[Outcome]) -> dict[str, Tally]:
    trials = _trials(outcomes)
    by_test: dict[str, list[Case]] = {}
    for trial in trials:
        by_test.setdefault(trial.id, []).append(trial)
    return {TOGETHER: Tally.of(trials)} | {name: Tally.of(own) for name, own in by_test.items()}


def _trials(outcomes: Iterable[Outcome]) -> list[Case]:
    return [case for outcome in outcomes for case in outcome.cases if case.judged]


def _metrics(outcomes: Sequence[Outcome]) -> list[str]:
    """Names of times that are held to a limit, as they were first met."""
    return list(dict.fromkeys(general(name) for trial in _trials(outcomes) for name in trial.metrics))


def _limit(name: str, outcomes: Sequence[Outcome]) -> DetectionLimit:
    by_share: dict[float, list[tuple[Verdict, float | None]]] = {}
    for outcome in outcomes:
        for trial in _trials([outcome]):
            by_share.setdefault(outcome.inject, []).extend(
                (metric.verdict, metric.effect) for full, metric in trial.metrics.items() if general(full) == name
            )
    sizes = [abs(effect) for _, effect in by_share.get(0, []) if effect is not None]
    noise = quantile(sizes, NOISE) if sizes else None
    found = {
        share: Rate(sum(verdict == "regressed" for verdict, _ in metrics), len(metrics))
        for share, metrics in sorted(by_share.items())
        if share
    }
    beyond = {} if noise is None else {share: rate for share, rate in found.items() if share >= noise}
    return DetectionLimit(name, noise, found, _smallest(beyond))


def _smallest(found: Mapping[float, Rate]) -> float | None:
    return min((share for share, rate in found.items() if rate.of and rate.count >= FOUND * rate.of), default=None)


def ini_lines(summary: Summary) -> list[str]:
    """What to put into the ini file; empty when no limit follows.

    >>> ini_lines(Summary({}, {}, Rate(0, 0), {}, (DetectionLimit("step_time", 0.01, {}, 0.05),), {}, (), (), ()))
    ['perf_limits =', '    step_time:5%']
    """
    lines = [f"    {limit.metric}:{limit.share * 100:g}%" for limit in summary.limits if limit.share is not None]
    return ["perf_limits =", *lines] if lines else []
