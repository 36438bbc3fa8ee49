"""What a compiler's names say of the operators that it replaced."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMED = re.compile(r"(?:triton_(?:[a-z]+_)?fused_|cpp_fused_|fused_)(\w+)")
_UNNAMED = re.compile(
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
    return "" if _UNNAMED.fullmatch(name) else None


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
