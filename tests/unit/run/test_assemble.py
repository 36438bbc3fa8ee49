"""Answers of several workers become one record; the expected figures are worked out by hand."""

import math
from dataclasses import replace

import pytest

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.machine.state import Load, Surroundings
from pytest_perfdl.machine.utilization import OperatorWork
from pytest_perfdl.measure.commands import Compiled, Settled, SideResult, _joined
from pytest_perfdl.model.record import Finding, Key, MeasurementPlan, ProfiledRow
from pytest_perfdl.run.assemble import (
    Repeat,
    UserValue,
    absent_figures,
    assemble,
    contended,
    exemplars,
    rank_exemplars,
    sharing_first,
    side_mixes,
    side_values,
)
from unit.measure.answers import COUNTED, info, named, profiled, result, timed, without


def record(*repeats):
    return assembled(*repeats)


def assembled(*repeats, machine=None):
    made = [repeat if isinstance(repeat, Repeat) else Repeat((repeat,)) for repeat in repeats]
    plan = MeasurementPlan(warmup=15, steps=40)
    return assemble("test_it.py::test_step", "hash", plan, made, date="2026-01-01", commit="abc", machine=machine)


def values(record, name):
    return record.metrics()[name].values


def codes(record):
    return [(finding.level, finding.code) for finding in record.integrity]


def test_the_times_of_a_repeat():
    made = record(result(40, 10, 30, 20, 50, timed=timed(40, 10, 30, 20, 50, cpu_ns=100)))

    # Type 7 quantiles of 10 20 30 40 50; the mean of all steps; processor time per step.
    assert values(made, "step_time") == (20,)
    assert values(made, "step_p50") == (30,)
    assert values(made, "step_p95") == (48,)
    assert values(made, "block_time") == (30,)
    assert values(made, "cpu_time") == (20,)
    assert made.metrics()["step_time"].kind == "timed"


def test_each_repeat_is_one_value():
    made = record(result(10, 10), result(20, 20), result(30, 30))

    assert values(made, "step_time") == (10, 20, 30)
    assert made.calls[0].profiled_ns == (100, 100, 100)
    assert (made.repeats, made.occasions[0].commit) == (3, "abc")


def test_steps_of_a_period_are_taken_together():
    period = info(period=3)
    made = record(result(info=period, timed=timed(10, 10, 40, 10, 10, 70)))

    assert values(made, "step_p50") == (25,)  # cycles of 20 and 30 a step


def test_processor_time_means_nothing_with_more_threads():
    several = info(key=replace(info().key, parts={"threads": 2}))

    assert "cpu_time" not in record(result(info=several)).metrics()


def test_a_loop_over_data_has_no_step_time():
    made = record(result(info=info(kind="iterable"), timed=timed(10, 30, wait_ns=(4, 8))))

    assert "step_time" not in made.metrics()
    assert values(made, "data_wait") == (6,)
    assert values(made, "step_p25") == (15,)


PRODUCT = OperatorWork("aten::mm", "[[64, 64], [64, 64]]", "float32", 2, 120, 8000, 400)
MACHINE = Machine(flops_per_s={"float32": 1e11, "bfloat16": 4e11}, bandwidths=((256, 1e10),), cache_bytes=1, event_ns=2)


def test_figures_that_are_absent_are_said_with_their_reason():
    def said(answer, machine):
        return [each.message for each in absent_figures(Repeat((answer,)), machine)]

    answer = result(info=info(name="fwd"), profiled=profiled(work=(PRODUCT,)))
    (without,) = said(answer, None)
    names, _, why = without.partition(": ")
    assert (
        names == "fwd.flops_utilization, fwd.bandwidth_utilization, fwd.roofline, fwd.host_overhead cannot be computed"
    )
    assert why == "peak rates of this machine are unknown: run perfdl constants to measure peak rates"
    cached = said(answer, replace(MACHINE, cache_bytes=10**6))
    assert cached[0] == (
        "fwd.bandwidth_utilization cannot be computed: 100 % of the bytes belong to operators whose data fits "
        "into the cache"
    )
    assert not any("roofline" in each for each in cached)


def test_mfu_is_of_the_flops_that_the_author_states():
    # 1,000 FLOPs in 100 ns are 10 Gflop/s of 100.
    stated = result(info=info(model_flops=1000.0), profiled=profiled(work=(PRODUCT,)))
    assert assembled(stated, machine=MACHINE).metrics()["mfu"].values == pytest.approx((10.0,))
    assert "mfu" not in record(stated).metrics()
    assert "mfu" not in assembled(result(profiled=profiled(work=(PRODUCT,))), machine=MACHINE).metrics()
    head = replace(stated, profiled=profiled(work=(replace(PRODUCT, dtype="bfloat16"),)))
    assert side_values([head], (), MACHINE, {"": {"float32": 1.0}})["mfu"] == pytest.approx(10.0), "of the base's type"


def test_utilization_is_of_the_timed_step_and_the_profiled_operators():
    # Two profiled steps with one product each: 4,000 FLOPs and 200 bytes, in timed steps of 100 ns.
    answer = result(profiled=profiled(work=(PRODUCT,)))
    found = assembled(answer, machine=MACHINE).metrics()
    assert found["achieved_flops"].values == (4000 / 100e-9,)
    assert found["flops_utilization"].values == pytest.approx((40.0,))
    assert found["bandwidth_utilization"].values == pytest.approx((20.0,))
    # The least time of both products is 80 ns of the 120 that they took.
    assert found["roofline"].values == pytest.approx((100 * 80 / 120,))
    assert (found["roofline"].unit, found["roofline"].better) == ("%", "higher")
    assert found["cpu_utilization"].values == (100 * 40 / 400,)


def test_what_needs_limits_of_the_machine_is_absent_without():
    found = assembled(result(profiled=profiled(work=(PRODUCT,)))).metrics()
    assert {"achieved_flops", "cpu_utilization"} <= found.keys()
    assert not {"flops_utilization", "bandwidth_utilization", "roofline", "host_overhead"} & found.keys()


def test_host_overhead_is_the_gaps_less_what_profiling_adds():
    gaps = (ProfiledRow("idle", "python and host", 0, 50), ProfiledRow("idle", "input", 0, 10))
    seen = replace(profiled(steps=(110, 110)), rows=gaps)
    found = assembled(result(profiled=seen), machine=MACHINE).metrics()
    # 30 ns a step outside of operators, of which five events take 2 ns each: 20 of a timed step of 100.
    assert found["host_overhead"].values == (20.0,)
    assert found["host_overhead"].better == "lower"
    distorted = replace(seen, step_ns=(116, 116))
    assert "host_overhead" not in assembled(result(profiled=distorted), machine=MACHINE).metrics()


def test_a_side_is_held_against_the_element_types_of_the_base():
    base, head = (
        SideResult(info(), result().settled, timed(100, 100), result().compiled, profiled(work=(each,)))
        for each in (replace(PRODUCT, dtype="bfloat16"), PRODUCT)
    )
    mixes = side_mixes([base])
    assert mixes == {"": {"bfloat16": 1.0}}
    assert side_values([base], (), MACHINE, mixes)["flops_utilization"] == pytest.approx(10.0)
    assert side_values([head], (), MACHINE, mixes)["flops_utilization"] == pytest.approx(10.0)
    assert side_values([head], (), MACHINE)["flops_utilization"] == pytest.approx(40.0)


def test_throughput_follows_from_the_mean():
    made = record(result(info=info(items=8), timed=timed(1000, 3000)))
    series = made.metrics()["throughput"]

    assert (series.values, series.better, series.unit) == ((8 * 1e9 / 2000,), "higher", "items/s")


BUSY = {"delay_ns": (0, 0, 0, 60), "load": Load(1.0, 0.5, 0.0)}


def test_what_others_took_is_taken_off_where_they_took_it():
    made = record(result(timed=timed(100, 101, 102, 160, **BUSY)))

    assert values(made, "step_p50") == (100,)  # of 100 100 101 102, rounded to even
    assert values(made, "step_time") == (100,)
    assert values(made, "block_time") == ((463 - 60) / 4,)
    assert codes(made) == [("note", "contended")]
    assert "13% of the measurement" in made.integrity[0].message


@pytest.mark.parametrize(
    "changes",
    [{"load": Load(1.0, 0.05, 0.0)}, {"load": Load(1.0, -0.01, 0.0)}, {"delay_ns": (0, 0, 0, 20)}],
    ids=["idle", "ticks", "little"],
)
def test_nothing_is_taken_off_where_others_were_idle_or_took_little(changes):
    made = record(result(timed=timed(100, 100, 100, 160, **{**BUSY, **changes})))

    assert values(made, "block_time") == (115,)
    assert codes(made) == []


WAITING = (400, 400, 400, 400)
"""Half of these four steps is waiting."""


def waiting(load):
    return record(result(timed=timed(*WAITING, delay_ns=(200,) * 4, load=load)))


def test_waiting_for_the_steps_own_helpers_is_its_own_time():
    made = waiting(Load(1.0, 0.0, 0.6))
    assert values(made, "step_time") == values(made, "block_time") == (400,)
    assert codes(made) == []


def test_no_more_is_taken_off_than_others_used():
    # Of the half of the time that the step waited, other processes used a fifth and a helper as much.
    made = waiting(Load(1.0, 0.2, 0.3))
    assert values(made, "block_time") == (400 * (1 - 0.2),)
    assert values(made, "step_time") == (400 - 80,)
    # Plenty of other work on other processors does not make the helper's share others' either.
    made = waiting(Load(1.0, 4.0, 4.1))
    assert values(made, "block_time") == (400 * (1 - 0.25),)


@pytest.mark.parametrize("load", [None, Load(0.1, 0.1, 0.0)], ids=["no counters", "too short"])
def test_nothing_is_taken_off_where_nobody_knows_whose_it_was(load):
    made = waiting(load)
    assert values(made, "step_time") == values(made, "block_time") == (400,)
    assert codes(made) == [("note", "waiting")]
    assert "during 50% of the measurement" in made.integrity[0].message
    assert contended(Repeat((result(timed=timed(*WAITING, delay_ns=(200,) * 4, load=load)),)))


def test_the_turns_of_a_pair_are_taken_together():
    # One turn alone is too short; together they tell, and a helper is nobody else.
    turns = [timed(*WAITING, delay_ns=(200,) * 4, load=Load(0.1, 0.0, 0.07)) for _ in range(8)]
    side = SideResult(info(), result().settled, _joined(turns), result().compiled)
    assert side_values([side])["step_time"] == 400
    others = [replace(turn, load=Load(0.1, 0.1, 0.0)) for turn in turns]
    assert side_values([replace(side, timed=_joined(others))])["step_time"] == 200


def test_a_contended_repeat():
    assert contended(Repeat((result(), result(timed=timed(100, 101, 102, 160, **BUSY)))))
    assert not contended(Repeat((result(),)))


def test_counts_are_means_per_step():
    made = record(result(profiled=profiled(counts={"ops": (5, 7)})))

    assert values(made, "ops") == (6,)
    assert values(made, "flops") == (12,)
    assert made.metrics()["ops"].kind == "counted"
    assert made.calls[0].op_counts == (5, 7)
    assert not {"kernels", "launches", "h2d_bytes", "kernel_time", "recompiles"} & made.metrics().keys()


def test_a_device_adds_its_figures():
    on_device = profiled(
        counts={"ops": (5, 5), "kernels": (3, 3), "launches": (4, 4), "h2d_bytes": (8, 8)}, device_busy_ns=(80, 60)
    )
    made = record(result(profiled=on_device))

    assert values(made, "kernels") == (3,)
    assert values(made, "launches") == (4,)
    assert values(made, "kernel_time") == (70,)
    assert values(made, "h2d_bytes") == (8,)


def test_a_count_that_a_repeat_does_not_know_is_left_out():
    unknown = without(COUNTED, "peak_memory")

    assert "peak_memory" not in record(result(), result(counted=unknown)).metrics()


def test_compiling_is_told_where_anything_was_compiled():
    compiled = Compiled(used=True, compile_ns=5000, recompiles=1, graph_breaks=2, cold_ns=5000)
    made = record(result(compiled=compiled))

    assert values(made, "compile_time") == (5000,)
    assert values(made, "recompiles") == (1,)
    assert values(made, "graph_breaks") == (2,)


def test_the_time_of_compiling_is_that_with_empty_caches():
    cold = Compiled(used=True, compile_ns=5000, recompiles=0, graph_breaks=0, cold_ns=5000)
    warm = replace(cold, compile_ns=70, cold_ns=None)
    first, later = Repeat((result(compiled=cold),)), Repeat((result(compiled=warm),))

    assert "compile_time" not in record(later).metrics()
    assert values(record(first, sharing_first(first, later)), "compile_time") == (5000, 5000)
    # One that found them empty too, such as where nothing is cached, has its own.
    again = Repeat((result(compiled=replace(warm, cold_ns=70)),))
    assert values(record(first, sharing_first(first, again)), "compile_time") == (5000, 70)
    assert "compile_time" not in side_values([SideResult(info(), later.calls[0].settled, timed(1, 1), warm)])


def test_flops_are_those_of_the_first_repeat():
    first, later = Repeat((result(),)), Repeat((result(counted=without(COUNTED, "flops")),))

    assert sharing_first(first, later).calls[0].counted.counts["flops"] == 12
    assert sharing_first(first, later).calls[0].counted.counts["static_memory"] == 32
    other = Repeat((named("other", later.calls[0]),))
    assert sharing_first(first, other) == other


def test_metrics_of_ones_own():
    def repeat(*values):
        return Repeat((result(),), tuple(UserValue("", name, value, "nat", "lower") for name, value in values))

    made = record(repeat(("loss", 2.0), ("only_here", 1.0)), repeat(("loss", 3.0)))

    assert values(made, "loss") == (2, 3)
    assert made.metrics()["loss"].unit == "nat"
    assert "only_here" not in made.metrics()


def test_rows_are_joined_by_name():
    first = result(profiled=profiled(("aten::mm", 4, 60), ("aten::add", 2, 20)))
    second = result(profiled=profiled(("aten::mm", 4, 80)))
    rows = {row.name: row for row in record(first, second).calls[0].rows}

    assert (rows["aten::mm"].count, rows["aten::mm"].ns) == (2, (30, 40))
    assert (rows["aten::add"].count, rows["aten::add"].ns) == (0.5, (10, 0))


def test_calls_are_kept_apart_by_name():
    forward, backward = named("forward", result(10, 10)), named("backward", result(30, 30))
    made = record(Repeat((forward, backward), (UserValue("backward", "norm", 1.0, "1", "lower"),)))

    assert values(made, "forward.step_time") == (10,)
    assert values(made, "backward.step_time") == (30,)
    assert "backward.norm" in made.metrics()
    assert "forward.norm" not in made.metrics()


def test_repeats_that_make_other_calls_are_no_repeats():
    made = record(named("forward", result()), named("backward", result()))

    assert codes(made) == [("invalid", "calls-differ")]
    assert made.repeats == 1


@pytest.mark.parametrize(
    "part, code, words",
    [
        ({"timed": timed(1, 1, tracer="coverage")}, ("invalid", "tracer"), "coverage is active"),
        ({"settled": Settled(90, settled=False, spread=-0.2)}, ("note", "unsettled"), "by 20% between blocks of steps"),
        ({"settled": Settled(1, settled=False, spread=math.inf)}, ("note", "unsettled"), "1 warm-up step cannot show"),
        (
            {"timed": timed(1, 1, compiles=("step 2: f (k == 3)",))},
            ("note", "recompiled"),
            "inside timed steps, which",
        ),
        ({"timed": timed(1, 1, cpu_ns=100, system_ns=40)}, ("note", "system-time"), "40% of CPU time"),
        ({"profiled": profiled(findings=(Finding("invalid", "lost", "gone"),))}, ("invalid", "lost"), "gone"),
    ],
)
def test_what_a_measurement_says_of_itself(part, code, words):
    made = record(result(**part))

    assert codes(made) == [code]
    assert words in made.integrity[0].message


MS = 1_000_000


def passes(own, traced, counted=(), *, operators=100, devices=0, **rest):
    """A result whose passes took so many milliseconds a step."""
    parts = {
        "timed": timed(*(ns * MS for ns in own), **rest),
        "profiled": profiled(
            steps=tuple(ns * MS for ns in traced),
            counts={"ops": (operators,) * len(traced)},
        ),
        "counted": replace(COUNTED, step_ns=tuple(ns * MS for ns in counted)),
    }
    return result(info=info(key=Key("gpu", {"threads": 1, "accelerators": devices})), **parts)


@pytest.mark.parametrize(
    "own, traced, counted, words",
    [
        # 5 * 2 + 10 + 100 * 0.2 = 40
        ((2, 2, 9), (41, 41, 1), (), "a timed step takes 2.000 ms, but a profiled step 41.00 ms"),
        ((2, 2, 9), (40, 40, 90), (), ""),
        # 5 * 10 + 10 = 60
        ((61, 61, 1), (10, 10, 90), (), "a timed step takes 61.00 ms, but a profiled step 10.00 ms"),
        ((60, 60, 90), (10, 10, 1), (), ""),
        # A collection in the step that objects frozen before the timed steps make free.
        ((2, 2, 2), (9, 9, 9), (131, 131, 1), "a timed step takes 2.000 ms, but a counted step 131.0 ms"),
        ((2, 2, 2), (9, 9, 9), (1, 131, 9), ""),
    ],
)
def test_passes_whose_times_tracing_does_not_explain(own, traced, counted, words):
    made = record(passes(own, traced, counted))
    assert codes(made) == ([("note", "passes-differ")] if words else [])
    assert all(words in finding.message for finding in made.integrity)


@pytest.mark.parametrize(
    "why, results",
    [
        ("one of two processes", [passes((1,), (100,)), passes((1,), (9,))]),
        ("a thousand operators", [passes((1,), (100,), operators=1000)]),
        ("the host runs ahead of a device", [passes((500,), (500,), (1,), devices=1)]),
        ("waits for data", [replace(passes((500,), (1,), wait_ns=(0,)), info=info(kind="iterable"))]),
        (
            "several threads",
            [replace(passes((500,), (1,), load=Load(1.0, 0.6, 0.0)), info=info(key=Key("2t", {"threads": 2})))],
        ),
        ("waited for a CPU", [passes((500,), (1,), delay_ns=(490 * MS,))]),
        ("ranks", [replace(passes((500,), (1,)), profiled=profiled(steps=(1,), ranks=(profiled(),)))]),
    ],
)
def test_passes_that_differ_for_a_known_reason(why, results):
    assert ("note", "passes-differ") not in codes(record(*results)), why


def test_a_share_of_waiting_is_at_most_the_whole():
    """Between two steps a thread may wait for longer than the steps take."""
    made = record(result(timed=timed(MS, MS, delay_ns=(40 * MS, 40 * MS))))
    (said,) = [finding.message for finding in made.integrity if finding.code == "waiting"]
    assert said.startswith("the step waited for a CPU during 100% of the measurement; ")


def test_a_finding_is_told_once_and_with_its_call():
    traced = named("forward", result(timed=timed(1, 1, tracer="coverage")))
    made = record(traced, traced)

    assert [finding.message for finding in made.integrity] == [
        "forward: coverage is active in the measured process and slows down Python"
    ]


def test_repeats_whose_steps_run_other_operators():
    assert codes(record(result(), result(profiled=profiled(signatures=("a", "b"))))) == [("note", "steps-differ")]
    assert codes(record(result(), result(profiled=profiled(signatures=("a",))))) == []


@pytest.mark.parametrize("faults, mode", [(0, "none"), (40, "few"), (4000, "many")])
def test_the_mode_of_the_allocator(faults, mode):
    assert record(result(timed=timed(1, 1, minor_faults=faults))).modes == {"page_faults": (mode,)}


def test_the_reference_load_is_kept_for_each_repeat():
    def repeat(*runs):
        return Repeat((result(timed=timed(1, 1, reference_before=runs[:1], reference_after=runs[1:])),))

    made = record(repeat(100, 104), repeat(200, 200))
    assert made.occasions[0].reference_ns == made.reference_ns == (101, 200)
    assert record(result(), result()).reference_ns == (None, None)


def test_what_the_machine_did_is_told_once_with_its_call():
    disturbed = named("forward", result(timed=timed(1, 1, surroundings=Surroundings(swapped_pages=1))))
    found = record(disturbed, named("forward", result()), disturbed).integrity

    assert [(each.level, each.code) for each in found] == [("note", "swapping")]
    assert found[0].message.startswith("forward: ")


def test_the_exemplar_is_of_the_repeat_with_the_median_step():
    def repeat(path, *steps):
        return Repeat((result(profiled=profiled(steps=steps, exemplar=path)),))

    assert exemplars([repeat("slow", 90, 90), repeat("middle", 50, 50), repeat("fast", 10, 10)]) == {"": "middle"}
    assert exemplars([repeat("slow", 90, 90), repeat("fast", 10, 10)]) == {"": "fast"}
    assert exemplars([repeat(None, 1, 1)]) == {}


def test_the_exemplars_of_ranks_are_of_the_same_repeat(tmp_path):
    def path(name):
        (tmp_path / name).touch()
        return str(tmp_path / name)

    def repeat(time, *paths, call=""):
        ranks = tuple(profiled(steps=(time,), exemplar=each) for each in paths)
        return Repeat((named(call, result(profiled=replace(ranks[0], ranks=ranks))),))

    slow, middle = [repeat(time, path(f"{name}0"), path(f"{name}1")) for time, name in ((90, "slow"), (50, "middle"))]
    fast = repeat(10, path("fast0"), path("fast1"))
    assert exemplars([slow, middle, fast]) == {"": path("middle0")}
    assert rank_exemplars([slow, middle, fast]) == {"": (path("middle0"), path("middle1"))}
    # One rank, one without a trace, one with a trace on another machine, and one process without ranks.
    assert rank_exemplars([repeat(1, path("one"))]) == {}
    assert rank_exemplars([repeat(1, path("one"), None)]) == {}
    assert rank_exemplars([repeat(1, path("one"), str(tmp_path / "elsewhere"))]) == {}
    assert rank_exemplars([Repeat((result(profiled=profiled(exemplar=path("one"))),))]) == {}


def test_a_side_has_every_metric_that_is_judged_with_statistics():
    compiled = replace(result().compiled, used=True, cold_ns=7)
    busy = replace(result().profiled, device_busy_ns=(30, 50))
    turns = replace(result().timed, findings=())
    side = SideResult(info(items=2), result().settled, turns, compiled, busy)
    found = side_values([side], [UserValue("", "loss", -0.5, "nat", "lower")])
    assert (found["kernel_time"], found["compile_time"], found["loss"]) == (40, 7, -0.5)
    assert found["throughput"] == pytest.approx(2e9 / found["block_time"])
    whole = record(replace(result(), info=info(items=2), compiled=compiled, profiled=busy))
    # And the counts of its profiled steps, which tell whether processes of the same code ran the same operators.
    counts = {name: series.values[0] for name, series in whole.metrics().items() if name in ("ops", "h2d_bytes")}
    assert counts
    assert {name: found.pop(name) for name in counts} == counts
    assert {name for name, series in whole.metrics().items() if series.kind == "timed"} == {*found} - {"loss"}


def test_a_process_whose_profile_is_incomplete_has_times_and_nothing_of_the_profile():
    lost = Finding("note", "kernels-lost", "two profiles are incomplete")
    without_profile = profiled(steps=(), counts={}, signatures=(), findings=(lost,))
    made = record(result(100, 100, 100, 100), result(90, 90, 90, 90, profiled=without_profile))
    (call,) = made.calls
    assert call.series["step_time"].values == (100, 90)
    assert "ops" not in call.series
    assert (call.rows, call.profiled_ns) == ((), (100, 0))
    assert lost in made.integrity
    assert ("note", "steps-differ") not in codes(made)
