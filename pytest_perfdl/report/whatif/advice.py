"""Predictions and advice in words: what `perfdl whatif` and `perfdl trace` say on terminals and pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.report import layout
from pytest_perfdl.report.words import visible

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import Advice
    from pytest_perfdl.whatif.predict import Prediction


def advice_lines(answers: Answers, width: int) -> Iterator[str]:
    """The advice of one trace, wrapped to a width; one line where there is none.

    Example::

    advice, the largest predicted gain first
      - The step gets its input in 60.0% of the critical path (600.0 us a step).
        DataLoader(num_workers=2): gain +55.0%, the step would take 450.0 us (397.8 us to 702.2 us), trust ok
        example: examples/strategies/test_async_loading.py
    """
    if not answers.advice:
        yield from layout.paragraph(f"advice  {no_advice(answers)}", 0, width)
        return
    yield "advice, the largest predicted gain first"
    for each in answers.advice:
        found, *rest = sentences(each)
        yield from layout.paragraph(f"- {found}", 2, width)
        for line in rest:
            yield from layout.paragraph(line, 4, width)


def no_advice(answers: Answers) -> str:
    """Why there is no advice."""
    quality = answers.base.quality
    if quality.trust == "refuse":
        return f"none: predictions from this trace are not to be trusted: {visible(quality.reason)}"
    return "none: nothing known would gain more than 2% and than its own uncertainty"


def sentences(each: Advice) -> tuple[str, ...]:
    """One piece of advice: what was found, what to do with its gain and trust, memory where it changes, the example."""
    predicted = each.prediction
    step, span, gain, memory = figures(predicted)
    trust = f"trust {predicted.trust}" + (f": {predicted.reason}" if predicted.reason else "")
    told = (
        each.text,
        f"{each.how}: gain {gain}, the step would take {step} ({span}), {trust}",
        *([f"peak memory would be {memory}"] if memory else []),
        f"example: {each.example}",
    )
    return tuple(map(visible, told))


def figures(each: Prediction) -> tuple[str, str, str, str]:
    """The step, its range, the gain and the peak of memory; empty where there is none."""
    if each.predicted_ns is None or each.interval_ns is None or each.gain is None:
        return "", "", "", ""
    low, high = (format_quantity(bound, "ns") for bound in each.interval_ns)
    memory = "" if each.predicted_peak_bytes is None else format_quantity(each.predicted_peak_bytes, "B")
    if each.peak_bytes and each.predicted_peak_bytes is not None:
        memory += f" ({format_percent(each.predicted_peak_bytes / each.peak_bytes - 1)})"
    if each.fits is not None:
        memory += ", fits" if each.fits else ", does not fit"
    return format_quantity(each.predicted_ns, "ns"), f"{low} to {high}", format_percent(each.gain), memory
