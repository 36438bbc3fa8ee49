"""What is kept of one measured commit: its counts, its rounds against another commit, or why it cannot be measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from pytest_perfdl.model.errors import OutcomeError
from pytest_perfdl.model.metrics import better, is_utilization

_Time = Annotated[float, msgspec.Meta(gt=0)]
Pairs = tuple[tuple[_Time, _Time], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure."""

    commit: str
    """Full hash, or `history.WORKING_TREE`; of an environment, its name as in `mixtures.NEW`."""
    against: str | None = None
    """The same of what to compare with; `None` to count this one alone."""
    timed: bool = False
    """Whether to measure rounds; without, only counts are compared."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of it."""

    request: Request
    skipped: str = ""
    """Why the commit cannot be measured, in one line; empty if it was."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Counted metrics of the commit by full name, such as `ops` or `forward.ops`."""
    base_counts: Mapping[str, float] = field(default_factory=dict)
    """The same of the commit that it was compared with."""
    rounds: Mapping[str, Pairs] = field(default_factory=dict)
    """Other commit's and this one's value of every round, by full name of the timed metric."""
    blame: tuple[Mapping[str, Any], ...] = ()
    """Causes, as the run file has them."""
    source_diffs: tuple[Mapping[str, Any], ...] = ()
    """Diffs of the functions with causes, as the run file has them."""
    causes: tuple[str, ...] = ()
    """The causes in words, one line each."""
    seconds: float = 0.0
    key: str = ""
    """Machine ID; empty for a commit that was skipped."""

    def differences(self, metric: str) -> tuple[float, ...]:
        """log(this commit / the other) of every round, above zero for worse."""
        sign = 1 if better(metric) == "lower" else -1
        return tuple(sign * math.log(new / base) for base, new in self.rounds.get(metric, ()))


def measurement_of(run: Any, request: Request) -> Measurement:
    """From the run file of `pytest --perf` (`results.run_file`) of one test.

    Raises
    ------
    OutcomeError
    """
    try:
        tests = run["tests"]
        if len(tests) != 1:
            names = ", ".join(str(test["id"]) for test in tests[:3])
            why = f"it is {len(tests)} perf tests ({names}): name one of them" if tests else "no perf test was measured"
            return Measurement(request, why)
        test = tests[0]
        metrics: Mapping[str, Any] = test["metrics"]
        if not metrics:
            return Measurement(request, str(test["reason"]))
        counted = {name: each for name, each in metrics.items() if each["kind"] == "counted"}
        return Measurement(
            request,
            counts=_numbers(counted, "new"),
            base_counts=_numbers(counted, "base"),
            rounds={name: pairs for name, each in metrics.items() if (pairs := _rounds(name, each))},
            blame=tuple(test["blame"]),
            source_diffs=tuple(test["source_diffs"]),
            key=str(run["key"]["slug"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OutcomeError(f"is not of one perf test ({type(error).__name__}: {error})") from error


def _rounds(name: str, metric: Mapping[str, Any]) -> Pairs:
    """The rounds of a time; none of what has no rounds, is no time, or is 0 in some round (waiting for data)."""
    if metric["kind"] != "timed" or metric["evidence"] != "paired" or is_utilization(name):
        return ()
    pairs = list(zip(metric["base_values"], metric["new_values"], strict=True))
    return _pairs(pairs) if all(base and new and min(base, new) > 0 for base, new in pairs) else ()


def _numbers(metrics: Mapping[str, Any], side: str) -> dict[str, float]:
    return {name: float(each[side]) for name, each in metrics.items() if each[side] is not None}


def _pairs(values: Iterable[Any]) -> Pairs:
    return tuple((float(base), float(new)) for base, new in values)
