"""`perf.assert_whatif` after the measurement: what is said of a step's trace whose prediction is worked out by hand."""

from dataclasses import replace

import pytest
from making import record, timed

from pytest_perfdl.fixture.requests import WhatIfExpectation
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.record import Call, Key, MeasurementPlan
from pytest_perfdl.results.run import Exemplars, Result
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.advice import judged
from pytest_perfdl.trace import exemplar, read
from pytest_perfdl.whatif import Change, Context, Plan, Select, predict, simulate, task_graph
from pytest_perfdl.whatif.transform import TRANSFORMS
from pytest_perfdl.whatif.unprofiled import unprofiled
from unit.trace.chrome import kernel, launch, step, trace, x
from unit.whatif.training import STEP, device_training, host_step, host_training

GIGABYTE = Machine(memory_bytes_per_s=1e9)
WAITING = trace(
    step(0, 0, 1000),
    x("aten::mul", 0, 40),
    launch(10, 5, 1),
    kernel("first", 20, 30, 1),
    x("aten::add", 50, 40),
    launch(60, 5, 2),
    # 535 us after its launch, on a stream with nothing to do.
    kernel("second", 600, 100, 2),
    launch(110, 595, 50, "cudaStreamSynchronize"),
    x("aten::neg", 720, 200),
)


@pytest.fixture
def measured(tmp_path):
    """What became of a test whose step's trace is that of a step of `made`, and takes so long without the profiler."""

    def measured(made, step_us=None, *, call="", accelerator=None, period=1, limit=2**18):
        path = tmp_path / "step.trace.json.gz"
        path.write_bytes(exemplar(made, 0, limit=limit))
        if step_us is None:
            step_us = simulate(task_graph(read(path))).steps_ns.mean() / 1000
        new = record(
            calls=(Call(call, {"step_p50": timed(1e3 * step_us)}, (), (1,)),),
            plan=MeasurementPlan(warmup=1, steps=4, period=period),
            key=Key("key", {"cores": 2, "accelerator": accelerator}),
        )
        known = Judgement("t.py::test_step", "unchanged", "")
        return Result("t.py::test_step", "t.py", 1, known, False, new=new, exemplars=(Exemplars(call, None, path),))

    return measured


def asked(result, transform="fused_optimizer", bound="3%", machine=GIGABYTE, /, **parameters):
    (call,) = result.new.calls
    return judged(WhatIfExpectation(call.name, transform, parameters, bound, machine), result)


def renamed(old, new):
    """The training step with another name for an event."""
    return trace(*({**event, "name": event["name"].replace(old, new)} for event in host_step(0, 0)))


@pytest.mark.parametrize(
    ("bound", "verdict", "more"),
    [
        ("3%", "regressed", ""),
        ("4.5%", "regressed", ""),
        ("6%", "inconclusive", ": the prediction interval contains the expected bound"),
        ("7%", "unchanged", ""),
        ("90%", "unchanged", ""),
    ],
    ids=["far below", "below", "within, gain above", "within, gain below", "above"],
)
def test_the_bound_and_the_range(measured, bound, verdict, more):
    found = asked(measured(host_training()), "fused_optimizer", bound)
    # 180 us of update become 25 us of a call and 24.6 us of memory; that 16.4 us at best and 49.2 us at worst, and
    # half a percent of the predicted step on either side.
    gain = 180 - 25 - 24.576
    assert (found.name, found.kind, found.unit, found.base) == ("whatif fused_optimizer", "timed", "%", None)
    assert found.new == pytest.approx(100 * gain / STEP, abs=0.01)
    assert str(found.limit) == f"< {bound}"
    assert found.verdict == verdict
    assert found.reason == f"predicted gain 6.5% [4.8%, 7.4%] (prediction interval), expected < {bound}{more}"
    assert found.times_over == (pytest.approx(found.new / float(bound[:-1])) if verdict == "regressed" else None)


def test_what_would_lose_is_no_gain(measured, monkeypatch):
    monkeypatch.setitem(TRANSFORMS, "slower", lambda context: Change(Plan().scale(Select(), 2.0)))
    found = asked(measured(host_training()), "slower", "0%")
    assert found.verdict == "unchanged"
    assert found.new == pytest.approx(-100)


def test_the_profilers_time_is_taken_off(measured):
    result = measured(host_training(), 1500)
    graph = unprofiled(task_graph(read(result.exemplars[0].new)), 1.5e6)
    expected = predict(Context(graph, GIGABYTE), "fused_optimizer")
    found = asked(result)
    assert found.new == pytest.approx(100 * expected.gain)
    assert found.new != pytest.approx(asked(measured(host_training())).new, rel=0.01)
    assert found.verdict == "regressed", "that a third of the trace is the profiler's costs no trust"


def test_a_call_and_parameters_are_part_of_the_name(measured):
    result = measured(host_training(), call="train")
    found = asked(result, "remove_operator", "5%", None, name="aten::relu")
    assert found.name == "train.whatif remove_operator:name=aten::relu"
    # 2 x 40 us, and the Python behind each: the second is followed by none.
    assert found.new == pytest.approx(100 * 80 / STEP, abs=0.6)


def test_a_missing_constant_fails_nothing(measured):
    found = asked(measured(host_training()), "fused_optimizer", "3%", None)
    assert (found.verdict, found.new) == ("inconclusive", None)
    assert found.reason == (
        "no prediction: the memory bandwidth is not in the trace: set it with machine=Machine(memory_bytes_per_s=...)"
    )


def test_the_device_of_the_key_tells_constants(measured):
    result = measured(host_training(), accelerator="NVIDIA H100 80GB HBM3")
    # 25 us are left of 180, whatever the memory's 2.7 TB/s cost.
    assert asked(result, "fused_optimizer", "3%", None).new == pytest.approx(100 * 155 / STEP, abs=0.01)
    assert asked(result).new == pytest.approx(100 * (155 - 24.576) / STEP, abs=0.01), "what is given comes first"


@pytest.mark.parametrize(
    ("transform", "made", "reason"),
    [
        ("fused_optimizer", renamed("aten::add_", "aten::_fused_sgd_"), "the optimizer update is already fused"),
        (
            "foreach",
            renamed("aten::add_", "aten::_foreach_add_"),
            ("the optimizer update is already fused or uses foreach"),
        ),
        ("remove_sync", host_training(), "the host does not wait for a synchronization"),
        ("prefetch", host_training(), "the step spends no time in a DataLoader"),
    ],
    ids=["fused", "foreach", "no waiting", "no loading"],
)
def test_what_is_on_has_nothing_to_gain(measured, transform, made, reason):
    found = asked(measured(made), transform)
    assert (found.verdict, found.new) == ("unchanged", 0)
    assert found.reason == f"nothing to optimize: {reason}"


@pytest.mark.parametrize(
    ("transform", "made", "parameters", "reason"),
    [
        ("fused_optimizer", renamed("SGD.step", "NAdam.step"), {}, "the memory traffic of NAdam is unknown"),
        (
            "fused_optimizer",
            renamed("Optimizer.step", "update"),
            {},
            "the trace has no optimizer update (Optimizer.step) of a single optimizer",
        ),
        (
            "fused_optimizer",
            trace(step(0, 0, 100)),
            {},
            "the trace has no optimizer update (Optimizer.step) of a single optimizer",
        ),
        ("fused_optimizer", renamed("AccumulateGrad", "None"), {}, "the trace has no shapes of gradients"),
        ("checkpointing", host_training(), {"layer": "Net.blocks"}, "no module matches 'Net.blocks'"),
    ],
    ids=["passes", "no update", "Python alone", "no gradients", "no module"],
)
def test_what_a_transform_cannot_see_is_no_answer(measured, transform, made, parameters, reason):
    found = asked(measured(made), transform, **parameters)
    assert (found.verdict, found.new) == ("inconclusive", None)
    assert found.reason.startswith(f"no prediction: {reason}")


def test_a_refused_graph_fails_nothing(measured):
    found = asked(measured(WAITING), "remove_operator", "0%", None, name="aten::neg")
    assert found.new > 10
    assert found.verdict == "inconclusive"
    assert "expected < 0%: the prediction was rejected (" in found.reason
    assert "of the trace's time is waiting without a known cause" in found.reason


def test_little_trust_passes_but_does_not_fail(measured, monkeypatch):
    rough = Change(Plan().scale(Select(name="relu"), 0.0), trust="low", notes=("a bound",))
    monkeypatch.setitem(TRANSFORMS, "rough", lambda context: rough)
    assert asked(measured(host_training()), "rough", "5%").verdict == "unchanged"
    found = asked(measured(host_training()), "rough", "1%")
    assert found.verdict == "inconclusive"
    assert found.reason.endswith("expected < 1%: the prediction has low confidence (a bound)")


@pytest.mark.parametrize(
    ("made", "more", "reason"),
    [
        (
            host_training(),
            {"limit": 250},
            "the trace of the step is larger than 256.0 KiB, the size limit of stored traces",
        ),
        (
            host_training(),
            {"period": 4},
            "the stored trace contains only one step, but a cycle of the test has 4 steps",
        ),
        (
            device_training(),
            {"step_us": 100},
            "the traced step takes ",
        ),
    ],
    ids=["too large", "cycle", "another step"],
)
def test_a_trace_that_does_not_show_the_step_is_no_answer(measured, made, more, reason):
    found = asked(measured(made, **more))
    assert (found.verdict, found.new) == ("inconclusive", None)
    assert found.reason.startswith(f"no prediction: {reason}")


def test_no_trace_is_no_answer(measured):
    result = replace(measured(host_training()), exemplars=(Exemplars("", None, None),))
    assert asked(result).reason == "no prediction: no trace of a step was stored"


def test_a_value_that_a_transform_refuses_is_an_error(measured):
    with pytest.raises(ValueError, match="expected bfloat16 or float16"):
        asked(measured(host_training()), "amp", dtype="int4")
