"""FLOPs and compulsory bytes by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_perfdl.analysis.efficiency.costs import _MODELS, OperatorCall, OperatorCost, cost_model

F32, BF16, I64, SCALAR = "float", "c10::BFloat16", "long int", "Scalar"


def cost(name, *arguments, strides=()):
    """Cost of a call; an argument is (shape, type) or the text of what is no tensor."""
    dims = [list(each[0]) if isinstance(each, tuple) else [] for each in arguments]
    types = [each[1] if isinstance(each, tuple) else SCALAR for each in arguments]
    texts = ["" if isinstance(each, tuple) else each for each in arguments]
    model = cost_model(name)
    assert model is not None
    return model(OperatorCall.recorded(dims, types, list(strides), texts))


def t(*shape, dtype=F32):
    return shape, dtype


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("aten::mm", t(3, 4), t(4, 5)), OperatorCost(120, 4 * (12 + 20 + 15), "float32")),
        (("aten::mm", t(3, 4, dtype=BF16), t(4, 5, dtype=BF16)), OperatorCost(120, 2 * 47, "bfloat16")),
        (("aten::addmm", t(5), t(3, 4), t(4, 5), "1", "1"), OperatorCost(120, 4 * (5 + 12 + 20 + 15), "float32")),
        (("aten::addmm_", t(3, 5), t(3, 4), t(4, 5)), OperatorCost(120, 4 * (15 + 12 + 20 + 15), "float32", 60)),
        (("aten::bmm", t(2, 3, 4), t(2, 4, 5)), OperatorCost(240, 4 * (24 + 40 + 30), "float32")),
        (("aten::baddbmm", t(2, 3, 5), t(2, 3, 4), t(2, 4, 5)), OperatorCost(240, 4 * (30 + 24 + 40 + 30), "float32")),
        (("aten::matmul", t(6, 3, 4), t(4, 5)), OperatorCost(720, 4 * (72 + 20 + 90), "float32")),
        (("aten::matmul", t(3, 4), t(4)), OperatorCost(24, 4 * (12 + 4 + 3), "float32")),
        (("aten::dot", t(4), t(4)), OperatorCost(8, 4 * (4 + 4 + 1), "float32")),
        (("aten::linear", t(2, 7, 4), t(5, 4), t(5)), OperatorCost(560, 4 * (56 + 20 + 5 + 70), "float32")),
        (
            (
                "aten::_scaled_mm",
                t(3, 4, dtype="c10::Float8_e4m3fn"),
                t(4, 5, dtype="c10::Float8_e4m3fn"),
                t(),
                t(),
                "",
                "",
                "15",
            ),
            OperatorCost(120, 12 + 20 + 4 + 4 + 2 * 15, "float8"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_matrix_products(call, expected):
    assert cost(*call) == expected


def test_expanded_inputs_are_read_once():
    assert cost("aten::addmm", t(3, 5), t(3, 4), t(4, 5), strides=[[0, 1], [4, 1], [5, 1]]) == OperatorCost(
        120, 4 * (5 + 12 + 20 + 15), "float32"
    )


# Output sizes: (17 + 2 - 3) // 2 + 1 = 9 and (19 + 4 - 5) + 1 = 19; per output element 3 x 15 multiply-adds.
_CONV = (t(2, 3, 17, 19), t(8, 3, 3, 5), t(8))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::conv2d", (*_CONV, "[2, 1]", "[1, 2]", "[1, 1]", "1")),
        ("aten::convolution", (*_CONV, "[2, 1]", "[1, 2]", "[1, 1]", "False", "[0, 0]", "1")),
        ("aten::mkldnn_convolution", (*_CONV, "[1, 2]", "[2, 1]", "[1, 1]", "1")),
    ],
    ids=["conv2d", "convolution", "mkldnn"],
)
def test_convolution(name, arguments):
    written = 2 * 8 * 9 * 19
    moved = 4 * (2 * 3 * 17 * 19 + 8 * 3 * 15 + 8 + written)
    assert cost(name, *arguments) == OperatorCost(2 * written * 3 * 15, moved, "float32")


def test_grouped_dilated_and_same_convolutions():
    # (20 + 2 - 2 * 2 - 1) // 2 + 1 = 9; two groups of 3 channels.
    grouped = cost("aten::conv1d", t(2, 6, 20), t(8, 3, 3), t(8), "[2]", "[1]", "[2]", "2")
    assert grouped.flops == 2 * (2 * 8 * 9) * 3 * 3
    same = cost("aten::conv2d", t(2, 3, 17, 19), t(8, 3, 3, 5), "", "[1, 1]", "same", "[1, 1]", "1")
    assert same.flops == 2 * (2 * 8 * 17 * 19) * 45
    valid = cost("aten::conv2d", t(3, 17, 19), t(8, 3, 3, 5), "", "[1]", "valid", "[1]", "1")
    assert valid.flops == 2 * (8 * 15 * 15) * 45


def test_transposed_convolution():
    # (9 - 1) * 2 - 2 + 2 + 1 + 1 = 18 and (11 - 1) * 2 - 2 + 2 + 1 + 1 = 22; 4 channels for each of two groups.
    found = cost(
        "aten::conv_transpose2d", t(2, 6, 9, 11), t(6, 4, 3, 3), t(8), "[2, 2]", "[1, 1]", "[1, 1]", "2", "[1, 1]"
    )
    moved = 4 * (2 * 6 * 99 + 6 * 4 * 9 + 8 + 2 * 8 * 18 * 22)
    assert found == OperatorCost(2 * (2 * 6 * 9 * 11) * 4 * 9, moved, "float32")
    general = ("[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "2")
    assert cost("aten::convolution", t(2, 6, 9, 11), t(6, 4, 3, 3), t(8), *general) == found


@pytest.mark.parametrize(
    ("mask", "products"), [("[True, True, True]", 2), ("[False, True, False]", 1)], ids=["both", "weight"]
)
def test_convolution_backward(mask, products):
    gradient, data, weight = t(2, 8, 5, 5), t(2, 6, 9, 9), t(8, 3, 3, 3)
    found = cost(
        "aten::convolution_backward",
        gradient,
        data,
        weight,
        "[8]",
        "[2, 2]",
        "[1, 1]",
        "[1, 1]",
        "False",
        "[0, 0]",
        "2",
        mask,
    )
    bias = 8 if products == 2 else 0
    moved = 4 * (400 + products * (972 + 216) + bias)
    assert found == OperatorCost(products * 2 * 400 * 27, moved, "float32")


def test_convolution_without_recorded_arguments_has_no_cost():
    assert cost("aten::conv2d", t(2, 3, 17, 19), t(8, 3, 3, 5), t(8), "", "", "", "") is None
    assert cost("aten::convolution_backward", t(2, 8, 5, 5), t(2, 6, 9, 9), t(8, 3, 3, 3)) is None


@pytest.mark.parametrize("size", [7, 8, 9])
@pytest.mark.parametrize("kernel, stride, padding", [(2, None, 0), (3, 1, 1), (3, 2, 1), ((2, 3), (2, 1), (1, 0))])
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_writes_what_torch_does(size, kernel, stride, padding, ceil):
    import torch

    def text(value):
        return "[]" if value is None else str(list(value) if isinstance(value, tuple) else [value, value])

    images = torch.zeros(2, 3, size, size + 1)
    shown = text(kernel), text(stride), text(padding)
    read = 4 * images.numel()
    pooled = torch.nn.functional.max_pool2d(images, kernel, stride, padding, ceil_mode=ceil).numel()
    dilation = "[1, 1]", str(ceil)
    assert cost("aten::max_pool2d", t(*images.shape), *shown, *dilation).bytes == read + 4 * pooled
    assert cost("aten::max_pool2d_with_indices", t(*images.shape), *shown, *dilation).bytes == read + 12 * pooled
    averaged = torch.nn.functional.avg_pool2d(images, kernel, stride, padding, ceil_mode=ceil).numel()
    found = cost("aten::avg_pool2d", t(*images.shape), *shown, str(ceil), "True", "")
    taps = kernel[0] * kernel[1] if isinstance(kernel, tuple) else kernel**2
    assert found == OperatorCost(averaged * taps, read + 4 * averaged, "float32")


def test_dilated_pooling():
    # (9 - 2 * 2 - 1) // 1 + 1 = 5 each way.
    found = cost("aten::max_pool2d", t(1, 9, 9), "[3, 3]", "[1, 1]", "[0, 0]", "[2, 2]", "False")
    assert found == OperatorCost(25 * 9, 4 * (81 + 25), "float32")
    assert cost("aten::max_pool2d", t(1, 9, 9), "", "", "", "", "") is None


def test_attention():
    q, kv = t(2, 8, 10, 16), t(2, 2, 6, 16)
    size = 4 * (2560 + 2 * 384 + 2560)
    name = "aten::scaled_dot_product_attention"
    assert cost(name, q, kv, kv, "", "0.", "False") == OperatorCost(2 * 16 * 60 * 32, size, "float32")
    # Of 10 queries and 6 keys the first six see 1 to 6 keys and the others all: 21 + 24 pairs.
    assert cost(name, q, kv, kv, "", "0.", "True") == OperatorCost(2 * 16 * 45 * 32, size, "float32")
    assert cost(name, q, kv, kv, t(10, 6), "0.", "False").bytes == size + 240
    assert cost(name, q, kv, kv) is None, "whether it is causal is not recorded"
    flash = "aten::_scaled_dot_product_flash_attention"
    assert cost(flash, q, kv, kv, "0.", "True", "False") == OperatorCost(2 * 16 * 45 * 32, size, "float32")


def test_attention_backward():
    q = t(2, 8, 10, 16)
    stats = t(2, 8, 10)
    name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    found = cost(name, q, q, q, q, q, stats, "0.", "False")
    assert found == OperatorCost(2 * 16 * 100 * 5 * 16, 4 * (5 * 2560 + 160 + 3 * 2560), "float32")


@pytest.mark.parametrize(
    ("call", "moved", "dtype"),
    [
        (("aten::layer_norm", t(2, 16, 64), "[64]", t(64), t(64), "1e-5", "True"), 4 * (2048 * 2 + 128), "float32"),
        (
            ("aten::native_layer_norm_backward", t(8, 4), t(8, 4), "[4]", t(8, 1), t(8, 1), t(4), t(4)),
            4 * 120,
            "float32",
        ),
        (("aten::add", t(8, 1, 4), t(3, 1), "1"), 4 * (32 + 3 + 96), "float32"),
        (("aten::add_", t(8, 4), t(8, 4), "1"), 4 * 96, "float32"),
        (("aten::mul", t(8, 4, dtype=BF16), ((), "double")), 2 * 64 + 8, "bfloat16"),
        (("aten::add", t(8, dtype=BF16), t(8)), 8 * (2 + 4 + 4), "float32"),
        (("aten::eq", t(8, dtype=I64), "1"), 64 + 8, "int64"),
        (("aten::where", t(8, dtype="bool"), t(8), t(8)), 8 + 3 * 32, "float32"),
        (("aten::relu", t(8, 4), t(8, 4)), 4 * 64, "float32"),
        (("aten::copy_", t(8, 4), t(8, 4, dtype=BF16), "False"), 4 * 32 + 2 * 32, "float32"),
        (("aten::fill_", t(8, 4), "0."), 4 * 32, "float32"),
        (("aten::native_dropout", t(8, 4), "0.1", "True"), 4 * 64 + 32, "float32"),
        (("aten::sum", t(8, 4)), 4 * 33, "float32"),
        (("aten::sum", t(8, 4), "[-1]", "False"), 4 * 40, "float32"),
        (("aten::mean", t(8, 4, 2), "[0, 2]", "True"), 4 * 68, "float32"),
        (("aten::max", t(8, 4), "1", "False"), 4 * 40, "float32"),
        (("aten::max", t(8, 4), t(4)), 4 * (32 + 4 + 32), "float32"),
        (("aten::argmax", t(8, 4), "0", "False"), 4 * 32 + 8 * 4, "float32"),
        (("aten::_softmax", t(8, 4), "1", "False"), 4 * 64, "float32"),
        (("aten::_softmax_backward_data", t(8, 4), t(8, 4), "1", "6"), 4 * 96, "float32"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_only_moves_data(call, moved, dtype):
    overwritten = 4 * 32 if call[0] == "aten::add_" else 0
    assert cost(*call) == OperatorCost(0, moved, dtype, overwritten)


@pytest.mark.parametrize(
    "name", ["aten::index_select", "c10d::allreduce_", "triton_poi_fused_0", "aten::sum_", "aten::_"]
)
def test_operators_without_a_model(name):
    assert cost_model(name) is None


@pytest.mark.parametrize(
    "call",
    [
        ("aten::mm", t(3, 4), t(5, 4)),
        ("aten::mm", t(3, 4), "not a tensor"),
        ("aten::linear", t(3, 4), t(5, 3)),
        ("aten::add", t(3), t(4)),
        ("aten::add", "1", "2"),
        ("aten::layer_norm", "1"),
        ("aten::mm", ((3, 4), "c10::quint8"), t(4, 5)),
        ("aten::conv2d", t(3, 4), t(5, 3)),
        ("aten::scaled_dot_product_attention", t(3), t(3), t(3), "", "", "False"),
    ],
    ids=["sizes", "no-tensor", "features", "broadcast", "scalars", "no-input", "unknown-type", "no-taps", "no-heads"],
)
def test_calls_that_make_no_sense_have_no_cost(call):
    assert cost(*call) is None


def test_odd_shapes_are_no_tensors():
    model = cost_model("aten::relu")
    assert model is not None
    for dims in ([[[1, 2], [3]]], [["a"]], [None], []):
        assert model(OperatorCall.recorded(dims, ["float"], [], [None])) is None


_ARGUMENTS = st.lists(
    st.one_of(
        st.tuples(
            st.lists(st.integers(0, 4), max_size=5).map(tuple), st.sampled_from((F32, BF16, I64, "bool", "Scalar"))
        ),
        st.sampled_from(
            ("", "1", "0", "[1, 1]", "[0]", "[]", "True", "False", "same", "valid", "[True, False, True]", "15")
        ),
    ),
    max_size=12,
)


@given(st.sampled_from(sorted(_MODELS)), _ARGUMENTS)
@settings(max_examples=400, deadline=None)
def test_models_take_whatever_a_trace_may_hold(name, arguments):
    found = cost(f"aten::{name}", *arguments)
    assert found is None or (found.flops >= 0 and found.bytes >= 0)
