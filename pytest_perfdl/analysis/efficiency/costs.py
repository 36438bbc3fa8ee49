"""What operators have to compute and to move at least: cost models by operator, applied to the operators of a trace."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.analysis.events.operators import shapes_text
from pytest_perfdl.trace.model import Category, Rows, Trace, once

# What an operator has to compute and to move at least, from the shapes and arguments that a trace records.


Shape = tuple[int, ...]

_TYPES = {
    "bool": ("bool", 1),
    "unsigned char": ("uint8", 1),
    "signed char": ("int8", 1),
    **dict.fromkeys(("short", "short int"), ("int16", 2)),
    "int": ("int32", 4),
    **dict.fromkeys(("long", "long int", "long long"), ("int64", 8)),
    **dict.fromkeys(
        (f"c10::Float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")), ("float8", 1)
    ),
    **dict.fromkeys(("c10::Half", "at::Half"), ("float16", 2)),
    **dict.fromkeys(("c10::BFloat16", "at::BFloat16"), ("bfloat16", 2)),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}
"""Element types as `Input type` names them, in the order in which they promote, and their bytes."""

_RANK = {name: rank for rank, (name, _) in enumerate(_TYPES.values())}
_SIZE = dict(_TYPES.values())
_CODES = {5: "float16", 6: "float32", 7: "float64", 15: "bfloat16", 23: "float8", 24: "float8"}
"""c10::ScalarType of an argument that asks for an element type."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The least that one call has to do."""

    flops: int
    """Floating-point operations; one fused multiply-add is 2."""
    bytes: int
    """Bytes of every input read once and every output written once."""
    dtype: str
    """Element type that the arithmetic is done on."""
    overwritten: int = 0
    """Bytes written where others were read, by operators in place: memory that is used once."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument that is a tensor."""

    shape: Shape
    dtype: str
    stored: int
    """Elements in memory: those that differ in a dimension of stride 0 (expanded) are one."""

    @property
    def bytes(self) -> int:
        """Bytes to read it once."""
        return self.stored * _SIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """The arguments of one operator by position; what is no tensor, or not recorded, is `None` or empty."""

    arguments: tuple[Tensor | None, ...]
    texts: tuple[str, ...]
    """`Concrete Inputs`: other arguments as text."""

    @classmethod
    def recorded(
        cls, dims: Sequence[object], types: Sequence[object], strides: Sequence[object], texts: Sequence[object]
    ) -> OperatorCall:
        """A call as `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs` have it."""
        arguments = []
        for index, kind in enumerate(types):
            shape = dims[index] if index < len(dims) else None
            stride = strides[index] if index < len(strides) else None
            arguments.append(_tensor(shape, kind, stride))
        return cls(tuple(arguments), tuple(text if isinstance(text, str) else "" for text in texts))

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors, in order."""
        return [tensor for tensor in self.arguments if tensor is not None]

    def tensor(self, index: int) -> Tensor | None:
        """The argument at a position, if it is a tensor."""
        return self.arguments[index] if index < len(self.arguments) else None

    def read(self, *indices: int) -> int:
        """Bytes of the tensors at these positions."""
        return sum(tensor.bytes for tensor in map(self.tensor, indices) if tensor is not None)

    def text(self, index: int) -> str:
        """The argument at a position as text, empty if it is not recorded."""
        return self.texts[index] if index < len(self.texts) else ""

    def integers(self, index: int, count: int) -> Shape | None:
        """A list of integers at a position, one value standing for all; `None` if it is not recorded."""
        found = tuple(map(int, re.findall(r"-?\d+", self.text(index))))
        return found * count if len(found) == 1 else found if len(found) == count else None

    def flag(self, index: int) -> bool | None:
        """A truth value at a position; `None` if it is not recorded."""
        return {"True": True, "False": False}.get(self.text(index))


Model = Callable[[OperatorCall], "OperatorCost | None"]


def size_of(dtype: str) -> int:
    """Bytes of one element.

    >>> size_of("bfloat16")
    2
    """
    return _SIZE[dtype]


def bytes_of_type(text: str) -> int:
    """Bytes of one element of a type as `Input type` names it; 4 for one that is not known.

    >>> bytes_of_type("c10::BFloat16"), bytes_of_type("")
    (2, 4)
    """
    return _TYPES.get(text, ("", 4))[1]


def requested_dtype(call: OperatorCall, index: int) -> str | None:
    """The element type that an argument asks for, `None` if it does not or is not known."""
    text = call.text(index)
    return _CODES.get(int(text)) if text.isdecimal() else None


def promote(tensors: Sequence[Tensor]) -> str:
    """Element type of an elementwise result: the highest of the tensors with dimensions, else of all."""
    weighty = [tensor for tensor in tensors if tensor.shape] or tensors
    return max((tensor.dtype for tensor in weighty), key=_RANK.__getitem__)


def broadcast(tensors: Sequence[Tensor]) -> Shape | None:
    """The shape to which shapes broadcast; `None` if they do not."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    shape = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
    return shape if all(size in (1, to) for row in padded for size, to in zip(row, shape, strict=True)) else None


def _tensor(shape: object, kind: object, stride: object) -> Tensor | None:
    known = _TYPES.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        return None
    strides = stride if isinstance(stride, list) and len(stride) == len(shape) else [1] * len(shape)
    stored = math.prod(size for size, step in zip(shape, strides, strict=True) if step != 0 or size == 0)
    return Tensor(tuple(shape), known[0], stored)


# Cost models by operator: matrix products, convolutions, attention, normalization, and what only moves data.


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SAME = _words(
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan tanh sigmoid erf relu gelu"
    " silu mish elu selu celu hardtanh hardswish hardsigmoid leaky_relu softplus clamp clamp_min clamp_max floor ceil"
    " round trunc sign nan_to_num tril triu cumsum clone softmax _softmax log_softmax _log_softmax logical_not"
    " bitwise_not isnan isinf isfinite"
)
_PAIRS = _words(
    "add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum atan2 masked_fill lerp"
    " threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward hardswish_backward"
    " hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward logit_backward native_dropout_backward"
    " _softmax_backward_data _log_softmax_backward_data bitwise_and bitwise_or bitwise_xor"
    " eq ne lt le gt ge logical_and logical_or logical_xor"
)
_TRIPLES = _words("where addcmul addcdiv")
_TRUTH = _words("eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite")
"""Elementwise operators whose result is a truth value."""

_REDUCED_AT = {
    **dict.fromkeys(_words("sum mean nansum amax amin max min argmax argmin any all var std logsumexp"), 1),
    **dict.fromkeys(_words("norm linalg_vector_norm"), 2),
}
"""Position of the dimensions that a reduction reduces."""

_NORMS = _words(
    "layer_norm native_layer_norm batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm group_norm"
    " native_group_norm instance_norm rms_norm _fused_rms_norm native_layer_norm_backward native_batch_norm_backward"
    " cudnn_batch_norm_backward miopen_batch_norm_backward native_group_norm_backward _fused_rms_norm_backward"
)


def cost_model(name: str) -> Model | None:
    """The model of an operator, `aten::addmm` or `aten::add_`; `None` if it has none.

    A model yields `None` for a call whose arguments the trace does not hold.
    """
    plain = name.removeprefix("aten::")
    if plain in _MODELS:
        return _MODELS[plain]
    original = plain.removesuffix("_")
    return _in_place(original) if original != plain and original in _IN_PLACE else None


@cache
def _in_place(name: str) -> Model:
    """The model of an operator that writes its result over its first argument."""
    model = _MODELS[name]

    def in_place(call: OperatorCall) -> OperatorCost | None:
        cost, target = model(call), call.tensor(0)
        return None if cost is None or target is None else replace(cost, overwritten=target.bytes)

    return in_place


def _product(first: int, second: int, *added: int) -> Model:
    """Matrix product [..., m, k] x [..., k, n]: 2 m n k FLOPs for each of the batch."""

    def model(call: OperatorCall) -> OperatorCost | None:
        left, right = call.tensor(first), call.tensor(second)
        if left is None or right is None or not left.shape or not right.shape:
            return None
        rows = left.shape if len(left.shape) > 1 else (1, *left.shape)
        columns = right.shape if len(right.shape) > 1 else (*right.shape, 1)
        if rows[-1] != columns[-2]:
            return None
        batch = broadcast([Tensor(rows[:-2], left.dtype, 0), Tensor(columns[:-2], left.dtype, 0)])
        if batch is None:
            return None
        size = math.prod(batch) * rows[-2] * columns[-1]
        written = size * size_of(left.dtype)
        return OperatorCost(2 * size * rows[-1], call.read(first, second, *added) + written, left.dtype)

    return model


def _linear(call: OperatorCall) -> OperatorCost | None:
    """[..., k] x [n, k] transposed, and a bias: 2 m n k FLOPs."""
    data, weight = call.tensor(0), call.tensor(1)
    if data is None or weight is None or not data.shape or data.shape[-1:] != weight.shape[-1:]:
        return None
    size = math.prod(data.shape[:-1]) * math.prod(weight.shape[:-1])
    return OperatorCost(2 * size * data.shape[-1], call.read(0, 1, 2) + size * size_of(data.dtype), data.dtype)


def _scaled_product(call: OperatorCall) -> OperatorCost | None:
    """As a matrix product, of 8-bit operands, with scales, and a result of the type asked for."""
    cost = _product(0, 1, 2, 3, 4)(call)
    left, right = call.tensor(0), call.tensor(1)
    if cost is None or left is None or right is None or not len(left.shape) == len(right.shape) == 2:
        return None
    size = left.shape[0] * right.shape[1]
    wanted = requested_dtype(call, 6) or left.dtype
    return OperatorCost(cost.flops, cost.bytes + size * (size_of(wanted) - size_of(left.dtype)), cost.dtype)


def _convolution(stride: int, padding: int, dilation: int, *, transposed: int | None = None, output: int = -1) -> Model:
    """Convolution by the positions of its arguments: 2 FLOPs per output element, input channel of its group and tap.

    `transposed` is the position of the flag that says so, and `output` that of the padding of a transposed output;
    an operator that is always transposed gives -1 for the flag.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        data, weight = call.tensor(0), call.tensor(1)
        if data is None or weight is None or len(weight.shape) < 3:
            return None
        taps = weight.shape[2:]
        shape = data.shape if len(data.shape) == len(weight.shape) else (1, *data.shape)
        backwards = transposed == -1 or (transposed is not None and call.flag(transposed))
        steps, spread = call.integers(stride, len(taps)), call.integers(dilation, len(taps))
        border = _padding(call, padding, taps, spread)
        if steps is None or spread is None or border is None or len(shape) != len(weight.shape) or min(steps) < 1:
            return None
        if backwards:
            extra = call.integers(output, len(taps)) or (0,) * len(taps)
            groups = _groups(call, transposed)
            if groups is None:
                return None
            sizes = tuple(
                max(0, (size - 1) * step - around + wide * (tap - 1) + more + 1)
                for size, step, around, wide, tap, more in zip(
                    shape[2:], steps, border, spread, taps, extra, strict=True
                )
            )
            written = shape[0] * weight.shape[1] * groups * math.prod(sizes)
            flops = 2 * math.prod(shape) * math.prod(weight.shape[1:])
        else:
            sizes = tuple(
                max(0, (size + around - wide * (tap - 1) - 1) // step + 1)
                for size, step, around, wide, tap in zip(shape[2:], steps, border, spread, taps, strict=True)
            )
            written = shape[0] * weight.shape[0] * math.prod(sizes)
            flops = 2 * written * math.prod(weight.shape[1:])
        return OperatorCost(flops, call.read(0, 1, 2) + written * size_of(data.dtype), data.dtype)

    return model


def _pool(ceil: int, *, dilated: bool = False, indices: int = 0) -> Model:
    """Pooling of images: an addition or a comparison for each element of the result and tap of its window.

    Every input is read once; the result, and so many bytes of indices an element, written. `ceil` is the position of
    the flag that rounds the result's size up.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        data, taps, border = call.tensor(0), call.integers(1, 2), call.integers(3, 2)
        # Without a stride it is the kernel's size.
        steps = taps if call.text(2) in ("", "[]") else call.integers(2, 2)
        spread = call.integers(4, 2) if dilated else (1, 1)
        up = call.flag(ceil)
        if data is None or len(data.shape) < 3 or up is None:
            return None
        if taps is None or steps is None or border is None or spread is None or min(steps) < 1:
            return None
        sizes = []
        for size, tap, step, around, wide in zip(data.shape[-2:], taps, steps, border, spread, strict=True):
            left = size + 2 * around - wide * (tap - 1) - 1
            number = (left + (step - 1 if up else 0)) // step + 1
            # The last window begins within the image or the padding before it.
            sizes.append(number - 1 if up and (number - 1) * step >= size + around else number)
        written = math.prod(data.shape[:-2]) * math.prod(max(size, 0) for size in sizes)
        moved = data.bytes + written * (size_of(data.dtype) + indices)
        return OperatorCost(written * math.prod(taps), moved, data.dtype)

    return model


def _padding(call: OperatorCall, index: int, taps: Shape, spread: Shape | None) -> Shape | None:
    """Elements added in each dimension, both sides together."""
    if call.text(index) == "valid":
        return (0,) * len(taps)
    if call.text(index) == "same":
        return tuple(wide * (tap - 1) for wide, tap in zip(spread, taps, strict=True)) if spread else None
    one_side = call.integers(index, len(taps))
    return None if one_side is None else tuple(2 * size for size in one_side)


def _groups(call: OperatorCall, transposed: int | None) -> int | None:
    """Groups of a convolution: behind flag and output padding, or behind the output padding of a transposed one."""
    text = call.text(6 if transposed == -1 else 8)
    return int(text) if text.isdecimal() else None


def _convolution_backward(call: OperatorCall) -> OperatorCost | None:
    """The FLOPs of the forward convolution for each of input and weight that gets a gradient."""
    gradient, data, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    wanted = re.findall("True|False", call.text(10))
    if gradient is None or data is None or weight is None or len(wanted) != 3 or len(gradient.shape) < 2:
        return None
    outputs = data if call.flag(7) else gradient
    forward = 2 * math.prod(outputs.shape) * math.prod(weight.shape[1:])
    for_data, for_weight, for_bias = (text == "True" for text in wanted)
    # The gradient of the one needs the other, and has its own size.
    moved = gradient.bytes + (for_data + for_weight) * (data.bytes + weight.bytes)
    if for_bias:
        moved += gradient.shape[1] * size_of(gradient.dtype)
    return OperatorCost((for_data + for_weight) * forward, moved, gradient.dtype)


def _attention(causal: int, *, mask: int | None = None, backward: bool = False) -> Model:
    """Attention [..., s, d]: 2 (d + d_v) FLOPs for each pair of query and key that is not masked by causality.

    The backward pass has five matrix products where the forward pass has two, as torch.utils.flop_counter counts them.
    """
    first = 1 if backward else 0

    def model(call: OperatorCall) -> OperatorCost | None:
        query, key, value = map(call.tensor, range(first, first + 3))
        pairs = _pairs(query, key, call.flag(causal))
        if query is None or value is None or pairs is None or not value.shape:
            return None
        width, result = query.shape[-1], value.shape[-1]
        if backward:
            moved = sum(tensor.bytes for tensor in call.tensors) + call.read(1, 2, 3)
            return OperatorCost(2 * pairs * (3 * width + 2 * result), moved, query.dtype)
        moved = call.read(0, 1, 2, *(() if mask is None else (mask,)))
        moved += math.prod(query.shape[:-1]) * result * size_of(query.dtype)
        return OperatorCost(2 * pairs * (width + result), moved, query.dtype)

    return model


def _pairs(query: Tensor | None, key: Tensor | None, causal: bool | None) -> int | None:
    """Pairs of query and key: all of them, or those with the key not behind the query."""
    if query is None or key is None or causal is None or len(query.shape) < 3 or len(key.shape) < 3:
        return None
    batch, queries, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    if not causal:
        return batch * queries * keys
    square = min(queries, keys)
    return batch * (square * (square + 1) // 2 + (queries - square) * keys)


def _norm(call: OperatorCall) -> OperatorCost | None:
    """Every input read, and a result as large as the first; statistics are small and left out."""
    tensors = call.tensors
    if not tensors:
        return None
    return OperatorCost(0, sum(tensor.bytes for tensor in tensors) + _whole(tensors[0]), tensors[0].dtype)


def _whole(tensor: Tensor) -> int:
    """Bytes of a new tensor of the same shape."""
    return math.prod(tensor.shape) * size_of(tensor.dtype)


def _elementwise(name: str, count: int) -> Model:
    """The first `count` tensors read, and their broadcast written."""

    def model(call: OperatorCall) -> OperatorCost | None:
        tensors = call.tensors[:count]
        shape = broadcast(tensors) if tensors else None
        if shape is None:
            return None
        dtype = promote(tensors)
        written = math.prod(shape) * (1 if name in _TRUTH else size_of(dtype))
        return OperatorCost(0, sum(tensor.bytes for tensor in tensors) + written, dtype)

    return model


def _copy(call: OperatorCall) -> OperatorCost | None:
    """The source, the second argument, read and the first written."""
    target, source = call.tensor(0), call.tensor(1)
    return None if target is None or source is None else OperatorCost(0, source.bytes + _whole(target), target.dtype)


def _fill(call: OperatorCall) -> OperatorCost | None:
    target = call.tensor(0)
    return None if target is None else OperatorCost(0, _whole(target), target.dtype)


def _dropout(call: OperatorCall) -> OperatorCost | None:
    """The input read, the result and a mask of one byte per element written."""
    data = call.tensor(0)
    if data is None:
        return None
    return OperatorCost(0, data.bytes + _whole(data) + math.prod(data.shape), data.dtype)


def _reduction(name: str, at: int) -> Model:
    """The input read and the result written: what its recorded dimensions leave, or else one element."""

    def model(call: OperatorCall) -> OperatorCost | None:
        data = call.tensor(0)
        if data is None:
            return None
        if name in ("max", "min") and call.tensor(1) is not None:
            return _elementwise(name, 2)(call)
        text = call.text(at)
        listed = text.startswith("[") or (name in ("max", "min", "argmax", "argmin", "any", "all") and text != "")
        reduced = {int(number) for number in re.findall(r"-?\d+", text)} if listed else set()
        rank = len(data.shape)
        kept = [size for index, size in enumerate(data.shape) if not {index, index - rank} & reduced]
        written = (math.prod(kept) if reduced else 1) * (8 if name.startswith("arg") else size_of(data.dtype))
        return OperatorCost(0, data.bytes + written, data.dtype)

    return model


_MODELS: dict[str, Model] = {
    "mm": _product(0, 1),
    "_int_mm": _product(0, 1),
    "bmm": _product(0, 1),
    "mv": _product(0, 1),
    "dot": _product(0, 1),
    "matmul": _product(0, 1),
    "addmm": _product(1, 2, 0),
    "_addmm_activation": _product(1, 2, 0),
    "addmv": _product(1, 2, 0),
    "baddbmm": _product(1, 2, 0),
    "linear": _linear,
    "_scaled_mm": _scaled_product,
    **{f"conv{rank}d": _convolution(3, 4, 5) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _convolution(3, 4, 7, transposed=-1, output=5) for rank in (1, 2, 3)},
    "convolution": _convolution(3, 4, 5, transposed=6, output=7),
    "_convolution": _convolution(3, 4, 5, transposed=6, output=7),
    "mkldnn_convolution": _convolution(4, 3, 5),
    "cudnn_convolution": _convolution(3, 2, 4),
    "miopen_convolution": _convolution(4, 3, 5),
    "convolution_backward": _convolution_backward,
    "max_pool2d": _pool(5, dilated=True),
    "max_pool2d_with_indices": _pool(5, dilated=True, indices=8),
    "avg_pool2d": _pool(4),
    "scaled_dot_product_attention": _attention(5, mask=3),
    "_scaled_dot_product_attention_math": _attention(5, mask=3),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6, mask=3),
    "_scaled_dot_product_cudnn_attention": _attention(6, mask=3),
    "_scaled_dot_product_fused_attention_overrideable": _attention(5, mask=3),
    "_scaled_dot_product_flash_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(7, backward=True),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(14, backward=True),
    **dict.fromkeys(_NORMS, _norm),
    **{name: _elementwise(name, 1) for name in _SAME},
    **{name: _elementwise(name, 2) for name in _PAIRS},
    **{name: _elementwise(name, 3) for name in _TRIPLES},
    **{name: _reduction(name, at) for name, at in _REDUCED_AT.items()},
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _fill,
    "native_dropout": _dropout,
}

_IN_PLACE: frozenset[str] = frozenset((*_SAME, *_PAIRS, *_TRIPLES, "addmm", "addmv", "baddbmm"))
"""Operators that exist with a trailing underscore, which write into their first argument."""


# The operators of a trace that have a cost model, and what each of their distinct calls has to do at least.


@dataclass(frozen=True, slots=True)
class ModeledCall:
    """Calls of one operator with equal arguments."""

    name: str
    shapes: str
    """`Input Dims` as JSON, with one space behind each comma."""
    arguments: OperatorCall
    cost: OperatorCost


@dataclass(frozen=True, slots=True, eq=False)
class ModeledCalls:
    """See `modeled_calls`."""

    number: Rows
    """For each row of the trace the index of its call, -1 for none."""
    calls: tuple[ModeledCall, ...]
    has_model: npt.NDArray[np.bool_]
    """By index into `Trace.names`: whether there is a model, whatever is recorded."""


class _Args(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"[]"))
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw(b"[]"))
    texts: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"[]"))


@once
def modeled_calls(trace: Trace) -> ModeledCalls:
    """The calls whose cost follows from the shapes that the trace records; none without `record_shapes=True`."""
    has_model = trace.named(cost_model)
    operators = np.flatnonzero(trace.category == Category.CPU_OP)
    rows = operators[has_model[trace.name[operators]]]
    number = np.full(len(trace), -1, dtype=np.intp)
    known: dict[tuple[int, bytes, bytes, bytes, bytes], int] = {}
    calls: list[ModeledCall] = []
    for block, decoded in trace.args_by_block(rows, _Args):
        numbers = []
        for name, args in zip(trace.name[block].tolist(), decoded, strict=True):
            key = name, bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.texts)
            if key not in known:
                call = _model_call(trace.names[name], *key[1:])
                known[key] = -1 if call is None else len(calls)
                calls += [] if call is None else [call]
            numbers.append(known[key])
        number[block] = numbers
    return ModeledCalls(number, tuple(calls), has_model)


def _model_call(name: str, dims: bytes, types: bytes, strides: bytes, texts: bytes) -> ModeledCall | None:
    lists = [msgspec.json.decode(text) for text in (dims, types, strides, texts)]
    model = cost_model(name)
    if model is None or not all(isinstance(values, list) for values in lists):
        return None
    arguments = OperatorCall.recorded(*lists)
    cost = model(arguments)
    if cost is None:
        return None
    return ModeledCall(name, shapes_text(dims), arguments, cost)
