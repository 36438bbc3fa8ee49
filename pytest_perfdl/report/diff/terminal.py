"""A diff as text: what the step did, the account of it, the causes, and how well both sides could be matched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_perfdl.diff import causes, places, regions
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.report import layout
from pytest_perfdl.report.trace.terminal import SHOWN
from pytest_perfdl.report.words import bound, visible, work_sentence

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause, Side
    from pytest_perfdl.diff.changes import Counterfactual, MachineUse
    from pytest_perfdl.results.verdict import OperatorSides

LEAST_EFFECT = 0.1
"""Share of a cause's change from which one of its effects is named."""
UNMATCHED_SHOWN = 5
LATENT_NAME = 80
"""Characters of a name in a warning."""
_STATUS = {"new": "+", "gone": "-"}


def report(title: str, each: Diff, limit: float, top: int, width: int) -> str:
    """The report on one diff, wrapped to a width; tables have at most `top` rows.

    Example::

    before/ -> after/  5 and 5 runs
    regressed: step  83.20 -> 91.50 ms  +9.98% [+9.1%, +10.9%] (95% interval over runs)

    account
      forward          40.10 -> 48.20 ms  +8.10 ms  98% of the change
    """
    sections = (
        _head(title, each, limit, width),
        _account(each),
        _use(each, limit, top, width),
        _causes(each, top, width),
        _counterfactual(each, top, width),
        _modules(each, top),
        _matching(each, width),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(title: str, each: Diff, limit: float, width: int) -> Iterator[str]:
    if title:
        yield visible(title)
    yield f"{visible(each.base.label)} -> {visible(each.new.label)}  {columns_of(each.base)} and {columns_of(each.new)}"
    yield from layout.paragraph(f"{each.verdict(limit)}: {step_words(each)}", 0, width)


def step_words(each: Diff) -> str:
    """What the step did, with its interval: "step  83.20 -> 91.50 ms  +9.98%  [...]"."""
    text = f"step  {change(each.base_ns, each.new_ns)}"
    if each.interval is None:
        return f"{text}  (one step on a side: how much steps differ is not known)"
    low, high = (format_percent(end / max(each.base_ns, 1)) for end in each.interval)
    return f"{text}  [{low}, {high}] (95% interval over {each.unit}s)"


def columns_of(side: Side) -> str:
    """How many runs or steps a side has."""
    return plural(side.columns, side.unit)


def change(base_ns: float, new_ns: float) -> str:
    """Both sides with the relative change, "83.20 -> 91.50 ms  +9.98%"."""
    text = f"{format_quantity(base_ns, 'ns')} -> {format_quantity(new_ns, 'ns')}"
    return text + (f"  {format_percent(new_ns / base_ns - 1)}" if base_ns else "")


def _account(each: Diff) -> Iterator[str]:
    yield "account of the profiled step"
    rows = [
        (
            line.name,
            format_quantity(line.base_ns, "ns"),
            format_quantity(line.new_ns, "ns"),
            format_quantity(line.delta_ns, "ns", signed=True),
            of_change(line.delta_ns, each),
        )
        for line in each.account
        if line.base_ns or line.new_ns
    ]
    rows.append(
        (
            "sum",
            format_quantity(each.base_ns, "ns"),
            format_quantity(each.new_ns, "ns"),
            format_quantity(each.delta_ns, "ns", signed=True),
            "",
        )
    )
    yield from layout.rows(rows, "lrrrr", 2, 120)
    yield from (f"  {words}" for words in (*drift_words(each), *bound_words(each)))


_OF_DEVICE = {
    "device_busy": "of the time the device is busy",
    "sm_efficiency": "of the device's SMs busy",
    "occupancy": "of the warps that fit",
    "exposed_copies": "of the time copies that nothing hides",
    "overlap": "of the communication hidden behind computation",
    "exposed_communication": "of the time communication that nothing hides",
}
"""Figures that a report on one trace has among those of its device."""


def slower_words(each: Diff, limit: float) -> str:
    """Whether a step that is slower by more than the limit does more work; empty where it is not, or not known."""
    if each.use is None or each.use.work is None or each.delta_ns <= limit * each.base_ns:
        return ""
    return work_sentence(each.use.work)


def use_rows(use: MachineUse) -> list[tuple[str, str, str]]:
    """The figures of utilization that either side has: what it is of, and both sides."""
    found = []
    for name, text in {"achieved_flops": "FLOP/s", **SHOWN, **_OF_DEVICE}.items():
        base, new = (side.values.get(name) for side in (use.base, use.new))
        if base is not None or new is not None:
            found.append((text, _figure(name, base), _figure(name, new)))
    return found


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return format_quantity(value, "flop/s") if name == "achieved_flops" else format_percent(value, signed=False)


def _use(each: Diff, limit: float, top: int, width: int) -> Iterator[str]:
    if each.use is None or not (rows := use_rows(each.use)):
        return
    yield "utilization"
    if words := slower_words(each, limit):
        yield from layout.paragraph(words, 2, width)
    yield from layout.rows(rows, "lrr", 2, 120)
    known = [row for row in each.use.operators if row.dtype]
    table: list[tuple[str, ...]] = [("", "time", "", "of its roofline", "", "bound by")]
    for row in known[:top]:
        sides = (row.base, row.new)
        times = ["" if side is None else format_quantity(side.time_ns, "ns") for side in sides]
        shares = ["" if side is None or side.roofline is None else _figure("", side.roofline) for side in sides]
        table.append((visible(f"{row.operator} {row.shapes} {row.dtype}"), *times, *shares, bounds(row)))
    if any(share for line in table[1:] for share in line[3:5]):
        yield from layout.rows(table, "lrrrrl", 2, width)


def bounds(row: OperatorSides) -> str:
    """What bounds an operator's least time, on both sides where that changed."""
    return " -> ".join(dict.fromkeys(side.bound for side in (row.base, row.new) if side is not None and side.bound))


def bound_words(each: Diff) -> list[str]:
    """Whether launches or kernels take the step's time, where that is known of the new side."""
    sides = regions(each.base), regions(each.new)
    shares = [side.launch_share() for side in sides]
    if not (name := bound(sides[1].bound())) or shares[1] is None:
        return []
    was = "" if shares[0] is None else f" ({format_percent(shares[0], signed=False)} before)"
    now = format_percent(shares[1], signed=False)
    return [f"{name}: waiting for launches is {now} of the time that kernels and this waiting take{was}"]


def drift_words(each: Diff) -> list[str]:
    """What the account does not hold of the step's change, and what it owes to the machine."""
    found = []
    if regions(each.base).on_device is not regions(each.new).on_device:
        where = "before" if regions(each.base).on_device else "after"
        found.append(f"only the steps {where} have device events: the steps of both sides are not the same thing")
    if each.unprofiled_ns is not None:
        beyond = format_quantity(each.unprofiled_ns, "ns", signed=True)
        found.append(f"without the profiler the step changed by {beyond} beyond that")
    if each.drift.applied and round(each.drift.ns):
        found.append(
            f"all matched work took {each.drift.factor:.3f} times as long: "
            f"{format_quantity(each.drift.ns, 'ns', signed=True)} are put down to the machine"
        )
    elif abs(each.drift.factor - 1) > 0.01:
        found.append(f"all matched work took {each.drift.factor:.3g} times as long (median)")
    return found


def of_change(ns: float, each: Diff) -> str:
    """Share of the step's change, where the step changed."""
    if not each.delta_ns:
        return ""
    share = ns / each.delta_ns
    # Rounding leaves no sign on a zero.
    return f"{format_percent(share if abs(share) >= 0.0005 else 0.0, signed=False)} of the change"


def _causes(each: Diff, top: int, width: int) -> Iterator[str]:
    found = causes(each)
    if not found:
        yield "no part changed for certain"
    else:
        yield "causes, largest first"
        for cause in found[:top]:
            yield from _cause(cause, each, width)
        if len(found) > top:
            yield f"  and {len(found) - top} more (--top)"
    if each.detectable_ns is not None:
        share = format_percent(each.detectable_ns / max(each.base_ns, 1), signed=False)
        yield from layout.paragraph(
            f"smallest detectable change of a part: {format_quantity(each.detectable_ns, 'ns')}, {share} of the step "
            f"(median of the parts; 80% power, all intervals together at 95%, over {each.unit}s)",
            2,
            width,
        )


def _cause(cause: DiffCause, each: Diff, width: int) -> Iterator[str]:
    sign = _STATUS.get(cause.status, " ")
    name = layout.shorten(visible(cause.name), max(layout.LEAST_NAME, width - 50))
    counts = ""
    if cause.kind != "idle":
        counts = f"  {cause.base.count:g}x" + (
            f" -> {cause.new.count:g}x" if abs(cause.base.count - cause.new.count) > 1e-9 else ""
        )
    kind = "" if cause.kind != "idle" or cause.name in {line.name for line in each.account} else "  Python"
    yield (
        f"{sign} {format_quantity(cause.own_ns, 'ns', signed=True):>10}  {name}{kind}{counts}"
        + (f"  ({cause.status})" if cause.status not in ("changed", "new", "gone") else "")
    )
    parts = [f"{name} {format_quantity(ns, 'ns', signed=True)}" for name, ns in large_effects(asdict(cause.effects))]
    details = [f"{format_quantity(cause.base.ns, 'ns')} -> {format_quantity(cause.new.ns, 'ns')}"]
    details += [of_change(cause.own_ns, each)] * bool(each.delta_ns) + ([", ".join(parts)] if len(parts) > 1 else [])
    details += [bound(cause.bound)] * bool(cause.bound)
    if cause.confidence < 1:
        details.append(f"matched with confidence {cause.confidence:.2f}")
    yield from layout.paragraph("; ".join(details), 14, width)
    if cause.module or cause.line:
        yield from layout.paragraph(" at ".join(filter(None, (visible(cause.module), visible(cause.line)))), 14, width)


def large_effects(effects: Mapping[str, float]) -> list[tuple[str, float]]:
    """Why it changed, by name: effects of at least `LEAST_EFFECT` of the change, the largest first."""
    delta = sum(effects.values())
    large = [(name, ns) for name, ns in effects.items() if abs(ns) >= LEAST_EFFECT * abs(delta) and round(ns)]
    return sorted(large, key=lambda item: -abs(item[1]))


def _counterfactual(each: Diff, top: int, width: int) -> Iterator[str]:
    found = each.counterfactual
    if found is None:
        return
    if found.refused:
        yield from layout.paragraph(refused_words(found), 0, width)
        return
    yield "had it not changed"
    yield from layout.paragraph(counterfactual_words(found), 2, width)
    rows = [("", "work", "step", "without it")]
    rows += [
        (
            layout.shorten(visible(share.cause.name), max(layout.LEAST_NAME, width - 40)),
            format_quantity(share.cause.delta_ns, "ns", signed=True),
            format_quantity(share.share_ns, "ns", signed=True),
            format_quantity(share.without_ns, "ns"),
        )
        for share in found.shares[:top]
    ]
    others = found.others_ns + sum(share.share_ns for share in found.shares[top:])
    rows.append(("all other work", "", format_quantity(others, "ns", signed=True), ""))
    rows.append(("not from durations", "", format_quantity(found.beyond_ns, "ns", signed=True), ""))
    yield from layout.rows(rows, "lrrr", 2, width)
    for words in latent_words(found):
        yield from layout.paragraph(words, 2, width)


def counterfactual_words(found: Counterfactual) -> str:
    """What a table of shares says."""
    orders = "all orders" if found.exact else "sampled orders"
    return (
        "What each change of work does to the step where work overlaps, from a simulation of the trace: Shapley "
        f"shares over {orders}, which add up to the step's change."
    )


def refused_words(found: Counterfactual) -> str:
    """Why there are none."""
    return f"no simulation of where work overlaps, so the account stands alone: {found.refused}"


def latent_words(found: Counterfactual) -> list[str]:
    """A warning for each slowdown that the step does not feel."""
    return [
        f"warning, latent: {layout.shorten(visible(share.cause.name), LATENT_NAME)} takes "
        f"{format_quantity(share.cause.delta_ns, 'ns', signed=True)} off the critical path; the step pays once it "
        f"takes another {'step' if share.slack_ns is None else format_quantity(share.slack_ns, 'ns')} longer"
        for share in found.latent
    ]


def _modules(each: Diff, top: int) -> Iterator[str]:
    found = [place for place in places(each, "module") if place.name and place.delta_ns][:top]
    if found:
        yield "modules, with what is inside them"
        rows = [
            (
                visible(place.name),
                format_quantity(place.base_ns, "ns"),
                format_quantity(place.new_ns, "ns"),
                format_quantity(place.delta_ns, "ns", signed=True),
                of_change(place.delta_ns, each),
            )
            for place in found
        ]
        yield from layout.rows(rows, "lrrrr", 2, 120)


def _matching(each: Diff, width: int) -> Iterator[str]:
    told = ", ".join(
        f"{format_percent(part, signed=False)} {name}" for name, part in each.matched_by.items() if part > 0.0005
    )
    coverage = format_percent(each.coverage, signed=False)
    how = f" ({told})" if told else ""
    yield from layout.paragraph(f"matched: {coverage} of the time of both sides' kernels and operators{how}", 0, width)
    alone = each.alone
    for change in alone[:UNMATCHED_SHOWN]:
        part = (*change.base_parts, *change.new_parts)[0]
        side = "only before" if change.base_parts else "only after"
        ns = format_quantity(change.base_ns + change.new_ns, "ns")
        yield f"  {side}  {ns:>10}  {layout.shorten(visible(part.name), max(24, width - 28))}"
    if len(alone) > UNMATCHED_SHOWN:
        yield f"  and {plural(len(alone) - UNMATCHED_SHOWN, 'smaller part')}"
