"""The events of a file as typed structs, and their times as exact integer nanoseconds."""

from __future__ import annotations

from decimal import Decimal
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_perfdl.trace.model import I64

Number: TypeAlias = int | float | str | None

EXACT_BELOW_US = 2**43
"""Microseconds with three decimals are told apart by float64 below this: its spacing is under 0.001 there."""

LONGEST_NS = 2**55
"""Nanoseconds that an event may last, a year: sums over hundreds of them stay 64-bit integers."""
_MAX_EXPONENT = 18
"""Decimal digits, less one, beyond which microseconds cannot be nanoseconds of 64 bits."""


class RawEvent(msgspec.Struct, gc=False):
    """One entry of traceEvents; unknown keys are skipped and args stay JSON text."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: Number = None
    dur: Number = None
    pid: Number = 0
    tid: Number = 0
    args: msgspec.Raw = msgspec.Raw(b"")


class ExactEvent(msgspec.Struct, gc=False):
    """As `RawEvent`, with times as JSON text: for files whose times float64 cannot hold."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    pid: Number = 0
    tid: Number = 0
    args: msgspec.Raw = msgspec.Raw(b"")

    def convert(self) -> RawEvent:
        """The same event with its times as text, which `nanoseconds` reads exactly."""
        return RawEvent(self.name, self.ph, self.cat, _text(self.ts), _text(self.dur), self.pid, self.tid, self.args)


def needs_exact_times(events: list[RawEvent]) -> bool:
    """Whether a fractional time is so large that float64 has lost digits.

    So it was between torch's nanosecond timestamps (2024-03) and `baseTimeNanoseconds` (2024-05): microseconds
    since 1970 with three decimals.
    """
    fractional = [event.ts for event in events if type(event.ts) is float]
    return bool(fractional) and max(fractional) >= EXACT_BELOW_US


def nanoseconds(values: list[Number]) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Microseconds as the file has them to integer nanoseconds, and which of them are usable.

    Whole numbers are exact at any size, fractions up to `EXACT_BELOW_US`, text (decimal digits) at any size.
    Unusable values (absent, not finite, not a number) yield 0 and False.
    """
    kinds = set(map(type, values))
    if kinds <= {int}:
        try:
            micros = np.array(values, dtype=np.int64)
        except OverflowError:
            return _one_by_one(values)
        if len(micros) == 0 or np.abs(micros).max() < 2**53:
            return micros * 1000, np.ones(len(values), dtype=bool)
        return _one_by_one(values)
    if kinds <= {int, float}:
        try:
            floats = np.array(values, dtype=np.float64)
        except OverflowError:
            return _one_by_one(values)
        if np.isfinite(floats).all() and np.abs(floats).max() < EXACT_BELOW_US:
            # Multiplying the whole number would round twice, and be 1 ns off for one time in hundreds.
            whole = np.floor(floats)
            nanos = whole.astype(np.int64) * 1000 + np.rint((floats - whole) * 1000).astype(np.int64)
            return nanos, np.ones(len(values), dtype=bool)
    return _one_by_one(values)


def _one_by_one(values: list[Number]) -> tuple[I64, npt.NDArray[np.bool_]]:
    found = [_exact(value) for value in values]
    usable = np.array([value is not None for value in found], dtype=bool)
    return np.array([value or 0 for value in found], dtype=np.int64), usable


def _exact(value: Number) -> int | None:
    if value is None:
        return None
    try:
        micros = Decimal(repr(value) if isinstance(value, float) else value)
        # Looked at before it is multiplied and rounded: a text of ten characters may have a billion digits.
        if not micros.is_finite() or micros.adjusted() > _MAX_EXPONENT:
            return None
        nanos = round(micros * 1000)
    except (ArithmeticError, ValueError):
        return None
    return nanos if abs(nanos) < 2**62 else None


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode("ascii", "replace").strip('"')
    return None if text == "null" else text
