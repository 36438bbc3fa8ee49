"""Decides `perf.assert_whatif`: the predicted gain of an optimization must be below a bound.

The trace of a call's median profiled step becomes a task graph without profiler overhead, as in
`perfdl whatif --step-time` with the median of the timed steps. An uncertain prediction never fails a test: if the trace
lacks information, a constant is missing, confidence is low or the interval contains the bound, the verdict is
`inconclusive`.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from pytest_perfdl.fixture.requests import WhatIfExpectation
from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.model.errors import MissingConstant, NotApplicable
from pytest_perfdl.model.limits import parse_limit
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import MetricVerdict, Verdict
from pytest_perfdl.trace import read
from pytest_perfdl.trace.exemplar import LIMIT, is_complete
from pytest_perfdl.whatif.from_trace.graph import task_graph
from pytest_perfdl.whatif.machine import machine_of_key
from pytest_perfdl.whatif.predict import Base, Prediction, WhatIf, predict
from pytest_perfdl.whatif.simulation.quality import REFUSED_ERROR
from pytest_perfdl.whatif.transform import Context, NotRecorded
from pytest_perfdl.whatif.unprofiled import unprofiled

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
        limit=f"< {expectation.gains_less_than}",
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
    base = _unprofiled(path, step_ns)
    return Context(base.simulation.graph, machine), base


def _unprofiled(path: Path, step_ns: float) -> Base:
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
