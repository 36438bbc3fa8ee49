"""Fewer operators: some removed, chains of them fused, batch norms folded into the operators before them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np

from pytest_perfdl.analysis.events.autograd import forward_of
from pytest_perfdl.analysis.events.launches import launches
from pytest_perfdl.analysis.events.threads import backward_rows
from pytest_perfdl.analysis.events.tree import call_tree
from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import Category, Rows, Trace
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.select import of_rows
from pytest_perfdl.whatif.facts import computing, inside, operator_costs, optimizer_steps
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform
from pytest_perfdl.whatif.transforms.precision import LOWER

_NORM = ("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm", "aten::vector_norm")


def operator_rows(trace: Trace, pattern: str) -> Mask:
    """Rows inside operators of a name (`*` and `?` as in file names) and their backward operators, with kernels."""
    named = trace.named(lambda name: fnmatchcase(name, pattern))
    tree = call_tree(trace)
    found: Mask = tree.outermost(named[trace.name] & (trace.category == Category.CPU_OP)) >= 0
    forward = forward_of(trace)
    backward = (forward >= 0) & found[np.maximum(forward, 0)]
    found |= tree.outermost(backward) >= 0
    joined = launches(trace)
    linked = joined.linked
    found[joined.device[linked]] |= found[joined.call[linked]]
    return found


def with_python(graph: TaskGraph, tasks: Mask) -> Mask:
    """Tasks, and the gap on the host thread after each run of them: the Python that called them."""
    track, kind = graph.tasks.track, graph.tasks.kind
    behind = np.concatenate(([False], tasks[:-1] & (track[1:] == track[:-1])))
    found: Mask = tasks | (behind & ~tasks & (kind == TaskKind.GAP))
    return found


@transform("remove_operator")
def remove_operator(context: Context, name: str, python: bool = True) -> Change:
    """Remove an operator, such as `aten::dropout`, with its backward pass, kernels and Python.

    `name` may contain `*` and `?` as in file names. With `python`, the simulation also removes one gap of the host
    after each call, because the module that made the call is removed. The slow end of the predicted range keeps these
    gaps of the host. All tasks that remain keep their durations, although a memory-bound neighbor could become faster.
    Daydream calls this operation Remove.
    """
    tasks = of_rows(context.graph, operator_rows(context.trace, name))
    if not tasks.any():
        raise NotApplicable(f"the trace has no operator {name}")
    return _removed(context.graph, tasks, python)


def _removed(graph: TaskGraph, tasks: Mask, python: bool) -> Change:
    if not python:
        return Change(Plan().remove(tasks))
    return Change(Plan().remove(with_python(graph, tasks)), slow=Plan().remove(tasks))


@transform("remove_clipping")
def remove_clipping(context: Context) -> Change:
    """Remove gradient clipping.

    The simulation removes everything that runs between the end of the backward pass and the update (`Optimizer.step`),
    up to the last operator before the update.

    Raises
    ------
    NotApplicable
        If nothing there computes a norm, or there is no update (Optimizer.step) or backward pass.
    """
    graph, trace = context.graph, context.trace
    rows, _ = optimizer_steps(trace)
    if not len(rows):
        raise NotRecorded("the trace has no optimizer update (Optimizer.step)")
    engine = backward_rows(trace)
    ends = np.sort(trace.end[engine])
    tasks = np.zeros(len(graph), dtype=bool)
    own = graph.tasks.track == graph.owner
    for start in trace.start[rows].tolist():
        last = int(np.searchsorted(ends, start, side="right")) - 1
        if last < 0:
            continue
        between = own & (graph.tasks.start >= ends[last]) & (graph.tasks.start < start) & (graph.tasks.row >= 0)
        if between.any():
            found = np.flatnonzero(between)
            # The Python between them goes too, and before them, where the gradients are gathered; that behind them is
            # left for what follows a backward pass in any case.
            first = found[0] - (graph.tasks.kind[found[0] - 1] == TaskKind.GAP)
            tasks[first : found[-1] + 1] = True
    launched = graph.tasks.launcher >= 0
    names = {graph.name_of(task) for task in np.flatnonzero(tasks).tolist()}
    if not names & set(_NORM):
        raise NotApplicable("no operator computes a norm between the backward pass and the optimizer update")
    tasks[launched] |= tasks[graph.tasks.launcher[launched]]
    return Change(Plan().remove(tasks))


@transform("fold_batch_norm")
def fold_batch_norm(context: Context) -> Change:
    """Fold batch norms into the convolutions before them, for inference.

    The folded convolution has the weight `w' = w g / s` and the bias `b' = (b - m) g / s + beta`. In these formulas, w
    and b are the weight and the bias of the convolution. The batch norm has the mean m, the standard deviation s, the
    weight g and the bias beta.

    The simulation removes the batch norms and the Python code that calls them. The slow end of the predicted range
    keeps the Python code. The simulation assumes that a convolution with a bias takes as long as a convolution without
    a bias.
    """
    if len(backward_rows(context.trace)):
        raise NotApplicable("the trace has a backward pass: batch norms in training cannot be folded")
    tasks = of_rows(context.graph, operator_rows(context.trace, "aten::batch_norm"))
    if not tasks.any():
        raise NotApplicable("the trace has no batch norm")
    return _removed(context.graph, tasks, True)


@transform("reconstructed_batch_norm")
def reconstructed_batch_norm(context: Context) -> Change:
    """Split each batch norm in two, and fuse the halves into the neighboring operators, for training.

    Batch norms take half as long, and ReLUs take no time, forward and backward. Daydream models the method of Jung et
    al. in this way ("Restructuring Batch Normalization to Accelerate CNN Training", 2019). The simulation removes the
    passes of ReLU over memory, and halves the passes of batch norm.

    Daydream predicted a gain of 12.7 %, but measured 7 %. So the range of the prediction extends to a third of the
    gain, and the confidence is low.
    """
    graph, trace = context.graph, context.trace
    norms = of_rows(graph, operator_rows(trace, "*batch_norm*"))
    activations = of_rows(graph, operator_rows(trace, "aten::relu*"))
    if not norms.any():
        raise NotApplicable("the trace has no batch norm")
    busy = computing(graph)
    plans = []
    for gain in (1.0, 1 / 3):
        factor = np.where(busy & norms, 1 - gain / 2, np.where(busy & activations, 1 - gain, 1.0))
        plans.append(Plan().timed(np.rint(graph.tasks.duration * factor).astype(np.int64)))
    return Change(
        plans[0], slow=plans[1], trust="low", notes=(("the gain for batch norm is an empirical factor of one half"),)
    )


@dataclass(frozen=True, slots=True)
class _Link:
    """One call of a chain: its tasks and the bytes that it moves."""

    tasks: Rows
    bytes: int
    largest: int
    product: bool


@transform("fusion")
def fusion(context: Context, epilogues: bool = False) -> Change:
    """Fuse chains of elementwise and normalization operators over tensors of equal size.

    Each chain of operators becomes one kernel with the bandwidth of the chain, `t' = t * b' / b`.

    - The symbol b is the number of bytes that all n operators of the chain move.
    - The fused kernel moves `b' = b - 2 (n - 1) s` bytes for tensors of s bytes, because all results except the last
      stay in registers.

    For memory-bound chains, this formula is the cost model of the fusions in MetaFlow and XLA,
    `max(FLOPs / F, unique bytes / B)`. With `epilogues`, a matrix product or convolution includes the chain that
    follows. The chain then costs only the bytes that the chain reads in addition to the product.

    The range of the prediction extends to half of each gain, because a compiler may not fuse every chain.

    Raises
    ------
    NotApplicable
        If there are no two such neighbors, or no shapes.
    """
    fused = fused_durations(context, epilogues)
    return _change(context.graph, *fused)


def _change(graph: TaskGraph, duration: np.typing.NDArray[np.int64], gone: Mask) -> Change:
    half = np.where(gone, graph.tasks.duration // 2, (duration + graph.tasks.duration) // 2)
    plan = Plan().timed(duration)
    return Change(plan.remove(gone) if gone.any() else plan, slow=Plan().timed(half))


def fused_durations(context: Context, epilogues: bool) -> tuple[np.typing.NDArray[np.int64], Mask]:
    """Durations with all chains fused, and the kernels that vanish.

    Raises
    ------
    NotApplicable
        If there is no chain.
    """
    graph = context.graph
    duration = graph.tasks.duration.astype(np.float64)
    gone = np.zeros(len(graph), dtype=bool)
    chains = [chain for chain in _chains(context, epilogues) if len(chain) > 1]
    if not chains:
        raise NotRecorded("no neighboring operators can be fused, or the trace has no shapes")
    for chain in chains:
        tail = chain[1:] if chain[0].product else chain
        whole = sum(link.bytes for link in tail)
        saved = 2 * sum(link.largest for link in tail[1:]) + (2 * tail[0].largest if chain[0].product else 0)
        factor = max(whole - saved, 0 if chain[0].product else 2 * tail[0].largest) / max(whole, 1)
        for link in tail:
            duration[link.tasks] *= min(factor, 1.0)
        head = chain[0].tasks
        for link in chain[1:]:
            own = link.tasks[graph.is_device[link.tasks]]
            duration[head[-1]] += duration[own].sum()
            gone[own] = True
    return np.rint(duration).astype(np.int64), gone


def _chains(context: Context, epilogues: bool) -> list[list[_Link]]:
    """Consecutive calls of one step and track in which each reads what the one before wrote, by size."""
    graph, costs = context.graph, operator_costs(context.trace)
    call = np.where(computing(graph), costs.of_tasks(graph), -1)
    found: list[list[_Link]] = []
    changes = (call[1:] != call[:-1]) | (graph.tasks.track[1:] != graph.tasks.track[:-1])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(call)]
    numbers, kinds = costs.number, graph.tasks.kind.tolist()
    places = list(zip(graph.tasks.track.tolist(), graph.tasks.step.tolist(), strict=True))
    previous, place = None, (-1, -1)
    for first, last in pairwise(bounds):
        row = int(call[first])
        if row < 0:
            # Python between two operators of the host, and launches, do not part them.
            previous = previous if kinds[first] in (TaskKind.GAP, TaskKind.CALL) else None
            continue
        number = int(numbers[row])
        name = costs.name(number).removeprefix("aten::")
        product = name in LOWER or name.startswith("_scaled_dot_product")
        link = _Link(np.arange(first, last), costs.costs[number].bytes, costs.largest[number], product)
        fits = previous is not None and places[first] == place and not product
        if fits and previous is not None and (epilogues or not previous.product) and previous.largest == link.largest:
            found[-1].append(link)
        else:
            found.append([link])
        previous, place = link, places[first]
    return found


@transform("remove_scope")
def remove_scope(context: Context, name: str) -> Change:
    """Remove what runs inside CPU annotations of this name (`*` and `?` as in file names).

    The simulation also removes the kernels that code inside the annotations launches.
    """
    trace = context.trace
    annotations = trace.matching(lambda each: fnmatchcase(each, name), trace.rows(Category.USER_ANNOTATION))
    tasks = inside(context.graph, annotations)
    if not tasks.any():
        raise NotApplicable(f"the trace has no annotation {name} that contains work")
    return Change(Plan().remove(tasks))
