"""Phrases that reasons of verdicts share, the reason of a test, and the exact comparison of counted metrics.

A reason is written once, in the module that makes the verdict, and is part of it (`MetricVerdict.reason`), also in the
run file. What reports say beyond it is in `report.story` and `report.words`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.model import metrics
from pytest_perfdl.model.limits import limit_words
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Series
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.results.verdict import importance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_perfdl.model.limits import Limit
    from pytest_perfdl.model.record import Record
    from pytest_perfdl.results.verdict import MetricVerdict, Verdict


_MODES = {"page_faults": "page-fault rate"}
_LEVELS = {"none": "zero", "few": "low", "many": "high"}
NAMED = 3
"""Maximum number of further metrics in a test's reason."""


def percent(ratio: float | None) -> str:
    """A percentage without a sign, "9.1%"."""
    return "unknown" if ratio is None else format_percent(ratio, signed=False)


def name_rounds(rounds: int) -> str:
    """The basis of a verdict, "10 paired rounds"."""
    return plural(rounds, "paired round")


def interval(metric: MetricVerdict, basis: str) -> str:
    """An effect with its interval, basis and limit.

    "+34.1% [+30.2%, +38.0%] (95% interval, unpaired), limit 10%"
    """
    parts = [] if metric.effect is None else [format_percent(metric.effect)]
    if metric.ci95 is not None:
        low, high = map(format_percent, metric.ci95)
        parts.append(f"[{low}, {high}] (95% interval, {basis})")
    return " ".join(parts) + (f", limit {limit_words(str(metric.limit))}" if metric.limit else "")


def without_ratio(metric: MetricVerdict, basis: str) -> str:
    """Both values of a metric that has no ratio, their basis and limit: "0 -> 100 (+100), 9 paired rounds, limit 5"."""
    assert metric.base is not None
    assert metric.new is not None
    return f"{counts(metric.base, metric.new, metric.unit)}, {basis}, limit {limit_words(str(metric.limit))}"


def with_reason(metric: MetricVerdict, numbers: str, remark: str = "", join: str = ": ") -> MetricVerdict:
    """A metric with its reason: numbers and limit, and a remark on them."""
    return replace(metric, reason=join.join(filter(None, (numbers, remark))), remark=remark)


def with_remark(metric: MetricVerdict, remark: str, join: str = "; ") -> MetricVerdict:
    """A metric with another remark at the end of its reason."""
    whole = metric.remark if metric.remark is None else "; ".join(filter(None, (metric.remark, remark)))
    return replace(metric, reason=f"{metric.reason}{join}{remark}", remark=whole)


def counts(base: float, new: float, unit: str) -> str:
    """Baseline and current value of a counted metric, "1699 -> 1711 (+12)"."""
    difference = format_quantity(new - base, unit, signed=True)
    return f"{format_quantity(base, unit)} -> {format_quantity(new, unit)} ({difference})"


def differences(base: Mapping[str, object], new: Mapping[str, object], names: Iterable[str]) -> str:
    """Named values that differ, "torch 2.12.0 -> 2.13.0"; empty when none does."""
    return ", ".join(
        f"{name} {side(base.get(name))} -> {side(new.get(name))}" for name in names if base.get(name) != new.get(name)
    )


def side(value: object) -> str:
    """A value of the context as text."""
    return "none" if value is None else str(value)


def unseen_modes(base: Record, new: Record) -> str:
    """A remark on modes (page-fault rates) that the baseline does not have; empty if there are none."""
    found = [
        f"the {_MODES.get(name, name)} is {_levels(labels)} now and was {_levels(base.modes.get(name, ()))} in the "
        "baseline, which can change times although the code is the same"
        for name, seen in sorted(new.modes.items())
        if (labels := [label for label in seen if label not in base.modes.get(name, ())])
    ]
    return "; ".join(found)


def _levels(labels: Iterable[str]) -> str:
    return " or ".join(_LEVELS.get(each, each) for each in labels) or "unknown"


def machine(log_ratio: float) -> str:
    """A remark on machine drift, from the log ratio of the reference load's times (current over baseline).

    >>> machine(math.log(1.12))
    'the machine is 12% slower than when the baseline was recorded (reference load)'
    """
    size, direction = math.expm1(abs(log_ratio)), "slower" if log_ratio > 0 else "faster"
    return f"the machine is {size:.0%} {direction} than when the baseline was recorded (reference load)"


def explain_test(verdict: Verdict, metrics: Sequence[MetricVerdict], standing: Verdict | None, why: str) -> str:
    """The reason of a test's verdict: `why`, or the reason of its worst metric."""
    changed = [metric for metric in metrics if metric.kind == "counted" and metric.verdict == "changed"]
    if changed and verdict != "changed":
        counts = ", ".join(f"{metric.name} {metric.reason}" for metric in changed[:NAMED])
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        others = [metric for metric in metrics if metric not in changed]
        return f"{explain_test(verdict, others, standing, why)}; counts changed: {counts}{more}"
    worst = [metric for metric in metrics if metric.outcome == verdict]
    worst.sort(key=lambda metric: (importance(metric), -(metric.times_over or 0.0)))
    if verdict == standing or not worst:
        return why or "no metric has a limit"
    first, *others = worst
    if verdict == "unchanged":
        first = next((metric for metric in worst if general(metric.name) == "step_time"), first)
        return f"{first.name} {first.reason}"
    also = ", ".join(metric.name for metric in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"{first.name} {first.reason}" + (f"; also {also}{more}" if others else "") + (f"; {why}" if why else "")


# Counted metrics: compared exactly, within the context in which they are exact.


def out_of_scope(name: str, base: Record, new: Record) -> str:
    """What differs in the context within which the metric of this full name is exact; empty if nothing."""
    return differences(base.context, new.context, metrics.scope(name))


def newest_in_scope(name: str, new: Record, others: Iterable[Record]) -> Record | None:
    """The most recent record of another key with which a counted metric compares exactly."""
    dated = sorted(others, key=lambda other: max((part.date for part in other.occasions), default=""), reverse=True)
    return next(
        (other for other in dated if name in other.metrics() and not out_of_scope(name, other, new)),
        None,
    )


def same(base: float, new: float) -> bool:
    """Whether two counts agree: whole ones exactly, means over a period to nine of their twelve digits."""
    if float(base).is_integer() and float(new).is_integer():
        return base == new
    return math.isclose(base, new, rel_tol=1e-9)


def not_reproduced(stored: Record, now: Record) -> str:
    """The first count that the same code does not reproduce, "ops 412 -> 415"; empty if there is none.

    Counts that a change of the context affects are ignored.
    """
    before, after = stored.metrics(), now.metrics()
    for name, series in before.items():
        known = metrics.of(name)
        if not (isinstance(known, metrics.CountedMetric) and known.reproducible) or name not in after:
            continue
        if out_of_scope(name, stored, now):
            continue
        again = after[name]
        if series.stable and again.stable and not same(series.values[0], again.values[0]):
            before_and_after = (format_quantity(each.values[0], each.unit) for each in (series, again))
            return f"{name} {' -> '.join(before_and_after)}"
    return ""


def judge(shown: MetricVerdict, base: Series, new: Series, limit: Limit | None, differs: str = "") -> MetricVerdict:
    """Compare two series exactly.

    A series whose processes disagree is compared if it has a limit: it is `unchanged` if even the worst pair of
    processes is within that limit, `regressed` if even the best pair is past it, else `inconclusive`. `differs` names
    differences of the context that affect the count: then a difference is `changed`, never `regressed`.
    """
    before, after = base.values[0], new.values[0]
    sign = 1 if new.better == "lower" else -1
    if not (base.stable and new.stable):
        return _unstable(shown, base, new, limit, may_fail=not differs)
    shown = replace(shown, effect=_effect(before, after))
    if same(before, after):
        shown = replace(shown, limit=limit, verdict="unchanged")
        return with_reason(shown, f"{format_quantity(after, new.unit)}, same as the baseline")
    change = counts(before, after, new.unit)
    if differs:
        return replace(shown, verdict="changed", reason=f"{change}, but the context differs ({differs})")
    if limit is None:
        return with_reason(replace(shown, verdict="changed"), change)
    allowed = limit.allowed(before, new.unit)
    worse = sign * (after - before)
    shown = replace(shown, limit=limit)
    if _within(abs(worse), allowed):
        return with_reason(replace(shown, verdict="unchanged"), f"{change}, within the limit {limit_words(limit.text)}")
    shown = with_reason(shown, f"{change}, limit {limit_words(limit.text)}")
    if worse < 0:
        return replace(shown, verdict="changed")
    return replace(shown, verdict="regressed", times_over=worse / allowed if allowed else None)


def judge_again(
    shown: MetricVerdict, base: Sequence[float | None], new: Sequence[float | None], limit: Limit | None
) -> MetricVerdict:
    """The verdict on a count with what other processes counted, which may vary between those of a side (`judge`).

    Parameters
    ----------
    base, new
        What processes of the baseline's code counted, and what further ones of the current code did; `None` where it is
        unknown.
    """
    if shown.verdict not in ("regressed", "changed") or shown.is_held_to_budget or shown.new is None:
        return shown
    before, after = [each for each in base if each is not None], [each for each in new if each is not None]
    if not before or (all(same(each, before[0]) for each in before) and all(same(each, shown.new) for each in after)):
        return shown
    doubted = replace(shown, verdict=None, reason="", effect=None, times_over=None, waiver=None)
    return _unstable(
        doubted,
        Series("counted", shown.unit, shown.better, tuple(before)),
        Series("counted", shown.unit, shown.better, (shown.new, *after)),
        limit,
        may_fail=shown.verdict == "regressed",
    )


def _unstable(shown: MetricVerdict, base: Series, new: Series, limit: Limit | None, *, may_fail: bool) -> MetricVerdict:
    side = "the current measurement" if base.stable else "the baseline" if new.stable else "both sides"
    reason = f"the value varies between the processes of {side}, so it is not compared"
    if limit is None:
        return replace(shown, reason=reason)
    shown = replace(shown, limit=limit)
    sign = 1 if new.better == "lower" else -1
    before, after = ([sign * value for value in side.values] for side in (base, new))
    if _within(max(after) - min(before), limit.allowed(min(before), new.unit)):
        reason = f"the value varies between processes, within the limit {limit_words(limit.text)}"
        return replace(shown, verdict="unchanged", reason=reason)
    allowed, least = limit.allowed(max(before), new.unit), min(after) - max(before)
    if not may_fail or _within(least, allowed):
        return replace(shown, verdict="inconclusive", reason=reason)
    change = f"{counts(sign * max(before), sign * min(after), new.unit)}, limit {limit_words(limit.text)}"
    shown = replace(shown, verdict="regressed", times_over=least / allowed if allowed else None)
    return with_reason(shown, change, "the closest values, since they vary between processes")


def _within(change: float, allowed: float) -> bool:
    return change <= allowed or same(change, allowed)


def _effect(base: float, new: float) -> float | None:
    if same(base, new):
        return 0.0
    return new / base - 1 if base else None
