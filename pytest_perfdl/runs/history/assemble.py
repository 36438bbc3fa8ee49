"""From measurements to histories: one series for each test, metric and machine, with its change points.

A point of a time is the geometric mean over the processes of the measurement. A measurement that was compared with its
baseline in paired rounds has a better value: rounds measure both sides within minutes, so machine drift cancels. Its
point is the level of the baseline times the effect of the rounds. The level of a baseline is that of the point of its
commit if the history has one before, so the line goes on where a baseline was replaced; otherwise it is what the
baseline stores.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pytest_perfdl.model.metrics import CountedMetric, general, is_judged, of
from pytest_perfdl.model.record import Scalar
from pytest_perfdl.results.history import Point, TestHistory
from pytest_perfdl.runs.history.measurements import Measured, Measurement
from pytest_perfdl.stats.change_points import ChangePoint, change_points, exact_changes
from pytest_perfdl.stats.quantiles import student

ALL = "all"
"""In place of a metric's name."""
_DEFAULT = "step_time"
_DIGEST_DIGITS = 8
_NORMAL_95 = 1.96
"""Half the width of a 95 % interval in standard errors."""


def histories(measurements: Iterable[Measurement], test: str, metric: str | None) -> tuple[TestHistory, ...]:
    """The histories of all tests whose id contains a text, by id, metric and machine.

    Parameters
    ----------
    measurements
        In the order of their commits.
    test
        Part of the id; empty for all.
    metric
        Full name, general name (that of all calls), or `ALL`; `None` for the first judged metric of every call, which
        is `step_time` where there is one.
    """
    series: dict[tuple[str, str], list[Measurement]] = {}
    for each in measurements:
        if test in each.test:
            series.setdefault((each.test, each.machine_id), []).append(each)
    found = []
    for (name, machine), points in sorted(series.items()):
        for wanted in _chosen(points, metric):
            having = [each for each in points if wanted in each.metrics]
            found.append(_history(name, wanted, machine, having))
    return tuple(found)


def _chosen(measurements: Sequence[Measurement], metric: str | None) -> list[str]:
    """Names of the metrics to show, in the order of the newest record."""
    names = list(dict.fromkeys(name for each in reversed(measurements) for name in each.metrics))
    if metric == ALL:
        return names
    if metric is not None:
        return [name for name in names if metric in (name, general(name))]
    calls: dict[str, list[str]] = {}
    for name in names:
        calls.setdefault(name.rpartition(".")[0], []).append(name)
    chosen = []
    for own in calls.values():
        judged = [name for name in own if is_judged(name)] or own
        chosen.append(next((name for name in judged if general(name) == _DEFAULT), judged[0]))
    return chosen


def _history(test: str, metric: str, machine: str, measurements: Sequence[Measurement]) -> TestHistory:
    points: list[Point] = []
    levels: dict[str, float] = {}
    before: Measurement | None = None
    for each in measurements:
        value, interval, is_paired = _value(each, metric, levels)
        for commit in filter(None, (each.measured_commit, each.commit)):
            levels.setdefault(commit, value)
        changes = () if before is None else _changes(before.context, each.context)
        digest = _digest(each.context)
        points.append(
            Point(each.commit, each.date, value, interval, digest, changes, each.subject, each.note, is_paired)
        )
        before = each
    last = measurements[-1].metrics[metric]
    return TestHistory(
        test, metric, last.unit, last.better, machine, tuple(points), _found(metric, measurements, points)
    )


def _value(
    measurement: Measurement, metric: str, levels: Mapping[str, float]
) -> tuple[float, tuple[float, float] | None, bool]:
    """The value of a point, its 95 % interval, and whether it follows from paired rounds."""
    measured, base, paired = measurement.metrics[metric], measurement.base, measurement.paired.get(metric)
    if paired is not None:
        level = None
        if base is not None:
            level = levels.get(base.measured_commit)
            if level is None and base.machine_id == measurement.machine_id and metric in base.metrics:
                level = mean(base.metrics[metric])[0]
        level = paired.base if level is None else level
        if level is not None and level > 0:
            low, high = (level * (1 + end) for end in paired.interval)
            return level * (1 + paired.effect), (low, high), True
    return (*mean(measured), False)


def mean(measured: Measured) -> tuple[float, tuple[float, float] | None]:
    """The mean over processes and its 95 % interval, by Student's distribution; `None` for a single process.

    The geometric mean for times; the arithmetic one for counts, and where a value is not positive. Processes of one
    recording share the state of the machine, so another recording may differ by more than the interval.
    """
    values = measured.values
    if min(values) == max(values):
        return values[0], (values[0], values[0]) if len(values) > 1 or measured.kind == "counted" else None
    is_geometric = measured.kind == "timed" and min(values) > 0
    scaled = [math.log(value) for value in values] if is_geometric else list(values)
    center = statistics.fmean(scaled)
    reach = student(0.975, len(values) - 1) * statistics.stdev(scaled) / math.sqrt(len(values))
    if is_geometric:
        return math.exp(center), (math.exp(center - reach), math.exp(center + reach))
    return center, (center - reach, center + reach)


def _found(metric: str, measurements: Sequence[Measurement], points: Sequence[Point]) -> tuple[ChangePoint, ...]:
    values = [point.value for point in points]
    if _is_exact(metric, [each.metrics[metric] for each in measurements]):
        return exact_changes(values)
    # A share or a wait may be 0: its logarithm says nothing.
    return change_points(values, _errors(points)) if min(values) > 0 else ()


def _errors(points: Sequence[Point]) -> list[float] | None:
    """Standard errors of the points on the log scale; `None` if no point follows from paired rounds.

    Only rounds tell the error of a point: processes of one recording share the state of the machine. A point without
    rounds counts as the least certain one of the others.
    """
    known = [_error(point) for point in points]
    largest = max(known)
    return [each or largest for each in known] if largest > 0 else None


def _error(point: Point) -> float:
    """Standard error of a point on the log scale; 0 if it is not known."""
    if not point.is_paired or point.interval is None or not 0 < point.interval[0] < point.interval[1]:
        return 0.0
    low, high = map(math.log, point.interval)
    return (high - low) / (2 * _NORMAL_95)


def _is_exact(metric: str, series: Sequence[Measured]) -> bool:
    """Whether every difference of the metric is a change: it is counted, and the same in all processes."""
    known = of(metric)
    return all(each.kind == "counted" and min(each.values) == max(each.values) for each in series) and (
        not isinstance(known, CountedMetric) or known.reproducible
    )


def _changes(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> tuple[tuple[str, str, str], ...]:
    names = sorted({*before, *after})
    return tuple(
        (name, _text(before.get(name)), _text(after.get(name))) for name in names if before.get(name) != after.get(name)
    )


def _text(value: Scalar) -> str:
    return "none" if value is None else str(value)


def _digest(context: Mapping[str, Scalar]) -> str:
    """Equal for equal contexts."""
    text = json.dumps(dict(context), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
