"""Predictions as text: the step time, what it would become, and with which confidence."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_perfdl.model.kernel_names import short_names
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.trace.wording import by_size
from pytest_perfdl.report.whatif import Answers
from pytest_perfdl.report.whatif.advice import advice_lines, figures
from pytest_perfdl.whatif.simulation.quality import Quality


def report(answers: Answers, width: int) -> str:
    """The report on one trace, wrapped to a width.

    Example::

    train.json.gz: 6 steps of 141.1 ms (mean), 73,918 tasks
    The simulation reproduces the trace within 0.1%.

    Predictions
                      step  range                   gain  confidence
      cuda_graph  112.3 ms  96.2 ms to 128.3 ms   +20.4%  ok
    """
    sections = (
        _head(answers, width),
        _answers(answers, width),
        _path(answers),
        advice_lines(answers, width),
        _notes(answers, width),
        _strategies(answers, width),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(answers: Answers, width: int) -> Iterator[str]:
    mean = format_quantity(answers.base.mean, "ns")
    steps = f"{plural(len(answers.base.steps), 'step')} of {mean}" + (" (mean)" if len(answers.base.steps) > 1 else "")
    text = f"{visible(answers.source)}: {steps}, {plural(len(answers.graph), 'task')}"
    if used := _used(answers, answers.base.mean):
        text += f", {used}"
    yield from layout.paragraph(text, 0, width)
    yield from layout.paragraph(quality_words(answers.base.quality), 0, width)


def quality_words(found: Quality) -> str:
    """How well the simulation reproduces the trace, and what that means for predictions."""
    if found.trust == "refuse":
        return f"Predictions from this trace are unreliable: {found.reason}."
    error = f"The simulation reproduces the trace within {max(abs(found.constant_error), 0.001):.1%}."
    return error if found.trust == "ok" else f"{error} Confidence in predictions is low: {found.reason}."


def _path(answers: Answers) -> Iterator[str]:
    path, steps = answers.base.simulation.path, max(len(answers.base.steps), 1)
    if path.length_ns:
        yield f"Critical path {format_quantity(path.length_ns / steps, 'ns')}/step (simulated)"
        parts = {name: ns / steps for name, ns in path.by_class(answers.graph).items()}
        yield from layout.bars(by_size(parts), path.length_ns / steps)


def _answers(answers: Answers, width: int) -> Iterator[str]:
    if not answers.predictions:
        return
    known = [each for each in answers.predictions if each.predicted_ns is not None]
    used = [_share_of_peak(answers, each.predicted_ns) for each in known]
    memory = any(figures(each)[3] for each in known)
    head = ("", "step", "range", "gain", *["peak memory"] * memory, *["of peak FLOP/s"] * any(used), "confidence")
    table: list[tuple[str, ...]] = [head]
    for each, share in zip(known, used, strict=True):
        step, span, gain, peak = figures(each)
        table.append((visible(each.name), step, span, gain, *[peak] * memory, *[share] * any(used), each.trust))
    yield "Predictions"
    if known:
        sides = "lrlr" + "l" * memory + "r" * any(used) + "l"
        yield from layout.rows(table, sides, 2, width, short_names)
    for each in answers.predictions:
        if each.predicted_ns is None:
            text = f"{visible(each.name)}: no prediction: {visible(each.reason)}"
            yield from layout.item(text, 2, width)
        else:
            for note in each.notes:
                yield from layout.item(f"{visible(each.name)}: {note}", 2, width)
    if known:
        text = (
            "gain: share of the step time that is saved; range: from the most to the least favorable assumptions, "
            "widened by the error of the simulation (at least 0.5%) and the variation of the steps"
        )
        if any(used):
            text += "; of peak FLOP/s: relative to the peak rate for the element types in the trace"
        yield from layout.paragraph(text, 2, width)


def _share_of_peak(answers: Answers, step_ns: float | None) -> str:
    if answers.arithmetic is None or step_ns is None:
        return ""
    share = answers.arithmetic.figures(step_ns).get("flops_utilization")
    return "" if share is None else format_percent(share, signed=False)


def _used(answers: Answers, step_ns: float) -> str:
    """How well a step uses the machine: "12.1% of the peak FLOP/s"; empty where it is not known."""
    if share := _share_of_peak(answers, step_ns):
        return f"{share} of the peak FLOP/s"
    found = {} if answers.arithmetic is None else answers.arithmetic.figures(step_ns)
    return format_quantity(found["achieved_flops"], "flop/s") if found else ""


def _notes(answers: Answers, width: int) -> Iterator[str]:
    for note in answers.notes:
        yield from layout.paragraph(f"note: {visible(note.text)}", 0, width)


def _strategies(answers: Answers, width: int) -> Iterator[str]:
    if not answers.devices:
        return
    yield from layout.paragraph(
        f"Parallelization over {plural(answers.devices, 'device')} with the batch size of the trace, fastest that fits "
        "in memory first",
        0,
        width,
    )
    table = [("data x pipeline x tensor", "micro-batches", "step", "memory/device", "")]
    for each in answers.strategies[:12]:
        spread = each.layout
        fits = {None: "", True: "fits", False: "does not fit"}[each.fits]
        table.append(
            (
                f"{spread.data} x {spread.pipeline} x {spread.tensor}",
                str(spread.micro_batches),
                format_quantity(each.step_ns, "ns"),
                format_quantity(each.peak_bytes, "B"),
                fits,
            )
        )
    yield from layout.rows(table, "lrrrl", 2, width)
