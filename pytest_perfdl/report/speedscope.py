"""Both sides' observed steps in speedscope's own format, so that Left Heavy and Sandwich add up equal frames.

The first profile is the thread of the current step, the second that of the baseline. Where causes are slower, a third
has what the page says of them: the measured change of each in its module. Further threads and the streams of devices
follow. Frames are called after what runs, without arguments, so that equal work has one name. Time in which
no operator runs is a frame, too: a step that waits for its input shows that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.analysis.events.threads import is_input
from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.model.errors import ChromeTraceError
from pytest_perfdl.report.figures import INPUT
from pytest_perfdl.report.step_trace import DEVICE, IDLE, OBSERVED, STEP, DrawnSide
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import Cause
from pytest_perfdl.trace import Event
from pytest_perfdl.trace.annotations import MODULE, SETUP

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
WAITING = "waiting for input"
"""Frame of the time in which a step waits for its next batch."""
CHANGE = "causes that became slower: measured change per step"
"""Name of the profile that shows no step but the page's causes."""
_ANNOTATION = "user_annotation"
_BUSY = frozenset({"cpu_op", "python_function", "cuda_runtime", "cuda_driver", _ANNOTATION}) | DEVICE
"""Categories that a thread with a profile has some of; the other threads repeat what these show."""
_ENGINE = "autograd::engine::evaluate_function: "

_Frame = tuple[str, str, int]
"""Name, file and line; the file is empty where it is not known."""


def speedscope(result: Result, call: str, sides: Sequence[DrawnSide]) -> bytes:
    """Both sides in one file for speedscope, as JSON text; equal input gives equal bytes.

    Raises
    ------
    ChromeTraceError
        When the sides hold what cannot be written.
    """
    title = f"{visible(result.id)} {visible(call)}".rstrip()
    causes = [cause for cause in result.judgement.blame if cause.call == call]
    try:
        return _write_file(title, sides[::-1], causes)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ChromeTraceError(f"the recorded traces cannot be combined: {error}") from error


def short_frame(name: str) -> str:
    """What a slice is called in a flame graph: without prefixes that say how it was recorded.

    >>> short_frame("perfdl.module: GPT.blocks.0"), short_frame("ProfilerStep#7")
    ('GPT.blocks.0', 'step')
    >>> short_frame("void at::native::reduce_kernel<512, 1, float>(float*)")
    'at::native::reduce_kernel<512, 1, float>'
    """
    if name.startswith(STEP):
        return "step"
    if name.startswith(_ENGINE):
        return f"autograd: {name.removeprefix(_ENGINE)}"
    return visible(_without_arguments(name.removeprefix(MODULE)))


def _without_arguments(name: str) -> str:
    """A C++ function without its return type `void` and its argument list; other names as they are."""
    text = name.removeprefix("void ")
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            # "Memcpy HtoD (Pageable -> Device)" has no arguments.
            is_list = text[place] == "(" and place > 0 and text[place - 1] not in " :" and "::" in text
            return text[:place] if is_list else text
    return text


@dataclass(slots=True)
class _Frames:
    """The frames that all profiles share, each once."""

    lines: Mapping[str, str]
    """Where a cause comes from, "train.py(12): step", by its name."""
    known: dict[_Frame, int] = field(default_factory=dict)

    def number(self, event: Event) -> int:
        """The place of a slice's frame."""
        if event.category == IDLE:
            return self.called(WAITING if event.name == INPUT else f"idle: {event.name}")
        return self.function(event.name) if event.category == "python_function" else self.part(event.name)

    def of_cause(self, cause: Cause) -> int:
        """The place of a cause's frame: that of its slices where they are called after it."""
        if cause.kind == "idle" and cause.name == INPUT:
            return self.called(WAITING)
        return self.function(cause.name) if FRAME.match(cause.name) else self.part(cause.name)

    def function(self, name: str) -> int:
        """The place of a function of Python, "train.py(12): step"."""
        found = FRAME.match(name)
        return self.part(name) if found is None else self.called(found["function"], found["path"], int(found["line"]))

    def part(self, name: str) -> int:
        """The place of an operator, a kernel or an annotation."""
        source = FRAME.match(self.lines.get(name, ""))
        short = short_frame(name)
        return self.called(short) if source is None else self.called(short, source["path"], int(source["line"]))

    def called(self, name: str, file: str = "", line: int = 0) -> int:
        """The place of a frame."""
        return self.known.setdefault((visible(name), visible(file), line), len(self.known))

    def listed(self) -> list[dict[str, Any]]:
        """All frames, in the order of their places."""
        return [
            {"name": name, "file": file, "line": line} if file else {"name": name} for name, file, line in self.known
        ]


def _write_file(title: str, sides: Sequence[DrawnSide], causes: Sequence[Cause]) -> bytes:
    frames = _Frames({cause.name: cause.line for cause in reversed(causes) if cause.line})
    firsts: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for side in sides:
        threads = _threads(side)
        own = _own_thread(threads)
        device = max(
            (tid for tid in threads if _is_device(threads[tid])), key=lambda tid: _weight(threads[tid]), default=-1
        )
        for tid, events in threads.items():
            idle = [side.events[place] for place in side.gaps] if tid == device else []
            profile = _profile(_name(side, tid, own), [*events, *idle], frames, fills=tid == own)
            (firsts if tid == own else others).append(profile)
    profiles = [*firsts, *_changes(causes, frames), *others]
    return orjson.dumps(
        {
            "$schema": SCHEMA,
            "name": title,
            "exporter": "pytest-perfdl",
            "activeProfileIndex": 0,
            "shared": {"frames": frames.listed()},
            "profiles": profiles,
        }
    )


def _changes(causes: Sequence[Cause], frames: _Frames) -> list[dict[str, Any]]:
    """The slower causes as a profile: each below the modules that it is in, as wide as its measured change."""
    slower = [cause for cause in causes if cause.delta_ns > 0]
    if not slower:
        return []
    samples = []
    for cause in slower:
        levels = cause.module.split(".") if cause.module else []
        modules = [".".join(levels[: depth + 1]) for depth in range(len(levels))]
        samples.append([*map(frames.called, modules), frames.of_cause(cause)])
    weights = [cause.delta_ns for cause in slower]
    return [
        {
            "type": "sampled",
            "name": CHANGE,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }
    ]


def _threads(side: DrawnSide) -> dict[int, list[Event]]:
    """The slices of the threads that were busy."""
    found: dict[int, list[Event]] = {}
    for event in side.events:
        if event.phase == "X" and event.category != IDLE:
            found.setdefault(event.tid, []).append(event)
    return {tid: events for tid, events in found.items() if any(event.category in _BUSY for event in events)}


def _own_thread(threads: Mapping[int, Sequence[Event]]) -> int:
    """The thread with the step, else the busiest one of the host; -1 where there is none."""
    with_step = (tid for tid, events in threads.items() if any(event.name.startswith(STEP) for event in events))
    on_host = [tid for tid, events in threads.items() if not _is_device(events)]
    return next(with_step, max(on_host, key=lambda tid: _weight(threads[tid]), default=-1))


def _is_device(events: Sequence[Event]) -> bool:
    return any(event.category in DEVICE for event in events)


def _weight(events: Sequence[Event]) -> int:
    return sum(event.duration_ns for event in events)


def _name(side: DrawnSide, tid: int, own: int) -> str:
    if tid == own:
        return f"{side.name}: {OBSERVED}"
    named = [event for event in side.events if event.phase == "M" and event.name == "thread_name" and event.tid == tid]
    label = str((named[0].args or {}).get("name", "")) if named else f"thread {tid}"
    return visible(f"{side.name}: {OBSERVED}, {label}")


def _profile(name: str, events: Sequence[Event], frames: _Frames, *, fills: bool) -> dict[str, Any]:
    sweep = _Sweep(frames, fills)
    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        sweep.open(event)
    sweep.close(None)
    times = [event["at"] for event in sweep.written]
    return {
        "type": "evented",
        "name": name,
        "unit": "nanoseconds",
        "startValue": min(times, default=0),
        "endValue": max(times, default=0),
        "events": sweep.written,
    }


@dataclass(slots=True)
class _Sweep:
    """Goes through a thread's slices by time and writes what opens and closes, always properly nested."""

    frames: _Frames
    fills: bool
    """Whether time in which an annotation runs nothing is a frame."""
    written: list[dict[str, Any]] = field(default_factory=list)
    _open: list[tuple[Event, int, int]] = field(default_factory=list)
    """What is open, its frame and its end: that of the slice around it if that comes first."""
    _at: int = 0
    """Until when the innermost open slice is written."""

    def open(self, event: Event) -> None:
        """Begin a slice, which is none before the last one that was begun."""
        self.close(event.start_ns)
        self._fill(event.start_ns)
        end = min([event.end_ns, *(end for _, _, end in self._open[-1:])])
        frame = self.frames.number(event)
        self._write("O", frame, event.start_ns)
        self._open.append((event, frame, end))

    def close(self, time: int | None) -> None:
        """End what ends until a time; all of it without one."""
        while self._open and (time is None or self._open[-1][2] <= time):
            _, frame, end = self._open[-1]
            self._fill(end)
            self._open.pop()
            self._write("C", frame, end)

    def _fill(self, end: int) -> None:
        if not self.fills or not self._open or end <= self._at:
            return
        names = [event.name for event, _, _ in self._open]
        if self._open[-1][0].category != _ANNOTATION or SETUP in names:
            return
        frame = self.frames.called(WAITING if any(map(is_input, names)) else PYTHON)
        self._write("O", frame, self._at)
        self._write("C", frame, end)

    def _write(self, kind: str, frame: int, time: int) -> None:
        self.written.append({"type": kind, "frame": frame, "at": time})
        self._at = time
