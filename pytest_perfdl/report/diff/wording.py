"""What is said of a diff on the terminal and on a page: the step, its sides, its causes, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.diff import AccountLine, places, regions
from pytest_perfdl.diff.side import EXCHANGED
from pytest_perfdl.model.kernel_names import short_name
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.trace.tables import UTILIZATION, place
from pytest_perfdl.report.words import bound, work_sentence

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause, Side
    from pytest_perfdl.diff.side import Counterfactual, MachineUse, Share, Status
    from pytest_perfdl.results.verdict import OperatorSides


LEAST_EFFECT = 0.1
"""Share of a cause's change from which one of its effects is named."""
SURE = 0.6
"""Confidence of a match below which a cause is marked."""
LATENT_NAME = 60
"""Characters of a name in a warning."""
_EXCHANGED: Mapping[Status, str] = {"replaced": "replaces", "fused": "fuses", "split": "split from"}
_OF_DEVICE = {
    "device_busy": "share of time with a busy device",
    "sm_efficiency": "share of SMs with work",
    "occupancy": "occupancy (share of the warps that fit)",
    "exposed_copies": "share of time with copies that do not overlap",
    "overlap": "share of communication that overlaps with compute",
    "exposed_communication": "share of time with communication that does not overlap",
}
"""Metrics that a report on one trace has in the section of its device."""
UNEXPLAINED = "not explained by durations"


def side_words(side: Side) -> str:
    """What a side is, and how many runs or steps it has: "before/ (5 runs)"."""
    return f"{visible(side.label)} ({columns_of(side)})"


def step_words(each: Diff) -> str:
    """What the step time did, with its interval: "step time 83.20 ms -> 91.50 ms, +10.0% [...]"."""
    if each.incomparable:
        return f"not comparable: {visible(each.incomparable)}"
    timed = each.timed
    if timed is not None and timed.base and timed.new:
        text = f"step time {change(timed.base, timed.new, timed.effect)}"
        if timed.ci95 is None:
            return text if timed.verdict is not None else f"{text} (no interval: each side has only one {each.unit})"
        low, high = map(format_percent, timed.ci95)
        if timed.verdict is None:
            over = f" over {each.unit}s"
        else:
            over = f", {plural(timed.rounds, 'paired round')}" if timed.rounds else ""
        held = f", limit {timed.limit}" if timed.limit else ""
        return f"{text} [{low}, {high}] (95% interval{over}){held}"
    text = f"step time {change(each.base_ns, each.new_ns)}"
    if each.interval is None:
        return f"{text} (no interval: one side has only one {each.unit})"
    low, high = (format_percent(end / max(each.base_ns, 1)) for end in each.interval)
    return f"{text} [{low}, {high}] (95% interval over {each.unit}s)"


def columns_of(side: Side) -> str:
    """How many runs or steps a side has."""
    return plural(side.columns, side.unit)


def change(base_ns: float, new_ns: float, effect: float | None = None) -> str:
    """Both sides with the relative change, "83.20 ms -> 91.50 ms, +10.0%".

    Parameters
    ----------
    effect
        The change where an estimate of it is known, which the interval beside it is of; by default the means' ratio.
    """
    text = f"{format_quantity(base_ns, 'ns')} -> {format_quantity(new_ns, 'ns')}"
    if effect is None and base_ns:
        effect = new_ns / base_ns - 1
    return text + ("" if effect is None else f", {format_percent(effect)}")


def slower_words(each: Diff, limit: float) -> str:
    """Whether a step that is slower by more than the limit does more work; empty where it is not, or not known."""
    if each.use is None or each.use.work is None or each.delta_ns <= limit * each.base_ns:
        return ""
    return work_sentence(each.use.work)


def use_rows(use: MachineUse) -> list[tuple[str, str, str]]:
    """The metrics of utilization that either side has: the name, and both sides."""
    rows = []
    for name, text in {"achieved_flops": "FLOP/s", **UTILIZATION, **_OF_DEVICE}.items():
        base, new = (side.values.get(name) for side in (use.base, use.new))
        if base is not None or new is not None:
            rows.append((text, figure_words(name, base), figure_words(name, new)))
    return rows


def figure_words(name: str, value: float | None) -> str:
    """A metric of utilization; empty where it is not known."""
    if value is None:
        return ""
    return format_quantity(value, "flop/s") if name == "achieved_flops" else format_percent(value, signed=False)


def bounds(row: OperatorSides) -> str:
    """What bounds an operator's least time, on both sides where that changed."""
    return " -> ".join(dict.fromkeys(side.bound for side in (row.base, row.new) if side is not None and side.bound))


def bound_words(each: Diff) -> list[str]:
    """Whether launches or kernels take the step's time, where that is known for the current side."""
    sides = regions(each.base), regions(each.new)
    shares = [side.launch_share() for side in sides]
    if not (name := bound(sides[1].bound())) or shares[1] is None:
        return []
    was = "" if shares[0] is None else f" (baseline: {format_percent(shares[0], signed=False)})"
    now = format_percent(shares[1], signed=False)
    return [f"The current step is {name}: {now} of its kernel and launch-wait time is spent waiting for launches{was}."]


def drift_words(each: Diff) -> list[str]:
    """What the breakdown of the profiled step leaves out, and what of it is the machine's."""
    lines = []
    if regions(each.base).on_device is not regions(each.new).on_device:
        where = "baseline step" if regions(each.base).on_device else "current step"
        lines.append(f"Only the {where} has device events: the two steps are not comparable.")
    if round(differs := -(each.unprofiled_ns or 0.0)):
        overhead = format_quantity(differs, "ns", signed=True)
        lines.append(
            f"Profiler overhead differs by {overhead} between baseline and current. Step times do not contain it."
        )
    if each.drift.applied and round(each.drift.ns):
        lines.append(
            f"{format_quantity(each.drift.ns, 'ns', signed=True)} of the change is attributed to machine drift: all "
            f"matched work took {each.drift.factor:.3f} times as long as in the baseline."
        )
    elif abs(each.drift.factor - 1) > 0.01:
        lines.append(f"All matched work took {each.drift.factor:.3g} times as long as in the baseline (median).")
    return lines


def cause_name(cause: DiffCause) -> str:
    """A cause's name, of a kernel in short; of work that was replaced what it is now."""
    name = _listed(cause, "new") if cause.status in EXCHANGED else cause.name
    return short_name(name or cause.name) if cause.kind == "kernel" else name or cause.name


def replaced_words(cause: DiffCause) -> str:
    """What a cause's work was in the baseline, where that was other work: "replaces a and 2 more"."""
    before = _listed(cause, "base") if cause.status in EXCHANGED else ""
    return f"{_EXCHANGED[cause.status]} {before}" if before else ""


def _listed(cause: DiffCause, side: Literal["base", "new"]) -> str:
    """The parts of one side, the largest first."""
    parts = (part for each in cause.changes for part in (each.base_parts if side == "base" else each.new_parts))
    first, *others = dict.fromkeys(short_name(part.name) if part.kind == "kernel" else part.name for part in parts) or [
        ""
    ]
    return f"{first} and {len(others)} more" if others else first


def large_effects(effects: Mapping[str, float]) -> list[tuple[str, float]]:
    """Why it changed, by name: effects of at least `LEAST_EFFECT` of the change, the largest first."""
    delta = sum(effects.values())
    large = [(name, ns) for name, ns in effects.items() if abs(ns) >= LEAST_EFFECT * abs(delta) and round(ns)]
    return sorted(large, key=lambda item: -abs(item[1]))


def counterfactual_words(found: Counterfactual) -> str:
    """What a table of shares shows."""
    orders = "all orders" if found.exact else "sampled orders"
    return (
        "own change: change of the cause's own time, whether or not other work overlaps with it; effect on the step: "
        f"part of the step's change that the cause explains (Shapley values over {orders}); not explained by "
        "durations: changes of overlap and launch order"
    )


def refused_words(found: Counterfactual) -> str:
    """Why there are none."""
    return f"Step time without each change cannot be simulated: {found.refused}"


def latent_words(found: Counterfactual) -> list[str]:
    """A warning for each slowdown that does not lengthen the step yet."""
    lines = []
    for share in found.latent:
        name = layout.shorten(visible(cause_name(share.cause)), LATENT_NAME)
        slower = format_quantity(share.cause.delta_ns, "ns", signed=True)
        slack = "a whole step" if share.slack_ns is None else format_quantity(share.slack_ns, "ns")
        lines.append(
            f"warning: {name} is slower by {slower}, but other work hides the difference. The step becomes slower if "
            f"this work takes {slack} longer."
        )
    return lines


# The tables of a diff that the terminal and the page have in common. Times are per step.


def share(ns: float, each: Diff) -> float | None:
    """Part of the profiled step's change, where it changed; without the sign that rounding to zero would leave."""
    if not each.delta_ns:
        return None
    part = ns / each.delta_ns
    return part if abs(part) >= 0.0005 else 0.0


def breakdown(each: Diff) -> Table:
    """The profiled step by class."""
    note = "The changes of all parts add up to it."
    columns = _columns(Column("Part", lambda line: line.name), each)
    return Table("Breakdown of the profiled step", columns, each.account, "Breakdown of the profiled step", note)


def by_place(each: Diff, kind: Literal["module", "line"]) -> Table:
    """Time by module, with the modules inside it, or by source line; the largest change first."""
    rows = [row for row in places(each, kind) if row.name]
    if kind == "line":
        return Table("Source lines", _columns(Column("Line", lambda line: place(line.name), "place"), each), rows)
    columns = _columns(Column("Module", lambda line: line.name, "place"), each)
    ordered = "Modules (times include the modules inside them)"
    return Table("Modules", columns, rows, ordered, "Times include the modules inside each module.")


def _columns(name: Column, each: Diff) -> tuple[Column, ...]:
    """Both sides of an `AccountLine`, and what it gained."""
    return (
        name,
        Column("Baseline", lambda line: line.base_ns, "ns"),
        Column("Current", lambda line: line.new_ns, "ns"),
        Column("Change", lambda line: line.delta_ns, "signed"),
        Column("Share", lambda line: share(line.delta_ns, each), "share", "percentage of the profiled step's change"),
    )


def shares(found: Counterfactual, top: int | None = None) -> Table:
    """What each change costs the step by itself; the rows add up to the step's change."""
    shown = found.shares[:top]
    others = found.others_ns + sum(share.share_ns for share in found.shares[len(shown) :])
    columns = (
        Column("Name", lambda row: row[0], "name"),
        Column("Own change", lambda row: row[2] and row[2].cause.delta_ns, "signed"),
        Column("Effect on the step", lambda row: row[1], "signed"),
        Column("Step without the change", lambda row: row[2] and row[2].without_ns, "ns", short="step without it"),
        Column("Slack", lambda row: row[2] and row[2].slack_ns, "ns", wide=True),
    )
    rows = [
        *((cause_name(share.cause), share.share_ns, share) for share in shown),
        ("all other work", others, None),
        (UNEXPLAINED, found.beyond_ns, None),
    ]
    title, note = "Step time without each change (simulated)", counterfactual_words(found)
    return Table(title, columns, rows, title, f"{note[:1].upper()}{note[1:]}.", lambda row: _hidden(row[2]))


def _hidden(share: Share | None) -> list[str]:
    """Where a cause is, and whether it costs nothing yet."""
    if share is None:
        return []
    return [text for text in (where(share.cause), "currently hidden by other work" * share.latent) if text]


def where(cause: DiffCause) -> str:
    """Module, graph and line of a cause, as far as they are known."""
    return " at ".join(filter(None, (cause.module, cause.graph, place(cause.line))))


def total(each: Diff) -> AccountLine:
    """The row that the classes add up to."""
    return AccountLine("total", each.base_ns, each.new_ns)
