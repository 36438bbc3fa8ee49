"""The kernels of the job, named as their libraries name them, with launch geometry of an H100."""

from __future__ import annotations

from synthesis.nodes import Kernel, Tensor

_BF16 = "c10::BFloat16"
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, {n}ul> >"
    "(int, {functor}, std::array<char*, {n}ul>)"
)
_ADD = f"at::native::CUDAFunctor_add<{_BF16}>"
_GELU = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const"
    "::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}"
)
_GELU_BACKWARD = (
    "at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()()"
    " const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16, c10::BFloat16)#1}"
)
_MASKED_SCALE = (
    "at::native::(anonymous namespace)::masked_scale_kernel<unsigned char, c10::BFloat16, float>(at::Tensor&, "
    "at::Tensor const&, at::Tensor const&, float)::{lambda(c10::BFloat16, unsigned char)#1}"
)
_FILL = f"at::native::FillFunctor<{_BF16}>"
_INFO = "at::cuda::detail::TensorInfo<{}, unsigned int>"
_FLASH = (
    "pytorch_flash::Flash_{way}_kernel_traits<64, 128, 128, {warps}, {more}cutlass::bfloat16_t, "
    "pytorch_flash::Flash_kernel_traits<64, 128, 128, {warps}, cutlass::bfloat16_t> >"
)
_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)"
    "::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<c10::BFloat16, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, float*>"
    "(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)"
    "::FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, "
    "double, double, bool, float*, float*)"
)
_BYTES_PER_NS = 2200
_FLOP_PER_NS = 620_000


def elementwise(functor: str, tensor: Tensor, operands: int) -> Kernel:
    blocks = max(1, -(-tensor.elements // 512))
    ns = 1200 + tensor.bytes * operands // _BYTES_PER_NS
    name = _ELEMENTWISE.format(functor=functor, n=operands)
    return Kernel(name, ns, (blocks, 1, 1), (128, 1, 1), 30, 0, min(100, blocks // 8))


def add(tensor: Tensor) -> Kernel:
    return elementwise(_ADD, tensor, 3)


def gelu(tensor: Tensor) -> Kernel:
    return elementwise(_GELU, tensor, 2)


def gelu_backward(tensor: Tensor) -> Kernel:
    return elementwise(_GELU_BACKWARD, tensor, 3)


def masked_scale(tensor: Tensor) -> Kernel:
    return elementwise(_MASKED_SCALE, tensor, 3)


def fill(tensor: Tensor) -> Kernel:
    return elementwise(_FILL, tensor, 1)


def gemm(m: int, n: int, k: int, layout: str, bias: bool = False) -> Kernel:
    """(m, k) by (k, n); layout as cuBLAS writes it, "tn" for the forward pass of a linear layer."""
    tile_m, tile_n = (128, 256) if n >= 2048 else (64, 128)
    tiles = -(-m // tile_m) * -(-n // tile_n)
    name = f"nvjet_tst_{tile_m}x{tile_n}_64x4_2x1_v_bz_{'coopA_bias' if bias else 'coopA'}_{layout.upper()}T"
    ns = 2500 + 2 * m * n * k // _FLOP_PER_NS
    return Kernel(name, ns, (2, min(66, tiles), 1), (384, 1, 1), 168, 213_248, 19)


def layer_norm(tensor: Tensor) -> Kernel:
    rows = tensor.elements // tensor.shape[-1]
    name = (
        f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{_BF16}, float, false>(int, float, "
        f"{_BF16} const*, {_BF16} const*, {_BF16} const*, float*, float*, {_BF16}*)"
    )
    return Kernel(name, 1500 + tensor.bytes * 2 // _BYTES_PER_NS, (rows, 1, 1), (32, 4, 1), 36, 24, 100)


def layer_norm_backward(tensor: Tensor) -> tuple[Kernel, Kernel]:
    """For the input and for weight and bias."""
    rows, width = tensor.elements // tensor.shape[-1], tensor.shape[-1]
    grad_input = (
        f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{_BF16}, float, false>("
        f"{_BF16} const*, {_BF16} const*, float const*, float const*, {_BF16} const*, {_BF16}*, int)"
    )
    gamma_beta = (
        f"void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<{_BF16}, float, 32u, 32u, 256u, "
        f"true, true, false>("
        f"long, long, {_BF16} const*, {_BF16} const*, float const*, float const*, {_BF16}*, {_BF16}*)"
    )
    ns = 1800 + tensor.bytes * 3 // _BYTES_PER_NS
    return (
        Kernel(grad_input, ns, (rows, 1, 1), (128, 1, 1), 40, 16, 94),
        Kernel(gamma_beta, ns * 3 // 4, (width // 32, 8, 1), (32, 32, 1), 62, 8448, 50),
    )


def dropout(tensor: Tensor) -> Kernel:
    infos = ", ".join(_INFO.format(kind) for kind in (f"{_BF16} const", _BF16, "bool"))
    name = (
        f"void at::native::(anonymous namespace)::fused_dropout_kernel_vec<{_BF16}, float, unsigned int, 1, 8, bool>("
        f"{infos}, unsigned int, float, at::PhiloxCudaState)"
    )
    return Kernel(name, 1600 + tensor.bytes * 3 // _BYTES_PER_NS, (1056, 1, 1), (256, 1, 1), 40, 0, 75)


def attention(batch: int, heads: int, length: int, width: int) -> Kernel:
    traits = _FLASH.format(way="fwd", warps=4, more="false, false, ")
    flags = "false, true, false, false, false, true, false, false"
    name = f"void pytorch_flash::flash_fwd_kernel<{traits}, {flags}>(pytorch_flash::Flash_fwd_params)"
    ns = 3000 + 2 * batch * heads * length * length * width // (_FLOP_PER_NS // 2)
    return Kernel(name, ns, (length // 128, batch, heads), (128, 1, 1), 255, 49_152, 19)


def attention_backward(batch: int, heads: int, length: int, width: int) -> tuple[Kernel, ...]:
    """Preparation, the work, and the conversion of the queries' gradient."""
    traits = _FLASH.format(way="bwd", warps=8, more="4, 4, 4, false, false, ")
    blocks = (length // 128, batch, heads)
    ns = 6000 + 5 * batch * heads * length * length * width // (_FLOP_PER_NS // 2)
    params = "(pytorch_flash::Flash_bwd_params)"
    dot = f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, {traits}>{params}"
    main = (
        f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{traits}, true, true, false, false, true, "
        f"true, false>{params}"
    )
    convert = f"void pytorch_flash::flash_bwd_convert_dq_kernel<{traits}>{params[:-1]}, int)"
    return (
        Kernel(dot, ns // 10, blocks, (256, 1, 1), 96, 0, 62),
        Kernel(main, ns, blocks, (256, 1, 1), 255, 147_456, 12),
        Kernel(convert, ns // 14, blocks, (256, 1, 1), 48, 16_384, 62),
    )


def embedding(rows: int, width: int) -> Kernel:
    infos = ", ".join(_INFO.format(kind) for kind in (_BF16, f"{_BF16} const", "long const"))
    name = (
        f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{_BF16}, long, unsigned int, 2, 2, -2, true>("
        f"{infos}, int, int, unsigned int, unsigned int, long)"
    )
    return Kernel(name, 1500 + rows * width * 4 // _BYTES_PER_NS, (1056, 1, 1), (128, 1, 1), 32, 0, 100)


def embedding_backward(rows: int, width: int) -> tuple[Kernel, ...]:
    """The sort of the indices in three kernels, and the sum."""
    sort = (
        "void at_cuda_detail::cub::DeviceRadixSort{}Kernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, long, "
        "int>::Policy900, {}>({})"
    )
    histogram = sort.format("Histogram", "false, long, int", "int*, long const*, int, int, int")
    onesweep = sort.format(
        "Onesweep", "false, long, long, int, int, int", "int*, int*, int*, int const*, long*, long const*, int, int"
    )
    total = (
        f"void at::native::(anonymous namespace)::sum_and_scatter<{_BF16}, long>(long const*, {_BF16}*, long, long "
        "const*, long const*, float const*, long const*, long const*, long, long)"
    )
    return (
        Kernel(histogram, 4000, (132, 1, 1), (256, 1, 1), 34, 11_264, 12),
        Kernel(onesweep, 9000, (rows // 1536 + 1, 1, 1), (384, 1, 1), 56, 37_888, 19),
        Kernel(total, 3000 + rows * width * 4 // _BYTES_PER_NS, (width // 32, 64, 1), (32, 8, 1), 28, 0, 88),
    )


def log_softmax(rows: int, width: int, backward: bool) -> Kernel:
    way = "Backward" if backward else "Forward"
    name = (
        f"void at::native::(anonymous namespace)::cunn_SoftMax{way}<8, {_BF16}, float, {_BF16}, at::native::(anonymous "
        f"namespace)::LogSoftMax{way}Epilogue>({_BF16}*, {_BF16} const*, int)"
    )
    return Kernel(name, 2000 + rows * width * 6 // _BYTES_PER_NS, (rows, 1, 1), (1024, 1, 1), 40, 128, 75)


def nll_loss(backward: bool) -> Kernel:
    way = "backward" if backward else "forward"
    name = (
        f"void at::native::(anonymous namespace)::nll_loss_{way}_reduce_cuda_kernel_2d<{_BF16}, float, long>({_BF16}*, "
        f"{_BF16}*, {_BF16} const*, long const*, {_BF16} const*, bool, long, long, long, long)"
    )
    return Kernel(name, 6200, (1, 1, 1), (32, 1, 1), 42, 128, 0)


def column_sum(tensor: Tensor) -> Kernel:
    functor = (
        f"at::native::func_wrapper_t<{_BF16}, at::native::sum_functor<{_BF16}, float, {_BF16}>::operator()("
        "at::TensorIterator&)::{lambda(float, float)#1}>"
    )
    operation = f"at::native::ReduceOp<{_BF16}, {functor}, unsigned int, {_BF16}, 4, 4>"
    name = f"void at::native::reduce_kernel<128, 4, {operation} >({operation})"
    ns = 2200 + tensor.bytes // _BYTES_PER_NS
    return Kernel(name, ns, (tensor.shape[-1] // 128, 8, 1), (32, 4, 1), 40, 2064, 12)


def adam(tensors: int, elements: int) -> Kernel:
    return Kernel(_ADAM, 3000 + elements * 14 // _BYTES_PER_NS, (tensors * 9, 1, 1), (512, 1, 1), 48, 0, 63)


def all_reduce(elements: int, ranks: int) -> Kernel:
    extra = (
        f'"Collective name": "allreduce", "In msg nelems": {elements}, "Out msg nelems": {elements}, '
        f'"Group size": {ranks}, "dtype": "BFloat16", "In split size": [], "Out split size": [], '
        f'"Process Group Name": "0", "Process Group Description": "default_pg", '
        f'"Process Group Ranks": {list(range(ranks))}'
    )
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return Kernel(name, 14_000 + elements // 80, (16, 1, 1), (544, 1, 1), 96, 82_240, 1, "communication", extra)
