"""Kernels and operators held to a limit one by one: which ones, what rounds say of them, and when more are asked."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from making import record, timed

from pytest_perfdl.analysis.account.parts import StepParts
from pytest_perfdl.judge import kernels
from pytest_perfdl.judge.kernels import Rows
from pytest_perfdl.judge.round_data import Round, head_second, orders
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN, Limits, parse_limit
from pytest_perfdl.model.record import Call, Row, row_name
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.results.verdict import MetricVerdict
from pytest_perfdl.stats.evidence import Estimate, evidence, least_rounds

STEP = {"mm": 6_000_000, "add": 1_200_000, "mul": 800_000, "gelu": 700_000, "copy_": 300_000, "view": 15_000}
LIMIT = parse_limit("per_kernel", "5%")
PAST = math.log1p(0.05)
LIMITS = Limits.parse({"per_kernel": "5%"})
NAMES = tuple(f"operator {name}" for name in STEP if name != "view")
"""Rows of at least 0.5 % of the step."""


def measured(repeats, seed, *, slower=(), spread=0.02, counts=(), name=""):
    """A record of a step of about 10 ms with one profiled pass a repeat."""
    rng = random.Random(seed)
    common = [rng.gauss(1, 0.03) for _ in range(repeats)]
    factors, times = dict(slower), dict(counts)
    rows = tuple(
        Row(
            "operator",
            row,
            times.get(row, 4),
            tuple(round(ns * factors.get(row, 1) * factor * rng.gauss(1, spread)) for factor in common),
        )
        for row, ns in STEP.items()
    )
    idle = Row("idle", "Python and host", 90, tuple(round(900_000 * rng.gauss(1, spread)) for _ in range(repeats)))
    total = tuple(sum(row.ns[i] for row in (*rows, idle)) for i in range(repeats))
    series = {"step_time": timed(*(float(ns) for ns in total))}
    return record(calls=(Call(name, series, (*rows, idle), total),))


def rounds(count, *, slower=(), seed=1, sd=0.02, step=1.0):
    rng = random.Random(seed)
    found = []
    for order in orders(seed, count):
        moment = rng.gauss(0, 0.1)
        sides = []
        for factors in ({}, dict(slower)):
            times = {
                row_name("", "operator", name): ns * factors.get(name, 1) * math.exp(moment + rng.gauss(0, sd))
                for name, ns in STEP.items()
            }
            sides.append(times)
        base, head = ({"step_time": 1e7 * math.exp(rng.gauss(0, 0.002)) * factor} for factor in (1.0, step))
        found.append(Round(order, base, head, *sides))
    return found


def rows_of(names=NAMES, **rest):
    return Rows(dict.fromkeys(names, LIMIT), **rest)


def named(verdicts):
    return [each.name for each in verdicts]


def differences(measured_rounds, name):
    return [math.log(each.kernels_head[name] / each.kernels_base[name]) for each in measured_rounds]


# Which rows


def test_rows_are_those_of_both_sides_that_carry_the_step():
    base, new = measured(1, 1), measured(1, 2)
    assert tuple(kernels.select_rows(new, base, LIMITS)) == NAMES
    assert set(kernels.select_rows(new, base, LIMITS).values()) == {LIMIT}
    assert kernels.select_rows(new, base, Limits.parse({"per_kernel": "off"})) == {}
    assert kernels.select_rows(measured(1, 2, counts={"gelu": 5}), base, LIMITS).keys() == {*NAMES} - {"operator gelu"}
    assert kernels.select_rows(measured(1, 2, name="forward"), base, LIMITS) == {}


def test_a_call_may_have_a_limit_of_its_own():
    new, base = measured(1, 2, name="forward"), measured(1, 1, name="forward")
    assert tuple(kernels.select_rows(new, base, LIMITS)) == tuple(f"forward.{name}" for name in NAMES)
    assert kernels.select_rows(new, base, Limits.parse({"forward.per_kernel": "off", "per_kernel": "5%"})) == {}
    wide = kernels.select_rows(new, base, Limits.parse({"forward.per_kernel": "9%", "per_kernel": "5%"}))
    assert {limit.relative for limit in wide.values()} == {0.09}


@pytest.mark.parametrize("factor, both", [(1.0, False), (4.0, False), (10.0, True)])
def test_which_rows_are_judged_does_not_depend_on_which_side_is_which(factor, both):
    """By its share of both: 0.15 % of the step and ten times that are 0.8 % together, four times that is 0.4 %."""
    here, there = measured(1, 1), measured(1, 2, slower={"view": factor})
    one_way, other_way = kernels.select_rows(here, there, LIMITS), kernels.select_rows(there, here, LIMITS)
    assert one_way == other_way
    assert ("operator view" in one_way) == both


def test_the_number_of_rows_is_fixed_before_any_round():
    """What a row needs hangs on the rows that are judged, not on those that rounds happened to hold."""
    few = [
        replace(each, kernels_base={"operator gelu": 1.0}, kernels_head={"operator gelu": 2.0}) for each in rounds(12)
    ]
    assert evidence(differences(few, "operator gelu"), PAST) < 5 / kernels.ALPHA
    assert rows_of().regressed(few) == ()
    assert named(rows_of(("operator gelu",)).regressed(few)) == ["operator gelu"]


# Levels


def test_what_a_row_needs_is_shared_by_tests_and_rows():
    rows = rows_of(tests=40)
    assert {rows.needed(name) for name in NAMES} == {40 * 5 * 400}
    assert rows_of(("operator mm",)).needed("operator mm") == 400


def test_rows_below_touched_functions_have_a_level_of_their_own():
    rows = rows_of(touched=frozenset({"operator gelu"}), tests=3)
    assert rows.needed("operator gelu") == 3 * 400
    assert rows.needed("operator mm") == 3 * 4 * 400
    everything = rows_of(touched=frozenset(NAMES))
    assert everything.needed("operator mm") == 5 * 400


@pytest.mark.long
def test_a_touched_row_is_found_in_fewer_rounds():
    measured_rounds = rounds(30, slower={"gelu": 1.5, "add": 1.5})
    first = {}
    for touched in (frozenset(), frozenset({"operator gelu"})):
        rows = rows_of(touched=touched, tests=8)
        first[bool(touched)] = {
            name: next(n for n in range(1, 31) if name in named(rows.regressed(measured_rounds[:n])))
            for name in ("operator gelu", "operator add")
        }
    assert first[False] == dict.fromkeys(("operator gelu", "operator add"), least_rounds(8 * 5 * 400))
    assert first[True] == {"operator gelu": least_rounds(8 * 400), "operator add": least_rounds(8 * 4 * 400)}


def test_it_takes_the_evidence_that_its_row_needs():
    measured_rounds = rounds(14, slower={"gelu": 1.3})
    gathered = evidence(differences(measured_rounds, "operator gelu"), PAST)
    tests = int(gathered * kernels.ALPHA / len(NAMES))
    assert tests >= 2
    assert named(rows_of(tests=tests).regressed(measured_rounds)) == ["operator gelu"]
    assert rows_of(tests=tests + 1).regressed(measured_rounds) == ()


@pytest.mark.parametrize("side, found", [(-1, ["operator gelu"]), (1, [])], ids=["below", "above"])
def test_it_takes_the_estimate_too(side, found):
    measured_rounds = rounds(25, slower={"gelu": 1.2})
    edge = math.expm1(
        Estimate(tuple(differences(measured_rounds, "operator gelu")), head_second(measured_rounds)).quantile(0.05)
    )
    limit = parse_limit("per_kernel", f"{100 * edge * (1 + side * 1e-4):.9f}%")
    assert named(Rows({"operator gelu": limit}).regressed(measured_rounds)) == found


# What rounds say


def test_slow_rows_are_named_largest_change_first_and_no_others():
    found = rows_of().regressed(rounds(16, slower={"gelu": 1.3, "add": 1.6}))
    assert named(found) == ["operator add", "operator gelu"]
    add = found[0]
    assert (add.verdict, add.evidence, add.rounds, add.unit, str(add.limit)) == ("regressed", "paired", 16, "ns", "5%")
    assert add.of_step is False
    assert add.effect == pytest.approx(0.6, abs=0.03)
    assert add.ci95[0] < add.effect < add.ci95[1]
    assert add.base == pytest.approx(STEP["add"], rel=0.1)
    assert add.new / add.base == pytest.approx(1.6, abs=0.03)
    assert add.times_over == pytest.approx(add.effect / 0.05)
    assert re.fullmatch(r"\+\d\d\.\d% \[.*\] \(95% interval, 16 paired rounds\), limit 5%", add.reason)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.03])
def test_within_its_limit_a_row_is_noise(factor):
    assert rows_of().regressed(rounds(25, slower={"gelu": factor})) == ()


def test_a_row_that_a_side_lacks_once_is_not_timed():
    measured_rounds = rounds(16, slower={"gelu": 1.5, "add": 1.5})
    gone = {name: ns for name, ns in measured_rounds[4].kernels_head.items() if name != "operator add"}
    measured_rounds[4] = replace(measured_rounds[4], kernels_head=gone)
    assert named(rows_of().regressed(measured_rounds)) == ["operator gelu"]
    assert rows_of(("operator add", "operator other")).regressed(measured_rounds) == ()
    assert rows_of().regressed([]) == rows_of().promising([]) == ()


# When more rounds are asked for


def test_a_row_that_looks_slower_asks_for_more_rounds_until_it_is_found():
    measured_rounds = rounds(20, slower={"gelu": 1.3})
    rows = rows_of()
    needed = least_rounds(5 * 400)
    asked = [named(rows.promising(measured_rounds[:count])) for count in range(1, 21)]
    assert asked[3 : needed - 1] == [["operator gelu"]] * (needed - 4)
    assert asked[needed:] == [[]] * (20 - needed)
    (gelu,) = rows.promising(measured_rounds[:6])
    assert (gelu.verdict, gelu.times_over, gelu.of_step) == ("suspect", None, False)
    assert gelu.reason.endswith("limit 5%: more paired rounds are needed")
    assert rows.promising(rounds(12)) == ()


@pytest.mark.parametrize("verdict, asked", [("improved", False), ("unchanged", True), ("suspect", True)])
def test_a_row_of_a_step_that_improved_is_no_suspect(verdict, asked):
    slower = rounds(6, slower={"gelu": 1.5})
    metric = MetricVerdict("step_time", "timed", "ns", "lower", 10.0, 5.0, verdict=verdict)
    assert bool(rows_of().promising(slower, {"step_time": metric})) == asked
    assert rows_of().promising(slower, {"other.step_time": metric}) == rows_of().promising(slower)
    assert rows_of().regressed(rounds(13, slower={"gelu": 1.5})) != (), "what is surely slower fails, whatever the step"


def test_one_or_two_rounds_make_no_suspect_of_a_row():
    measured_rounds = rounds(3, slower={"gelu": 8.0})
    assert [named(rows_of().promising(measured_rounds[:count])) for count in (1, 2, 3)] == [[], [], ["operator gelu"]]


@pytest.mark.parametrize("rows, asked", [(1, True), (40, False)])
def test_the_more_rows_there_are_the_surer_one_has_to_look(rows, asked):
    """P(over the limit) of 1 - 0.05 / K."""
    ours = [0.13, 0.02, 0.12, 0.10, 0.11]
    measured_rounds = [
        Round(order, {}, {}, {"operator 0": 1.0}, {"operator 0": math.exp(each)})
        for order, each in zip(orders(1, 5), ours, strict=True)
    ]
    over = Estimate(tuple(ours), head_second(measured_rounds)).over(PAST)
    assert 0.95 < over < 1 - 0.05 / 40
    found = rows_of([f"operator {number}" for number in range(rows)]).promising(measured_rounds)
    assert bool(found) == asked


# The whole way


def judged(measured_rounds, *, rows=None):
    """From records and rounds to a judgement, as a session goes it."""
    new, base = measured(1, 2, slower={"gelu": 1.5}), measured(10, 1)
    found = standing(new, base, (), BUILT_IN)
    outcome = Gate(select_held(found, BUILT_IN)).look(measured_rounds, Spent(600, 300))
    rows = rows or Rows(kernels.select_rows(new, base, BUILT_IN))
    by_row = (*rows.regressed(measured_rounds), *rows.promising(measured_rounds))
    return settle(found, new, base, base, outcome.verdicts, measured_rounds, BUILT_IN, by_row)


def test_a_slower_kernel_fails_a_step_that_did_not_change():
    found = judged(rounds(13, slower={"gelu": 1.5}))
    assert found.verdict == "regressed"
    (gelu,) = [metric for metric in found.metrics if metric.verdict == "regressed"]
    assert (gelu.name, gelu.of_step) == ("operator gelu", False)
    assert found.reason.startswith("operator gelu +")
    assert "13 paired rounds" in found.reason
    assert found.blame[0].name == "gelu"


def test_the_step_is_named_before_its_kernels():
    found = judged(rounds(13, slower={"gelu": 1.5}, step=1.2))
    assert found.reason.startswith("step_time +")
    assert "also operator gelu" in found.reason


def test_a_row_that_the_budget_left_open_is_a_suspect():
    found = judged(rounds(8, slower={"gelu": 1.5}))
    assert (found.verdict, found.metrics[0].verdict) == ("suspect", "unchanged")
    assert found.reason.startswith("operator gelu +")
    assert found.reason.endswith("more paired rounds are needed")


def parts(values, seed):
    """One run of two steps whose operators are those of `values`, in two modules."""
    rng = random.Random(seed)
    operators = [
        Part("operator", name.removeprefix("operator "), module="Net.mlp" if "gelu" in name else "Net")
        for name in values
    ]
    ns = np.array([[round(value * rng.gauss(1, 0.005)) for _ in range(2)] for value in values.values()])
    count = np.full(ns.shape, 4)
    return StepParts(False, ns.sum(axis=0), tuple(operators), ("forward",) * len(operators), ns, ns, count)


def test_blame_is_of_the_rounds_and_says_where():
    plain = rounds(13, slower={"gelu": 2.0})
    with_parts = [
        replace(
            each,
            parts_base={"": parts(each.kernels_base, 2 * number)},
            parts_head={"": parts(each.kernels_head, 2 * number + 1)},
        )
        for number, each in enumerate(plain)
    ]
    first, *rest = judged(with_parts).blame
    assert (first.name, first.module, rest) == ("gelu", "Net.mlp", [])
    assert first.delta_ns / STEP["gelu"] == pytest.approx(1.0, abs=0.15)
    assert first.effects["duration"] == pytest.approx(first.delta_ns, rel=0.01)
    # Without parts it is what the first process saw: half as slow again.
    assert judged(plain).blame[0].delta_ns / STEP["gelu"] == pytest.approx(0.5, abs=0.15)


def test_profiled_steps_that_went_the_other_way_share_nothing_out():
    def half(values):
        return {name: value * (0.5 if "gelu" in name else 1) for name, value in values.items()}

    slower = [
        replace(
            each,
            parts_base={"": parts(each.kernels_base, 2 * number)},
            parts_head={"": parts(half(each.kernels_head), 2 * number + 1)},
        )
        for number, each in enumerate(rounds(10, step=1.2))
    ]
    found = judged(slower)
    assert found.reason.startswith("step_time +")
    (gelu,) = found.blame
    assert (gelu.name, gelu.share) == ("gelu", None)
    assert gelu.delta_ns < 0
    (note,) = [each for each in found.integrity if each.code == "profiled"]
    assert note.level == "note"
    assert re.match(r"the profiled steps changed by -[\d.]+%, but the timed steps by \+(19|20)\.\d%, so", note.message)


@pytest.mark.parametrize(
    "text, message",
    [
        ("20us", "limit of per_kernel: '20us' is not a percentage: write it as 5% or off"),
        ("5%+20us", "limit of per_kernel: '5%+20us' is not a percentage: write it as 5% or off"),
        ("-5%", "limit of per_kernel: '-5%' is not a percentage: write it as 5% or off"),
    ],
    ids=["a time", "a share and a time", "a decrease"],
)
def test_the_limit_is_a_share(text, message):
    with pytest.raises(ValueError) as error:
        parse_limit("per_kernel", text)
    assert str(error.value) == message


def test_it_has_no_budget_and_is_no_misspelt_metric():
    with pytest.raises(ValueError, match="kernels can have a limit, but no budget"):
        Limits.parse({}, {"per_kernel": "5ms"})
    wanted = Limits.parse({"per_kernel": "9%", "forward.per_kernel": "9%", "back.per_kernel": "9%"})
    assert wanted.unmatched(["forward.step_time", "step_time"]) == ("back.per_kernel",)


# Rounds without profiled steps


def unprofiled(each):
    """The same processes, had they not profiled."""
    return replace(each, kernels_base={}, kernels_head={}, parts_base={}, parts_head={})


def test_rounds_that_were_not_profiled_say_nothing_of_rows():
    slower = rounds(13, slower={"gelu": 1.5})
    among = [part for each in slower for part in (each, unprofiled(each))]
    (expected,), (found,) = rows_of().regressed(slower), rows_of().regressed(among)
    assert found == expected
    assert found.rounds == 13
    assert rows_of().promising(among[:11]) == rows_of().promising(slower[:6])
    assert rows_of().watched(among[:5]) == rows_of().watched(slower[:3])


def test_a_row_that_looks_slower_is_watched():
    assert rows_of().watched(rounds(3, slower={"gelu": 1.5}))
    assert not rows_of().watched(rounds(3, sd=0.01))
    assert not rows_of().watched([])


def test_a_judgement_of_few_profiled_rounds_has_the_causes_of_these():
    slower = [
        replace(
            each,
            parts_base={"": parts(each.kernels_base, 2 * number)},
            parts_head={"": parts(each.kernels_head, 2 * number + 1)},
        )
        for number, each in enumerate(rounds(13, slower={"gelu": 1.5}, step=1.2))
    ]
    few = [*slower[:6], *map(unprofiled, slower[6:])]
    found, fewer = judged(few), judged(few[:11])
    assert found.verdict == "regressed"
    assert found.metrics[0].rounds == 13, "times are those of all rounds"
    assert found.blame[0].name == "gelu"
    assert len(found.breakdowns[0].base_rounds) == 6
    assert found.breakdowns == fewer.breakdowns
