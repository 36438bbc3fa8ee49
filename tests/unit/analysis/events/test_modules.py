"""Modules from hierarchies and frames, handed down to operators, over the engine and to the device."""

import pytest

from pytest_perfdl.analysis.events.origins import module_paths, parent_path
from pytest_perfdl.trace import Category, read
from unit.trace.chrome import corpus_file, each_recording, kernel, launch, trace, x


def module(name, ts, dur, **more):
    return x(f"nn.Module: {name}", ts, dur, "python_function", **more)


def paths(*events):
    """Path of each event's module, by its own name."""
    trace_of = trace(*events)
    index, found = module_paths(trace_of)
    return {trace_of.name_of(row): found[at] if at >= 0 else None for row, at in enumerate(index.tolist())}


def test_frames_nest_into_paths_and_hand_them_down_to_kernels():
    assert paths(
        module("Net_0", 0, 100),
        x("net.py(3): forward", 1, 95, "python_function"),
        module("Block_1", 5, 50),
        x("aten::linear", 10, 30),
        launch(12, 2, 1),
        kernel("gemm", 60, 10, 1),
        module("Head_0", 70, 20),
        x("aten::mm", 75, 5),
        x("aten::add", 200, 5),
    ) == {
        "nn.Module: Net_0": "Net_0",
        "net.py(3): forward": "Net_0",
        "nn.Module: Block_1": "Net_0.Block_1",
        "aten::linear": "Net_0.Block_1",
        "cudaLaunchKernel": "Net_0.Block_1",
        "gemm": "Net_0.Block_1",
        "nn.Module: Head_0": "Net_0.Head_0",
        "aten::mm": "Net_0.Head_0",
        "aten::add": None,
    }


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("TOP(Net)::forward.layers(Stack)::forward.0(Block)::forward.", "Net.layers.0"),
        ("TOP()::<forward op>.1(ReLU)::forward.::relu.", "TOP.1"),
        ("top(C)::<null>.B0(B)::forward.A0(A)::forward.aten::add", "C.B0.A0"),
        ("TOP(Net)::forward.SELF(Net)::helper.conv(Conv2d)::forward.", "Net.conv"),
        ("TOP(Net)::forward.", "Net"),
        ("::relu.", None),
    ],
    ids=["nested", "nameless-top", "mobile", "self", "top", "function"],
)
def test_hierarchies_of_torchscript(text, path):
    assert paths(x("aten::op", 0, 5, **{"Module Hierarchy": text})) == {"aten::op": path}


def test_a_hierarchy_says_more_than_the_frame_around_it():
    events = (module("Scripted_0", 0, 100), x("aten::op", 1, 5, **{"Module Hierarchy": "TOP(Net)::forward."}))
    assert paths(*events)["aten::op"] == "Net"


def test_backward_operators_take_the_module_of_their_forward_operator():
    found = paths(
        module("Net_0", 0, 50),
        module("Linear_0", 5, 20),
        x("aten::addmm", 6, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
        x("AddmmBackward0", 100, 50, tid=9, **{"Sequence number": 4, "Fwd thread id": 1}),
        x("aten::mm", 110, 10, tid=9),
        launch(112, 1, 1, tid=9),
        kernel("gemm", 130, 10, 1),
        x("torch::autograd::AccumulateGrad", 160, 5, tid=9),
    )
    inside = ("aten::addmm", "AddmmBackward0", "aten::mm", "cudaLaunchKernel", "gemm")
    assert {found[name] for name in inside} == {"Net_0.Linear_0"}
    assert found["torch::autograd::AccumulateGrad"] is None


def test_a_recomputed_forward_pass_hands_on_what_it_inherits():
    assert (
        paths(
            module("Net_0", 0, 50),
            x("CheckpointFunction", 6, 10, **{"Sequence number": 4, "Fwd thread id": 0}),
            x("CheckpointFunctionBackward", 100, 90, tid=9, **{"Sequence number": 4, "Fwd thread id": 1}),
            x("aten::gelu", 110, 10, tid=9, **{"Sequence number": 0, "Fwd thread id": 0}),
            x("GeluBackward0", 130, 10, tid=10, **{"Sequence number": 0, "Fwd thread id": 2}),
            x("aten::gelu_backward", 131, 5, tid=10),
        )["aten::gelu_backward"]
        == "Net_0"
    )


def test_device_events_without_a_call_take_their_operators_module():
    found = paths(module("Net_0", 0, 50), x("aten::mm", 6, 10, **{"External id": 3}), kernel("gemm", 30, 5, 8))
    assert found["gemm"] is None
    events = (module("Net_0", 0, 50), x("aten::mm", 6, 10, **{"External id": 3}))
    assert paths(*events, kernel("gemm", 30, 5, 8, **{"External id": 3}))["gemm"] == "Net_0"


def test_names_that_look_like_paths_are_no_evidence():
    assert paths(x("Net.layers.0", 0, 50, "user_annotation"), x("aten::mm", 5, 5))["aten::mm"] is None


def test_the_path_around_a_path():
    assert (parent_path("Net_0.Block_1"), parent_path("Net_0"), parent_path("")) == ("Net_0", "", "")


@pytest.mark.corpus
def test_every_operator_and_kernel_of_a_public_trace_with_frames_has_its_module():
    trace_of = read(corpus_file("h100_bert_small"))
    index, found = module_paths(trace_of)
    assert (index[trace_of.rows(Category.CPU_OP)] >= 0).all()
    assert (index[trace_of.device_rows()] >= 0).all()
    assert all(parent_path(path) in ("", *found) for path in found)
    layers = {path for path in found if path.count(".") == 3 and ".BertLayer_" in path}
    assert len(layers) == 4


@each_recording
def test_recordings_name_modules_only_where_they_hold_frames(path):
    trace_of = read(path)
    _, found = module_paths(trace_of)
    frames = {name.removeprefix("nn.Module: ") for name in trace_of.names if name.startswith("nn.Module: ")}
    assert {path.rpartition(".")[2] for path in found} == frames
