"""A judgement after its suspects were confirmed in pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_perfdl.judge import budget
from pytest_perfdl.judge.blame import contradicts, explained, of_diffs
from pytest_perfdl.judge.matching.names import NO_RULES
from pytest_perfdl.judge.paired import PairedOutcome, Suspect
from pytest_perfdl.judge.screen import EXPLAINED, judgement, timed_moved, with_modes
from pytest_perfdl.record import Finding, Series, metric_name
from pytest_perfdl.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pytest_perfdl.judge.diff import Diff
    from pytest_perfdl.judge.matching.names import Rules
    from pytest_perfdl.judge.rounds import Round
    from pytest_perfdl.judge.verdict import Judgement, MetricVerdict, Verdict
    from pytest_perfdl.limits import Limits
    from pytest_perfdl.record import Record

CERTAIN: frozenset[Verdict] = frozenset({"regressed", "improved"})
"""Verdicts that say which way a time went."""


def suspects(screened: Judgement, limits: Limits, *, everything: bool) -> tuple[Suspect, ...]:
    """What rounds can settle: the suspects of a screen, or `everything` timed that has a limit."""
    chosen = []
    for metric in screened.metrics:
        limit = limits.for_metric(metric.name)
        wanted = metric.name in screened.suspects or (everything and metric.base is not None)
        if metric.kind == "timed" and limit is not None and wanted and metric.verdict != "invalid":
            chosen.append(Suspect(metric.name, limit, metric.unit, metric.better))
    return tuple(chosen)


def settle(
    screened: Judgement,
    new: Record,
    base: Record,
    outcome: PairedOutcome,
    rounds: Sequence[Round],
    limits: Limits,
    rows: Sequence[MetricVerdict] = (),
    rules: Rules = NO_RULES,
) -> Judgement:
    """Put what the rounds decided in place of what the screen suspected.

    A suspect that only a budget made one is held to it again, by the head's side of every round. `rows` are the
    verdicts on single kernels and operators. Blame is of the rounds' own profiled steps, where they have them, matched
    by names under the project's `rules`.
    """
    metrics = tuple(_settled(metric, screened, new, base, outcome, rounds, limits) for metric in screened.metrics)
    found = judgement(new, base, (*metrics, *rows), None, "")
    doubts: tuple[Finding, ...] = ()
    if found.verdict in EXPLAINED and (calls := explained(rounds, rules)):
        timed = {call: change for call in calls if (change := _timed_change(call, found.metrics, CERTAIN))}
        leaning = {call: change for call in calls if (change := _timed_change(call, found.metrics))}
        blamed = of_diffs(calls, timed, leaning=leaning, counts_first=not timed_moved(found.metrics))
        # Where no part of the profiled steps changed for certain, what the screen saw is better than nothing.
        found = replace(found, blame=blamed or found.blame)
        doubts = tuple(
            _doubt(call, calls[call], timed[call]) for call in timed if contradicts(calls[call], timed[call])
        )
    broken = sorted({metric.reason for metric in outcome.decided.values() if metric.verdict == "invalid"})
    findings = tuple(Finding("invalid", "rounds", reason) for reason in broken)
    return replace(found, integrity=(*screened.integrity, *findings, *doubts))


def _timed_change(
    call: str, metrics: Sequence[MetricVerdict], verdicts: Container[Verdict | None] | None = None
) -> float | None:
    """By how much a call's step got slower, as rounds found with one of these verdicts, or with any."""
    by_name = {metric.name: metric for metric in metrics}
    for name in ("step_time", "block_time"):
        metric = by_name.get(metric_name(call, name))
        if metric is not None and metric.evidence == "paired" and (verdicts is None or metric.verdict in verdicts):
            return metric.effect
    return None


def _doubt(call: str, profiled: Diff, timed: float) -> Finding:
    steps = f"profiled steps of {call}" if call else "profiled steps"
    change = format_percent(profiled.delta_ns / profiled.base_ns)
    what = f"the {steps} changed by {change}, the timed ones by {format_percent(timed)}"
    return Finding("note", "profiled", f"{what}: no shares are told; measure again with less other work beside")


def unsettled(screened: Judgement, why: str) -> Judgement:
    """The screen's judgement, with the reason why its suspects were not confirmed."""
    metrics = tuple(
        replace(metric, reason=f"{metric.reason}; not confirmed: {why}") if metric.name in screened.suspects else metric
        for metric in screened.metrics
    )
    return replace(screened, metrics=metrics, reason=f"{screened.reason}; not confirmed: {why}")


def _settled(
    metric: MetricVerdict,
    screened: Judgement,
    new: Record,
    base: Record,
    outcome: PairedOutcome,
    rounds: Sequence[Round],
    limits: Limits,
) -> MetricVerdict:
    decided = outcome.decided.get(metric.name)
    if decided is not None:
        metric = with_modes(decided, base, new)
    elif metric.name not in screened.suspects or not rounds or metric.name not in rounds[0].head:
        return metric
    heads = tuple(each.head[metric.name] for each in rounds)
    if not heads:
        return metric
    series = Series("timed", metric.unit, metric.better, heads)
    if decided is None:
        metric = replace(metric, verdict=None, reason="", limit=None, evidence=None)
    return budget.hold(metric, series, limits.budget_for(metric.name), confirmed=True)
