"""The verdict on a table: from rounds of its cases, and of named ones alone."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.judge.kernels import demand
from pytest_perfdl.judge.round_data import Round, TimedCases
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.tables import (
    SHOWN,
    AlternativesGate,
    TableGate,
    _together,
    alone_in,
    settle_alternatives,
    settle_table,
)
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import NO_RATES
from pytest_perfdl.model.limits import BUILT_IN, Expected, Limits
from pytest_perfdl.model.record import Call, Case, CaseWork, Key, MeasurementPlan, Occasion, Record, Series
from pytest_perfdl.model.units import format_percent

NOW = Spent(1.0, 300.0)
OVER = Spent(700.0, 300.0)
IDS = [f"dtype={dtype},n={n:02}" for dtype in ("float16", "float32") for n in range(10)]


def table(ids=IDS, *, loops=4, operators=("aten::add",), work=None, **others):
    """A table's call; `others` are the operators of single cases, by their place."""
    cases = tuple(
        Case(case, (1000.0,), loops, 1, 0, tuple(others.get(f"case_{place}", operators)), work)
        for place, case in enumerate(sorted(ids))
    )
    return Call("", {"cases": Series("counted", "1", "lower", (float(len(ids)),))}, (), (0,), cases=cases)


def record(call, **rest):
    values = {
        "test": "test_x.py::test_ops",
        "key": Key("cpu-1t", {"threads": 1}),
        "context": {"torch": "2.13"},
        "test_hash": "0123456789abcdef",
        "plan": MeasurementPlan(15, 40),
        "calls": (call,),
        "occasions": (Occasion(1, "2026-11-27", None, None),),
    }
    return Record(**{**values, **rest})


def rounds(count, changes=(), *, ids=IDS, seed=0, noise=0.004, problems=(), only=None):
    """Rounds of cases with little noise; `changes` are log ratios by id."""
    drawn, changes = np.random.default_rng(seed), dict(changes)
    found = []
    for number in range(count):
        base = {case: 1000.0 * math.exp(drawn.normal(0, noise)) for case in only or ids}
        head = {case: ns * math.exp(changes.get(case, 0.0) + drawn.normal(0, noise)) for case, ns in base.items()}
        order = "base first" if number % 2 else "head first"
        found.append(Round(order, {}, {}, cases=TimedCases(base, head, dict(problems))))
    return found


def gate(base=None, now=None, new=None, limits=BUILT_IN, tests=1):
    base = base or table()
    return TableGate.of(base, now or base, new or table(), limits, tests)


def settled(rule, measured, alone=None, *, base=None, now=None, new=None, spent=OVER, peaks=None):
    base, now, new = (record(each or table()) for each in (base, now, new))
    found = standing(new, base, (), BUILT_IN)
    return settle_table(found, rule, measured, alone or {}, spent, new, base, now, peaks)


def verdicts(judgement):
    return {case.id: case.verdict for case in judgement.cases}


def test_an_unchanged_table_ends_after_three_rounds():
    rule, measured = gate(), rounds(3)
    assert rule.look([]).cases == frozenset(IDS)
    assert rule.look(measured[:2], NOW).cases == frozenset(IDS)
    assert not rule.look(measured, NOW).open
    judgement = settled(rule, measured)
    assert judgement.verdict == "unchanged"
    assert set(verdicts(judgement).values()) == {"unchanged"}
    assert judgement.groups == ()
    (metric,) = [each for each in judgement.metrics if each.name == "case_time"]
    assert metric.reason == "20 cases: 20 unchanged"


def test_both_sides_make_as_many_calls_as_the_pilot_that_needs_more_says():
    for one, other in ((2, 16), (16, 2)):
        assert set(gate(now=table(loops=one), new=table(loops=other)).loops.values()) == {16}


@pytest.mark.long
def test_a_slower_case_fails_the_test_if_it_is_slower_alone_too():
    slow = IDS[3]
    rule, measured = gate(), rounds(20, {slow: 0.3})
    assert rule.look(measured[:4], NOW).cases == {slow}
    assert rule.probes(rule.judge(measured, OVER)) == [slow]
    judgement = settled(rule, measured, {slow: [0.3, 0.29, 0.31]})
    assert judgement.verdict == "regressed"
    assert [case for case, verdict in verdicts(judgement).items() if verdict == "regressed"] == [slow]
    assert judgement.cases[0].id == slow, "the largest change first"
    assert judgement.cases[0].effect == pytest.approx(math.expm1(0.3), abs=0.01)
    (metric,) = [each for each in judgement.metrics if each.verdict == "regressed"]
    assert metric.name == f"case {slow}"
    assert metric.times_over == pytest.approx(metric.effect / 0.05)
    assert metric.new == pytest.approx(metric.base * (1 + metric.effect))
    wanted = [(each.cases.base[slow], each.cases.head[slow]) for each in measured]
    assert list(metric.pairs) == [pytest.approx(pair) for pair in wanted]


def test_rounds_of_a_group_are_those_with_all_of_its_cases_at_its_typical_change():
    """By hand: 100 and 400 ns are 200 ns on the average; of changes of 10, 20 and 90 % the one of 20 % is typical."""
    ids = IDS[:3]
    base, head = dict(zip(ids, (100.0, 400.0, 200.0), strict=True)), dict(zip(ids, (110.0, 480.0, 380.0), strict=True))
    timed = TimedCases(base, head)
    assert _together(timed, ids) == (pytest.approx(200), pytest.approx(240))
    assert _together(timed, ids[:1]) == (pytest.approx(100), pytest.approx(110))
    assert timed.has(ids)
    assert not timed.has(IDS[:4])


@pytest.mark.parametrize("alone", [{}, {IDS[3]: [0.0, 0.01, -0.01]}, {IDS[3]: [-0.3, -0.3, -0.3]}])
def test_a_case_that_is_slower_only_behind_others_does_not_fail(alone):
    judgement = settled(gate(), rounds(20, {IDS[3]: 0.3}), alone)
    assert judgement.verdict == "suspect"
    assert verdicts(judgement)[IDS[3]] == "suspect"
    assert "not slower when it is measured alone" in judgement.cases[0].reason


def test_a_slower_group_is_told_once_and_not_case_by_case():
    changes = dict.fromkeys(IDS[:10], 0.12)
    rule, measured = gate(), rounds(20, changes)
    outcome = rule.judge(measured, OVER)
    probes = rule.probes(outcome)
    assert set(probes[:5]) <= set(IDS[:10])
    judgement = settled(rule, measured, {case: [0.12, 0.11, 0.13] for case in probes})
    (group,) = judgement.groups
    assert (group.where, group.cases, group.agreeing, group.verdict) == ({"dtype": "float16"}, 10, 10, "regressed")
    (told,) = [each for each in judgement.metrics if each.name == "group dtype=float16"]
    assert len(told.pairs) == 20
    assert all(new / old == pytest.approx(math.exp(0.12), abs=0.01) for old, new in told.pairs)
    assert group.interval[0] < math.expm1(0.12) < group.interval[1]
    assert [each.name for each in judgement.metrics if each.verdict == "regressed"] == ["group dtype=float16"]
    assert {verdict for case, verdict in verdicts(judgement).items() if case in IDS[:10]} == {"regressed"}


def test_a_group_that_is_not_slower_alone_is_suspect():
    changes = dict.fromkeys(IDS[:10], 0.12)
    rule, measured = gate(), rounds(20, changes)
    alone = {case: [0.0, 0.01, -0.01] for case in IDS}
    judgement = settled(rule, measured, alone)
    assert judgement.groups[0].verdict == "suspect"
    assert judgement.verdict == "suspect"


def test_a_case_that_is_far_slower_than_its_group_is_told_beside_it():
    changes = {**dict.fromkeys(IDS[:10], 0.06), IDS[0]: 1.0}
    rule, measured = gate(), rounds(20, changes)
    alone = {case: [changes[case]] * 3 for case in IDS[:10]}
    judgement = settled(rule, measured, alone)
    assert [each.name for each in judgement.metrics if each.verdict == "regressed"] == [
        "group dtype=float16",
        f"case {IDS[0]}",
    ]


@pytest.mark.long
def test_at_most_ten_cases_are_metrics_of_the_test():
    ids = [f"case {number}" for number in range(60)]
    changes = dict.fromkeys(ids[:15], 0.5)
    call = table(ids)
    rule = gate(call, call, call)
    alone = {case: [0.5] * 3 for case in ids}
    judgement = settled(rule, rounds(24, changes, ids=ids), alone, base=call, now=call, new=call)
    assert sum(each.name.startswith("case case") for each in judgement.metrics) == SHOWN
    assert list(verdicts(judgement).values()).count("regressed") == 15


def test_groups_by_operator_are_those_of_the_baseline():
    """The head's operators would make a group of what changed."""
    base = table(operators=("aten::mm",))
    new = table(operators=("aten::mm",), **{f"case_{place}": ("aten::mm", "aten::copy_") for place in range(6)})
    assert all("operator" not in node.where for node in gate(base, base, new).family.tree.nodes)
    other = gate(new, base, base).family.tree.nodes
    assert {"operator": "aten::copy_"} in [dict(node.where) for node in other]


def test_what_most_cases_of_a_group_run_now_is_its_cause():
    new = table(**{f"case_{place}": ("aten::add", "aten::to") for place in range(9)})
    rule = gate(new=new)
    changes = dict.fromkeys(IDS[:10], 0.12)
    judgement = settled(rule, rounds(20, changes), {case: [0.12] * 3 for case in IDS}, new=new)
    assert judgement.groups[0].cause == "aten::to is new"


def test_a_case_that_is_slower_alone_has_its_cause():
    new = table(case_0=("aten::add", "aten::to"))
    rule = gate(new=new)
    judgement = settled(rule, rounds(24, {IDS[0]: 0.5}), {IDS[0]: [0.5] * 3}, new=new)
    (metric,) = [each for each in judgement.metrics if each.verdict == "regressed"]
    assert (metric.name, metric.remark) == (f"case {IDS[0]}", "aten::to is new")


def test_cases_of_one_side_are_told_and_not_compared():
    new = table([*IDS[1:], "dtype=int8,n=00"])
    rule = gate(new=new)
    measured = rounds(3, ids=IDS[1:])
    judgement = settled(rule, measured, new=new)
    said = [finding.message for finding in judgement.integrity]
    assert "1 case not in the baseline, not compared: dtype=int8,n=00" in said
    assert f"1 case only in the baseline, not compared: {IDS[0]}" in said
    assert verdicts(judgement)["dtype=int8,n=00"] == "new"
    assert IDS[0] not in verdicts(judgement)


def test_a_case_that_fails_in_a_round_makes_the_table_invalid_and_is_not_measured_again():
    broken = IDS[7]
    rule = gate()
    measured = rounds(2, only=[case for case in IDS if case != broken], problems={broken: "RuntimeError: no memory"})
    assert broken not in rule.look(measured, NOW).cases
    judgement = settled(rule, measured)
    assert judgement.verdict == "invalid"
    assert "RuntimeError: no memory" in judgement.reason


def test_noisy_cases_are_mostly_not_called_unchanged():
    judgement = settled(gate(), rounds(4, noise=0.1, seed=2))
    found = list(verdicts(judgement).values())
    assert found.count("inconclusive") >= 15
    assert "regressed" not in found
    assert judgement.verdict == "inconclusive"
    noisiest = max(judgement.cases, key=lambda case: (case.verdict == "inconclusive", case.interval[1]))
    most = f"a slowdown of up to {format_percent(noisiest.interval[1])} is not excluded"
    assert noisiest.reason == f"no change found, but {most}"
    assert judgement.reason.endswith(f" unchanged; {noisiest.reason} ({noisiest.id})")


def test_times_of_a_case_agree_with_its_change():
    for case in settled(gate(), rounds(7, {IDS[0]: 0.3}, noise=0.1, seed=3)).cases:
        assert case.time_ns / case.base_ns - 1 == pytest.approx(case.effect, rel=1e-4, abs=1e-5)


def test_times_of_a_case_are_what_the_current_code_took():
    measured = rounds(7, {IDS[0]: 0.3}, noise=0.0)
    disturbed = [
        replace(each, cases=replace(each.cases, base={case: 3 * ns for case, ns in each.cases.base.items()}))
        if place == 4
        else each
        for place, each in enumerate(measured)
    ]
    case = next(each for each in settled(gate(), disturbed).cases if each.id == IDS[0])
    assert case.time_ns == pytest.approx(statistics.median(each.cases.head[IDS[0]] for each in measured), rel=1e-5)
    assert case.base_ns == pytest.approx(statistics.median(each.cases.base[IDS[0]] for each in measured), rel=0.02)


def test_rounds_in_one_order_are_invalid():
    measured = [replace(each, order="base first") for each in rounds(16)]
    assert not gate().look(measured, NOW).open
    assert settled(gate(), measured).verdict == "invalid"


def test_limits_decide_and_without_a_limit_on_cases_nothing_is_compared():
    wide = Limits.parse({"case_time": "50%", "group_time": "50%"}).over(BUILT_IN)
    rule, measured = gate(limits=wide), rounds(20, {IDS[3]: 0.3})
    assert verdicts(settled(rule, measured))[IDS[3]] == "unchanged"
    assert gate(limits=Limits.parse({"case_time": "off"}).over(BUILT_IN)) is None
    ungrouped = gate(limits=Limits.parse({"group_time": "off"}).over(BUILT_IN))
    assert ungrouped.family.tree.nodes == ()
    assert ungrouped.family.tree.case_weight == pytest.approx(1 / 20)


def test_a_table_that_does_not_fit_into_the_budget_leaves_cases_out_evenly_and_says_which():
    rule = TableGate.of(table(), table(), table(), BUILT_IN, 1, 0.5)
    assert len(rule.family.tree.cases) == 10
    assert len({case.partition(",")[0] for case in rule.family.tree.cases}) == 2, "of both types"
    judgement = settled(rule, rounds(3, only=rule.family.tree.cases))
    assert len(judgement.cases) == 10
    (said,) = [finding.message for finding in judgement.integrity if finding.code == "cases-late"]
    assert said.startswith("10 of 20 cases do not fit into the time budget: ")
    assert judgement.verdict == "unchanged"
    assert len(TableGate.of(table(), table(), table(), BUILT_IN, 1, 0.001).family.tree.cases) == 1
    assert TableGate.of(table(), table(), table(), BUILT_IN, 1, 7.0).late == ()


def test_rounds_of_a_single_case_count_as_measured_alone():
    measured = [*rounds(2), *rounds(3, {IDS[1]: 0.2}, only=[IDS[1]], noise=0.0)]
    assert alone_in(measured) == {IDS[1]: pytest.approx([0.2] * 3)}


def test_both_sides_have_the_rates_of_the_work_that_the_current_test_states():
    """Not what an older test stated: a rate changes as the time does, and never decides."""
    old, work = CaseWork(flops=5.0), CaseWork(items=10.0, flops=0.0, bytes=400.0)
    new = table([*IDS, "dtype=int8,n=00"], work=work)
    rule = gate(table(work=old), new=new)
    judgement = settled(rule, rounds(3, noise=0.0), new=new, peaks=Peaks({}, 1e9))
    told, added = judgement.cases[0], judgement.cases[-1]
    assert (told.base_ns, told.time_ns) == (pytest.approx(1000), pytest.approx(1000))
    # By hand: in 1 us, 10 items and 400 B, for which a memory of 1 GB/s needs 0.4 us.
    rates = {"items_per_s": 1e7, "flops_per_s": 0.0, "bytes_per_s": 4e8, "roofline": 0.4}
    assert told.rates == told.base_rates == pytest.approx(rates)
    assert (added.verdict, added.base_rates, added.rates) == ("new", {}, pytest.approx(rates))
    assert judgement.verdict == "unchanged"
    slower = settled(rule, rounds(3, dict.fromkeys(IDS, math.log(2)), noise=0.0), new=new).cases[0]
    assert slower.rates["items_per_s"] == pytest.approx(slower.base_rates["items_per_s"] / 2)
    assert slower.no_roofline == NO_RATES
    assert settled(gate(), rounds(3)).cases[0].no_roofline == "", "nothing is stated, so that nothing is missed"


LABELS = ("eager", "fused")


def alternatives(kind, amount, nowhere=""):
    """The rule of an assertion about two alternatives of all cases."""
    expected = Expected(kind, amount)
    asked = demand("case_time", expected)
    every = gate(limits=Limits.parse({"case_time": nowhere or "5%", "group_time": "off"}))
    everywhere = Expected("not slower", nowhere) if nowhere else None
    return AlternativesGate(Gate((asked,), 1, asked.limit.relative), every, expected, everywhere)


@pytest.mark.parametrize(
    "kind, amount, change, verdict",
    [
        ("not slower", "5%", 0.0, "unchanged"),
        ("not slower", "5%", 0.2, "regressed"),
        # The gate of "faster" has its sides exchanged: regressed there means that the assertion holds.
        ("faster", "10%", -0.3, "regressed"),
        ("faster", "10%", 0.0, "unchanged"),
    ],
)
def test_an_assertion_about_many_cases_is_about_their_geometric_mean(kind, amount, change, verdict):
    rule = alternatives(kind, amount)
    # Half of the cases by so much more than the change, half by so much less: the mean of the logarithms is the change.
    changes = {case: change + (0.4 if place % 2 else -0.4) for place, case in enumerate(IDS)}
    measured = rounds(12, changes)
    outcome = rule.look(measured, NOW)
    assert not outcome.open
    assert outcome.verdicts["case_time"].verdict == verdict
    assert settle_alternatives(rule, measured, {}, OVER, LABELS) == ([], ()), "single cases are not asked for"


def test_by_hand_the_mean_of_a_round_is_the_geometric_one():
    rule = alternatives("not slower", "5%")
    times = {case: 4.0 if place % 2 else 9.0 for place, case in enumerate(IDS)}
    whole = Round("base first", {}, {}, cases=TimedCases(times, dict.fromkeys(IDS, 6.0)))
    part = replace(whole, cases=TimedCases({IDS[0]: 1.0}, {IDS[0]: 1.0}))
    (mean,) = rule.means([part, whole])
    assert (mean.base["case_time"], mean.head["case_time"]) == (pytest.approx(6.0), pytest.approx(6.0))


def test_nowhere_slower_is_about_every_case():
    rule = alternatives("not slower", "5%", nowhere="10%")
    same = rounds(12)
    assert not rule.look(same, NOW).open
    (every,), cases = settle_alternatives(rule, same, {}, OVER, LABELS)
    assert (every.name, every.verdict) == ("every case", "unchanged")
    assert every.reason == "fused compared with eager: 20 cases: 20 unchanged"
    assert {case.alternatives for case in cases} == {"eager -> fused"}
    assert {case.verdict for case in cases} == {"unchanged"}
    one = rounds(20, {IDS[3]: 0.3})
    assert rule.look(one[:6], NOW).cases == {IDS[3]}, "the mean is decided, and all other cases are"
    metrics, cases = settle_alternatives(rule, one, {IDS[3]: [0.3] * 3}, OVER, LABELS)
    assert [(each.name, each.verdict) for each in metrics if each.verdict == "regressed"] == [
        (f"case {IDS[3]}", "regressed")
    ]
    assert metrics[-1].reason.startswith("fused compared with eager: 0.74x as fast")
    assert metrics[-1].reason.endswith("expected at most 10% slower")
    suspects, _ = settle_alternatives(rule, one, {IDS[3]: [0.0] * 3}, OVER, LABELS)
    assert [each.verdict for each in suspects[1:]] == ["suspect"], "alone, it is not slower"
    assert rule.look(one, OVER).verdicts["case_time"].verdict == "unchanged", "on the average it is not slower"


def test_a_case_of_alternatives_that_fails_in_a_round_is_named():
    rule = alternatives("not slower", "5%")
    measured = rounds(2, only=IDS[1:], problems={IDS[0]: "RuntimeError: no memory"})
    outcome = rule.look(measured, NOW)
    assert not outcome.open
    assert outcome.verdicts["case_time"].verdict == "invalid"
    assert f"{IDS[0]} (RuntimeError: no memory)" in outcome.verdicts["case_time"].reason


def test_a_case_that_is_defined_otherwise_is_not_compared():
    first, *others = table().cases
    base = replace(table(), cases=(replace(first, definition="0" * 16), *others))
    new = replace(table(), cases=(replace(first, definition="1" * 16), *others))
    rule = gate(base, base, new)
    assert first.id not in rule.family.tree.cases
    assert len(rule.family.tree.cases) == len(IDS) - 1
    ids = [case.id for case in others]
    found = settled(rule, rounds(8, ids=ids), base=base, now=base, new=new)
    assert {case.id: case.verdict for case in found.cases}[first.id] == "new"
    said = [finding.message for finding in found.integrity]
    assert f"1 case defined otherwise in the baseline, not compared: {first.id}" in said
