"""What a step would take: a plan or a transform simulated beside the graph as it is, with an interval and a trust."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pytest_perfdl.model.errors import MissingConstant, NotApplicable, SelectionError
from pytest_perfdl.trace.model import I64
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.simulation.quality import Quality, Trust, quality
from pytest_perfdl.whatif.simulation.simulate import Simulation, simulate
from pytest_perfdl.whatif.transform import OF_JOBS, Change, Context
from pytest_perfdl.whatif.transforms import find

LEAST_BAND = 0.005
"""Half the width that every interval has at least, relative: the error up to which a replay counts as exact."""

_TRUSTS: tuple[Trust, ...] = ("ok", "low", "refuse")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One question: an edit under a name, or a transform with its parameters."""

    name: str
    """What the answer is called."""
    plan: Plan | None = None
    """Edits; `None` for a transform."""
    transform: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def change(self, context: Context) -> Change:
        """What it does to a graph; to each rank of a job for itself, unless the transform is one of whole jobs.

        Raises
        ------
        MissingConstant, NotApplicable, ValueError
            If it cannot be answered; the message is one line.
        """
        job = context.graph.job
        transformed = find(self.transform) if self.plan is None else None
        if job is not None and (transformed is None or self.transform not in OF_JOBS):
            return _combine_ranks([self.change(replace(context, graph=part)) for part in job.parts])
        return transformed(context, **self.parameters) if transformed is not None else Change(self.plan or Plan())


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the mean step would take. Nanoseconds; with fewer than 3 steps the mean of those there are."""

    name: str
    step_ns: float
    """The mean step as measured."""
    predicted_ns: float | None
    """`None` where it cannot be predicted: see `reason`."""
    interval_ns: tuple[float, float] | None
    """The predictions at both ends of the transform's constants, widened by the larger of 0.5 % and the error of the
    constant-lag replay, and by the 95 % interval (Student's t) of the mean difference between steps. Of a job of
    several ranks widened at least by the 90 % interval of the mean predicted step: it is meant to hold the mean step of
    a changed job in 90 % of cases (measured: benchmarks/whatif/README.md)."""
    trust: Trust
    reason: str
    """What lowers the trust, or why there is no prediction; empty for "ok"."""
    notes: tuple[str, ...] = ()
    peak_bytes: int | None = None
    """Peak of allocated memory as measured, where the prediction changes it."""
    predicted_peak_bytes: int | None = None
    fits: bool | None = None
    """Whether the predicted peak fits into the device's memory, where both are known."""
    simulation: Simulation | None = field(default=None, repr=False, compare=False)
    """The simulated graph of the likeliest constants."""

    @property
    def gain(self) -> float | None:
        """Share of the step that would be saved, negative for what would be lost."""
        return None if self.predicted_ns is None or not self.step_ns else 1 - self.predicted_ns / self.step_ns

    @property
    def band(self) -> float:
        """Half the width of the interval as a share of the step; infinite without a prediction."""
        if self.interval_ns is None or not self.step_ns:
            return math.inf
        return (self.interval_ns[1] - self.interval_ns[0]) / 2 / self.step_ns

    @property
    def worthwhile(self) -> bool:
        """Whether the gain exceeds max(2 %, its error band): the rule for advice."""
        return self.gain is not None and self.gain > max(0.02, self.band)


def predict(context: Context, question: WhatIf | str, base: Base | None = None, /, **parameters: Any) -> Prediction:
    """Answer one question about a graph: a `WhatIf`, or the name of a transform, with its parameters.

    `base` is `Base.of(context.graph)`, which is worked out once if there are several questions.

    Raises
    ------
    ValueError
        If there is no such transform or parameter. That a constant is missing or nothing fits is no error, but a
        prediction without a value.
    """
    if isinstance(question, str):
        question = WhatIf(question, transform=question, parameters=parameters)
    base = base or Base.of(context.graph)
    try:
        change = question.change(context)
    except (MissingConstant, NotApplicable) as error:
        return Prediction(question.name, base.mean, None, None, "refuse", str(error))
    plans = (change.plan, change.fast, change.slow)
    simulated = [simulate(plan.apply(context.graph)) for plan in plans if plan is not None]
    return _prediction(question.name, base, change, simulated, context)


def together(context: Context, questions: Sequence[WhatIf], base: Base | None = None) -> Prediction:
    """All of several questions at once, each asked of the graph that the one before left.

    What cannot be predicted alone leaves the whole without a prediction. Peak memory is not added up.
    """
    name = "all together"
    base = base or Base.of(context.graph)
    graph, notes = context.graph, list[str]()
    trust: Trust = "ok"
    bounds: list[TaskGraph] = [graph, graph]
    for question in questions:
        try:
            change = question.change(replace(context, graph=graph))
            ends = [question.change(replace(context, graph=bound)) for bound in bounds]
            graph = change.plan.apply(graph)
            plans = (ends[0].fast or ends[0].plan, ends[1].slow or ends[1].plan)
            bounds = [plan.apply(bound) for plan, bound in zip(plans, bounds, strict=True)]
        except (MissingConstant, NotApplicable, SelectionError) as error:
            # What the questions before left may hold nothing of what this one selects.
            return Prediction(name, base.mean, None, None, "refuse", f"{question.name}: {error}")
        trust = _worst(trust, change.trust)
        notes += change.notes
    change = Change(Plan(), trust=trust, notes=tuple(notes))
    return _prediction(name, base, change, [*map(simulate, (graph, *bounds))], context)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The graph as it is, simulated."""

    simulation: Simulation
    steps: I64
    """Nanoseconds of each step."""
    quality: Quality

    @classmethod
    def of(cls, graph: TaskGraph) -> Base:
        """Simulate a graph and judge it."""
        simulated = simulate(graph)
        return cls(simulated, _steps(simulated), quality(graph))

    @property
    def mean(self) -> float:
        """The mean step."""
        return float(self.steps.mean())


def _steps(simulation: Simulation) -> I64:
    """Times of the steps; the span where the trace has none."""
    steps = simulation.steps_ns
    return steps if len(steps) and steps.any() else np.array([simulation.span_ns], dtype=np.int64)


def _prediction(name: str, base: Base, change: Change, simulated: Sequence[Simulation], context: Context) -> Prediction:
    """From the simulation with the likeliest constants, and those at the ends of their range."""
    steps = [*map(_steps, simulated)]
    best = float(steps[0].mean())
    half = max(LEAST_BAND, abs(base.quality.constant_error)) * best + _spread(steps[0] - base.steps)
    if context.graph.job is not None:
        # A job is held against another run of it, whose steps vary as these do: see `Prediction.interval_ns`.
        half = max(half, _spread(steps[0], 0.90))
    means = [float(each.mean()) for each in steps]
    trust = _worst(base.quality.trust, change.trust)
    reason = base.quality.reason if trust == base.quality.trust else ""
    memory = context.memory if change.peak_bytes is not None else None
    limit = context.known.memory_bytes
    return Prediction(
        name=name,
        step_ns=base.mean,
        predicted_ns=best,
        interval_ns=(max(min(means) - half, 0.0), max(means) + half),
        trust=trust,
        reason=reason or ("" if trust == "ok" else "; ".join(change.notes) or "the prediction is a rough estimate"),
        notes=change.notes,
        peak_bytes=None if memory is None else memory.peak_bytes,
        predicted_peak_bytes=change.peak_bytes,
        fits=None if change.peak_bytes is None or limit is None else change.peak_bytes <= limit,
        simulation=simulated[0],
    )


def _combine_ranks(changes: Sequence[Change]) -> Change:
    """What changes every rank of a job."""

    def plan(end: str) -> Plan | None:
        own = [getattr(change, end) for change in changes]
        return Plan().each_rank([a or b.plan for a, b in zip(own, changes, strict=True)]) if any(own) else None

    peaks = [change.peak_bytes for change in changes if change.peak_bytes is not None]
    return Change(
        Plan().each_rank([change.plan for change in changes]),
        plan("fast"),
        plan("slow"),
        max(peaks, default=None),
        _worst(*(change.trust for change in changes)),
        tuple(dict.fromkeys(note for change in changes for note in change.notes)),
    )


def _spread(values: I64, share: float = 0.95) -> float:
    """Half the interval (Student's t) of a mean over steps, such as of a difference; 0 for fewer than 3."""
    count = len(values)
    if count < 3:
        return 0.0
    from scipy.stats import t

    return float(t.ppf((1 + share) / 2, count - 1) * values.std(ddof=1) / math.sqrt(count))


def _worst(*trusts: Trust) -> Trust:
    return max(trusts, key=_TRUSTS.index)
