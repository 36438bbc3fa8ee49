"""Findings that are worth acting on, with their predicted gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_perfdl.analysis.waiting.waits import QUEUE
from pytest_perfdl.model.errors import CycleError
from pytest_perfdl.model.units import format_percent
from pytest_perfdl.whatif.advice.evidence import Evidence
from pytest_perfdl.whatif.advice.rules import RULES, AdviceFinding
from pytest_perfdl.whatif.editing.select import Selector, chosen
from pytest_perfdl.whatif.model import EdgeKind
from pytest_perfdl.whatif.predict import Base, Prediction, WhatIf, predict
from pytest_perfdl.whatif.transform import Context

EXAMPLES = "examples/strategies"

SAVED_MEMORY = 0.1
"""Share of the peak that advice to save memory has to save."""

NOTED_SHARE = 0.02
"""Share of the span from which a kind of wait is explained."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation."""

    finding: str
    """The kind of waste: "input", "optimizer", ..."""
    text: str
    """The finding, one sentence with numbers."""
    transform: str
    how: str
    """What to do."""
    prediction: Prediction
    example: str
    """An example that shows it before and after, as a path in the repository."""


@dataclass(frozen=True, slots=True)
class Note:
    """How to interpret a wait."""

    kind: str
    text: str
    share: float
    """Share of the span, 0 to 1."""


def advise(context: Context, base: Base | None = None, within: Selector | None = None) -> tuple[Advice, ...]:
    """Optimizations that would make the step faster, largest predicted gain first; empty if there are none.

    Each finding is predicted with its transform. It is reported if the predicted gain exceeds both 2 % and half the
    width of its range. Advice that trades time for memory is reported if memory is nearly full and the peak falls by 10
    %. If several transforms fit a finding, the best is reported. There is no advice from a graph with confidence
    "refuse", nor for a transform that lacks a constant or whose edits lead to a cycle.

    Parameters
    ----------
    context
        The graph, and the constants of the machine.
    base
        `Base.of(context.graph)`, if it is known already.
    within
        Tasks to which the advice is restricted, such as those of a module that caused a regression. A finding is kept
        if more than half of its time on the critical path is in these tasks.
    """
    base = base or Base.of(context.graph)
    if base.quality.trust == "refuse":
        return ()
    evidence = Evidence.of(context, base)
    scope = None if within is None else chosen(context.graph, within)
    best: dict[str, Advice] = {}
    for finding in (each for rule in RULES for each in rule(evidence)):
        if scope is not None and not _mostly(evidence, finding, scope):
            continue
        question = WhatIf(finding.transform, transform=finding.transform, parameters=dict(finding.parameters))
        try:
            prediction = predict(context, question, base)
        except CycleError:
            continue
        if not _worth(finding, prediction):
            continue
        advice = Advice(
            finding.kind, finding.text, finding.transform, finding.how, prediction, f"{EXAMPLES}/{finding.example}"
        )
        known = best.get(finding.kind)
        if known is None or (prediction.gain or 0) > (known.prediction.gain or 0):
            best[finding.kind] = advice
    return tuple(sorted(best.values(), key=lambda each: -(each.prediction.gain or 0)))


def _worth(finding: AdviceFinding, prediction: Prediction) -> bool:
    if finding.saves_memory:
        before, after = prediction.peak_bytes, prediction.predicted_peak_bytes
        return before is not None and after is not None and after < (1 - SAVED_MEMORY) * before
    return prediction.worthwhile


def _mostly(evidence: Evidence, finding: AdviceFinding, scope: np.typing.NDArray[np.bool_]) -> bool:
    weight = np.maximum(evidence.on_path, 1)
    return bool(2 * weight[finding.tasks & scope].sum() > weight[finding.tasks].sum())


def notes(context: Context, base: Base | None = None) -> tuple[Note, ...]:
    """Waits that are easily misinterpreted, largest share of the span first."""
    base = base or Base.of(context.graph)
    simulation, tasks, edges = base.simulation, context.graph.tasks, context.graph.edges
    decided = simulation.binding
    waiting = np.flatnonzero(decided >= 0)
    waiting = waiting[(waiting > 0) & (tasks.track[waiting] == tasks.track[waiting - 1])]
    waited = simulation.start[waiting] - simulation.end[waiting - 1]
    kinds = edges.kind[decided[waiting]]
    found = []
    for kind, text in _READ_AS.items():
        share = float(np.maximum(waited[kinds == kind], 0).sum() / max(simulation.span_ns, 1))
        if share >= NOTED_SHARE:
            told = f"{text} ({format_percent(share, signed=False)} of the span)"
            found.append(Note(kind.name.lower().replace("_", " "), told, share))
    return tuple(sorted(found, key=lambda note: -note.share))


_READ_AS = {
    EdgeKind.QUEUE: f"the host waits for room in the launch queue ({QUEUE} launches): the host is ahead of the device, "
    "so faster launches gain nothing",
    EdgeKind.SPIN: "the host polls for the end of a kernel: the time of polling belongs to the kernel",
    EdgeKind.CONTENTION: (
        "kernels start late because a kernel of another stream occupies the SMs: partition the SMs, or run the "
        "kernels one after the other"
    ),
}
"""How to interpret waits of a kind."""
