"""Names: what is the same operation keeps one name, what is not does not."""

import re

import pytest

from pytest_perfdl.diff.matching import names
from pytest_perfdl.diff.matching.names import BUILT_IN, bare, neutral, normalized, replaced, words


@pytest.mark.parametrize("rule", BUILT_IN, ids=[str(number) for number in range(len(BUILT_IN))])
def test_the_example_of_each_rule_holds_and_needs_it(rule, monkeypatch):
    before, after = rule.example
    assert normalized(before) == after
    monkeypatch.setattr(
        "pytest_perfdl.diff.matching.names.BUILT_IN", tuple(other for other in BUILT_IN if other is not rule)
    )
    assert normalized.__wrapped__(before) != after


@pytest.mark.parametrize("rule", BUILT_IN, ids=[str(number) for number in range(len(BUILT_IN))])
def test_what_is_normalized_stays_as_it_is(rule):
    assert normalized(rule.example[1]) == rule.example[1]


SAME = {
    "tiles": ("ampere_sgemm_128x64_tn", "ampere_sgemm_32x32_sliced1x4_tn"),
    "architectures": ("volta_sgemm_64x64_nn", "ampere_sgemm_128x128_nn"),
    "cutlass and cublas": ("cutlass_80_simt_sgemm_128x32_8x5_tn_align1", "ampere_sgemm_64x32_sliced1x4_tn"),
    "alignment": (
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align1>(T1::Params)",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_32x3_nn_align4>(T1::Params)",
    ),
    "instructions": (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(T1::Params)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(T1::Params)",
    ),
    "half precision": (
        "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_64x6_tn_align8>(T1::Params)",
    ),
    "nvjet": ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "nvjet_sm103_hsh_64x8_64x16_1x1_h_bz_splitK_NNT"),
    "cudnn": ("volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", "cudnn_ampere_scudnn_128x64_relu_small_nn_v1"),
    "xmma": (
        (
            "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_"
            "g1_tensor16x8x8_alignc4_execute_kernel_cudnn"
        ),
        (
            "sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x64x16_stage3_warpsize2x2x1_g1_"
            "tensor16x8x8_execute_kernel__5x_cudnn"
        ),
    ),
    "Tensile": (
        "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB0_WSGRB4_WG16_4_1",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1_USL1_UI",
    ),
    "vector widths": (
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
            "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::"
            "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
            "at::native::GeluType)::'lambda0'()::operator()() const::'lambda2'()::operator()() const::"
            "'lambda'(c10::BFloat16), at::detail::Array<char*, 2> >(int, at::detail::Array<char*, 2>)"
        ),
    ),
    "addressing": (
        (
            "void at::native::unrolled_elementwise_kernel<at::native::AddFunctor<float>, at::detail::Array<char*, 3>, "
            "OffsetCalculator<2, unsigned int>, OffsetCalculator<1, unsigned>, at::native::memory::LoadWithoutCast, "
            "at::native::memory::StoreWithoutCast>(int, at::native::AddFunctor<float>)"
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3> >"
            "(int, at::native::AddFunctor<float>, at::detail::Array<char*, 3>)"
        ),
    ),
    "what a size chose": (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*, float const*, int)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 1, false, false>(float*, int, bool)",
    ),
    "a return type": (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 7, X<float> >(X<float>)",
        "void internal::gemvx::kernel<int, int, float, 9, X<float> >(X<float>)",
    ),
    "Triton's specialization": ("add_kernel_0d1d2d3de", "add_kernel"),
    "Triton, of many arguments": ("matmul_kernel_0d1d2d3de4de5de6de7c8c9de10de11c", "matmul_kernel"),
    "Inductor's number": ("triton_poi_fused_add_relu_12", "triton_poi_fused_add_relu_0"),
    "Inductor's number in C++": ("graph_0_cpp_fused_gelu_add_2", "graph_3_cpp_fused_gelu_add_11"),
    "a graph's hash": (
        "## Call CompiledFxGraph fzc4pfz5vwlk3ilp6rrqkwxbyw4l4gzkxqzhvwrqzqvhvwlk3il ##",
        "## Call CompiledFxGraph f7a2c ##",
    ),
    "regions": ("Torch-Compiled Region: 0/0", "Torch-Compiled Region: 2/1"),
    "collectives": (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "host memory": ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    "autograd's overloads": ("AddmmBackward0", "AddmmBackward"),
}
DIFFERENT = {
    "transposes": ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_nn"),
    "tf32 is not single precision": (
        "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4",
        "cutlass_80_simt_sgemm_128x64_8x5_nn_align1",
    ),
    "precision": (
        "cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8",
        "cutlass_80_tensorop_f16_s16816gemm_f16_64x64_64x6_tn_align8",
    ),
    "Winograd": (
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "volta_scudnn_128x128_relu_interior_nt_v1",
    ),
    "Tensile's transposes": ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN", "Cijk_Ailk_Bjlk_SB_MT64x16x32_MI16x16x1_SN"),
    "functions": (
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3> >"
            "(int)"
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 3> >"
            "(int)"
        ),
    ),
    "types": (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
    ),
    "the type that a lambda takes": (
        "void k<f(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}>(int)",
        "void k<f(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(double)#1}>(int)",
    ),
    "what was fused": ("triton_poi_fused_add_relu_1", "triton_poi_fused_add_gelu_1"),
    "pointwise and reduction": ("triton_poi_fused_add_1", "triton_red_fused_add_1"),
    "in place": ("aten::add", "aten::add_"),
    "directions": ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"),
    "collectives": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "ncclDevKernel_AllGather_RING_LL()"),
}


@pytest.mark.parametrize("what", SAME)
def test_the_same_operation_has_one_name(what):
    first, second = SAME[what]
    assert first != second
    assert normalized(first) == normalized(second)


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_operation_has_another_name(what):
    first, second = DIFFERENT[what]
    assert normalized(first) != normalized(second)


@pytest.mark.parametrize(
    "name",
    [
        "aten::add_",
        "aten::_scaled_dot_product_flash_attention",
        "c10d::allreduce_",
        "Optimizer.step#SGD.step",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
        "attn_fwd",
        "xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
        "input",
        "",
    ],
)
def test_other_names_stay_as_they_are(name):
    assert normalized(name) == name


def test_a_projects_own_rules_see_the_whole_name_and_come_first():
    rules = ((re.compile(r"^acme_v\d+_"), "acme_"), (re.compile("fwd$"), "forward"))
    assert normalized("acme_v3_attention_128x64_fwd", rules) == "acme_attention_forward"
    assert normalized("acme_v3_attention_128x64_fwd") == "acme_v3_attention_fwd"


def test_brackets_that_do_not_match_are_no_error():
    for name in ("void f<int, g<float>(int", "a>>b", "f)(", "{lambda(", "<" * 50, "void "):
        assert normalized(name)


def test_words_are_what_names_are_like_by():
    assert words("elementwise_kernel<GeluCUDAKernelImpl::lambda[BFloat16]>") == {"gelu", "b", "float"}
    assert words("kernel") == {"kernel"}
    assert words("123") == {"123"}


@pytest.mark.parametrize(
    "name, operators",
    [
        ("triton_poi_fused_add_native_layer_norm_3", "add_native_layer_norm"),
        ("triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1", "_unsafe_view_add_mean_mul_pow_rsqrt"),
        ("graph_0_cpp_fused_gelu_add_2", "gelu_add"),
        ("fused_mul_tanh_1", "mul_tanh"),
        ("triton_poi_fused_7", ""),
        ("triton__0d1d2de", ""),
        ("graph_0_kernel", ""),
        ("nvfuser_pointwise_f0_c1_r0_g3", ""),
        ("CudaCodeGen::kernel1(CudaCodeGen::Tensor<float, 2, 2>)", ""),
        ("## Call CompiledFxGraph f7a2c ##", ""),
        ("Torch-Compiled Region: 0/0", ""),
        ("aten::add", None),
        ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1>(int)", None),
        ("ampere_sgemm_128x64_tn", None),
    ],
)
def test_what_a_compilers_kernel_stands_for(name, operators):
    assert replaced(normalized(name)) == operators


def test_operators_without_their_library():
    convolutions = ("aten::cudnn_convolution", "aten::miopen_convolution", "aten::mkldnn_convolution")
    assert {neutral(name) for name in convolutions} == {"aten::convolution"}
    attention = (
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_fused_attention_overrideable",
    )
    assert {neutral(name) for name in attention} == {"aten::_scaled_dot_product_attention"}
    assert neutral("aten::scaled_dot_product_attention") == "aten::scaled_dot_product_attention"
    assert neutral("CudnnConvolutionBackward") == neutral("MiopenConvolutionBackward") == "ConvolutionBackward"
    assert neutral("aten::cudnn_is_acceptable") == "aten::cudnn_is_acceptable"


def test_bare_names():
    assert [bare(name) for name in ("aten::add_", "aten::_softmax", "AddBackward0")] == ["add", "_softmax", ""]


@pytest.mark.parametrize(
    "name",
    ["a<" * 150_000 + "b" + ">" * 150_000, "f(" * 150_000, "gpu_kernel_impl<" * 20_000, "{lambda(" * 40_000 + "a"],
    ids=["templates", "parentheses", "kernels", "lambdas"],
)
def test_a_name_without_end_takes_bounded_work(name, monkeypatch):
    passes = []
    subn = names._until_same

    def counted(pattern, replacement, text):
        passes.append(len(text))
        return subn(pattern, replacement, text)

    monkeypatch.setattr(names, "_until_same", counted)
    assert normalized(name) != normalized(name + "x"), "two that differ at their ends are two"
    assert max(passes) <= 4096 + 17


def test_brackets_are_looked_into_up_to_a_depth():
    assert normalized("f<" * 20 + "int" + ">" * 20) == "f<" * 20 + "int" + ">" * 20
    deep = names.flattened("f<" * 2000 + "g<1>" + ">" * 2000)
    assert deep.startswith("f<f<")


def test_the_passes_over_a_name_are_bounded():
    seen = []

    class Endless:
        def subn(self, _, text):
            seen.append(text)
            return text, 1

    assert names._until_same(Endless(), "", "f<f<f>>") == "f<f<f>>"
    assert len(seen) == 64
