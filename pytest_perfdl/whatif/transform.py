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

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

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
"""Those that are known, by name."""

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


def find(name: str) -> Transform:
    """A transform by name, those that come with the package included.

    Raises
    ------
    ValueError
        If there is none of that name; the message lists them.
    """
    # Not at the top: they import this.
    importlib.import_module("pytest_perfdl.whatif.transforms")

    if name not in TRANSFORMS:
        raise ValueError(f"there is no optimization {name!r}; known optimizations: {', '.join(sorted(TRANSFORMS))}")
    return TRANSFORMS[name]


def parameters(name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parameters of a transform as the command line has them; rates and sizes with units, such as 25GB.

    Raises
    ------
    ValueError
        If it has no such parameter, one without a default is not given, or a text is not of its type.
    """
    function = find(name)
    signature = list(inspect.signature(function).parameters.values())[1:]
    names = [each.name for each in signature]
    hints = get_type_hints(function)
    for given in texts:
        if given not in names:
            known = f"known parameters: {', '.join(names)}" if names else f"{name} has no parameters"
            raise ValueError(f"{name} has no parameter {given!r}; {known}")
    for each in signature:
        if each.default is each.empty and each.name not in texts:
            raise ValueError(f"{name} needs a parameter: write {name}:{each.name}=...")
    return {given: _value(name, given, text, str(hints[given])) for given, text in texts.items()}


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


def _value(name: str, given: str, text: str, hint: str) -> Any:
    try:
        if "bool" in hint:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if "float" in hint:
            return quantity(text)
        return int(text) if "int" in hint else text
    except (ValueError, KeyError):
        kind = "yes or no" if "bool" in hint else "a number" if "float" in hint else "a whole number"
        raise ValueError(f"{name}:{given}={text}: expected {kind}") from None
