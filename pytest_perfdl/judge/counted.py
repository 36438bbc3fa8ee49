"""Counted metrics: compared exactly, within the context in which they are exact."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import reasons
from pytest_perfdl.model import metrics
from pytest_perfdl.model.limits import limit_words
from pytest_perfdl.model.record import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_perfdl.model.limits import Limit
    from pytest_perfdl.model.record import Record
    from pytest_perfdl.results.verdict import MetricVerdict


def out_of_scope(name: str, base: Record, new: Record) -> str:
    """What differs in the context within which the metric of this full name is exact; empty if nothing."""
    return reasons.differences(base.context, new.context, metrics.scope(name))


def newest_in_scope(name: str, new: Record, others: Iterable[Record]) -> Record | None:
    """The most recent record of another key with which a counted metric compares exactly."""
    dated = sorted(others, key=lambda other: max((part.date for part in other.occasions), default=""), reverse=True)
    return next(
        (other for other in dated if name in other.metrics() and not out_of_scope(name, other, new)),
        None,
    )


def same(base: float, new: float) -> bool:
    """Whether two counts agree; means over a period are stored to twelve digits."""
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
            before_and_after = (reasons.value(each.values[0], each.unit) for each in (series, again))
            return f"{name} {' -> '.join(before_and_after)}"
    return ""


def judge(shown: MetricVerdict, base: Series, new: Series, limit: Limit | None, differs: str = "") -> MetricVerdict:
    """Compare two series exactly.

    A series whose processes disagree is not compared; if it has a limit, it is `unchanged` if even the worst pair of
    processes is within that limit, else `inconclusive`. `differs` names differences of the context that affect the
    count: then a difference is `changed`, never `regressed`.
    """
    before, after = base.values[0], new.values[0]
    sign = 1 if new.better == "lower" else -1
    if not (base.stable and new.stable):
        return _unstable(shown, base, new, limit, sign)
    shown = replace(shown, effect=_effect(before, after))
    if same(before, after):
        shown = replace(shown, limit=limit.text if limit else None, verdict="unchanged")
        return reasons.with_reason(shown, f"{reasons.value(after, new.unit)}, same as the baseline")
    change = reasons.counts(before, after, new.unit)
    if differs:
        return replace(shown, verdict="changed", reason=f"{change}, but the context differs ({differs})")
    if limit is None:
        return reasons.with_reason(replace(shown, verdict="changed"), change)
    allowed = limit.allowed(before, new.unit)
    worse = sign * (after - before)
    shown = replace(shown, limit=limit.text)
    if abs(worse) <= allowed or same(abs(worse), allowed):
        return reasons.with_reason(
            replace(shown, verdict="unchanged"), f"{change}, within the limit {limit_words(limit.text)}"
        )
    shown = reasons.with_reason(shown, f"{change}, limit {limit_words(limit.text)}")
    if worse < 0:
        return replace(shown, verdict="changed")
    return replace(shown, verdict="regressed", times_over=worse / allowed if allowed else None)


def repeated(
    shown: MetricVerdict, base: Sequence[float | None], new: Sequence[float | None], limit: Limit | None
) -> MetricVerdict:
    """The verdict on a count with what other processes counted: one that varies between those of a side proves nothing.

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
        1 if shown.better == "lower" else -1,
    )


def _unstable(shown: MetricVerdict, base: Series, new: Series, limit: Limit | None, sign: int) -> MetricVerdict:
    side = "the current measurement" if base.stable else "the baseline" if new.stable else "both sides"
    reason = f"the value varies between the processes of {side}, so it is not compared"
    if limit is None:
        return replace(shown, reason=reason)
    best = min(sign * value for value in base.values)
    worst = max(sign * value for value in new.values)
    if worst - best <= limit.allowed(sign * best, new.unit):
        reason = f"the value varies between processes, within the limit {limit_words(limit.text)}"
        return replace(shown, limit=limit.text, verdict="unchanged", reason=reason)
    return replace(shown, limit=limit.text, verdict="inconclusive", reason=reason)


def _effect(base: float, new: float) -> float | None:
    if same(base, new):
        return 0.0
    return new / base - 1 if base else None
