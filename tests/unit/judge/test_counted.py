"""Counted metrics: exact within their scope, and only there."""

import pytest
from making import CONTEXT, counted, record

from pytest_perfdl.judge.untimed import open_times, standing
from pytest_perfdl.model.limits import BUILT_IN, Limits

MIB = 2**20


def judge(base, new, limit=None, name="ops", unit="1", better="lower", context=None):
    limits = Limits.parse({} if limit is None else {name: limit})
    stored = record({name: counted(*base, unit=unit, better=better)})
    fresh = record({name: counted(*new, unit=unit, better=better)}, context={**CONTEXT, **(context or {})})
    judgement = standing(fresh, stored, (), limits)
    return judgement, judgement.metrics[0]


def test_equal_counts_are_unchanged_with_nothing_to_estimate():
    judgement, metric = judge((1699,), (1699,))
    assert judgement.verdict == metric.verdict == "unchanged"
    assert (metric.effect, metric.ci95, metric.excluded) == (0, None, None)
    assert judgement.reason == "ops 1699, same as the baseline"


@pytest.mark.parametrize("new, change", [(1700, "1699 -> 1700 (+1)"), (1698, "1699 -> 1698 (-1)")])
def test_one_more_or_less_is_changed(new, change):
    judgement, metric = judge((1699,), (new,))
    assert metric.verdict == judgement.verdict == "changed"
    assert metric.reason == change
    assert metric.effect == pytest.approx(new / 1699 - 1)
    assert open_times(judgement, Limits()) == ()


@pytest.mark.parametrize(
    "base, new, limit, better, verdict, times_over",
    [
        (100, 100, 0, "lower", "unchanged", None),
        (100, 101, 0, "lower", "regressed", None),
        (100, 99, 0, "lower", "changed", None),
        (100, 99, 0, "higher", "regressed", None),
        (100, 101, 0, "higher", "changed", None),
        (100, 110, "10%", "lower", "unchanged", None),
        (100, 129, "29%", "lower", "unchanged", None),  # 0.29 * 100 is a little below 29
        (100, 111, "10%", "lower", "regressed", 1.1),
        (100, 120, "10%", "lower", "regressed", 2.0),
        (100, 90, "10%", "lower", "unchanged", None),
        (100, 89, "10%", "lower", "changed", None),
        (100, 89, "10%", "higher", "regressed", 1.1),
        (100, 103, "1%+3", "lower", "unchanged", None),
        (100, 104, "1%+3", "lower", "regressed", 4 / 3),
        (0, 1, 0, "lower", "regressed", None),
        (0, 0, 0, "lower", "unchanged", None),
        (0, 1, "10%", "lower", "regressed", None),
        (0, 1, "off", "lower", "changed", None),
    ],
)
def test_a_limit_decides_in_the_bad_direction(base, new, limit, better, verdict, times_over):
    _, metric = judge((base,), (new,), limit, better=better)
    assert metric.verdict == verdict
    assert metric.times_over == (None if times_over is None else pytest.approx(times_over))
    assert metric.effect == (pytest.approx(new / base - 1) if base else 0 if new == 0 else None)


@pytest.mark.parametrize("added, verdict", [(0, "unchanged"), (20 * MIB, "unchanged"), (21 * MIB, "regressed")])
def test_peak_memory_has_a_built_in_limit_of_two_percent(added, verdict):
    base = 1000 * MIB
    stored, fresh = (record({"peak_memory": counted(value, unit="B")}) for value in (base, base + added))
    judgement = standing(fresh, stored, (), BUILT_IN)
    assert judgement.verdict == verdict


def test_peak_memory_of_a_small_test_may_grow_by_a_mebibyte():
    stored = record({"peak_memory": counted(MIB, unit="B")})
    for value, verdict in ((2 * MIB, "unchanged"), (2 * MIB + 1, "regressed")):
        assert standing(record({"peak_memory": counted(value, unit="B")}), stored, (), BUILT_IN).verdict == verdict


@pytest.mark.parametrize("name, context, exact", [
    ("ops", {"torch": "2.14.0"}, False),
    ("ops", {"flags": "tf32"}, False),
    ("kernels", {"device": "cuda"}, False),
    ("ops", {"threads": 4}, True),
    ("flops", {"cpu_capability": "AVX512"}, True),
    ("recompiles", {"threads": 4}, True),
    ("ops", {"driver": "580.1"}, True),
    ("peak_memory", {"threads": 4}, False),
    ("alloc_bytes", {"cpu_capability": "AVX512"}, False),
    ("allocations", {"torch": "2.14.0"}, False),
    ("peak_memory", {"driver": "580.1"}, True),
    ("of_my_own", {"threads": 4}, False),
    ("ops", {"torch": None}, False),
])  # fmt: skip
def test_out_of_its_scope_a_difference_is_changed_and_never_regressed(name, context, exact):
    _, metric = judge((100,), (200,), 0, name=name, context=context)
    if exact:
        assert metric.verdict == "regressed"
    else:
        ((key, value),) = context.items()
        assert metric.verdict == "changed"
        shown = "none" if value is None else value
        assert metric.reason == f"100 -> 200 (+100), but the context differs ({key} {CONTEXT[key]} -> {shown})"


def test_out_of_its_scope_an_equal_count_is_still_unchanged():
    assert judge((100,), (100,), 0, context={"torch": "3.0"})[1].verdict == "unchanged"


@pytest.mark.parametrize("base, new, side", [
    ((1, 2), (1, 1), "the baseline"),
    ((1, 1), (1, 2), "the current measurement"),
    ((1, 2), (1, 2), "both sides"),
])  # fmt: skip
def test_a_count_that_differs_between_repeats_is_not_judged(base, new, side):
    judgement, metric = judge(base, new)
    assert metric.verdict is None
    assert metric.effect is None
    assert metric.reason == f"the value varies between the processes of {side}, so it is not compared"
    assert judgement.verdict == "unchanged"


@pytest.mark.parametrize("new, better, verdict", [
    ((100, 104), "lower", "unchanged"),
    ((100, 106), "lower", "inconclusive"),
    ((105, 106), "lower", "inconclusive"),
    ((106, 107), "lower", "regressed"),
    ((96, 99), "higher", "unchanged"),
    ((90, 99), "higher", "inconclusive"),
    ((94, 93), "higher", "regressed"),
])  # fmt: skip
def test_an_unsteady_count_with_a_limit_passes_or_fails_only_if_every_repeat_does(new, better, verdict):
    assert judge((100, 100), new, "5%", better=better)[1].verdict == verdict


def test_the_limit_of_an_unsteady_count_is_met_as_exactly_as_that_of_a_steady_one():
    # 0.29 * 100 is a little below 29.
    assert judge((100, 101), (129, 100), "29%")[1].verdict == "unchanged"


def test_a_peak_that_varies_by_a_page_hides_none_that_tripled():
    judgement, metric = judge((100 * MIB, 100 * MIB + 4096, 100 * MIB), (300 * MIB,), "2%+1MiB", "peak_memory", "B")
    assert judgement.verdict == metric.verdict == "regressed"
    assert metric.reason == (
        "100.0 MiB -> 300.0 MiB (+200.0 MiB), limit 2% or 1 MiB, whichever is larger: the closest values, since they "
        "vary between processes"
    )
    assert metric.times_over == pytest.approx(200 / 2, rel=1e-2)


def test_an_unsteady_count_out_of_its_scope_does_not_fail():
    assert judge((100, 101), (200,), 0, context={"torch": "3.0"})[1].verdict == "inconclusive"


@pytest.mark.parametrize("more", [1, 3])
def test_whole_numbers_are_compared_exactly_however_large(more):
    metric = judge((4_000_000_000,), (4_000_000_000 + more,), 0, "flops", "flop")[1]
    assert metric.verdict == "regressed"
    assert metric.effect == pytest.approx(more / 4_000_000_000)


def test_means_over_a_period_compare_as_they_are_stored():
    assert judge((0.333333333333,), (1 / 3,))[1].verdict == "unchanged"
    assert judge((4e9 + 0.333333333333,), (4e9 + 1 / 3,))[1].verdict == "unchanged"
    assert judge((1.0,), (0.1 * 3 + 0.7 + 1e-13,))[1].verdict == "unchanged"
    assert judge((0.333333333333,), (1 / 3 + 1e-8,))[1].verdict == "changed"
