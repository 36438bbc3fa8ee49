import math

import pytest

from pytest_perfdl.model.limits import (
    BUILT_IN,
    Budget,
    Limit,
    Limits,
    limit_words,
    parse_budget,
    parse_limit,
    parse_limit_option,
)


@pytest.mark.parametrize(
    "metric, text, base, unit, allowed",
    [
        ("step_time", "3%", 200, "ns", 6),
        ("step_time", "0.5%", 200, "ns", 1),
        ("step_time", " 5% + 20us ", 1_000_000, "ns", 50_000),  # 5 % is the larger
        ("step_time", "5%+20us", 100_000, "ns", 20_000),  # 20 us is the larger
        ("step_time", "20us+5%", 100_000, "ns", 20_000),
        ("step_time", "1e-3ms", 5, "ns", 1_000),
        ("peak_memory", "2%+1MiB", 2**30, "B", 2**30 * 0.02),
        ("peak_memory", "2%+1MiB", 2**20, "B", 2**20),
        ("launches", "0", 700, "1", 0),
        ("launches", 0, 700, "1", 0),
        ("launches", 12, 700, "1", 12),
        ("launches", "+3", 700, "1", 3),
        ("flops", "1Gflop", 5, "flop", 1e9),
        ("step_time", "0", 100, "ns", 0),  # zero needs no unit
        ("step_time", "off", 100, "ns", math.inf),
        ("gpu_busy", "-2pp", 90, "%", 2),
        ("gpu_busy", "-2pp", 0.9, "1", 0.02),
        ("loss_gap", "3%", -200, "1", 6),  # a share of a negative value is still an amount
        ("tokens", "50%+100", 10, "tok/s", 100),
    ],
)
def test_a_limit_allows_the_larger_of_its_parts(metric, text, base, unit, allowed):
    assert parse_limit(metric, text).allowed(base, unit) == pytest.approx(allowed, rel=1e-12)


@pytest.mark.parametrize(
    "metric, text, says",
    [
        ("step_time", "", "'' is not a valid limit: write it as 3%"),
        ("step_time", "fast", "'fast' is not a valid limit"),
        (
            "fwd.cpu_utilization",
            "5%",
            "limit of fwd.cpu_utilization: this metric cannot be limited, because neither higher nor lower",
        ),
        ("step_time", "3", "'3' is not a quantity in ns"),  # a time needs a unit
        ("step_time", "3MiB", "'3MiB' is not a quantity in ns"),
        ("step_time", "3%+4%", "two percentages or two absolute parts"),
        ("step_time", "3us+4us", "two percentages or two absolute parts"),
        ("step_time", "3%+4us+5us", "is not a valid limit"),
        ("step_time", "1e999%", "is not finite"),
        ("step_time", "1e999us", "not a finite quantity"),
        ("step_time", "nan%", "is not a valid limit"),
        ("step_time", "-3%", "'-3%' limits a decrease, but lower values are better"),
        ("forward.step_time", "3", "limit of forward.step_time: '3' is not a quantity"),
        ("peak_memory", "2pp", "'2pp' is in percentage points, but the metric's unit is B"),
        ("ops", True, "'True' is not a valid limit"),
    ],
)
def test_a_bad_limit_is_refused_in_one_line_that_names_the_metric(metric, text, says):
    with pytest.raises(ValueError) as error:
        parse_limit(metric, text)
    assert says in str(error.value)
    assert str(error.value).startswith(f"limit of {metric}: ")
    assert "\n" not in str(error.value)


def test_the_unit_of_a_metric_of_the_users_own_is_seen_when_it_is_measured():
    limit = parse_limit("latency", "20us")
    assert limit.allowed(0, "ns") == 20_000
    with pytest.raises(ValueError, match="'20us' is not a quantity in B"):
        limit.check("B", "lower")


@pytest.mark.parametrize("text, better, fits", [("-2pp", "higher", True), ("-2pp", "lower", False),
                                                ("+2pp", "lower", True), ("+2pp", "higher", False),
                                                ("2pp", "lower", True), ("2pp", "higher", True)])  # fmt: skip
def test_a_sign_has_to_be_the_direction_that_is_worse(text, better, fits):
    limit = parse_limit("gpu_busy", text)
    if fits:
        limit.check("%", better)
    else:
        with pytest.raises(ValueError, match=f"but {better} values are better"):
            limit.check("%", better)


@pytest.mark.parametrize(
    "text, words",
    [
        ("3%", "3%"),
        ("+3", "+3"),
        ("20 us + 5 %", "20 us or 5%, whichever is larger"),
        ("1e+3us", "1e+3us"),
        ("5%+1e+3us", "5% or 1e+3 us, whichever is larger"),
        ("5%+1e3us", "5% or 1e3 us, whichever is larger"),
        ("+2%+12", "2% or 12, whichever is larger"),
        ("at least 10% faster", "at least 10% faster"),
    ],
)
def test_the_parts_of_a_limit_in_words(text, words):
    assert limit_words(text) == words
    assert limit_words(text, short=True) == words.removesuffix(", whichever is larger")


@pytest.mark.parametrize("text, metric, limit", [
    ("step_time:3%", "step_time", Limit("3%", 0.03)),
    (" forward.step_time : 5%+20us ", "forward.step_time", Limit("5%+20us", 0.05, "20us")),
    ("a:b.ops:0", "a:b.ops", Limit("0", None, "0")),
    ("peak_memory:off", "peak_memory", Limit("off")),
])  # fmt: skip
def test_a_limit_option_is_a_metric_and_a_limit(text, metric, limit):
    assert parse_limit_option(text) == (metric, limit)


@pytest.mark.parametrize("text", ["step_time", "step_time:", ":3%", "", "step_time=3%"])
def test_a_limit_option_without_both_is_refused(text):
    with pytest.raises(ValueError, match=r": expected METRIC:SPEC, such as step_time:3%$"):
        parse_limit_option(text)


@pytest.mark.parametrize(
    "metric, value, unit, bound",
    [
        ("step_time", "45ms", "ns", 45e6),
        ("peak_memory", "2GiB", "B", 2**31),
        ("ops", 1700, "1", 1700),
        ("recompiles", 0, "1", 0),
        ("step_time", 0, "ns", 0),
        ("gpu_busy", "85%", "%", 85),
        ("tokens", 1e4, "tok/s", 10_000),
        ("roofline", ">= 40%", "%", 40),
        ("step_time", "<=45ms", "ns", 45e6),
        ("achieved_flops", ">=1.5Gflop/s", "flop/s", 1.5e9),
    ],
)
def test_a_budget_is_a_bound_in_the_base_unit(metric, value, unit, bound):
    assert parse_budget(metric, value).bound(unit) == bound


@pytest.mark.parametrize("value, says", [(45, "'45' is not a quantity in ns"), ("", "is not a quantity"),
                                         (True, "is not a quantity"), ("-3ms", "is negative"),
                                         ("2GiB", "is not a quantity in ns")])  # fmt: skip
def test_a_bad_budget_is_refused(value, says):
    with pytest.raises(ValueError, match=f"^budget of step_time: .*{says}"):
        parse_budget("step_time", value)


@pytest.mark.parametrize("metric, value, says", [
    ("roofline", "<=40%", "'<=40%' is an upper bound, but higher values are better"),
    ("cpu_utilization", ">=40%", "this metric cannot be limited, because neither higher nor lower values are better"),
    ("step_time", ">= 45ms", "'>=45ms' is a lower bound, but lower values are better"),
])  # fmt: skip
def test_a_budget_that_binds_the_wrong_way_is_refused(metric, value, says):
    with pytest.raises(ValueError, match=f"^budget of {metric}: {says}$"):
        parse_budget(metric, value)


@pytest.mark.parametrize("text, base, unit, allowed", [("2pp", 40.0, "%", 2.0), ("5%", 40.0, "%", 2.0)])
def test_a_utilization_may_lose_points_or_a_share(text, base, unit, allowed):
    assert parse_limit("roofline", text).allowed(base, unit) == allowed
    assert parse_limit("roofline", f"-{text}").allowed(base, unit) == allowed
    with pytest.raises(ValueError, match="limits an increase, but higher values are better"):
        parse_limit("roofline", f"+{text}")


def test_a_budget_says_which_way_it_binds():
    assert str(Budget("45ms").related("lower")) == "<= 45ms"
    assert str(Budget("45").related("higher")) == ">= 45"


def test_the_most_specific_name_wins():
    limits = Limits.parse({"step_time": "3%", "fwd.step_time": "5%"}, {"fwd.peak_memory": "1GiB"})
    assert limits.for_metric("step_time").text == "3%"
    assert limits.for_metric("fwd.step_time").text == "5%"
    assert limits.for_metric("bwd.step_time").text == "3%"
    assert limits.for_metric("fwd.block_time") is None
    assert limits.budget_for("fwd.peak_memory").text == "1GiB"
    assert limits.budget_for("peak_memory") is None


def test_off_means_no_limit_and_hides_the_wider_one():
    limits = Limits.parse({"step_time": "3%", "fwd.step_time": "off"}, {"ops": "off"})
    assert limits.for_metric("fwd.step_time") is None
    assert limits.for_metric("step_time").text == "3%"
    assert limits.budget_for("ops") is None


def test_sources_merge_marker_over_cli_over_ini_over_built_in():
    ini = Limits.parse({"step_time": "5%", "block_time": "5%", "ops": 0})
    cli = Limits.parse({"step_time": "4%", "block_time": "4%"})
    marker = Limits.parse({"step_time": "3%"}, {"step_time": "45ms"})
    merged = marker.over(cli).over(ini).over(BUILT_IN)
    assert {name: limit.text for name, limit in merged.limits.items()} == {
        "step_time": "3%",
        "block_time": "4%",
        "ops": "0",
        "peak_memory": "2%+1MiB",
        "per_kernel": "5%",
        "case_time": "5%",
        "group_time": "1%",
    }
    assert merged.budget_for("step_time").text == "45ms"


def test_a_flag_for_one_call_does_not_tighten_what_the_marker_says_of_all_calls():
    merged = Limits.parse({"step_time": "30%"}).over(Limits.parse({"fwd.step_time": "3%", "fwd.ops": 0}))
    assert merged.for_metric("fwd.step_time").text == "30%"
    assert merged.for_metric("fwd.ops").text == "0"


def test_a_marker_for_one_call_leaves_the_others_to_the_source_below():
    merged = Limits.parse({"fwd.step_time": "30%"}).over(Limits.parse({"step_time": "3%"}))
    assert merged.for_metric("fwd.step_time").text == "30%"
    assert merged.for_metric("bwd.step_time").text == "3%"


def test_names_that_nothing_measured_answers_to_are_told():
    limits = Limits.parse({"step_tim": "3%", "ops": 0, "fwd.ops": 0}, {"bwd.ops": 3})
    assert limits.unmatched(["step_time", "ops", "fwd.ops"]) == ("bwd.ops", "step_tim")
    assert limits.unmatched(["fwd.ops", "bwd.ops", "fwd.step_tim"]) == ()


def test_built_in_limits():
    assert {name: limit.text for name, limit in BUILT_IN.limits.items()} == {
        "step_time": "3%",
        "block_time": "3%",
        "peak_memory": "2%+1MiB",
        "per_kernel": "5%",
        "case_time": "5%",
        "group_time": "1%",
    }
    assert not BUILT_IN.budgets


def test_times_without_a_pair_have_wider_limits():
    given = Limits.parse(
        {
            "step_time": "3%",
            "forward.block_time": "5%+20us",
            "data_wait": "30%",
            "cpu_time": "10us",
            "compile_time": "2s",
            "queue_time": "2e+1us",
            "kernel_time": "off",
            "ops": "3%",
            "peak_memory": "2%+1MiB",
            "launches": 12,
            "tokens": "1%",
            "misses": "5",
            "dropped": 0,
        },
        {"step_time": "45ms"},
    )
    wider = given.unpaired()
    assert {name: limit.text for name, limit in wider.limits.items()} == {
        "step_time": "10%",
        "forward.block_time": "10%+20us",
        "data_wait": "30%",
        "cpu_time": "10%+10us",
        "compile_time": "10%+2s",
        "queue_time": "10%+2e+1us",
        "kernel_time": "off",
        "ops": "3%",
        "peak_memory": "2%+1MiB",
        "launches": "12",
        "tokens": "10%",
        "misses": "5",
        "dropped": "0",
    }
    assert wider.for_metric("queue_time").allowed(1_000_000, "ns") == 100_000
    assert wider.for_metric("forward.block_time").allowed(1_000_000, "ns") == 100_000
    assert wider.budgets == given.budgets
