"""Lines of the user's code, told from those of torch, installed packages and Python."""

import pytest

from pytest_perfdl.analysis.account.parts import labels
from pytest_perfdl.analysis.events.origins import is_user_code, source_lines
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import corpus_file, kernel, launch, trace, x


def frame(name, ts, dur, **more):
    return x(name, ts, dur, "python_function", **more)


def lines(*events):
    """Line of each event, by its own name."""
    trace_of = trace(*events)
    index, found = source_lines(trace_of)
    return {trace_of.name_of(row): found[at] if at >= 0 else None for row, at in enumerate(index.tolist())}


@pytest.mark.parametrize(
    "text",
    [
        "train.py(12): step",
        "/home/me/project/torch/train.py(3): main",
        "project/model.py(7): forward",
        "/home/me/lib/model.py(7): forward",
        "profile.py(7): main",
        "C:\\work\\train.py(3): <module>",
        "transformers/models/bert/modeling_bert.py(364): forward",
        "train.py(12): <genexpr>",
        "train.py(12): <lambda>",
    ],
)
def test_user_code(text):
    assert is_user_code(text)


@pytest.mark.parametrize(
    "text",
    [
        "torch/nn/functional.py(12): linear",
        "/opt/pytorch/torch/nn/modules/linear.py(5): forward",
        "/opt/pytorch/torch/_tensor.py(5): backward",
        "/env/lib/python3.11/site-packages/timm/layers.py(5): forward",
        "/usr/lib/python3/dist-packages/yaml/__init__.py(5): load",
        "/usr/lib/python3.12/threading.py(9): run",
        "threading.py(1032): _bootstrap",
        "multiprocessing/spawn.py(122): spawn_main",
        "pytest_perfdl/fixture/perf.py(9): call",
        "_pytest/runner.py(9): call",
        "<string>(1): <module>",
        "<frozen importlib._bootstrap>(1): _find_and_load",
        "<built-in method linear of type object at 0x7f>",
        "nn.Module: Linear_0",
        "nn.Module: Weird(3): odd",
        "C:\\Python311\\Lib\\contextlib.py(3): inner",
        "nothing like a frame",
        "train.py(12): <listcomp>",
        "train.py(12): <dictcomp>",
        "train.py(12): <setcomp>",
    ],
)
def test_not_user_code(text):
    assert not is_user_code(text)


def test_a_comprehension_is_part_of_its_function():
    """As from Python 3.12 on, so that sides of different versions tell the same."""
    trace_of = trace(
        frame("train.py(12): ids_of", 5, 90),
        frame("train.py(14): <listcomp>", 10, 80),
        frame("<built-in method index of list object at 0x7f>", 20, 60),
        x("aten::sum", 30, 10),
    )
    index, found = source_lines(trace_of)
    assert [found[at] for at in index.tolist()] == ["train.py(12): ids_of"] * 4
    known = labels(trace_of)
    called = {trace_of.name_of(row): at for row, at in enumerate(known.function.tolist())}
    assert called["train.py(14): <listcomp>"] == -1
    assert known.functions[called["aten::sum"]] == "<built-in method index of list>"


def test_the_innermost_frame_of_the_user_counts():
    assert lines(
        frame("train.py(1): <module>", 0, 200),
        frame("train.py(12): step", 5, 90),
        frame("nn.Module: Linear_0", 10, 50),
        frame("torch/nn/modules/linear.py(5): forward", 11, 48),
        x("aten::linear", 15, 30),
        launch(20, 2, 1),
        kernel("gemm", 60, 10, 1),
        x("aten::add", 100, 30),
    ) == {
        "train.py(1): <module>": "train.py(1): <module>",
        "train.py(12): step": "train.py(12): step",
        "nn.Module: Linear_0": "train.py(12): step",
        "torch/nn/modules/linear.py(5): forward": "train.py(12): step",
        "aten::linear": "train.py(12): step",
        "cudaLaunchKernel": "train.py(12): step",
        "gemm": "train.py(12): step",
        "aten::add": "train.py(1): <module>",
    }


def test_a_backward_operator_goes_to_the_line_of_its_forward_operator_and_not_to_that_of_backward():
    events = (
        frame("train.py(1): step", 0, 200),
        frame("net.py(7): forward", 5, 20),
        x("aten::mul", 6, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
        x("MulBackward0", 100, 50, **{"Sequence number": 4, "Fwd thread id": 1}),
        x("aten::mul_", 110, 30),
        x("XBackward0", 160, 5, **{"Sequence number": 9, "Fwd thread id": 1}),
    )
    found = lines(*events)
    assert (found["MulBackward0"], found["aten::mul_"]) == ("net.py(7): forward", "net.py(7): forward")
    assert found["XBackward0"] == "train.py(1): step", "its forward operator is not in the trace"
    found = lines(*events, frame("net.py(30): backward", 105, 40))
    assert found["aten::mul_"] == "net.py(30): backward", "a backward written in Python has lines of its own"


def test_stacks_of_older_traces():
    stack = "/env/site-packages/torch/nn/functional.py(9): linear;net.py(7): forward;train.py(3): <module>"
    assert lines(
        x("aten::linear", 0, 50, **{"Call stack": stack}),
        x("aten::addmm", 5, 10),
        x("aten::zeros", 60, 5, **{"Call stack": "torch/autograd/profiler.py(3): __init__"}),
    ) == {"aten::linear": "net.py(7): forward", "aten::addmm": "net.py(7): forward", "aten::zeros": None}


@pytest.mark.corpus
def test_lines_of_a_public_trace_of_2021():
    trace_of = read(corpus_file("resnet50_workers0"))
    index, found = source_lines(trace_of)
    assert all(line.startswith("resnet50_profiler_api.py(") for line in found)
    operators = trace_of.rows(Category.CPU_OP)
    engine = [row for row in operators.tolist() if trace_of.name_of(row) == "CudnnConvolutionBackward"]
    assert {found[index[row]] for row in engine} == {"resnet50_profiler_api.py(46): <module>"}


def test_nothing_known():
    assert lines(x("aten::mul", 0, 5)) == {"aten::mul": None}
