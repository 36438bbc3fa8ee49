"""What a search ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pytest_perfdl.bisect.history import Commit, History
from pytest_perfdl.bisect.measurements import Measurement
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The commit that made the test slower, or the commits among which it is."""

    status: Status
    history: History
    metric: str
    """Full name."""
    reason: str
    """One sentence."""
    whole: Effect | None = None
    """Of the bad end against the good one."""
    candidates: tuple[Commit, ...] = ()
    """The commit, or those that are left, in the order of the history."""
    probability: float | None = None
    """That the first slow commit is among the candidates."""
    effect: Effect | None = None
    """Of the commit against its parent; of a range, the whole effect."""
    values: tuple[float, float] | None = None
    """Parent's and commit's value of a counted metric."""
    comparison: Measurement | None = None
    """What the causes come from: the commit against its parent; of a range, the bad end against the good one."""
    time: tuple[str, Effect] | None = None
    """A time of the same comparison, with its full name, where the commit was found by a count."""
    measured: tuple[Commit, ...] = ()
    """Commits that were measured, both ends included."""
    skipped: tuple[tuple[Commit, str], ...] = ()
    """Commits that cannot be measured, and why."""
    notes: tuple[str, ...] = ()
    """Several culprits, a revert in between, a budget that has ended: one sentence each."""
    seconds: float = 0.0
    """Time of all measurements, those of earlier runs of the search included."""
    commands: tuple[str, ...] = field(default=())
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

    @property
    def exit_code(self) -> int:
        """0 for a commit, 1 for a range, 3 if there is nothing to find."""
        return EXIT_CODES[self.status]


class _TimeForm(msgspec.Struct):
    metric: str
    effect: float
    interval: list[float]


class _SkippedForm(msgspec.Struct):
    commit: str
    why: str


class AnswerForm(msgspec.Struct):
    """What `to_json` gives."""

    status: Status
    reason: str
    culprit: str | None
    parent: str | None
    date: str | None
    subject: str | None
    candidates: list[str]
    metric: str
    effect: float | None
    interval: list[float | None] | None
    values: list[float] | None
    whole_effect: float | None
    whole_interval: list[float | None] | None
    probability: float | None
    measured_commits: int
    measured: list[str]
    skipped: list[_SkippedForm]
    time: _TimeForm | None
    causes: list[str]
    blame: list[dict[str, Any]]
    """As in the run file."""
    source_diffs: list[dict[str, Any]]
    notes: list[str]
    good: str
    bad: str
    commits: int
    seconds: float
    commands: list[str]


def to_json(answer: Answer) -> dict[str, Any]:
    """Plain data for `json`; effects are ratios, and what is not known is null."""
    effect, culprit, compared = answer.effect, answer.culprit, answer.comparison
    return {
        "status": answer.status,
        "reason": answer.reason,
        "culprit": None if culprit is None else culprit.sha,
        "parent": None if answer.parent is None else answer.parent.sha,
        "date": None if culprit is None else culprit.date,
        "subject": None if culprit is None else culprit.subject,
        "candidates": [commit.sha for commit in answer.candidates],
        "metric": answer.metric,
        "effect": None if effect is None else finite(effect.ratio),
        "interval": None if effect is None else [finite(end) for end in effect.interval],
        "values": None if answer.values is None else list(answer.values),
        "whole_effect": None if answer.whole is None else finite(answer.whole.ratio),
        "whole_interval": None if answer.whole is None else [finite(end) for end in answer.whole.interval],
        "probability": answer.probability,
        "measured_commits": len(answer.measured),
        "measured": [commit.sha for commit in answer.measured],
        "skipped": [{"commit": commit.sha, "why": why} for commit, why in answer.skipped],
        "time": None if answer.time is None else _time(*answer.time),
        "causes": [] if compared is None else list(compared.causes),
        "blame": [] if compared is None else [dict(each) for each in compared.blame],
        "source_diffs": [] if compared is None else [dict(each) for each in compared.source_diffs],
        "notes": list(answer.notes),
        "good": answer.history.good.sha,
        "bad": answer.history.bad.sha,
        "commits": answer.history.last,
        "seconds": round(answer.seconds, 3),
        "commands": list(answer.commands),
    }


def _time(metric: str, effect: Effect) -> dict[str, Any]:
    return {"metric": metric, "effect": effect.ratio, "interval": list(effect.interval)}


def finite(number: float) -> float | None:
    """The number for JSON, which has no infinity."""
    return number if math.isfinite(number) else None
