"""Verdicts that need no timing: missing or outdated baselines, and counted metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import budget, log_ratios, reasons
from pytest_perfdl.judge.blame import blame
from pytest_perfdl.model import metrics as metrics_of
from pytest_perfdl.model.limits import BUILT_IN, limit_of, parse_limit
from pytest_perfdl.model.metrics import GROWTH, STEP_TIMES, general, is_utilization
from pytest_perfdl.model.record import Series, metric_name
from pytest_perfdl.results.verdict import Judgement, MetricVerdict, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pytest_perfdl.model.limits import Limit, Limits
    from pytest_perfdl.model.record import Call, Record
    from pytest_perfdl.results.verdict import Cause, Evidence

_ALWAYS_RECORDED = frozenset({"step_time", "block_time"})
"""Metrics that every version records: a baseline without one is incomplete, for example after a merge. Other metrics
may be from a later version, or not available on a machine."""
_NO_GROWTH = parse_limit(GROWTH, "0")
EXPLAINED: frozenset[Verdict] = frozenset({"regressed", "waived", "suspect", "changed", "improved"})
"""Verdicts with causes; for other verdicts differences are noise, or the test is a different one."""


def standing(
    new: Record, base: Record | None, others: Sequence[Record], limits: Limits, *, stored: bool = True
) -> Judgement:
    """Decide everything except times.

    Parameters
    ----------
    new
        The current measurement.
    base
        The baseline of the same test and machine ID, or the measurement of another revision.
    others
        Baselines of the same test for other machine IDs; without `base`, counted metrics are compared with them.
    limits
        The test's limits and budgets, merged from all sources.
    stored
        Whether `base` is a baseline, which can be updated.

    Returns
    -------
    Judgement
        Timed metrics have values, but no verdict if they need a comparison: `open_times` lists those that paired rounds
        or further repeats must decide. An invalid measurement is `invalid` and has no values; with a `missing` or
        `outdated` baseline only budgets are checked.
    """
    changes = context_changes(base, new)
    if broken := broken_reason(new):
        return Judgement(new.test, "invalid", broken, integrity=new.integrity, context_changes=changes)
    verdict, why = baseline_verdict(new, base, others)
    base = base and _with_growth_of(base, new)
    measured = (_with_growth_of(new, base) if base is not None else new).metrics()
    metrics = [
        _metric(name, series, new, base, others, limits, verdict, stored=stored) for name, series in measured.items()
    ]
    wanted = [name for name in limits.unmatched(measured) if is_utilization(name) and name in limits.expected]
    metrics += [_unknown(name, limits) for name in wanted]
    if base is not None:
        for name, series in base.metrics().items():
            if name not in measured:
                judged = verdict is None and (series.kind == "counted" or limits.for_metric(name) is not None)
                metrics.append(_gone(name, series, judged=judged))
    return judgement(new, base, tuple(metrics), verdict, why)


def _with_growth_of(record: Record, other: Record) -> Record:
    """A record with memory growth 0 for calls that grow in the other: calls without growth lack the metric."""
    growing = {call.name for call in other.calls if GROWTH in call.series}

    def filled(call: Call) -> Call:
        if call.name not in growing or GROWTH in call.series:
            return call
        repeats = len(next(iter(call.series.values())).values)
        return replace(call, series={**call.series, GROWTH: Series("counted", "B", "lower", (0.0,) * repeats)})

    return replace(record, calls=tuple(map(filled, record.calls))) if growing else record


def open_times(found: Judgement, limits: Limits) -> tuple[str, ...]:
    """Times that rounds or repeats must decide: those with a baseline and a limit, and those with a budget."""
    if found.verdict == "invalid":
        return ()
    return tuple(
        metric.name
        for metric in found.metrics
        if metric.kind == "timed" and metric.new is not None and (_limited(metric) or limits.budget_for(metric.name))
    )


def _limited(metric: MetricVerdict) -> bool:
    return metric.verdict is None and metric.base is not None and metric.limit is not None


def judgement(
    new: Record, base: Record | None, metrics: tuple[MetricVerdict, ...], standing: Verdict | None, why: str
) -> Judgement:
    """The verdict on a test, from the verdicts on its metrics and on its baseline."""
    times = [metric for metric in metrics if metric.kind == "timed" and metric.verdict not in (None, "changed")]
    # Changes that affect speed also change counts: counts explain a verdict on times, but do not replace it.
    telling = [metric for metric in metrics if not (times and metric.kind == "counted" and metric.verdict == "changed")]
    verdicts = [metric.outcome for metric in telling if metric.outcome is not None]
    verdict = worst([*verdicts, standing] if standing else verdicts)
    changed = [metric.name for metric in metrics if metric.kind == "counted" and metric.verdict == "changed"]
    explained = base is not None and not outdated(base, new) and (verdict in EXPLAINED or bool(changed))
    return Judgement(
        test=new.test,
        verdict=verdict,
        reason=reasons.explain_test(verdict, metrics, standing, why),
        metrics=metrics,
        blame=_blamed(new, base, metrics) if base is not None and explained else (),
        integrity=new.integrity,
        context_changes=context_changes(base, new),
    )


def _blamed(new: Record, base: Record, metrics: Sequence[MetricVerdict]) -> tuple[Cause, ...]:
    changes = ((call.name, timed_change(call.name, metrics, evidence="unpaired")) for call in new.calls)
    leaning = {call: change for call, change in changes if change is not None}
    return blame(new, base, leaning=leaning, counts_first=not timed_moved(metrics))


def timed_moved(metrics: Sequence[MetricVerdict]) -> bool:
    """Whether a time changed, not only counts."""
    return any(metric.kind == "timed" and metric.verdict in EXPLAINED for metric in metrics)


def timed_change(
    call: str,
    metrics: Sequence[MetricVerdict],
    verdicts: Container[Verdict | None] | None = None,
    *,
    evidence: Evidence = "paired",
) -> float | None:
    """Relative change of a call's step time, if it was compared so and has one of these verdicts (or any)."""
    by_name = {metric.name: metric for metric in metrics}
    for name in STEP_TIMES:
        metric = by_name.get(metric_name(call, name))
        if metric is not None and metric.evidence == evidence and (verdicts is None or metric.verdict in verdicts):
            return metric.effect
    return None


def broken_reason(new: Record) -> str:
    """Why the measurement is invalid; empty if it is valid."""
    broken = [finding.message for finding in new.integrity if finding.level == "invalid"]
    return "; ".join(broken) if broken or new.calls else "the test measured nothing"


def outdated(base: Record, new: Record) -> str:
    """Why a baseline is outdated; empty if it is not."""
    if base.test_hash != new.test_hash:
        return "the test changed since the baseline was recorded (its source, fixtures, constants or parameters)"
    before, after = base.plan.shape, new.plan.shape
    changed = reasons.differences(before, after, after)
    return f"measurement settings differ from the baseline: {changed}" if changed else ""


def context_changes(base: Record | None, new: Record) -> tuple[tuple[str, str, str], ...]:
    """Context that differs from the baseline's."""
    if base is None:
        return ()
    return tuple(
        (name, reasons.side(base.context.get(name)), reasons.side(new.context.get(name)))
        for name in sorted({*base.context, *new.context})
        if base.context.get(name) != new.context.get(name)
    )


def misfit(limits: Limits, metric: MetricVerdict) -> str:
    """Why a limit or budget does not fit the unit or direction of a metric; empty if it fits."""
    try:
        if limit := limits.for_metric(metric.name):
            limit.check(metric.unit, metric.better)
        if bound := limits.budget_for(metric.name):
            bound.check(metric.unit, metric.better)
    except ValueError as error:
        return f"invalid limit or budget: {error}"
    try:
        if waiver := limits.waiver_for(metric.name):
            limit_of(waiver).check(metric.unit, metric.better)
    except ValueError as error:
        return f"invalid limit of the waiver of {waiver.who if waiver else ''}: {error}"
    return ""


def baseline_verdict(new: Record, base: Record | None, others: Sequence[Record]) -> tuple[Verdict | None, str]:
    """The verdict from the baselines alone, with its reason."""
    if base is not None:
        why = outdated(base, new)
        return ("outdated", why) if why else (None, "")
    if not others:
        return "missing", "no baseline recorded yet"
    keys = ", ".join(sorted(other.key.slug for other in others))
    return "incomparable", f"baselines exist only for other machine IDs: {keys}"


def _metric(
    name: str,
    series: Series,
    new: Record,
    base: Record | None,
    others: Sequence[Record],
    limits: Limits,
    standing: Verdict | None,
    *,
    stored: bool,
) -> MetricVerdict:
    limit = limits.for_metric(name)
    if limit is None and general(name) == GROWTH and not limits.is_off(name):
        # Where nothing grew, something that does fails; what grew before is known, and only warns.
        grew = base is not None and name in base.metrics() and base.metrics()[name].values[0] > 0
        limit = None if grew else _NO_GROWTH
    if standing == "incomparable" and series.kind == "counted":
        base = reasons.newest_in_scope(name, new, [other for other in others if _same_test(other, new)])
    before = base.metrics().get(name) if base is not None else None
    shown = log_ratios.make_metric(name, before, series)
    if reason := misfit(limits, shown):
        return replace(shown, verdict="invalid", reason=reason)
    if base is not None and before is not None:
        shown = _against(shown, base, before, new, series, limit, standing, limits)
    elif standing is None and limit is not None and general(name) in _ALWAYS_RECORDED:
        reason = "is missing in the baseline, which is incomplete: restore the baseline from git, or record it again"
        shown = replace(shown, verdict="missing", reason=reason)
    elif standing is None and stored and limit is not None and limit != BUILT_IN.for_metric(name):
        # The project sets this limit, but the baseline has no value to compare with.
        reason = f"is not in the baseline, so its limit ({limit.text}) applies only after an update of the baseline"
        shown = replace(shown, verdict="changed", limit=limit, reason=reason)
    elif standing is None and not (is_utilization(name) and limit is None):
        shown = replace(shown, verdict="new", reason="not in the baseline")
    elif standing == "incomparable" and limit is not None:
        shown = replace(shown, verdict="incomparable", reason="no baseline for this machine ID")
    # Budgets of times are checked later, with all processes: one process over budget proves nothing.
    return shown if series.kind == "timed" else budget.hold(shown, series, limits)


def _against(
    shown: MetricVerdict,
    base: Record,
    before: Series,
    new: Record,
    series: Series,
    limit: Limit | None,
    standing: Verdict | None,
    limits: Limits,
) -> MetricVerdict:
    if (before.kind, before.unit, before.better) != (series.kind, series.unit, series.better):
        reason = (
            f"is defined differently in the baseline ({before.kind}, unit {before.unit!r}, {before.better} is better)"
        )
        verdict: Verdict | None = None if standing == "outdated" else "incomparable"
        return replace(shown, base=None, verdict=verdict, reason=reason)
    if series.kind == "counted":
        differs = reasons.out_of_scope(shown.name, base, new)

        def under(held: Limit | None) -> MetricVerdict:
            return reasons.judge(shown, before, series, held, differs)

        shown = budget.apply_waiver(under(limit), limits, under)
    elif limit is not None:
        shown = replace(shown, limit=limit)
        if not log_ratios.comparable(before, series, limit):
            shown = replace(shown, verdict="inconclusive", reason=log_ratios.NO_RATIO)
    return replace(shown, limit=None, verdict=None, reason="", waiver=None) if standing == "outdated" else shown


def with_modes(metric: MetricVerdict, base: Record, new: Record) -> MetricVerdict:
    """Add a remark on modes that the baseline does not have, if a time is not unchanged."""
    modes = reasons.unseen_modes(base, new)
    if not modes or metric.verdict in (None, "unchanged"):
        return metric
    return reasons.with_remark(metric, modes)


def _gone(name: str, before: Series, *, judged: bool) -> MetricVerdict:
    reason = "is in the baseline, but not in the current measurement"
    return replace(log_ratios.make_metric(name, before, None), verdict="changed" if judged else None, reason=reason)


def _unknown(name: str, limits: Limits) -> MetricVerdict:
    """A utilization metric with a limit or budget that is not available here."""
    limit, bound = limits.for_metric(name), limits.budget_for(name)
    better = metrics_of.better(name)
    held = limit or (bound.related(better) if bound else None)
    reason = "is not available for this step on this machine; run with -v for the reason"
    verdict: Verdict | None = "inconclusive" if held else None
    unit = metrics_of.unit(name) or "%"
    return MetricVerdict(name, "timed", unit, better, None, None, limit=held, verdict=verdict, reason=reason)


def _same_test(other: Record, new: Record) -> bool:
    """Whether a record with another machine ID is of the same test; threads are part of the ID."""
    return not outdated(replace(other, plan=replace(other.plan, threads=new.plan.threads)), new)
