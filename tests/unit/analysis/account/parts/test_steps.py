"""The parts of a step: whose each moment is, by hand on small traces, and the sum on public ones."""

import numpy as np
import pytest
from hypothesis import given

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.trace import read
from unit.analysis.generated import traces
from unit.trace.chrome import MAIN, each_recording, each_trace_file, kernel, launch, step, trace, x

US = 1000


def found(made):
    """Class, time, own time and count in microseconds by (kind, name, module or function)."""
    parts = step_parts(made)
    return {
        (part.kind, part.name, part.module or part.function): (
            name,
            *((row // US).tolist() for row in rows[:2]),
            rows[2].tolist(),
        )
        for part, name, *rows in zip(parts.parts, parts.classes, parts.ns, parts.busy_ns, parts.count, strict=True)
    }


def frame(name, ts, dur, **rest):
    return x(name, ts, dur, "python_function", **rest)


def test_operators_have_their_self_time_and_the_rest_is_pythons():
    made = trace(
        step(0, 0, 100),
        x("aten::linear", 10, 40),
        x("aten::addmm", 15, 30),
        step(1, 100, 60),
        x("aten::mul", 110, 20),
    )
    assert found(made) == {
        ("idle", "Python and host", ""): ("Python and host", [60, 40], [0, 0], [0, 0]),
        ("operator", "aten::linear", ""): ("forward", [10, 0], [10, 0], [1, 0]),
        ("operator", "aten::addmm", ""): ("forward", [30, 0], [30, 0], [1, 0]),
        ("operator", "aten::mul", ""): ("forward", [0, 20], [0, 20], [0, 1]),
    }
    assert step_parts(made).step_ns.tolist() == [100 * US, 60 * US]


def test_one_operator_in_two_places_is_two_parts():
    made = trace(
        step(0, 0, 100),
        x("aten::linear", 10, 40, **{"Input Dims": [[4, 8], [8, 8]]}),
        x("aten::addmm", 15, 30, **{"Input Dims": [[8], [4, 8], [8, 8]]}),
        x("aten::addmm", 60, 10, **{"Input Dims": [[8], [4, 8], [8, 8]]}),
        x("aten::addmm", 80, 10, **{"Input Dims": [[9], [4, 8], [8, 9]]}),
    )
    parts = step_parts(made)
    assert [part for part in parts.parts if part.kind == "operator"] == [
        Part("operator", "aten::linear", (), "[[4, 8], [8, 8]]", phase="forward"),
        Part("operator", "aten::addmm", ("aten::linear",), "[[8], [4, 8], [8, 8]]", phase="forward"),
        Part("operator", "aten::addmm", (), "[[8], [4, 8], [8, 8]]", phase="forward"),
        Part("operator", "aten::addmm", (), "[[9], [4, 8], [8, 9]]", phase="forward"),
    ]
    assert [part.operator for part in parts.parts][1:] == ["aten::linear", "aten::addmm", "aten::addmm", "aten::addmm"]


def test_phases_are_classes():
    made = trace(
        step(0, 0, 200),
        x("aten::mul", 10, 10),
        x("autograd::engine::evaluate_function: MulBackward0", 30, 40),
        x("aten::mul", 40, 10),
        x("aten::copy_", 55, 5),
        x("Optimizer.step#SGD.step", 100, 50, "user_annotation"),
        x("aten::add_", 110, 20),
    )
    classes = {
        (part.name, part.phase): name
        for part, name in zip(step_parts(made).parts, step_parts(made).classes, strict=True)
    }
    assert classes == {
        ("Python and host", ""): "Python and host",
        ("Python and host", "optimizer"): "Python and host",
        ("aten::mul", "forward"): "forward",
        ("autograd::engine::evaluate_function: MulBackward0", "backward"): "backward",
        ("aten::mul", "backward"): "backward",
        ("aten::copy_", "backward"): "copies",
        ("aten::add_", "optimizer"): "optimizer",
    }


def test_time_of_python_has_the_line_the_function_and_the_module():
    made = trace(
        step(0, 0, 200),
        frame("train.py(12): step", 10, 180),
        frame("pytest_perfdl/fixture.py(267): _iterate", 11, 5),
        frame("torch/nn/utils/clip_grad.py(40): clip_grad_norm_", 20, 50),
        frame("<built-in method norm>", 30, 20),
        frame("nn.Module: Net_0", 80, 100),
        frame("torch/nn/modules/module.py(1739): _wrapped_call_impl", 85, 90),
        frame("model.py(7): forward", 90, 80),
        frame("<built-in method acquire of _thread.lock object>", 100, 30),
        x("aten::add", 140, 10),
    )
    python = {
        (part.line, part.function, part.module): int(ns.sum()) // US
        for part, ns in zip(step_parts(made).parts, step_parts(made).ns, strict=True)
        if part.kind == "idle"
    }
    assert python == {
        ("", "", ""): 20,
        ("train.py(12): step", "", ""): 30,
        ("train.py(12): step", "torch/nn/utils/clip_grad.py(40): clip_grad_norm_", ""): 50,
        ("train.py(12): step", "", "Net_0"): 20,
        ("model.py(7): forward", "", "Net_0"): 40,
        ("model.py(7): forward", "<built-in method acquire of _thread.lock object>", "Net_0"): 30,
    }


def test_without_frames_python_has_the_annotation_around_it():
    made = trace(step(0, 0, 100), x("Optimizer.step#SGD.step", 20, 50, "user_annotation"), x("aten::add_", 30, 10))
    assert {key[2]: row[1] for key, row in found(made).items() if key[0] == "idle"} == {
        "": [50],
        "Optimizer.step#SGD.step": [40],
    }


def test_what_runs_in_the_input_is_the_inputs():
    made = trace(
        step(0, 0, 100),
        x("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 50, "user_annotation"),
        x("aten::stack", 20, 20),
        x("aten::add", 70, 10),
    )
    assert {key[1]: row[1:] for key, row in found(made).items()} == {
        "Python and host": ([40], [0], [0]),
        "input": ([50], [0], [0]),
        "aten::add": ([10], [10], [1]),
    }


def test_kernels_cost_what_nothing_hides():
    """Two kernels overlap, a collective hides behind both but for its end, a copy behind all but for its begin."""
    made = trace(
        step(0, 0, 100),
        x("aten::mm", 5, 10),
        launch(6, 1, 1),
        x("aten::mul", 15, 10),
        launch(16, 1, 2),
        launch(27, 1, 3),
        launch(30, 1, 4, "cudaMemcpyAsync"),
        kernel("gemm", 20, 30, 1),
        kernel("mul", 40, 20, 2, stream=8),
        kernel("ncclDevKernel_AllReduce", 45, 35, 3, stream=9),
        kernel("Memcpy HtoD", 10, 60, 4, stream=10, cat="gpu_memcpy"),
    )
    parts = {key[1]: row for key, row in found(made).items() if key[0] == "kernel"}
    assert parts == {
        "Memcpy HtoD": ("exposed copies", [10], [60], [1]),
        "gemm": ("compute", [20], [30], [1]),
        "mul": ("compute", [20], [20], [1]),
        "ncclDevKernel_AllReduce": ("exposed communication", [20], [35], [1]),
    }
    assert step_parts(made).on_device
    gemm = next(part for part in step_parts(made).parts if part.name == "gemm")
    assert (gemm.path, gemm.operator, gemm.phase) == (("aten::mm",), "aten::mm", "forward")


def test_idle_time_of_the_device_has_the_place_of_what_ends_it():
    made = trace(
        step(0, 0, 100),
        frame("train.py(12): step", 0, 95),
        frame("nn.Module: Net_0", 10, 60),
        x("aten::mm", 40, 20),
        launch(50, 2, 1),
        kernel("gemm", 60, 40, 1),
    )
    idle = {
        (part.name, part.module, part.line): int(ns.sum()) // US
        for part, ns in zip(step_parts(made).parts, step_parts(made).ns, strict=True)
        if part.kind == "idle"
    }
    assert idle == {
        ("Python and host", "Net_0", "train.py(12): step"): 40,
        ("operator overhead", "Net_0", "train.py(12): step"): 10,
        ("launch latency", "Net_0", "train.py(12): step"): 10,
    }


def test_operators_of_other_threads_have_time_of_their_own_and_none_of_the_steps():
    made = trace(
        step(0, 0, 100),
        x("aten::add", 10, 10),
        x("autograd::engine::evaluate_function: AddBackward0", 30, 40, tid=MAIN + 1),
    )
    parts = {key[1]: row for key, row in found(made).items()}
    assert parts["autograd::engine::evaluate_function: AddBackward0"] == ("backward", [0], [40], [1])
    assert parts["Python and host"][1] == [90]


def test_no_events_no_parts():
    made = trace()
    assert (step_parts(made).parts, step_parts(made).ns.shape) == ((), (0, 0))


def check(made):
    parts, tables = step_parts(made), profile_tables(made)
    assert parts.step_ns.tolist() == list(tables.step_ns)
    assert parts.ns.sum(axis=0).tolist() == list(tables.step_ns)
    assert (parts.ns >= 0).all()
    assert len(set(zip(parts.parts, parts.classes, strict=True))) == len(parts.parts)
    kernels = [part.kind == "kernel" for part in parts.parts]
    if tables.on_device:
        rows = [row for row in tables.rows if row.kind == "kernel"]
        assert int(parts.busy_ns[kernels].sum()) == sum(row.ns for row in rows)
        assert int(parts.count[kernels].sum()) == sum(row.count for row in rows)
    account = dict.fromkeys(tables.account, 0)
    for name, ns in zip(parts.classes, parts.ns.sum(axis=1).tolist(), strict=True):
        account[name] += ns
    assert account == tables.account


@each_trace_file
def test_public_traces_add_up_to_their_accounts(path):
    check(read(path))


@each_recording
def test_recordings_add_up_to_their_accounts(path):
    check(read(path))


@pytest.mark.long
@given(traces())
def test_generated_traces_add_up_to_their_accounts(made):
    check(made)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_first_occurrence(seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation([f"op{number}" for number in range(20)]).tolist()
    made = trace(step(0, 0, 1000), *(x(name, 10 + 20 * at, 5) for at, name in enumerate(names)))
    assert [part.name for part in step_parts(made).parts if part.kind == "operator"] == names
