"""A kernel's or operator's name without what changes from build to build, from device to device, from run to run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_perfdl.diff.matching.cpp_names import flattened

if TYPE_CHECKING:
    from collections.abc import Iterable

_DENSE = re.compile(r"gemm|cudnn|xmma|fprop|dgrad|wgrad")
_PLAIN = re.compile(r"\w+")
_LONGEST = 4096
"""Characters of a name that the rules see."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A project's own rules, for names that only it knows."""

    own: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Patterns and what stands in their place (`re.sub`), in order; they see the name as the trace has it, before the
    built-in rules do."""


NO_RULES = Rules()
"""Nothing but the built-in rules."""


def rules_of(pairs: Iterable[object]) -> Rules:
    r"""Rules of (pattern, replacement) pairs, in their order.

    >>> normalized("gemm_build77", rules_of([(r"_build\d+$", "")]))
    'gemm'

    Raises
    ------
    ValueError
        One line that says which pair is none, or what is wrong with its pattern or replacement.
    """
    own = []
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ValueError(f"{pair!r} is not a (pattern, replacement) pair")
        text, replacement = pair
        try:
            pattern = re.compile(text)
            # Whether its references to groups exist is found out even where nothing matches.
            pattern.sub(replacement, "")
        except (re.error, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(f"{text!r} -> {replacement!r} is not a valid rewrite rule: {error}") from None
        own.append((pattern, replacement))
    return Rules(tuple(own))


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One of the rules that every project gets."""

    pattern: re.Pattern[str]
    replacement: str
    example: tuple[str, str]
    """A name, and what all the rules make of it."""
    where: re.Pattern[str] | None = None
    """What a name must hold for the rule to apply."""


def _rule(pattern: str, replacement: str, before: str, after: str, where: re.Pattern[str] | None = None) -> BuiltIn:
    return BuiltIn(re.compile(pattern), replacement, (before, after), where)


BUILT_IN = (
    # Copies: what kind of host memory it was says how fast, not what.
    _rule(r"^(Mem(?:cpy|set)(?: \w+)?) \(.*\)$", r"\1", "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
    # Elementwise kernels differ in how they address memory; the function they apply is the operation.
    _rule(
        r"gpu_kernel_impl(?:_nocast)?<(.*)>::lambda\[int\]",
        r"\1",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float> >"
        "(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int)",
        "elementwise_kernel<CUDAFunctor_add<float>>",
    ),
    _rule(
        r"\b(?:vectorized|unrolled|legacy|vectorized_templated)_elementwise_kernel\b",
        "elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
        "elementwise_kernel<CUDAFunctor_add<BFloat16>>",
    ),
    _rule(
        r"::Policy\d+\b",
        "",
        "void cub::DeviceRadixSortExclusiveSumKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, int>(int*)",
        "cub::DeviceRadixSortExclusiveSumKernel<cub::DeviceRadixSortPolicy<long,int>,int>",
    ),
    # Matrix products and convolutions: precision and layout stay; architecture, tile, stages, split of k, alignment,
    # epilogue and edge handling go.
    _rule(
        r"^(?:\w+::)?Kernel2?<(cutlass\w*).*>$",
        r"\1",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_nt_align4>"
        "(cutlass_80_tensorop_s1688gemm_128x64_16x6_nt_align4::Params)",
        "s1688gemm_nt",
    ),
    _rule(
        r"^cutlass(?:\dx)?(?:_sm\d+a?|_\d+)?(?:_(?:wmma|tensorop|simt))*_",
        "",
        "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
        "sgemm_nn",
    ),
    _rule(
        r"^(?:_\dx_)?(?:cudnn_(?:infer_|train_)?)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+a?)_",
        "",
        "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "scudnn_nn",
    ),
    _rule(
        r"^nvjet(?:_sm\d+a?)?_([a-z]+)_.*_([NT]+)$",
        r"nvjet_\1_\2",
        "nvjet_sm100_hsh_64x8_64x16_1x1_v_bz_splitK_NNT",
        "nvjet_hsh_NNT",
    ),
    _rule(
        r"_execute_.*$",
        "",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        "__5x_cublas",
        "xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
        _DENSE,
    ),
    _rule(
        r"_(?:sliced|tilesize|warpsize|warpgroupsize|tensor|ldg|lds|align[abc]*|stages?|splitK|tile|g)\d[\dx]*t?(?=_|$)",
        "",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "scudnn_winograd_nt",
        _DENSE,
    ),
    _rule(r"_\d+x\d+(?:x\d+)*(?=[_<]|$)", "", "ampere_sgemm_32x32_sliced1x4_tn", "sgemm_tn"),
    _rule(
        r"_(?:relu|exp|f2f|stages?|split_?[kK]|strided[AB]?|interior|small|medium|large|xregs|indexed|v\d+)(?=_|$)",
        "",
        "volta_scudnn_128x128_stridedB_splitK_medium_nn_v1",
        "scudnn_nn",
        _DENSE,
    ),
    _rule(
        r"(?<![a-z])fp(?=16_|32_|64_)",
        "f",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_tn",
        "f16_sgemm_f16_tn",
        _DENSE,
    ),
    # The shape of the instruction: only without a type before it does it say the precision (s1688 is tf32).
    _rule(
        r"((?:bf16|f16|tf32|[siu]8|e4m3|e5m2)_)([a-z])\d{3,}(?=gemm|fprop|dgrad|wgrad)",
        r"\1\2",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>"
        "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8::Params)",
        "bf16_sgemm_bf16_tn",
    ),
    # Tensile (ROCm): the transposes of A and B and the types stay.
    _rule(
        r"^(Cijk_A[a-z]+_B[a-z]+)_([A-Z0-9]+)_?(BS(?=_))?.*$",
        r"\1_\2\3",
        "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x144x64_MI16x16x1_SN_LDSB1_AFC1_WG32_8_1",
        "Cijk_Alik_Bljk_BBS",
    ),
    # Collectives: the algorithm and the protocol are chosen by size.
    _rule(
        r"_(?:RING|TREE|NVLS(?:_TREE)?|COLLNET(?:_\w+?)?|PAT)_(?:LL128|LL|SIMPLE)(?=_|$)",
        "",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccl_AllReduce_Sum_f32",
    ),
    _rule(
        r"^nccl(?:Dev)?Kernel_",
        "nccl_",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "nccl_AllReduce_Sum_f32",
    ),
    _rule(r"^(nccl_\w+)_float$", r"\1_f32", "ncclKernel_Reduce_TREE_LL_Sum_float(ncclDevComm*)", "nccl_Reduce_Sum_f32"),
    # Compilers' hashes and numbers.
    _rule(r"^.*\bCompiledFxGraph\b.*$", "CompiledFxGraph", "## Call CompiledFxGraph fx2b3c4d ##", "CompiledFxGraph"),
    _rule(r"^(Torch-Compiled Region).*$", r"\1", "Torch-Compiled Region: 0/1", "Torch-Compiled Region"),
    _rule(r"^graph_\d+_(cpp_)?", r"graph_\1", "graph_0_kernel", "graph_kernel"),
    _rule(r"^graph_cpp_", "cpp_", "graph_0_cpp_fused_gelu_add_2", "cpp_fused_gelu_add"),
    _rule(r"_0[\dcde]*[cde][\dcde]*$", "", "matmul_kernel_0d1d2d3de4de5c", "matmul_kernel", _PLAIN),
    _rule(
        r"(?<![0-9A-Za-z])(?:(?!(?:b?f16|f32|f64)+(?![0-9A-Za-z]))(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}|[a-z2-7]{40,})(?![0-9A-Za-z])",
        "#",
        "attention_9f86d081884c7d65_forward",
        "attention_#_forward",
    ),
    _rule(
        r"(?<=[A-Za-z_])_\d+$", "", "triton_poi_fused_add_relu_12", "triton_poi_fused_add_relu", re.compile(r"^\w+$")
    ),
    _rule(
        r"(Backward)\d+$",
        r"\1",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "autograd::engine::evaluate_function: AddmmBackward",
    ),
)
"""Applied in this order, to what `cpp_names.flattened` makes of the name."""


@lru_cache(maxsize=1 << 14)
def normalized(name: str, rules: Rules = NO_RULES) -> str:
    """The name without what changes from build to build: two names that stay alike are the same operation.

    Precision and layout of a matrix product stay, as do the functions and types of a template; tile, architecture,
    stages, alignment, compile-time constants, hashes and compilers' numbers go.

    >>> normalized("ampere_sgemm_128x64_tn"), normalized("volta_sgemm_64x32_sliced1x4_tn")
    ('sgemm_tn', 'sgemm_tn')
    """
    if len(name) > _LONGEST:
        # Patterns take more than linear time; two that differ behind that are two still.
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{normalized(name[:_LONGEST], rules)}~{digest}"
    for pattern, replacement in rules.own:
        name = pattern.sub(replacement, name)
    text = flattened(name)
    for rule in BUILT_IN:
        if rule.where is None or rule.where.search(text):
            text = rule.pattern.sub(rule.replacement, text)
    return text or name


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SAY_NOTHING = frozenset({"aten", "cuda", "elementwise", "functor", "impl", "kernel", "lambda", "operator", "void"})


@lru_cache(maxsize=1 << 14)
def words(name: str) -> frozenset[str]:
    """The words of a normalized name by which it is like another; never none.

    >>> sorted(words("elementwise_kernel<CUDAFunctor_add<BFloat16>>"))
    ['add', 'b', 'float']
    """
    found = {word.lower() for word in _WORD.findall(name)}
    return frozenset(found - _SAY_NOTHING or found or {name})
