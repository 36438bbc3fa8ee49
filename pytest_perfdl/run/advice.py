"""Suggestions for a step that got slower or larger, from its trace, and `perf.assert_whatif`."""

from __future__ import annotations

import glob
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.fixture.requests import WhatIfExpectation
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import InputError, MissingConstant, NotApplicable
from pytest_perfdl.model.limits import Budget, parse_limit
from pytest_perfdl.model.memory import MemoryAccount, MemoryAdvice, MemoryChange, MemoryRow
from pytest_perfdl.model.record import Record, Scalar, metric_name
from pytest_perfdl.model.step_part import ANY
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.results.run import Result, Suggestion
from pytest_perfdl.results.verdict import Cause, MetricVerdict, Verdict
from pytest_perfdl.trace import read
from pytest_perfdl.trace.exemplar import LIMIT, is_complete
from pytest_perfdl.trace.model import Category, Trace
from pytest_perfdl.whatif.editing.select import Select
from pytest_perfdl.whatif.facts import input_tasks, tasks_inside
from pytest_perfdl.whatif.from_trace.graph import task_graph
from pytest_perfdl.whatif.machine import machine_of_key
from pytest_perfdl.whatif.model import Mask, TaskGraph, TaskKind, are_of_kinds
from pytest_perfdl.whatif.predict import Base, Prediction, WhatIf, predict
from pytest_perfdl.whatif.simulation.quality import REFUSED_ERROR
from pytest_perfdl.whatif.transform import Context, NotRecorded
from pytest_perfdl.whatif.unprofiled import unprofiled

# Suggestions for a step that got slower: advice about its causes, from the trace of the current side.
#
# The trace is of one profiled step, which the report stores anyway.


AGREES = 0.1
"""How far the profiled step may be from the timed one, as a share, for advice that is predicted from its trace."""
SUGGESTED: frozenset[Verdict] = frozenset({"regressed", "changed"})
"""Verdicts on steps that do more than before, or the same more slowly."""


def with_suggestions(result: Result) -> Result:
    """The result with advice on the parts of its steps that are blamed, the largest predicted gain first.

    Predicted are shares of the profiled step. Nothing is suggested where the trace is missing, damaged, not whole, or
    cannot be simulated, where other processes used the CPU, or where the profiled step is not what the timed one is
    (`AGREES`); nor where advice is about other parts of the step, or may gain nothing. Nothing is raised.
    """
    if result.judgement.verdict not in SUGGESTED or result.new is None or _is_contended(result):
        return result
    found: list[Suggestion] = []
    for each in result.exemplars:
        causes = [cause for cause in result.judgement.blame if cause.call == each.call]
        if each.new is not None and causes:
            try:
                found += _suggestions(each.new, causes, result.new, each.call)
            except Exception:
                # Advice is optional: an error of the simulator must not change the verdict.
                continue
    return replace(result, suggestions=tuple(sorted(found, key=lambda each: -each.gain)))


def _is_contended(result: Result) -> bool:
    """Whether other processes used the CPU, so that a trace may show them rather than the step."""
    own = result.new.integrity if result.new is not None else ()
    return any(finding.meaning.contends for finding in (*own, *result.judgement.integrity))


def _agrees(profiled_ns: float, record: Record, call: str) -> bool:
    """Whether the profiled step takes as long as the timed steps do."""
    times = record.metrics()
    series = times.get(metric_name(call, "step_time")) or times.get(metric_name(call, "block_time"))
    return series is not None and abs(profiled_ns / statistics.median(series.values) - 1) <= AGREES


def _suggestions(path: Path, causes: Sequence[Cause], record: Record, call: str) -> list[Suggestion]:
    # Imported here: runs in which nothing got slower have no use for it.
    from pytest_perfdl.whatif import Context, task_graph
    from pytest_perfdl.whatif.advice import advise

    trace = read(path)
    if not is_complete(trace):
        return []
    found = []
    for each in advise(Context(task_graph(trace), machine_of_key(record.key.parts)), within=blamed(causes)):
        gain, ends, step = each.prediction.gain, each.prediction.interval_ns, each.prediction.step_ns
        if gain is None or ends is None or not _agrees(step, record, call):
            continue
        low, high = 1 - ends[1] / step, 1 - ends[0] / step
        if low > 0:
            text = f"{call}: {each.text}" if call else each.text
            doubt = "" if each.prediction.trust == "ok" else each.prediction.reason
            found.append(Suggestion(text, each.how, gain, (low, high), doubt, each.example))
    return found


# Selects the tasks that belong to the causes of a slower step: advice is limited to these.


MOST = 20
"""Causes that are looked for: each one takes a millisecond or so, and what matters comes first."""

LEAST = 0.1
"""Share of the largest cause from which another counts: what is a tenth of that is not what made the step slower."""

_INPUT = "input"
_IDLE: dict[str, tuple[TaskKind, ...]] = {
    "communication": (TaskKind.COMMUNICATION,),
    "launch latency": (TaskKind.CALL,),
    "synchronization": (TaskKind.WAIT, TaskKind.RETURN),
    "operator overhead": (TaskKind.OPERATOR, TaskKind.CALL),
    PYTHON: (TaskKind.GAP,),
    "device wait": (),
    "unattributed": (),
}
"""What happens on the host, or between ranks, during each class of idle time (`device_accounts`, `host_accounts`)."""


def blamed(causes: Sequence[Cause]) -> Callable[[TaskGraph], Mask]:
    """A selector of what causes of a change cost more of, for the graph of a trace of the new side.

    An operator stands for what runs inside it and what it launches, in the cause's module if the trace knows it; idle
    time for what the host does meanwhile; Python's for the gaps between operators, or for all that runs in the
    annotation that it is named after. What got faster, or is gone, stands for nothing, nor what is small beside the
    largest cause (`LEAST`) and has no more calls than in the baseline.

    Parameters
    ----------
    causes
        Of one call, the largest first: `Judgement.blame`. No more than `MOST` are looked for.
    """
    least = max(LEAST * max((cause.delta_ns for cause in causes), default=0), 1)
    more = [cause for cause in causes if cause.delta_ns >= least or (cause.kind != "idle" and _recurs(cause))][:MOST]

    def selected(graph: TaskGraph) -> Mask:
        found = np.zeros(len(graph), dtype=bool)
        if graph.trace is not None:
            for cause in more:
                found |= (
                    _idle(graph, graph.trace, cause)
                    if cause.kind == "idle"
                    else _match_cause(graph, graph.trace, cause)
                )
        return found

    return selected


def _recurs(cause: Cause) -> bool:
    return cause.new_count > cause.base_count


def _match_cause(graph: TaskGraph, trace: Trace, cause: Cause) -> Mask:
    members = {*cause.members} or {cause.name}
    names = [index for index, name in enumerate(trace.names) if name in members]
    if cause.kind == "kernel":
        found = graph.is_device & np.isin(graph.tasks.name, names)
    else:
        found = np.zeros(len(graph), dtype=bool)
        for index in names:
            found |= Select(operator=glob.escape(trace.names[index]))(graph)
    layer = ANY.join(map(glob.escape, cause.module.split(ANY)))
    if layer and (narrow := found & Select(layer=layer)(graph)).any():
        return narrow
    return found


def _idle(graph: TaskGraph, trace: Trace, cause: Cause) -> Mask:
    if cause.name == _INPUT:
        return input_tasks(graph)
    if cause.name in _IDLE:
        return are_of_kinds(graph.tasks, *_IDLE[cause.name])
    annotations = trace.matching(lambda name: name == cause.name, trace.rows(Category.USER_ANNOTATION))
    # What is neither a class nor an annotation is a function of Python's, which a trace without frames does not show.
    return tasks_inside(graph, annotations) if len(annotations) else are_of_kinds(graph.tasks, *_IDLE[PYTHON])


# Decides `perf.assert_whatif`: the predicted gain of an optimization must be below a bound.
#
# The trace of a call's median profiled step becomes a task graph without profiler overhead, as in `perfdl whatif
# --step-time` with the median of the timed steps. An uncertain prediction never fails a test: if the trace lacks
# information, a constant is missing, confidence is low or the interval contains the bound, the verdict is
# `inconclusive`.


TIMED = "step_p50"
"""Metric to which the graph is scaled: the median, because the trace is of a median step."""


class _NoPrediction(Exception):
    """There is no prediction; the message is one line."""


def judged(expectation: WhatIfExpectation, result: Result) -> MetricVerdict:
    """The verdict on an `assert_whatif` of a measured call.

    Regressed if the whole prediction interval is above the bound and confidence is ok. Unchanged if the predicted gain
    is at most the bound and the prediction is not rejected, or if there is nothing to optimize. Otherwise inconclusive.

    Raises
    ------
    ValueError
        The optimization rejects the values of its parameters; the message is one line.
    """
    parameters = ",".join(f"{name}={value}" for name, value in expectation.parameters.items())
    title = expectation.transform + (f":{parameters}" if parameters else "")
    question = WhatIf(title, transform=expectation.transform, parameters=dict(expectation.parameters))
    bound = parse_limit("step_time", expectation.gains_less_than).relative or 0.0
    gain: float | None = None
    verdict: Verdict = "inconclusive"
    try:
        found = _prediction(question, *_context(expectation, result))
        if isinstance(found, str):
            gain, verdict, reason = 0.0, "unchanged", f"nothing to optimize: {found}"
        else:
            gain = found.gain
            verdict, reason = _held(found, bound, expectation.gains_less_than)
    except _NoPrediction as why:
        reason = f"no prediction: {why}"
    return MetricVerdict(
        name=metric_name(expectation.call, f"whatif {title}"),
        kind="timed",
        unit="%",
        better="lower",
        base=None,
        new=None if gain is None else 100 * gain,
        limit=Budget(expectation.gains_less_than, "<"),
        verdict=verdict,
        reason=reason,
        times_over=gain / bound if gain is not None and verdict == "regressed" and bound else None,
    )


def _held(prediction: Prediction, bound: float, text: str) -> tuple[Verdict, str]:
    gain, ends = prediction.gain, prediction.interval_ns
    assert gain is not None
    assert ends is not None
    low, high = (1 - end / prediction.step_ns for end in reversed(ends))
    size, *span = (format_percent(share, signed=False) for share in (gain, low, high))
    found = f"predicted gain {size} [{', '.join(span)}] (prediction interval), expected < {text}"
    if prediction.trust == "refuse":
        return "inconclusive", f"{found}: the prediction was rejected ({prediction.reason})"
    if gain <= bound:
        return "unchanged", found
    if prediction.trust == "low":
        return "inconclusive", f"{found}: the prediction has low confidence ({prediction.reason})"
    return (
        ("regressed", found)
        if low > bound
        else ("inconclusive", f"{found}: the prediction interval contains the expected bound")
    )


def _prediction(question: WhatIf, context: Context, base: Base) -> Prediction | str:
    """The prediction, or why there is nothing to optimize."""
    try:
        question.change(context)
    except NotRecorded as error:
        raise _NoPrediction(str(error)) from None
    except NotApplicable as error:
        return str(error)
    except MissingConstant as error:
        raise _NoPrediction(error.in_python) from None
    return predict(context, question, base)


def _context(expectation: WhatIfExpectation, result: Result) -> tuple[Context, Base]:
    """The step without profiler overhead, and the machine's rates: given ones, else those of its machine ID."""
    record = result.new
    path = next((each.new for each in result.exemplars if each.call == expectation.call), None)
    if record is None or path is None:
        raise _NoPrediction("no trace of a step was stored")
    if record.plan.period > 1:
        raise _NoPrediction(
            f"the stored trace contains only one step, but a cycle of the test has {record.plan.period} steps "
            f"(period={record.plan.period})"
        )
    machine = (expectation.machine or Machine()).or_else(machine_of_key(record.key.parts))
    step_ns = statistics.fmean(record.metrics()[metric_name(expectation.call, TIMED)].values)
    base = _build_graph(path, step_ns)
    return Context(base.simulation.graph, machine), base


def _build_graph(path: Path, step_ns: float) -> Base:
    """The graph of a stored trace, scaled to the time of the timed steps."""
    trace = read(path)
    if not is_complete(trace):
        raise _NoPrediction(
            f"the trace of the step is larger than {format_quantity(LIMIT, 'B')}, the size limit of stored traces"
        )
    base = Base.of(unprofiled(task_graph(trace), step_ns))
    if abs(base.mean - step_ns) > REFUSED_ERROR * step_ns:
        took, timed = format_quantity(base.mean, "ns"), format_quantity(step_ns, "ns")
        raise _NoPrediction(
            f"the traced step takes {took} without profiler overhead, which differs too much from the {timed} of the "
            "timed steps"
        )
    return base


# Suggestions to lower a peak of memory that increased, with the predicted peak.


LEAST_SAVED = 0.05
"""Share of the peak that advice has to save."""
_MANY = 0.25
"""Share of the peak from which activations are looked at."""
_LAYER = re.compile(r"(?P<layer>(?P<stack>.+?)\.\d+)(\.|$)")
"""A module that is one of several of the same kind: "GPT.blocks.0"."""
_STRATEGIES = "examples/strategies"


def with_memory_advice(result: Result) -> Result:
    """The result with advice for each call whose peak got higher; nothing is raised."""
    if result.new is None or not result.judgement.memory:
        return result
    traces = {each.call: each.new for each in result.exemplars}
    parts = result.new.key.parts
    memory = tuple(
        replace(change, advice=tuple(_advice(change, traces.get(change.call), parts)))
        if change.base is not None and change.new.peak_bytes > change.base.peak_bytes
        else change
        for change in result.judgement.memory
    )
    return replace(result, judgement=replace(result.judgement, memory=memory))


def _advice(change: MemoryChange, trace: Path | None, parts: Mapping[str, Scalar]) -> Iterator[MemoryAdvice]:
    account = change.new
    found = [*_find_kept_gradients(account), *_checkpointing(account)]
    if trace is not None and account.by_category().get("activations", 0) >= _MANY * account.peak_bytes:
        found += _simulate(trace, parts, account)
    least = LEAST_SAVED * account.peak_bytes
    ordered = sorted(found, key=lambda each: -each.saved_bytes)
    return (each for each in ordered if each.saved_bytes >= least)


def _find_kept_gradients(account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """Gradients that are alive in the forward pass, at the peak: set to zero rather than to none."""
    moment = account.moment
    kept = sum(row.bytes for row in account.rows if row.category == "gradients" and row.lives_from < 0)
    if kept and moment is not None and moment.phase in ("forward", "input"):
        # Another moment may then be the highest: the peak is at most so much lower.
        yield MemoryAdvice(
            how="optimizer.zero_grad(set_to_none=True) before the forward pass",
            predicted_peak_bytes=account.peak_bytes - kept,
            saved_bytes=kept,
            step_change=None,
            example="",
        )


def _checkpointing(account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """Activations of layers that repeat: each layer keeps its result alone, and one at a time has all again.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. A layer's result is what was allocated in it
    last of what is alive.
    """
    layers: dict[str, dict[str, list[MemoryRow]]] = {}
    for row in account.rows:
        if row.category == "activations" and not row.kept and (match := _LAYER.match(row.module)):
            layers.setdefault(match["stack"], {}).setdefault(match["layer"], []).append(row)
    sizes = {stack: sum(row.bytes for rows in found.values() for row in rows) for stack, found in layers.items()}
    stack = max(sizes, key=sizes.__getitem__, default="")
    if not stack or len(layers[stack]) < 2:
        return
    whole = [sum(row.bytes for row in rows) for rows in layers[stack].values()]
    results = [max(rows, key=lambda row: row.lives_from) for rows in layers[stack].values()]
    left = sum(row.bytes // row.tensors for row in results)
    others = account.peak_bytes - sum(whole)
    # While a layer runs again, what the loss needed is gone; without knowing how much of it, the other bytes stay.
    moment = account.moment
    again = max(whole) if moment is None or (moment.module or "").startswith(f"{stack}.") else 0
    peak = others + left + again
    yield MemoryAdvice(
        how=f"torch.utils.checkpoint.checkpoint around each block of {stack}",
        predicted_peak_bytes=peak,
        saved_bytes=account.peak_bytes - peak,
        step_change=None,
        example=f"{_STRATEGIES}/test_checkpointing.py",
    )


def _simulate(path: Path, parts: Mapping[str, Scalar], account: MemoryAccount) -> Iterator[MemoryAdvice]:
    """What the simulator predicts of activations in 16 bits, where it is known how fast the machine is with them."""
    # Imported here: runs in which no peak got higher have no use for it.
    from pytest_perfdl.whatif import Context, predict, task_graph

    try:
        trace = read(path)
        if not is_complete(trace):
            return
        found = predict(Context(task_graph(trace), machine_of_key(parts)), "amp")
    except (InputError, OSError):
        return
    before, after = found.peak_bytes, found.predicted_peak_bytes
    if before is not None and after is not None:
        # The trace's peak and the account's are of two runs of the same step.
        saved = before - after
        yield MemoryAdvice(
            how="torch.autocast(..., dtype=torch.bfloat16)",
            predicted_peak_bytes=account.peak_bytes - saved,
            saved_bytes=saved,
            step_change=None if found.gain is None else -found.gain,
            example=f"{_STRATEGIES}/test_mixed_precision.py",
        )
