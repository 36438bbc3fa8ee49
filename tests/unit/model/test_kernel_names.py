"""Short names of kernels: as short names of nsys, and never two alike in one table."""

import pytest

from pytest_perfdl.analysis.overview.tables import kernel_table
from pytest_perfdl.model.kernel_names import short_name, short_names
from pytest_perfdl.trace import read
from unit.trace.chrome import each_trace_file

DIRECT_COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>("
    "at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1}>(int, int*)"
)
CUTLASS = "void cutlass::Kernel2<cutlass_80_{}>(cutlass_80_{}::Params)"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}<float>, std::array<char*, 3ul> >"
    "(int, at::native::{0}<float>, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
                "at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)"
            ),
            "vectorized_elementwise_kernel<4, FillFunctor<float>, Array<char*, 1>>",
        ),
        (
            DIRECT_COPY,
            "elementwise_kernel<128, 4, gpu_kernel_impl<direct_copy_kernel_cuda::lambda(float)>::lambda(int)>",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*, int)",
            "softmax_warp_forward<float, float, float, 10, true>",
        ),
        (CUTLASS.format(*["tensorop_f16_256x128"] * 2), "cutlass::Kernel2<cutlass_80_tensorop_f16_256x128>"),
        (
            (
                "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
                "cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true>"
                "(pytorch_flash::Flash_fwd_params)"
            ),
            (
                "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, bfloat16_t, "
                "Flash_kernel_traits<64, 128, 128, 4, bfloat16_t>>, false, true>"
            ),
        ),
        (
            (
                "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, 7, "
                "cublasGemvParams<cublasGemvTensorStridedBatched<float const> > >(cublasGemvParams<float>)"
            ),
            "gemvx::kernel<int, int, float, 7, cublasGemvParams<cublasGemvTensorStridedBatched<float const>>>",
        ),
        (
            (
                "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<Eigen::TensorMap<"
                "Eigen::Tensor<float, 1, 1, long>, 16, Eigen::MakePointer> >, Eigen::GpuDevice>, long>"
                "(Eigen::TensorEvaluator<float>, long)"
            ),
            (
                "EigenMetaKernel<TensorEvaluator<TensorAssignOp<TensorMap<Tensor<float, 1, 1, long>, 16, "
                "MakePointer>>, GpuDevice>, long>"
            ),
        ),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
        ),
        ("void add<float>(float*, float*) [clone .kd]", "add<float>"),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", "spin_kernel"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "triton_poi_fused__unsafe_view_mul_silu_2"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("aten::mm", "aten::mm"),
        ("enumerate(DataLoader)#_Iter.__next__", "enumerate(DataLoader)#_Iter.__next__"),
        ("models/gpt.py(43): forward", "models/gpt.py(43): forward"),
        ("void", "void"),
        ("void broken<a, (b>(", "void broken<a, (b>("),
        ("", ""),
    ],
)
def test_the_short_name(name, short):
    assert short_name(name) == short
    assert list(short_names([name], 500).values()) == [short]


def test_names_are_cut_at_the_end():
    (name,) = short_names([ELEMENTWISE.format("FillFunctor")], 41).values()
    assert name == "vectorized_elementwise_kernel<4, FillF..."


def test_the_template_arguments_that_differ_are_kept():
    names = [
        CUTLASS.format(tile, tile) for tile in ("tensorop_bf16_s16816gemm_bf16_" + end for end in ("64x64", "128x64"))
    ]
    assert list(short_names(names, 41).values()) == [
        "cutlass::Kernel2<...128x64>",
        "cutlass::Kernel2<...64x64>",
    ]
    functors = [ELEMENTWISE.format(name) for name in ("CUDAFunctorOnSelf_add", "CUDAFunctorOnOther_add")]
    shown = short_names(functors, 41)
    assert "Self" in shown[functors[0]]
    assert "Other" in shown[functors[1]]


def test_a_group_that_splits_twice_keeps_both_differences():
    tiles = [
        f"tensorop_gemm_{tile}" for tile in ("128x256_32x3_nt_align1", "128x256_32x3_nt_align4", "64x64_32x3_nt_align1")
    ]
    names = [CUTLASS.format(tile, tile) for tile in tiles]
    shown = short_names(names, 41)
    assert ["128x256" in shown[name] for name in names] == [True, True, False]
    assert shown[names[0]].rstrip(">").endswith("align1")
    assert shown[names[1]].rstrip(">").endswith("align4")


def test_what_only_the_argument_list_tells_apart_is_kept():
    names = [f"void f<float>({kind})" for kind in ("int", "long")]
    assert len(set(short_names(names, 40).values())) == 2


@pytest.mark.parametrize("width", [1, 24, 31, 41, 80])
def test_a_thousand_names_that_differ_at_the_end(width):
    names = [f"void at::native::kernel_of_many<{'float, ' * 20}{number}>(int)" for number in range(1000)]
    shown = short_names(names, width)
    assert len(set(shown.values())) == 1000
    assert max(map(len, shown.values())) <= max(width, 24)


def test_the_order_of_names_decides_nothing():
    names = [CUTLASS.format(tile, tile) for tile in ("a_64x64_nt", "a_64x64_tn", "b", "b" * 100, "b" * 101)]
    assert short_names(names, 24) == short_names(names[::-1], 24)


@each_trace_file
def test_kernels_of_public_traces_stay_distinct(path):
    names = {row.name for row in kernel_table(read(path))}
    for width in (31, 41, 60):
        shown = short_names(names, width)
        assert set(shown) == names
        assert len(set(shown.values())) == len(names)
        assert max(map(len, shown.values()), default=0) <= width
        assert not any(text.startswith("void ") for text in shown.values())
