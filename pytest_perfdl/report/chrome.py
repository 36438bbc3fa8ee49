"""Both sides' steps in one Chrome trace: what a regression looks like in Perfetto.

The baseline's step and the current one become two processes whose steps start at the same time. Slices of the page's
causes carry the cause's numbers on both sides; what the observed step says by itself is in arguments that are called
"observed". `trace_sides` reads the exemplars, `trace_causes` knows whose a slice is, `chrome_tracks` adds counters,
idle time and arrows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_perfdl.model.errors import ChromeTraceError
from pytest_perfdl.report import chrome_tracks
from pytest_perfdl.report.figures import cause_status
from pytest_perfdl.report.trace_causes import (
    Sizes,
    about_cause,
    about_module,
    causes_in,
    slices_of_causes,
    suffix,
)
from pytest_perfdl.report.trace_sides import DrawnSide, drawn_sides
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace import Event, compress, write

_COUNTED = frozenset({"cpu_op", "python_function"}) | chrome_tracks.DEVICE
"""Categories over which the change accumulates: annotations span what is inside them and would count it twice."""


@dataclass(frozen=True, slots=True)
class RegressionTrace:
    """Both sides' steps in one trace."""

    data: bytes
    """Gzip-compressed; equal input gives equal bytes."""
    selected: Event | None
    """The slice with the largest part in the first cause, which a viewer shows first; `None` without causes."""


def regression_trace(
    result: Result, call: str, base: bytes, new: bytes, causes: Sequence[Cause] | None = None
) -> RegressionTrace:
    """Two gzip-compressed exemplars in, one trace out.

    Parameters
    ----------
    causes
        The causes of the call in the order in which the page has them; by default as the judgement has them.

    Raises
    ------
    ChromeTraceError
        When an exemplar is damaged.
    """
    try:
        return _drawn(result, call, base, new, causes)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ChromeTraceError(f"the recorded traces cannot be combined: {error}") from error


def _drawn(result: Result, call: str, base: bytes, new: bytes, ordered: Sequence[Cause] | None) -> RegressionTrace:
    causes = [cause for cause in (result.judgement.blame if ordered is None else ordered) if cause.call == call]
    sides = drawn_sides(base, new, f"{visible(result.id)} {visible(call)}".rstrip())
    drawn = [side.events for side in sides]
    matched = chrome_tracks.pairs(drawn)
    owned = slices_of_causes(sides, causes)
    sizes = Sizes.of(causes)
    marked = [
        [_marked(event, own.get(place), causes, sizes, number == 1) for place, event in enumerate(events)]
        for number, (events, own) in enumerate(zip(chrome_tracks.observed(drawn, matched), owned, strict=True))
    ]
    events = [event for side in marked for event in side]
    events += chrome_tracks.accumulated(drawn, [pair for pair in matched if drawn[1][pair[1]].category in _COUNTED])
    flows = 1 + max((event.flow for event in events if event.flow is not None), default=-1)
    events += chrome_tracks.flows(drawn, _of_causes(matched, owned[1], causes), flows)
    for side in sides:
        events += [*chrome_tracks.busy(side.events), *chrome_tracks.memory(side.events)]
        if side.trace is not None:
            events += chrome_tracks.work(side.trace, side.opens, side.pid)
    place = _selected(sides, matched, owned, causes)
    selected = marked[place[0]][place[1]] if place else None
    about = {"test": visible(result.id), "call": visible(call), "verdict": result.judgement.verdict}
    shown = {} if selected is None else {"selected": _address(selected)}
    return RegressionTrace(compress(write(None, events, {"perfdl": about | shown})), selected)


def _marked(event: Event, cause: Cause | None, causes: Sequence[Cause], sizes: Sizes, is_current: bool) -> Event:
    """The event with its cause's numbers; only what is slower now, or is gone, stands out on its side."""
    if event.phase != "X":
        return event
    if cause is None:
        inside = causes_in(event, causes)
        if not inside:
            return event
        said, name = about_module(event, inside), ""
        delta: int = said["causes_delta_ns"]
    else:
        said, name, delta = about_cause(cause), suffix(cause), cause.delta_ns
    marked = replace(event, args={**(event.args or {}), **said})
    if not sizes.matters(delta) or not (is_current or (cause is not None and cause_status(cause) == "gone")):
        return marked
    return replace(marked, name=event.name + name, color=sizes.color(delta))


def _of_causes(
    matched: Sequence[tuple[int, int]], owned: Mapping[int, Cause], causes: Sequence[Cause]
) -> list[tuple[int, int]]:
    """The matched slices of causes, those of the first cause first."""
    order = {id(cause): number for number, cause in enumerate(causes)}
    found = [(order[id(owned[pair[1]])], pair) for pair in matched if pair[1] in owned]
    return [pair for _, pair in sorted(found)]


def _selected(
    sides: Sequence[DrawnSide],
    matched: Sequence[tuple[int, int]],
    owned: Sequence[Mapping[int, Cause]],
    causes: Sequence[Cause],
) -> tuple[int, int] | None:
    """Side and place of the slice with the largest part in the first cause that has slices.

    It is one of the current step, and of the baseline where the cause is gone; rather than a gap it is what runs.
    """
    before = {new: sides[0].events[base].duration_ns for base, new in matched}
    for cause in causes:
        number = 0 if cause_status(cause) == "gone" else 1
        own = [place for place, each in owned[number].items() if each is cause]
        if own:
            events = sides[number].events
            taken = before if number == 1 and cause.delta_ns > 0 else {}
            lost = {place: events[place].duration_ns - taken.get(place, 0) for place in own}
            running = [place for place in own if place not in sides[number].gaps]
            return number, max(running or own, key=lambda place: (lost[place], -place))
    return None


def _address(event: Event) -> dict[str, object]:
    """What finds a slice again among the events; times in nanoseconds."""
    return {
        "name": event.name,
        "pid": event.pid,
        "start_ns": event.start_ns,
        "duration_ns": event.duration_ns,
    }
