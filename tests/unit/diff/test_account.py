"""The account of a change closes, its intervals hold, and its causes are named and placed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import causes, diff, places, side_of_call, side_of_traces
from pytest_perfdl.diff.side import Side
from pytest_perfdl.model.record import Call, Row, Series
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, each_trace_file, kernel, launch, step, trace, x

STEP = {
    ("mm", "Net.attn"): (24, 6_000_000),
    ("mm", "Net.mlp"): (12, 4_000_000),
    ("add", "Net.mlp"): (48, 1_200_000),
    ("mul", "Net.attn"): (30, 800_000),
    ("gelu", "Net.mlp"): (6, 700_000),
    ("copy_", "Net.attn"): (9, 300_000),
}


def side(columns=10, seed=0, *, change=None, spread=0.02, drift=1.0, python=900_000, label="runs", timed=()):
    """A side of a 14 ms step; `change` maps (operator, module) to (count, ns) or to None."""
    rng = np.random.default_rng(seed)
    parts = {key: value for key, value in {**STEP, **(change or {})}.items() if value is not None}
    ns = np.array([value[1] for value in parts.values()], dtype=float)[:, None] * drift
    ns = np.vstack((ns * rng.normal(1, spread, (len(parts), columns)), python * rng.normal(1, spread, (1, columns))))
    count = np.array([[float(value[0])] * columns for value in parts.values()] + [[0.0] * columns])
    return Side(
        label,
        "run",
        (
            *(Part("operator", name, module=module, line=f"{module}.py(7): forward") for name, module in parts),
            Part("idle", "Python and host", line="train.py(1): step", function="logging.py(5): info"),
        ),
        (*["forward"] * len(parts), "Python and host"),
        ns.sum(axis=0),
        ns,
        ns * (count > 0),
        count,
        {"step_time": np.array(timed, dtype=float)} if timed else {},
    )


def named(found):
    return [(cause.name, cause.status) for cause in causes(found)]


def check(found):
    assert sum(change.delta_ns for change in found.changes) == found.delta_ns
    assert sum(line.delta_ns for line in found.account) == found.delta_ns
    assert sum(line.base_ns for line in found.account) == found.base_ns
    assert sum(line.new_ns for line in found.account) == found.new_ns
    assert found.residual_ns == 0
    for number, one in ((0, found.base), (1, found.new)):
        members = sorted(index for change in found.changes for index in (change.group.base, change.group.new)[number])
        assert members == list(range(len(one.parts)))
    for change in found.changes:
        effects = change.effects
        total = effects.count + effects.duration + effects.mix + effects.exposure
        assert total == pytest.approx(change.new.ns - change.base.ns, abs=1e-3)


@given(
    st.lists(st.floats(0, 1e7), min_size=7, max_size=7),
    st.lists(st.floats(0, 1e7), min_size=7, max_size=7),
    st.integers(1, 3),
)
def test_the_account_closes_to_the_nanosecond(base, new, columns):
    made = [
        side(columns, change={key: (1, ns) for key, ns in zip(STEP, values, strict=False)}, python=values[-1])
        for values in (base, new)
    ]
    check(diff(*made))


def test_a_side_against_itself():
    found = diff(side(), side())
    check(found)
    assert (found.delta_ns, found.drift.ns, found.coverage) == (0, 0, 1)
    assert {change.group.by for change in found.changes} == {"exact"}
    assert causes(found) == ()


CHANGES = {
    "slower": ({("gelu", "Net.mlp"): (6, 1_700_000)}, "gelu", "changed", "Net.mlp", {"duration"}),
    "more of it": ({("mul", "Net.attn"): (60, 1_600_000)}, "mul", "changed", "Net.attn", {"count"}),
    "new": ({("sort", "Net.mlp"): (2, 900_000)}, "sort", "new", "Net.mlp", {"count"}),
    "gone": ({("add", "Net.mlp"): None}, "add", "gone", "Net.mlp", {"count"}),
    "in two places": (
        {("mm", "Net.attn"): (24, 7_000_000), ("mm", "Net.mlp"): (12, 5_000_000)},
        "mm",
        "changed",
        "Net",
        {"duration"},
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("drift", [0.97, 1.0, 1.03])
def test_the_first_cause_is_the_right_one_and_so_is_its_place(what, drift):
    change, name, status, module, why = CHANGES[what]
    for seed in range(5):
        found = diff(side(seed=seed + 50), side(seed=seed, change=change, drift=drift))
        check(found)
        first = causes(found)[0]
        assert (first.name, first.status, first.module) == (name, status, module)
        assert first.certain or status in ("new", "gone")
        effects = {"count": first.effects.count, "duration": first.effects.duration, "mix": first.effects.mix}
        assert max(effects, key=lambda kind: abs(effects[kind])) in why


def test_what_goes_against_the_step_comes_last():
    change = {
        ("gelu", "Net.mlp"): (6, 1_700_000),
        ("add", "Net.mlp"): (48, 600_000),
        ("mul", "Net.attn"): (30, 1_100_000),
    }
    found = diff(side(), side(seed=1, change=change))
    assert [name for name, _ in named(found)] == ["gelu", "mul", "add"]
    assert [name for name, _ in named(diff(side(seed=1, change=change), side()))] == ["gelu", "mul", "add"]


def test_of_what_was_recounted_the_place_is_where_the_number_changed():
    """All of `mm` is slower by noise, but it is in the attention that there are more of them."""
    change = {("mm", "Net.attn"): (25, 6_250_000), ("mm", "Net.mlp"): (12, 4_600_000)}
    first = causes(diff(side(spread=0.001), side(seed=1, spread=0.001, change=change)))[0]
    assert (first.name, first.module) == ("mm", "Net.attn")


def test_pythons_time_is_called_by_its_function():
    first = causes(diff(side(), side(seed=1, python=2_500_000)))[0]
    assert (first.kind, first.name, first.line) == ("idle", "logging.py(5): info", "train.py(1): step")
    assert first.effects.duration == pytest.approx(1_600_000, rel=0.05)


def test_unchanged_sides_seldom_name_anything():
    """95 % of all diffs name nothing: their intervals hold together."""
    wrong = sum(bool(causes(diff(side(8, seed), side(8, 1000 + seed)))) for seed in range(200))
    assert wrong <= 20


@pytest.mark.parametrize("paired", [False, True], ids=["of other moments", "in turns"])
def test_a_common_factor_is_the_machines_unless_the_sides_took_turns(paired):
    found = diff(side(), side(seed=1, drift=1.04), paired=paired)
    assert found.drift.factor == pytest.approx(1.04, abs=0.01)
    assert found.drift.applied is not paired
    assert (causes(found) == ()) is not paired
    assert found.drift.ns == pytest.approx(0 if paired else 0.04 * 13_000_000, rel=0.2)


def test_a_large_common_factor_is_not_the_machines():
    found = diff(side(), side(seed=1, drift=1.5))
    assert (found.drift.applied, found.drift.ns) == (False, 0)
    assert found.drift.factor == pytest.approx(1.5, abs=0.02)
    assert {name for name, _ in named(found)} == {"mm", "add", "mul", "gelu", "copy_"}


def test_one_column_has_no_intervals_and_names_by_size():
    found = diff(side(1), side(1, change={("gelu", "Net.mlp"): (6, 1_700_000)}))
    assert (found.interval, found.detectable_ns, found.verdict()) == (None, None, "inconclusive")
    assert named(found)[0] == ("gelu", "changed")


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.2, "regressed"), (0.8, "improved"), (1.0, "unchanged"), (1.03, "inconclusive"), (0.97, "inconclusive")],
)
def test_the_verdict_on_the_step(factor, verdict):
    assert diff(side(), side(seed=1, drift=factor, python=900_000 * factor)).verdict() == verdict


def test_what_the_profiler_hides():
    found = diff(side(timed=[10e6]), side(timed=[11e6]))
    assert found.unprofiled_ns == pytest.approx(1e6)
    assert diff(side(), side(timed=[11e6])).unprofiled_ns is None


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.2, "regressed"), (0.8, "improved"), (1.0, "unchanged"), (1.03, "inconclusive")]
)
def test_the_step_of_two_records_is_the_one_without_the_profiler(factor, verdict):
    times = [10.0e6, 10.1e6, 9.9e6, 10.05e6, 9.95e6]
    found = diff(side(timed=times), side(timed=[factor * each for each in times]))
    assert found.delta_ns == 0
    assert found.verdict() == verdict
    assert found.timed.effect == pytest.approx(factor - 1)
    # Welch's t of the logarithms, which have the same spread on both sides: 8 degrees of freedom.
    half = 2.306 * np.log(times).std(ddof=1) * (2 / 5) ** 0.5
    assert found.timed.ci95 == pytest.approx((factor * np.exp(-half) - 1, factor * np.exp(half) - 1), abs=1e-5)


def test_of_one_process_each_nothing_is_told_of_the_timed_step():
    found = diff(side(timed=[10e6]), side(timed=[20e6]))
    assert (found.timed.ci95, found.verdict()) == (None, "inconclusive")


def test_modules_hold_what_is_inside_them():
    found = places(diff(side(), side(seed=1, change={("gelu", "Net.mlp"): (6, 3_700_000)})), "module")
    by_name = {place.name: place for place in found}
    assert set(by_name) == {"Net", "Net.attn", "Net.mlp", ""}
    assert by_name["Net"].base_ns == by_name["Net.attn"].base_ns + by_name["Net.mlp"].base_ns
    assert by_name["Net.mlp"].delta_ns == pytest.approx(3_000_000, rel=0.1)
    lines = places(diff(side(), side(seed=1, python=5e6)), "line")
    assert lines[0].name == "train.py(1): step"


def test_a_recorded_call_is_a_side():
    rows = (
        Row("operator", "aten::mm", 2.0, (60, 62)),
        Row("operator", "aten::copy_", 1.0, (10, 10)),
        Row("idle", "Python and host", 0, (30, 28)),
    )
    made = side_of_call(
        "base", Call("", {"block_time": Series("timed", "ns", "lower", (90.0, 94.0))}, rows, (100, 100))
    )
    assert made.classes == ("operators", "copies", "Python and host")
    assert (made.ns.sum(axis=0) == made.step_ns).all()
    assert ({name: list(times) for name, times in made.timed.items()}, made.columns, made.unit) == (
        {"block_time": [90.0, 94.0]},
        2,
        "run",
    )
    device = side_of_call("gpu", Call("", {}, (*rows, Row("kernel", "gemm", 2.0, (50, 52))), (100, 100)))
    assert [part.name for part in device.parts] == ["Python and host", "gemm", "overlapped"]
    damaged = {"step_time": Series("timed", "ns", "lower", (0.0, 94.0))}
    assert not side_of_call("base", Call("", damaged, rows, (100, 100))).timed
    assert (device.ns.sum(axis=0) == device.step_ns).all()
    check(diff(made, made))


def small(times, *, extra=()):
    return step_parts(
        trace(step(0, 0, 100), x("aten::mm", 5, 10), launch(6, 1, 1), kernel("gemm", 20, times, 1), *extra)
    )


def test_runs_are_columns_and_a_single_ones_steps_are():
    runs = side_of_traces("three", [small(30), small(40), small(50)])
    assert (runs.columns, runs.unit, runs.step_ns.tolist()) == (3, "run", [100_000] * 3)
    gemm = [part.name for part in runs.parts].index("gemm")
    assert runs.ns[gemm].tolist() == [30_000, 40_000, 50_000]
    one = side_of_traces("one", [small(30)])
    assert (one.columns, one.unit) == (1, "step")


def test_sides_that_are_none():
    with pytest.raises(ValueError, match="nothing has no step"):
        side_of_traces("nothing", [step_parts(trace())])
    host = step_parts(trace(step(0, 0, 10), x("aten::mm", 1, 2)))
    with pytest.raises(ValueError, match="some traces have device events and others have none"):
        side_of_traces("both", [small(30), host])


@each_trace_file
def test_a_public_trace_against_itself_is_all_exact(path):
    one = side_of_traces("one", [step_parts(read(path))])
    found = diff(one, one)
    check(found)
    assert {change.group.by for change in found.changes} == {"exact"}
    assert (found.delta_ns, causes(found)) == (0, ())


@pytest.mark.corpus
def test_data_loading_is_named_with_its_milliseconds():
    base, new = (
        side_of_traces(name, [step_parts(read(corpus_file(name)))])
        for name in ("resnet50_workers0", "resnet50_workers4")
    )
    found = diff(base, new)
    check(found)
    first = causes(found)[0]
    assert found.verdict() == "improved"
    assert first.name == "input"
    assert first.delta_ns / 1e6 == pytest.approx(1.183 - 58.73, abs=0.01)  # of 352.4 and 7.1 ms over six steps
    compute = next(line for line in found.account if line.name == "compute")
    assert abs(compute.delta_ns) < 0.01 * compute.base_ns


@pytest.mark.corpus
@pytest.mark.parametrize("exchanged", [False, True], ids=["there", "back"])
def test_one_model_on_devices_of_two_makers(exchanged):
    sides = [
        side_of_traces(name, [step_parts(read(corpus_file(name)))]) for name in ("h100_bert_small", "mi300_bert_small")
    ]
    found = diff(*sides[::-1] if exchanged else sides)
    check(found)
    assert found.coverage >= 0.95
