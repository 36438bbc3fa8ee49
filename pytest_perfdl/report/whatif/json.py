"""Predictions as plain data: times in nanoseconds of the mean step, shares and gains as ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import Advice
    from pytest_perfdl.whatif.predict import Prediction

SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


def to_json(answers: Answers) -> dict[str, Any]:
    """All of them; what cannot be predicted has `null` for its figures and says why in "reason"."""
    simulation = answers.base.simulation
    path = simulation.path
    return {
        "schema": SCHEMA,
        "source": answers.source,
        "tasks": len(answers.graph),
        "steps": len(answers.base.steps),
        "replay": replay_json(answers),
        "critical_path": {
            "span_ns": simulation.span_ns,
            "length_ns": path.length_ns,
            "by_class": dict(sorted(path.by_class(answers.graph).items(), key=lambda item: -item[1])),
        },
        "utilization": _utilization(answers, answers.base.mean),
        "whatif": [
            {**prediction_json(each), "utilization": _utilization(answers, each.predicted_ns)}
            for each in answers.predictions
        ],
        "advice": [advice_json(each) for each in answers.advice],
        "notes": [{"kind": note.kind, "text": note.text, "share": note.share} for note in answers.notes],
        "strategies": [
            {
                "data": each.layout.data,
                "pipeline": each.layout.pipeline,
                "tensor": each.layout.tensor,
                "micro_batches": each.layout.micro_batches,
                "step_ns": round(each.step_ns),
                "peak_bytes": each.peak_bytes,
                "fits": each.fits,
            }
            for each in answers.strategies
        ],
    }


def _utilization(answers: Answers, step_ns: float | None) -> dict[str, float]:
    """How well a step of some time uses the machine, with the arithmetic of the trace; empty where it is not known."""
    return {} if answers.arithmetic is None or step_ns is None else answers.arithmetic.figures(step_ns)


def replay_json(answers: Answers) -> dict[str, Any]:
    """How far simulating the trace as it is gives what was measured, and the trust that predictions deserve."""
    found = answers.base.quality
    first, last = answers.graph.span
    return {
        "measured_ns": last - first,
        "const_error": found.constant_error,
        "pinned_error": found.replay_error,
        "unexplained_share": found.unexplained_share,
        "inferred_share": found.inferred_share,
        "held_share": found.held_share,
        "trust": found.trust,
        "reason": found.reason,
    }


def prediction_json(each: Prediction) -> dict[str, Any]:
    """One prediction."""
    return {
        "name": each.name,
        "step_ns": round(each.step_ns),
        "predicted_step_ns": None if each.predicted_ns is None else round(each.predicted_ns),
        "interval_ns": None if each.interval_ns is None else [round(bound) for bound in each.interval_ns],
        "gain": each.gain,
        "trust": each.trust,
        "reason": each.reason,
        "notes": list(each.notes),
        "peak_bytes": each.peak_bytes,
        "predicted_peak_bytes": each.predicted_peak_bytes,
        "fits": each.fits,
    }


def advice_json(each: Advice) -> dict[str, Any]:
    """One piece of advice: what was found, what would change it, by how much, and an example that shows it."""
    return {
        "finding": each.finding,
        "text": each.text,
        "transform": each.transform,
        "how": each.how,
        "example": each.example,
        **prediction_json(each.prediction),
    }
