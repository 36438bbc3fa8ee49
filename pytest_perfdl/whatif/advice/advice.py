"""Findings that are worth acting on, with what acting on them would gain."""

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
"""Share of the peak that advice for the sake of memory has to save."""

NOTED_SHARE = 0.02
"""Share of the span from which a way of waiting is explained."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    finding: str
    """What kind of waste it is about: "input", "optimizer", ..."""
    text: str
    """What was found, one sentence with figures."""
    transform: str
    how: str
    """What to do."""
    prediction: Prediction
    example: str
    """An example that shows it before and after, as a path in the repository."""


@dataclass(frozen=True, slots=True)
class Note:
    """How a wait is to be read."""

    kind: str
    text: str
    share: float
    """Share of the span, 0 to 1."""


def advise(context: Context, base: Base | None = None, within: Selector | None = None) -> tuple[Advice, ...]:
    """What would make the step faster, the largest predicted gain first; nothing where nothing known would.

    Each finding is predicted with its transform. It is reported if the predicted gain exceeds max(2 %, half the width
    of the prediction's interval), or, for advice that pays time for memory where memory is nearly full, if the peak
    falls by 10 %. The best of several transforms for one finding is. Nothing is advised from a graph that is not
    trusted at all, nor where a transform lacks a constant or its edits lead in a circle.

    Parameters
    ----------
    context
        The graph, and what is known of the machine.
    base
        `Base.of(context.graph)`, if it is known already.
    within
        Tasks that the advice should be about, such as those of a module that is blamed for a regression: findings are
        kept that have half of their time on the critical path there.
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
    """Ways of waiting that are easily misread, those with the largest share of the span first."""
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
    EdgeKind.SPIN: "the host polls until a kernel ends: that time belongs to the kernel",
    EdgeKind.CONTENTION: "kernels start late because a kernel of another stream occupies the SMs: partition "
    "them, or run the kernels one after the other",
}
"""What waits of a kind mean."""
