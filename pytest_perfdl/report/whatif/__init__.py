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
