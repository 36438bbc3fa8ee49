"""Time for memory: recompute activations, move them to the host, or keep them in fewer bits."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from pytest_perfdl.analysis.events.launches import call_tree
from pytest_perfdl.model.errors import MissingConstant, NotApplicable
from pytest_perfdl.trace.model import I64, Category, Rows
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind, Track, TrackKind
from pytest_perfdl.whatif.strategy import Layer, kept_allocations, layers, pass_bounds
from pytest_perfdl.whatif.transform import Change, Context, Lifetimes, NotRecorded, transform

CHECKPOINT_NS, NODE_NS = 100_000, 20_000
"""Host time of `torch.utils.checkpoint` for one layer (the state of random numbers, hooks, their own graph), and of
packing and unpacking what one node of autograd's graph saves: torch 2.13, `use_reentrant=False`."""

_NEEDS_INPUT = re.compile(
    r"aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|conv\dd|conv_transpose\dd|_?convolution|gelu|silu|mul|div)$"
)
"""Operators that save their input: recomputing stops before they run."""
_NEEDS_RESULT = re.compile(
    r"aten::(relu_?|leaky_relu|elu|tanh|sigmoid|exp|sqrt|rsqrt|(_?log_)?_?softmax|\w*dropout_?|\w+_norm|max_pool\dd|"
    r"scaled_dot_product_attention|_scaled_dot_product\w*|embedding|gather|index|pow|cross_entropy_loss)$"
)
"""Operators that save their result."""
_NODE = re.compile(r"autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")


@transform("checkpointing")
def checkpointing(context: Context, layer: str = "") -> Change:
    """Use activation checkpointing, so that layers keep only their input and recompute the rest in the backward pass.

    - The backward pass of each layer takes longer by the layer's forward pass, on the host and on the device.
      Recomputation ends with the last operator that saves a tensor, so a linear layer at the end does not run twice.
    - For recomputation, the host needs another 100 us per layer, and 20 us per node of the layer's autograd graph. The
      range of the prediction covers 0 to twice these host times.

    The simulation computes the peak memory from the allocations in the trace. Memory that a forward pass allocates for
    its backward pass is freed at the end of the forward pass, and allocated again at the start of the backward pass.
    The output of the layer is kept (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).

    Raises
    ------
    NotApplicable
        If the trace has no modules or no backward pass of any.
    """
    found = _trained_layers(context, layer)
    graph = context.graph
    plans = [Plan().timed(_recompute(graph, found, more)) for more in (1.0, 0.0, 2.0)]
    spans = _between_passes(graph, found)
    peak = context.peak(lambda memory: memory.freed_between(*_kept_away(context, memory, spans)))
    return Change.of(plans, peak_bytes=peak)


def _trained_layers(context: Context, pattern: str) -> list[Layer]:
    found = [layer for layer in layers(context, pattern) if len(layer.backward) and len(layer.forward)]
    if not found:
        raise NotRecorded("the trace has no backward pass of these modules")
    return found


def _recompute(graph: TaskGraph, found: list[Layer], overhead: float) -> I64:
    """Durations in which the forward pass of every layer is repeated at the start of its backward pass.

    On a device, the host's part is added to the call that launches the first kernel of the backward pass. The launch
    counts from the start of that call, so host and device work on the forward pass at the same time.
    """
    duration: I64 = graph.tasks.duration.copy()
    for layer in found:
        repeated = _repeated_tasks(graph, layer)
        device = graph.is_device[repeated]
        spent = graph.tasks.duration[repeated]
        first, kernel = layer.first_backward(graph)
        if kernel >= 0:
            duration[kernel] += int(spent[device].sum())
            launch = int(graph.tasks.launcher[kernel])
            first = launch if launch >= 0 else first
        if first >= 0:
            nodes = _nodes(graph, layer)
            duration[first] += int(spent[~device].sum()) + round(overhead * (CHECKPOINT_NS + NODE_NS * nodes))
    return duration


def _repeated_tasks(graph: TaskGraph, layer: Layer) -> Rows:
    """Tasks of the forward pass that run until all saved tensors are recomputed; all tasks if no operator is known."""
    tasks, trace = graph.tasks, graph.trace
    own = layer.forward
    host = own[~graph.is_device[own] & (tasks.row[own] >= 0)]
    if trace is None or not len(host):
        return own
    saving = trace.named(lambda name: _NEEDS_INPUT.match(name) or _NEEDS_RESULT.match(name))
    outer = call_tree(trace).outermost(saving[trace.name] & (trace.category == Category.CPU_OP))[tasks.row[host]]
    if not (outer >= 0).any():
        return own
    last = int(outer[np.flatnonzero(outer >= 0)[-1]])
    until = trace.start[last] if _NEEDS_INPUT.match(trace.name_of(last)) else trace.end[last]
    launcher = tasks.launcher[own]
    submitted = np.where(launcher >= 0, tasks.start[launcher], tasks.start[own])
    repeated: Rows = own[submitted < until]
    return repeated


def _nodes(graph: TaskGraph, layer: Layer) -> int:
    """Number of nodes of the autograd graph that the layer's backward pass evaluates."""
    rows = np.unique(graph.tasks.row[layer.backward])
    trace = graph.trace
    return 0 if trace is None else sum(bool(_NODE.match(trace.name_of(row))) for row in rows[rows >= 0].tolist())


def _between_passes(graph: TaskGraph, found: list[Layer]) -> list[tuple[Layer, int, int]]:
    """Layers with the end of the forward pass, and the start of the backward pass that needs what they keep."""
    return [(layer, *pass_bounds(graph, layer)[1:]) for layer in found]


def _kept_away(context: Context, memory: Lifetimes, spans: Iterable[tuple[Layer, int, int]]) -> tuple[Mask, I64, I64]:
    """What layers keep, until when it stays, and since when it is there again."""
    chosen = np.zeros(len(memory), dtype=bool)
    until, since = memory.end.copy(), memory.end.copy()
    for layer, gone, back in spans:
        own = kept_allocations(context, layer)
        chosen |= own
        until[own], since[own] = gone, back
    return chosen, until, since


def _needed_memory(context: Context) -> Lifetimes:
    memory = context.memory
    if memory is None:
        raise MissingConstant(
            "the trace does not contain the memory that layers keep for the backward pass: profile with "
            "profile_memory=True"
        )
    return memory


@transform("vdnn")
def vdnn(context: Context, layer: str = "") -> Change:
    """Offload the activations of layers to CPU memory between the forward and backward pass (vDNN).

    For each layer that has a successor, with b bytes of activations, the simulation adds two copies.

    - A copy to the host follows the last kernel of the layer's forward pass, on a separate stream. The copy takes
      `b / B`, where B is the bandwidth of pinned memory.
    - A copy back to the device takes as long as the copy to the host. The copy back starts on another stream when the
      backward pass of the next layer starts. The first backward kernel of the layer waits for the copy back. So the
      simulation prefetches activations one layer ahead (Rhu et al., "vDNN", MICRO 2016; Insert in Daydream).

    In the predicted peak memory, the activations use no device memory between the copy to the host and the copy back.

    Raises
    ------
    MissingConstant, NotApplicable
        Without memory events or the bandwidth of pinned memory; without a device.
    """
    memory, graph = _needed_memory(context), context.graph
    if not graph.on_device:
        raise NotApplicable("the trace has no device, so there is no device memory to offload")
    rate = context.known.rate("pinned_bytes_per_s", "the bandwidth of pinned memory")
    found = _trained_layers(context, layer)
    sizes = [int(memory.bytes[kept_allocations(context, each)].sum()) for each in found]
    times = [round(size / rate * 1e9) for size in sizes]
    behind: dict[int, int] = {}
    ahead: dict[int, int] = {}
    waiting = np.zeros(len(graph), dtype=bool)
    for index, (each, ns) in enumerate(zip(found, times, strict=True)):
        last, first = each.last_forward(graph)[1], each.first_backward(graph)[1]
        later = found[index + 1] if index + 1 < len(found) and found[index + 1].step == each.step else None
        before = later.first_backward(graph)[1] if later else -1
        if last < 0 or first < 0:
            continue
        behind[last] = ns
        if before >= 0:
            ahead[before] = ns
            waiting[first] = True
        else:
            # Nothing is behind the last layer: it keeps what it has.
            behind.pop(last)
    if not behind:
        raise NotApplicable("no layer is followed by another layer")
    plan = _copies(graph, "offload", ahead, waiting, 1001) + _copies(graph, "offload", behind, None, 1002)
    spans = [
        (each, pass_bounds(graph, each)[1] + ns, pass_bounds(graph, found[index + 1])[2])
        for index, (each, ns) in enumerate(zip(found, times, strict=True))
        if each.last_forward(graph)[1] in behind
    ]
    return Change(plan, peak_bytes=memory.freed_between(*_kept_away(context, memory, spans)).peak_bytes)


def _copies(graph: TaskGraph, name: str, times: dict[int, int], waiting: Mask | None, stream: int) -> Plan:
    """Copies on a separate stream, after kernels, or beside them if other tasks wait for them; matched by rows."""
    own = sorted(times)
    device = graph.tracks[int(graph.tasks.track[own[0]])].process
    behind = graph.tasks.row[own]

    def after(edited: TaskGraph) -> Mask:
        return np.isin(edited.tasks.row, behind)

    def held(edited: TaskGraph) -> Mask:
        return np.isin(edited.tasks.row, graph.tasks.row[waiting])

    task = NewTask(name, tuple(times[each] for each in own), TaskKind.COPY, 5_000, beside=waiting is not None)
    track = Track(TrackKind.STREAM, device, stream)
    return Plan().insert(task, after, track=track, before=None if waiting is None else held)


@transform("gist")
def gist(context: Context, layer: str = "", ratio: float = 0.5) -> Change:
    """Encode the activations of layers between the forward and backward pass (Gist).

    Gist encodes the activations after the forward pass of their layer, and decodes them before the backward pass of the
    layer.

    - Encoding reads b bytes and writes `ratio` times b bytes. Decoding does the opposite. Encoding and decoding take
      `(1 + ratio) * b / B` each, where B is the memory bandwidth. The range of the prediction covers half to one and a
      half times B.
    - `ratio` is 0.5 for floats of 16 bits (delayed precision reduction, which is lossy), and 1/32 for the signs that
      ReLU and pooling need (Jain et al., "Gist", ISCA 2018).

    Between the forward and backward pass, the activations take `ratio` times their size in the predicted peak memory.

    Raises
    ------
    MissingConstant, NotApplicable
        Without memory events or the memory's bandwidth; without modules.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"gist:ratio={ratio}: expected a number above 0 and at most 1")
    memory, graph = _needed_memory(context), context.graph
    rate = context.known.rate("memory_bytes_per_s", "the memory bandwidth")
    found = _trained_layers(context, layer)
    plans = []
    for more in (1.0, 1 / 1.5, 2.0):
        duration = graph.tasks.duration.copy()
        for each in found:
            size = int(memory.bytes[kept_allocations(context, each)].sum())
            last, first = each.last_forward(graph), each.first_backward(graph)
            which = 1 if last[1] >= 0 and first[1] >= 0 else 0
            for task in (last[which], first[which]):
                duration[task] += round((1 + ratio) * size / rate * 1e9 * more)
        plans.append(Plan().timed(duration))
    chosen, until, since = _kept_away(context, memory, _between_passes(graph, found))
    # The encoded form fills the time between.
    encoded = until[chosen], since[chosen], np.rint(memory.bytes[chosen] * ratio).astype(np.int64), memory.row[chosen]
    peak = memory.freed_between(chosen, until, since).joined(*encoded).peak_bytes
    return Change.of(plans, peak_bytes=peak)
