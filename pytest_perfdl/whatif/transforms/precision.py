"""Automatic mixed precision: matrix products and what follows them in 16 bits."""

from __future__ import annotations

import numpy as np

from pytest_perfdl.analysis.account.parts.labels import PHASES, labels
from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.model.errors import MissingMachineConstant, NotApplicable
from pytest_perfdl.trace.model import F64, I64, Rows
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.editing.insertion import NewTask
from pytest_perfdl.whatif.editing.select import of_rows
from pytest_perfdl.whatif.facts import (
    SHORT_TYPES,
    Costs,
    autocast,
    computing,
    gradients,
    inside,
    operator_costs,
    optimizer_steps,
)
from pytest_perfdl.whatif.model import Mask, TaskGraph
from pytest_perfdl.whatif.transform import Change, Context, NotRecorded, transform


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
    call = np.where(computing(graph), costs.of_tasks(graph), -1)
    call[of_rows(graph, labels(context.trace).phase == PHASES.index("optimizer"))] = -1
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
    casts, passes = _casts(context, machine)
    between = _between(graph, costs, call, lower, machine)
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
    notes = (
        () if covered else (("the gain of each operator is a rule of thumb: run `perfdl constants` to measure gains"),)
    )
    peak = _peak(context, costs, lower)
    return Change.of(plans, peak, "ok" if covered else "low", notes)


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
            raise _no_peaks(dtype)
        else:
            # Elementwise operators move half the bytes; with measured ratios the rest was not worth a replay.
            found[number] = (0.5, 0.5, 0.75) if not ratios else (1.0, 0.5, 1.0)
    return found, measured


def _no_peaks(dtype: str) -> MissingMachineConstant:
    return MissingMachineConstant(f"the speed of this machine in {dtype} is unknown", "its peaks or measured ratios")


def _casts(context: Context, machine: Machine) -> tuple[float, float]:
    """Nanoseconds per step to cast parameters and gradients, and for one pass over the gradients to unscale them."""
    total = gradients(context.trace).total
    if not total:
        return 0.0, 0.0
    rate = machine.rate("memory_bytes_per_s", "the memory bandwidth")
    return 2 * _CAST_BYTES * total / rate * 1e9, 8 * total / rate * 1e9


def _with_casts(graph: TaskGraph, factor: F64, some: Rows, casts: float) -> np.typing.NDArray[np.int64]:
    duration = np.rint(graph.tasks.duration * factor).astype(np.int64)
    step = graph.tasks.step[some]
    for index in range(len(graph.steps)):
        own = some[step == index]
        if len(own):
            duration[own[0]] += round(casts)
    return duration


def _between(graph: TaskGraph, costs: Costs, call: Rows, kinds: dict[int, str], machine: Machine) -> I64:
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

    def last_before(graph: TaskGraph) -> Mask:
        found = np.zeros(len(graph), dtype=bool)
        updating = inside(graph, rows)
        for index in range(len(graph.steps)):
            own = np.flatnonzero(graph.is_device & (graph.tasks.step == index) & ~updating)
            if len(own):
                found[own[np.argmax(graph.tasks.submitted[own])]] = True
        return found

    def first_of_update(graph: TaskGraph) -> Mask:
        found = np.zeros(len(graph), dtype=bool)
        own = np.flatnonzero(inside(graph, rows) & ~graph.is_device)
        for index in range(len(graph.steps)):
            tasks = own[graph.tasks.step[own] == index]
            found[tasks[:1]] = True
        return found

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
