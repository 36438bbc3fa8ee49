"""Looks at a test that got faster: whether its later steps still do their work, and their results are computed."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from pytest_perfdl.judge.reasons import with_remark
from pytest_perfdl.judge.work import Rows, find_vanished
from pytest_perfdl.measure.commands import CallInfo, FirstAndLater, Profiled, first_and_later
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import SideError
from pytest_perfdl.model.metrics import STEP_TIMES, general
from pytest_perfdl.model.record import KERNELS_LOST, Call, Finding, metric_name
from pytest_perfdl.results.verdict import Judgement, MetricVerdict
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.paired_rounds import RoundSide, run_pass
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.remote_test import Script

MUCH = 0.3
"""Part by which a step must be faster to be looked at, where it is not certain that it is."""
_PASSES = ("improved", "unchanged", "inconclusive")


def with_vanished_work(
    context: RunContext, test: PerfTest, judgement: Judgement, base: Sequence[Call], checkout: Checkout | None
) -> Judgement:
    """The judgement, `changed` rather than `improved` where work vanished from the later steps.

    It takes one more process of the working tree, for tests that got faster only: surely, or by much.

    Parameters
    ----------
    base
        The baseline's calls.
    checkout
        The baseline's code, if it was run.
    """
    faster = {metric.name for metric in judgement.metrics if _is_faster(metric)}
    if judgement.verdict not in _PASSES or not faster or test.plan.ranks:
        return judgement
    context.progress.start("comparing the first step", test.item.nodeid)
    try:
        found = _measure_steps(context, test, RoundSide("head", against=checkout))
        base_side = RoundSide("base", checkout)
        unfinished = any(each.pending for each in found)
        before = {each.call: each.pending for each in _measure_steps(context, test, base_side)} if unfinished else {}
    except SideError as error:
        note = unmeasured("no-first-step", "what the first step does", str(error).partition("\n")[0])
        return judgement.with_findings(note)
    finally:
        context.progress.clear()
    calls = {call.name: call for call in base}
    for each in found:
        times = {metric_name(each.call, name) for name in STEP_TIMES}
        why = ""
        if each.pending and not before.get(each.call):
            why = f"the step returns {each.pending}: compute the result in the step"
        elif each.call in calls:
            why = _why(calls[each.call], each, _flops(judgement, each.call))
        if why and times & faster:
            return _judge_changed(judgement, times & faster, f"{each.call}: {why}" if each.call else why)
    return judgement


def _flops(judgement: Judgement, call: str) -> float | None:
    """The call's FLOPs over those of the baseline; `None` where these have none, or are not known."""
    counted = next((each for each in judgement.metrics if each.name == metric_name(call, "flops")), None)
    return counted.new / counted.base if counted is not None and counted.base and counted.new is not None else None


def _why(base: Call, found: FirstAndLater, flops: float | None) -> str:
    rows = [row for row in base.rows if row.kind != "idle"]
    kind = "kernel" if any(row.kind == "kernel" for row in rows) else "operator"
    own: Rows = {row.name: (row.count, sum(row.ns) / len(row.ns)) for row in rows if row.kind == kind and row.count}
    return find_vanished(own, _rows(found.first, kind), _rows(found.later, kind), flops)


def _rows(profiled: Profiled, kind: str) -> Rows:
    steps = max(len(profiled.step_ns), 1)
    return {row.name: (row.count / steps, row.ns / steps) for row in profiled.rows if row.kind == kind}


def _is_faster(metric: MetricVerdict) -> bool:
    much = metric.effect is not None and metric.effect < -MUCH
    return metric.of_step and general(metric.name) in STEP_TIMES and (metric.verdict == "improved" or much)


def _judge_changed(judgement: Judgement, names: Container[str], why: str) -> Judgement:
    """The judgement whose times of these names are of other work."""
    metrics = tuple(
        replace(with_remark(metric, why), verdict="changed") if metric.name in names else metric
        for metric in judgement.metrics
    )
    integrity = (*judgement.integrity, Finding("note", "vanished", why))
    reason = f"{why}; {judgement.reason}"
    return replace(judgement, verdict="changed", reason=reason, metrics=metrics, integrity=integrity)


def _measure_steps(context: RunContext, test: PerfTest, side: RoundSide) -> list[FirstAndLater]:
    """What the first step of a side's process does, and what later ones do, by call.

    Raises
    ------
    SideError
        The test fails, or its worker dies or hangs.
    """

    def script(info: CallInfo) -> Script:
        plan = replace(test.plan, period=info.period)
        scratch = str(context.processes.scratch)
        return first_and_later(plan, info, scratch, seconds=context.step_seconds, loops=test.loops)

    remote = run_pass(context, test, side, script, "comparing its first step with later ones")
    damaged = (each for found in remote.results for side in (found.first, found.later) for each in side.findings)
    if broken := next((each for each in damaged if each.level == "invalid" or each.code == KERNELS_LOST), None):
        raise SideError(broken.message, invalid=False)
    return remote.results
