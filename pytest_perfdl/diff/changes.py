"""What a diff finds: changes of matched parts, causes that they add up to, and what a simulation says of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_perfdl.diff.effects import Amount, Effects
    from pytest_perfdl.diff.matching.groups import Group
    from pytest_perfdl.machine.utilization import Utilization
    from pytest_perfdl.model.step_part import Part, PartKind
    from pytest_perfdl.results.verdict import Bound, OperatorSides, WorkChange

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
    """Whether launches or kernels bound the region that it is in; see `bound`."""

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
