"""What is said about what a step would take: on the terminal, as JSON, as a Chrome trace of both timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_perfdl.whatif.advice import Advice, Note
    from pytest_perfdl.whatif.model import TaskGraph
    from pytest_perfdl.whatif.predict import Base, Prediction
    from pytest_perfdl.whatif.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a mean step computes, by the operators that have a cost model."""

    flops: float
    least_ns: float | None = None
    """Time of it at the machine's peaks, by element type; `None` where they are not known."""

    def figures(self, step_ns: float) -> dict[str, float]:
        """Utilization of a step that does it in some time, by name of metric: FLOP/s, and a share from 0 to 1."""
        if step_ns <= 0:
            return {}
        found = {"achieved_flops": self.flops / step_ns * 1e9}
        return found if self.least_ns is None else {**found, "flops_utilization": self.least_ns / step_ns}


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that was found out by simulating one trace."""

    source: str
    graph: TaskGraph
    base: Base
    predictions: Sequence[Prediction] = ()
    """What was asked; nothing where only advice is wanted, as in `perfdl trace`."""
    advice: Sequence[Advice] = ()
    notes: Sequence[Note] = ()
    strategies: Sequence[Strategy] = ()
    devices: int = 0
    """Number of devices that the strategies are for; 0 if none were asked for."""
    arithmetic: Arithmetic | None = None
    """Of the step as it was traced; `None` of several ranks, and without operators that have a cost model."""
