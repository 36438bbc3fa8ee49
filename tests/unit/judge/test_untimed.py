"""How a test stands to its baselines, and which of several verdicts is the test's."""

from dataclasses import replace

import pytest
from making import CONTEXT, counted, invalid, record, rows, timed

from pytest_perfdl.judge.stored_repeats import confirm
from pytest_perfdl.judge.untimed import open_times, standing
from pytest_perfdl.model.limits import BUILT_IN, Limits, parse_limit_option
from pytest_perfdl.model.record import Call, Finding, Key, MeasurementPlan, Occasion
from pytest_perfdl.results.verdict import (
    EVERY_ROUND,
    FAILS_BY_DEFAULT,
    REWRITTEN,
    VERDICTS,
    WARNS_BY_DEFAULT,
    Judgement,
    MetricVerdict,
    parse_fail_on,
    worst,
)

UNPAIRED = BUILT_IN.unpaired()

SERIES = {"step_time": timed(100.0, 101.0, 99.0), "ops": counted(10, 10, 10)}
BASE = record(SERIES)
SAME = record({"step_time": timed(100.0), "ops": counted(10)})


def other(slug, date="2026-01-01T00:00:00Z", series=None, **rest):
    made = record(series or SERIES, key=Key(slug, {}), **rest)
    return replace(made, occasions=(Occasion(made.repeats, date, None, None),))


def judged(new, base, others, limits):
    """The judgement, with times held against stored repeats."""
    return confirm(standing(new, base, others, limits), base, new, limits, others=others)


def verdicts(judgement):
    return {metric.name: metric.verdict for metric in judgement.metrics}


def test_the_same_again_is_unchanged():
    judgement = judged(SAME, BASE, (), UNPAIRED)
    assert judgement.verdict == "unchanged"
    assert verdicts(judgement) == {"step_time": "unchanged", "ops": "unchanged"}
    assert judgement.reason.startswith("step_time +0.0% [")
    assert (judgement.blame, judgement.environment, judgement.context_changes) == ((), (), ())


def test_a_broken_measurement_is_invalid_and_has_no_figures():
    note = Finding("note", "load", "another load")
    new = replace(SAME, integrity=(note, invalid("steps differ"), invalid("a recompile")))
    judgement = judged(new, BASE, (), UNPAIRED)
    assert (judgement.verdict, judgement.reason) == ("invalid", "steps differ; a recompile")
    assert judgement.metrics == ()
    assert judgement.integrity == new.integrity


def test_a_note_breaks_nothing():
    note = Finding("note", "load", "another load")
    judgement = judged(replace(SAME, integrity=(note,)), BASE, (), UNPAIRED)
    assert (judgement.verdict, judgement.integrity) == ("unchanged", (note,))


def test_a_test_that_measured_nothing_is_invalid():
    judgement = judged(record(calls=()), BASE, (), UNPAIRED)
    assert (judgement.verdict, judgement.reason) == ("invalid", "the test measured nothing")


def test_no_baseline_at_all_is_missing_with_figures():
    judgement = judged(SAME, None, (), UNPAIRED)
    assert (judgement.verdict, judgement.reason) == ("missing", "no baseline recorded yet")
    assert verdicts(judgement) == {"step_time": None, "ops": None}
    assert [metric.new for metric in judgement.metrics] == [100, 10]
    assert {metric.base for metric in judgement.metrics} == {None}


def test_a_number_of_loops_that_is_one_changes_no_plan():
    noted = record({"step_time": timed(100.0), "ops": counted(10)}, plan=MeasurementPlan(15, 40, loops={"": 1}))
    assert judged(noted, BASE, (), UNPAIRED).verdict != "outdated"
    assert MeasurementPlan(15, 40, loops={"b": 8, "a": 4, "c": 1}).shape["loops"] == "a 4, b 8"


@pytest.mark.parametrize("change, why", [
    ({"test_hash": "def"},
     "the test changed since the baseline was recorded (its source, fixtures, constants or parameters)"),
    ({"plan": MeasurementPlan(warmup=15, steps=20)}, "measurement settings differ from the baseline: steps 40 -> 20"),
    ({"plan": MeasurementPlan(15, 40, loops={"": 64})}, "measurement settings differ from the baseline: loops 1 -> 64"),
    (
        {"plan": MeasurementPlan(15, 40, threads=4, seed=1)},
        "measurement settings differ from the baseline: threads 1 -> 4, seed 0 -> 1",
    ),
])  # fmt: skip
def test_a_changed_test_is_outdated_and_its_figures_are_only_shown(change, why):
    slower = record({"step_time": timed(200.0), "ops": counted(12)}, **change)
    judgement = judged(slower, BASE, (), UNPAIRED)
    assert (judgement.verdict, judgement.reason) == ("outdated", why)
    assert verdicts(judgement) == {"step_time": None, "ops": None}
    assert [(metric.base, metric.new) for metric in judgement.metrics] == [
        (pytest.approx(100, rel=1e-3), 200),
        (10, 12),
    ]
    assert {(metric.limit, metric.reason) for metric in judgement.metrics} == {(None, "")}
    assert judgement.blame == ()
    assert open_times(judgement, UNPAIRED) == ()


def test_baselines_under_other_keys_alone_are_incomparable_but_counts_are_judged():
    judgement = judged(SAME, None, (other("gpu-b"), other("cpu-a")), UNPAIRED)
    assert judgement.verdict == "incomparable"
    assert judgement.reason == "baselines exist only for other machine IDs: cpu-a, gpu-b"
    assert verdicts(judgement) == {"step_time": "incomparable", "ops": "unchanged"}
    assert judgement.metrics[0].base is None
    assert judgement.metrics[1].base == 10


def test_a_count_past_its_limit_fails_even_without_a_baseline_under_this_key():
    new = record({"step_time": timed(100.0), "ops": counted(12)})
    judgement = judged(new, None, (other("cpu-a"),), Limits.parse({"ops": 0}).over(UNPAIRED))
    assert judgement.verdict == "regressed"
    assert judgement.reason == "ops 10 -> 12 (+2), limit 0; baselines exist only for other machine IDs: cpu-a"


def test_counts_are_held_against_the_most_recent_baseline_in_scope():
    old = other("a", "2026-01-01T00:00:00Z", {"ops": counted(8)})
    recent = other("b", "2026-02-01T00:00:00Z", {"ops": counted(9)})
    latest_elsewhere = other("c", "2026-03-01T00:00:00Z", {"ops": counted(7)}, context={**CONTEXT, "torch": "2.0"})
    judgement = judged(SAME, None, (old, recent, latest_elsewhere), UNPAIRED)
    assert [metric.base for metric in judgement.metrics if metric.name == "ops"] == [9]
    assert (judgement.verdict, judgement.counts_changed) == ("incomparable", True)
    assert judgement.reason == "baselines exist only for other machine IDs: a, b, c; counts changed: ops 9 -> 10 (+1)"


def test_no_baseline_in_scope_leaves_a_count_unjudged():
    judgement = judged(SAME, None, (other("a", context={**CONTEXT, "device": "cuda"}),), UNPAIRED)
    assert verdicts(judgement) == {"step_time": "incomparable", "ops": None}


def test_a_count_with_a_limit_that_nothing_can_be_held_against_says_so():
    limits = Limits.parse({"ops": 0})
    judgement = judged(SAME, None, (other("a", context={**CONTEXT, "device": "cuda"}),), limits)
    assert verdicts(judgement)["ops"] == "incomparable"


def test_threads_are_part_of_the_key_so_they_do_not_make_another_key_outdated():
    same_test = other("a", plan=MeasurementPlan(15, 40, threads=8))
    another = other("b", "2026-09-01T00:00:00Z", test_hash="def")
    judgement = judged(SAME, None, (same_test, another), UNPAIRED)
    assert verdicts(judgement)["ops"] == "unchanged"
    assert verdicts(judged(SAME, None, (another,), UNPAIRED))["ops"] is None


def test_context_that_differs_is_told_whatever_the_verdict():
    new = replace(SAME, context={**CONTEXT, "torch": "2.14.0", "cuda": 13})
    for fresh in (new, replace(new, integrity=(invalid(),))):
        assert judged(fresh, BASE, (), UNPAIRED).context_changes == (
            ("cuda", "none", "13"),
            ("torch", "2.13.0", "2.14.0"),
        )
    assert judged(new, None, (), UNPAIRED).context_changes == ()


def test_a_metric_that_the_baseline_does_not_have_is_new():
    judgement = judged(record({**SAME.calls[0].series, "tokens": timed(3.0)}), BASE, (), UNPAIRED)
    assert verdicts(judgement)["tokens"] == "new"
    assert judgement.verdict == "unchanged"


def test_a_metric_that_is_gone_is_not_passed_over():
    base = record({**SERIES, "flops": counted(7, 7, 7), "cpu_time": timed(1, 1, 1), "wait": timed(1, 1, 1)})
    judgement = judged(SAME, base, (), Limits.parse({"cpu_time": "3%"}).over(UNPAIRED))
    assert {name: verdict for name, verdict in verdicts(judgement).items() if name not in SERIES} == {
        "flops": "changed",
        "cpu_time": "changed",
        "wait": None,
    }
    assert "cpu_time is in the baseline, but not in the current measurement; also flops" in judgement.reason


def test_a_metric_of_another_unit_or_direction_is_incomparable():
    for series in (timed(100.0, unit="ms"), timed(100.0, better="higher"), counted(100.0, unit="ns")):
        judgement = judged(record({"step_time": series}), record({"step_time": timed(1.0)}), (), Limits())
        assert judgement.verdict == "incomparable"
        assert judgement.metrics[0].base is None
        assert (
            judgement.reason == "step_time is defined differently in the baseline (timed, unit 'ns', lower is better)"
        )


@pytest.mark.parametrize("limit, says", [("5us", "'5us' is not a quantity in tok/s"),
                                         ("-5%", "limits a decrease, but lower values are better")])  # fmt: skip
def test_a_limit_that_does_not_fit_its_metric_is_invalid(limit, says):
    stored, fresh = record({"mine": timed(1.0, unit="tok/s")}), record({"mine": timed(1.0, unit="tok/s")})
    judgement = judged(fresh, stored, (), Limits.parse({"mine": limit}))
    assert judgement.verdict == "invalid"
    assert says in judgement.reason


def test_a_budget_that_does_not_fit_its_metric_is_invalid_without_a_baseline_too():
    judgement = judged(record({"mine": timed(1.0, unit="tok/s")}), None, (), Limits.parse({}, {"mine": "5us"}))
    assert judgement.verdict == "invalid"
    assert open_times(judgement, UNPAIRED) == ()


def test_an_invalid_judgement_asks_for_no_more_repeats():
    stored, fresh = (record({"step_time": timed(value), "mine": timed(1.0, unit="tok/s")}) for value in (100.0, 200.0))
    limits = Limits.parse({"mine": "5us"}).over(UNPAIRED)
    judgement = standing(fresh, stored, (), limits)
    assert verdicts(judgement) == {"step_time": None, "mine": "invalid"}
    assert (judgement.verdict, open_times(judgement, limits)) == ("invalid", ())


def test_named_calls_are_judged_under_their_full_names():
    def of(forward, backward):
        return record(calls=tuple(Call(name, {"ops": counted(ops)}, (), (100,))
                                  for name, ops in (("fwd", forward), ("bwd", backward))))  # fmt: skip

    judgement = judged(of(3, 9), of(3, 8), (), Limits.parse({"bwd.ops": 0}))
    assert verdicts(judgement) == {"fwd.ops": "unchanged", "bwd.ops": "regressed"}
    assert judgement.reason == "bwd.ops 8 -> 9 (+1), limit 0"


def test_the_worst_metric_speaks_and_names_the_others_like_it():
    base = record({name: counted(10) for name in "abcdef"})
    new = record({name: counted(11 + 10 * (name == "c")) for name in "abcdef"})
    judgement = judged(new, base, (), Limits.parse({"a": "5%", "b": "5%", "c": "5%"}))
    assert judgement.verdict == "regressed"
    assert judgement.reason == (
        "c 10 -> 21 (+11), limit 5%; also a, b; counts changed: d 10 -> 11 (+1), e 10 -> 11 (+1), f 10 -> 11 (+1)"
    )
    judgement = judged(new, base, (), Limits())
    assert judgement.reason == "a 10 -> 11 (+1); also b, c, d and 2 more"


def test_blame_comes_with_what_it_can_explain():
    slow, fast = rows(mm=(1, 900), add=(1, 100)), rows(mm=(1, 500), add=(1, 100))
    base = record({"step_time": timed(600.0)}, rows=fast)
    judgement = judged(record({"step_time": timed(1000.0)}, rows=slow), base, (), UNPAIRED)
    assert judgement.verdict == "suspect"
    assert [cause.name for cause in judgement.blame] == ["mm"]
    assert judged(record({"step_time": timed(600.0)}, rows=slow), base, (), UNPAIRED).blame == ()


def test_counts_come_first_in_the_blame_where_they_alone_decided():
    base = record({"step_time": timed(1000.0), "ops": counted(2)}, rows=rows(mm=(1, 900), add=(1, 10)))
    new = record({"step_time": timed(1000.0), "ops": counted(3)}, rows=rows(mm=(1, 950), add=(2, 20)))
    judgement = judged(new, base, (), Limits.parse({"step_time": "200%"}))
    assert (judgement.verdict, judgement.counts_changed) == ("unchanged", True)
    assert judgement.reason.endswith("; counts changed: ops 2 -> 3 (+1)")
    assert [cause.name for cause in judgement.blame] == ["add", "mm"]


def test_the_worst_verdict_is_the_first_of_the_table():
    assert VERDICTS[0] == "invalid"
    for place, verdict in enumerate(VERDICTS):
        assert worst(list(VERDICTS[place:])) == verdict
    assert worst([]) == "unchanged"
    assert worst(["suspect", "regressed", "missing"]) == "regressed"


def test_which_verdicts_fail():
    assert parse_fail_on("invalid, REGRESSED") == {"invalid", "regressed"}
    assert parse_fail_on("all") == FAILS_BY_DEFAULT | WARNS_BY_DEFAULT - {"waived"}
    assert parse_fail_on("waived") == {"waived"}
    assert parse_fail_on("improved") == {"improved"}
    assert parse_fail_on("regressed, suspect-in-every-round") == {"regressed", EVERY_ROUND}
    assert EVERY_ROUND in FAILS_BY_DEFAULT
    assert "suspect" not in FAILS_BY_DEFAULT
    assert parse_fail_on(",".join(sorted(FAILS_BY_DEFAULT))) == FAILS_BY_DEFAULT


@pytest.mark.parametrize("text, word", [("slow", "slow"), ("", ""), ("regressed,", ""), ("unchanged", "unchanged"),
                                        ("all,regressed", "all")])  # fmt: skip
def test_a_word_that_is_no_failing_verdict_is_refused(text, word):
    with pytest.raises(
        ValueError, match=rf"^'{word}' is not a verdict that can fail a test: expected invalid, .*or all$"
    ):
        parse_fail_on(text)


@pytest.mark.parametrize("lost", ["step_time", "block_time"])
def test_a_baseline_that_lost_a_time_is_a_missing_one(lost):
    whole = {"step_time": timed(100.0, 101.0, 99.0), "block_time": timed(100.0, 101.0, 99.0), "ops": counted(3, 3, 3)}
    base = record({name: series for name, series in whole.items() if name != lost})
    judgement = judged(record(whole), base, (), UNPAIRED)
    assert judgement.verdict == "missing"
    assert judgement.reason.startswith(
        f"{lost} is missing in the baseline, which is incomplete: restore the baseline from git"
    )
    assert verdicts(judgement)["ops"] == "unchanged"
    assert "missing" in FAILS_BY_DEFAULT


def test_a_call_that_the_baseline_lost_is_missing():
    forward = Call("forward", {"step_time": timed(5.0), "block_time": timed(5.0)}, (), (5,))
    unnamed = Call("", {"step_time": timed(100.0)}, (), (5,))
    judgement = judged(record(calls=(unnamed, forward)), record({"step_time": timed(100.0)}), (), UNPAIRED)
    assert judgement.verdict == "missing"
    assert judgement.reason.startswith("forward.step_time is missing in the baseline")


def test_a_metric_of_a_later_version_or_of_another_machine_is_new():
    """Neither what this version learned to measure, nor what the recording machine could not, fails a baseline."""
    later = {**SERIES, "peak_memory": counted(5, 5, 5, unit="B"), "energy": timed(1.0, 1.0, 1.0)}
    judgement = judged(record(later), BASE, (), UNPAIRED)
    assert {name: verdicts(judgement)[name] for name in ("peak_memory", "energy")} == {
        "peak_memory": "new",
        "energy": "new",
    }
    assert judgement.verdict not in FAILS_BY_DEFAULT


def test_a_limit_that_the_baseline_has_nothing_for_is_said():
    limits = Limits.parse({"tokens": "5%", "copies": 0}).over(BUILT_IN)
    more = {**SAME.calls[0].series, "tokens": timed(3.0), "copies": counted(2), "allocations": counted(7)}
    judgement = judged(record({**more, "peak_memory": counted(5, unit="B")}), BASE, (), limits)
    found = {metric.name: metric for metric in judgement.metrics}
    assert (found["copies"].verdict, str(found["copies"].limit)) == ("changed", "0")
    assert (
        found["copies"].reason
        == "is not in the baseline, so its limit (0) applies only after an update of the baseline"
    )
    assert (found["tokens"].verdict, str(found["tokens"].limit)) == ("changed", "5%")
    assert {found[name].verdict for name in ("allocations", "peak_memory")} == {"new"}, "nobody asked for these"
    assert judgement.verdict == "changed"
    assert "changed" in REWRITTEN, "so that --perf-update records what is missing"


def test_a_time_that_is_not_judged_may_be_new():
    limits = Limits.parse({"block_time": "off", "step_time": "3%"})
    both = {"step_time": timed(100.0, 101.0, 99.0), "block_time": timed(100.0, 101.0, 99.0)}
    judgement = judged(record(both), record({"step_time": timed(100.0, 101.0, 99.0)}), (), limits)
    assert verdicts(judgement)["block_time"] == "new"


@pytest.mark.parametrize("limits, names", [
    (Limits.parse({"step_time": "3%", "block_time": "off"}), ("step_time",)),
    (Limits.parse({"ops": 0}), ()),
    (Limits.parse({}, {"block_time": "1ms"}), ("block_time",)),
    (Limits.parse({"step_time": "3%"}, {"block_time": "1ms"}), ("step_time", "block_time")),
])  # fmt: skip
def test_the_times_that_are_left_to_be_judged(limits, names):
    both = record({"step_time": timed(100.0), "block_time": timed(100.0), "ops": counted(10)})
    found = standing(both, both, (), limits)
    assert open_times(found, limits) == names
    assert verdicts(found) == {"step_time": None, "block_time": None, "ops": "unchanged"}
    # Without a baseline there are budgets alone.
    alone = standing(both, None, (), limits)
    assert open_times(alone, limits) == tuple(name for name in names if limits.budget_for(name))


def suspect(*, every):
    metric = MetricVerdict(
        "step_time", "timed", "ns", "lower", 1.0, 2.0, verdict="suspect", evidence="paired", in_every_round=every
    )
    return Judgement("t", "suspect", "", (metric,))


def test_a_suspect_in_every_round_fails_unless_that_is_turned_off():
    assert suspect(every=True).fails(FAILS_BY_DEFAULT)
    assert not suspect(every=False).fails(FAILS_BY_DEFAULT)
    assert not suspect(every=True).fails(FAILS_BY_DEFAULT - {EVERY_ROUND})
    assert suspect(every=False).fails(parse_fail_on("suspect"))


COUNTED = MetricVerdict("ops", "counted", "1", "lower", 412, 419, verdict="changed", reason="412 -> 419 (+7)")


def test_changed_counts_fail_where_that_is_asked_for_whatever_the_verdict():
    time = MetricVerdict("step_time", "timed", "ns", "lower", 1.0, 0.6, verdict="improved", evidence="paired")
    both = Judgement("t", "improved", "", (time, COUNTED))
    assert both.counts_changed
    assert not both.fails(FAILS_BY_DEFAULT)
    assert both.fails(parse_fail_on("changed"))
    assert not Judgement("t", "improved", "", (time,)).fails(parse_fail_on("changed"))


def test_a_time_that_is_gone_is_no_fact_beside_the_others():
    """It had a limit, and nothing says any more whether it is kept."""
    stored = record({"step_time": timed(100.0, 101.0, 99.0), "mine": timed(5.0, 5.0, 5.0)})
    now = record({"step_time": timed(100.0)})
    judgement = judged(now, stored, (), Limits.parse({"mine": "3%"}).over(UNPAIRED))
    assert (judgement.verdict, judgement.reason) == (
        "changed",
        "mine is in the baseline, but not in the current measurement",
    )


def test_a_utilization_that_the_baseline_lacks_is_only_shown():
    found = standing(record({**SERIES, "roofline": timed(40.0, unit="%")}), BASE, (), BUILT_IN)
    (shown,) = [metric for metric in found.metrics if metric.name == "roofline"]
    assert (shown.verdict, shown.new) == (None, 40.0)
    limits = BUILT_IN.over(Limits.parse({"roofline": "2pp"}))
    found = standing(record({**SERIES, "roofline": timed(40.0, unit="%", better="higher")}), BASE, (), limits)
    (held,) = [metric for metric in found.metrics if metric.name == "roofline"]
    assert (held.verdict, str(held.limit)) == ("changed", "2pp")


def test_a_utilization_with_a_limit_and_without_a_figure_is_inconclusive():
    limits = BUILT_IN.over(Limits.parse({"roofline": "2pp"}, {"flops_utilization": "40%"}))
    found = standing(SAME, BASE, (), limits)
    unknown = {metric.name: (metric.verdict, str(metric.limit)) for metric in found.metrics if metric.new is None}
    assert unknown == {"roofline": ("inconclusive", "2pp"), "flops_utilization": ("inconclusive", ">= 40%")}
    assert found.verdict == "inconclusive"
    # A limit for all tests is for those that have a figure.
    for_all = Limits(dict([parse_limit_option("roofline:2pp")])).over(BUILT_IN)
    found = standing(SAME, BASE, (), for_all)
    assert [metric.name for metric in found.metrics if metric.new is None] == []
    assert found.verdict != "inconclusive"


def growing(size, **series):
    """A record of a call that keeps so many bytes a step; none for 0, as it is measured."""
    kept = {"growth": counted(size, unit="B")} if size else {}
    return record({**SERIES, **series, **kept})


@pytest.mark.parametrize(
    ("before", "now", "limits", "verdict"),
    [
        (0, 0, {}, None),
        (0, 4, {}, "regressed"),
        (4, 4, {}, "unchanged"),
        # What grew before is known: it is shown, and fails only where somebody set a limit.
        (4, 4000, {}, "changed"),
        (4000, 4, {}, "changed"),
        (4, 0, {}, "changed"),
        (0, 4, {"growth": "off"}, "changed"),
        (0, 4, {"growth": "8B"}, "unchanged"),
        (4, 12, {"growth": "8B"}, "unchanged"),
        (4, 13, {"growth": "8B"}, "regressed"),
        (4, 4000, {"growth": 0}, "regressed"),
        (4000, 4, {"growth": 0}, "changed"),
    ],
)
def test_memory_that_grows(before, now, limits, verdict):
    found = standing(growing(now), growing(before), (), Limits.parse({"step_time": "3%", **limits}))
    metrics = {metric.name: metric for metric in found.metrics}
    assert (metrics["growth"].verdict if "growth" in metrics else None) == verdict
    assert found.growth == ({"": now} if now else {})


def test_memory_that_grows_in_a_first_recording_is_told():
    found = standing(growing(4), None, (), BUILT_IN)
    assert found.verdict == "missing"
    assert found.growth == {"": 4}


def test_each_call_grows_by_itself():
    def two(first, second):
        calls = [growing(size).calls[0] for size in (first, second)]
        return record(calls=tuple(replace(call, name=name) for call, name in zip(calls, "ab", strict=True)))

    found = standing(two(0, 8), two(0, 8), (), BUILT_IN)
    assert found.growth == {"b": 8}
    assert "a.growth" not in {metric.name for metric in found.metrics}
    found = standing(two(8, 8), two(0, 8), (), BUILT_IN)
    verdicts = {metric.name: metric.verdict for metric in found.metrics}
    assert (verdicts["a.growth"], verdicts["b.growth"]) == ("regressed", "unchanged")
