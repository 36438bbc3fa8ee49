"""What a search between two environments ends with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pytest_perfdl.bisect.answer import EXIT_CODES, Effect, Status, finite
from pytest_perfdl.bisect.measurements import Measurement
from pytest_perfdl.bisect.mixtures import Environments


@dataclass(frozen=True, slots=True)
class EnvironmentAnswer:
    """The distributions that made the test slower."""

    status: Status
    environments: Environments
    differing: Mapping[str, tuple[str, str]]
    """Name -> (old, new) version."""
    metric: str
    reason: str
    """One sentence."""
    culprits: tuple[str, ...] = ()
    """Names of the distributions; as small a set as was found."""
    whole: Effect | None = None
    """Of the new environment against the old one."""
    effect: Effect | None = None
    """Of the culprits alone against the old environment."""
    built: int = 0
    """How many environments were built."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Mixtures that cannot be measured, by their distributions of the new environment, and why."""
    proof: Measurement | None = None
    """The measurement of the culprits alone."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 for the culprits, 1 for a set that may be too large, 3 if there is nothing to find."""
        return EXIT_CODES[self.status]


class _DistributionForm(msgspec.Struct):
    name: str
    old: str
    new: str


class _MixtureForm(msgspec.Struct):
    new: list[str]
    why: str


class _InterpreterForm(msgspec.Struct):
    executable: str
    python: str


class EnvironmentAnswerForm(msgspec.Struct):
    """What `to_json` gives."""

    status: Status
    reason: str
    culprits: list[_DistributionForm]
    metric: str
    effect: float | None
    interval: list[float | None] | None
    whole_effect: float | None
    whole_interval: list[float | None] | None
    built_environments: int
    differing: list[_DistributionForm]
    skipped: list[_MixtureForm]
    blame: list[dict[str, Any]]
    """As in the run file."""
    notes: list[str]
    old: _InterpreterForm
    new: _InterpreterForm
    seconds: float


def to_json(answer: EnvironmentAnswer) -> dict[str, Any]:
    """Plain data for `json`; effects are ratios, and what is not known is null."""
    effect, whole, proof = answer.effect, answer.whole, answer.proof
    both = answer.environments
    return {
        "status": answer.status,
        "reason": answer.reason,
        "culprits": [_named(name, answer) for name in answer.culprits],
        "metric": answer.metric,
        "effect": None if effect is None else finite(effect.ratio),
        "interval": None if effect is None else [finite(end) for end in effect.interval],
        "whole_effect": None if whole is None else finite(whole.ratio),
        "whole_interval": None if whole is None else [finite(end) for end in whole.interval],
        "built_environments": answer.built,
        "differing": [_named(name, answer) for name in answer.differing],
        "skipped": [{"new": names.split(","), "why": why} for names, why in answer.skipped],
        "blame": [] if proof is None else [dict(each) for each in proof.blame],
        "notes": list(answer.notes),
        "old": {"executable": both.old.executable, "python": both.old.python},
        "new": {"executable": both.new.executable, "python": both.new.python},
        "seconds": round(answer.seconds, 3),
    }


def _named(name: str, answer: EnvironmentAnswer) -> dict[str, str]:
    old, new = answer.differing[name]
    return {"name": name, "old": old, "new": new}
