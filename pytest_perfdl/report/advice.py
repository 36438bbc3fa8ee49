"""Predictions and advice in words, for the terminal and the pages of `perfdl whatif` and `perfdl trace`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout

if TYPE_CHECKING:
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import Advice
    from pytest_perfdl.whatif.predict import Prediction


def advice_lines(answers: Answers, width: int) -> Iterator[str]:
    """The advice of one trace, wrapped to a width; one line where there is none.

    Example::

    Advice, largest predicted gain first
      - The step waits for input data in 60.0% of the critical path (600.0 us/step).
        DataLoader(num_workers=2): predicted step time 450.0 us (397.8 us to 702.2 us), -55.0%, confidence ok
        example: examples/strategies/test_async_loading.py
    """
    if not answers.advice:
        yield from layout.paragraph(f"Advice: {no_advice(answers)}", 0, width)
        return
    yield "Advice, largest predicted gain first"
    for each in answers.advice:
        finding, *rest = sentences(each)
        yield from layout.item(finding, 2, width)
        for line in rest:
            yield from layout.paragraph(line, 4, width)


def no_advice(answers: Answers) -> str:
    """Why there is no advice."""
    quality = answers.base.quality
    if quality.trust == "refuse":
        return f"none, predictions from this trace are unreliable: {visible(quality.reason)}"
    return "none: no known optimization is predicted to gain more than 2% and more than its uncertainty"


def sentences(each: Advice) -> tuple[str, ...]:
    """One piece of advice: the finding, what to do and its effect, memory where that changes, an example."""
    predicted = each.prediction
    step, span, _, memory = figures(predicted)
    change = "" if predicted.gain is None else f", {format_percent(-predicted.gain)}"
    confidence = f"confidence {predicted.trust}" + (f": {predicted.reason}" if predicted.reason else "")
    lines = (
        each.text,
        f"{each.how}: predicted step time {step} ({span}){change}, {confidence}",
        *([f"predicted peak memory {memory}"] if memory else []),
        f"example: {each.example}",
    )
    return tuple(map(visible, lines))


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
