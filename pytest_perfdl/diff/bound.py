"""Launch-bound or kernel-bound: what a region of a step on a device would have to do less of to be faster.

A *region* is what one side's step spends in some modules: K, the time of kernels, copies and memsets launched there
that nothing hides, and the idle time of the device that ends with one of them, by class. F is the idle time of the
classes `FED_LATE`. It is all of the time in which nothing ran on any device *and nothing was queued*: the launch that
ended it came after it had begun ("device wait" is idle time with work queued), and until then the host neither waited
for data nor for the device ("input" and "synchronization" are the account's to tell). So F grows with every kernel
that finds an empty queue, and is 0 while the host is ahead.

    launch   F >= LAUNCH_SHARE * (F + K): faster kernels would wait longer for the next launch
    kernel   F is less: the device seldom waits for its host
    (empty)  F + K is less than `LEAST_TOLD` of the region's time, which waits for something else; or nothing of it
             is on a device

On a CPU-only step there are no launches: of its causes, Python's own time is bound by the *host*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.model.step_part import is_inside

if TYPE_CHECKING:
    from pytest_perfdl.diff.changes import DiffCause
    from pytest_perfdl.diff.side import Side
    from pytest_perfdl.results.verdict import Bound

FED_LATE = frozenset({"launch latency", "operator overhead", "Python and host"})
"""Classes of idle time in which the device had nothing queued and the host was on its way to the next launch."""
LAUNCH_SHARE = 0.2
"""A host that is ahead leaves the device idle at a step's edges and after copies to the host: well below this."""
LEAST_TOLD = 0.5


@dataclass(frozen=True, slots=True)
class _Spent:
    """Nanoseconds per step."""

    late: float = 0.0
    """F."""
    kernels: float = 0.0
    """K."""
    whole: float = 0.0

    def __add__(self, other: _Spent) -> _Spent:
        return _Spent(self.late + other.late, self.kernels + other.kernels, self.whole + other.whole)


@dataclass(frozen=True, slots=True)
class Regions:
    """The time of one side's step by module."""

    on_device: bool
    by_module: Mapping[str, _Spent]

    def inside(self, module: str) -> list[str]:
        """A module and those in it; all of them for an empty name."""
        return [name for name in self.by_module if is_inside(name, module)]

    def launch_share(self, modules: Iterable[str] | None = None) -> float | None:
        """F / (F + K) of some modules, by default of the whole step; `None` without either."""
        spent = self._spent(modules)
        total = spent.late + spent.kernels
        return spent.late / total if self.on_device and total > 0 else None

    def bound(self, modules: Iterable[str] | None = None) -> Bound:
        """What bounds some modules, by default the whole step."""
        spent = self._spent(modules)
        total = spent.late + spent.kernels
        if not self.on_device or total <= 0 or total < LEAST_TOLD * spent.whole:
            return ""
        return "launch" if spent.late >= LAUNCH_SHARE * total else "kernel"

    def _spent(self, modules: Iterable[str] | None) -> _Spent:
        names = self.by_module if modules is None else modules
        return sum((self.by_module.get(name, _Spent()) for name in names), _Spent())


def regions(side: Side) -> Regions:
    """Means over a side's runs or steps."""
    by_module: dict[str, _Spent] = {}
    for part, name, ns in zip(side.parts, side.classes, side.ns.mean(axis=1).tolist(), strict=True):
        late = ns if part.kind == "idle" and name in FED_LATE else 0.0
        kernels = ns if part.kind == "kernel" else 0.0
        by_module[part.module] = by_module.get(part.module, _Spent()) + _Spent(late, kernels, ns)
    return Regions(any(part.kind == "kernel" for part in side.parts), by_module)


def of_cause(cause: DiffCause, base: Regions, new: Regions) -> Bound:
    """What bounds the region of a cause, on the new side or, for what is gone, on the base's.

    It is the cause's module with those inside it; without one the modules that its parts are in, and what is outside
    of all modules is a region too. Idle time of the device is its own region: launch-bound if it is of `FED_LATE`.
    """
    there = any(change.new_parts for change in cause.changes)
    side = new if there else base
    name_class = cause.changes[0].name_class
    if not side.on_device:
        return "host" if cause.kind == "idle" and name_class == "Python and host" else ""
    if cause.kind == "idle":
        return "launch" if name_class in FED_LATE else ""
    if cause.module:
        return side.bound(side.inside(cause.module))
    parts = (part for change in cause.changes for part in (change.new_parts if there else change.base_parts))
    return side.bound({part.module for part in parts})
