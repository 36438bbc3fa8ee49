"""What is kept of one comparison, and whether what it named first is right."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import kept
from planted_change import Plant
from suite import PLANTS

UNCHANGED = ""
"""Stands for no plant where the name of a plant is wanted."""
SHOWN = 3
"""Causes that are kept."""

Mode = Literal["quick", "end to end"]


class ComparingError(RuntimeError):
    """Nothing could be compared; the message says why."""


@dataclass(frozen=True)
class Task:
    """One comparison to be made."""

    mode: Mode
    plant: str
    """`UNCHANGED`, or the plant of the new side."""
    model: str
    number: int
    """From 0, among those of its kind."""

    def __str__(self) -> str:
        return f"{self.plant or f'{self.model} unchanged'} #{self.number + 1}"


@dataclass(frozen=True)
class Change:
    """What the step did; nanoseconds."""

    base_ns: float
    new_ns: float
    effect: float
    """new / base - 1."""
    ci95: tuple[float, float] | None
    """Of the effect."""


@dataclass(frozen=True)
class Named:
    """A cause as the plugin names it."""

    kind: str
    name: str
    module: str
    line: str
    delta_ns: int
    share: float | None
    """Of the step's change."""
    effects: Mapping[str, int]


@dataclass(frozen=True)
class Right:
    """Whether the first cause is right; `None` where nothing is asked for."""

    name: bool
    module: bool
    line: bool | None

    def as_demanded(self, plant: Plant) -> bool:
        """By name and module and, where Python is to blame, by line."""
        return self.name and self.module and (bool(self.line) or not plant.python)


@dataclass(frozen=True)
class Comparison:
    """What one comparison found."""

    task: Task
    rounds: int
    timed: Change | None
    """Without the profiler."""
    profiled: Change | None
    verdict: str
    causes: tuple[Named, ...]
    """The first `SHOWN`."""
    named: int
    """How many there are."""
    certain: int
    """How many parts have a simultaneous interval that excludes zero, or came or went."""
    coverage: float | None
    residual_ns: int | None
    detectable: float | None
    """Smallest change of a part that is named, as a share of the step."""
    wanted_line: str
    """As it was when this was measured."""
    seconds: float
    date: str
    right: Right | None = field(default=None)
    """`None` for unchanged code."""


def score(found: Comparison) -> Comparison:
    """The same with whether its first cause is right; without causes it is wrong."""
    plant = PLANTS.get(found.task.plant)
    if plant is None:
        return replace(found, right=None)
    if not found.causes:
        return replace(found, right=Right(False, False, False if found.wanted_line else None))
    first = found.causes[0]
    line = None if not found.wanted_line else first.line.endswith(found.wanted_line)
    # A part that a container's modules all have is named as one place, more closely than the container.
    module = any(first.module == each or first.module.startswith(f"{each}.*.") for each in plant.modules)
    return replace(found, right=Right(right_name(plant, first, found.wanted_line), module, line))


def right_name(plant: Plant, cause: Named, wanted_line: str) -> bool:
    """Whether this says what it was; time of Python is called by its function, in the name or in the line."""
    if not plant.python:
        return plant.explains(cause.name)
    function = wanted_line.rpartition(": ")[2]
    return cause.kind == "idle" and (plant.explains(cause.name) or cause.line.rpartition(": ")[2] == function)


def read(path: Path) -> list[Comparison]:
    """Comparisons kept so far, scored anew: answers may have been added since."""
    return [score(_from_json(data)) for data in kept.read(path)]


def latest(found: Sequence[Comparison]) -> list[Comparison]:
    """The last one of each task: one with more rounds comes after those with fewer."""
    return list({each.task: each for each in found}.values())


def keep(path: Path, found: Comparison) -> None:
    """Append one comparison."""
    kept.keep(path, asdict(found))


def write(path: Path, found: Sequence[Comparison]) -> None:
    """Keep these in place of all others."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    for each in found:
        keep(unfinished, each)
    unfinished.replace(path)


def _from_json(data: dict[str, Any]) -> Comparison:
    changes = {name: data[name] and _change(data[name]) for name in ("timed", "profiled")}
    more = {
        "task": Task(**data["task"]),
        "causes": tuple(Named(**cause) for cause in data["causes"]),
        "right": data["right"] and Right(**data["right"]),
    }
    return Comparison(**{**data, **changes, **more})


def _change(data: Mapping[str, Any]) -> Change:
    ends = data["ci95"]
    return Change(data["base_ns"], data["new_ns"], data["effect"], ends and (ends[0], ends[1]))
