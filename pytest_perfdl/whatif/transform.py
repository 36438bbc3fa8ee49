"""Optimizations as functions from a graph to a plan, by name; users add their own.

    @transform("no_python")
    def no_python(context: Context) -> Change:
        \"\"\"What if the host spent no time between operators.\"\"\"
        return Change(Plan().scale(Select(kind=TaskKind.GAP), 0.0))

    predict(Context(graph), "no_python").gain

A transform says in its docstring what it computes, what it takes for granted and where that is from. Where a constant
that it needs is not known it raises `MissingConstant` instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_perfdl.machine.constants import Machine
from pytest_perfdl.model.errors import NotApplicable
from pytest_perfdl.model.units import parse_quantity
from pytest_perfdl.trace.model import Trace
from pytest_perfdl.whatif.editing.edit import Plan
from pytest_perfdl.whatif.lifetimes import Lifetimes, lifetimes
from pytest_perfdl.whatif.machine import machine_of
from pytest_perfdl.whatif.model import TaskGraph
from pytest_perfdl.whatif.named_functions import registering
from pytest_perfdl.whatif.simulation.quality import Trust


class NotRecorded(NotApplicable):
    """Whether there is something to change is not known; the message says what would tell."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a transform may look at."""

    graph: TaskGraph
    machine: Machine = field(default_factory=Machine)
    """Figures that take precedence over those that the trace tells."""

    @property
    def trace(self) -> Trace:
        """The trace of the graph.

        Raises
        ------
        NotApplicable
            If the graph was not made from one.
        """
        if self.graph.trace is None:
            raise NotRecorded("operators and modules are only known in a graph that was made from a trace")
        return self.graph.trace

    @property
    def known(self) -> Machine:
        """What is known of the machine: given, else told by the trace."""
        return self.machine if self.graph.trace is None else self.machine.or_else(machine_of(self.graph.trace))

    @property
    def memory(self) -> Lifetimes | None:
        """The allocations on the device that computes; `None` for a trace without memory events."""
        return None if self.graph.trace is None else lifetimes(self.graph.trace)


@dataclass(frozen=True, slots=True)
class Change:
    """What a transform does to a graph."""

    plan: Plan
    """The edits, with the likeliest constants."""
    fast: Plan | None = None
    """The same with constants at the favorable end of their range; `None` where no constant was taken."""
    slow: Plan | None = None
    peak_bytes: int | None = None
    """Peak of allocated memory afterwards, where it changes and the trace has memory events."""
    trust: Trust = "ok"
    """Of the transform itself, whatever the graph's is."""
    notes: tuple[str, ...] = ()
    """What was taken for granted about this graph, one line each."""

    @classmethod
    def of(
        cls, plans: Sequence[Plan], peak_bytes: int | None = None, trust: Trust = "ok", notes: tuple[str, ...] = ()
    ) -> Change:
        """A change from three plans: with the likeliest constants, the favorable ones, the unfavorable ones."""
        likely, fast, slow = plans
        return cls(likely, fast, slow, peak_bytes, trust, notes)


Transform = Callable[..., Change]
"""Takes a `Context` and parameters by name, of type int, float, str or bool."""

TRANSFORMS: dict[str, Transform] = {}
"""Those that are registered, by name. `whatif.transforms` has it with those that come with the package."""

OF_JOBS: set[str] = set()
"""Names of those that look at all ranks of a job at once; the others are asked of each rank for itself."""

Function = TypeVar("Function", bound=Transform)


def transform(name: str, *, of_job: bool = False) -> Callable[[Function], Function]:
    """Register a transform under a name, for `predict` and `perfdl whatif --apply`.

    Parameters
    ----------
    name
        The name.
    of_job
        Whether it is given the graph of a whole job where there are several ranks, and returns a change of that.

    Raises
    ------
    ValueError
        If the name is taken by another function.
    """
    if of_job:
        OF_JOBS.add(name)
    return registering(TRANSFORMS, name, "a transform")


def quantity(text: str) -> float:
    """A number, or a size such as 25GB in bytes.

    Raises
    ------
    ValueError
        If it is neither.
    """
    try:
        return float(text)
    except ValueError:
        return parse_quantity(text, "B")
