"""Completes a judgement with the verdicts on times from paired rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.judge import budget, reasons
from pytest_perfdl.judge.blame import contradicts, diff_rounds, find_causes, step_breakdown
from pytest_perfdl.judge.ranks import blame_ranks, comparisons, find_explaining, work_of_ranks
from pytest_perfdl.judge.round_data import head_second, profiled, values
from pytest_perfdl.judge.stopping_rule import Held, add_estimate
from pytest_perfdl.judge.stored_repeats import judge_environment
from pytest_perfdl.judge.untimed import EXPLAINED, context_changes, judgement, timed_change, timed_moved, with_modes
from pytest_perfdl.judge.work import describe_implausible, operator_sides, work_change
from pytest_perfdl.model.metrics import general
from pytest_perfdl.model.record import Finding, Series, call_of_row, metric_name
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.results.verdict import SLOWER, worst
from pytest_perfdl.stats.evidence import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_perfdl.diff import Diff
    from pytest_perfdl.diff.matching.names import Rules
    from pytest_perfdl.judge.round_data import Round
    from pytest_perfdl.judge.work import StepWork
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.model.limits import Limits
    from pytest_perfdl.model.record import Record
    from pytest_perfdl.results.verdict import (
        Judgement,
        MetricVerdict,
        OperatorSides,
        StepBreakdown,
        Verdict,
        WorkChange,
    )

    # Of all rounds, by call.
    Work = Mapping[str, Sequence[StepWork]]

_SAME_WORK = 0.01
"""Relative change of the counted FLOPs up to which a step does the same arithmetic."""
_MOST = 0.5
"""Part of what a step gained that is most of it."""
CERTAIN: frozenset[Verdict] = frozenset({"regressed", "improved"})
"""Verdicts that say which way a time went."""


def select_held(found: Judgement, limits: Limits) -> tuple[Held, ...]:
    """The times that rounds hold to a limit."""
    chosen = []
    for metric in found.metrics:
        limit = limits.for_metric(metric.name)
        if metric.kind == "timed" and metric.base is not None and metric.verdict is None and limit is not None:
            chosen.append(Held(metric.name, limit, metric.unit, metric.better))
    return tuple(chosen)


def settle(
    found: Judgement,
    new: Record,
    base: Record,
    now: Record,
    verdicts: Mapping[str, MetricVerdict],
    rounds: Sequence[Round],
    limits: Limits,
    rows: Sequence[MetricVerdict] = (),
    rules: Rules = NO_RULES,
    peaks: Peaks | None = None,
) -> Judgement:
    """The judgement with what rounds said of its times.

    `base` is the baseline and `now` what its code gives now; where the environment changed in between, that is judged
    too, and apart. A budget is held by the head's side of every round. `rows` are the verdicts on single kernels and
    operators. Blame is of the rounds' own profiled steps, where they have them, matched by names under `rules`; whether
    a slower step does more work, or the same work worse, is told with the machine's `peaks`.
    """
    metrics = tuple(_settle_metric(metric, new, base, verdicts, rounds, limits) for metric in found.metrics)
    varying = _varying(rounds)
    # Which operators a process had is not the code's doing there.
    rows = [row for row in rows if row.verdict != "suspect" or call_of_row(row.name) not in varying]
    settled = judgement(new, base, (*metrics, *budget.waive_rows(rows, limits)), None, "")
    doubts: tuple[Finding, ...] = ()
    seen = profiled(rounds)
    compared = comparisons(seen)
    ranks = {call: find_explaining(each) for call, each in compared.items()}
    calls = diff_rounds(seen, rules, ranks)
    breakdowns = tuple(step_breakdown(call, each, rounds=settled.verdict in EXPLAINED) for call, each in calls.items())
    settled = replace(settled, breakdowns=breakdowns, ranks=tuple(compared.values()) or settled.ranks)
    if settled.verdict in EXPLAINED and calls:
        timed = {call: change for call in calls if (change := timed_change(call, settled.metrics, CERTAIN))}
        leaning = {call: change for call in calls if (change := timed_change(call, settled.metrics))}
        blamed = find_causes(calls, timed, leaning=leaning, counts_first=not timed_moved(settled.metrics))
        blamed = blame_ranks(blamed, compared)
        # Where no part of the profiled steps changed for certain, what the first repeat saw is better than nothing.
        settled = replace(settled, blame=blamed or settled.blame)
        doubts = tuple(
            _doubt(call, calls[call], timed[call]) for call in timed if contradicts(calls[call], timed[call])
        )
    worked = work_of_ranks(seen, "base", ranks), work_of_ranks(seen, "head", ranks)
    settled = replace(settled, operators=_operators(*worked, peaks))
    doubts = (*doubts, *_implausible(settled.metrics, worked[1], peaks))
    if settled.verdict in EXPLAINED:
        settled = replace(settled, work=_work(settled, *worked, peaks))
    environment: tuple[MetricVerdict, ...] = ()
    if rounds and base is not now and base.key.slug == now.key.slug and context_changes(base, now):
        environment = judge_environment(base, rounds, limits.unpaired())
        if worst([each.outcome for each in environment if each.outcome]) in ("regressed", "waived"):
            settled = _with_environment(settled, environment, base, now)
    broken = sorted({metric.reason for metric in verdicts.values() if metric.verdict == "invalid"})
    findings = (*(Finding("invalid", "rounds", reason) for reason in broken), *varying.values())
    return replace(settled, integrity=(*found.integrity, *findings, *doubts), environment=environment)


def _varying(rounds: Sequence[Round]) -> dict[str, Finding]:
    """Calls whose operators vary between processes of the same code, with what is said of them."""
    found = {}
    for name in {name for each in rounds for name in (*each.base, *each.head) if general(name) == "ops"}:
        call = name.rpartition(".")[0]
        for side in ([each.base.get(name) for each in rounds], [each.head.get(name) for each in rounds]):
            known = [count for count in side if count is not None]
            low, high = min(known, default=0.0), max(known, default=0.0)
            if not reasons.same(low, high):
                found[call] = Finding(
                    "note",
                    "varying",
                    f"{call}{': ' * bool(call)}processes of the same code ran different operators ({low:g} to {high:g} "
                    "per step), so counts and single operators are not compared. Fix what is chosen when the code is "
                    "imported or tuned, or set period= if steps differ",
                )
    return found


def _in_all(rounds: Sequence[Round], name: str) -> bool:
    """Whether all processes of the rounds have a positive value of a metric."""
    return bool(rounds) and all(side.get(name, 0.0) > 0 for each in rounds for side in (each.base, each.head))


def _pairs(name: str, rounds: Sequence[Round]) -> tuple[tuple[float, float], ...]:
    """Both sides' values of a metric in the rounds that have them."""
    both = ((each.base.get(name, np.nan), each.head.get(name, np.nan)) for each in rounds)
    return tuple((base, head) for base, head in both if np.isfinite(base) and np.isfinite(head))


def _shown(metric: MetricVerdict, rounds: Sequence[Round]) -> MetricVerdict:
    """A metric without a limit, measured in the rounds, so that all reported changes are from the same processes."""
    base, head = values(rounds, metric.name)
    sign = 1 if metric.better == "lower" else -1
    estimate = Estimate(tuple((sign * (np.log(head) - np.log(base))).tolist()), head_second(rounds))
    return replace(add_estimate(metric, head, estimate), evidence="paired", rounds=len(rounds))


def _work(settled: Judgement, base: Work, head: Work, peaks: Peaks | None) -> tuple[WorkChange, ...]:
    """For every slower call, whether it does more work or the same work less efficiently."""
    found = []
    for call in head:
        change = timed_change(call, settled.metrics, SLOWER) or 0.0
        step = next((each.base for each in settled.metrics if each.name == metric_name(call, "step_time")), None)
        if change > 0:
            found.append(work_change(call, base.get(call, ()), head[call], peaks, change * (step or 0.0)))
    outside = {each.call for each in settled.breakdowns if _is_outside_of_operators(each)}
    changes = (
        replace(each, operator="", base=each.base_step, new=each.new_step, share=None)
        if each.kind == "done worse" and each.call in outside
        else each
        for each in found
        if each is not None
    )
    return tuple(each for change in changes if (each := _as_counted(change, settled.metrics)) is not None)


def _as_counted(change: WorkChange, metrics: Sequence[MetricVerdict]) -> WorkChange | None:
    """What a step does more or worse, with the FLOPs that were counted; `None` where these say otherwise.

    The work of single operators is known for those with a cost model only: an operator without one that is replaced by
    several with one is no more arithmetic.
    """
    flops = next((each for each in metrics if each.name == metric_name(change.call, "flops")), None)
    if flops is None or not flops.base or not flops.new:
        return change
    grew = flops.new / flops.base - 1
    if (grew < _SAME_WORK) if change.kind == "more work" else (abs(grew) > _SAME_WORK):
        return None
    base, new = replace(change.base_step, flops=flops.base), replace(change.new_step, flops=flops.new)
    if change.kind != "more work":
        return change
    return replace(change, base_step=base, new_step=new)


def _is_outside_of_operators(step: StepBreakdown) -> bool:
    """Whether most of what a step gained is idle time: an operator that got slower beside it explains little."""
    waiting = sum(row.delta_ns for row in step.rows if row.kind == "idle")
    return step.delta_ns > 0 and waiting > _MOST * step.delta_ns


def _implausible(metrics: Sequence[MetricVerdict], work: Work, peaks: Peaks | None) -> Iterator[Finding]:
    """Notes on calls that improved to less time than the machine can do their work in."""
    for metric in metrics:
        call = metric.name.rpartition(".")[0]
        if peaks is None or general(metric.name) != "step_time" or metric.verdict != "improved" or metric.new is None:
            continue
        if why := describe_implausible(work.get(call, ()), peaks, metric.new):
            yield Finding("note", "implausible", f"{call}: {why}" if call else why)


def _operators(base: Work, head: Work, peaks: Peaks | None) -> tuple[OperatorSides, ...]:
    """Work of the operators of every call, on both sides of all rounds."""
    return tuple(each for call in head for each in operator_sides(call, base.get(call, ()), head[call], peaks))


def _with_environment(settled: Judgement, environment: Sequence[MetricVerdict], base: Record, now: Record) -> Judgement:
    """The judgement of a test whose baseline code is slower than recorded, because the environment changed."""
    verdict = worst([each.outcome for each in environment if each.outcome])
    first = next(each for each in environment if each.outcome == verdict)
    changes = ", ".join(f"{name} {before} -> {after}" for name, before, after in context_changes(base, now))
    slower = "the environment changed: the baseline's code is now slower than recorded"
    said = f"{slower}, {first.name} {first.reason} ({changes})"
    if worst([settled.verdict, verdict]) == settled.verdict:
        return replace(settled, reason=f"{settled.reason}; {said}")
    return replace(settled, verdict=verdict, reason=said)


def _doubt(call: str, profiled: Diff, timed: float) -> Finding:
    steps = f"profiled steps of {call}" if call else "profiled steps"
    change = format_percent(profiled.delta_ns / profiled.base_ns)
    what = f"the {steps} changed by {change}, but the timed steps by {format_percent(timed)}"
    return Finding(
        "note", "profiled", f"{what}, so the causes have no shares. Measure again while fewer other processes run"
    )


def _settle_metric(
    metric: MetricVerdict,
    new: Record,
    base: Record,
    verdicts: Mapping[str, MetricVerdict],
    rounds: Sequence[Round],
    limits: Limits,
) -> MetricVerdict:
    if metric.kind == "counted":
        before, after = [each.base.get(metric.name) for each in rounds], [each.head.get(metric.name) for each in rounds]
        return reasons.judge_again(metric, before, after, limits.for_metric(metric.name))
    stored = metric.base
    if metric.name in verdicts:
        verdict = verdicts[metric.name]
        if verdict.verdict not in CERTAIN:
            # Both sides of a round run now: a certain change does not depend on what the recorded processes did.
            verdict = with_modes(verdict, base, new)
        # Rounds that only single kernels asked for came after the verdict.
        own = rounds if verdict.rounds is None else rounds[: verdict.rounds]
        metric = replace(verdict, stored=stored, pairs=_pairs(metric.name, own))
    elif metric.kind == "timed" and metric.verdict is None:
        # Rounds that were not profiled lack what needs a profile, on both sides.
        known = [each for each in rounds if metric.name in each.base or metric.name in each.head]
        if _in_all(known, metric.name):
            metric = replace(_shown(metric, known), stored=stored, pairs=_pairs(metric.name, known))
    if metric.kind != "timed" or metric.new is None or not rounds:
        return metric
    series = new.metrics()[metric.name]
    if all(metric.name in each.head for each in rounds):
        series = Series("timed", metric.unit, metric.better, tuple(each.head[metric.name] for each in rounds))
    return budget.hold(metric, series, limits)
