"""One perf test in one run, from its first process to its result.

    collect (`collection`) -> measure (`measurement`) -> compare and confirm (`comparison`, `confirmation`) -> record
    (`baseline_update`) -> decide assertions (`advice.judged`, `scaling_curves`) -> suggest (`advice`) -> report
    (`session`)

`run_test` is this flow: every step is a function that returns the input of the next one.
pytest's setup and teardown phases wait for the same phases of the first process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.baseline.text import keep_cases
from pytest_perfdl.fixture.requests import WhatIfExpectation
from pytest_perfdl.judge.budget import doubt_utilization, fails_utilization
from pytest_perfdl.judge.stored_repeats import sensitivity
from pytest_perfdl.measure.loops import LEAST_STEP_NS
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.metrics import STEP_TIMES
from pytest_perfdl.model.record import CASE_ERROR, SHORT_STEP, UNTIED, Finding, Record, metric_name
from pytest_perfdl.model.units import format_quantity, plural, some
from pytest_perfdl.model.visible import clean
from pytest_perfdl.results.run import Exemplars, Result
from pytest_perfdl.results.verdict import SAME_CODE, Judgement, MetricVerdict, Verdict
from pytest_perfdl.run.advice import judged, with_memory_advice, with_suggestions
from pytest_perfdl.run.assemble import exemplars, rank_exemplars
from pytest_perfdl.run.baseline_update import is_written, stored_cases, update
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.comparison import Baseline, ComparisonResult, against_baseline, against_side, load_baseline
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.run.context import RunContext, joined
from pytest_perfdl.run.measurement import Measurement
from pytest_perfdl.run.memory_accounts import with_accounts
from pytest_perfdl.run.scaling_curves import Curves
from pytest_perfdl.run.vanished_work import with_vanished_work
from pytest_perfdl.workers.channel import PhaseReport
from pytest_perfdl.workers.remote_test import replay


class NotPassed(Exception):
    """The test itself did not pass: there is nothing to judge."""

    def __init__(self, verdict: Verdict, reason: str, phase: PhaseReport) -> None:
        super().__init__(reason)
        self.verdict: Verdict = verdict
        self.reason = reason
        self.phase = phase
        """The phase of the test whose report has the verdict."""


def set_up(measurement: Measurement) -> None:
    """Wait for the first process' setup phase and raise what it raised."""
    __tracebackhide__ = True
    with measurement.as_failures():
        phase = measurement.set_up_first()
    replay(phase)


def run_test(curves: Curves, measurement: Measurement) -> Result:
    """Measure a test whose first process is set up, and decide its verdict.

    Raises
    ------
    NotPassed
        The test failed or was skipped.
    PerfError
        There is no verdict; the message is the reason.
    """
    __tracebackhide__ = True
    context = measurement.context
    with measurement.as_failures():
        info = measurement.first_call()
        baseline = load_baseline(context, measurement.test, info)
        if info and measurement.remote.waits and context.revisions.is_same(measurement.test, baseline.own, info):
            return _same_code(measurement)
        measurement.test.loops.reuse(_calls_per_step(context, baseline))
        _check_passed(measurement.finish_first())
        _check_measured(measurement)
        if measurement.test.cases and measurement.record().table is None:
            return _unmeasured(measurement)
        result = None
        if measurement.repeats:
            result = _limits_held(measurement, baseline)
        elif demands := measurement.test.demands:
            raise PerfError(
                f"limits and budgets for {', '.join(demands)} have no effect, because the test only calls "
                "perf.compare: set the limit in the assertion, such as .assert_faster(by=...)"
            )
        result = _with_expectations(measurement, result)
        result = curves.judge(measurement, result)
        return with_memory_advice(with_suggestions(result))


def tear_down(measurement: Measurement) -> None:
    """Wait for the end of the first process, and raise the error of its teardown phase."""
    __tracebackhide__ = True
    measurement.context.progress.clear()
    if not measurement.broken:
        with measurement.as_failures():
            measurement.remote.finish()
    measurement.remote.pass_on()
    if measurement.broken:
        return
    phase = measurement.remote.phases.get("teardown")
    if phase is not None:
        replay(phase)


def _calls_per_step(context: RunContext, baseline: Baseline) -> Mapping[str, int]:
    """How many calls the steps of the baseline are of; nothing where it is to be written anew."""
    if context.settings.update == "all":
        return {}
    others = () if context.recording else baseline.others[-1:]
    return next((record.plan.loops for record in (baseline.own, *others) if record is not None), {})


def _same_code(measurement: Measurement) -> Result:
    """The result of a test that need not be measured."""
    context = measurement.context
    measurement.remote.end(gently=True)
    context.progress.clear()
    item, fails = measurement.test.item, "unchanged" in context.fail_on
    return unjudged(item, "unchanged", SAME_CODE, fails=fails, seconds=measurement.seconds)


def _unmeasured(measurement: Measurement) -> Result:
    """The result of tests of a file that fail, are skipped or measure nothing, each of which says so."""
    context = measurement.context
    context.progress.clear()
    item, fails = measurement.test.item, "unmeasured" in context.fail_on
    why = "none of the tests measured anything"
    return unjudged(item, "unmeasured", why, fails=fails, seconds=measurement.seconds)


def _check_passed(phase: PhaseReport) -> None:
    if phase.raw == "passed":
        return
    if phase.raw == "skipped":
        raise NotPassed("unmeasured", "the test was skipped", phase)
    if phase.report["outcome"] == "skipped":
        raise NotPassed("unmeasured", "the test failed, as its xfail mark expects", phase)
    raise NotPassed("invalid", "the test failed, so its measurement was not used", phase)


def _check_measured(measurement: Measurement) -> None:
    if not measurement.repeats and not measurement.alternatives:
        raise PerfError(
            f"{measurement.test.item.name} measured nothing: call perf(...), perf.steps(...) or perf.step() in the test"
        )


def _limits_held(measurement: Measurement, baseline: Baseline) -> Result:
    """Compare the test's steps with their limits, and record them if required."""
    context = measurement.context
    settings, test, base = context.settings, measurement.test, baseline.own
    recording = test.options.repeats_for(settings, recording=True)
    checking = test.options.repeats_for(settings, recording=False)
    if settings.compares_sides or measurement.record().table is not None:
        # Times are compared in rounds alone: one process says all else.
        recording = checking = 1
    writes_one = settings.records(has_baseline=base is not None)
    calibrates = writes_one and settings.calibrate == "auto"
    refused = _measure_machine(measurement) if calibrates else ""
    measurement.draw(recording if writes_one else checking)
    _check_names(test, measurement.record())
    if settings.compares_sides:
        found = _add_accounts(measurement, against_side(measurement))
        judgement = _with_failed_cases(test, _check_limits_again(measurement, found.judgement))
        return _result(measurement, measurement.record(), replace(found, judgement=judgement))
    found = _add_accounts(measurement, against_baseline(measurement, baseline))
    judgement = _check_limits_again(measurement, found.judgement)
    writes = settings.update is not None and judgement.verdict != "invalid"
    if writes and base is not None and is_written(settings.update, base, judgement):
        if stored_cases(context, test, measurement.record(), base, judgement):
            # Cases that stay have the times of so many processes.
            recording = base.repeats
        measurement.draw(recording)
    new = replace(context.revisions.tied(measurement.record(), measurement.remote.origins), note=settings.note)
    updated = writes and update(context, measurement, new, base, judgement)
    if updated and base is not None:
        new = keep_cases(new, base, stored_cases(context, test, new, base, judgement))
    notes = [finding for finding in new.integrity if finding.code == UNTIED]
    notes += _short_steps(measurement)
    if refused:
        why = f"peak rates of this machine were not measured: {refused}. Run perfdl constants to measure them later"
        notes.append(Finding("note", "no-machine", why))
    if measurement.redrawn:
        count = plural(measurement.redrawn, "process", "processes")
        said = f"{count} measured again, because other programs used the CPU"
        notes.append(Finding("note", "redrawn", said))
    judgement = _with_failed_cases(test, judgement.with_findings(*notes))
    return _result(measurement, new, replace(found, judgement=judgement), updated=updated)


def _with_failed_cases(test: PerfTest, judgement: Judgement) -> Judgement:
    """The judgement, `invalid` if cases of a table cannot be measured; the others were measured, and recorded.

    Cases that are tests fail by themselves.
    """
    failed = [finding.message for finding in judgement.integrity if finding.code == CASE_ERROR]
    if not failed or test.cases:
        return judgement
    reason = "; ".join(filter(None, (some(failed), judgement.reason)))
    return replace(judgement, verdict="invalid", reason=reason)


def _short_steps(measurement: Measurement) -> list[Finding]:
    """One note for each call whose step is too short to be timed well, and could be looped."""
    repeat, numbers = measurement.repeats[0], measurement.test.loops
    times = measurement.record().metrics()
    found = []
    for info in (result.info for result in repeat.calls):
        # Of periods of several steps, and of few steps, there is only the time of whole blocks, or none.
        named = (times.get(metric_name(info.name, name)) for name in STEP_TIMES)
        series = next(filter(None, named), None)
        step = math.inf if series is None else statistics.median(series.values)
        if step < LEAST_STEP_NS and not info.not_looped and numbers.number(info.name) == 1:
            call = f"{info.name}: " if info.name else ""
            text = f"{call}one step takes {format_quantity(step, 'ns')}, too short for accurate timing: "
            found.append(Finding("note", SHORT_STEP, f'{text}use @pytest.mark.perf(loops="auto")'))
    return found


def _add_accounts(measurement: Measurement, found: ComparisonResult) -> ComparisonResult:
    """The result with a breakdown of peak memory if that changed or memory grows; of less work if that vanished."""
    base, context = found.now or found.base, measurement.context
    judgement = found.judgement
    if base is not None:
        judgement = with_vanished_work(context, measurement.test, judgement, base.calls, found.checkout)
    judgement = with_accounts(
        context,
        measurement.test,
        judgement,
        measurement.record(),
        found.now,
        checkout=found.checkout,
        commit=found.commit,
        origins=measurement.remote.origins,
    )
    return replace(found, judgement=judgement)


def _check_limits_again(measurement: Measurement, judgement: Judgement) -> Judgement:
    """The judgement, unless a utilization budget fails because the machine is below its recorded peak rates."""
    if not any(map(fails_utilization, judgement.metrics)):
        return judgement
    context = measurement.context
    context.progress.start_calibration(again=True)
    missed = context.machines.missed(measurement.repeats[0].calls[0].info.key, context.settings.key_extra)
    context.progress.clear()
    return doubt_utilization(judgement, missed) if missed else judgement


def _measure_machine(measurement: Measurement) -> str:
    """Measure peak rates of a machine before its first baseline; returns the reason if that fails, else ""."""
    context, key = measurement.context, measurement.repeats[0].calls[0].info.key
    if context.machines.of(key) is None:
        context.progress.start_calibration()
    return context.machines.measure(key, context.settings.key_extra)


def _check_names(test: PerfTest, new: Record) -> None:
    unknown = test.unknown_metrics(new)
    if unknown:
        raise PerfError(
            f"limits or budgets exist for {', '.join(unknown)}, which this test does not measure; measured metrics: "
            f"{', '.join(sorted(new.metrics()))}"
        )


def _result(measurement: Measurement, new: Record, found: ComparisonResult, *, updated: bool = False) -> Result:
    """The result of a compared test, as reports read it."""
    context = measurement.context
    item, store, base = measurement.test.item, context.store, found.base
    settings, judgement = context.settings, found.judgement
    slug = new.key.slug if base is None or updated else base.key.slug
    if settings.compares_sides:
        stored = {call: Path(path) for call, path in found.traces.items()}
    else:
        stored, others = store.exemplars(item.nodeid, slug) if base is not None and not updated else ({}, ())
        judgement = _without_picture(judgement, [store.shown(file) for file in others])
    judgement = replace(
        judgement,
        operators=judgement.operators or measurement.operators(),
        ranks=judgement.ranks or measurement.ranks(),
        integrity=(*judgement.integrity, *measurement.absent_figures()),
    )
    fresh = {call: Path(path) for call, path in exemplars(measurement.repeats).items()}
    new_ranks = rank_exemplars(measurement.repeats)
    return Result(
        id=item.nodeid,
        file=item.location[0],
        line=(item.location[1] or 0) + 1,
        judgement=judgement,
        # Budgets are unaffected by a new baseline.
        fails=judgement.fails(context.fail_on)
        and not (updated and judgement.verdict != "invalid" and not judgement.over_budget),
        new=new,
        base=base,
        base_now=_base_in_this_environment(found) if base is not None else None,
        base_path="" if settings.compares_sides else store.shown(store.path(item.nodeid, slug)),
        against=settings.against or "",
        against_python=settings.against_python or "",
        exemplars=tuple(
            Exemplars(
                name,
                stored.get(name),
                fresh.get(name),
                base_ranks=tuple(map(Path, found.rank_traces.get(name, ()))),
                new_ranks=tuple(map(Path, new_ranks.get(name, ()))),
            )
            # A table has no step.
            for name in (call.name for call in new.calls if not call.cases)
        ),
        updated=updated,
        sensitivity=sensitivity(new, measurement.test.limits) if updated else None,
        seconds=measurement.seconds,
    )


def _base_in_this_environment(found: ComparisonResult) -> Record | None:
    """The baseline's code as it was measured in this run, if the environment is another than the baseline's."""
    other = found.now is not None and found.now is not found.base and found.judgement.context_changes
    return found.now if other else None


def _without_picture(judgement: Judgement, others: Sequence[str]) -> Judgement:
    """Note traces that do not belong to the baseline."""
    why = "is ignored, because the trace in this file does not belong to the recorded baseline"
    return judgement.with_findings(*(Finding("note", "other-trace", f"{file} {why}") for file in others))


def _with_expectations(measurement: Measurement, own: Result | None) -> Result:
    """Verdicts on the test's assertions (`compare`, `assert_whatif`), joined with those on its steps."""
    test = measurement.test
    result = own or unjudged(test.item, "unchanged", "", fails=False)
    confirmation = Confirmation.of(measurement)
    shown = measurement.remote.shown
    single = [each for each in measurement.alternatives if not each.of_cases]
    many = [confirmation.of_cases(each, shown) for each in measurement.alternatives if each.of_cases]
    found = [confirmation.of_alternatives(each, shown) for each in single]
    found += [metric for each in many for metric in each.metrics]
    found += [_judge_possible_gain(each, result) for each in measurement.possible_gains]
    if not found:
        return result
    broken = [Finding("invalid", "rounds", metric.reason) for metric in found if metric.verdict == "invalid"]
    broken += [finding for each in many for finding in each.findings]
    cases = tuple(case for each in many for case in each.cases)
    result = replace(result, judgement=replace(result.judgement, cases=result.judgement.cases + cases))
    return replace(joined(result, found, broken, fail_on=measurement.context.fail_on), seconds=measurement.seconds)


def _judge_possible_gain(expectation: WhatIfExpectation, result: Result) -> MetricVerdict:
    try:
        return judged(expectation, result)
    except ValueError as error:
        raise PerfError(f"perf.assert_whatif: {error}") from None


def unjudged(
    item: pytest.Item, verdict: Verdict, reason: str, *, fails: bool, code: str = "failed", seconds: float = 0.0
) -> Result:
    """The result of a test that was not compared; one that is `invalid` has a finding with this code."""
    findings = (Finding("invalid", code, reason),) if verdict == "invalid" else ()
    judgement = clean(Judgement(item.nodeid, verdict, reason, integrity=findings))
    file, line, _ = item.location
    return Result(id=item.nodeid, file=file, line=(line or 0) + 1, judgement=judgement, fails=fails, seconds=seconds)
