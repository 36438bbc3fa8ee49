"""What is said of a trace on the terminal and on a page: its steps, their mean breakdown, the limits of numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_percent, format_quantity, plural

if TYPE_CHECKING:
    from pytest_perfdl.analysis.overview.summary import TraceSummary

LEAST_COVERED = 0.9
"""Share of the trace's time that steps must cover for totals over the trace to be those of its steps."""
_SOURCE_LINE = re.compile(r"^(.*)\((\d+)\): (.*)$")
_SIZES = re.compile(r"\[([\d, ]*)\]")
UTILIZATION = {
    "flops_utilization": "share of the peak FLOP/s",
    "bandwidth_utilization": "share of the peak memory bandwidth",
    "roofline": "share of the roofline while operators run",
    "tensor_core_share": "share of kernel time on tensor cores",
    "launch_gap": "share of the step spent waiting for launches",
}
"""Metrics of utilization in the order in which they are shown; those of the device are in its section."""
DIRECTIONS = {
    "h2d": "CPU to device",
    "d2h": "device to CPU",
    "d2d": "within the device",
    "p2p": "between devices",
    "h2h": "within CPU memory",
    "other": "of unknown direction",
}
"""What the directions of copies are called."""


def numbered(summary: TraceSummary) -> bool:
    """Whether the trace has steps, and not one window over everything."""
    return summary.has_steps


def step_count(summary: TraceSummary) -> int:
    """How many steps totals over the trace are divided by; 1 where it has none."""
    return len(summary.steps) if numbered(summary) else 1


def per_step(summary: TraceSummary) -> str:
    """The unit after a number that was divided by the steps; empty where the trace has none."""
    return "/step" if numbered(summary) else ""


def each_step(summary: TraceSummary) -> str:
    """The same for a title."""
    return " per step" if numbered(summary) else ""


def step_words(summary: TraceSummary) -> str:
    """How long a step takes: "176.3 ms (mean of 6 steps, 152.1 ms to 201.0 ms)"."""
    walls = [step.wall_ns for step in summary.steps]
    mean, low, high = (format_quantity(value, "ns") for value in (sum(walls) / len(walls), min(walls), max(walls)))
    if not numbered(summary):
        return f"{mean} (the whole trace, because it contains no steps)"
    count = f"{len(walls)} of {len(walls) + len(summary.left_out)}" if summary.left_out else f"{len(walls)}"
    if len(walls) == 1:
        return f"{mean} ({count} {'steps' if summary.left_out else 'step'})"
    return f"{mean} (mean of {count} steps, {low} to {high})"


def per_step_words(summary: TraceSummary) -> str:
    """How the numbers of tables are per step, and what of them is not in steps; empty where there is nothing to say."""
    if not numbered(summary):
        return ""
    count, span = step_count(summary), summary.critical_path.span_ns
    covered = sum(step.wall_ns for step in summary.steps) / span if span else 1.0
    divided = f"totals over the trace divided by {count}" if count > 1 else "totals over the trace"
    if covered < LEAST_COVERED:
        share = format_percent(covered, signed=False)
        covers = plural(count, "step covers", "steps cover")
        return f"The numbers below are {divided}. The {covers} only {share} of the trace's time."
    return f"The numbers below are per step: {divided}." if count > 1 else ""


def mean_account(summary: TraceSummary) -> dict[str, float]:
    """Nanoseconds per step by class, mean of the steps, the largest first; classes without time left out."""
    count = len(summary.steps)
    names = summary.steps[0].account if count else ()
    return by_size({name: sum(step.account[name] for step in summary.steps) / count for name in names})


def by_size(parts: Mapping[str, float]) -> dict[str, float]:
    """The largest first; what is zero left out."""
    return {name: ns for name, ns in sorted(parts.items(), key=lambda item: -item[1]) if ns}


def integrity_lines(summary: TraceSummary) -> list[str]:
    """What limits the numbers of a trace, one line each."""
    found, lines = summary.integrity, []
    if found.carry_over:
        early = f"{plural(found.carry_over, 'device event')} ({format_quantity(found.carry_over_ns, 'ns')})"
        lines.append(f"{early} ahead of the first launch in the trace: their time belongs to no step")
    if found.zero_duration:
        lines.append(
            f"{plural(found.zero_duration, 'device event')} with a duration of 0: sums of kernels are too small"
        )
    if found.early_starts:
        count = plural(found.early_starts, "device event")
        lines.append(f"{count} with a start before the launch call: the clocks of CPU and device differ")
    if found.dropped:
        lines.append(f"{plural(found.dropped, 'event')} dropped by the profiler or unreadable, so totals are too small")
    if found.overhead_ns:
        lines.append(f"profiler overhead: {format_quantity(found.overhead_ns, 'ns')} in the whole trace")
    if found.bled_over:
        lines.append(outlasting(found.bled_over))
    return lines


def outlasting(count: int) -> str:
    """How many events outlast their parent: "2 CPU events outlast their parent event"."""
    verb, whose = ("outlasts", "its") if count == 1 else ("outlast", "their")
    return f"{plural(count, 'CPU event')} {verb} {whose} parent event"


def place(line: str) -> str:
    """A source line as path:line, as editors open it; other text as it is.

    >>> place("models/gpt.py(43): forward")
    'models/gpt.py:43 forward'
    """
    return _SOURCE_LINE.sub(r"\1:\2 \3", line)


def sizes(shapes: str) -> str:
    """Shapes of inputs in short: what has none is left out.

    >>> sizes("[[1, 141, 512], [512, 512], []]")
    '[1,141,512] [512,512]'
    """
    found = [f"[{size.replace(' ', '')}]" for size in _SIZES.findall(shapes) if size.strip()]
    return " ".join(found) or shapes
