"""What the host of a rank does in a training step, for each way to train in parallel."""

from __future__ import annotations

from collections.abc import Callable

from discrete_events import Process, Signal
from job_rank import Rank

FORWARD = (
    (("aten::layer_norm", "aten::native_layer_norm"), "vectorized_layer_norm_kernel<float, float>", 0.06),
    (("aten::linear", "aten::addmm"), "ampere_sgemm_128x64_tn", 0.50),
    (("aten::gelu",), "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", 0.08),
    (("aten::linear", "aten::addmm"), "ampere_sgemm_128x64_tn", 0.36),
)
"""Operators of a layer, their kernels, and their shares of its time."""
BACKWARD = (
    (("AddmmBackward0", "aten::mm"), "ampere_sgemm_128x64_nn", 0.18),
    (("AddmmBackward0", "aten::mm"), "ampere_sgemm_128x64_nt", 0.18),
    (("GeluBackward0", "aten::gelu_backward"), "vectorized_elementwise_kernel<4, GeluBackwardCUDAKernelImpl>", 0.08),
    (("AddmmBackward0", "aten::mm"), "ampere_sgemm_128x64_nn", 0.25),
    (("AddmmBackward0", "aten::mm"), "ampere_sgemm_128x64_nt", 0.25),
    (("NativeLayerNormBackward0", "aten::native_layer_norm_backward"), "layer_norm_grad_input_kernel<float>", 0.06),
)
HALVES = (2, 5)
"""Numbers of the backward's operators after which half of the gradients of a layer are there."""


def run(rank: Rank) -> Process:
    """All steps: one before the profiler records, and those that it does."""
    spec = rank.spec
    body = {"ddp": _ddp, "fsdp": _fsdp, "pipeline": _pipeline, "tensor": _tensor}[spec.parallel]
    for step in range(-1, spec.steps):
        rank.begin_step(step)
        name = f"ProfilerStep#{spec.first_step + step}"
        yield from rank.within("user_annotation", name, _step(rank, body))
        rank.job.completed(step)
        yield rank.host_ns(40_000)


def _step(rank: Rank, body: Callable[[Rank], Process]) -> Process:
    yield rank.host_ns(10_000)
    yield from rank.within("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", _python(rank, 15_000))
    if rank.spec.parallel != "pipeline" or rank.number % rank.spec.members == 0:
        yield from rank.load()
        yield from rank.copy_input()
    yield from body(rank)
    yield from rank.within("user_annotation", "Optimizer.step#AdamW.step", _optimizer(rank))
    if rank.spec.synchronize:
        yield from rank.item()


def _python(rank: Rank, usual: int) -> Process:
    yield rank.host_ns(usual)


def _optimizer(rank: Rank) -> Process:
    yield rank.host_ns(30_000)
    for name in ("aten::_foreach_lerp_", "aten::_foreach_addcmul_", "aten::_foreach_sqrt", "aten::_foreach_addcdiv_"):
        kernel = "multi_tensor_apply_kernel<TensorListMetadata, AdamW>"
        yield from rank.operator((name,), kernel, rank.spec.model.optimizer_ns // 4)


def _forward(rank: Rank, layer: int, share: float = 1.0, part: slice = slice(None)) -> Process:
    """Of a layer, or of some of its operators. `share` of its time is that of one microbatch or one rank."""
    model = rank.spec.model
    if layer == model.layers // 3:
        yield from rank.pause()
    dims = {"Input Dims": [[model.batch, model.width], [model.width, model.width]], "Input type": ["float", "float"]}
    for names, kernel, of_layer in FORWARD[part]:
        yield from rank.operator(names, kernel, round(model.forward_ns * share * of_layer), layer, **dims)


def _backward(
    rank: Rank, layer: int, share: float = 1.0, part: slice = slice(None), ready: Callable[[], Process] | None = None
) -> Process:
    """Of a layer, or of some of its operators. `ready` runs as soon as half of its gradients are there, twice."""
    model = rank.spec.model
    dims = {"Input Dims": [[model.batch, model.width], [model.width, model.width]], "Input type": ["float", "float"]}
    for number, ((node, inner), kernel, of_layer) in list(enumerate(BACKWARD))[part]:
        names = (f"autograd::engine::evaluate_function: {node}", node, inner)
        yield from rank.operator(names, kernel, round(2 * model.forward_ns * share * of_layer), layer, **dims)
        if number in HALVES and ready:
            inside = ready()
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            yield from rank.within("cpu_op", name, inside)


class _Buckets:
    """Gradients that replicas reduce: a bucket leaves as soon as it is full, as in DistributedDataParallel."""

    def __init__(self, rank: Rank, members: tuple[int, ...], layer_bytes: int) -> None:
        self.rank, self.members, self.half = rank, members, layer_bytes // 2
        self.filled = 0
        self.sent: list[Signal] = []

    def ready(self) -> Process:
        """Half of the gradients of a layer have come."""
        self.filled += self.half
        yield self.rank.host_ns(3_000, "collective")
        while self.filled >= self.rank.spec.bucket_bytes:
            yield from self._send(self.rank.spec.bucket_bytes)

    def _send(self, size: int) -> Process:
        self.filled -= size
        if len(self.members) > 1:
            yield from self.rank.collective("all_reduce", self.members, size, self.sent)

    def flush(self) -> Process:
        """Send the rest, and wait for all."""
        if self.filled:
            yield from self._send(self.filled)
        for signal in self.sent:
            yield from self.rank.wait(signal)


def _ddp(rank: Rank) -> Process:
    spec = rank.spec
    buckets = _Buckets(rank, tuple(range(spec.ranks)), spec.model.parameter_bytes)

    def forward() -> Process:
        for layer in range(spec.model.layers):
            yield from _forward(rank, layer)

    def backward() -> Process:
        for layer in reversed(range(spec.model.layers)):
            yield from _backward(rank, layer, ready=buckets.ready)
        yield from buckets.flush()

    yield from rank.within("user_annotation", "DistributedDataParallel.forward", forward())
    yield from rank.finish(backward())
    yield from _reduce_number(rank, tuple(range(spec.ranks)))


def _reduce_number(rank: Rank, members: tuple[int, ...]) -> Process:
    """Four bytes: the loss of the step, for its log, or the norm of gradients over the parts of a model."""
    sent: list[Signal] = []
    yield from rank.collective("all_reduce", members, 4, sent)
    yield from rank.wait(sent[0])


def _fsdp(rank: Rank) -> Process:
    """Parameters of a layer are gathered before it needs them: one layer ahead, except in the forward without device.

    Gradients are scattered as soon as they are there. If there are replicas of the shards, they reduce them after that.
    """
    spec, model, device = rank.spec, rank.spec.model, rank.spec.device
    shards, replicas = spec.inner(rank.number), spec.replicas(rank.number)
    gathered: dict[int, Signal] = {}
    scattered: list[Signal] = []

    def gather(layer: int, *, blocking: bool = False) -> Process:
        if 0 <= layer < model.layers and layer not in gathered:
            sent: list[Signal] = []
            calling = rank.collective("all_gather", shards, model.parameter_bytes, sent, blocking=blocking)
            yield from rank.within("user_annotation", f"FSDP::all_gather ({layer})", calling)
            gathered[layer] = sent[0]

    def scatter() -> Process:
        yield from rank.collective("reduce_scatter", shards, model.parameter_bytes, scattered, blocking=True)
        if len(replicas) > 1:
            part = model.parameter_bytes // len(shards)
            yield from rank.collective("all_reduce", replicas, part, scattered, blocking=True)

    def backward() -> Process:
        for layer in reversed(range(model.layers)):
            yield from gather(layer)
            yield from gather(layer - 1)
            yield from rank.wait(gathered[layer])
            yield from _backward(rank, layer)
            yield from rank.within("user_annotation", f"FSDP::post_backward_reduce ({layer})", scatter())
        for signal in scattered:
            yield from rank.wait(signal)

    for layer in range(model.layers):
        yield from gather(layer, blocking=not device)
        if device:
            yield from gather(layer + 1)
        yield from rank.wait(gathered[layer])
        yield from _forward(rank, layer)
    gathered.clear()
    yield from rank.finish(backward())
    yield from _reduce_number(rank, tuple(range(spec.ranks)))


def _pipeline(rank: Rank) -> Process:
    """GPipe: all microbatches forward, then all backward. Each stage has `layers` layers."""
    spec, model = rank.spec, rank.spec.model
    stages = spec.inner(rank.number)
    stage, count = stages.index(rank.number), spec.microbatches
    before = stages[stage - 1] if stage else None
    after = stages[stage + 1] if stage + 1 < len(stages) else None
    buckets = _Buckets(rank, spec.replicas(rank.number), model.parameter_bytes)
    size = model.activation_bytes // count
    sent: list[Signal] = []

    def receive(other: int | None) -> Process:
        if other is not None:
            came: list[Signal] = []
            yield from rank.collective("recv", (other, rank.number), size, came)
            yield from rank.wait(came[0])

    def send(other: int | None) -> Process:
        if other is not None:
            yield from rank.collective("send", (rank.number, other), size, sent)

    for _ in range(count):
        yield from receive(before)
        for layer in range(model.layers):
            yield from _forward(rank, layer, 1 / count)
        yield from send(after)

    for number in range(count):
        yield from receive(after)
        ready = buckets.ready if number == count - 1 else None

        def backward(ready: Callable[[], Process] | None = ready) -> Process:
            for layer in reversed(range(model.layers)):
                yield from _backward(rank, layer, 1 / count, ready=ready)

        yield from rank.finish(backward())
        yield from send(before)
    yield from buckets.flush()
    for signal in sent:
        yield from rank.wait(signal)


def _tensor(rank: Rank) -> Process:
    """Tensor parallel as in Megatron: two all-reduces of activations in a layer's forward, and two in its backward.

    Shoeybi et al., "Megatron-LM" (2019), figure 3. Each rank computes its share of a layer, which takes `forward_ns`.
    """
    spec, model = rank.spec, rank.spec.model
    group, replicas = spec.inner(rank.number), spec.replicas(rank.number)
    buckets = _Buckets(rank, replicas, model.parameter_bytes)

    def reduce() -> Process:
        sent: list[Signal] = []
        yield from rank.collective("all_reduce", group, model.activation_bytes, sent)
        yield from rank.wait(sent[0])

    def backward() -> Process:
        for layer in reversed(range(model.layers)):
            yield from _backward(rank, layer, part=slice(0, 3), ready=buckets.ready)
            yield from reduce()
            yield from _backward(rank, layer, part=slice(3, 6), ready=buckets.ready)
            yield from reduce()
        yield from buckets.flush()

    for layer in range(model.layers):
        yield from _forward(rank, layer, part=slice(0, 2))
        yield from reduce()
        yield from _forward(rank, layer, part=slice(2, 4))
        yield from reduce()
    yield from rank.finish(backward())
    yield from _reduce_number(rank, group)
