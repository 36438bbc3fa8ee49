"""Figures of curves as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_perfdl.model.units import format_quantity

if TYPE_CHECKING:
    from pytest_perfdl.scaling.growth import IntervalEstimate


def figure(value: float, unit: str, *, signed: bool = False) -> str:
    """A time, or a bare number ("1") with two decimals.

    A time per unit of size is often less than a nanosecond, which times of steps never are.

    >>> figure(0.0421, "ns"), figure(7145.2, "ns"), figure(1.9, "1", signed=True)
    ('0.0421 ns', '7.145 µs', '+1.90')
    """
    sign = "+" if signed else ""
    if unit == "1":
        return f"{value:{sign}.2f}"
    return f"{value:{sign}.3g} ns" if abs(value) < 10 else format_quantity(value, unit, signed=signed)


def estimate(found: IntervalEstimate, unit: str) -> str:
    """A figure with its interval, "7.145 µs [4.179 µs, 10.11 µs]"."""
    return f"{figure(found.value, unit)} [{figure(found.low, unit)}, {figure(found.high, unit)}]"
