"""The rule: what several runs of a test mean for its baseline.

    decide(runs, stored) -> adopted (a new baseline), refused (a change that is not adopted) or unchanged

Only two changes are adopted: an improvement that at least two runs confirm (`improvement`), and a change of the
environment in which rounds end without a slowdown (`environment`). An improvement names its own code as the baseline's;
a change of the environment keeps the code. So the code of a baseline is only ever replaced by code that is faster, and
slowdowns add up until they are over the limit: eight of 1 % are one of 8 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_perfdl.model.record import Record
from pytest_perfdl.model.units import format_percent, plural, some
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import SAME_CODE, MetricVerdict, Verdict, importance
from pytest_perfdl.runs.refresh import environment, improvement
from pytest_perfdl.runs.refresh.improvement import CONFIRMATIONS, Improvement
from pytest_perfdl.runs.refresh.kept import more_bytes, slower_environment
from pytest_perfdl.runs.refresh.measured import Measured, Together, obstacle

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
    if changed and (slower := slower_environment(stored, environment.base_times(fit[-1:]))):
        return case.refused(f"{slower[0]}; the environment changed ({changed})", slower[1])
    if found := improvement.confirmed(fit, stored):
        return _improved(case, found, stored, not_in_git)
    if last.verdict == "improved":
        return case.unchanged(
            f"improved, but fewer than {CONFIRMATIONS} runs in a row confirm it"
            if len(fit) < CONFIRMATIONS
            else f"improved, but {plural(len(fit), 'run')} do not confirm it for certain"
        )
    if changed:
        return _in_environment(case, fit, stored, changed)
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


def _improved(case: _Case, found: Improvement, stored: Record, not_in_git: Callable[[Record], str]) -> Decision:
    """An improvement, unless the code that has it is unknown, or makes something else worse."""
    source = found.runs[0].result.new
    assert source is not None
    shown = _shown(found.name, found.times[found.name], len(found.runs))
    if source.code is None or not source.code.files:
        return case.refused(f"{shown}, but the measured code belongs to no commit")
    if lacking := not_in_git(source):
        return case.refused(f"{shown}, but {lacking}")
    if worse := found.worse:
        name, time = worse
        return case.refused(f"{shown}, but {_shown(name, time, len(found.runs))}", time.effect, name)
    record = improvement.adopted(found, stored)
    if grown := more_bytes(stored, record):
        return case.refused(f"{shown}, but {grown[0]}", grown[1])
    return case.adopted("improvement", shown, (found.name, found.times[found.name].effect), record, found.runs)


def _in_environment(case: _Case, fit: Sequence[Measured], stored: Record, changed: str) -> Decision:
    """A change of the environment, unless something keeps the new one from being the baseline's."""
    last = case.last.result
    if said := environment.trouble(case.last, stored):
        return case.refused(f"the environment changed ({changed}), but {said}")
    assert last.base_now is not None
    same: list[Measured] = []
    for run in reversed(fit):
        now = run.result.base_now
        if now is None or now.context != last.base_now.context or environment.trouble(run, stored):
            break
        same.insert(0, run)
    judged = next((each for each in last.judgement.environment if each.verdict in ("regressed", "suspect")), None)
    if judged is not None:
        why = f"the environment changed ({changed}): {judged.name} of the baseline's code, {judged.reason}"
        return case.refused(why, judged.effect, judged.name)
    record = environment.adopted(same, stored)
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


def _shown(name: str, time: Together, runs: int) -> str:
    """A time in the rounds of several runs: "step_time -9.8% [-10.4%, -9.1%] in 12 paired rounds of 2 runs"."""
    low, high = (format_percent(end) for end in time.interval)
    rounds = plural(time.rounds, "paired round")
    return f"{name} {format_percent(time.effect)} [{low}, {high}] in {rounds} of {plural(runs, 'run')}"
