"""Each stage of a matching on the case that it is for, computed by hand."""

import re

import pytest

from pytest_perfdl.diff.matching.match import match
from unit.diff.matching.matching_parts import confidence, found, idle, kernel, operator, places

GEMM = "ampere_sgemm_128x64_tn"
OTHER_TILE = "ampere_sgemm_32x32_sliced1x4_tn"
REDUCE = "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 3ul> >(int)"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu_impl(int)::{lambda(float)#1}>(int)"
LINEAR = ("aten::linear", "aten::addmm")
HERE = {"shapes": [[64, 512], [512, 512]], "module": "Net_0.Linear_1", "phase": "forward"}


class TestExact:
    def test_equal_parts(self):
        step = [kernel(GEMM, *LINEAR, **HERE), kernel(ADD, "aten::add"), operator("aten::add")]
        assert places(step, step) == [((0,), (0,), "exact"), ((1,), (1,), "exact"), ((2,), (2,), "exact")]

    def test_the_order_does_not_matter(self):
        step = [kernel("a"), kernel("b"), kernel("c")]
        assert places(step, step[::-1]) == [((0,), (2,), "exact"), ((2,), (0,), "exact"), ((1,), (1,), "exact")]

    def test_of_equal_ones_the_first_is_the_first(self):
        assert places([kernel("a"), kernel("a")], [kernel("a"), kernel("a"), kernel("a")]) == [
            ((0,), (0,), "exact"),
            ((1,), (1,), "exact"),
            ((), (2,), "added"),
        ]

    def test_a_line_that_moved(self):
        base, new = kernel(GEMM, *LINEAR, line="train.py(12): step"), kernel(GEMM, *LINEAR, line="train.py(14): step")
        assert places([base], [new]) == [((0,), (0,), "exact")]
        assert confidence([base], [new]) == 0.99


class TestName:
    @pytest.mark.parametrize(
        "base, new, sure",
        [
            (kernel(GEMM, *LINEAR, **HERE), kernel(GEMM, *LINEAR, **{**HERE, "shapes": [[32, 512]]}), 0.97),
            (kernel(GEMM, *LINEAR, **HERE), kernel(OTHER_TILE, *LINEAR, **HERE), 0.95),
            (kernel(GEMM, *LINEAR, **HERE), kernel(OTHER_TILE, *LINEAR, **{**HERE, "shapes": [[32, 512]]}), 0.92),
            (kernel(GEMM, *LINEAR, **HERE), kernel(GEMM, *LINEAR, **{**HERE, "module": "DDP_0.Net_0.Linear_1"}), 0.88),
            (kernel(GEMM, *LINEAR, **HERE), kernel(OTHER_TILE, *LINEAR, **{**HERE, "module": "Net_1"}), 0.85),
            (kernel(GEMM, *LINEAR, **HERE), kernel(OTHER_TILE, "aten::mm", **HERE), 0.75),
            (kernel(GEMM), kernel(GEMM, "aten::mm"), 0.7),
            (kernel(GEMM), kernel(OTHER_TILE, "aten::mm"), 0.65),
        ],
        ids=[
            "other shapes",
            "another tile",
            "both",
            "another module",
            "another module and tile",
            "another operator",
            "nothing but the name",
            "nothing but the normalized name",
        ],
    )
    def test_one_on_each_side(self, base, new, sure):
        assert places([base], [new]) == [((0,), (0,), "name")]
        assert confidence([base], [new]) == pytest.approx(sure)

    def test_the_same_tile_elsewhere_is_not_taken_for_the_one_in_place(self):
        first, second = {**HERE, "module": "Net_0.A_0"}, {**HERE, "module": "Net_0.B_0"}
        base = [kernel(GEMM, *LINEAR, **first), kernel(OTHER_TILE, *LINEAR, **second)]
        new = [kernel(OTHER_TILE, *LINEAR, **first), kernel(GEMM, *LINEAR, **second)]
        assert places(base, new) == [((0,), (0,), "name"), ((1,), (1,), "name")]

    def test_as_many_in_one_place_go_by_order_and_less_surely(self):
        base = [kernel(GEMM, *LINEAR, shapes=[[rows]]) for rows in (1, 2, 3)]
        new = [kernel(OTHER_TILE, *LINEAR, shapes=[[rows]]) for rows in (10, 20, 30)]
        groups = match(base, new)
        assert [(group.base, group.new) for group in groups] == [((0,), (0,)), ((1,), (1,)), ((2,), (2,))]
        assert {group.confidence for group in groups} == {0.92 * 0.9}

    def test_more_on_one_side_go_by_likeness(self):
        """The one that is left out is the one that is unlike: by its time, occurrences and module."""
        shapes = [[8, 8]]
        base = [kernel("attn_fwd", "acme::attn", shapes=shapes, module=f"Net_0.Block_{i}") for i in (1, 2)]
        new = [kernel("attn_fwd", "acme::attn", shapes=shapes, module=f"W_0.Net_0.Block_{i}") for i in (0, 1, 2)]
        assert places(base, new) == [((), (0,), "added"), ((0,), (1,), "name"), ((1,), (2,), "name")]

    def test_forward_is_not_backward(self):
        base, new = [kernel(GEMM, *LINEAR, phase="forward")], [kernel(GEMM, *LINEAR, phase="backward")]
        assert sorted(by for *_, by in places(base, new)) == ["added", "gone"]

    def test_a_projects_own_rules(self):
        base, new = [kernel("acme_v3", "acme::op")], [kernel("acme_v4", "acme::op")]
        rules = ((re.compile(r"_v\d+$"), ""),)
        assert [by for *_, by in places(base, new, rules=rules)] == ["name"]
        assert [by for *_, by in places(base, new)] == ["operator"]


class TestOperator:
    def test_another_kernel_of_one_operator(self):
        base, new = [kernel(GEMM, *LINEAR, **HERE)], [kernel("nvjet_hsh_64x8_64x16_1x1_v_bz_TNT", *LINEAR, **HERE)]
        assert places(base, new) == [((0,), (0,), "operator")]
        assert confidence(base, new) == 0.85

    def test_the_place_tells_more_than_the_same_name_elsewhere(self):
        first = {**HERE, "module": "Net_0.A_0"}
        second = {"shapes": [[1]], "module": "Net_0.B_0", "phase": "forward"}
        base = [kernel(GEMM, *LINEAR, **first), kernel("my_kernel", "my::op", **second)]
        new = [kernel("my_kernel", *LINEAR, **first), kernel(GEMM, "my::op", **second)]
        assert places(base, new) == [((0,), (0,), "operator"), ((1,), (1,), "operator")]

    def test_one_kernel_becomes_two(self):
        base = [kernel(GEMM, *LINEAR, **HERE), kernel(ADD, "aten::add", **HERE)]
        new = [kernel("acme_gemm", *LINEAR, **HERE), kernel(REDUCE, *LINEAR, **HERE), base[1]]
        assert places(base, new) == [((0,), (0, 1), "operator"), ((1,), (2,), "exact")]

    def test_a_product_whose_k_is_split_keeps_its_sum(self):
        """The kernel is the same by name, but another: the sum over the pieces is part of that."""
        base = [kernel(GEMM, *LINEAR, **HERE)]
        new = [kernel(OTHER_TILE, *LINEAR, **HERE), kernel(REDUCE, *LINEAR, **HERE)]
        assert places(base, new) == [((0,), (0, 1), "operator")]
        assert confidence(base, new) == pytest.approx(0.85 * 0.95)

    def test_a_kernel_beside_one_that_stayed_was_added(self):
        base = [kernel(GEMM, *LINEAR, **HERE)]
        new = [kernel(GEMM, *LINEAR, **HERE), kernel(REDUCE, *LINEAR, **HERE)]
        assert places(base, new) == [((0,), (0,), "exact"), ((), (1,), "added")]

    def test_a_region_is_no_operator(self):
        base = [kernel(name, "ProfilerStep") for name in ("alpha", "beta")]
        new = [kernel(name, "ProfilerStep") for name in ("gamma", "delta", "epsilon")]
        assert "operator" not in [by for *_, by in places(base, new)]

    def test_a_node_of_the_graph_is_an_operator_but_not_its_evaluation(self):
        """The engine's evaluation of a node holds the node, and the sum of a gradient that was broadcast."""
        node = ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0")
        base = [kernel("zeta", node[0], "aten::sum", shapes=[[1]], ns=9), kernel("alpha", *node, "aten::mm", ns=1e6)]
        new = [kernel("omega", *node, "aten::bmm", ns=1e6)]
        assert ((1,), (0,), "operator") in places(base, new)
        assert [by for *_, by in places(base[:1], new) if by == "operator"] == []

    def test_the_same_operator_in_another_module(self):
        base = [kernel("alpha", "aten::mm", shapes=[[4, 4]], module="A_0")]
        new = [kernel("beta", "aten::mm", shapes=[[4, 4]], module="B_0")]
        assert places(base, new) == [((0,), (0,), "operator")]
        assert confidence(base, new) == 0.7

    def test_the_same_operators_around_with_other_shapes(self):
        base = [kernel("alpha", *LINEAR, shapes=[[4, 4]])]
        new = [kernel("beta", *LINEAR, shapes=[[8, 4]])]
        assert places(base, new) == [((0,), (0,), "operator")]
        assert confidence(base, new) == 0.65

    def test_another_librarys_convolution(self):
        around = ("aten::conv2d", "aten::convolution", "aten::_convolution")
        base = [kernel("sm80_xmma_fprop_f32", *around, "aten::cudnn_convolution", shapes=[[1]])]
        new = [
            kernel("miopenGcnAsmConv1x1U", *around, "aten::miopen_convolution", shapes=[[1]]),
            kernel("SubTensorOpWithScalar1d", *around, "aten::miopen_convolution", shapes=[[1]]),
        ]
        assert places(base, new) == [((0,), (0, 1), "operator")]

    def test_attention_in_one_kernel_and_in_three(self):
        around, inside = "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math"
        where = {"module": "Net_0.Attention_0", "phase": "forward"}
        flash = "aten::_scaled_dot_product_flash_attention"
        base = [kernel("flash_fwd_kernel", around, flash, "aten::_flash_attention_forward", shapes=[[2]], **where)]
        new = [
            kernel(GEMM, around, inside, "aten::matmul", "aten::bmm", shapes=[[3]], **where),
            kernel("softmax_warp_forward", around, inside, "aten::softmax", "aten::_softmax", shapes=[[4]], **where),
            kernel(OTHER_TILE, around, inside, "aten::matmul", "aten::bmm", shapes=[[5]], **where),
        ]
        assert places(base, new) == [((0,), (0, 1, 2), "operator")]
        assert confidence(base, new) == pytest.approx(0.6 * 0.9)

    def test_operators_on_the_host(self):
        base = [operator("aten::addmm", "aten::linear", shapes=[[1]])]
        new = [operator("aten::matmul", "aten::linear"), operator("aten::mm", "aten::linear", "aten::matmul")]
        assert places(base, new) == [((0,), (0, 1), "operator")]


class TestAligned:
    def test_one_activation_is_exchanged_for_another(self):
        where = {"module": "Net_0.Mlp_0", "phase": "forward"}
        shapes = [[64, 64]]
        base = [
            kernel("my_gelu_kernel", "aten::gelu", shapes=shapes, **where),
            kernel(ADD, "aten::add", shapes=shapes, **where),
        ]
        new = [
            kernel("my_silu_kernel", "aten::silu", shapes=shapes, **where),
            kernel(ADD, "aten::add", shapes=shapes, **where),
        ]
        assert places(base, new) == [((0,), (0,), "aligned"), ((1,), (1,), "exact")]
        # Of the names one word of two is shared, of the operators nothing: 0.4 * 0.5 + 0.2.
        assert match(base, new)[0].confidence == pytest.approx(0.6 * (1 - 0.4))

    def test_what_is_unlike_is_not_paired(self):
        base = [kernel("alpha", "aten::sort", module="A_0", ns=1e6)]
        new = [kernel("beta", "aten::cumsum", module="B_0", ns=1e3)]
        assert sorted(by for *_, by in places(base, new)) == ["added", "gone"]

    def test_the_order_holds(self):
        """Two crossing pairs cannot both be: the cheaper one is."""
        where = {"module": "Net_0"}
        base = [kernel("red_fish_swims", "a::red", **where), kernel("old_cat_sleeps", "a::cat", **where)]
        new = [kernel("big_cat_sleeps", "b::cat", **where), kernel("red_fish_dives_far", "b::red", **where)]
        assert ((1,), (0,), "aligned") in places(base, new)
        assert [by for *_, by in places(base, new)] == ["gone", "aligned", "added"]


class TestFused:
    def test_inductor_says_what_it_fused(self):
        base = [
            kernel(GEMM, *LINEAR, **HERE),
            kernel(ADD, "aten::add", shapes=[[4]], ns=300),
            kernel(RELU, "aten::relu", shapes=[[4]], ns=200),
            kernel(MUL, "aten::mul", shapes=[[4]], ns=100),
        ]
        new = [kernel(GEMM, *LINEAR, **HERE), kernel("triton_poi_fused_add_mul_relu_0", "Torch-Compiled Region: 0/0")]
        assert places(base, new) == [((0,), (0,), "exact"), ((1, 2, 3), (1,), "fused")]
        assert places(new, base) == [((0,), (0,), "exact"), ((1,), (1, 2, 3), "split")]
        assert match(base, new)[1].confidence == pytest.approx(0.7)

    def test_what_is_not_listed_is_not_in_it(self):
        base = [kernel(ADD, "aten::add"), kernel("index_kernel", "aten::index_select"), kernel(RELU, "aten::relu")]
        new = [kernel("triton_poi_fused_add_relu_0")]
        assert places(base, new) == [((0, 2), (0,), "fused"), ((1,), (), "gone")]

    def test_parts_are_shared_out_in_order(self):
        names = ["add", "relu", "mm", "add", "tanh"]
        base = [kernel(f"k{i}", f"aten::{name}") for i, name in enumerate(names)]
        new = [kernel("triton_poi_fused_add_relu_0"), base[2], kernel("triton_poi_fused_add_tanh_1")]
        assert places(base, new) == [((0, 1), (0,), "fused"), ((2,), (1,), "exact"), ((3, 4), (2,), "fused")]

    def test_an_operator_within_one_that_is_listed(self):
        base = [kernel("moments", "aten::layer_norm", "aten::native_layer_norm"), kernel("div", "aten::div_")]
        new = [kernel("triton_per_fused_div_native_layer_norm_3")]
        assert places(base, new) == [((0, 1), (0,), "fused")]

    def test_two_fused_kernels_become_one(self):
        base = [kernel("triton_poi_fused_add_0"), kernel("triton_poi_fused_relu_tanh_1")]
        new = [kernel("triton_poi_fused_add_relu_tanh_0")]
        assert places(base, new) == [((0, 1), (0,), "fused")]

    def test_forward_is_not_fused_into_backward(self):
        base = [kernel(ADD, "aten::add", phase="backward"), kernel(RELU, "aten::relu", phase="forward")]
        new = [kernel("triton_poi_fused_add_relu_0", phase="forward")]
        assert places(base, new) == [((0,), (), "gone"), ((1,), (0,), "fused")]

    def test_what_stands_between_the_same_neighbors(self):
        first, last = kernel("alpha", "aten::mm"), kernel("omega", "aten::bmm")
        base = [first, kernel(ADD, "aten::add"), kernel(RELU, "aten::relu"), last, kernel(MUL, "aten::mul")]
        new = [first, kernel("nvfuser_pointwise_f0_c1_r0_g3"), last]
        assert found(base, new) == [
            (["alpha"], ["alpha"], "exact"),
            ([ADD, RELU], ["nvfuser_pointwise_f0_c1_r0_g3"], "fused"),
            (["omega"], ["omega"], "exact"),
            ([MUL], [], "gone"),
        ]

    def test_a_product_is_not_fused_in_silence(self):
        base = [kernel(ADD, "aten::add"), kernel(GEMM, "aten::mm")]
        new = [kernel("nvfuser_pointwise_f0_c1_r0_g3")]
        assert places(base, new) == [((0,), (0,), "fused"), ((1,), (), "gone")]

    def test_what_was_in_the_same_module(self):
        one, two = kernel("alpha", "aten::mm"), kernel("omega", "aten::bmm")
        base = [one, kernel(ADD, "aten::add", module="Net_0.B_0"), two, kernel(MUL, "aten::mul", module="Net_0.C_0")]
        new = [one, two, kernel("graph_0_kernel", module="Net_0.B_0")]
        assert places(base, new)[2:] == [((1,), (2,), "fused"), ((3,), (), "gone")]
        assert match(base, new)[2].confidence == 0.3

    def test_a_region_on_the_host_replaces_operators(self):
        base = [operator("aten::mm"), operator("aten::add"), operator("aten::relu"), operator("aten::sum")]
        new = [
            operator("aten::mm"),
            operator("Torch-Compiled Region: 0/0"),
            operator("CompiledFxGraph f7a2c", "Torch-Compiled Region: 0/0"),
            operator("aten::sum"),
        ]
        assert places(base, new)[1:-1] == [((1, 2), (1, 2), "fused")]

    @pytest.mark.parametrize("phase, taken", [("forward", True), ("backward", False)])
    def test_a_region_replaces_what_stands_behind_the_products_that_it_calls(self, phase, taken):
        here = {"phase": "forward"}
        base = [
            operator("aten::gelu", **here),
            operator("aten::mm", **here),
            operator("aten::tanh", phase=phase),
            operator("aten::sum", **here),
        ]
        new = [
            operator("CompiledFunction", **here),
            operator("aten::mm", "CompiledFunction", **here),
            operator("aten::sum", **here),
        ]
        told = places(base, new)
        if taken:
            assert told == [((0, 2), (0,), "fused"), ((1,), (1,), "name"), ((3,), (2,), "exact")]
            assert min(group.confidence for group in match(base, new)) == 0.25
        else:
            assert ((0,), (0,), "fused") in told
            assert ((2,), (), "gone") in told

    def test_what_has_no_phase_is_of_one_phase_only(self):
        base = [operator("aten::add", phase="forward", ns=10.0), operator("aten::relu", phase="backward", ns=90.0)]
        new = [operator("triton_poi_fused_add_relu_0")]
        assert places(base, new) == [((0,), (), "gone"), ((1,), (0,), "fused")]


class TestIdle:
    def test_python_is_known_by_what_it_runs(self):
        clip, zero = "torch/nn/utils/clip_grad.py(40): clip_grad_norm_", "torch/optim/optimizer.py(900): zero_grad"
        base = [idle("Python and host"), idle("Python and host", zero, "train.py(3): step")]
        new = [
            idle("Python and host", clip, "train.py(4): step"),
            idle("Python and host", zero.replace("900", "950"), "train.py(5): step"),
            idle("Python and host"),
        ]
        assert places(base, new) == [((), (0,), "added"), ((0,), (2,), "exact"), ((1,), (1,), "exact")]

    def test_what_runs_now_is_not_what_ran_before(self):
        base = [idle("Python and host", "a.py(1): alpha", "train.py(3): step")]
        new = [idle("Python and host", "a.py(1): beta", "train.py(3): step")]
        assert sorted(by for *_, by in places(base, new)) == ["added", "gone"]


class TestRest:
    def test_added_and_gone(self):
        base, new = [kernel("alpha", ns=5)], [operator("beta", ns=7), operator("gamma", ns=9)]
        matching = match(base, new)
        assert [(group.base, group.new, group.by) for group in matching] == [
            ((0,), (), "gone"),
            ((), (0,), "added"),
            ((), (1,), "added"),
        ]

    def test_kinds_never_mix(self):
        assert sorted(by for *_, by in places([kernel("aten::add")], [operator("aten::add")])) == ["added", "gone"]

    def test_nothing(self):
        assert match([], []) == ()
        assert places([], [kernel("alpha")]) == [((), (0,), "added")]
