"""What run files hold of one test, and what paired rounds of several runs say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_perfdl.judge.stopping_rule import Gate, Held
from pytest_perfdl.model.limits import parse_limit
from pytest_perfdl.model.record import DOUBTED_SIDES, INJECTED
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.stats.evidence import Estimate, evidence


@dataclass(frozen=True, slots=True)
class Measured:
    """One test of one run."""

    path: Path
    """The run file."""
    date: str
    """When the run began; ISO 8601, so that texts are in the order of time."""
    result: Result
    settings: Mapping[str, str] = field(default_factory=dict)
    """What decides how the run measured and judged."""


def of_runs(runs: Sequence[tuple[Path, Run]]) -> dict[tuple[str, str], list[Measured]]:
    """The measurements of each test on each machine, oldest first: (node id, machine ID) -> measurements.

    A run that is given twice counts once, whatever date a copy says: no two runs take the same times to the nanosecond.
    Tests without a record, such as skipped ones, have the run's machine ID.
    """
    found: dict[tuple[str, str], dict[object, Measured]] = {}
    for path, run in sorted(runs, key=lambda each: each[1].date):
        for result in run.results:
            machine = result.new.key.slug if result.new is not None else run.key.slug
            measured = found.setdefault((result.id, machine), {})
            measured.setdefault(_times(result) or run.date, Measured(path, run.date, result, run.settings))
    return {key: list(measured.values()) for key, measured in found.items()}


def _times(result: Result) -> object:
    """What a run took, in its processes and rounds; empty if it took no time."""
    series = {} if result.new is None else result.new.metrics()
    own = tuple((name, each.values) for name, each in series.items() if each.kind == "timed")
    return own + tuple((each.name, each.pairs) for each in result.metrics if each.pairs)


def paired_times(result: Result) -> dict[str, MetricVerdict]:
    """Timed metrics of the step that rounds compared, by full name."""
    return {
        metric.name: metric
        for metric in result.metrics
        if metric.of_step and metric.kind == "timed" and metric.evidence == "paired" and _positive(metric)
    }


def obstacle(result: Result) -> str:
    """Why a run says nothing that a baseline may be changed for, in one line; empty if it does.

    Rounds must have compared the code of this run with the code of the baseline, each as it is.
    """
    records = [record for record in (result.new, result.base) if record is not None]
    if any(finding.code == INJECTED for record in records for finding in record.integrity):
        return "the steps were slowed down on purpose (--perf-inject)"
    notes = [finding for finding in result.judgement.integrity if finding.code in ("pair", "unpaired", DOUBTED_SIDES)]
    if notes:
        return notes[0].message
    judged = [each for each in result.metrics if each.of_step and each.kind == "timed" and each.limit is not None]
    limited = [each for each in judged if not each.is_held_to_budget]
    if not limited:
        return "no time was compared, and counts alone do not show that a step is as fast as before"
    unpaired = next((each for each in limited if each.evidence != "paired"), None)
    return f"{unpaired.name} was not compared in paired rounds" if unpaired is not None else ""


def held(metric: MetricVerdict) -> Held | None:
    """A time with its limit, as the stopping rule holds it; `None` if it has none that is relative."""
    if metric.limit is None or metric.is_held_to_budget:
        return None
    try:
        limit = parse_limit(metric.name, metric.limit)
        limit.check(metric.unit, metric.better)
    except ValueError:
        return None
    return Held(metric.name, limit, metric.unit, metric.better) if limit.relative else None


@dataclass(frozen=True)
class Together:
    """One time in the rounds of several runs.

    All differences are logarithms of current over baseline, above zero for worse. The model takes the order of the two
    processes of a round, which run files do not hold, to make no difference: over several runs, it is balanced.
    """

    metrics: tuple[MetricVerdict, ...]
    """Of each run, at least one."""
    codes: tuple[object, ...]
    """Of each run, what tells its code from that of the others."""

    @cached_property
    def estimate(self) -> Estimate:
        """The posterior of the change from all rounds."""
        return Estimate(tuple(each for run in self._differences for each in run))

    @property
    def effect(self) -> float:
        """The change as a ratio: -0.1 is a time that is 10 % shorter."""
        return math.expm1(self._sign * self.estimate.center)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `effect`."""
        low, high = sorted(math.expm1(self._sign * end) for end in self.estimate.interval)
        return low, high

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return sum(map(len, self._differences))

    @property
    def is_worse(self) -> bool:
        """Whether it is worse for certain (97.5 %), by however little."""
        return self.estimate.interval[0] > 0

    def is_better(self, time: Held, least: float) -> bool:
        """Whether the rounds show a speed-up, estimated at the limit or more.

        Every code must have at least half of it, and no run may exclude that half. `least` is the evidence that the
        signs of the differences need, see `stats.evidence`.
        """
        center = self.estimate.center
        if center > -time.bet or self.estimate.interval[1] >= 0:
            return False
        if any(Estimate(run).interval[0] > center / 2 for run in self._differences):
            return False
        of_code: dict[object, list[float]] = {}
        for code, run in zip(self.codes, self._differences, strict=True):
            of_code.setdefault(code, []).extend(run)
        if any(Estimate(tuple(each)).center > center / 2 for each in of_code.values()):
            return False
        return evidence((-each for run in self._differences for each in run), time.bet) >= least

    @property
    def _sign(self) -> int:
        return 1 if self.metrics[0].better == "lower" else -1

    @cached_property
    def _differences(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(self._sign * math.log(new / base) for base, new in metric.pairs) for metric in self.metrics)


def together(runs: Sequence[Measured]) -> dict[str, Together]:
    """The times that rounds of all these runs compared, by full name."""
    times = [paired_times(each.result) for each in runs]
    names = [name for name in times[-1] if all(name in each for each in times)] if times else []
    codes = tuple(code_of(run) or number for number, run in enumerate(runs))
    return {name: Together(tuple(each[name] for each in times), codes) for name in names}


def code_of(run: Measured) -> object:
    """What tells the code of a run from that of others: its files and their content; `None` where that is unknown."""
    code = run.result.new.code if run.result.new is not None else None
    return frozenset(code.files.items()) if code is not None and code.files else None


def deciding(run: Measured) -> tuple[Held, ...]:
    """The times of a run that decide whether a test is faster, as the stopping rule chooses them."""
    times = tuple(time for metric in paired_times(run.result).values() if (time := held(metric)) is not None)
    if not times:
        return ()
    gate = Gate(times)
    return tuple(time for time in times if gate.decides(time))


def _positive(metric: MetricVerdict) -> bool:
    return bool(metric.pairs) and all(base > 0 and new > 0 for base, new in metric.pairs)
