"""A diff as text: what the step did, its breakdown, the causes, and how well both sides could be matched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.diff import causes, places, regions
from pytest_perfdl.diff.changes import EXCHANGED
from pytest_perfdl.model.kernel_names import short_name, short_names
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.trace.wording import UTILIZATION, place, sizes
from pytest_perfdl.report.words import bound, work_sentence

if TYPE_CHECKING:
    from pytest_perfdl.diff import AccountLine, Diff, DiffCause, Side
    from pytest_perfdl.diff.changes import Counterfactual, MachineUse, Status
    from pytest_perfdl.results.verdict import OperatorSides

LEAST_EFFECT = 0.1
"""Share of a cause's change from which one of its effects is named."""
SURE = 0.6
"""Confidence of a match below which a cause is marked."""
MOVED = 0.02
"""Relative change of an operator's time from which its utilization is shown."""
LEAST_LINE = 0.001
"""Share of the step below which a line of the breakdown is left out."""
UNMATCHED_SHOWN = 3
_EXCHANGED: Mapping[Status, str] = {"replaced": "replaces", "fused": "fuses", "split": "split from"}
LATENT_NAME = 60
"""Characters of a name in a warning."""
_EFFECTS = {
    "count": ("more calls", "fewer calls"),
    "duration": ("slower per call", "faster per call"),
    "mix": ("different inputs", "different inputs"),
    "exposure": ("less overlap", "more overlap"),
}
"""What each effect is called that adds time, and that saves it."""


def reports(diffs: Sequence[tuple[str, Diff]], limit: float, top: int, width: int) -> str:
    """The reports on several diffs, those of unchanged steps in one line each."""
    if len(diffs) == 1:
        return report(*diffs[0], limit, top, width)
    changed = [item for item in diffs if item[1].verdict(limit) != "unchanged"]
    pages = [report(title, each, limit, top, width) for title, each in changed]
    unchanged = [visible(title) for title, each in diffs if each.verdict(limit) == "unchanged"]
    if unchanged:
        of_traces = all(each.base.origin is not None for _, each in diffs)
        counted = plural(len(unchanged), *(("kind of steps", "kinds of steps") if of_traces else ("test",)))
        lines = [
            f"unchanged: {counted} (use -k TEXT to show one of them)",
            *(f"  {name}" for name in unchanged),
        ]
        pages.append("\n".join(lines))
    return "\n\n\n".join(pages)


def report(title: str, each: Diff, limit: float, top: int, width: int) -> str:
    """The report on one diff, wrapped to a width; tables have at most `top` rows.

    Example::

    before/ (5 runs) -> after/ (5 runs)
    regressed: step time 83.20 ms -> 91.50 ms, +10.0% [+9.1%, +10.9%] (95% interval over runs)

    Breakdown of the profiled step
               baseline   current    change  share
      forward  40.10 ms  48.20 ms  +8.10 ms  97.6%
    """
    if each.incomparable:
        return "\n".join(_head(title, each, limit, width))
    sections = (
        _head(title, each, limit, width),
        _account(each, width),
        _causes(each, top, width),
        _counterfactual(each, top, width),
        _modules(each, top, width),
        _use(each, limit, top, width),
        _matching(each, width),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(title: str, each: Diff, limit: float, width: int) -> Iterator[str]:
    if title:
        yield visible(title)
    yield from layout.paragraph(f"{side_words(each.base)} -> {side_words(each.new)}", 0, width)
    if each.devices:
        yield from layout.paragraph(visible(each.devices), 0, width)
    words = step_words(each) if each.incomparable else f"{each.verdict(limit)}: {step_words(each)}"
    yield from layout.paragraph(words, 0, width)
    for note in each.notes:
        yield from layout.item(visible(note), 2, width)


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
            return text
        low, high = map(format_percent, timed.ci95)
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


def _account(each: Diff, width: int) -> Iterator[str]:
    yield "Breakdown of the profiled step"
    least = LEAST_LINE * max(each.base_ns, each.new_ns)
    lines = [line for line in each.account if max(abs(line.base_ns), abs(line.new_ns)) > least]
    rows = [
        ("", "baseline", "current", "change", "share"),
        *(_changed_row(line.name, *_ns(line), each) for line in lines),
    ]
    rows.append(_changed_row("total", each.base_ns, each.new_ns, each))
    yield from layout.rows(rows, "lrrrr", 2, width)
    yield "  share: percentage of the profiled step's change"
    for words in (*drift_words(each), *bound_words(each)):
        yield from layout.paragraph(words, 2, width)


def _ns(line: AccountLine) -> tuple[int, int]:
    return line.base_ns, line.new_ns


def _changed_row(name: str, base_ns: float, new_ns: float, each: Diff) -> tuple[str, ...]:
    return (
        visible(name),
        format_quantity(base_ns, "ns"),
        format_quantity(new_ns, "ns"),
        format_quantity(new_ns - base_ns, "ns", signed=True),
        of_change(new_ns - base_ns, each),
    )


_OF_DEVICE = {
    "device_busy": "share of time with a busy device",
    "sm_efficiency": "share of SMs with work",
    "occupancy": "occupancy (share of the warps that fit)",
    "exposed_copies": "share of time with copies that do not overlap",
    "overlap": "share of communication that overlaps with compute",
    "exposed_communication": "share of time with communication that does not overlap",
}
"""Metrics that a report on one trace has in the section of its device."""


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
            rows.append((text, _figure(name, base), _figure(name, new)))
    return rows


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return format_quantity(value, "flop/s") if name == "achieved_flops" else format_percent(value, signed=False)


def _use(each: Diff, limit: float, top: int, width: int) -> Iterator[str]:
    if each.use is None or not (rows := use_rows(each.use)):
        return
    yield "Utilization"
    if words := slower_words(each, limit):
        yield from layout.paragraph(words, 2, width)
    yield from layout.rows([("", "baseline", "current"), *rows], "lrr", 2, width)
    known = [row for row in each.use.operators if row.dtype and _moved(row)]
    table: list[tuple[str, ...]] = [("", "baseline", "current", "of roofline", "bound by")]
    for row in known[:top]:
        sides = (row.base, row.new)
        times = ["" if side is None else format_quantity(side.time_ns, "ns") for side in sides]
        shares = ["" if side is None or side.roofline is None else _figure("", side.roofline) for side in sides]
        name = f"{row.operator} {sizes(row.shapes)} {row.dtype}"
        table.append((visible(name), *times, " -> ".join(filter(None, shares)), bounds(row)))
    if any(line[3] for line in table[1:]):
        yield "  Operators whose time changed"
        yield from layout.rows(table, "lrrrl", 4, width, short_names, least=60)


def _moved(row: OperatorSides) -> bool:
    """Whether an operator takes another time, by more than `MOVED`, or is on one side only."""
    if row.base is None or row.new is None:
        return True
    return abs(row.new.time_ns - row.base.time_ns) > MOVED * max(row.base.time_ns, row.new.time_ns)


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
    if (differs := overhead_ns(each)) is not None:
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


def overhead_ns(each: Diff) -> float | None:
    """By how much the profiled change is more than the timed one; `None` where either is unknown."""
    if each.timed is not None and each.timed.base and each.timed.new:
        return each.delta_ns - (each.timed.new - each.timed.base)
    return None if each.unprofiled_ns is None else -each.unprofiled_ns


def of_change(ns: float, each: Diff) -> str:
    """Share of the change of the profiled step, where it changed."""
    if not each.delta_ns:
        return ""
    share = ns / each.delta_ns
    # Rounding leaves no sign on a zero.
    return format_percent(share if abs(share) >= 0.0005 else 0.0, signed=False)


def _causes(each: Diff, top: int, width: int) -> Iterator[str]:
    found = causes(each)
    if not found:
        yield "Causes: no part of the step changed significantly"
    else:
        yield "Causes, largest first" + (f" ({top} of {len(found)}; --top shows more)" if len(found) > top else "")
        way = -1 if each.delta_ns < 0 else 1
        # The largest of both directions: what went away may explain what came.
        largest = set(sorted(range(len(found)), key=lambda place: -abs(found[place].own_ns))[:top])
        shown = [cause for place, cause in enumerate(found) if place in largest]
        bound_of_step = regions(each.new).bound()
        table: list[tuple[str, ...]] = [("", "change", "share", "baseline", "current", "calls")]
        table += [_cause_row(cause, each) for cause in shown]
        table += _rest_rows(shown, each)
        lines = layout.rows(table, "lrrrrl", 2, width, short_names)
        step = (len(lines) - 1) // (len(table) - 1)
        yield lines[0]
        for number, cause in enumerate(shown):
            if cause.own_ns * way < 0 and (number == 0 or shown[number - 1].own_ns * way >= 0):
                yield "  In the opposite direction:"
            yield from lines[1 + number * step : 1 + (number + 1) * step]
            if text := "; ".join(_details(cause, bound_of_step, width - 8)):
                yield from layout.paragraph(text, 6, width)
        yield from lines[1 + len(shown) * step :]
    if each.detectable_ns is not None:
        part = each.detectable_ns / max(each.base_ns, 1)
        share = format_percent(part, signed=False) if part >= 0.001 else "less than 0.1%"
        yield from layout.paragraph(
            f"Minimum detectable change of one part: {format_quantity(each.detectable_ns, 'ns')}, {share} of the step "
            "(80% power)",
            2,
            width,
        )


def cause_name(cause: DiffCause) -> str:
    """A cause's name, of a kernel in short; of work that was replaced what it is now."""
    name = _listed(cause, "new") if cause.status in EXCHANGED else cause.name
    return short_name(name or cause.name) if cause.kind == "kernel" else name or cause.name


def replaced(cause: DiffCause) -> str:
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


def _cause_row(cause: DiffCause, each: Diff) -> tuple[str, ...]:
    return (
        visible(cause_name(cause)),
        format_quantity(cause.own_ns, "ns", signed=True),
        of_change(cause.own_ns, each),
        format_quantity(cause.base.ns, "ns") if cause.base.ns or cause.status != "new" else "",
        format_quantity(cause.new.ns, "ns") if cause.new.ns or cause.status != "gone" else "",
        _calls(cause),
    )


def _calls(cause: DiffCause) -> str:
    """Calls per step on both sides; empty of idle time."""
    if cause.kind == "idle":
        return ""
    if abs(cause.base.count - cause.new.count) <= 1e-9:
        return f"{cause.base.count:.4g}"
    return f"{cause.base.count:.4g} -> {cause.new.count:.4g}"


def _rest_rows(shown: Sequence[DiffCause], each: Diff) -> list[tuple[str, ...]]:
    """What is not named, so that changes and shares add up to the step's."""
    drift = each.drift.ns if each.drift.applied else 0.0
    rest = each.delta_ns - drift - sum(cause.own_ns for cause in shown)
    rows = [("all other parts", rest)] if round(rest) else []
    rows += [("machine drift", drift)] if round(drift) else []
    rows.append(("total", float(each.delta_ns)))
    return [(name, format_quantity(round(ns), "ns", signed=True), of_change(ns, each), "", "", "") for name, ns in rows]


def _details(cause: DiffCause, step: str, width: int) -> Iterator[str]:
    """Why it changed, and where; what bounds the whole step is not repeated."""
    large = large_effects(asdict(cause.effects))
    if text := replaced(cause):
        yield visible(text) if len(text) <= width else f"{visible(text)[: width - 3]}..."
    elif cause.status == "changed" and len(large) > 1:
        yield ", ".join(effect_words(name, ns) for name, ns in large)
    elif cause.status == "changed" and large and large[0][0] in ("mix", "exposure"):
        yield effect_name(*large[0])
    where = " at ".join(filter(None, (visible(cause.module), place(visible(cause.line)))))
    if cause.graph:
        yield f"in {cause.graph}"
    if where:
        yield f"in {where}" if cause.module else f"at {where}"
    if cause.bound and cause.bound != step:
        yield bound(cause.bound)
    if cause.confidence < SURE:
        yield "uncertain match"


def effect_words(name: str, ns: float) -> str:
    """One reason for a change with its time: "slower per call +925.6 µs"."""
    return f"{effect_name(name, ns)} {format_quantity(ns, 'ns', signed=True)}"


def effect_name(name: str, ns: float) -> str:
    """The same without its time."""
    more, less = _EFFECTS[name]
    return more if ns > 0 else less


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
    yield "Step time without each change (simulated)"
    rows = [("", "own change", "effect on the step", "step without it")]
    rows += [
        (
            visible(cause_name(share.cause)),
            format_quantity(share.cause.delta_ns, "ns", signed=True),
            format_quantity(share.share_ns, "ns", signed=True),
            format_quantity(share.without_ns, "ns"),
        )
        for share in found.shares[:top]
    ]
    others = found.others_ns + sum(share.share_ns for share in found.shares[top:])
    rows.append(("all other work", "", format_quantity(others, "ns", signed=True), ""))
    rows.append((UNEXPLAINED, "", format_quantity(found.beyond_ns, "ns", signed=True), ""))
    yield from layout.rows(rows, "lrrr", 2, width, short_names)
    yield from layout.paragraph(counterfactual_words(found), 2, width)
    for words in latent_words(found):
        yield from layout.paragraph(words, 2, width)


UNEXPLAINED = "not explained by durations"


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


def _modules(each: Diff, top: int, width: int) -> Iterator[str]:
    changed = [line for line in places(each, "module") if line.name and line.delta_ns]
    if changed:
        yield "Modules (times include the modules inside them)"
        rows: list[tuple[str, ...]] = [("", "baseline", "current", "change", "share")]
        rows += [_changed_row(line.name, line.base_ns, line.new_ns, each) for line in changed[:top]]
        yield from layout.rows(rows, "lrrrr", 2, width, layout.last_parts)


def _matching(each: Diff, width: int) -> Iterator[str]:
    coverage = format_percent(each.coverage, signed=False)
    yield f"Matched: {coverage} of the kernel and operator time of baseline and current"
    alone = each.alone
    rows = []
    for unmatched in alone[:UNMATCHED_SHOWN]:
        part = (*unmatched.base_parts, *unmatched.new_parts)[0]
        side = "baseline only" if unmatched.base_parts else "current only"
        name = short_name(part.name) if part.kind == "kernel" else part.name
        rows.append((visible(name), format_quantity(unmatched.base_ns + unmatched.new_ns, "ns"), side))
    if rows:
        yield from layout.rows(rows, "lrl", 2, width, short_names)
    if len(alone) > UNMATCHED_SHOWN:
        yield f"  and {plural(len(alone) - UNMATCHED_SHOWN, 'smaller part')}"
