"""Predictions as text: what the step takes, what it would take, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import layout
from pytest_perfdl.report.trace.terminal import bars, by_size
from pytest_perfdl.report.whatif import Answers
from pytest_perfdl.report.whatif.advice import advice_lines, figures
from pytest_perfdl.report.words import visible


def report(answers: Answers, width: int) -> str:
    """The report on one trace, wrapped to a width.

    Example::

    train.json.gz  6 steps of 141.1 ms on average, 73,918 tasks
    Replayed with constant lags the trace is off by -0.1%: predictions can be trusted.

    what if                    step   range                     gain
      cuda_graph             112.3 ms  96.2 ms to 128.3 ms    +20.4%
    """
    sections = (
        _head(answers, width),
        _path(answers),
        _answers(answers, width),
        advice_lines(answers, width),
        _notes(answers, width),
    )
    lines: list[str] = []
    for section in (*sections, _strategies(answers, width)):
        found = list(section)
        lines += [*found, ""] if found else []
    return "\n".join(lines[:-1])


def _head(answers: Answers, width: int) -> Iterator[str]:
    mean = format_quantity(answers.base.mean, "ns")
    steps = f"{plural(len(answers.base.steps), 'step')} of {mean}" + (
        " on average" if len(answers.base.steps) > 1 else ""
    )
    yield f"{visible(answers.source)}  {steps}, {plural(len(answers.graph), 'task')}"
    found = answers.base.quality
    error = format_percent(found.constant_error)
    says = {
        "ok": "predictions can be trusted as far as their ranges say.",
        "low": f"trust predictions with care: {found.reason}.",
        "refuse": f"do not trust predictions from this trace: {found.reason}.",
    }[found.trust]
    if answers.arithmetic is not None:
        yield from layout.paragraph(f"utilization  {_used(answers, answers.base.mean)}", 0, width)
    yield from layout.paragraph(f"Replayed with constant lags the trace is off by {error}: {says}", 0, width)


def _path(answers: Answers) -> Iterator[str]:
    path = answers.base.simulation.path
    if path.length_ns:
        yield f"critical path  {format_quantity(path.length_ns, 'ns')}, from the first event to the last"
        yield from bars(by_size(path.by_class(answers.graph)), path.length_ns)


def _answers(answers: Answers, width: int) -> Iterator[str]:
    if not answers.predictions:
        return
    known = [each for each in answers.predictions if each.predicted_ns is not None]
    used = [_used(answers, each.predicted_ns) for each in known]
    table = [("what if", "step", "range", "gain", "peak memory", "utilization" if any(used) else "", "trust")]
    table += [(visible(each.name), *figures(each), text, each.trust) for each, text in zip(known, used, strict=True)]
    if known:
        yield from layout.rows(table, "lrlrlll", 0, width)
    for each in answers.predictions:
        if each.predicted_ns is None:
            yield from layout.paragraph(f"{visible(each.name)}: no prediction: {visible(each.reason)}", 0, width)
        else:
            yield from (
                line for note in each.notes for line in layout.paragraph(f"{visible(each.name)}: {note}", 2, width)
            )
    if known:
        yield from layout.paragraph(
            "range: both ends of what was assumed, widened by the replay's error (0.5% at least) and by the 95% "
            "interval of the difference between steps",
            2,
            width,
        )
    if any(used):
        says = "utilization: of the trace's arithmetic, in the element types that it has there, over the predicted step"
        yield from layout.paragraph(says, 2, width)


def _used(answers: Answers, step_ns: float | None) -> str:
    """How well a step of some time uses the machine: "12.1% of the peak FLOP/s"; empty where it is not known."""
    if answers.arithmetic is None or step_ns is None:
        return ""
    found = answers.arithmetic.figures(step_ns)
    if "flops_utilization" in found:
        return f"{format_percent(found['flops_utilization'], signed=False)} of the peak FLOP/s"
    return format_quantity(found["achieved_flops"], "flop/s") if found else ""


def _notes(answers: Answers, width: int) -> Iterator[str]:
    for note in answers.notes:
        yield from layout.paragraph(f"note: {visible(note.text)}", 0, width)


def _strategies(answers: Answers, width: int) -> Iterator[str]:
    if not answers.devices:
        return
    yield f"strategies for {plural(answers.devices, 'device')}, the fastest that fits first; the batch is the trace's"
    table = [("data x pipeline x tensor", "micro-batches", "step", "memory of a device", "")]
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
