"""What a suite finds on this machine: unchanged code and known slowdowns, measured again and again.

`next_run` says which run comes next, `run_suite` runs the suite once in a pytest of its own, `Outcome` is what is kept
of that, `log` the file that it is kept in, and `summarize` says what all of them show, by `stats.quantiles.Rate`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pytest_perfdl.model.errors import RunFailed, RunFileError
from pytest_perfdl.model.metrics import general, unit
from pytest_perfdl.report.compared import COMPARED
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.run_file import read_run
from pytest_perfdl.results.verdict import Evidence, MetricVerdict, Verdict
from pytest_perfdl.runs import child_pytest
from pytest_perfdl.runs.log import Log
from pytest_perfdl.stats.quantiles import Rate, quantile

# What is kept of one run of a suite: the verdict on every test, and on its times.


Basis = Literal[Evidence, "other"]
"""What a verdict rests on; `other` is a count or a budget."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A time that was held to a limit."""

    verdict: Verdict
    effect: float | None
    """`new / base - 1`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test of one run."""

    id: str
    """Node id."""
    verdict: Verdict
    basis: Basis
    compared: bool
    """Whether it was compared with a baseline or another revision, rather than alternatives with each other."""
    metrics: Mapping[str, Metric]
    """By full name."""

    @property
    def judged(self) -> bool:
        """Whether its verdict is one on its speed."""
        return self.compared and self.verdict in COMPARED


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of the suite."""

    inject: float
    """Share by which every step was slowed down; 0 for unchanged code."""
    date: str
    """UTC, ISO 8601, seconds."""
    seconds: float
    """Wall time of the run."""
    commit: str | None
    key: str
    """Slug of the key that it was measured under."""
    arguments: tuple[str, ...]
    """What pytest was given besides."""
    cases: tuple[Case, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """What decides how the run measured and judged, but the slowdown."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """The environment, and when the baseline of each test was recorded."""

    def differs(self, other: Outcome) -> str:
        """What makes another run one of another campaign: "perf_limits step_time:3%, not none"; empty for nothing."""
        for name in sorted(self.settings.keys() | other.settings.keys()):
            before, now = (each.settings.get(name, "none") for each in (other, self))
            if before != now:
                return f"{name} {before}, not {now}"
        for name in sorted(self.conditions.keys() & other.conditions.keys()):
            if self.conditions[name] != other.conditions[name]:
                return f"{name} {other.conditions[name]}, not {self.conditions[name]}"
        return ""


def log(path: Path) -> Log[Outcome]:
    """The file of a campaign."""
    return Log(path, Outcome, "perfdl qualify")


def outcome_of(run: Run, *, inject: float, seconds: float, arguments: Iterable[str]) -> Outcome:
    """What is kept of a run."""
    recorded = {
        f"baseline of {result.id}": result.base.occasions[-1].date for result in run.results if result.base is not None
    }
    return Outcome(
        inject=inject,
        date=run.date,
        seconds=seconds,
        commit=run.commit,
        key=run.key.slug,
        arguments=tuple(arguments),
        cases=tuple(map(_case, run.results)),
        settings={name: text for name, text in run.settings.items() if name != "--perf-inject"},
        conditions={name: str(value) for name, value in run.context.items()} | recorded,
    )


def _case(result: Result) -> Case:
    return Case(
        id=result.id,
        verdict=result.verdict,
        basis=_basis(result),
        compared=result.new is not None,
        metrics={
            metric.name: Metric(metric.verdict, metric.effect)
            for metric in result.metrics
            if metric.verdict in COMPARED and unit(metric.name) == "ns" and _is_held_to_limit(metric)
        },
    )


def _basis(result: Result) -> Basis:
    """What the metrics that carry the verdict rest on; of several, what is surest of time."""
    telling = [metric for metric in result.metrics if metric.verdict == result.verdict and metric.kind == "timed"]
    found = {metric.evidence for metric in telling if _is_held_to_limit(metric)}
    return next((basis for basis in get_args(Evidence)[::-1] if basis in found), "other")


def _is_held_to_limit(metric: MetricVerdict) -> bool:
    return metric.limit is not None and not metric.is_held_to_budget


# Which run comes next, and how long all that are left will take.


def next_run(done: Sequence[Outcome], wanted: Mapping[float, int]) -> float | None:
    """By how much the next run slows down; `None` when there are as many runs of each share as wanted.

    Runs of all shares are interleaved in proportion, so that drift of the machine over hours affects all of them,
    and a campaign that is ended early has some of each.
    """
    counts = Counter(outcome.inject for outcome in done)
    left = [share for share, number in wanted.items() if counts[share] < number]
    return min(left, key=lambda share: ((counts[share] + 0.5) / wanted[share], share), default=None)


def runs_left(done: Sequence[Outcome], wanted: Mapping[float, int]) -> dict[float, int]:
    """How many runs of each share are still to be made."""
    counts = Counter(outcome.inject for outcome in done)
    return {share: max(0, number - counts[share]) for share, number in wanted.items()}


def seconds_left(done: Sequence[Outcome], wanted: Mapping[float, int]) -> float | None:
    """How long the runs that are left will take, each as long as those of its share did; `None` before the first."""
    if not done:
        return None
    left = runs_left(done, wanted)
    return sum(number * expected_seconds(done, share) for share, number in left.items())


def expected_seconds(done: Sequence[Outcome], share: float) -> float:
    """How long a run of this share will take, as far as the runs so far (one at least) tell."""
    known = [outcome.seconds for outcome in done if outcome.inject == share]
    return statistics.fmean(known or [outcome.seconds for outcome in done])


# What all runs of a campaign say: false alarms, slowdowns found, and the limits that follow.
#
# A trial is one test in one run, judged on its speed. Tests without a baseline (alternatives alone), and
# verdicts such as `invalid` or `unmeasured`, are no trials; they are counted apart.
#
# The rule for limits. For each time that the suite holds to a limit, over all its tests: the limit is the smallest
# tested effect that was found (the time's own verdict was `regressed`) in at least `FOUND` of the trials and is not
# below the `NOISE` quantile of the size of the effect on unchanged code. A smaller limit would promise what this
# machine does not show, or lie within what unchanged code does by itself. Effects were looked for under the limits of
# today, so an effect that is within one of those cannot be found.


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


# One run of the suite in a pytest of its own.


_UNBASED: frozenset[Verdict] = frozenset({"missing", "outdated", "incomparable"})


def run_suite(arguments: Sequence[str], share: float, *, first: bool, folder: str | None = None) -> Outcome:
    """Measure and judge the suite once.

    Parameters
    ----------
    arguments
        What to give to pytest besides.
    share
        By how much to slow every step down; 0 for not at all.
    first
        Whether the suite is not known to work: the run then ends at the first test that cannot be judged.
    folder
        The baselines' folder, where that is not pytest's to know.

    Raises
    ------
    RunFailed
        When there is nothing to judge with: pytest does not start, a baseline is missing, a measurement is invalid in
        the first run.
    KeyboardInterrupt
        After pytest has ended too.
    """
    with child_pytest.run(
        lambda scratch: command(arguments, share, scratch, first=first, folder=folder), "qualify"
    ) as ended:
        if ended.run_file is None:
            raise RunFailed(f"pytest ended with exit code {ended.code}: {ended.reason}")
        try:
            run = read_run(ended.run_file, child_pytest.report(ended.folder))
        except RunFileError as error:
            raise RunFailed(f"the run.json file of pytest cannot be used: {error}") from error
    outcome = outcome_of(run, inject=share, seconds=ended.seconds, arguments=arguments)
    _check(run, outcome, first=first)
    return outcome


def command(
    arguments: Sequence[str], share: float, scratch: Path, *, first: bool, folder: str | None = None
) -> tuple[str, ...]:
    """The command line of one run; its report and run file go into the scratch folder."""
    return (
        *child_pytest.command(scratch, *arguments),
        f"--perf-fail-on={','.join(sorted(_UNBASED))}",
        *([f"--perf-inject={share * 100:.12g}"] if share else []),
        *([f"--perf-dir={folder}"] if folder else []),
        *(["--maxfail=1"] if first else []),
    )


def _check(run: Run, outcome: Outcome, *, first: bool) -> None:
    for result in run.results:
        if result.verdict in _UNBASED:
            raise RunFailed(
                f"{result.id} has no baseline to compare with ({result.verdict}: {result.judgement.reason}): record "
                "baselines on this machine with `pytest --perf-update`, then run perfdl qualify"
            )
    if not first:
        return
    for result in run.results:
        if result.verdict == "invalid":
            raise RunFailed(f"the measurement of {result.id} is invalid: {result.judgement.reason}")
    if not any(case.judged for case in outcome.cases):
        raise RunFailed("no test was compared with a baseline: record baselines with `pytest --perf-update`")
