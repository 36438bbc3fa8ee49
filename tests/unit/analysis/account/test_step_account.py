"""What a step's time is made of, worked out by hand."""

import random
from collections import Counter

import pytest

from pytest_perfdl.analysis import profile_tables
from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.analysis.account.signatures import step_signatures
from pytest_perfdl.analysis.ranks import activity
from pytest_perfdl.model.record import ProfiledRow
from pytest_perfdl.trace import read
from unit.trace.chrome import DATA, MAIN, each_recording, kernel, launch, step, trace, x

FRAME = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _annotation(name, ts, dur, **more):
    return x(name, ts, dur, "user_annotation", **more)


def _rows(tables, kind):
    return {row.name: (row.count, row.ns) for row in tables.rows if row.kind == kind}


def test_a_cpu_step_by_hand():
    tables = profile_tables(
        trace(
            step(1, 0, 100),
            _annotation(FETCH, 2, 20),
            x("aten::stack", 5, 10),
            _annotation("forward", 30, 40),
            x("aten::linear", 32, 20),
            x("aten::addmm", 35, 10),
            x("aten::relu", 60, 5),
            _annotation("Optimizer.step#SGD.step", 80, 15),
            x("aten::add_", 82, 3),
            x("aten::relu", 101, 5),
        )
    )
    assert not tables.on_device
    assert tables.steps == 1
    assert tables.step_ns == (100_000,)
    assert tables.rows == (
        ProfiledRow("operator", "aten::addmm", 1, 10_000),
        ProfiledRow("operator", "aten::linear", 1, 10_000),
        ProfiledRow("operator", "aten::relu", 1, 5_000),
        ProfiledRow("operator", "aten::add_", 1, 3_000),
        ProfiledRow("operator", "aten::stack", 1, 0),
        ProfiledRow("idle", "Python and host", 0, 52_000),
        ProfiledRow("idle", "input", 0, 20_000),
    )
    assert tables.accounts == (
        {
            "forward": 25_000,
            "backward": 0,
            "optimizer": 3_000,
            "copies": 0,
            "input": 20_000,
            "communication": 0,
            "Python and host": 52_000,
        },
    )
    assert tables.counts["ops"] == (5,)
    assert tables.op_names == (
        {"aten::stack": 1, "aten::linear": 1, "aten::addmm": 1, "aten::relu": 1, "aten::add_": 1},
    )
    assert (
        tables.counts["kernels"]
        == tables.counts["launches"]
        == tables.device_busy_ns
        == tables.counts["h2d_bytes"]
        == (0,)
    )


def test_data_wait_is_input_and_reaches_into_the_operator_it_interrupts():
    tables = profile_tables(trace(step(1, 0, 100), x("outer", 10, 50), _annotation("perfdl.data_wait", 20, 10)))
    assert _rows(tables, "operator") == {"outer": (1, 40_000)}
    assert _rows(tables, "idle") == {"Python and host": (0, 50_000), "input": (0, 10_000)}


def test_input_of_another_thread_is_not_the_steps():
    tables = profile_tables(trace(step(1, 0, 100), _annotation(FETCH, 10, 50, tid=7), x("op", 0, 10)))
    assert _rows(tables, "idle") == {"Python and host": (0, 90_000)}


def test_collectives_of_any_thread_explain_gaps_but_never_operators():
    tables = profile_tables(
        trace(
            step(1, 0, 100), x("op", 0, 30), _annotation("gloo:all_reduce", 20, 40, tid=7), _annotation("other", 70, 9)
        )
    )
    assert tables.account["forward"] == 30_000
    assert tables.account["communication"] == 30_000
    assert _rows(tables, "idle") == {"communication": (0, 30_000), "Python and host": (0, 40_000)}


def test_a_hook_that_waits_for_a_collective_inside_an_operator_communicates():
    """DDP waits in a hook of the backward pass: a frame of the autograd engine is open, and no operator computes."""
    made = trace(
        step(1, 0, 100),
        x(FRAME, 10, 70),
        x("torch::autograd::AccumulateGrad", 11, 9),
        x("aten::add", 12, 6),
        x("c10d::allreduce_", 20, 4),
        x("aten::empty", 26, 4),
        _annotation("gloo:all_reduce", 22, 48, tid=7),
        _annotation("gloo:recv", 75, 21, tid=8),
        x("aten::mm", 85, 5),
    )
    tables = profile_tables(made)
    # From 30 on it waits for what ends at 70, and from 90 on for what ends at 96; from 22 to 26 nothing ends.
    waited, frame = 40_000 + 6_000, 70_000 - 9_000 - 4_000 - 4_000 - 40_000
    assert tables.account["communication"] == waited
    assert tables.account["backward"] == 70_000 - 40_000
    assert tables.account["forward"] == 5_000
    assert _rows(tables, "operator") == {
        FRAME: (1, frame),
        "aten::add": (1, 6_000),
        "aten::mm": (1, 5_000),
        "aten::empty": (1, 4_000),
        "c10d::allreduce_": (1, 4_000),
        "torch::autograd::AccumulateGrad": (1, 3_000),
    }
    parts = step_parts(made)
    of_name = {part.name: int(ns.sum()) for part, ns in zip(parts.parts, parts.ns, strict=True)}
    assert (of_name["communication"], of_name[FRAME]) == (waited, frame)
    assert activity(made).steps.exposed_communication_ns.tolist() == [waited]


def test_with_a_device_a_collectives_annotation_takes_no_operators_time():
    tables = profile_tables(
        trace(
            step(1, 0, 100),
            x(FRAME, 0, 50),
            launch(0, 5, 1),
            kernel("gemm", 10, 40, 1),
            _annotation("gloo:all_reduce", 10, 30, tid=7),
        )
    )
    assert _rows(tables, "operator") == {FRAME: (1, 50_000)}


def test_an_operators_class_is_that_of_the_innermost_work():
    tables = profile_tables(
        trace(
            step(1, 0, 100),
            step(2, 100, 50),
            x("aten::to", 0, 20),
            x("aten::copy_", 5, 10),
            x("autograd::engine::evaluate_function: MmBackward0", 30, 20),
            x("MmBackward0", 31, 10),
            x("aten::copy_", 45, 3),
            _annotation("Optimizer.step#Adam.step", 60, 30),
            x("aten::add_", 65, 10),
            x("aten::copy_", 80, 5),
            x("aten::relu", 105, 5),
        )
    )
    first, second = tables.accounts
    assert first == {
        "forward": 10_000,  # aten::to around its copy
        "backward": 17_000,
        "optimizer": 10_000,
        "copies": 18_000,
        "input": 0,
        "communication": 0,
        "Python and host": 45_000,
    }
    assert (second["forward"], second["Python and host"]) == (5_000, 45_000)


def test_what_a_copy_calls_is_in_its_own_class():
    made = trace(step(1, 0, 100), x("aten::copy_", 0, 30), x("aten::empty", 5, 10))
    assert {name: ns for name, ns in profile_tables(made).account.items() if ns} == {
        "forward": 10_000,
        "copies": 20_000,
        "Python and host": 70_000,
    }


def test_operators_across_a_steps_edges_count_where_they_start_and_weigh_where_they_run():
    tables = profile_tables(trace(step(1, 0, 10), step(2, 15, 10), x("before", -5, 8), x("across", 8, 12)))
    assert _rows(tables, "operator") == {"across": (1, 7_000), "before": (0, 3_000)}
    assert tables.counts["ops"] == (1, 0)
    assert tables.account["Python and host"] == 10_000


def test_operators_on_other_threads_are_neither_added_nor_lost_sight_of():
    tables = profile_tables(trace(step(1, 0, 100), x("op", 0, 30), x("worker op", 40, 20, tid=9)))
    assert _rows(tables, "operator") == {"op": (1, 30_000)}
    assert tables.counts["ops"] == (1,)


def test_backward_on_a_thread_of_its_own_is_counted_and_on_a_cpu_not_added():
    engine = "autograd::engine::evaluate_function: MulBackward0"
    tables = profile_tables(trace(step(1, 0, 100), x("op", 0, 30), x(engine, 40, 20, tid=9), x("mul", 45, 5, tid=9)))
    assert _rows(tables, "operator") == {"op": (1, 30_000), engine: (1, 0), "mul": (1, 0)}
    assert tables.counts["ops"] == (3,)
    assert sum(row.ns for row in tables.rows) == 100_000


@pytest.mark.parametrize("name", ["CudnnConvolutionBackward", "ReluBackward1", "torch::autograd::AccumulateGrad"])
def test_engine_threads_of_2021_are_known_by_their_operators(name):
    assert profile_tables(trace(step(1, 0, 100), x(name, 40, 20, tid=9))).counts["ops"] == (1,)


def test_operators_that_overlap_are_counted_once_and_reported():
    tables = profile_tables(trace(step(1, 0, 100), x("a", 0, 50), x("b", 40, 30)))
    assert _rows(tables, "operator") == {"a": (1, 40_000), "b": (1, 30_000)}
    assert sum(row.ns for row in tables.rows) == 100_000


def test_setup_and_what_runs_in_it_belong_to_no_step():
    tables = profile_tables(
        trace(
            step(1, 0, 100),
            _annotation("perfdl.setup", 10, 30),
            x("aten::randn", 15, 10),
            x("aten::mm", 35, 20),
            x("aten::add", 60, 10),
        )
    )
    assert tables.step_ns == (70_000,)
    assert _rows(tables, "operator") == {"aten::mm": (0, 15_000), "aten::add": (1, 10_000)}
    assert tables.account["Python and host"] == 45_000
    assert tables.counts["ops"] == (1,)


def test_rows_and_steps_agree_to_the_nanosecond_on_random_steps():
    for seed in range(30):
        draw = random.Random(seed)
        events = [step(number, number * 100, draw.randrange(50, 101)) for number in range(4)]
        names = ["aten::a", "aten::copy_", FETCH, "perfdl.setup", "gloo:x", "c10d::x", "range", "XBackward0"]
        for _ in range(60):
            name = draw.choice(names)
            category = "cpu_op" if name.startswith(("aten", "c10d", "X")) else "user_annotation"
            start = draw.randrange(-20_000, 420_000) / 1000
            events.append(x(name, start, draw.randrange(40_000) / 1000, category, tid=draw.choice([MAIN, MAIN, 7])))
        made = trace(*events)
        tables, parts = profile_tables(made), step_parts(made)
        assert sum(row.ns for row in tables.rows) == sum(tables.step_ns) == sum(tables.account.values())
        assert min(row.ns for row in tables.rows) >= 0
        # Parts are in the classes that the account adds up.
        totals = Counter()
        for name, ns in zip(parts.classes, parts.ns.sum(axis=1).tolist(), strict=True):
            totals[name] += ns
        assert +totals == +Counter(tables.account)


def _signature(*operators, **more):
    return step_signatures(trace(step(1, 0, 100), *operators, **more))


def test_signatures_tell_names_shapes_and_order_apart_and_nothing_else():
    one = _signature(x("a", 1, 1, **{"Input Dims": [[2, 3]], "Ev Idx": 1}), x("b", 3, 1))
    assert one == _signature(x("a", 2, 1, **{"Input Dims": [[2, 3]], "Ev Idx": 9}), x("b", 50, 1))
    others = {
        _signature(x("a", 1, 1, **{"Input Dims": [[2, 4]]}), x("b", 3, 1)),
        _signature(x("b", 1, 1), x("a", 3, 1, **{"Input Dims": [[2, 3]]})),
        _signature(x("a", 1, 1, **{"Input Dims": [[2, 3]]}), x("b", 3, 1), x("b", 5, 1)),
        _signature(x("a", 1, 1, **{"Input Dims": [[2, 3]]})),
        _signature(),
    }
    assert len(others | {one}) == 6


def test_signatures_do_not_depend_on_which_engine_thread_came_first():
    def at(a, b, tid=8):
        return _signature(x("ABackward0", a, 1, tid=7), x("BBackward0", b, 1, tid=tid))

    assert at(1, 3) == at(3, 1)
    assert at(1, 3, tid=7) != at(3, 1, tid=7)


def test_signatures_leave_out_what_the_loader_ran_but_counts_do_not():
    without = trace(step(1, 0, 100), x("a", 50, 1))
    with_loader = trace(step(1, 0, 100), _annotation(FETCH, 2, 20), x("b", 5, 1), x("a", 50, 1))
    assert step_signatures(without) == step_signatures(with_loader)
    assert [profile_tables(each).counts["ops"] for each in (without, with_loader)] == [(1,), (2,)]


@each_recording
def test_recordings_close_their_account(path):
    made = read(path)
    tables = profile_tables(made)
    assert sum(row.ns for row in tables.rows) == sum(tables.step_ns) == sum(tables.account.values())
    assert len(set(step_signatures(made))) == 1
    assert len(set(tables.counts["ops"])) == 1
    # The recorded ranks take their batches from memory; the other recordings have a loader, and one process.
    ranks = path.name.startswith("gloo_rank")
    assert (tables.account["input"] == 0) is ranks
    assert (tables.account["communication"] > 0) is ranks
    assert min(tables.account[name] for name in ("forward", "backward", "Python and host")) > 0


def test_recorded_operators_by_hand():
    tables = profile_tables(read(DATA / "train.json.gz"))
    assert tables.steps == 3
    for counts in tables.op_names:
        assert counts["aten::addmm"] == 2, "two linear layers"
        assert counts["autograd::engine::evaluate_function: AddmmBackward0"] == 2
        assert "aten::ones" not in counts, "it ran in the setup"
        assert not any(name.startswith(("ProfilerStep", "forward", "Optimizer")) for name in counts)


def test_a_trace_without_events():
    tables = profile_tables(trace())
    assert tables.steps == 0
    assert tables.rows == tables.step_ns == tables.counts["ops"] == ()
    assert sum(tables.account.values()) == 0
