"""Numbers of a judgement as text: the last step of every report, after all sorting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.model import metrics
from pytest_perfdl.model.limits import limit_words
from pytest_perfdl.model.units import format_percent, format_quantity
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.results.verdict import Cause, MetricVerdict

INTERVAL_LEGEND = "[low, high] is the 95% interval of the change"
DETECTABLE_LEGEND = "detectable: a larger slowdown would be detected with 97.5% probability"


def value(number: float | None, metric: MetricVerdict) -> str:
    """One side of a metric with its unit; empty where it was not measured.

    Times of single kernels and operators are empty too: they are in the breakdown of the step, as means over all
    profiled steps, and the estimate of their change is not made from these means.
    """
    return "" if number is None or not metric.of_step else format_quantity(number, metric.unit) + _per_step(metric)


def finite(values: Iterable[float]) -> list[float]:
    """The values of a series that a picture can show."""
    return [each for each in values if math.isfinite(each)]


def change(metric: MetricVerdict) -> str:
    """Both sides with the unit said once where it is the same, "41.20 -> 45.08 ms"."""
    if metric.base is None or metric.new is None or not metric.of_step:
        return value(metric.new if metric.base is None else metric.base, metric)
    return pair(metric.base, metric.new, metric.unit) + _per_step(metric)


def effect(metric: MetricVerdict) -> str:
    """The relative change, "+9.4%"; empty where there is none to state."""
    return "" if metric.effect is None or not math.isfinite(metric.effect) else format_percent(metric.effect)


def interval(metric: MetricVerdict) -> str:
    """The 95 % interval of the relative change, "[+8.9%, +9.9%]"; empty for exact metrics."""
    if metric.ci95 is None or not all(math.isfinite(end) for end in metric.ci95):
        return ""
    return f"[{format_percent(metric.ci95[0])}, {format_percent(metric.ci95[1])}]"


def limit(metric: MetricVerdict) -> str:
    """What it was compared with, "limit 3%" or "budget <= 45ms"; empty when it is only shown."""
    if metric.limit is None:
        return ""
    return f"budget {metric.limit}" if metric.is_held_to_budget else f"limit {limit_words(str(metric.limit))}"


def limit_cell(metric: MetricVerdict) -> str:
    """The same for a table with a column for limits: "3%", "2% or 1 MiB", "budget <= 45ms"."""
    if metric.limit is None:
        return ""
    return f"budget {metric.limit}" if metric.is_held_to_budget else limit_words(str(metric.limit), short=True)


def excluded(metric: MetricVerdict) -> str:
    """The least slowdown that the rounds would have shown, "2.1%"; empty where that is not known."""
    if metric.excluded is None or not math.isfinite(metric.excluded) or metric.excluded <= 0:
        return ""
    return format_percent(metric.excluded, signed=False)


def cause_count(cause: Cause) -> str:
    """Occurrences per step, "24/step" or "0 -> 1/step"; empty for what has no count."""
    if cause.kind == "idle":
        return ""
    base, new = format_quantity(cause.base_count, "1"), format_quantity(cause.new_count, "1")
    return f"{new}/step" if base == new else f"{base} -> {new}/step"


def cause_status(cause: Cause) -> Literal["new", "gone", "changed"]:
    """Whether the part appeared, disappeared or changed; what has no count on either side only changed."""
    return "changed" if cause.base_count == cause.new_count else cause.status


def cause_time(cause: Cause) -> str:
    """Time per step on both sides, or on the only side that has it."""
    if cause_status(cause) == "new":
        return format_quantity(cause.new_ns, "ns")
    if cause_status(cause) == "gone":
        return format_quantity(cause.base_ns, "ns")
    return pair(cause.base_ns, cause.new_ns, "ns")


def cause_effect(cause: Cause) -> str:
    """The relative change of its time, or "new" or "gone"."""
    status = cause_status(cause)
    if status != "changed":
        return status
    return format_percent(cause.delta_ns / cause.base_ns) if cause.base_ns else ""


def cause_share(cause: Cause) -> str:
    """The share that it carries of the step's change, "77%"."""
    return "" if cause.share is None or not math.isfinite(cause.share) else share(cause.share)


def share(part: float) -> str:
    """A part of a whole, "77%"."""
    return f"{part * 100:.{0 if abs(part) >= 0.0095 else 1}f}%"


EFFECTS = {
    "count": ("more calls", "fewer calls"),
    "duration": ("slower per call", "faster per call"),
    "mix": ("different inputs", "different inputs"),
    "exposure": ("less overlap", "more overlap"),
}
"""What each effect is called that adds time, and that saves it."""


def effect_words(name: str, ns: float) -> str:
    """One reason for a change with its time: "slower per call +925.6 µs"."""
    return f"{effect_name(name, ns)} {format_quantity(ns, 'ns', signed=True)}"


def effect_name(name: str, ns: float) -> str:
    """The same without its time."""
    return EFFECTS[name][ns < 0]


def cause_effects(cause: Cause) -> str:
    """Why its time changed, the largest effect first: "slower per call +2.100 ms, more calls +0.400 ms".

    Effects below a twentieth of the largest are left out. Empty for what came or went: that says it all.
    """
    if cause_status(cause) != "changed":
        return ""
    largest = max(map(abs, cause.effects.values()), default=0)
    told = sorted(cause.effects.items(), key=lambda effect: -abs(effect[1]))
    return ", ".join(effect_words(name, ns) for name, ns in told if name in EFFECTS and abs(ns) >= max(1, largest / 20))


def cause_sign(cause: Cause) -> str:
    """A mark before its name: "+" for new, "-" for gone."""
    return {"new": "+", "gone": "-", "changed": " "}[cause_status(cause)]


def pair(base: float, new: float, unit: str) -> str:
    """Two quantities with the unit said once where it is the same.

    >>> pair(41.2e6, 45.08e6, "ns"), pair(9e5, 2e6, "ns")
    ('41.20 -> 45.08 ms', '900.0 µs -> 2.000 ms')
    """
    before, after = format_quantity(base, unit), format_quantity(new, unit)
    number, _, name = before.partition(" ")
    return f"{number} -> {after}" if name and after.endswith(f" {name}") else f"{before} -> {after}"


def _per_step(metric: MetricVerdict) -> str:
    known = metrics.of(metric.name)
    return "/step" if isinstance(known, metrics.CountedMetric) and known.per_step else ""


# Frames of Python code in reports: "src/model.py:42 in forward" for a line, "forward (path:line)" for a name.


INPUT = "input"
"""Class of idle time, and name of the cause, of waiting for data."""
PYTHON = "Python and host"
"""Class of idle time in which the host runs Python."""
_CLASSES = {PYTHON: f"{PYTHON} (between operators)", INPUT: f"{INPUT} (wait for the next batch)"}


def frame_words(line: str, path: str = "") -> str:
    """A line of code by its frame.

    >>> frame_words("net.py(29): train_step"), frame_words("net.py(29): train_step", "src/net.py")
    ('net.py:29 in train_step', 'src/net.py:29 in train_step')

    Parameters
    ----------
    path
        Path of the file, where it is known better than to Python.
    """
    match = FRAME.fullmatch(line)
    if match is None:
        return visible(line)
    return f"{visible(path or match['path'])}:{match['line']} in {visible(match['function'])}"


def name_words(name: str) -> str:
    """The name of a cause or of a part of the step, where it is a function of Python or a class of idle time.

    >>> name_words("torch/_tensor.py(566): backward"), name_words("aten::mm")
    ('backward (torch/_tensor.py:566)', 'aten::mm')
    """
    match = FRAME.fullmatch(name)
    if match is None:
        return _CLASSES.get(name) or visible(name)
    return f"{visible(match['function'])} ({visible(match['path'])}:{match['line']})"
