"""Blame: the first cause named is the right one, and noise is not named."""

import random

import pytest
from making import record

from pytest_perfdl.judge.blame import blame
from pytest_perfdl.model.record import Call, Row

STEP = {
    "mm": (24, 6_000_000),
    "add": (48, 1_200_000),
    "mul": (30, 800_000),
    "gelu": (6, 700_000),
    "copy_": (9, 300_000),
}
IDLE = {"Python and host": 900_000, "input": 100_000}


def noisy(repeats, seed, spread=0.02, drift=1.0, change=None, idle=None):
    """A record of a 10 ms step whose rows vary between repeats; `change` maps a name to (count, ns) or to None."""
    rng = random.Random(seed)
    parts = {**STEP, **(change or {})}
    rows = [
        Row("operator", name, part[0], tuple(round(part[1] * drift * rng.gauss(1, spread)) for _ in range(repeats)))
        for name, part in parts.items()
        if part is not None
    ]
    rows += [
        Row("idle", name, 100 + rng.random(), tuple(round(ns * drift * rng.gauss(1, spread)) for _ in range(repeats)))
        for name, ns in {**IDLE, **(idle or {})}.items()
    ]
    rng.shuffle(rows)
    return record({}, rows=tuple(rows))


CHANGES = {
    "an operator is slower": ({"change": {"gelu": (6, 1_700_000)}}, "gelu", "changed"),
    "operators are added": ({"change": {"mul": (60, 1_600_000)}}, "mul", "changed"),
    "a new operator": ({"change": {"sort": (2, 900_000)}}, "sort", "new"),
    "an operator is gone": ({"change": {"add": None}}, "add", "gone"),
    "input is waited for": ({"idle": {"input": 2_000_000}}, "input", "changed"),
    "the host is slower": ({"idle": {"Python and host": 2_500_000}}, "Python and host", "changed"),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("repeats", [(10, 1), (10, 5), (1, 1), (3, 3)])
@pytest.mark.parametrize("drift", [0.97, 1.0, 1.03])
def test_the_first_cause_named_is_the_right_one(what, repeats, drift):
    change, name, status = CHANGES[what]
    for seed in range(10):
        causes = blame(noisy(repeats[1], seed, drift=drift, **change), noisy(repeats[0], seed + 100))
        assert (causes[0].name, causes[0].status) == (name, status)


def test_a_replaced_operator_is_one_gone_and_one_new():
    new = noisy(5, 1, change={"gelu": None, "erf": (6, 1_500_000)})
    first, second, *rest = blame(new, noisy(10, 2))
    assert [(first.name, first.status), (second.name, second.status)] == [("erf", "new"), ("gelu", "gone")]
    assert rest == []
    assert (first.base_ns, first.base_count, second.new_ns, second.new_count) == (0, 0, 0, 0)


@pytest.mark.parametrize("drift", [0.97, 1.0, 1.03])
@pytest.mark.parametrize("repeats", [(10, 5), (10, 1)])
def test_unchanged_code_is_rarely_blamed(repeats, drift):
    named = [blame(noisy(repeats[1], seed, drift=drift), noisy(repeats[0], seed + 1000)) for seed in range(100)]
    # Only mm, 60 % of the step, can move by enough; at 99 % confidence 1 of 100 is expected, 5 is four sigma away.
    assert sum(map(bool, named)) <= 5


def exact(**rows):
    return record({}, rows=tuple(Row("operator", name, count, tuple(ns)) for name, (count, *ns) in rows.items()))


def test_figures_are_means_and_shares_are_of_the_change_of_the_step():
    base = exact(mm=(2, 100, 102), add=(1, 99, 99))
    new = exact(mm=(2, 140, 142), add=(1, 110, 110))
    first, second = blame(new, base)
    assert (first.name, first.base_ns, first.new_ns, first.delta_ns) == ("mm", 101, 141, 40)
    assert (second.name, second.base_ns, second.new_ns, second.delta_ns) == ("add", 99, 110, 11)
    # The step went from 200 to 251: 40/51 and 11/51.
    assert first.share == pytest.approx(40 / 51)
    assert second.share == pytest.approx(11 / 51)


@pytest.mark.parametrize("gain, told", [(4, False), (5, True), (-4, False), (-5, True)])
def test_there_is_no_share_of_a_step_that_did_not_change(gain, told):
    base = exact(mm=(1, 500, 500), add=(1, 500, 500))
    new = exact(mm=(1, 600, 600), add=(1, 400 + gain, 400 + gain))
    shares = {cause.name: cause.share for cause in blame(new, base)}
    assert shares.keys() == {"mm", "add"}
    assert shares["mm"] == (pytest.approx(100 / gain) if told else None)


def test_there_is_no_share_of_a_step_that_may_have_gone_either_way():
    (cause,) = blame(exact(mm=(1, 600), add=(1, 500)), exact(mm=(1, 500), add=(1, 500)))
    assert (cause.name, cause.delta_ns, cause.share) == ("mm", 100, None)


def test_where_no_way_is_certain_the_timed_step_says_what_comes_first():
    base, new = exact(mm=(1, 500), add=(1, 500)), exact(mm=(1, 600), add=(1, 300))
    assert [cause.name for cause in blame(new, base)] == ["add", "mm"]
    assert [cause.name for cause in blame(new, base, leaning={"": 0.1})] == ["mm", "add"]


@pytest.mark.parametrize("repeats, least", [(1, 10), (2, 5), (3, 5)])
def test_how_much_of_the_step_a_change_has_to_be(repeats, least):
    # Of the longer step: a base of 990 or 995, where 10 or 5 more are named.
    base = exact(mm=(1, *(600 - least,) * repeats), add=(1, *(400,) * repeats))
    for change, named in ((least - 1, False), (least, True), (1 - least, False), (-least, True)):
        new = exact(mm=(1, *(600 - least,) * repeats), add=(1, *(400 + change,) * repeats))
        assert [cause.name for cause in blame(new, base)] == (["add"] if named else [])


def test_a_change_within_the_spread_is_not_named():
    # Welch by hand: both sides vary with s = 20 about 400, three repeats each, so the error is
    # sqrt(2 * 400 / 3) = 16.3 and the bound t(.995, 4) = 4.604 times that: 75.2.
    base = exact(mm=(1, 600, 600, 600), add=(1, 380, 400, 420))
    for shift, named in ((75, False), (76, True)):
        new = exact(mm=(1, 600, 600, 600), add=(1, 380 + shift, 400 + shift, 420 + shift))
        assert [cause.name for cause in blame(new, base)] == (["add"] if named else [])


def test_the_spread_of_the_baseline_bounds_what_one_fresh_repeat_can_name():
    # s = 20 from three repeats: t(.995, 2) = 9.925 times 20 * sqrt(1/3 + 1) is 229.2.
    base = exact(mm=(1, 600, 600, 600), add=(1, 380, 400, 420))
    for shift, named in ((229, []), (230, ["add"])):
        assert [cause.name for cause in blame(exact(mm=(1, 600), add=(1, 400 + shift)), base)] == named


def test_a_common_factor_is_the_machine_and_blames_nobody():
    base = exact(a=(1, 400), b=(1, 300), c=(1, 200), d=(1, 60), e=(1, 40))
    for factor, named in ((1.04, []), (0.96, []), (1.10, ["a", "b"])):
        new = exact(**{row.name: (1, round(row.ns[0] * factor)) for row in base.calls[0].rows})
        # At +10 % only 5 % may be drift; what is left of c, d and e is below 1 % of the step, or just at it.
        assert [cause.name for cause in blame(new, base)][:2] == named
        assert bool(blame(new, base)) == bool(named)


def test_few_rows_say_nothing_about_a_common_factor():
    base, new = exact(a=(1, 500), b=(1, 500)), exact(a=(1, 520), b=(1, 520))
    assert {cause.name for cause in blame(new, base)} == {"a", "b"}


def test_a_count_that_changed_is_named_however_little_time_it_takes():
    base = exact(mm=(1, 999_000), view=(10, 1_000), t=(3, 0))
    new = exact(mm=(1, 1_099_000), view=(12, 1_001), t=(4, 0))
    causes = blame(new, base)
    assert [(cause.name, cause.base_count, cause.new_count) for cause in causes] == [
        ("mm", 1, 1),
        ("view", 10, 12),
        ("t", 3, 4),
    ]


def test_counts_first_puts_what_was_recounted_before_what_took_longer():
    base = exact(mm=(1, 900), view=(10, 10), sort=(1, 50))
    new = exact(mm=(1, 990), view=(12, 10), sort=(2, 80))
    assert [cause.name for cause in blame(new, base)] == ["mm", "sort", "view"]
    assert [cause.name for cause in blame(new, base, counts_first=True)] == ["sort", "view", "mm"]


def test_the_number_of_idle_gaps_means_nothing():
    base = record({}, rows=(Row("operator", "mm", 1, (900,)), Row("idle", "Python and host", 10, (100,))))
    new = record({}, rows=(Row("operator", "mm", 1, (900,)), Row("idle", "Python and host", 99, (101,))))
    assert blame(new, base) == ()


def test_an_operator_and_a_kernel_of_one_name_are_two_rows():
    base = record({}, rows=(Row("operator", "gemm", 1, (500,)), Row("kernel", "gemm", 1, (500,))))
    new = record({}, rows=(Row("operator", "gemm", 1, (500,)), Row("kernel", "gemm", 1, (700,))))
    assert [(cause.kind, cause.name, cause.delta_ns) for cause in blame(new, base)] == [("kernel", "gemm", 200)]


def test_an_operator_more_on_a_device_is_named_and_costs_the_step_nothing():
    base = record({}, rows=(Row("operator", "view", 1, (500,)), Row("kernel", "gemm", 1, (500,))))
    new = record({}, rows=(Row("operator", "view", 2, (500,)), Row("kernel", "gemm", 1, (700,))))
    gemm, view = blame(new, base)
    assert (gemm.name, gemm.delta_ns) == ("gemm", 200)
    assert (view.name, view.base_count, view.new_count, view.delta_ns, view.share) == ("view", 1, 2, 0, None)
    assert blame(new, base, counts_first=True) == (view, gemm)


def test_calls_are_compared_with_their_namesakes():
    def of(**steps):
        return record(
            calls=tuple(Call(name, {}, (Row("operator", "mm", 1, (ns,) * 2),), (ns,) * 2) for name, ns in steps.items())
        )

    causes = blame(of(fwd=150, bwd=210, extra=5), of(bwd=200, fwd=100, gone=7))
    assert [(cause.call, cause.delta_ns, cause.share) for cause in causes] == [("fwd", 50, 1), ("bwd", 10, 1)]


def test_the_order_does_not_depend_on_that_of_the_rows():
    change = {"gelu": (6, 1_700_000), "mul": (60, 1_600_000)}
    base, new = noisy(5, 1), noisy(5, 2, change=change)
    call = new.calls[0]
    shuffled = record(calls=(Call("", call.series, call.rows[::-1], call.profiled_ns),))
    assert blame(shuffled, base) == blame(new, base)
