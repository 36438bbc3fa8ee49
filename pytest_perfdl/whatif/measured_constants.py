"""Measures machine rates that predictions need and traces do not contain, with the operators of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import ConstantsError
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.whatif import task_graph
from pytest_perfdl.whatif.facts import InputArgs, operator_costs

if TYPE_CHECKING:
    from pytest_perfdl.measure.calibration import Form, Ratio, Recorded

COVERED = 0.95
"""Share of the operators' time that those which are replayed make up."""

Say = Callable[[int, int, str], None]
"""Is told how many measurements are done, of how many, and what the last one found."""


def measure_constants(
    trace: Trace, forms: Sequence[Form] = (), *, threads: int = 1, known: Machine | None = None, say: Say | None = None
) -> Machine:
    """The machine's limits and constants, and the ratios of the trace's operators in these forms.

    What is known is kept.

    Operators are those with a cost model that make up 95 % of the time of all of them. On a trace of the host alone
    also how much longer a process computes beside another, and what a DataLoader's worker costs.

    The trace is profiled with `record_shapes=True`; forms are element types for `amp`, and "channels_last". What is
    `known` was measured here before, with this torch and as many intra-op threads.

    Raises
    ------
    ConstantsError
        If the trace is of a device and there is none, it has no shapes or none of its operators can be replayed,
        `known` is of another machine, or others disturbed what was measured; without forms alone, whose replays stand
        that.
    """
    from pytest_perfdl.measure import calibration
    from pytest_perfdl.measure.calibration import calibrate

    graph = task_graph(trace)
    device = calibration.place(on_device=graph.on_device)
    if not device:
        raise ConstantsError(
            "the trace was recorded on a GPU, but torch finds no GPU here: run the command on the machine of the trace"
        )
    calls = _recorded_calls(trace)
    if forms and not calls:
        raise ConstantsError("the trace has no shapes of operators: profile with record_shapes=True")
    key = calibration.prepare(threads, device)
    found = known or Machine()
    if found.key and found.key != key:
        raise ConstantsError(
            f"the file contains constants of another machine ({found.key}, not {key}): write to another file"
        )
    before = {form: dict(found.ratios.get(form, {})) for form in forms}
    missing = {form: {name: call for name, call in calls.items() if name not in before[form]} for form in forms}
    say = say or _say_nothing
    if found.peaks is None:
        try:
            found = found.or_else(calibrate(key, device, say=say))
        except ConstantsError as error:
            # Operators are replayed interleaved, so another process disturbs both forms alike.
            if not forms:
                raise
            say(0, 0, f"the peak rates of this machine could not be measured: {error}")
    plain: list[tuple[str, Callable[[], float]]] = []
    if not graph.on_device:
        plain = [("contention", calibration.contention), ("hand_over_ns", calibration.hand_over_ns)]
    plain = [(name, measure) for name, measure in plain if getattr(found, name) is None]
    done, count = 0, len(plain) + sum(map(len, missing.values()))
    for name, measure in plain:
        value = measure()
        figures: dict[str, Any] = {name: value}
        found = replace(found, **figures, source={**found.source, name: "measured"})
        done += 1
        say(done, count, f"{name} {value:.4g}")
    for form in forms:
        for call, ratio in calibration.ratios(missing[form], form, device):
            if ratio is not None:
                before[form][call] = ratio
            done += 1
            say(done, count, f"{call} {form} " + ("cannot be replayed" if ratio is None else f"{ratio[1]:.2f}"))
    if forms and not any(before.values()):
        raise ConstantsError(
            "no operator can be replayed, because the trace lacks the arguments of operators; profile with "
            "record_shapes=True (traces in reports contain only shapes and types)"
        )
    source = {**found.source, "ratios": "replayed"} if forms else found.source
    ratios: dict[str, Mapping[str, Ratio]] = {**found.ratios, **{str(form): each for form, each in before.items()}}
    return replace(found, key=key, ratios=ratios, source=source)


def _say_nothing(_done: int, _count: int, _text: str) -> None: ...


def _recorded_calls(trace: Trace) -> Mapping[str, Recorded]:
    """The operators that matter, the longest first, by `operator_key`."""
    from pytest_perfdl.measure.calibration import Recorded

    costs, graph = operator_costs(trace), task_graph(trace)
    call = costs.of_computing(graph)
    some = np.flatnonzero(call >= 0)
    if not len(some):
        return {}
    spent = np.bincount(costs.number[call[some]], graph.tasks.duration[some], minlength=len(costs.costs))
    order = np.argsort(-spent, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(spent[order]), COVERED * spent.sum())) + 1]
    found = {}
    for number in kept.tolist():
        row = int(np.flatnonzero(costs.number == number)[0])
        [args] = trace.decode_args(np.array([row]), InputArgs)
        found[costs.keys[number]] = Recorded(costs.name(number), args.dims, args.types, args.strides, args.texts)
    return found
