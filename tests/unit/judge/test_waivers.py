"""Waivers: a slower metric does not fail its test within the waiver's limit, and fails it beyond that limit."""

import pytest
from making import counted, record, timed

from pytest_perfdl.judge.budget import WaivedGate, cover_rows, waive_by_interval, waive_rows
from pytest_perfdl.judge.settle import select_held, settle
from pytest_perfdl.judge.stopping_rule import Gate, Spent
from pytest_perfdl.judge.stored_repeats import confirm
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN, Limits
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.verdict import EVERY_ROUND, FAILS_BY_DEFAULT, Judgement, MetricVerdict, parse_fail_on
from unit.judge import made_rounds

MS = 1_000_000.0
STORED = record({"step_time": timed(10.0 * MS), "ops": counted(412)})


def waiver(limit="12%", metric="", **rest):
    return Waiver("*", metric, limit, "2026-12-01", **{"why": "new attention", "who": "ana", **rest})


def limits(*waivers, **own):
    return Limits.parse(own).over(BUILT_IN).over(Limits(waivers=waivers))


def rounds_judged(differences, given, new=STORED, spent=None, **metrics):
    """The judgement after the rounds that the rule asked for, and how many these were."""
    found = standing(new, STORED, (), given)
    gate = WaivedGate(Gate(select_held(found, given)), given)
    rounds = made_rounds.of(*differences, **metrics)
    for number in range(1, len(rounds) + 1):
        outcome = gate.look(rounds[:number], spent if number == len(rounds) else None)
        if not outcome.open:
            break
    return settle(found, new, STORED, STORED, outcome.verdicts, rounds[:number], given), number


def step_time(judgement):
    return next(each for each in judgement.metrics if each.name == "step_time")


def test_a_slowdown_within_the_waiver_is_measured_shown_and_does_not_fail():
    differences = made_rounds.noise(40, sd=0.004, shift=0.08)
    plain, _ = rounds_judged(differences, limits())
    found, _ = rounds_judged(differences, limits(waiver()))
    metric = step_time(found)
    assert plain.verdict == "regressed"
    assert plain.fails(FAILS_BY_DEFAULT)
    assert (found.verdict, metric.verdict, metric.outcome) == ("waived", "regressed", "waived")
    assert metric.waiver == waiver()
    assert not found.fails(FAILS_BY_DEFAULT)
    assert not found.fails(parse_fail_on("all"))
    assert found.fails(parse_fail_on("waived"))
    assert str(metric.limit) == "3%"
    assert "limit 3%; waived up to 12% until 2026-12-01 by ana: new attention" in found.reason


def test_it_fails_again_when_it_is_worse_than_the_waiver_allows():
    found, _ = rounds_judged(made_rounds.noise(40, sd=0.004, shift=0.2), limits(waiver()))
    assert (found.verdict, step_time(found).waiver) == ("regressed", None)
    assert found.fails(FAILS_BY_DEFAULT)
    assert "worse than the waiver of ana allows (12%, 2026-12-01)" in found.reason


def test_rounds_go_on_until_the_waiver_is_decided_though_the_limit_is_exceeded_before():
    """The first rounds prove more than 3 %, and not yet more than 12 %: without more of them, it would be waived."""
    differences = [0.05, 0.25] * 30
    plain, few = rounds_judged(differences, limits())
    found, more = rounds_judged(differences, limits(waiver()))
    assert plain.verdict == found.verdict == "regressed"
    assert few < more < 60
    assert step_time(found).rounds == more


def test_where_the_interval_contains_the_waived_limit_it_is_waived_and_says_so():
    differences = made_rounds.noise(14, sd=0.03, shift=0.115)
    found, number = rounds_judged(differences, limits(waiver()), spent=Spent(600, 300))
    metric = step_time(found)
    assert number == 14
    assert metric.ci95[0] < 0.12 < metric.ci95[1]
    assert found.verdict == "waived"
    assert metric.reason.endswith("new attention (more than that cannot be excluded)")


def test_a_time_within_its_own_limit_needs_no_waiver():
    found, _ = rounds_judged([0.001, -0.001, 0.0], limits(waiver()))
    assert (found.verdict, step_time(found).waiver) == ("unchanged", None)


def test_a_waiver_of_another_metric_does_not_apply():
    found, _ = rounds_judged(made_rounds.noise(40, sd=0.004, shift=0.08), limits(waiver(metric="peak_memory")))
    assert found.verdict == "regressed"
    assert "waive" not in found.reason


def test_an_expired_waiver_does_not_apply_and_is_named():
    given = limits(waiver(expired=True))
    found, _ = rounds_judged(made_rounds.noise(40, sd=0.004, shift=0.08), given)
    assert found.verdict == "regressed"
    assert found.fails(FAILS_BY_DEFAULT)
    assert "the waiver of ana expired on 2026-12-01 (new attention)" in found.reason


def test_a_suspect_in_every_round_is_waived_too():
    given = Limits.parse({"step_time": "3%", "block_time": "off", "peak_memory": "off"})
    found = standing(STORED, STORED, (), given)
    # So many tests share the level that these rounds do not prove anything.
    strict = Gate(select_held(found, given), tests=20)
    many = Gate(select_held(found, given), tests=10**6)
    rounds = made_rounds.of(*[0.08] * 28)
    assert strict.look(rounds).verdicts["step_time"].verdict == "regressed"
    plain = many.look(rounds, Spent(600, 300)).verdicts["step_time"]
    assert (plain.verdict, plain.in_every_round) == ("suspect", True)
    waived = given.over(Limits(waivers=(waiver(),)))
    metric = WaivedGate(many, waived).look(rounds, Spent(600, 300)).verdicts["step_time"]
    assert (metric.verdict, metric.outcome, metric.in_every_round) == ("suspect", "waived", False)
    tight = given.over(Limits(waivers=(waiver("4%"),)))
    metric = WaivedGate(many, tight).look(rounds, Spent(600, 300)).verdicts["step_time"]
    assert metric.in_every_round
    assert metric.waiver is None


@pytest.mark.parametrize("slower, verdict", [(1.11, "waived"), (1.5, "regressed"), (1.01, "unchanged")])
def test_without_paired_rounds_the_rank_test_decides_under_both_limits(slower, verdict):
    base = record({"step_time": timed(*(10.0 * MS + number for number in range(10)))})
    fresh = record({"step_time": timed(*(10.0 * MS * slower + number for number in range(5)))})
    given = limits(waiver("20%")).unpaired()
    found = standing(fresh, base, (), given)
    assert confirm(found, base, fresh, given).verdict == verdict


@pytest.mark.parametrize("now, verdict", [(412, "unchanged"), (440, "waived"), (470, "regressed")])
def test_a_count_is_compared_exactly_with_the_waived_limit(now, verdict):
    new = record({"step_time": timed(10.0 * MS), "ops": counted(now)})
    found, _ = rounds_judged([0.001, -0.001, 0.0], limits(waiver(), ops=0), new=new)
    assert found.verdict == verdict
    assert found.fails(FAILS_BY_DEFAULT) == (verdict == "regressed")


@pytest.mark.parametrize("values, verdict", [((39, 39), "missing"), ((44, 44), "missing"), ((46, 46), "regressed")])
def test_a_budget_may_be_exceeded_by_the_waived_limit(values, verdict):
    given = Limits.parse({}, {"step_time": "40ms"}).over(Limits(waivers=(waiver(),)))
    new = record({"step_time": timed(*(value * MS for value in values))})
    found = confirm(standing(new, None, (), given), None, new, given)
    metric = step_time(found)
    # 40 ms and 12 % are 44.8 ms. A waiver does not replace the baseline.
    assert found.verdict == verdict
    assert (metric.waiver is not None) == (values[0] == 44)
    assert str(metric.limit) == "<= 40ms"
    assert bool(found.over_budget) == (verdict == "regressed")


def test_a_lower_bound_may_be_missed_by_the_waived_limit():
    given = Limits.parse({}, {"speed": ">=100"}).over(Limits(waivers=(waiver(metric="speed"),)))
    for value, waived in ((89, True), (87, False)):
        new = record({"speed": counted(value, better="higher")})
        (metric,) = standing(new, None, (), given).metrics
        assert (metric.verdict, metric.waiver is not None) == ("regressed", waived)


def test_within_the_limit_of_the_waiver_the_budget_still_fails():
    given = Limits.parse({"ops": 0}, {"ops": 415}).over(Limits(waivers=(waiver("5", metric="ops"),)))
    for now, outcome in ((416, "waived"), (418, "regressed")):
        found = standing(record({"ops": counted(now)}), record({"ops": counted(412)}), (), given)
        assert found.metrics[0].outcome == outcome, now


def test_one_waived_metric_does_not_hide_another():
    new = record({"step_time": timed(10.0 * MS), "ops": counted(440), "kernels": counted(9)})
    base = record({"step_time": timed(10.0 * MS), "ops": counted(412), "kernels": counted(8)})
    given = Limits.parse({"ops": 0, "kernels": 0, "step_time": "off"}).over(Limits(waivers=(waiver(metric="ops"),)))
    found = standing(new, base, (), given)
    assert found.verdict == "regressed"
    suspect = MetricVerdict("a", "timed", "ns", "lower", 1, 2, verdict="suspect")
    waived = MetricVerdict("b", "timed", "ns", "lower", 1, 2, verdict="regressed", waiver=waiver())
    both = Judgement("t", "waived", "", metrics=(suspect, waived))
    assert not both.fails(FAILS_BY_DEFAULT)
    assert both.fails(parse_fail_on("all"))


def test_a_limit_that_does_not_fit_the_metric_is_said():
    given = limits(waiver("1MiB", metric="mine"), mine="3%")
    new = record({"mine": timed(3.0, unit="nat")})
    found = standing(new, record({"mine": timed(2.0, unit="nat")}), (), given)
    assert found.verdict == "invalid"
    assert "invalid limit of the waiver of ana" in found.reason


def row(effect, name="operator aten::mm"):
    low, high = effect - 0.02, effect + 0.02
    return MetricVerdict(
        name, "timed", "ns", "lower", 100.0, 100 * (1 + effect), effect, (low, high), verdict="regressed", of_step=False
    )


def test_a_waiver_of_every_metric_covers_kernels_whatever_their_change():
    given = limits(waiver())
    assert cover_rows(given)
    (found,) = waive_rows([row(3.0)], given)
    assert found.outcome == "waived"
    own = limits(waiver(metric="per_kernel"))
    assert not cover_rows(own)
    assert [each.outcome for each in waive_rows([row(0.1), row(3.0)], own)] == ["waived", "regressed"]
    of_call = limits(waiver(metric="forward.per_kernel"))
    named = [row(0.1, "forward.operator aten::mm"), row(0.1)]
    assert [each.outcome for each in waive_rows(named, of_call)] == ["waived", "regressed"]
    assert waive_rows([row(0.1)], limits(waiver(metric="step_time")))[0].outcome == "regressed"


def test_a_curve_is_waived_by_the_name_of_its_metric():
    curve = MetricVerdict(
        "step_time over batch", "timed", "ns", "lower", 100.0, 110.0, 0.1, (0.05, 0.15), verdict="regressed"
    )
    given = limits(waiver(metric="step_time"))
    assert waive_by_interval(curve, given, name="step_time").outcome == "waived"
    tight = limits(waiver("4%", metric="step_time"))
    assert waive_by_interval(curve, tight, name="step_time").outcome == "regressed"
    assert waive_by_interval(curve, given).outcome == "regressed"


def test_a_slower_environment_is_waived_too():
    stored = record({"step_time": timed(*(10.0 * MS + number for number in range(10)))})
    now = record({"step_time": timed(11.5 * MS)}, context={**stored.context, "torch": "2.14.0"})

    def judged(given):
        found = standing(now, stored, (), given)
        rounds = made_rounds.of(0.001, -0.001, 0.0, 0.002, -0.002, base=11.5 * MS)
        outcome = Gate(select_held(found, given)).look(rounds, Spent(300, 300))
        return settle(found, now, stored, now, outcome.verdicts, rounds, given)

    assert judged(limits()).verdict == "regressed"
    found = judged(limits(waiver("20%")))
    assert (found.verdict, found.environment[0].outcome) == ("waived", "waived")
    assert not found.fails(FAILS_BY_DEFAULT)
    assert "waived up to 20%" in found.reason


def test_every_round_is_a_failure_of_its_own():
    metric = MetricVerdict("step_time", "timed", "ns", "lower", 1, 2, verdict="suspect", in_every_round=True)
    assert Judgement("t", "suspect", "", metrics=(metric,)).fails({EVERY_ROUND})
