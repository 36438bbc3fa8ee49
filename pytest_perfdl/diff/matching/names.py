"""Names of kernels, operators and compiled regions without what changes from build to build or device to device."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_perfdl.diff.matching.stages import Weighted
    from pytest_perfdl.model.step_part import Part


# A C++ kernel's demangled name without what the compiler and the dispatch put there.


_ROUNDS = 64
"""Levels of brackets that are looked into: each takes a pass over the name."""
_IS_CPP = re.compile(r"[<{]|\w\(|::\(|^void ")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::|<unnamed>::")
_LAMBDA = re.compile(
    r"\{lambda\(([^{}]*)\)(?:#\d+)?\}"
    r"|\[lambda\(([^\[\]]*)\) ?\(instance \d+\)\]"
    r"|'lambda\d*'\(([^()']*)\)"
)
_NAMESPACES = re.compile(
    r"\b(?:at|native|c10|cuda|hip|detail|std|memory|templates|binary_internal|at_(?:cuda|hip)_detail|cutlass"
    r"|(?:pytorch_)?flash)::"
)
_PARENTHESES = re.compile(r"\([^()]*\)")
_QUALIFIERS = re.compile(r"\s*\bconst\b|\s*[*&]+")
_DISPATCH = re.compile(r"lambda\[\]::operator::")
_TEMPLATE = re.compile(r"<([^<>]*)>")
_CONSTANT = re.compile(r"-?\d[\d.]*[uUlLf]*|true|false|[^A-Za-z]*")
_ACCESS = re.compile(
    r"(?:Array|array|(?:Trivial)?OffsetCalculator|(?:Load|Store)With\w*|MemBoundScaling)(?:$|\u27e8|::)"
)
_RETURNED = re.compile(r"^\S*[^ :] (?=\S+$)")


def flattened(name: str) -> str:
    """A C++ name as the function with the types that it is made for, one of each; any other name as it is.

    Gone are return type and parameters, which follow from the rest, namespaces of torch and of the standard library,
    compile-time constants (block sizes, vector widths, flags), the numbers of lambdas, and how elements are addressed.

    >>> flattened("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    ...           "at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)")
    'vectorized_elementwise_kernel<FillFunctor<float>>'
    """
    if not _IS_CPP.search(name):
        return name
    text = _NAMESPACES.sub("", _ANONYMOUS.sub("", name))
    text = _until_same(_LAMBDA, _lambda, text)
    text = _until_same(_PARENTHESES, "", text)
    text = _DISPATCH.sub("", _QUALIFIERS.sub("", text))
    # Inner brackets become others, so that those around them are the innermost of the next round.
    text = _until_same(_TEMPLATE, _arguments, text)
    text = _RETURNED.sub("", text.strip()).replace("\u27e8", "<").replace("\u27e9", ">")
    return text or name


def _until_same(pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(_ROUNDS):
        text, changed = pattern.subn(replacement, text)
        if not changed:
            break
    return text


def _lambda(found: re.Match[str]) -> str:
    arguments = next(group for group in found.groups() if group is not None)
    return f"lambda[{arguments.replace(', ', ';')}]"


def _arguments(found: re.Match[str]) -> str:
    arguments = (argument.strip().replace(" ", "_") for argument in _top_level(found[1]))
    kept = dict.fromkeys(
        argument for argument in arguments if not (_CONSTANT.fullmatch(argument) or _ACCESS.match(argument))
    )
    return f"\u27e8{','.join(kept)}\u27e9" if kept else ""


def _top_level(arguments: str) -> list[str]:
    """Split at the commas that are in no inner template."""
    found, depth = [""], 0
    for piece in re.split(r"([,\u27e8\u27e9])", arguments):
        if piece == "," and not depth:
            found.append("")
            continue
        depth += (piece == "\u27e8") - (piece == "\u27e9")
        found[-1] += piece
    return found


# A kernel's or operator's name without what changes from build to build, from device to device, from run to run.


_DENSE = re.compile(r"gemm|cudnn|xmma|fprop|dgrad|wgrad")
_PLAIN = re.compile(r"\w+")
_LONGEST = 4096
"""Characters of a name that the rules see."""


Rules: TypeAlias = tuple[tuple[re.Pattern[str], str], ...]
"""A project's own, for names that only it knows: patterns and what stands in their place (`re.sub`), in order. They see
the name as the trace has it, before the built-in rules do."""
NO_RULES: Rules = ()
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
    return tuple(own)


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
"""Applied in this order, to what `names.flattened` makes of the name."""


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
    for pattern, replacement in rules:
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


# What a compiler's names say of the operators that it replaced.


_NAMED = re.compile(r"(?:triton_(?:[a-z]+_)?fused_|cpp_fused_|fused_)(\w+)")
_GRAPHS = re.compile(
    r"triton_?|triton_\w+|cpp_fused|graph_\w+|CompiledFxGraph|CompiledFunction\w*|Torch-Compiled Region"
    r"|nvfuser\w*|(?:CudaCodeGen::)?kernel\d+(?:<.*>)?"
)
_OPERATOR = re.compile(r"\w+::(\w+?)_*")
_BACKEND = re.compile(r"(?:cudnn|miopen|mkldnn|onednn|mkl|xnnpack|mps)_(?=\w*(?:conv|batch_norm|rnn|linear))")
_BACKEND_NODE = re.compile(r"(?:Cudnn|Miopen|Mkldnn)(?=\w*Backward)")
_ATTENTION = re.compile(
    r"(scaled_dot_product)_(?:fused_|flash|efficient|cudnn)\w*?_?(attention)(?:_overrideable|_for_cpu)*"
)
_ATTENTION_NODE = re.compile(r"(ScaledDotProduct)(?:Fused|Flash|Efficient|Cudnn)(Attention)(?:Overrideable|ForCpu)*")


@lru_cache(maxsize=1 << 14)
def replaced(name: str) -> str | None:
    """The operators that a compiler's kernel or region stands for, joined by "_"; `None` for what no compiler made.

    Takes a normalized name. Inductor names its kernels after the operators of the graph (`original_aten`), which makes
    the list ambiguous only where an operator's name holds another's; regions and nvFuser's kernels name none: "".

    >>> replaced("triton_poi_fused_add_native_layer_norm"), replaced("CompiledFxGraph"), replaced("aten::add")
    ('add_native_layer_norm', '', None)
    """
    if found := _NAMED.fullmatch(name):
        return found[1]
    return "" if _GRAPHS.fullmatch(name) else None


@lru_cache(maxsize=1 << 14)
def bare(operator: str) -> str:
    """An operator's name as Inductor would put it into a kernel's; empty for what is no operator.

    >>> bare("aten::add_"), bare("aten::_softmax"), bare("Optimizer.step#SGD.step")
    ('add', '_softmax', '')
    """
    found = _OPERATOR.fullmatch(operator)
    return found[1] if found else ""


@lru_cache(maxsize=1 << 14)
def neutral(operator: str) -> str:
    """A normalized operator's name without the library that implements it.

    >>> neutral("aten::cudnn_convolution"), neutral("aten::miopen_convolution")
    ('aten::convolution', 'aten::convolution')
    >>> neutral("aten::_scaled_dot_product_flash_attention"), neutral("ScaledDotProductEfficientAttentionBackward")
    ('aten::_scaled_dot_product_attention', 'ScaledDotProductAttentionBackward')
    """
    text = _BACKEND_NODE.sub("", _BACKEND.sub("", operator))
    return _ATTENTION_NODE.sub(r"\1\2", _ATTENTION.sub(r"\1_\2", text))


# A part as it is compared: its name and its place without what changes from build to build.


_NUMBER = re.compile(r"\(\d+\)")


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a part."""

    part: Part
    count: float
    ns: float
    exact: str
    """The name as the trace has it; of idle time, whose name is a class, also what ran meanwhile, without numbers of
    lines."""
    name: str
    """The same, normalized."""
    path: tuple[str, ...]
    """Normalized, and without the libraries that implement the operators."""
    replaced: str | None
    """Operators that it stands for if a compiler made it (`names.replaced`)."""

    @property
    def operator(self) -> str:
        """The last of the path."""
        return self.path[-1] if self.path else ""

    @property
    def place(self) -> tuple[str, tuple[str, ...], str, str, str]:
        """What it shares with all that one operator does in one place."""
        return (self.part.kind, self.path, self.part.shapes, self.part.module, self.part.phase)

    @property
    def operators(self) -> frozenset[str]:
        """Bare names of the operators around it and its own; the words of its name if there are none."""
        around = (*self.part.path, self.part.name) if self.part.kind == "operator" else self.part.path
        found = frozenset(filter(None, map(bare, around)))
        return found or words(self.name)


def about(weighted: Weighted, rules: Rules) -> About:
    """What is known of a part, by these rules for names."""
    part = weighted.part
    name = normalized(part.name, rules)
    exact = part.name
    if part.kind == "idle":
        exact = name = " ".join(filter(None, (name, unnumbered(part.function), unnumbered(part.line))))
    # Annotations around idle time are no operators.
    path = () if part.kind == "idle" else _path(part.path, rules)
    return About(part, weighted.count, weighted.ns, exact, name, path, replaced(name))


@lru_cache(maxsize=1 << 14)
def unnumbered(line: str) -> str:
    """A place in a source file without the number of its line.

    >>> unnumbered("train.py(12): step")
    'train.py: step'
    """
    return _NUMBER.sub("", line)


@lru_cache(maxsize=1 << 14)
def _path(path: tuple[str, ...], rules: Rules) -> tuple[str, ...]:
    return tuple(neutral(normalized(operator, rules)) for operator in path)
