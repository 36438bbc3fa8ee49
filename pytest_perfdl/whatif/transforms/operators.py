"""Fewer or cheaper operators: removed, fused, folded, or in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise

import numpy as np

from pytest_perfdl.analysis.account.parts import PHASES, labels
from pytest_perfdl.analysis.events.launches import call_tree
from pytest_perfdl.analysis.events.origins import forward_of
from pytest_perfdl.analysis.events.threads import backward_rows
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import MissingMachineConstant, NotApplicable
from pytest_perfdl.trace.model import F64, I64, Category, Rows, Trace
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.select import rows_inside, tasks_of_rows, with_launched
from pytest_perfdl.whatif.editing.surgery import NewTask
from pytest_perfdl.whatif.facts import (
    SHORT_TYPES,
    Costs,
    autocast,
    gradients,
    operator_costs,
    optimizer_steps,
    per_step,
    tasks_inside,
    tasks_of_computing,
)
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform

# Automatic mixed precision: matrix products and what follows them in 16 bits.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _words(
    "mm bmm addmm addbmm baddbmm matmul linear conv conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    " conv_transpose3d convolution _convolution cudnn_convolution miopen_convolution mkldnn_convolution"
    " convolution_backward scaled_dot_product_attention _scaled_dot_product"
)
"""What autocast runs in 16 bits (torch's lower_precision_fp lists; attention by the beginning of its name)."""

FULL = _words(
    "softmax _softmax _softmax_backward_data log_softmax _log_softmax _log_softmax_backward_data exp log pow sum"
    " mean norm linalg_vector_norm cumsum logsumexp layer_norm native_layer_norm native_layer_norm_backward"
    " group_norm native_group_norm native_group_norm_backward rms_norm var std"
)
"""What it runs in float32."""

_CAST_BYTES = 6
"""Bytes to read a float32 and write its 16 bits, or the other way."""

_PEAK_SHARE = 1 / 3
"""Matrix products gain threefold at most in practice, whatever the peaks say: Daydream's number for compute-bound
kernels, which kept its errors below 13 %."""


@transform("amp")
def amp(context: Context, dtype: str = "bfloat16") -> Change:
    """Autocast to bfloat16 or float16.

    In the forward and backward pass, the simulation multiplies the time t of some operators by a ratio r, `t' = t r`.
    The ratio applies to operators that autocast runs in 16 bits, and to the elementwise operators after them. The
    optimizer, and operators that autocast keeps in float32, do not change.

    - With measured ratios (`Machine.ratios`, from `perfdl constants`), r depends on operator and shapes.
      `perfdl constants` replays the operators in float32 and in 16 bits, interleaved.
    - Without measured ratios, r is 1/2 for memory-bound operators. For compute-bound operators, r is the ratio of the
      peak rates, but at least 1/3. (Daydream, USENIX ATC 2020, divides by 2 and 3.) The range of the prediction then
      extends from the ratio of the peak rates to half of the gain.
    - The confidence is low unless measured ratios cover 90 % of the time that changes.

    The simulation adds the cost of casts and of gradient scaling, at the memory bandwidth:

    - A cast moves 6 bytes per element. The simulation casts every parameter to 16 bits once per step, because autocast
      caches weights. The simulation also casts the gradient of every parameter back, and the largest tensor of each
      float32 operator.
    - With float16 on a device, unscaling the gradients moves 8 bytes per element. The host also waits for the `.item()`
      of `GradScaler` before the optimizer.

    For the peak memory, operators in 16 bits allocate half as much as in float32. The cast weights add 2 bytes per
    parameter.

    Raises
    ------
    MissingMachineConstant, NotApplicable
        Without ratios and without peaks for both types; without recorded shapes or any float32 operator.
    """
    if dtype not in SHORT_TYPES:
        raise ValueError(f"amp:dtype={dtype}: expected bfloat16 or float16")
    graph, machine = context.graph, context.known
    costs = operator_costs(context.trace)
    if not costs.costs:
        raise NotRecorded("the trace has no shapes of operators: profile with record_shapes=True")
    call = costs.of_computing(graph, updates=False)
    some = np.flatnonzero(call >= 0)
    already = autocast(context.trace)
    lower = {
        number: "full" if number in already else _kind(costs, number)
        for number in np.unique(costs.number[call[some]]).tolist()
    }
    if not any(kind == "lower" for kind in lower.values()):
        raise NotApplicable("no matrix product, convolution or attention runs in float32")
    factors, measured = _factors(costs, lower, machine, dtype)
    own = costs.number[call[some]]
    casts, passes = _cast_ns(context, machine)
    between = _cast_results(graph, costs, call, lower, machine)
    plans = []
    for which in range(3):
        factor = np.ones(len(graph))
        factor[some] = [factors[number][which] for number in own.tolist()]
        plans.append(Plan().timed(_with_casts(graph, factor, some, casts) + between))
    if dtype == "float16" and graph.on_device:
        plans = [plan + _unscale(context, passes) for plan in plans]
    weights = graph.tasks.duration[some].astype(np.float64)
    known = sum(weights[own == number].sum() for number in measured)
    changed = sum(weights[own == number].sum() for number, kind in lower.items() if kind != "full")
    covered = bool(changed) and known >= 0.9 * changed
    note = "the gain of each operator is a rule of thumb: run `perfdl constants` to measure gains"
    return Change.of(plans, _peak(context, costs, lower), "ok" if covered else "low", () if covered else (note,))


def _kind(costs: Costs, number: int) -> str:
    """What autocast does with an operator: "lower", "follows", "full"."""
    name = costs.name(number).removeprefix("aten::")
    if costs.costs[number].dtype not in ("float32", "tf32"):
        return "full"
    if name in LOWER or name.startswith("_scaled_dot_product"):
        return "lower"
    return "full" if name.rstrip("_") in FULL or name in FULL else "follows"


def _factors(
    costs: Costs, kinds: dict[int, str], machine: Machine, dtype: str
) -> tuple[dict[int, tuple[float, float, float]], list[int]]:
    """Likeliest, fastest and slowest factor of each cost, and which costs were measured."""
    ratios = machine.ratios.get(dtype, {})
    low, high = machine.flops_per_s.get("float32"), machine.flops_per_s.get(dtype)
    found, measured = {}, []
    for number, kind in kinds.items():
        cost = costs.costs[number]
        if kind == "full":
            found[number] = (1.0, 1.0, 1.0)
        elif costs.keys[number] in ratios:
            fast, middle, slow = ratios[costs.keys[number]]
            found[number] = (middle, fast, slow)
            measured.append(number)
        elif kind == "lower" and not ratios and low and high and machine.memory_bytes_per_s:
            compute, memory = cost.flops / low, cost.bytes / machine.memory_bytes_per_s
            best = max(_PEAK_SHARE, low / high) if compute > memory else 0.5
            found[number] = (best, low / high if compute > memory else 0.5, (1 + best) / 2)
        elif kind == "lower" and not ratios:
            machine.rate("memory_bytes_per_s", "the memory bandwidth")
            unknown = f"the speed of this machine in {dtype} is unknown"
            raise MissingMachineConstant(unknown, "its peaks or measured ratios")
        else:
            # Elementwise operators move half the bytes; with measured ratios the rest was not worth a replay.
            found[number] = (0.5, 0.5, 0.75) if not ratios else (1.0, 0.5, 1.0)
    return found, measured


def _cast_ns(context: Context, machine: Machine) -> tuple[float, float]:
    """Nanoseconds per step to cast parameters and gradients, and for one pass over the gradients to unscale them."""
    total = gradients(context.trace).total
    if not total:
        return 0.0, 0.0
    rate = machine.rate("memory_bytes_per_s", "the memory bandwidth")
    return 2 * _CAST_BYTES * total / rate * 1e9, 8 * total / rate * 1e9


def _with_casts(graph: TaskGraph, factor: F64, some: Rows, casts: float) -> I64:
    duration = graph.scaled(factor)
    for own in per_step(graph, some):
        duration[own[0]] += round(casts)
    return duration


def _cast_results(graph: TaskGraph, costs: Costs, call: Rows, kinds: dict[int, str], machine: Machine) -> I64:
    """Nanoseconds per task to cast the results of float32 operators: 6 bytes per element, once per call."""
    found: I64 = np.zeros(len(graph), dtype=np.int64)
    if not machine.memory_bytes_per_s:
        return found
    some = np.flatnonzero(call >= 0)
    _, first = np.unique(call[some], return_index=True)
    for task in some[first].tolist():
        number = int(costs.number[call[task]])
        if kinds[number] == "full" and costs.costs[number].dtype in ("float32", "tf32"):
            found[task] = round(_CAST_BYTES / 4 * costs.largest[number] / machine.memory_bytes_per_s * 1e9)
    return found


def _unscale(context: Context, passes: float) -> Plan:
    """A pass over the gradients behind the last kernel before each update, for which the host waits."""
    rows, _ = optimizer_steps(context.trace)

    def last_before(graph: TaskGraph) -> Rows:
        steps = per_step(graph, np.flatnonzero(graph.is_device & ~tasks_inside(graph, rows)))
        return np.array([own[np.argmax(graph.tasks.submitted[own])] for own in steps], dtype=np.intp)

    def first_of_update(graph: TaskGraph) -> Rows:
        steps = per_step(graph, np.flatnonzero(tasks_inside(graph, rows) & ~graph.is_device))
        return np.array([own[0] for own in steps], dtype=np.intp)

    return Plan().insert(NewTask("unscale gradients", round(passes)), last_before, before=first_of_update)


def _peak(context: Context, costs: Costs, kinds: dict[int, str]) -> int | None:
    memory = context.memory
    if memory is None:
        return None
    call = np.where(memory.row >= 0, costs.call[memory.row], -1)
    number = np.where(call >= 0, costs.number[call], -1)
    phase = np.where(memory.row >= 0, labels(context.trace).phase[memory.row], 0)
    halved = np.isin(number, [each for each, kind in kinds.items() if kind != "full"])
    halved &= phase != PHASES.index("optimizer")
    return memory.scaled(halved, 0.5).with_more(round(2 * gradients(context.trace).total)).peak_bytes


# Fewer operators: some removed, chains of them fused, batch norms folded into the operators before them.


_NORM = ("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm", "aten::vector_norm")


def operator_rows(trace: Trace, pattern: str) -> Mask:
    """Rows inside operators of a name (`*` and `?` as in file names) and their backward operators, with kernels."""
    found = rows_inside(trace, partial(fnmatchcase, pat=pattern))
    forward = forward_of(trace)
    backward = (forward >= 0) & found[np.maximum(forward, 0)]
    return with_launched(trace, found | (call_tree(trace).outermost(backward) >= 0))


def with_python(graph: TaskGraph, tasks: Mask) -> Mask:
    """Tasks, and the gap on the host thread after each run of them: the Python that called them."""
    found: Mask = tasks | (graph.behind(tasks) & (graph.tasks.kind == TaskKind.GAP))
    return found


@transform("remove_operator")
def remove_operator(context: Context, name: str, python: bool = True) -> Change:
    """Remove an operator, such as `aten::dropout`, with its backward pass, kernels and Python.

    `name` may contain `*` and `?` as in file names. With `python`, the simulation also removes one gap of the host
    after each call, because the module that made the call is removed. The slow end of the predicted range keeps these
    gaps of the host. All tasks that remain keep their durations, although a memory-bound neighbor could become faster.
    Daydream calls this operation Remove.
    """
    tasks = tasks_of_rows(context.graph, operator_rows(context.trace, name))
    if not tasks.any():
        raise NotApplicable(f"the trace has no operator {name}")
    return _remove(context.graph, tasks, python)


def _remove(graph: TaskGraph, tasks: Mask, python: bool) -> Change:
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
    tasks = tasks_of_rows(context.graph, operator_rows(context.trace, "aten::batch_norm"))
    if not tasks.any():
        raise NotApplicable("the trace has no batch norm")
    return _remove(context.graph, tasks, True)


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
    norms = tasks_of_rows(graph, operator_rows(trace, "*batch_norm*"))
    activations = tasks_of_rows(graph, operator_rows(trace, "aten::relu*"))
    if not norms.any():
        raise NotApplicable("the trace has no batch norm")
    busy = tasks_of_computing(graph)
    plans = []
    for gain in (1.0, 1 / 3):
        factor = np.where(busy & norms, 1 - gain / 2, np.where(busy & activations, 1 - gain, 1.0))
        plans.append(Plan().timed(graph.scaled(factor)))
    notes = ("the gain for batch norm is an empirical factor of one half",)
    return Change(plans[0], slow=plans[1], trust="low", notes=notes)


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
    duration, gone = fused_durations(context, epilogues)
    now = context.graph.tasks.duration
    half = np.where(gone, now // 2, (duration + now) // 2)
    return Change(Plan().timed(duration).remove(gone), slow=Plan().timed(half))


def fused_durations(context: Context, epilogues: bool) -> tuple[I64, Mask]:
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
    call = costs.of_computing(graph)
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
    tasks = tasks_inside(context.graph, annotations)
    if not tasks.any():
        raise NotApplicable(f"the trace has no annotation {name} that contains work")
    return Change(Plan().remove(tasks))
