"""What searches end with: the commit, or the packages, that made a test slower."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pytest_perfdl.model.json import filled, plain
from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.mixtures import Environments
from pytest_perfdl.stats.evidence import Estimate

Status = Literal["found", "range", "no difference", "faster"]
"""`faster`: the bad end is faster than the good one."""
EXIT_CODES: Mapping[Status, int] = {"found": 0, "range": 1, "no difference": 3, "faster": 3}


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of the metric, as a ratio: 0.1 is 10 % more."""

    ratio: float
    interval: tuple[float, float]
    """Ends of the 95 % interval; both are the ratio for an exact count."""
    rounds: int = 0
    """Paired rounds; 0 for a count."""

    @classmethod
    def of_rounds(cls, differences: Sequence[float], sign: int) -> Effect:
        """From log(new / base) of rounds, above zero for worse; the sign is -1 where more is better."""
        estimate = Estimate(tuple(differences))
        low, high = sorted(math.expm1(sign * end) for end in estimate.interval)
        return cls(math.expm1(sign * estimate.center), (low, high), len(differences))

    @classmethod
    def of_counts(cls, base: float, new: float) -> Effect:
        """From two exact values; from 0 to any is infinite."""
        ratio = new / base - 1 if base else (math.inf if new else 0.0)
        return cls(ratio, (ratio, ratio))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What answers of all searches say."""

    status: Status
    metric: str
    """Full name."""
    reason: str
    """One sentence."""
    whole: Effect | None = None
    """Of the bad end against the good one."""
    effect: Effect | None = None
    """Of what was found alone; of a range, the whole effect."""
    comparison: Measurement | None = None
    """What the causes come from: that of what was found alone; of a range, that of the ends."""
    notes: tuple[str, ...] = ()
    """Several culprits, a revert in between, a budget that has ended: one sentence each."""
    seconds: float = 0.0
    """Time of all measurements, those of earlier runs of the search included."""

    @property
    def exit_code(self) -> int:
        """0 for what was found, 1 for a range, 3 if there is nothing to find."""
        return EXIT_CODES[self.status]


@dataclass(frozen=True, kw_only=True)
class CommitAnswer(Answer):
    """The commit that made the test slower, or the commits among which it is."""

    history: History
    candidates: tuple[Commit, ...] = ()
    """The commit, or those that are left, in the order of the history."""
    probability: float | None = None
    """That the first slow commit is among the candidates."""
    values: tuple[float, float] | None = None
    """Parent's and commit's value of a counted metric."""
    time: tuple[str, Effect] | None = None
    """A time of the same comparison, with its full name, where the commit was found by a count."""
    measured: tuple[Commit, ...] = ()
    """Commits that were measured, both ends included."""
    skipped: tuple[tuple[Commit, str], ...] = ()
    """Commits that cannot be measured, and why."""
    commands: tuple[str, ...] = ()
    """The first one measures the commit against its parent again, others search what remains."""

    @property
    def culprit(self) -> Commit | None:
        """The commit, if it was found."""
        return self.candidates[0] if self.status == "found" else None

    @property
    def parent(self) -> Commit | None:
        """The commit before the culprit."""
        if self.culprit is None:
            return None
        return self.history.commits[self.history.commits.index(self.culprit) - 1]


@dataclass(frozen=True, kw_only=True)
class EnvironmentAnswer(Answer):
    """The distributions that made the test slower."""

    environments: Environments
    differing: Mapping[str, tuple[str, str]]
    """Name -> (old, new) version."""
    culprits: tuple[str, ...] = ()
    """Names of the distributions; as small a set as was found."""
    built: int = 0
    """How many environments were built."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Mixtures that cannot be measured, by their distributions of the new environment, and why."""


class _TimeForm(msgspec.Struct):
    metric: str
    effect: float
    interval: Sequence[float]


class _SkippedForm(msgspec.Struct):
    commit: str
    why: str


class CommitAnswerForm(msgspec.Struct):
    """JSON of a `CommitAnswer`; effects are ratios, and what is not known is null."""

    status: Status
    reason: str
    culprit: str | None
    parent: str | None
    date: str | None
    subject: str | None
    candidates: Sequence[str]
    metric: str
    effect: float | None
    interval: Sequence[float | None] | None
    values: Sequence[float] | None
    whole_effect: float | None
    whole_interval: Sequence[float | None] | None
    probability: float | None
    measured_commits: int
    measured: Sequence[str]
    skipped: Sequence[_SkippedForm]
    time: _TimeForm | None
    causes: Sequence[str]
    blame: Sequence[Mapping[str, Any]]
    """As in the run file."""
    source_diffs: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    good: str
    bad: str
    commits: int
    seconds: float
    commands: Sequence[str]

    @classmethod
    def of(cls, answer: CommitAnswer, commands: Sequence[str]) -> CommitAnswerForm:
        """An answer with its commands as a user gives them."""
        culprit, parent = answer.culprit, answer.parent
        return filled(
            cls,
            answer,
            answer.comparison or _NONE,
            culprit=culprit and culprit.sha,
            parent=parent and parent.sha,
            date=culprit and culprit.date,
            subject=culprit and culprit.subject,
            candidates=[commit.sha for commit in answer.candidates],
            measured_commits=len(answer.measured),
            measured=[commit.sha for commit in answer.measured],
            skipped=[_SkippedForm(commit.sha, why) for commit, why in answer.skipped],
            time=answer.time and _TimeForm(answer.time[0], answer.time[1].ratio, answer.time[1].interval),
            good=answer.history.good.sha,
            bad=answer.history.bad.sha,
            commits=answer.history.last,
            commands=commands,
            **_effects(answer),
        )


class _DistributionForm(msgspec.Struct):
    name: str
    old: str
    new: str


class _MixtureForm(msgspec.Struct):
    new: Sequence[str]
    why: str


class _InterpreterForm(msgspec.Struct):
    executable: str
    python: str


class EnvironmentAnswerForm(msgspec.Struct):
    """JSON of an `EnvironmentAnswer`; effects are ratios, and what is not known is null."""

    status: Status
    reason: str
    culprits: Sequence[_DistributionForm]
    metric: str
    effect: float | None
    interval: Sequence[float | None] | None
    whole_effect: float | None
    whole_interval: Sequence[float | None] | None
    built_environments: int
    differing: Sequence[_DistributionForm]
    skipped: Sequence[_MixtureForm]
    blame: Sequence[Mapping[str, Any]]
    """As in the run file."""
    notes: Sequence[str]
    old: _InterpreterForm
    new: _InterpreterForm
    seconds: float

    @classmethod
    def of(cls, answer: EnvironmentAnswer) -> EnvironmentAnswerForm:
        """An answer as JSON."""
        old, new = answer.environments.old, answer.environments.new
        differing = {name: _DistributionForm(name, *versions) for name, versions in answer.differing.items()}
        return filled(
            cls,
            answer,
            answer.comparison or _NONE,
            culprits=[differing[name] for name in answer.culprits],
            built_environments=answer.built,
            differing=[*differing.values()],
            skipped=[_MixtureForm(names.split(","), why) for names, why in answer.skipped],
            old=_InterpreterForm(old.executable, old.python),
            new=_InterpreterForm(new.executable, new.python),
            **_effects(answer),
        )


_NONE = Measurement(Request(""))
"""In place of a comparison that was not made."""


def _effects(answer: Answer) -> dict[str, Any]:
    effect, whole = answer.effect, answer.whole
    return {
        "effect": effect and effect.ratio,
        "interval": effect and effect.interval,
        "whole_effect": whole and whole.ratio,
        "whole_interval": whole and whole.interval,
        "seconds": round(answer.seconds, 3),
    }


def to_json(answer: CommitAnswer | EnvironmentAnswer, commands: Sequence[str] = ()) -> Any:
    """Plain data of an answer, of commits with the commands that a user gives."""
    if isinstance(answer, EnvironmentAnswer):
        return plain(EnvironmentAnswerForm.of(answer))
    return plain(CommitAnswerForm.of(answer, commands))
