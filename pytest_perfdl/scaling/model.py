"""What every model of time as a function of size is: a form that is fitted, and the curve that comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pytest_perfdl.scaling.points import F64, Points

CONSTANT = "constant"
"""Name of the constant that is the time which does not scale with anything."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted number; in nanoseconds (`unit` "ns") or a bare number ("1")."""

    name: str
    value: float
    unit: str


class Curve(Protocol):
    """A fitted function from factors to nanoseconds."""

    def constants(self) -> tuple[Constant, ...]:
        """The fitted numbers: the same names in the same order for every curve of one form."""
        ...

    def times(self, columns: Mapping[str, F64]) -> F64:
        """Times in nanoseconds, one per row of the columns."""
        ...


C = TypeVar("C", bound=Curve)


class Form(Protocol[C]):
    """A family of curves."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def fit(self, points: Points) -> C:
        """The curve nearest to the points.

        Raises
        ------
        ScalingError
            The points do not determine one.
        """
        ...

    def refit(self, curve: C, points: Points) -> C:
        """The curve nearest to most of the points that `curve` was fitted to; it may start from there."""
        ...
