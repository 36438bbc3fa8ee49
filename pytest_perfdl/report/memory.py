"""Whose the memory at a peak is, in words and as the page draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_perfdl.diff.memory import subtract_rows
from pytest_perfdl.model.limits import Limit
from pytest_perfdl.model.memory import (
    MemoryAccount,
    MemoryAdvice,
    MemoryCause,
    MemoryChange,
    RowChange,
)
from pytest_perfdl.model.record import metric_name
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import figures, layout
from pytest_perfdl.report.figures import frame_words
from pytest_perfdl.results.memory_causes import cause_name
from pytest_perfdl.results.verdict import Judgement, MetricVerdict

CAUSES_SHOWN = 3


def peak_sentence(change: MemoryChange) -> str:
    """How high the peak is now, and when it is reached."""
    new, base = change.new, change.base
    call = f"{visible(change.call)}: " if change.call else ""
    at = _moment(new)
    if change.growth:
        # The counted one comes after as many steps as a test has.
        call += f"after {plural(len(new.step_ends) - 1, 'step')} that each leave more memory allocated, "
    if base is None:
        return f"{call}the peak of {_bytes(new.peak_bytes)} is reached {at}"
    before = _moment(base)
    where = f"reached {at}" if at == before else f"reached {at} (baseline: {before})"
    return f"{call}the peak went from {_bytes(base.peak_bytes)} to {_bytes(new.peak_bytes)}, {where}"


def _moment(account: MemoryAccount) -> str:
    row = account.moment
    if row is None:
        return "before the step allocates anything"
    phase = {"forward": "in the forward pass", "backward": "in the backward pass", "input": "while a batch is fetched"}
    where = phase.get(row.phase, "in the optimizer" if row.phase == "optimizer" else "in the step")
    operator = f", in {visible(row.operator)}" if row.operator else ""
    module = f" of {visible(row.module)}" if row.module else ""
    return f"{where}{operator}{module}"


Where = Callable[[str], str]
"""A line of code in words, by its frame."""


def cause_place(cause: MemoryCause, change: MemoryChange, where: Where = frame_words) -> str:
    """Where in the model and in the code the tensors were allocated, and from when to when they are alive.

    "in GPT.lm_head, allocated at model.py:41 in GPT.__init__, alive from before the step to its end"
    """
    row = cause.row
    module = f"in {visible(cause.module)}" if cause.module else ""
    line = f"allocated at {where(row.line)}" if row.line else ""
    return ", ".join(filter(None, (module, line, lifetime(cause, change))))


def lifetime(cause: MemoryCause, change: MemoryChange) -> str:
    """From when to when a cause's tensors are alive, as shares of their side's step."""
    row = cause.row
    side = change.base if cause.changes[0].new is None else change.new
    step_ns = side.step_ns if side is not None else 0
    begin = "before the step" if row.lives_from < 0 else f"{_share(row.lives_from, step_ns)} of the step"
    end = "beyond its end" if row.lives_to is None else f"{_share(row.lives_to, step_ns)}"
    return f"alive from {begin} to {end}"


def _share(ns: int, step_ns: int) -> str:
    return f"{ns / max(step_ns, 1):.0%}"


def cause_lines(
    change: MemoryChange, most: int | None, indent: int, width: int, how: str, where: Where = frame_words
) -> Iterator[str]:
    """The causes on a terminal; `how` says what shows more of them."""
    for cause in change.causes[:most]:
        yield from layout.paragraph(f"{_signed(cause.bytes)}  {cause_name(cause)}", indent, width)
        yield from layout.paragraph(cause_place(cause, change, where), indent + 4, width)
    if most is not None and (more := change.causes[most:]):
        rest = _signed(sum(cause.bytes for cause in more))
        yield f"{' ' * indent}and {plural(len(more), 'more cause')}, {rest} in total ({how})"


def terminal(change: MemoryChange, most: int, width: int) -> str:
    """Why two peaks differ, and what the second one consists of, as text of some columns."""
    lines = layout.paragraph(peak_sentence(change), 0, width)
    lines += cause_lines(change, most, 2, width, "--top shows more")
    before = change.base.by_category() if change.base else {}
    table = [
        (category, _bytes(before.get(category, 0)), "->", _bytes(size), _signed(size - before.get(category, 0)))
        for category, size in (dict.fromkeys(before, 0) | change.new.by_category()).items()
    ]
    lines += ["", "at the peak", *layout.rows(table, "lrlrr", 2, width)]
    if change.base and (change.base.reserved_bytes or change.new.reserved_bytes):
        held = (_bytes(each.reserved_bytes or 0) for each in (change.base, change.new))
        lines.append(f"  reserved by the allocator: {' -> '.join(held)}")
    lines += [line for note in change.new.notes for line in layout.paragraph(note, 0, width)]
    return "\n".join(lines)


def advice_sentence(advice: MemoryAdvice, change: MemoryChange, judgement: Judgement) -> str:
    """What would lower the peak, how far, whether that is far enough, and what it costs in time."""
    cost = "" if advice.step_change is None else f", step time {format_percent(advice.step_change)}"
    saved = f"{_bytes(advice.predicted_peak_bytes)} ({_signed(-advice.saved_bytes)})"
    most = _allowed_peak(change, judgement)
    still = most is not None and advice.predicted_peak_bytes > most
    limit = f", still above the limit of {_bytes(most)}" if still and most is not None else ""
    return f"{advice.how}: predicted peak {saved}{limit}{cost}"


def _peak_of(change: MemoryChange, judgement: Judgement) -> MetricVerdict | None:
    name = metric_name(change.call, "peak_memory")
    return next((each for each in judgement.metrics if each.name == name), None)


def _allowed_peak(change: MemoryChange, judgement: Judgement) -> float | None:
    """The largest peak within its limit, in bytes; `None` where it has none, or an absolute one."""
    metric = _peak_of(change, judgement)
    if metric is None or not isinstance(metric.limit, Limit) or metric.limit.off or metric.base is None:
        return None
    return metric.base + metric.limit.allowed(metric.base, metric.unit)


def advice_lead(change: MemoryChange, judgement: Judgement) -> str:
    """Whether the measured peak is within its limit, which says how much the advice on it matters."""
    metric = _peak_of(change, judgement)
    if metric is None or metric.limit is None or metric.new is None:
        return "The peak has no limit. To lower it"
    what = f"The measured peak of {_bytes(metric.new)}"
    held = figures.limit(metric).partition(" ")[0]
    if metric.verdict == "regressed":
        return f"{what} is above its {held}. To lower it"
    return f"{what} is within its {held}. To lower it all the same"


def growth_sentence(change: MemoryChange) -> str:
    """What each step keeps, and who allocates it; empty where nothing grows."""
    if not change.growth:
        return ""
    call = f"{visible(change.call)}: " if change.call else ""
    rows = change.new.growing
    said = f"{call}memory grows: each step keeps {_bytes(change.growth)}"
    if not rows:
        return f"{said}, but no allocation could be identified"
    first = rows[0]
    at = f"at {frame_words(first.line)}" if first.line else ""
    place = ", ".join(filter(None, (f"in {visible(first.module)}" if first.module else "", at)))
    shape = f" {first.shape} {first.dtype}".rstrip() if first.shape else ""
    what = plural(first.tensors, "tensor")
    return f"{said}; most of it, {_bytes(first.bytes)}, is {what}{shape} allocated {place or 'outside of the project'}"


MOST_ROWS = 300
"""Rows of the page's table."""
OUTSIDE = "no module"
"""What memory outside of all modules is called in the page's chart."""
WHOLE = "the peak"


def page_data(change: MemoryChange) -> dict[str, Any]:
    """What the page draws of one call: the peaks by module, their rows, and the curves of allocated bytes."""
    sides = {"base": change.base, "new": change.new}
    pairs = subtract_rows(change.base or MemoryAccount("", (), 0, 0, 0), change.new)
    ordered = sorted(pairs, key=lambda pair: (-abs(pair.bytes), -(pair.new or pair.row).bytes, pair.row.module))
    return {
        "call": change.call,
        "device": change.new.device,
        "sides": {
            side: {
                "peak_bytes": account.peak_bytes,
                "at_ns": account.at_ns,
                "step_ns": account.step_ns,
                "curve": [list(column) for column in zip(*account.curve, strict=True)] or [[], []],
                "nodes": _nodes(account),
                "categories": account.by_category(),
            }
            for side, account in sides.items()
            if account is not None
        },
        "rows": [_page_row(pair) for pair in ordered[:MOST_ROWS]],
        "more": max(0, len(ordered) - MOST_ROWS),
    }


def _nodes(account: MemoryAccount) -> list[tuple[str, str, str, int]]:
    """The peak by module and, inside each, by category: id, id of what it is in, label, bytes with what is inside."""
    totals: dict[tuple[str, ...], int] = {}
    for row in account.rows:
        path = (*(row.module.split(".") if row.module else (OUTSIDE,)), f" {row.category}")
        for depth in range(1, len(path) + 1):
            totals[path[:depth]] = totals.get(path[:depth], 0) + row.bytes
    inside = [(".".join(path), ".".join(path[:-1]) or WHOLE, path[-1].strip(), size) for path, size in totals.items()]
    return [(WHOLE, "", WHOLE, account.peak_bytes), *inside]


def _page_row(pair: RowChange) -> list[Any]:
    row = pair.row
    return [
        row.category,
        row.module,
        row.line,
        row.operator,
        f"{row.shape} {row.dtype}".strip(),
        pair.base.tensors if pair.base else 0,
        pair.new.tensors if pair.new else 0,
        pair.base.bytes if pair.base else 0,
        pair.new.bytes if pair.new else 0,
    ]


def _signed(size: float) -> str:
    return format_quantity(size, "B", signed=True) if size else "0 B"


def _bytes(size: float) -> str:
    return format_quantity(size, "B")
