"""What becomes of a test's judgement with its rounds: counts beside it, stored times, and the environment apart."""

import math
import re
from dataclasses import replace

import pytest
from making import CONTEXT, counted, record, rows, timed

from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.judge.work import StepWork
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import OperatorWork
from pytest_perfdl.model.limits import BUILT_IN, Limit, Limits
from pytest_perfdl.model.record import Key
from pytest_perfdl.results.verdict import FAILS_BY_DEFAULT, MetricVerdict, parse_fail_on
from unit.judge import made_rounds

MS = 1_000_000
NOW = record({"step_time": timed(10.0 * MS), "ops": counted(412)})
STORED = record({"step_time": timed(*(10.0 * MS * (1 + n / 500) for n in range(10))), "ops": counted(*(412,) * 10)})
TODAY = {**CONTEXT, "torch": "2.14.0"}


def judged(differences, *, new=NOW, stored=STORED, now=None, limits=BUILT_IN, spent=None, base_ns=10.0 * MS):
    """From standing to the end of the rounds, as a session goes it."""
    found = standing(new, stored, (), limits)
    measured = made_rounds.of(*differences, base=base_ns)
    outcome = Gate(select_held(found, limits)).look(measured, spent or Spent(300, 300))
    assert not outcome.open
    return settle(found, new, stored, now or stored, outcome.verdicts, measured, limits)


def of(judgement, name):
    return next(metric for metric in judgement.metrics if metric.name == name)


# Counts stand beside


FASTER = [math.log(0.63) + n / 1000 for n in range(7)]


def test_a_speed_up_is_improved_whatever_it_did_to_the_counts():
    new = record({"step_time": timed(6.3 * MS), "ops": counted(419)})
    found = judged(FASTER, new=new)
    assert found.verdict == "improved"
    assert {metric.name: metric.verdict for metric in found.metrics} == {"step_time": "improved", "ops": "changed"}
    assert found.counts_changed
    assert found.reason.startswith("step_time -3")
    assert found.reason.endswith("; counts changed: ops 412 -> 419 (+7)")
    assert not found.fails(FAILS_BY_DEFAULT)
    assert found.fails(parse_fail_on("changed"))


def test_what_has_no_limit_is_shown_as_the_rounds_saw_it():
    def both(**more):
        return record({"step_time": timed(10.0 * MS), **more})

    share = {"flops_utilization": timed(40.0, better="higher", unit="%")}
    # The first process of the head had the peak of another element type.
    new, base = both(flops_utilization=timed(70.0, better="higher", unit="%")), both(**share)
    found = standing(new, base, (), BUILT_IN)
    rounds = [
        replace(
            each,
            base={**each.base, "flops_utilization": 40.0 + number},
            head={**each.head, "flops_utilization": 20.0 + number / 2},
        )
        for number, each in enumerate(made_rounds.of(*[0.1] * 9))
    ]
    outcome = Gate(select_held(found, BUILT_IN)).look(rounds, Spent(300, 300))
    shown = of(settle(found, new, base, base, outcome.verdicts, rounds, BUILT_IN), "flops_utilization")
    assert shown.base == pytest.approx(44, rel=0.01)
    assert shown.new == pytest.approx(22, rel=0.01)
    assert shown.effect == pytest.approx(-0.5)
    assert shown.ci95[0] < -0.5 < shown.ci95[1]
    assert (shown.verdict, shown.evidence, shown.rounds, shown.stored) == (None, "paired", 9, 40.0)
    # Where a round has no figure, the first processes' stand.
    rounds[3] = replace(rounds[3], head={"step_time": rounds[3].head["step_time"]})
    shown = of(settle(found, new, base, base, outcome.verdicts, rounds, BUILT_IN), "flops_utilization")
    assert (shown.new, shown.evidence) == (70.0, None)


@pytest.mark.parametrize("differences, verdict", [
    ([0.1] * 9, "regressed"),
    ([0.001, -0.001, 0.0], "unchanged"),
    ([0.2, -0.2, 0.1], "inconclusive"),
])  # fmt: skip
def test_no_count_outranks_what_rounds_say(differences, verdict):
    new = record({"step_time": timed(10.0 * MS), "ops": counted(419)})
    for record_, beside in ((NOW, False), (new, True)):
        found = judged(differences, new=record_)
        assert (found.verdict, found.counts_changed) == (verdict, beside)
        assert found.fails(parse_fail_on("changed")) == beside
        assert ("counts changed: ops 412 -> 419 (+7)" in found.reason) == beside


def test_a_limit_on_a_count_fails_a_test_whose_times_improved():
    new = record({"step_time": timed(6.3 * MS), "ops": counted(419)})
    found = judged(FASTER, new=new, limits=Limits.parse({"ops": 0}).over(BUILT_IN))
    assert (found.verdict, of(found, "ops").verdict) == ("regressed", "regressed")


def picking(*ops, base=(412,) * 9):
    """Rounds whose processes ran so many operators."""
    rounds = made_rounds.of(*[0.001 * (-1) ** number for number in range(len(ops))])
    return [
        replace(each, base={**each.base, "ops": float(before)}, head={**each.head, "ops": float(after)})
        for each, before, after in zip(rounds, base, ops, strict=False)
    ]


@pytest.mark.parametrize(
    "base, head, limit, verdict",
    [
        ((412,) * 3, (419,) * 3, 0, "regressed"),
        ((412,) * 3, (419,) * 3, "off", "changed"),
        # An autotuner picks one of two equal implementations in each process.
        ((412,) * 3, (419, 412, 419), 0, "inconclusive"),
        ((412, 419, 412), (419,) * 3, 0, "inconclusive"),
        ((412, 419, 412), (412, 412, 419), "off", None),
        # None of the base's processes ran as many as any of the head's.
        ((411, 412, 411), (419, 420, 419), 0, "regressed"),
        ((411, 412, 411), (419, 418, 419), 6, "inconclusive"),
    ],
)
def test_a_count_that_varies_between_processes_of_the_same_code_fails_only_if_all_are_past_its_limit(
    base, head, limit, verdict
):
    limits = Limits.parse({"ops": limit}).over(BUILT_IN)
    new = record({"step_time": timed(10.0 * MS), "ops": counted(419)})
    found = standing(new, STORED, (), limits)
    assert of(found, "ops").verdict == ("changed" if limit == "off" else "regressed")
    rounds = picking(*head, base=base)
    outcome = Gate(select_held(found, limits)).look(rounds, Spent(300, 300))
    row = MetricVerdict(
        "operator mm", "timed", "ns", "lower", 1.0, 2.0, verdict="suspect", limit=Limit("5%", 0.05), of_step=False
    )
    judgement = settle(found, new, STORED, NOW, outcome.verdicts, rounds, limits, rows=[row])

    assert of(judgement, "ops").verdict == verdict
    varies = len({*base}) > 1 or len({*head}) > 1
    assert bool(re.search("var(ies|y) between", of(judgement, "ops").reason)) == varies
    assert [note.code for note in judgement.integrity] == ["varying"] * varies
    assert ("operator mm" in {metric.name for metric in judgement.metrics}) != varies


def test_a_changed_count_is_explained_beside_unchanged_times():
    before, after = rows(mm=(1, 900), add=(1, 10)), rows(mm=(1, 900), add=(2, 20))
    stored = record({"step_time": timed(10.0 * MS), "ops": counted(2)}, rows=before)
    new = record({"step_time": timed(10.0 * MS), "ops": counted(3)}, rows=after)
    found = judged([0.001, -0.001, 0.0], new=new, stored=stored)
    assert found.verdict == "unchanged"
    assert [cause.name for cause in found.blame] == ["add"]


def test_stored_times_are_shown_beside_those_measured_again():
    metric = of(judged([0.001, -0.001, 0.0], base_ns=20.0 * MS), "step_time")
    assert metric.stored == pytest.approx(10.0 * MS, rel=0.02)
    assert metric.base == pytest.approx(20.0 * MS, rel=0.02)
    assert metric.verdict == "unchanged"


def test_what_is_not_held_stays_as_it_was():
    new = record({"step_time": timed(10.0 * MS), "mine": timed(3.0, unit="nat"), "ops": counted(412)})
    found = judged([0.001, -0.001, 0.0], new=new)
    assert (of(found, "mine").verdict, of(found, "mine").stored) == ("new", None)


def test_broken_rounds_are_said():
    measured = [replace(each, head=each.base) for each in made_rounds.of(*[0.1] * 3)]
    found = standing(NOW, STORED, (), BUILT_IN)
    outcome = Gate(select_held(found, BUILT_IN)).look(measured)
    judgement = settle(found, NOW, STORED, STORED, outcome.verdicts, measured, BUILT_IN)
    assert (judgement.verdict, judgement.integrity[-1].code) == ("invalid", "rounds")


@pytest.mark.parametrize("gflops, told", [(10, True), (8, False)])
def test_a_speed_up_to_less_than_the_least_time_of_its_flops_is_noted_and_fails_nothing(gflops, told):
    work = {"": StepWork(1, (OperatorWork("aten::mm", "[]", "float32", 1, 20 * MS, gflops * 10**9, 1),))}
    profile = {"operator aten::mm": 1.0 * MS}
    measured = [
        replace(each, kernels_base=profile, kernels_head=profile, work_base=work, work_head=work)
        for each in made_rounds.of(*FASTER, base=10.0 * MS)
    ]
    new = record({"step_time": timed(6.3 * MS), "ops": counted(412)})
    found = standing(new, STORED, (), BUILT_IN)
    outcome = Gate(select_held(found, BUILT_IN)).look(measured, Spent(300, 300))
    settled = settle(
        found, new, STORED, STORED, outcome.verdicts, measured, BUILT_IN, peaks=Peaks({"float32": 1e12}, 1e10)
    )
    assert settled.verdict == "improved"
    assert not settled.fails(FAILS_BY_DEFAULT)
    notes = [each.message for each in settled.integrity if each.code == "implausible"]
    assert len(notes) == told
    if told:
        # 10 Gflop at 1 Tflop/s; the step takes 6.3 ms, more than 0.7 of the time of 8.
        assert notes[0].startswith("a step takes 6.3")
        assert "need at least 10.00 ms" in notes[0]


# Another environment


def today(step=10.0, ops=412):
    return record({"step_time": timed(step * MS), "ops": counted(ops)}, context=TODAY)


@pytest.mark.parametrize("slower, verdict", [(1.0, "unchanged"), (1.3, "regressed")])
@pytest.mark.parametrize("differences, code", [
    ([0.001, -0.001, 0.0, 0.0005], "unchanged"),
    ([0.1] * 9, "regressed"),
    (FASTER, "improved"),
])  # fmt: skip
def test_another_torch_is_judged_apart_from_the_code(differences, code, slower, verdict):
    found = judged(differences, new=today(), now=today(), base_ns=10.0 * MS * slower)
    step = of(found, "step_time")
    assert (step.verdict, step.evidence) == (code, "paired")
    (environment,) = found.environment
    assert (environment.name, environment.verdict, environment.evidence) == ("step_time", verdict, "unpaired")
    assert environment.effect == pytest.approx(slower / 1.009 - 1, abs=0.02)
    assert str(environment.limit) == "10%"
    assert found.context_changes == (("torch", "2.13.0", "2.14.0"),)
    # Neither replaces the other: what either says fails the test, with its name.
    assert found.verdict == ("regressed" if "regressed" in (code, verdict) else code)
    said = "the environment changed: the baseline's code is now slower than recorded, step_time +"
    assert (said in found.reason) == (verdict == "regressed")
    if verdict == "regressed":
        assert found.reason.endswith("(torch 2.13.0 -> 2.14.0)")
    if code == "regressed":
        assert found.reason.startswith("step_time +1")
    assert found.fails(FAILS_BY_DEFAULT) == (found.verdict == "regressed")


def test_a_faster_environment_hides_no_slower_code():
    found = judged([0.1] * 9, new=today(), now=today(), base_ns=7.0 * MS)
    assert (found.verdict, found.environment[0].verdict) == ("regressed", "improved")
    assert "environment" not in found.reason


def test_in_the_same_environment_stored_times_decide_nothing():
    found = judged([0.001, -0.001, 0.0], base_ns=20.0 * MS, now=NOW)
    assert (found.verdict, found.environment) == ("unchanged", ())


def test_times_of_another_machine_are_not_held_against_these():
    elsewhere = replace(STORED, key=Key("cpu-xeon-4c-1t", {}))
    found = judged([0.001, -0.001, 0.0], new=today(), stored=elsewhere, now=today(), base_ns=20.0 * MS)
    assert (found.verdict, found.environment) == ("unchanged", ())


def test_too_few_stored_repeats_cannot_judge_the_environment_and_say_so():
    few = record({"step_time": timed(10.0 * MS, 10.1 * MS), "ops": counted(412, 412)})
    found = judged([0.001, -0.001, 0.0], new=today(), stored=few, now=today(), base_ns=20.0 * MS)
    (environment,) = found.environment
    assert environment.verdict == "suspect"
    assert "at least 7 recorded processes are needed, but the baseline has 2" in environment.reason
    assert found.verdict == "unchanged"


def test_the_environment_is_held_to_the_limit_of_unpaired_times():
    found = judged([0.001, -0.001, 0.0], new=today(), now=today(), base_ns=10.5 * MS)
    assert [each.verdict for each in found.environment] == ["unchanged"]
    off = Limits.parse({"step_time": "off", "block_time": "3%"})
    blocks = record({"step_time": timed(*[10.0 * MS] * 10), "block_time": timed(*[10.0 * MS] * 10)})
    new = replace(record({"step_time": timed(10.0 * MS), "block_time": timed(10.0 * MS)}), context=TODAY)
    found = standing(new, blocks, (), off)
    measured = made_rounds.of(0.001, -0.001, 0.0, name="block_time", step_time=0.5, base=20.0 * MS)
    outcome = Gate(select_held(found, off)).look(measured)
    judgement = settle(found, new, blocks, new, outcome.verdicts, measured, off)
    assert [(each.name, each.verdict) for each in judgement.environment] == [("block_time", "regressed")]
