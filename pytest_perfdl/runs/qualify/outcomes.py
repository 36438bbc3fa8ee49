"""What is kept of one run of a suite: the verdict on every test, and on its times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_perfdl.model.errors import OutcomeError
from pytest_perfdl.model.limits import is_budget
from pytest_perfdl.model.metrics import unit
from pytest_perfdl.report.compared import COMPARED
from pytest_perfdl.results.verdict import VERDICTS, Evidence, Verdict
from pytest_perfdl.runs.log import Log

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


def outcome_of(run: Any, *, inject: float, seconds: float, arguments: Iterable[str]) -> Outcome:
    """From the run file of `pytest --perf` (`results.run_file`).

    Raises
    ------
    OutcomeError
    """
    try:
        return Outcome(
            inject=inject,
            date=str(run["date"]),
            seconds=seconds,
            commit=run["commit"],
            key=str(run["key"]["slug"]),
            arguments=tuple(arguments),
            cases=tuple(_case(test) for test in run["tests"]),
            settings=_texts({name: each for name, each in run["settings"].items() if name != "--perf-inject"}),
            conditions=_texts(run["context"]) | _baselines(run["tests"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OutcomeError(f"not a run.json file of pytest --perf ({_what(error)})") from error


def reasons_of(run: Any, verdicts: frozenset[Verdict]) -> list[tuple[str, Verdict, str]]:
    """Test, verdict and reason, of the tests of a run file that have one of these verdicts."""
    return [(test["id"], test["verdict"], test["reason"]) for test in run["tests"] if test["verdict"] in verdicts]


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def _baselines(tests: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """When the baseline of each test was last recorded."""
    of = {test["id"]: test["base_record"] for test in tests if test["base_record"] is not None}
    return {f"baseline of {test}": str(base["occasions"][-1]["date"]) for test, base in of.items()}


def _case(test: Mapping[str, Any]) -> Case:
    verdict: Verdict = _one_of(test["verdict"], VERDICTS)
    return Case(
        id=str(test["id"]),
        verdict=verdict,
        basis=_basis(verdict, test["metrics"].values()),
        compared=test["record"] is not None,
        metrics={
            name: _metric(metric)
            for name, metric in test["metrics"].items()
            if metric["verdict"] in COMPARED and unit(name) == "ns" and _is_relative(metric["limit"])
        },
    )


def _basis(verdict: Verdict, metrics: Iterable[Mapping[str, Any]]) -> Basis:
    """What the metrics that carry the verdict rest on; of several, what is surest of time."""
    telling = [metric for metric in metrics if metric["verdict"] == verdict and metric["kind"] == "timed"]
    found: set[Basis] = {metric["evidence"] for metric in telling if _is_relative(metric["limit"])}
    return next((basis for basis in get_args(Evidence)[::-1] if basis in found), "other")


def _is_relative(limit: str | None) -> bool:
    return limit is not None and not is_budget(limit)


def _metric(data: Mapping[str, Any]) -> Metric:
    effect = data["effect"]
    return Metric(_one_of(data["verdict"], VERDICTS), None if effect is None else _number(effect))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return value


def _one_of(value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _what(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
