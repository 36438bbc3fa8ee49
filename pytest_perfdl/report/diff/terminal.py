"""A diff as text: what the step did, its breakdown, the causes, and how well both sides could be matched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from pytest_perfdl.diff import causes, regions
from pytest_perfdl.model.kernel_names import short_name, short_names
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.diff import wording
from pytest_perfdl.report.diff.wording import (
    SURE,
    bound_words,
    bounds,
    cause_name,
    counterfactual_words,
    drift_words,
    figure_words,
    large_effects,
    latent_words,
    refused_words,
    replaced_words,
    side_words,
    slower_words,
    step_words,
    use_rows,
)
from pytest_perfdl.report.figures import effect_name, effect_words
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.trace.tables import place, sizes
from pytest_perfdl.report.words import bound

if TYPE_CHECKING:
    from pytest_perfdl.diff import Diff, DiffCause
    from pytest_perfdl.results.verdict import OperatorSides

MOVED = 0.02
"""Relative change of an operator's time from which its utilization is shown."""
LEAST_LINE = 0.001
"""Share of the step below which a line of the breakdown is left out."""
UNMATCHED_SHOWN = 3


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


def report_ranks(diffs: Sequence[tuple[str, Diff]], limit: float, top: int, width: int) -> str:
    """What became of each rank of a job, and the report on the one whose own work changed most, the first."""
    rows: list[tuple[str, ...]] = [("", "step", "->", "own work", "->")]
    for title, each in diffs:
        own = each.base.own_ns, each.new.own_ns
        rows.append((visible(title), *(format_quantity(ns, "ns") for ns in (each.base_ns, each.new_ns, *own))))
    lines = [
        "Ranks of one job (mean per step), first the one whose own work changed most",
        *layout.rows(rows, "lrrrr", 2, width),
        *layout.paragraph(
            "own work: the step without the communication that nothing hides, in which a rank may wait for "
            "another one; the report below is of the first rank, -k NAME shows another one",
            2,
            width,
        ),
    ]
    return "\n\n\n".join(("\n".join(lines), report(*diffs[0], limit, top, width)))


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


def _account(each: Diff, width: int) -> Iterator[str]:
    found = wording.breakdown(each)
    least = LEAST_LINE * max(each.base_ns, each.new_ns)
    lines = [line for line in found.rows if max(abs(line.base_ns), abs(line.new_ns)) > least]
    yield found.ordered
    yield from layout.table(replace(found, rows=[*lines, wording.total(each)]), width)
    yield from layout.paragraph(found.short_legend, 2, width)
    for words in (*drift_words(each), *bound_words(each)):
        yield from layout.paragraph(words, 2, width)


def _use(each: Diff, limit: float, top: int, width: int) -> Iterator[str]:
    if each.use is None or not (rows := use_rows(each.use)):
        return
    yield "Utilization"
    if words := slower_words(each, limit):
        yield from layout.paragraph(words, 2, width)
    yield from layout.rows([("", "baseline", "current"), *rows], "lrr", 2, width)
    known = [row for row in each.use.operators if row.dtype and _is_changed(row)][:top]
    if any(_rooflines(row) for row in known):
        columns = (
            Column("Operator", lambda row: f"{row.operator} {sizes(row.shapes)} {row.dtype}", "name"),
            Column("Baseline", lambda row: row.base and row.base.time_ns, "ns"),
            Column("Current", lambda row: row.new and row.new.time_ns, "ns"),
            Column("Of roofline", _rooflines, "figure"),
            Column("Bound by", bounds),
        )
        yield "  Operators whose time changed"
        yield from layout.table(Table("Operators", columns, known), width, indent=4, least=60)


def _rooflines(row: OperatorSides) -> str:
    shares = [side.roofline for side in (row.base, row.new) if side is not None and side.roofline is not None]
    return " -> ".join(figure_words("", share) for share in shares)


def _is_changed(row: OperatorSides) -> bool:
    """Whether an operator takes another time, by more than `MOVED`, or is on one side only."""
    if row.base is None or row.new is None:
        return True
    return abs(row.new.time_ns - row.base.time_ns) > MOVED * max(row.base.time_ns, row.new.time_ns)


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
        rows = [*((cause_name(cause), cause.own_ns, cause) for cause in shown), *_rest_rows(shown, each)]
        lines = layout.table(Table("Causes", _cause_columns(each), rows), width)
        step = (len(lines) - 1) // len(rows)
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


def _cause_columns(each: Diff) -> tuple[Column, ...]:
    """Of rows (name, change, cause); the cause is `None` for what is not one."""

    def time(cause: DiffCause | None, ns: float, absent: str) -> float | None:
        return None if cause is None or (not ns and cause.status == absent) else ns

    return (
        Column("Name", lambda row: row[0], "name"),
        Column("Change", lambda row: row[1] if row[2] else round(row[1]), "signed"),
        Column("Share", lambda row: wording.share(row[1], each), "share"),
        Column("Baseline", lambda row: row[2] and time(row[2], row[2].base.ns, "new"), "ns"),
        Column("Current", lambda row: row[2] and time(row[2], row[2].new.ns, "gone"), "ns"),
        Column("Calls", lambda row: row[2] and _calls(row[2])),
    )


def _calls(cause: DiffCause) -> str:
    """Calls per step on both sides; empty of idle time."""
    if cause.kind == "idle":
        return ""
    if abs(cause.base.count - cause.new.count) <= 1e-9:
        return f"{cause.base.count:.4g}"
    return f"{cause.base.count:.4g} -> {cause.new.count:.4g}"


def _rest_rows(shown: Sequence[DiffCause], each: Diff) -> list[tuple[str, float, None]]:
    """What is not named, so that changes and shares add up to the step's."""
    drift = each.drift.ns if each.drift.applied else 0.0
    rest = each.delta_ns - drift - sum(cause.own_ns for cause in shown)
    rows = (("all other parts", rest), ("machine drift", drift))
    return [*((name, ns, None) for name, ns in rows if round(ns)), ("total", each.delta_ns, None)]


def _details(cause: DiffCause, step: str, width: int) -> Iterator[str]:
    """Why it changed, and where; what bounds the whole step is not repeated."""
    large = large_effects(asdict(cause.effects))
    if text := replaced_words(cause):
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


def _counterfactual(each: Diff, top: int, width: int) -> Iterator[str]:
    found = each.counterfactual
    if found is None:
        return
    if found.refused:
        yield from layout.paragraph(refused_words(found), 0, width)
        return
    table = wording.shares(found, top)
    yield table.ordered
    yield from layout.table(table, width)
    yield from layout.paragraph(counterfactual_words(found), 2, width)
    for words in latent_words(found):
        yield from layout.paragraph(words, 2, width)


def _modules(each: Diff, top: int, width: int) -> Iterator[str]:
    found = wording.by_place(each, "module")
    found = replace(found, rows=[line for line in found.rows if line.delta_ns])
    if found.rows:
        yield found.ordered
        yield from layout.table(found, width, top=top)


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
