"""The sides of a comparison, and what changed between them, part by part."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_perfdl.analysis.account.accounts import COPIES
from pytest_perfdl.machine.utilization import Utilization
from pytest_perfdl.model.metrics import STEP_TIMES
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.results.verdict import OperatorSides, WorkChange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.diff.account import Amount, Effects
    from pytest_perfdl.diff.matching.stages import Group
    from pytest_perfdl.model.record import Call
    from pytest_perfdl.model.step_part import PartKind
    from pytest_perfdl.results.verdict import Bound, StepBreakdown

    Floats = NDArray[np.float64]


# One of two sides of a diff: the parts of its steps, a column for each run.


Unit = Literal["run", "step"]
COMMUNICATION = ("exposed communication", "communication")
"""Classes of a step, on a device and on a host, in which it only communicates."""
"""What varies independently, as far as it is known: processes, else the steps of the only one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the traces of a side are like, where that decides whether two sides can be compared."""

    on_device: bool
    """Whether they have device events: else a step is its time on the host."""
    has_steps: bool
    """Whether they have step annotations: else the step is the whole trace."""
    devices: tuple[str, ...]
    """Names of the devices that ran something, of one trace."""
    doubts: tuple[str, ...] = ()
    """What is wrong with them, one line each."""
    damaged: bool = False
    """Whether damage has left no run with the steps that a comparison needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Means per step, one column for each run or, where there is one run only, for each step; nanoseconds."""

    label: str
    unit: Unit
    parts: tuple[Part, ...]
    """In the order in which they first occur."""
    classes: tuple[str, ...]
    """The class of each part in the step's account."""
    step_ns: Floats
    """Shape (columns,)."""
    ns: Floats
    """Time of the step that belongs to each part, shape (parts, columns); columns add up to `step_ns`."""
    busy_ns: Floats
    """Time of each part itself, hidden or not."""
    count: Floats
    """Occurrences of each part in a step."""
    timed: Mapping[str, Floats] = field(default_factory=dict)
    """Those of `STEP_TIMES` that were measured without the profiler, one time of each process, all positive."""
    origin: Origin | None = None
    """What its traces are like; `None` for what was recorded."""
    recorded: bool = False
    """Whether its parts are the rows of a record: names alone, measured at another time than the other side."""
    empty: bool = False
    """Whether it has no step at all: then its one column is zero, so that there are means."""

    @property
    def own_ns(self) -> float:
        """Mean step without the communication that nothing hides, in which a rank may only wait for another one."""
        waits = [name in COMMUNICATION for name in self.classes]
        return float((self.step_ns - self.ns[waits].sum(axis=0)).mean())

    @property
    def columns(self) -> int:
        """How many runs or steps."""
        return 0 if self.empty else len(self.step_ns)


def side_of_traces(label: str, runs: Sequence[StepParts]) -> Side:
    """The runs of one side, each the parts of one trace's steps.

    Raises
    ------
    ValueError
        When a trace has no step, or some have device events and others have none: their steps mean other things.
    """
    if not runs or any(len(run.step_ns) == 0 for run in runs):
        raise ValueError(f"{label} has no step")
    if len({run.on_device for run in runs}) > 1:
        raise ValueError(f"{label}: some traces have device events and others have none")
    index: dict[tuple[Part, str], int] = {}
    for run in runs:
        for part, name in zip(run.parts, run.classes, strict=True):
            index.setdefault((part, name), len(index))
    single = len(runs) == 1
    columns = len(runs[0].step_ns) if single else len(runs)
    matrices = [np.zeros((len(index), columns)) for _ in range(3)]
    for column, run in enumerate(runs):
        rows = [index[part, name] for part, name in zip(run.parts, run.classes, strict=True)]
        for matrix, values in zip(matrices, (run.ns, run.busy_ns, run.count), strict=True):
            # Added, not set: a trace may tell one part in two ways that read alike.
            if single:
                np.add.at(matrix, rows, values)
            else:
                np.add.at(matrix, (rows, column), values.mean(axis=1))
    steps = runs[0].step_ns.astype(np.float64) if single else np.array([run.step_ns.mean() for run in runs])
    return Side(
        label=label,
        unit="step" if single else "run",
        parts=tuple(part for part, _ in index),
        classes=tuple(name for _, name in index),
        step_ns=steps,
        ns=matrices[0],
        busy_ns=matrices[1],
        count=matrices[2],
    )


def without_figures(side: Side) -> Side:
    """The side without its figures, which cannot be compared."""
    none = np.zeros((0, len(side.step_ns)))
    return replace(side, parts=(), classes=(), step_ns=np.zeros_like(side.step_ns), ns=none, busy_ns=none, count=none)


def damaged_side(label: str, origin: Origin) -> Side:
    """A side of which damage has left nothing to compare."""
    none = np.zeros((0, 1))
    return Side(label, "step", (), (), np.zeros(1), none, none, none, origin=origin, empty=True)


def side_of_call(label: str, call: Call) -> Side:
    """A recorded call of a perf test: operators, kernels and idle time by name alone, one column for each repeat."""
    timed = {name: np.array(call.series[name].values) for name in STEP_TIMES if name in call.series}
    side = _of_rows(
        label,
        [(Part(row.kind, row.name), row.count, row.ns) for row in call.rows],
        call.profiled_ns,
        on_device=any(row.kind == "kernel" for row in call.rows),
    )
    return replace(side, timed={name: values for name, values in timed.items() if values.min() > 0}, recorded=True)


def side_of_breakdown(label: str, step: StepBreakdown, which: Literal["base", "new"]) -> Side:
    """One side of a breakdown that a run has: a column for each paired round, or one where the rounds are not kept."""
    rounds, step_ns = (step.base_rounds, step.base_ns) if which == "base" else (step.new_rounds, step.new_ns)
    rows = []
    for row in step.rows:
        mean, times, count = (
            (row.base_ns, row.base_rounds, row.base_count)
            if which == "base"
            else (row.new_ns, row.new_rounds, row.new_count)
        )
        if mean is not None:
            kept = times if rounds and len(times) == len(rounds) else [mean] * (len(rounds) or 1)
            rows.append((Part(row.kind, row.name), count or 0.0, kept))
    on_device = any(row.kind == "kernel" for row in step.rows)
    return _of_rows(label, rows, rounds or [step_ns], on_device=on_device, rounded=True)


def _of_rows(
    label: str,
    rows: Sequence[tuple[Part, float, Sequence[int]]],
    steps: Sequence[int],
    *,
    on_device: bool,
    rounded: bool = False,
) -> Side:
    """A side of parts with their count and their time in each column.

    On a device operators and kernels overlap: there only kernels and idle time are parts, and what the device's
    account does not say of them is a part of its own, "overlapped", so that columns still add up. Times that are
    `rounded` means add up but for a nanosecond each.
    """
    rows = [row for row in rows if not on_device or row[0].kind != "operator"]
    parts, counts = [part for part, _, _ in rows], [count for _, count, _ in rows]
    classes = [_class(part) for part in parts]
    step_ns = np.array(steps, dtype=np.float64)
    ns = np.array([times for *_, times in rows], dtype=np.float64).reshape(len(rows), len(step_ns))
    rest = step_ns - ns.sum(axis=0)
    if np.any(np.abs(rest) > (len(rows) if rounded else 0)):
        parts.append(Part("idle", "overlapped"))
        classes.append("overlapped")
        counts.append(0.0)
        ns = np.vstack((ns, rest))
    return Side(
        label=label,
        unit="run",
        parts=tuple(parts),
        classes=tuple(classes),
        step_ns=ns.sum(axis=0) if len(ns) else step_ns,
        ns=ns,
        busy_ns=ns,
        count=np.repeat(np.array(counts, dtype=np.float64)[:, np.newaxis], len(step_ns), axis=1),
    )


def _class(part: Part) -> str:
    if part.kind == "idle":
        return part.name
    if part.kind == "kernel":
        return "compute"
    return "copies" if part.name in COPIES else "operators"


# What a diff finds: changes of matched parts, causes that they add up to, and what a simulation says of these.


Status = Literal["new", "gone", "changed", "replaced", "fused", "split"]
EXCHANGED: frozenset[Status] = frozenset({"replaced", "fused", "split"})
"""Of these the counts of both sides are of different things."""
Key = tuple["PartKind", str, Status]
"""Kind of part, name, and what became of it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one group of matched parts did; a side without parts is new or gone. Nanoseconds per step."""

    group: Group
    base_parts: tuple[Part, ...]
    """What takes most time first."""
    new_parts: tuple[Part, ...]
    name_class: str
    """Class of the account."""
    base: Amount
    new: Amount
    base_ns: int
    new_ns: int
    """As `base.ns` and `new.ns`, rounded so that they add up."""
    effects: Effects
    drift_ns: float
    """How much of the change is the common factor's."""
    interval: tuple[float, float] | None
    """Simultaneous interval of the change; `None` where it was not tested or a side has one column only."""

    @property
    def delta_ns(self) -> int:
        """What the step gained."""
        return self.new_ns - self.base_ns

    @property
    def own_ns(self) -> float:
        """What it gained beyond the machine's drift."""
        return self.delta_ns - self.drift_ns

    @property
    def certain(self) -> bool:
        """Whether the interval excludes zero; what came or went needs none."""
        if self.interval is None:
            return bool(self.base.count) != bool(self.new.count)
        return excludes_zero(self.interval)

    @property
    def kind(self) -> PartKind:
        """Kernel, operator or idle time."""
        return (self.new_parts or self.base_parts)[0].kind


@dataclass(frozen=True, slots=True)
class DiffCause:
    """All changes of one name. Nanoseconds per step."""

    kind: PartKind
    name: str
    status: Status
    module: str
    """The innermost module that holds most of the change; empty where no module does, or none is known."""
    line: str
    """The user's line that holds most of it; the same."""
    graph: str
    """The node of a CUDA graph that holds most of it, "graph 3, node 17", or the graph whose nodes do, "graph 3"."""
    base: Amount
    new: Amount
    delta_ns: int
    own_ns: float
    """Without the machine's drift: what causes are ordered by."""
    effects: Effects
    certain: bool
    """Whether the interval of their sum or of any of its changes excludes zero, or the work is of another shape."""
    confidence: float
    """Of the matching it rests on: the least of its changes that matter."""
    changes: tuple[Change, ...]
    bound: Bound = ""
    """Whether launches or kernels bound the region that it is in; see `causes.Regions.bound`."""

    @property
    def base_ns(self) -> int:
        """As `base.ns`, rounded so that all causes add up."""
        return sum(change.base_ns for change in self.changes)

    @property
    def new_ns(self) -> int:
        """As `new.ns`, in the same way."""
        return sum(change.new_ns for change in self.changes)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all parts that it is made of, those of the largest change first; empty where that is its own."""
        parts = (part for change in self.changes for part in (*change.base_parts, *change.new_parts))
        names = tuple(dict.fromkeys(part.name for part in parts))
        return names if names != (self.name,) else ()

    @property
    def effects_ns(self) -> dict[str, int]:
        """The effects by their names, rounded."""
        return {name: round(ns) for name, ns in asdict(self.effects).items()}


@dataclass(frozen=True, slots=True)
class Share:
    """What one cause costs the step, though other work may hide some of it."""

    cause: DiffCause
    """`base.ns` and `new.ns` are all of its work, hidden or not; nanoseconds per step."""
    share_ns: int
    """Of the step's change (`shapley`)."""
    without_ns: int
    """The step, had this alone not changed."""
    latent: bool
    """It takes longer for certain, and the step does not: other work hides it."""
    slack_ns: int | None = None
    """Of what is latent: how much longer it can take before the step pays for a tenth of that; `None` for more than
    a step."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The step's change shared out: `shares`, `others_ns` and `beyond_ns` add up to it."""

    shares: tuple[Share, ...] = ()
    """The largest first."""
    others_ns: int = 0
    """Of all work whose change is not named."""
    beyond_ns: int = 0
    """What other durations of the same tasks do not explain: another order, lags of launches, other runs."""
    exact: bool = True
    """Whether shares are over all orders, not some."""
    refused: str = ""
    """Why nothing is simulated; then the account's shares are all there is."""

    @property
    def latent(self) -> tuple[Share, ...]:
        """What is slower at no cost yet."""
        return tuple(share for share in self.shares if share.latent)


def excludes_zero(interval: tuple[float, float] | None) -> bool:
    """Whether a change is certain by its interval; without one it is not."""
    return interval is not None and not interval[0] <= 0 <= interval[1]


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How well the steps of both sides use the machine."""

    base: Utilization
    new: Utilization
    work: WorkChange | None
    """Whether the slower step does more work, or the same work worse; `None` where it is not slower."""
    operators: tuple[OperatorSides, ...]
