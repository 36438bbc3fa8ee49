"""What is kept of one measured commit: its counts, its rounds against another commit, or why it cannot be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from pytest_perfdl.model.metrics import better, is_utilization
from pytest_perfdl.results.run import Run
from pytest_perfdl.results.run_file import blame_to_json
from pytest_perfdl.results.verdict import MetricVerdict, SourceDiff

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
    source_diffs: tuple[SourceDiff, ...] = ()
    """Diffs of the functions with causes."""
    causes: tuple[str, ...] = ()
    """The causes in words, one line each."""
    seconds: float = 0.0
    key: str = ""
    """Machine ID; empty for a commit that was skipped."""

    def differences(self, metric: str) -> tuple[float, ...]:
        """log(this commit / the other) of every round, above zero for worse."""
        sign = 1 if better(metric) == "lower" else -1
        return tuple(sign * math.log(new / base) for base, new in self.rounds.get(metric, ()))


def measurement_of(run: Run, request: Request) -> Measurement:
    """What is kept of a run of one test."""
    if len(run.results) != 1:
        names = ", ".join(result.id for result in run.results[:3])
        several = f"it is {len(run.results)} perf tests ({names}): name one of them"
        return Measurement(request, several if run.results else "no perf test was measured")
    judgement = run.results[0].judgement
    if not judgement.metrics:
        return Measurement(request, judgement.reason)
    counted = [metric for metric in judgement.metrics if metric.kind == "counted"]
    return Measurement(
        request,
        counts={metric.name: metric.new for metric in counted if metric.new is not None},
        base_counts={metric.name: metric.base for metric in counted if metric.base is not None},
        rounds={metric.name: metric.pairs for metric in judgement.metrics if _are_compared(metric)},
        blame=tuple(blame_to_json(judgement)),
        source_diffs=judgement.source_diffs,
        key=run.key.slug,
    )


def _are_compared(metric: MetricVerdict) -> bool:
    """Whether a time has rounds, none of which is 0 (waiting for data)."""
    is_time = metric.kind == "timed" and bool(metric.pairs) and not is_utilization(metric.name)
    return is_time and all(min(pair) > 0 for pair in metric.pairs)
