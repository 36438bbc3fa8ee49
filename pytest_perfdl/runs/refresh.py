"""Updates of baselines from the run files of several nights, without a slowdown in any of them.

`of_runs` takes from the run files what they hold of one test, oldest first (`Measured`). `decide` is the rule, a pure
function of these and of the stored baseline. `adopted` and `adopted_in_environment` make its two kinds of updates, and
`kept` is what a baseline that they write keeps of the recordings before it. `to_json` makes plain data of decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from pytest_perfdl.baseline.text import append
from pytest_perfdl.judge.log_ratios import middle
from pytest_perfdl.judge.stopping_rule import OWN_EVIDENCE, Gate, Held
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.json import filled, plain
from pytest_perfdl.model.limits import BUILT_IN, Limit
from pytest_perfdl.model.record import INJECTED, Code, Record, Refreshed, Series
from pytest_perfdl.model.units import format_percent, format_quantity, plural, some
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import SAME_CODE, MetricVerdict, Verdict, importance
from pytest_perfdl.stats.evidence import Estimate, evidence

# What a refreshed baseline keeps of the recordings before it: the best values, which bound the sum of small changes.
#
# Rounds compare with the code of the stored baseline alone. What they do not compare, namely bytes, and times of one
# environment with times of another, could get worse by less than a limit at every update. So each update is compared
# with the best values since somebody last recorded the baseline.


def best(stored: Record) -> Mapping[str, float]:
    """The best values of all metrics that have a limit by default: of a stored baseline, and of those before it."""
    own = {name: middle(series) for name, series in _limited_metrics(stored).items()}
    return {**own, **stored.refreshed.best} if stored.refreshed is not None else own


def kept(stored: Record, new: Record, times: Mapping[str, float]) -> Refreshed:
    """What a new baseline keeps of the stored one; `times` are its times, from more processes than its record has."""
    first = stored.occasions[0]
    before = stored.refreshed or Refreshed(first.date, first.commit, {})
    found = dict(best(stored))
    for name, series in _limited_metrics(new).items():
        value = times.get(name, middle(series))
        found[name] = min(value, found.get(name, value))
    return Refreshed(before.date, before.commit, found)


def more_bytes(stored: Record, new: Record) -> tuple[str, float] | None:
    """The number of bytes of a new record that is over its default limit, with why and by how much; `None` if none is.

    The limit is the default one, whatever the project allows: updates by hand may use the whole of that.
    """
    before = best(stored)
    for name, series in _limited_metrics(new).items():
        least, worst = before.get(name), max(series.values)
        limit = BUILT_IN.for_metric(name)
        if series.unit != "B" or not least or limit is None or worst - least <= limit.allowed(least, "B"):
            continue
        change = worst / least - 1
        shown = f"{format_quantity(least, 'B')} -> {format_quantity(worst, 'B')}, {format_percent(change)}"
        return f"{name} is over its limit ({shown} from the best baseline since the last recording)", change
    return None


def slower_environment(stored: Record, times: Mapping[str, tuple[float, ...]]) -> tuple[str, float] | None:
    """The time of the baseline's code that the environments since the last recording made slower; `None` if none.

    Parameters
    ----------
    times
        Values of the baseline's code now, by metric.
    """
    before, limits = best(stored), BUILT_IN.unpaired()
    for name, values in times.items():
        least, limit = before.get(name), limits.for_metric(name)
        if not least or limit is None or not values:
            continue
        now = median(values)
        if now - least > limit.allowed(least, "ns"):
            change = now / least - 1
            # The limit is that of unpaired times: the two were measured on different days.
            return (
                f"{name} of the baseline's code got slower by {format_percent(change)} since its last recording",
                change,
            )
    return None


def _limited_metrics(record: Record) -> dict[str, Series]:
    return {
        name: series
        for name, series in record.metrics().items()
        if series.unit in ("ns", "B") and series.better == "lower" and BUILT_IN.for_metric(name) is not None
    }


# What run files hold of one test, and what paired rounds of several runs say together.


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
    if any(record.table is not None for record in records):
        return "the test measures a table, whose cases pytest --perf-update=changed records one by one"
    if any(finding.code == INJECTED for record in records for finding in record.integrity):
        return "the steps were slowed down on purpose (--perf-inject)"
    notes = [finding for finding in result.judgement.integrity if finding.meaning.unconfirmed]
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
    if not isinstance(metric.limit, Limit) or not metric.limit.relative:
        return None
    return Held(metric.name, metric.limit, metric.unit, metric.better)


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


# Changes of the environment: the baseline's code, measured in the new environment, becomes the baseline.
#
# The code of the baseline stays the same, so later rounds compare with the same commit as before: a slowdown of the
# current code, however small, is never part of such an update. What the environment itself did to the times of that
# code is compared with recorded times, and so only within the limit of unpaired times (`slower_environment`).


def trouble(run: Measured, stored: Record) -> str:
    """Why a run does not show the baseline's code in its environment, in one line; empty if it does."""
    now, new = run.result.base_now, run.result.new
    if stored.code is None or not stored.code.files:
        return "the baseline does not list the files of its code, so a new file could not name its commit"
    if now is None or new is None:
        return "the run file does not contain the baseline's code in this environment (of an earlier pytest-perfdl)"
    if any(finding.level == "invalid" for finding in now.integrity):
        return "the measurement of the baseline's code is invalid"
    if now.context != new.context:
        return "the baseline's code ran in another environment than the current code"
    if now.test_hash != stored.test_hash or now.plan.shape != stored.plan.shape:
        return "the baseline's code has another version of the test, or other measurement settings"
    return ""


def base_times(runs: Sequence[Measured]) -> dict[str, tuple[float, ...]]:
    """Values of the baseline's code in all rounds, by metric."""
    found: dict[str, tuple[float, ...]] = {}
    for run in runs:
        for name, metric in paired_times(run.result).items():
            found[name] = found.get(name, ()) + tuple(base for base, _ in metric.pairs)
    return found


def adopted_in_environment(runs: Sequence[Measured], stored: Record) -> Record:
    """The new baseline, from the newest runs in one environment: see `trouble`."""
    records = [run.result.base_now for run in runs]
    record = records[-1]
    assert record is not None
    for before in reversed(records[:-1]):
        assert before is not None
        try:
            record = append(before, record)
        except BaselineError:
            # Memory or counts differ between processes: those of the newest run are enough.
            break
    latest = runs[-1].result.new
    assert latest is not None
    assert stored.code is not None
    times = {name: metric.base for name, metric in paired_times(runs[-1].result).items() if metric.base is not None}
    return replace(
        record,
        key=stored.key,
        code=_with_packages(stored.code, latest.code),
        note=stored.note,
        exemplars={},
        refreshed=kept(stored, record, times),
    )


def _with_packages(code: Code, latest: Code | None) -> Code:
    """The same files, with the versions of the packages that are installed now."""
    installed = {} if latest is None else latest.packages
    return replace(code, packages={name: installed.get(name, version) for name, version in code.packages.items()})


# Improvements: faster code becomes the baseline, if the rounds of several runs confirm it.
#
# The new baseline is of the *oldest* run of those that confirm the improvement, not of the newest: what became slower
# after the improvement is then slower than the new baseline, and shows in the following runs.


CONFIRMATIONS = 2
"""Runs that must show an improvement."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A confirmed improvement."""

    runs: tuple[Measured, ...]
    """The runs that confirm it, oldest first."""
    name: str
    """The time that improved most."""
    times: dict[str, Together]

    @property
    def worse(self) -> tuple[str, Together] | None:
        """Another time that got worse for certain; `None` if none did."""
        return next(((name, each) for name, each in self.times.items() if each.is_worse), None)


def confirmed(runs: Sequence[Measured], stored: Record) -> Improvement | None:
    """The improvement that the newest runs show together, at least `CONFIRMATIONS`; `None` if they show none.

    As many runs as show it: where code changed after an improvement, the oldest code that has it is wanted. Runs of the
    baseline's own code cannot have it.

    Parameters
    ----------
    runs
        Oldest first, all compared with the stored baseline in paired rounds, without a verdict in between that is other
        than `improved` or `unchanged`.
    """
    own = frozenset(stored.code.files.items()) if stored.code is not None else None
    found = None
    for number in range(CONFIRMATIONS, len(runs) + 1):
        streak = tuple(runs[-number:])
        if own is not None and own in map(code_of, streak):
            break
        times = together(streak)
        better = [
            time.name
            for time in deciding(streak[-1])
            if time.name in times and times[time.name].is_better(time, OWN_EVIDENCE)
        ]
        if better:
            found = Improvement(streak, min(better, key=lambda name: times[name].estimate.center), times)
        elif found is not None:
            break
    return found


def adopted(found: Improvement, stored: Record) -> Record:
    """The new baseline: the oldest run's record, with the processes of later runs of the same code."""
    first, *later = found.runs
    record = first.result.new
    assert record is not None
    for run in later:
        more = run.result.new
        assert more is not None
        if record.code is None or more.code is None:
            break
        try:
            record = replace(append(record, more), code=record.code)
        except BaselineError:
            # Its code, environment or counts differ, so it is not what was measured first.
            break
    times = {name: metric.new for name, metric in paired_times(first.result).items() if metric.new is not None}
    return replace(record, note=None, refreshed=kept(stored, record, times))


# The rule: what several runs of a test mean for its baseline.
#
#     decide(runs, stored) -> adopted (a new baseline), refused (a change that is not adopted) or unchanged
#
# Only two changes are adopted: an improvement that at least two runs confirm (`confirmed`), and a change of the
# environment in which rounds end without a slowdown (`adopted_in_environment`). An improvement names its own code as
# the baseline's; a change of the environment keeps the code. So the code of a baseline is only ever replaced by code
# that is faster, and slowdowns add up until they are over the limit: eight of 1 % are one of 8 %.


Kind = Literal["adopted", "refused", "unchanged"]
Change = Literal["improvement", "environment", ""]

_FINE: frozenset[Verdict] = frozenset({"improved", "unchanged"})
_NOTHING: frozenset[Verdict] = frozenset({"invalid", "unmeasured"})
"""Verdicts without a measurement that could change a baseline."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one baseline."""

    test: str
    """Node id."""
    machine: str
    """Machine ID."""
    kind: Kind
    why: str
    """In one sentence."""
    effect: float | None = None
    """Change of `metric` as a ratio (0.1 is 10 % more), where there is one."""
    metric: str = ""
    change: Change = ""
    """What was adopted; empty if nothing was."""
    record: Record | None = None
    """The new baseline, if one was adopted."""
    runs: int = 0
    """Number of runs that the new baseline rests on."""
    run: Path | None = None
    """The run file that has the change: of the new baseline, or to accept a refused change from."""
    traces: Mapping[str, Path] = field(default_factory=dict)
    """Traces of a step of the new baseline, by call."""


def decide(
    runs: Sequence[Measured], stored: Record | None, *, not_in_git: Callable[[Record], str] = lambda _: ""
) -> Decision:
    """Decide about the baseline of one test on one machine.

    Parameters
    ----------
    runs
        Its measurements, oldest first, at least one.
    stored
        Its baseline now; `None` if there is none.
    not_in_git
        Why no commit has the code of a record, in one line; empty if one has.
    """
    case = _Case(runs, stored)
    last = case.last.result
    if stored is None:
        return case.refused("there is no baseline for this machine ID")
    if last.verdict in _NOTHING or last.judgement.reason == SAME_CODE:
        return case.unchanged(f"{last.verdict}: {last.judgement.reason}")
    if last.other_side:
        return case.unchanged(f"the newest run compares with {last.other_side}, not with baselines")
    if last.base != stored:
        return case.unchanged("the newest run was not compared with the baseline that is stored now")
    changed = _differing(last)
    if last.verdict not in _FINE and (last.verdict != "inconclusive" or changed):
        why = f"{last.verdict}: {last.judgement.reason}"
        return case.refused(f"{why}; the environment changed ({changed})" if changed else why)
    if last.verdict == "inconclusive":
        return case.unchanged(f"inconclusive: {last.judgement.reason}")
    if said := obstacle(last):
        differs = last.verdict == "improved" or changed
        return case.refused(said) if differs else case.unchanged(said)
    fit = _fit(runs, stored)
    if changed and (slower := slower_environment(stored, base_times(fit[-1:]))):
        return case.refused(f"{slower[0]}; the environment changed ({changed})", slower[1])
    if found := confirmed(fit, stored):
        return _decide_improvement(case, found, stored, not_in_git)
    if last.verdict == "improved":
        return case.unchanged(
            f"improved, but fewer than {CONFIRMATIONS} runs in a row confirm it"
            if len(fit) < CONFIRMATIONS
            else f"improved, but {plural(len(fit), 'run')} do not confirm it for certain"
        )
    if changed:
        return _decide_environment(case, fit, stored, changed)
    return case.unchanged(last.judgement.reason or "no change")


@dataclass(frozen=True, slots=True)
class _Case:
    """Makes decisions about one baseline."""

    runs: Sequence[Measured]
    stored: Record | None

    @property
    def last(self) -> Measured:
        return self.runs[-1]

    def refused(self, why: str, effect: float | None = None, metric: str = "") -> Decision:
        return self._made("refused", why, effect, metric)

    def unchanged(self, why: str) -> Decision:
        return self._made("unchanged", why)

    def adopted(
        self, change: Change, why: str, told: tuple[str, float | None], record: Record, runs: Sequence[Measured]
    ) -> Decision:
        source = runs[0] if change == "improvement" else runs[-1]
        new = source.result.exemplars if change == "improvement" else ()
        return Decision(
            test=self.last.result.id,
            machine=record.key.slug,
            kind="adopted",
            why=why,
            effect=told[1],
            metric=told[0],
            change=change,
            record=record,
            runs=len(runs),
            run=source.path,
            traces={each.call: each.new for each in new if each.new is not None},
        )

    def _made(self, kind: Kind, why: str, effect: float | None = None, metric: str = "") -> Decision:
        result = self.last.result
        told = _headline(result)
        if effect is None and told is not None:
            effect, metric = told.effect, told.name
        key = self.stored.key if self.stored is not None else result.new.key if result.new is not None else None
        return Decision(result.id, "" if key is None else key.slug, kind, why, effect, metric, run=self.last.path)


def _decide_improvement(
    case: _Case, found: Improvement, stored: Record, not_in_git: Callable[[Record], str]
) -> Decision:
    """An improvement, unless the code that has it is unknown, or makes something else worse."""
    source = found.runs[0].result.new
    assert source is not None
    shown = _describe_time(found.name, found.times[found.name], len(found.runs))
    if source.code is None or not source.code.files:
        return case.refused(f"{shown}, but the measured code belongs to no commit")
    if lacking := not_in_git(source):
        return case.refused(f"{shown}, but {lacking}")
    if worse := found.worse:
        name, time = worse
        return case.refused(f"{shown}, but {_describe_time(name, time, len(found.runs))}", time.effect, name)
    record = adopted(found, stored)
    if grown := more_bytes(stored, record):
        return case.refused(f"{shown}, but {grown[0]}", grown[1])
    return case.adopted("improvement", shown, (found.name, found.times[found.name].effect), record, found.runs)


def _decide_environment(case: _Case, fit: Sequence[Measured], stored: Record, changed: str) -> Decision:
    """A change of the environment, unless something keeps the new one from being the baseline's."""
    last = case.last.result
    if said := trouble(case.last, stored):
        return case.refused(f"the environment changed ({changed}), but {said}")
    assert last.base_now is not None
    same: list[Measured] = []
    for run in reversed(fit):
        now = run.result.base_now
        if now is None or now.context != last.base_now.context or trouble(run, stored):
            break
        same.insert(0, run)
    judged = next((each for each in last.judgement.environment if each.verdict in ("regressed", "suspect")), None)
    if judged is not None:
        why = f"the environment changed ({changed}): {judged.name} of the baseline's code, {judged.reason}"
        return case.refused(why, judged.effect, judged.name)
    record = adopted_in_environment(same, stored)
    if grown := more_bytes(stored, record):
        return case.refused(f"the environment changed ({changed}): {grown[0]}", grown[1])
    told = _headline(last)
    rounds = f"{told.name} {told.reason}" if told is not None else last.judgement.reason
    return case.adopted(
        "environment",
        f"the environment changed ({changed}), not the code: {rounds}",
        (told.name, told.effect) if told is not None else ("", None),
        record,
        same,
    )


def _fit(runs: Sequence[Measured], stored: Record) -> list[Measured]:
    """The newest runs without one in between that contradicts: compared with the baseline in rounds, no slowdown.

    A run with other limits or settings than the newest was judged otherwise. Runs without a measurement
    contradict nothing.
    """
    found: list[Measured] = []
    for run in reversed(runs):
        result = run.result
        if result.verdict in _NOTHING or result.judgement.reason == SAME_CODE:
            continue
        if result.base != stored or result.verdict not in _FINE or result.new is None or obstacle(result):
            break
        if run.settings != runs[-1].settings:
            break
        found.insert(0, run)
    return found


def _differing(result: Result) -> str:
    """What differs in the environment: "torch 2.12.0 -> 2.13.0"."""
    changes = result.judgement.context_changes
    return some([f"{name} {before} -> {now}" for name, before, now in changes]) if changes else ""


def _headline(result: Result) -> MetricVerdict | None:
    """The metric that the test's verdict is of, the most important first."""
    judged = [each for each in result.metrics if each.verdict is not None and each.effect is not None]
    telling = [each for each in judged if each.verdict == result.verdict] or judged
    return min(telling, key=importance, default=None)


def _describe_time(name: str, time: Together, runs: int) -> str:
    """A time in the rounds of several runs: "step_time -9.8% [-10.4%, -9.1%] in 12 paired rounds of 2 runs"."""
    low, high = (format_percent(end) for end in time.interval)
    rounds = plural(time.rounds, "paired round")
    return f"{name} {format_percent(time.effect)} [{low}, {high}] in {rounds} of {plural(runs, 'run')}"


# Decisions as plain data: `perfdl refresh --json`.


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer output."""


class _Decision(msgspec.Struct):
    id: str
    machine: str
    why: str
    metric: str | None
    effect: float | None
    """Change of the metric as a ratio."""


class _Adopted(_Decision, kw_only=True):
    change: Literal["improvement", "environment"]
    runs: int
    commit: str | None
    file: str


class _Refused(_Decision, kw_only=True):
    command: str
    """Accepts what was refused."""


class RefreshForm(msgspec.Struct):
    """All decisions, by their kind."""

    adopted: list[_Adopted]
    refused: list[_Refused]
    unchanged: list[_Decision]


def to_json(
    decisions: Sequence[Decision], file: Callable[[Decision], str], command: Callable[[Decision], str]
) -> dict[str, Any]:
    """Decisions as plain data, which `perfdl refresh --json` prints.

    Parameters
    ----------
    file
        Path of a decision's baseline, to be shown.
    command
        The command that accepts a refused change.
    """
    form = RefreshForm([], [], [])
    for each in decisions:
        told = {"id": each.test, "metric": each.metric or None}
        match each.kind:
            case "adopted" if each.record is not None:
                commit = each.record.occasions[-1].commit
                form.adopted.append(filled(_Adopted, each, **told, commit=commit, file=file(each)))
            case "refused":
                form.refused.append(filled(_Refused, each, **told, command=command(each)))
            case _:
                form.unchanged.append(filled(_Decision, each, **told))
    return {"schema": SCHEMA, **plain(form)}
