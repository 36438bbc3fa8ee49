"""The update of the parameters: fused into one kernel, or into one launch per operator."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.trace.model import I64, Rows
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.facts import (
    gradients,
    operator_costs,
    optimizer_steps,
    per_step,
    tasks_inside,
)
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform

PASSES = {"Adam": 7, "AdamW": 7, "Adagrad": 5, "RMSprop": 5, "SGD": 3}
"""Tensors as large as the parameters that an update reads and writes: Adam reads p, g, m, v and writes p, m, v."""

_SGD_MOMENTUM = 5

CALL_NS, PARAMETER_NS = 20_000, 250
"""Host time of a fused call, and for each parameter that it gathers (pointers into the launch's arguments)."""
HOST_PARAMETER_NS = 2_500
"""The latter on a CPU, where separate operators count the steps of each parameter (`_foreach_add_`, `item`)."""

_DISPATCHED = ("aten::_fused_", "aten::_foreach_")


def _updates(context: Context) -> tuple[list[Rows], str]:
    """Tasks of each step's update, from the first operator in it to the last, and the class of the optimizer."""
    graph = context.graph
    rows, kind = optimizer_steps(context.trace)
    if not len(rows):
        raise NotRecorded("the trace has no optimizer update (Optimizer.step) of a single optimizer")
    own = np.flatnonzero(tasks_inside(graph, rows))
    found = []
    for tasks in per_step(graph, own):
        host = tasks[~graph.is_device[tasks]]
        busy = host[graph.tasks.kind[host] == TaskKind.OPERATOR]
        if len(busy):
            found.append(tasks[graph.is_device[tasks] | ((tasks >= busy[0]) & (tasks <= busy[-1]))])
    if not found:
        raise NotApplicable("the optimizer update runs no operators")
    return found, kind


def _dispatched_as(context: Context, tasks: Rows) -> str:
    names = {context.graph.name_of(task) for task in tasks.tolist()}
    return next((form for form in _DISPATCHED if any(name.startswith(form) for name in names)), "")


@transform("fused_optimizer")
def fused_optimizer(context: Context) -> Change:
    """Use `fused=True`, which runs one kernel for the whole update.

    One call replaces the operators and kernels of each update:

    - The call takes 20 us on the host, plus 0.25 us per parameter tensor, or 2.5 us per tensor if the step runs on a
      CPU.
    - The compute takes `c s N / B` for N parameters of s bytes. Both N and s come from the gradients that autograd
      accumulates.
    - The constant c, the number of passes over memory, is 7 for Adam and AdamW, 5 for Adagrad, RMSprop and SGD with
      momentum, and 3 for SGD.
    - B is the memory bandwidth, or the bandwidth that the update reaches on the largest parameters in the trace, if
      that is higher. (The update reaches a higher bandwidth if the parameters fit into a cache.) The range of the
      prediction covers half to one and a half times B.

    Python code before the first and after the last operator of the update stays the same.

    Daydream's formula for a fused optimizer is the summed time of the removed kernels. On small models, Daydream's
    formula predicted the wrong sign.

    Raises
    ------
    MissingConstant, NotApplicable
        If the memory's bandwidth, the gradients' shapes or the optimizer's passes are not known.
    """
    updates, kind = _updates(context)
    if _dispatched_as(context, np.concatenate(updates)) == "aten::_fused_":
        raise NotApplicable("the optimizer update is already fused")
    passes = PASSES.get(kind)
    sizes = gradients(context.trace)
    if passes is None:
        raise NotRecorded(f"the memory traffic of {kind} is unknown; known: {', '.join(sorted(PASSES))}")
    if not sizes.total:
        raise NotRecorded("the trace has no shapes of gradients: profile with record_shapes=True")
    graph = context.graph
    if kind == "SGD" and _has_momentum(graph, np.concatenate(updates), sizes.count * len(updates)):
        passes = _SGD_MOMENTUM
    rate = context.known.rate("memory_bytes_per_s", "the memory bandwidth")
    rate = max(rate, _reached_rate(context, np.concatenate(updates)))
    call = CALL_NS + (PARAMETER_NS if graph.on_device else HOST_PARAMETER_NS) * sizes.count
    moved = passes * sizes.total_bytes / rate * 1e9
    plans = [_one_kernel(graph, updates, round(call), round(moved * more)) for more in (1.0, 1 / 1.5, 2.0)]
    return Change.of(plans)


def _has_momentum(graph: TaskGraph, tasks: Rows, parameters: float) -> bool:
    """Whether SGD multiplies as often as it has parameters: `buf.mul_(momentum)`; with foreach, at all."""
    names = [graph.name_of(task) for task in tasks[~graph.is_device[tasks]].tolist()]
    return any(name == "aten::_foreach_mul_" for name in names) or names.count("aten::mul_") >= parameters


def _reached_rate(context: Context, tasks: Rows) -> float:
    """Bytes per second of the update's operators on the largest tensors; 0 if the shapes are unknown."""
    graph, costs = context.graph, operator_costs(context.trace)
    call = costs.of_computing(graph)[tasks]
    tasks, call = tasks[call >= 0], call[call >= 0]
    calls, place = np.unique(call, return_inverse=True)
    if not len(calls):
        return 0.0
    spent = np.bincount(place, graph.tasks.duration[tasks])
    number = costs.number[calls].tolist()
    largest = np.array([costs.largest[each] for each in number])
    moved = np.array([costs.costs[each].bytes for each in number])
    some = (2 * largest >= largest.max()) & (spent > 0)
    return float(moved[some].sum() / spent[some].sum() * 1e9) if some.any() else 0.0


def _one_kernel(graph: TaskGraph, updates: list[Rows], call: int, computing: int) -> Plan:
    duration = graph.tasks.duration.copy()
    gone = np.zeros(len(graph), dtype=bool)
    for tasks in updates:
        duration[tasks] = 0
        host, kernels = tasks[~graph.is_device[tasks]], tasks[graph.is_device[tasks]]
        duration[host[0]] = call
        if len(kernels):
            duration[kernels[0]] = computing
            # Its launch comes when the call has gathered the parameters.
            launch = graph.tasks.launcher[kernels[0]]
            if launch >= 0:
                duration[launch], duration[host[0]] = 0, call
            gone[kernels[1:]] = True
        else:
            duration[host[0]] += computing
    return Plan().timed(duration).remove(gone)


@transform("foreach")
def foreach(context: Context) -> Change:
    """Use `foreach=True`, which runs one call per operator for all parameters.

    On a device, each operator of the update keeps one call and one kernel per 30 parameter tensors. (In PyTorch,
    multi-tensor apply takes at most 110 tensors and 320 chunks of 64 Ki elements per launch.)

    - A kernel that replaces k kernels takes `sum(t) - (k - 1) * min(t)`, because the fixed cost of a kernel occurs only
      once. The shortest kernel approximates the fixed cost of a kernel.
    - A call on the host takes as long as before, plus 0.25 us per parameter tensor.

    On a CPU, `foreach` runs the same operators one after the other. Only the Python time between the operators shrinks,
    to at most 0.25 us per gap.

    The range of the prediction extends to half of the predicted gain.

    Raises
    ------
    NotApplicable
        If no update runs its operators one parameter at a time.
    """
    updates, _ = _updates(context)
    graph = context.graph
    if _dispatched_as(context, np.concatenate(updates)):
        raise NotApplicable("the optimizer update is already fused or uses foreach")
    parameters = max(gradients(context.trace).count, 1.0)
    duration, gone = graph.tasks.duration.copy(), np.zeros(len(graph), dtype=bool)
    for tasks in updates:
        host, kernels = tasks[~graph.is_device[tasks]], tasks[graph.is_device[tasks]]
        if graph.on_device:
            _group_kernels(graph, host, kernels, parameters, duration, gone)
        else:
            between = host[graph.tasks.kind[host] == TaskKind.GAP]
            duration[between] = np.minimum(duration[between], PARAMETER_NS)
    slow = (duration + graph.tasks.duration) // 2
    plan, careful = Plan().timed(duration), Plan().timed(np.maximum(slow, duration))
    return Change(plan.remove(gone), slow=careful.remove(gone))


def _group_kernels(graph: TaskGraph, host: Rows, kernels: Rows, parameters: float, duration: I64, gone: Mask) -> None:
    names = graph.tasks.name
    launches = max(1, round(parameters / 30))
    for name in np.unique(names[kernels]).tolist():
        own = kernels[names[kernels] == name]
        groups = np.array_split(own, min(launches * max(1, round(len(own) / parameters)), len(own)))
        least = int(graph.tasks.duration[own].min())
        for group in groups:
            duration[group[0]] = int(graph.tasks.duration[group].sum()) - least * (len(group) - 1)
            gone[group[1:]] = True
    calls = max(1.0, len(kernels) / parameters)
    whole = int(graph.tasks.duration[host].sum())
    duration[host] = 0
    duration[host[0]] = round(
        whole * min(1.0, calls * launches / max(len(kernels), 1)) + calls * PARAMETER_NS * parameters
    )
