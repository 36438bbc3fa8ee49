"""The measurement of one test in one environment.

A baseline file holds a `Record`, a run holds `Record`s, a comparison takes two. This module defines their parts,
`record_json` their JSON form; both import nothing heavy, so the orchestrating process needs neither numpy nor torch.

Units: every duration is an integer number of nanoseconds, every size a number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

Kind = Literal["timed", "counted"]
Better = Literal["lower", "higher"]
RowKind = Literal["operator", "kernel", "idle"]
Scalar = str | int | float | bool | None
LoopCount = int | Literal["auto"]
"""Calls of the function in one measured step, or `auto` for as many as make it long enough."""


@dataclass(frozen=True, slots=True)
class Key:
    """What decides whether timed metrics may be compared: the hardware that matters.

    `slug` names the baseline folder; `parts` are the facts it was made from.
    """

    slug: str
    parts: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """How a test was measured. A change of plan makes a baseline outdated."""

    warmup: int
    """Least number of warm-up steps before anything counts."""
    steps: int
    """Timed steps per repeat."""
    period: int = 1
    """Steps that make a cycle (gradient accumulation)."""
    profiled: int = 4
    """Steps seen by the profiler; a multiple of `period`."""
    threads: int = 1
    """Intra-op threads of the worker."""
    seed: int = 0
    loops: Mapping[str, int] = field(default_factory=dict)
    """Calls of the function in one timed step, by name of the `perf(...)` call; 1 for those that are not named.

    Also 1 where `loops="auto"` found that one call is long enough: later runs then need not decide again.
    """

    @property
    def shape(self) -> dict[str, str | int]:
        """Every part as text or a number: two plans measure alike where these are equal.

        >>> MeasurementPlan(15, 40, loops={"": 64, "backward": 1}).shape["loops"]
        '64'
        """
        looped = {name: number for name, number in sorted(self.loops.items()) if number != 1}
        loops = ", ".join(f"{name} {number}".strip() for name, number in looped.items())
        parts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "loops"}
        return {**parts, "loops": loops or "1"}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one call: a value per repeat, in the order of the record's repeats.

    Timed values are nanoseconds (unit "ns") and one number per process: the repeat, not the step, is the
    statistical unit. Counted values are means per step, exact because the profiled steps are whole periods.
    """

    kind: Kind
    unit: str
    better: Better
    values: tuple[float, ...]

    @property
    def stable(self) -> bool:
        """Whether every repeat agrees; only then can a counted metric be compared exactly."""
        return all(value == self.values[0] for value in self.values)


@dataclass(frozen=True, slots=True)
class Row:
    """An operator (self time), a kernel (duration) or a class of idle time: what a step's time is made of.

    `count` is occurrences per step; `ns` the mean time per profiled step, one value per repeat. The rows of
    one call add up to its profiled step (CPU-only), so differences of rows close an account.
    """

    kind: RowKind
    name: str
    count: float
    ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What one `perf(...)` call of a test measured; `name` is empty unless the author gave one."""

    name: str
    series: Mapping[str, Series]
    rows: tuple[Row, ...]
    profiled_ns: tuple[int, ...]
    """Mean duration of a profiled step, one value per repeat."""
    op_counts: tuple[int, ...] = ()
    """Operators in each profiled step, in order: more than one value means that steps differ."""
    uncounted: tuple[str, ...] = ()
    """Operators that do arithmetic the FLOP counter does not know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the measurement noticed about itself. `invalid` breaks it, `note` explains it."""

    level: Literal["invalid", "note"]
    code: str
    message: str


SHORT_STEP = "short-step"
"""Code of the note on a step that is too short to be timed well."""
INJECTED = "injected"
"""Code of the finding that every measurement carries whose steps were slowed down on purpose."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When and on what code a group of repeats was measured."""

    repeats: int
    date: str
    commit: str | None
    """Commit checked out while measuring (full hash), `None` outside git."""
    tree: str | None
    """Hash of the working tree without the baseline folder, as baselines had before `code` was stored; else `None`."""
    reference_ns: tuple[int, ...] = ()
    """What the reference load took around each repeat: how fast the machine was. Empty where it was not timed."""
    seconds: float | None = None
    """What one repeat took on average, its worker's start included; `None` where that was not noted."""


SHORT_HASH = 12
"""Digits of a content's hash that a record keeps, as git abbreviates it in a large repository."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code that was measured: what the test loaded and read, by content."""

    files: Mapping[str, str]
    """Files of the repository: path from its top -> first 12 digits of the content's git hash, of a submodule its
    commit's."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed distributions that the test loaded: name -> version."""
    ignored: tuple[str, ...] = ()
    """Files in the repository that it loaded or read although git ignores them; no commit has them."""
    left_out: int = 0
    """Further files that are not noted: too many, too large, or with a name that is no text."""

    @property
    def is_whole(self) -> bool:
        """Whether equal files mean that everything of the repository is equal that the test was seen to use."""
        return bool(self.files) and not self.ignored and not self.left_out


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that one test measured in one environment."""

    test: str
    """Node id."""
    key: Key
    context: Mapping[str, Scalar]
    """Software versions, driver, clocks: shown when different, never a reason to refuse."""
    test_hash: str
    plan: MeasurementPlan
    calls: tuple[Call, ...]
    occasions: tuple[Occasion, ...]
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of the machine's state seen in the repeats, such as the page-fault mode."""
    integrity: tuple[Finding, ...] = ()
    exemplars: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the exemplar traces that were saved with it, by call; empty where that was not noted."""
    code: Code | None = None
    """What was measured on the last occasion; `None` where it is tied to no code."""

    @property
    def repeats(self) -> int:
        """Number of measured processes."""
        return sum(occasion.repeats for occasion in self.occasions)

    @property
    def reference_ns(self) -> tuple[int | None, ...]:
        """What the reference load took around each repeat, `None` where it was not timed."""
        return tuple(ns for occasion in self.occasions for ns in occasion.reference_ns or (None,) * occasion.repeats)

    def metrics(self) -> dict[str, Series]:
        """Every metric under its full name: `step_time`, or `forward.step_time` for a named call."""
        return {metric_name(call.name, name): series for call in self.calls for name, series in call.series.items()}


def metric_name(call: str, name: str) -> str:
    """A metric's full name: that of a named call has the call's name in front."""
    return f"{call}.{name}" if call else name


def row_name(call: str, kind: RowKind, name: str) -> str:
    """A row's full name among all of a test's.

    >>> row_name("forward", "operator", "aten::mm"), row_name("", "kernel", "gemm")
    ('forward.operator aten::mm', 'kernel gemm')
    """
    return metric_name(call, f"{kind} {name}")
