"""Which slices of an observed step belong to which cause of the page, and how much they are made to stand out.

A slice belongs to one cause or to none. What is said of the change is the cause's: it is measured in many steps, and
the page has the same numbers.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_perfdl.analysis.events.source_lines import FRAME
from pytest_perfdl.analysis.events.threads import is_input
from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.model.step_part import is_inside
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.report.chrome_tracks import DEVICE, IDLE
from pytest_perfdl.report.figures import cause_status
from pytest_perfdl.report.frames import INPUT
from pytest_perfdl.report.trace_sides import DrawnSide
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace import Event
from pytest_perfdl.trace.annotations import MODULE

LEAST_SHARE = 0.02
"""Causes of less than this part of the step's change have no color and no number in their name."""
MOST = 0.5
"""The fewest causes that make more than this part of a slowdown are its largest ones."""
_ANNOTATION = "user_annotation"
_CATEGORIES: Mapping[str, frozenset[str]] = {
    "operator": frozenset({"cpu_op"}),
    "kernel": DEVICE,
    "line": frozenset({"python_function"}),
    "module": frozenset({_ANNOTATION}),
}
_OUTSIDE = frozenset({IDLE, _ANNOTATION, "python_function"})
_LISTED = 5
"""Causes in a module that its slices name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What makes a change large: a color says nothing else."""

    least: float
    """Smaller changes have no color, nanoseconds either way."""
    largest: float
    """The least of the slowdowns that together make most of it, nanoseconds."""

    @classmethod
    def of(cls, causes: Sequence[Cause]) -> Sizes:
        """The sizes among the causes of one call."""
        deltas = [cause.delta_ns for cause in causes]
        slower = sorted((ns for ns in deltas if ns > 0), reverse=True)
        known = [abs(cause.delta_ns / cause.share) for cause in causes if cause.share and math.isfinite(cause.share)]
        change = known[0] if known else max(sum(slower), -sum(ns for ns in deltas if ns < 0))
        made, largest = 0, math.inf
        for ns in slower:
            if made > MOST * sum(slower):
                break
            made, largest = made + ns, ns
        return cls(LEAST_SHARE * change, largest)

    def matters(self, delta_ns: float) -> bool:
        """Whether a change is large enough to stand out."""
        return delta_ns != 0 and abs(delta_ns) >= self.least

    def color(self, delta_ns: float) -> str | None:
        """The reserved color name of chrome://tracing for a change."""
        if not self.matters(delta_ns):
            return None
        return "good" if delta_ns < 0 else "terrible" if delta_ns >= self.largest else "bad"


def slices_of_causes(sides: Sequence[DrawnSide], causes: Sequence[Cause]) -> list[dict[int, Cause]]:
    """For both sides the cause of each slice that belongs to one, by place.

    An operator or a kernel is found by its name, idle time in the gaps of its class or its annotation, Python's time
    in the annotation or the gaps where its function can be. Of these the ones in the cause's module are its, where
    there are some.
    """
    named = {(cause.kind, cause.name) for cause in causes}
    indices = [_by_name(side) for side in sides]
    found: list[dict[int, Cause]] = [{}, {}]
    for members in (False, True):
        for cause in causes:
            names = {each for each in cause.members if (cause.kind, each) not in named} if members else {cause.name}
            if not names or (members and cause.kind == "idle"):
                continue
            is_of = _idle_test(cause, sides) if cause.kind == "idle" else None
            for side, index, own in zip(sides, indices, found, strict=True):
                if is_of is None:
                    places = _named(index, cause, names)
                else:
                    places = [place for place in _outside_operators(side) if is_of(side, place)]
                for place in _in_module(side, places, cause.module):
                    own.setdefault(place, cause)
    return found


def about_cause(cause: Cause) -> dict[str, Any]:
    """What a slice says of its cause: the page's own numbers, nanoseconds per step."""
    said = {
        "cause": cause.name,
        "base_ns": cause.base_ns,
        "new_ns": cause.new_ns,
        "delta_ns": cause.delta_ns,
        "share": cause.share,
        "verdict": verdict(cause),
    }
    return said if cause.certain else {**said, "certain": False}


def causes_in(event: Event, causes: Iterable[Cause]) -> list[Cause]:
    """The causes in the module whose forward pass a slice is, largest first; none of other slices.

    A cause in all blocks, `GPT.h.*.mlp`, is in each of them.
    """
    module = _module_of(event)
    if not module:
        return []
    outer = [(cause, _as_deep(cause.module, module)) for cause in causes]
    # An empty path holds every module.
    inside = [cause for cause, path in outer if path and is_inside(module, path)]
    return sorted(inside, key=lambda cause: -abs(cause.delta_ns))


def about_module(event: Event, causes: Sequence[Cause]) -> dict[str, Any]:
    """What a module's slice says of the causes in it: their sum, and the largest of them."""
    module = _module_of(event)
    shares = [cause.share for cause in causes]
    listed = [cause.name for cause in causes[:_LISTED]]
    more = len(causes) - len(listed)
    said = {
        "causes": ", ".join(listed) + (f" and {more} more" if more else ""),
        "causes_delta_ns": sum(cause.delta_ns for cause in causes),
        "causes_share": None if None in shares else sum(share for share in shares if share is not None),
    }
    others = sorted({_as_deep(cause.module, module) for cause in causes} - {module})
    # Causes of several blocks are measured in all of them together.
    return {**said, "causes_in": ", ".join(others)} if others else said


def suffix(cause: Cause) -> str:
    """What the name of its slices ends with, " (new, +7.164 ms/step)"."""
    status = cause_status(cause)
    word = "" if status == "changed" else f"{status}, "
    return f" ({word}{format_quantity(cause.delta_ns, 'ns', signed=True)}/step)"


def verdict(cause: Cause) -> str:
    """The cause in one word: slower, faster, new, gone; "changed" where only its count did."""
    status = cause_status(cause)
    if status != "changed":
        return status
    return "slower" if cause.delta_ns > 0 else "faster" if cause.delta_ns < 0 else "changed"


def _module_of(event: Event) -> str:
    """The module whose forward pass a slice is; empty for other slices."""
    is_module = event.category == _ANNOTATION and event.name.startswith(MODULE)
    return event.name.removeprefix(MODULE) if is_module else ""


def _as_deep(module: str, like: str) -> str:
    """The first levels of a module's path, as many as another has; empty where it has fewer."""
    levels, depth = module.split("."), like.count(".") + 1
    return ".".join(levels[:depth]) if depth <= len(levels) else ""


def _in_module(side: DrawnSide, places: list[int], module: str) -> list[int]:
    """Those of the slices that are in a module or, being of the backward pass, may be; all if none is in it."""
    known = {place: side.modules[place] for place in places if place in side.modules}
    if not module or not any(is_inside(each, module) for each in known.values()):
        return places
    return [place for place, each in known.items() if not each or is_inside(each, module)]


_Test = Callable[[DrawnSide, int], bool]


_Index = Mapping[tuple[str, str], Sequence[int]]
"""Places of slices by category and name."""


def _by_name(side: DrawnSide) -> _Index:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, event in enumerate(side.events):
        if event.phase == "X":
            found[event.category, event.name].append(place)
    return found


def _named(index: _Index, cause: Cause, names: Iterable[str]) -> list[int]:
    """The slices of operators, kernels, functions or modules of these names."""
    prefix = MODULE if cause.kind == "module" else ""
    keys = ((category, prefix + name) for category in _CATEGORIES[cause.kind] for name in names)
    return sorted(place for key in keys for place in index.get(key, ()))


def _outside_operators(side: DrawnSide) -> list[int]:
    """Where idle time can be: gaps, annotations and functions of Python."""
    return [place for place, event in enumerate(side.events) if event.category in _OUTSIDE and event.phase == "X"]


def _idle_test(cause: Cause, sides: Sequence[DrawnSide]) -> _Test:
    if cause.name == INPUT:
        return _is_waiting

    def is_of(side: DrawnSide, place: int) -> bool:
        if (gap := side.gaps.get(place)) is not None:
            return (gap.function or gap.name) == cause.name
        return side.events[place].name == cause.name

    frame = FRAME.match(cause.name)
    if frame is None or any(is_of(side, place) for side in sides for place in _outside_operators(side)):
        return is_of
    return _function_test(cause, frame["function"], sides)


def _is_waiting(side: DrawnSide, place: int) -> bool:
    """Whether a slice is the wait for the next batch: its annotation, or the idle time that most of is this."""
    event = side.events[place]
    return event.name == INPUT if place in side.gaps else event.category == _ANNOTATION and is_input(event.name)


def _function_test(cause: Cause, function: str, sides: Sequence[DrawnSide]) -> _Test:
    """Where a function that a stack pass named can be in a step without Python frames.

    It is in the annotation that is named after it, "Optimizer.step#AdamW.step", else in Python's time outside of all;
    of a cause in no module, in Python's time outside of modules.
    """

    def is_named_after(name: str) -> bool:
        return re.split(r"[.#]", name)[-1] == function

    annotations = {
        event.name
        for side in sides
        for event in side.events
        if event.category == _ANNOTATION and not event.name.startswith(MODULE) and is_named_after(event.name)
    }

    def is_of(side: DrawnSide, place: int) -> bool:
        gap = side.gaps.get(place)
        if gap is None:
            return side.events[place].category == _ANNOTATION and side.events[place].name in annotations
        if annotations:
            return gap.function in annotations
        return gap.name == PYTHON and not gap.function and (bool(cause.module) or not gap.module)

    return is_of
