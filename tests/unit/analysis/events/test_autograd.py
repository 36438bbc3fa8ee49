"""Backward operators find their forward operators by sequence number."""

import pytest

from pytest_perfdl.analysis.events.origins import forward_of
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, trace, x

ENGINE = "autograd::engine::evaluate_function: "


def op(name, ts, dur, number=None, thread=0, **more):
    """An operator with a sequence number; forward operators have 0 as forward thread."""
    args = {} if number is None else {"Sequence number": number}
    if number is not None and thread is not None:
        args["Fwd thread id"] = thread
    return x(name, ts, dur, **args, **more)


def links(*events):
    """Name and start of the forward operator of each backward operator, by its own name."""
    trace_of = trace(*events)
    return {
        trace_of.name_of(row): trace_of.name_of(other)
        for row, other in enumerate(forward_of(trace_of).tolist())
        if other >= 0
    }


def test_the_wrapper_and_the_node_belong_to_the_last_operator_of_their_number():
    assert links(
        op("aten::detach", 0, 1, 7),
        op("aten::linear", 2, 20, 7),
        op("aten::addmm", 5, 10, 7),
        op("aten::relu", 30, 5, 8),
        op(ENGINE + "ReluBackward0", 50, 5, 8, 1, tid=9),
        op("ReluBackward0", 51, 3, 8, 1, tid=9),
        x("aten::threshold_backward", 52, 1, tid=9),
        op(ENGINE + "AddmmBackward0", 60, 9, 7, 1, tid=9),
        x(ENGINE + "torch::autograd::AccumulateGrad", 70, 1, tid=9),
    ) == {
        ENGINE + "ReluBackward0": "aten::relu",
        "ReluBackward0": "aten::relu",
        ENGINE + "AddmmBackward0": "aten::addmm",
    }


def test_only_what_came_before_is_a_forward_operator():
    assert links(op("MulBackward0", 0, 5, 3, 1), op("aten::mul", 10, 5, 3)) == {}
    assert links(op("aten::mul", 0, 5, 3), op("MulBackward0", 10, 5, 4, 1)) == {}
    assert links(op("aten::mul", 10, 5, 3), op("MulBackward0", 10, 5, 3, 1, tid=9)) == {}
    again = (op("aten::mul", 0, 5, 3), op("MulBackward0", 10, 5, 3, 1), op("aten::add", 20, 5, 3))
    assert links(*again) == {"MulBackward0": "aten::mul"}


def test_forward_threads_count_apart_and_are_told_apart_by_their_numbers():
    assert links(
        op("aten::a", 0, 1, 1, tid=20),
        op("aten::b", 2, 1, 2, tid=20),
        op("aten::c", 0, 1, 2, tid=21),
        op("aten::d", 2, 1, 3, tid=21),
        op("DBackward0", 10, 1, 3, 5, tid=30),
        op("CBackward0", 12, 1, 2, 5, tid=30),
        op("BBackward0", 10, 1, 2, 4, tid=31),
        op("ABackward0", 12, 1, 1, 4, tid=31),
    ) == {"DBackward0": "aten::d", "CBackward0": "aten::c", "BBackward0": "aten::b", "ABackward0": "aten::a"}


def test_threads_with_equal_numbers_are_taken_in_the_order_in_which_they_ran():
    assert links(
        op("aten::later", 5, 1, 1, tid=20),
        op("aten::earlier", 0, 1, 1, tid=21),
        op("FirstBackward0", 10, 1, 1, 2, tid=30),
        op("SecondBackward0", 10, 1, 1, 3, tid=31),
    ) == {"FirstBackward0": "aten::earlier", "SecondBackward0": "aten::later"}


def test_processes_do_not_mix():
    assert links(op("aten::mul", 0, 5, 3, pid=1), op("MulBackward0", 10, 5, 3, 1, pid=2)) == {}


def test_without_forward_thread_ids_names_decide():
    events = (op("aten::mul", 0, 5, 3, None), op("MulBackward0", 10, 5, 3, None), op("aten::mul_", 11, 1, 3, None))
    assert links(*events) == {"MulBackward0": "aten::mul"}


def test_numbers_beyond_64_bits_are_none():
    assert links(op("aten::mul", 0, 5, 2**64 - 1), op("MulBackward0", 10, 5, 2**64 - 1, 1)) == {}


def test_nothing_to_join():
    assert forward_of(trace()).tolist() == []
    assert forward_of(trace(x("aten::mul", 0, 5))).tolist() == [-1]


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("resnet50_workers0", {"CudnnConvolutionBackward": "aten::cudnn_convolution", "ReluBackward1": "aten::relu_"}),
        ("mi250_minitoy", {"AddmmBackward0": "aten::addmm", "MseLossBackward0": "aten::mse_loss"}),
        ("nccl_rank0", {"BmmBackward0": "aten::bmm", "SoftmaxBackward0": "aten::_softmax"}),
    ],
    ids=["resnet50", "mi250", "nccl"],
)
def test_public_traces_pair_nodes_with_the_operators_they_are_named_after(file, expected):
    trace_of = read(corpus_file(file))
    forward = forward_of(trace_of)
    for row, other in enumerate(forward.tolist()):
        name = trace_of.name_of(row).removeprefix(ENGINE)
        if other >= 0 and name in expected:
            assert trace_of.name_of(other) == expected[name]
    named = {trace_of.name_of(row) for row, other in enumerate(forward.tolist()) if other >= 0}
    assert set(expected) <= named
