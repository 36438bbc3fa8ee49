"""One training step of a GPT under data parallelism, as a tree of nodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from synthesis import operators as ops
from synthesis.kernels import adam
from synthesis.nodes import (
    Allocate,
    Annotation,
    Call,
    Copy,
    Frame,
    Free,
    Join,
    Launch,
    Node,
    Op,
    RunBackward,
    Synchronize,
    Tag,
    Tensor,
    Work,
)

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY, RANKS = 8, 1024, 1024, 16, 50304, 8

_ROWS = BATCH * LENGTH


_TRACING = Frame("<built-in method _get_tracing_state of PyCapsule object at 0x7f2b1c3d6b70>")
_ATTRIBUTE = Frame("torch/nn/modules/module.py(1940): __getattr__")
_APPEND = Frame("<built-in method append of list object at 0x7f29e8c4d1c0>")
_SIZE = Frame("<built-in method size of Tensor object at 0x7f29e8a1b110>")


@dataclass(frozen=True)
class Size:
    """What makes a step longer."""

    layers: int
    batches: int
    """Whose gradients add up to one step."""

    @property
    def parameters(self) -> int:
        return self.layers * 12 * WIDTH * WIDTH + 2 * VOCABULARY * WIDTH + LENGTH * WIDTH


class _Modules:
    """Frames of `nn.Module`, numbered by class as the profiler does."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)

    def call(self, kind: str, line: str, *children: Node) -> Frame:
        """A module's frame with those of its call and that of its forward."""
        number = self.counts[kind]
        self.counts[kind] += 1
        forward = Frame(f"{line}: forward", children)
        inner = Frame("torch/nn/modules/module.py(1784): _call_impl", (_TRACING, forward))
        outer = Frame("torch/nn/modules/module.py(1773): _wrapped_call_impl", (inner,))
        return Frame(f"nn.Module: {kind}_{number}", (outer,), number)

    def linear(self, width: int, out: int) -> Frame:
        built_in = Frame("<built-in function linear>", (ops.linear(_ROWS, width, out, "aten::linear"),))
        return self.call("Linear", "torch/nn/modules/linear.py(130)", _ATTRIBUTE, _ATTRIBUTE, built_in)

    def norm(self, x: Tensor) -> Frame:
        inner = Frame("<built-in method layer_norm of type object at 0x7f2b4c0e9ea0>", (ops.layer_norm(x),))
        backend = Frame("torch/backends/__init__.py(38): __get__", (Frame("<built-in function _get_cudnn_enabled>"),))
        asked = Frame("<built-in function _has_torch_function_variadic>")
        function = Frame("torch/nn/functional.py(2910): layer_norm", (asked, backend, inner))
        return self.call("LayerNorm", "torch/nn/modules/normalization.py(229)", _ATTRIBUTE, _ATTRIBUTE, function)

    def dropout(self, x: Tensor) -> Frame:
        asked = Frame("<built-in function _has_torch_function_unary>")
        inner = Frame("<built-in method dropout of type object at 0x7f2b4c0e9ea0>", (ops.dropout(x),))
        function = Frame(
            "torch/nn/functional.py(1425): dropout", (asked, Frame("torch/_VF.py(27): __getattr__"), inner)
        )
        return self.call("Dropout", "torch/nn/modules/dropout.py(70)", function)


def _block(modules: _Modules) -> Frame:
    x = Tensor((BATCH, LENGTH, WIDTH))
    wide = Tensor((BATCH, LENGTH, 4 * WIDTH))
    attention = Frame(
        "<built-in function scaled_dot_product_attention>",
        (ops.attention(BATCH, HEADS, LENGTH, WIDTH // HEADS),),
    )
    attended = modules.call(
        "CausalSelfAttention",
        "model.py(52)",
        *(_SIZE, _ATTRIBUTE),
        modules.linear(WIDTH, 3 * WIDTH),
        Frame("torch/_tensor.py(1034): split", ops.split_heads(Tensor((BATCH, LENGTH, 3 * WIDTH)), HEADS)),
        attention,
        _ATTRIBUTE,
        modules.linear(WIDTH, WIDTH),
        _ATTRIBUTE,
        modules.dropout(x),
    )
    activation = modules.call(
        "GELU", "torch/nn/modules/activation.py(816)", Frame("<built-in function gelu>", (ops.gelu(wide),))
    )
    mixed = modules.call(
        "MLP",
        "model.py(87)",
        _ATTRIBUTE,
        modules.linear(WIDTH, 4 * WIDTH),
        _ATTRIBUTE,
        activation,
        _ATTRIBUTE,
        modules.linear(4 * WIDTH, WIDTH),
        _ATTRIBUTE,
        modules.dropout(x),
    )
    halves = ((modules.norm(x), attended), (modules.norm(x), mixed))
    nodes = [node for norm, part in halves for node in (_ATTRIBUTE, norm, _ATTRIBUTE, part, ops.add(x))]
    return modules.call("Block", "model.py(103)", *nodes)


def _forward(loss: Tag, layers: int) -> Frame:
    modules = _Modules()
    index = Tensor((BATCH, LENGTH), "long int")
    x, logits = Tensor((BATCH, LENGTH, WIDTH)), Tensor((_ROWS, VOCABULARY))
    tokens, places = (
        modules.call(
            "Embedding",
            "torch/nn/modules/sparse.py(190)",
            Frame("torch/nn/functional.py(2437): embedding", (ops.embedding(size, WIDTH, index),)),
        )
        for size in (VOCABULARY, LENGTH)
    )
    model = modules.call(
        "GPT",
        "model.py(170)",
        tokens,
        places,
        ops.add(x),
        modules.dropout(x),
        *(_block(modules) for _ in range(layers)),
        modules.norm(x),
        modules.linear(WIDTH, VOCABULARY),
        Frame(
            "torch/nn/functional.py(3463): cross_entropy",
            (ops.cross_entropy(logits, Tensor((_ROWS,), "long int"), loss),),
        ),
    )
    return modules.call("DistributedDataParallel", "torch/nn/parallel/distributed.py(1637)", model)


def _loading(batch: tuple[Tag, Tag]) -> Frame:
    """The next batch, collated on the host and copied to pinned memory."""
    sample, whole = Tensor((LENGTH,), "long int"), Tensor((BATCH, LENGTH), "long int")
    frames = []
    for tag in batch:
        stack = Op("aten::stack", ("", "0"), (Op("aten::cat", ("", "0"), (Allocate(tag, whole.bytes, on_host=True),)),))
        takes = [
            Op(
                "aten::slice",
                (sample, "0", "0", str(LENGTH), "1"),
                (Op("aten::as_strided", (sample, "[1024]", "[1]", "0")),),
            )
            for _ in range(BATCH)
        ]
        collate = Frame("torch/utils/data/_utils/collate.py(271): collate_tensor_fn", (stack,))
        pinned = Frame("torch/utils/data/_utils/pin_memory.py(57): pin_memory", (Work(9000),))
        frames += [*(Frame("data.py(31): __getitem__", (Work(6000), take)) for take in takes), collate, pinned]
    fetch = Frame("torch/utils/data/_utils/fetch.py(47): fetch", tuple(frames))
    data = Frame("torch/utils/data/dataloader.py(788): _next_data", (fetch,))
    annotation = Annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", (data,))
    return Frame("torch/utils/data/dataloader.py(733): __next__", (annotation,))


def _backward(reduces: bool) -> Frame:
    inside = (RunBackward(reduces),)
    run = Frame("<built-in method run_backward of torch._C._EngineBase object at 0x7f2b1c5d83f0>", inside)
    engine = Frame("torch/autograd/graph.py(824): _engine_run_backward", (run,))
    return Frame("torch/_tensor.py(571): backward", (Frame("torch/autograd/__init__.py(242): backward", (engine,)),))


def _optimizer_step(size: Size) -> Frame:
    tensors = 12 * size.layers + 6
    chunks = [(30, size.parameters * 30 // tensors) for _ in range(tensors // 30)]
    chunks.append((tensors % 30, size.parameters * (tensors % 30) // tensors))
    launches = tuple(Launch(adam(count, elements)) for count, elements in chunks)
    fused = Op("aten::_fused_adamw_", ("", "", "", "", "", "", "0.0003", "0.9", "0.95", "0.1", "1e-08"), launches)
    counted = Op(
        "aten::_foreach_add_", ("", "1"), tuple(Op("aten::add_", (Tensor((), "float"), "1", "1")) for _ in range(8))
    )
    update = Frame("torch/optim/adam.py(644): _fused_adam", (counted, fused))
    complex_ = Frame("<built-in method is_complex of type object at 0x7f2b4c0e9ea0>")
    group = Frame("torch/optim/adam.py(152): _init_group", (complex_, *(_APPEND,) * 6) * tensors)
    step = Frame("torch/optim/adam.py(213): step", (group, update))
    annotation = Annotation("Optimizer.step#AdamW.step", (step,))
    return Frame("torch/optim/optimizer.py(478): wrapper", (annotation,))


def _zero_grad(gradients: tuple[Tag, ...]) -> Frame:
    lists = Frame("<built-in method setdefault of dict object at 0x7f29e8c51b40>")
    frees = tuple(node for tag in gradients for node in (lists, Free(tag)))
    annotation = Annotation("Optimizer.zero_grad#AdamW.zero_grad", frees)
    return Frame("torch/optim/optimizer.py(955): zero_grad", (annotation,))


def _item() -> Frame:
    one = Tensor(())
    children = (Copy("DtoH (Device -> Pinned)", 2), Synchronize())
    item = Op("aten::item", (one,), (Op("aten::_local_scalar_dense", (one,), children),))
    return Frame("<built-in method item of Tensor object at 0x7f29e8a1b5c0>", (item,))


def gradients_of(nodes: tuple[Node, ...]) -> tuple[Tag, ...]:
    """Tags of all gradients that the backward pass of these nodes leaves."""
    found: list[Tag] = []
    for node in nodes:
        if isinstance(node, Op) and node.backward is not None:
            found += [tag for tag, _ in node.backward.parameters]
        if isinstance(node, Op | Frame | Annotation):
            found += gradients_of(node.children)
    return tuple(found)


def training_step(size: Size) -> Annotation:
    """The step: everything that it allocates on the device it frees."""
    index = Tensor((BATCH, LENGTH), "long int")
    loss, batch, moved = ops.fresh("loss"), (ops.fresh("x"), ops.fresh("y")), (ops.fresh("x"), ops.fresh("y"))
    forward = _forward(loss, size.layers)
    posted = Frame("torch/nn/parallel/distributed.py(1618): _post_forward", (Call("cudaEventQuery", 700),))
    frees = tuple(Free(tag) for tag in (loss, *moved, *batch))
    nodes: list[Node] = []
    for number in range(size.batches):
        is_last = number == size.batches - 1
        work = (*(ops.to_device(index, tag) for tag in moved), forward, posted, _backward(is_last))
        nodes += [_loading(batch), Frame("train.py(74): forward_backward", work), *(() if is_last else frees)]
    gradients = _zero_grad(gradients_of((forward,)))
    nodes += [Join("compute"), _optimizer_step(size), gradients, _item(), *frees]
    return Annotation("ProfilerStep#{step}", (Frame("train.py(96): train_step", tuple(nodes)),))
