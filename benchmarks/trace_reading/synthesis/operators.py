"""ATen operators with what they call, launch, keep for the backward pass and leave on the tape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from synthesis import kernels
from synthesis.nodes import (
    Allocate,
    Annotation,
    Backward,
    Call,
    Copy,
    Free,
    Gradient,
    Input,
    Join,
    Kernel,
    Launch,
    Memset,
    Op,
    Tag,
    Tensor,
)

_numbers = itertools.count()


def fresh(name: str) -> Tag:
    """A tag that no other allocation has."""
    return name, next(_numbers)


def empty(tensor: Tensor, tag: Tag | None = None) -> Op:
    """With a tag the memory lives until freed, without it is a gradient that flows on."""
    memory = Gradient(tensor.bytes) if tag is None else Allocate(tag, tensor.bytes)
    return Op("aten::empty", (str(list(tensor.shape)), "15", "0", "", "", ""), (memory,))


def _empty_like(tensor: Tensor, tag: Tag | None = None) -> Op:
    inputs = (tensor, "15", "0", "", "", "0")
    return Op("aten::empty_like", inputs, (empty(tensor, tag),))


def _view(tensor: Tensor, shape: Sequence[int]) -> Op:
    return Op("aten::view", (tensor, str(list(shape))), grad=True)


def _transpose(tensor: Tensor) -> Op:
    swapped = str(list(tensor.shape[::-1]))
    strided = Op("aten::as_strided", (tensor, swapped, swapped, ""))
    return Op("aten::t", (tensor,), (Op("aten::transpose", (tensor, "0", "1"), (strided,)),))


def _transposed_weight(weight: Tensor, gradient: Tag) -> Op:
    """The weight as the product wants it; going back, its gradient is turned again and then complete."""
    backward = Backward("TBackward0", (_transpose(Tensor(weight.shape[::-1])),), ((gradient, weight),))
    return Op("aten::t", (weight,), _transpose(weight).children, grad=True, backward=backward)


def _matmul(name: str, left: Tensor, right: Tensor, layout: str, tag: Tag | None, bias: Tensor | None = None) -> Op:
    (m, k), n = left.shape, right.shape[1]
    inputs: tuple[Input, ...] = (left, right) if bias is None else (bias, left, right, "1", "1")
    kernel = kernels.gemm(m, n, k, layout, bias is not None)
    calls = (Call("cudaOccupancyMaxActiveClusters", 900), Launch(kernel, "cuLaunchKernelEx"))
    return Op(name, inputs, (empty(Tensor((m, n)), tag), *calls))


def linear(rows: int, width: int, out: int, name: str) -> Op:
    """`nn.Linear` on (rows, width) with bias; both gradients in the backward pass."""
    x, weight, bias = Tensor((rows, width)), Tensor((out, width)), Tensor((out,))
    y, turned, grad = Tensor((rows, out)), Tensor((width, out)), Tensor((rows, out))
    kept = fresh("linear")
    forward = _matmul("aten::addmm", x, turned, "tn", kept, bias)
    weight_tag, bias_tag = fresh("grad"), fresh("grad")
    backward = Backward(
        "AddmmBackward0",
        (
            _transpose(turned),
            _matmul("aten::mm", grad, weight, "nn", None),
            _transpose(grad),
            _matmul("aten::mm", Tensor((out, rows)), x, "nt", weight_tag),
            _transpose(weight),
            Op(
                "aten::sum",
                (grad, "[0]", "True", ""),
                (empty(bias, bias_tag), Launch(kernels.column_sum(grad))),
            ),
            Free(kept),
        ),
        ((bias_tag, bias),),
    )
    addmm = Op(forward.name, forward.inputs, forward.children, grad=True, backward=backward)
    children = (_view(x, x.shape), _transposed_weight(weight, weight_tag), addmm, _view(y, y.shape))
    return Op(name, (x, weight, bias), children, grad=True)


def layer_norm(x: Tensor) -> Op:
    width, rows = Tensor(x.shape[-1:]), Tensor((*x.shape[:-1], 1), "float")
    shape = str(list(width.shape))
    out, mean, deviation, weight, bias = (fresh("norm") for _ in range(5))
    by_input, by_weight = kernels.layer_norm_backward(x)
    back = Op(
        "aten::native_layer_norm_backward",
        (x, x, shape, rows, rows, width, width, "[True, True, True]"),
        (
            empty(x),
            _empty_like(width, weight),
            _empty_like(width, bias),
            Launch(by_input),
            Launch(by_weight),
        ),
    )
    frees = (Free(out), Free(mean), Free(deviation))
    backward = Backward("NativeLayerNormBackward0", (back, *frees), ((weight, width), (bias, width)))
    native = Op(
        "aten::native_layer_norm",
        (x, shape, width, width, "1.0000000000000001e-05"),
        (
            empty(x, out),
            empty(rows, mean),
            empty(rows, deviation),
            Launch(kernels.layer_norm(x)),
            _view(x, x.shape),
        ),
        grad=True,
        backward=backward,
    )
    return Op("aten::layer_norm", (*native.inputs, "True"), (native,), grad=True)


def dropout(x: Tensor) -> Op:
    mask = Tensor(x.shape, "unsigned char")
    kept, masked = fresh("dropout"), fresh("mask")
    back = Op(
        "aten::native_dropout_backward",
        (x, mask, "1.1111111111111112"),
        (empty(x), Launch(kernels.masked_scale(x))),
    )
    native = Op(
        "aten::native_dropout",
        (x, "0.10000000000000001", "True"),
        (_empty_like(x, kept), _empty_like(mask, masked), Launch(kernels.dropout(x))),
        grad=True,
        backward=Backward("NativeDropoutBackward0", (back, Free(kept), Free(masked))),
    )
    return Op("aten::dropout", native.inputs, (native,), grad=True)


def gelu(x: Tensor) -> Op:
    kept = fresh("gelu")
    back = Op("aten::gelu_backward", (x, x, "none"), (empty(x), Launch(kernels.gelu_backward(x))))
    children = (empty(x, kept), Launch(kernels.gelu(x)))
    return Op("aten::gelu", (x, "none"), children, True, Backward("GeluBackward0", (back, Free(kept))))


def add(x: Tensor) -> Op:
    """The residual: its gradient is added to the one that flows through the branch."""
    kept = fresh("add")
    back = Op("aten::add", (x, x, "1"), (empty(x), Launch(kernels.add(x))))
    children = (empty(x, kept), Launch(kernels.add(x)))
    return Op("aten::add", (x, x, "1"), children, True, Backward("AddBackward0", (back, Free(kept))))


def split_heads(x: Tensor, heads: int) -> tuple[Op, ...]:
    """From (batch, length, 3 width) to three views by head."""
    batch, length, width = x.shape
    part, size = Tensor((batch, length, width // 3)), width // 3 // heads
    narrow = Op(
        "aten::narrow", (x, "2", "0", str(width // 3)), (Op("aten::slice", (x, "2", "0", "1", "1")),), grad=True
    )
    split = Op("aten::split", (x, str(width // 3), "2"), (narrow, narrow, narrow), grad=True)
    strided = Op("aten::as_strided", (part, str([batch, heads, length, size]), str([length, size, width, 1]), ""))
    by_head = Op("aten::transpose", (part, "1", "2"), (strided,), grad=True)
    return (split, *(op for _ in range(3) for op in (_view(part, (batch, length, heads, size)), by_head)))


def attention(batch: int, heads: int, length: int, width: int) -> Op:
    x, sums = Tensor((batch, heads, length, width)), Tensor((batch, heads, length), "float")
    flags = ("0.", "True", "False", "")
    kept, log = fresh("attention"), fresh("logsumexp")
    preparation, main, conversion = kernels.attention_backward(batch, heads, length, width)
    back = Op(
        "aten::_flash_attention_backward",
        (x, x, x, x, x, sums, "", "", str(length), str(length), *flags),
        (
            empty(x),
            Launch(preparation),
            Call("cudaFuncSetAttribute", 1100),
            Launch(main),
            Launch(conversion),
        ),
    )
    outer = Op("aten::_scaled_dot_product_flash_attention_backward", back.inputs, (back,))
    backward = Backward("ScaledDotProductFlashAttentionBackward0", (outer, Free(kept), Free(log)))
    inner = Op(
        "aten::_flash_attention_forward",
        (x, x, x, "", "", str(length), str(length), *flags),
        (
            _empty_like(x, kept),
            empty(sums, log),
            Call("cudaFuncSetAttribute", 1100),
            Launch(kernels.attention(batch, heads, length, width)),
        ),
    )
    flash = Op("aten::_scaled_dot_product_flash_attention", (x, x, x, *flags), (inner,), grad=True, backward=backward)
    return Op("aten::scaled_dot_product_attention", (x, x, x, "", *flags), (flash,), grad=True)


def embedding(vocabulary: int, width: int, index: Tensor) -> Op:
    table, out = Tensor((vocabulary, width)), Tensor((*index.shape, width))
    kept, grad = fresh("embedding"), fresh("grad")
    rows = index.elements
    first, *others = kernels.embedding_backward(rows, width)
    back = Op(
        "aten::embedding_dense_backward",
        (out, index, str(vocabulary), "-1", "False"),
        (
            empty(table, grad),
            Memset(table.bytes),
            Launch(first),
            Memset(4 * rows),
            *(Launch(kernel) for kernel in others),
        ),
    )
    outer = Op("aten::embedding_backward", back.inputs, (back,))
    backward = Backward("EmbeddingBackward0", (outer, Free(kept)), ((grad, table),))
    select = Op(
        "aten::index_select",
        (table, "0", index),
        (empty(out, kept), Launch(kernels.embedding(rows, width))),
        grad=True,
    )
    children = (Op("aten::reshape", (index, "[-1]"), (_view(index, (rows,)),)), select)
    return Op("aten::embedding", (table, index, "-1", "False", "False"), children, True, backward)


def cross_entropy(logits: Tensor, target: Tensor, kept: Tag) -> Op:
    """`kept` is the loss itself, which the caller frees."""
    rows, width = logits.shape
    one, soft, weight = Tensor((1,)), fresh("softmax"), fresh("weight")
    back_nll = Op(
        "aten::nll_loss_backward",
        (one, logits, target, "", "1", "-100", one),
        (empty(logits), Launch(kernels.fill(logits)), Launch(kernels.nll_loss(backward=True))),
    )
    back_soft = Op(
        "aten::_log_softmax_backward_data",
        (logits, logits, "1", "15"),
        (empty(logits), Launch(kernels.log_softmax(rows, width, backward=True))),
    )
    inner_soft = Op(
        "aten::_log_softmax",
        (logits, "1", "False"),
        (empty(logits, soft), Launch(kernels.log_softmax(rows, width, backward=False))),
        grad=True,
        backward=Backward("LogSoftmaxBackward0", (back_soft, Free(soft))),
    )
    inner_nll = Op(
        "aten::nll_loss_forward",
        (logits, target, "", "1", "-100"),
        (empty(one, kept), empty(one, weight), Launch(kernels.nll_loss(backward=False))),
        grad=True,
        backward=Backward("NllLossBackward0", (back_nll, Free(weight))),
    )
    nll = Op("aten::nll_loss", inner_nll.inputs, (inner_nll,), grad=True)
    children = (
        Op("aten::log_softmax", (logits, "1", ""), (inner_soft,), grad=True),
        Op("aten::nll_loss_nd", inner_nll.inputs, (nll,), grad=True),
    )
    return Op("aten::cross_entropy_loss", (*inner_nll.inputs, "0."), children, grad=True)


def to_device(tensor: Tensor, tag: Tag) -> Op:
    inputs = (tensor, "4", "0", "0", "", "True", "")
    strided = Op(
        "aten::empty_strided", (str(list(tensor.shape)), "[1]", "4", "0", "0", ""), (Allocate(tag, tensor.bytes),)
    )
    copy = Op("aten::copy_", (tensor, tensor, "True"), (Copy("HtoD (Pinned -> Device)", tensor.bytes),))
    return Op("aten::to", inputs, (Op("aten::_to_copy", inputs, (strided, copy)),))


def all_reduce(elements: int, ranks: int) -> Op:
    """The hook of a gradient bucket: the collective starts when the gradients are there."""
    kernel: Kernel = kernels.all_reduce(elements, ranks)
    bucket = Tensor((elements,))
    annotation = Annotation(
        "nccl:all_reduce",
        (Call("cudaEventRecord", 1200), Join("communication"), Launch(kernel, "cudaLaunchKernelExC")),
    )
    comms = Op("record_param_comms", (bucket, "0", "0"), (annotation,), extra=kernel.extra)
    return Op("c10d::allreduce_", (bucket, "", "", "", "True", "-1"), (comms,))
