"""A metric's numbers for other programs: in base units, under names that any of them takes.

Dashboards and JUnit properties share these names and units: seconds, bytes and ratios (0.1 is 10 %), with
the unit as the last word of the name.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_perfdl.model.units import SIZES, TIMES

if TYPE_CHECKING:
    from pytest_perfdl.results.verdict import MetricVerdict

_LONGEST = 60
"""Characters of a name that are kept before its digest."""
_LIKE_A_DIGEST = re.compile(r"_[0-9a-f]{6}\Z")
"""What a name must not end with that has no digest, or it could be that of another text."""
_WORDS = {"": "", "1": "", "flop": "flops"}
"""Units with another word, or none."""


@dataclass(frozen=True, slots=True)
class BaseUnit:
    """The unit in which other programs get a value."""

    word: str
    """Letters, digits and underscores ("seconds", "items_per_second"); empty for a plain number."""
    factor: float = 1
    divisor: float = 1

    def convert(self, value: float) -> float:
        """A value of the metric's own unit in this one."""
        return value * self.factor / self.divisor


def base_unit(unit: str) -> BaseUnit:
    """The base unit for a metric's own unit.

    >>> base_unit("ns").convert(30_300_000), base_unit("ns").word
    (0.0303, 'seconds')
    >>> base_unit("tokens/s").word, base_unit("1").word, base_unit("%").convert(12.5)
    ('tokens_per_second', '', 0.125)
    """
    if unit in TIMES:
        return BaseUnit("seconds", TIMES[unit], TIMES["s"])
    if unit in SIZES:
        return BaseUnit("bytes", SIZES[unit])
    if unit == "%":
        return BaseUnit("ratio", divisor=100)
    amount, per, time = unit.partition("/")
    if unit == "B/s":
        amount = "bytes"
    words = [_WORDS.get(amount, amount), *(("per", "second" if time == "s" else time) if per else ())]
    return BaseUnit("_".join(filter(None, (_plain(word) for word in words))))


def with_unit(name: str, unit: BaseUnit) -> str:
    """A name that ends with its unit, without saying a word twice.

    >>> with_unit("step_time", base_unit("ns")), with_unit("alloc_bytes", base_unit("B"))
    ('step_time_seconds', 'alloc_bytes')
    """
    first, _, rest = unit.word.partition("_")
    words = rest if first and name.rpartition("_")[2] == first else unit.word
    return "_".join(filter(None, (name, words)))


def safe_name(text: str, *, of: str | None = None) -> str:
    """A name of ASCII letters, digits and underscores, distinct for distinct texts, and always the same for one text.

    Parameters
    ----------
    text
        Kept where it is such a name; else with underscores for other characters and a digest behind it.
    of
        The text that the digest is of, where `text` is only the readable part of it; there is then always one.

    >>> safe_name("step_time"), safe_name("loss (nats)")
    ('step_time', 'loss_nats_4ff239')
    """
    plain = _plain(text)
    if of is None and plain == text and 0 < len(text) <= _LONGEST and not _LIKE_A_DIGEST.search(text):
        return text
    digest = hashlib.sha256((text if of is None else of).encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return "_".join(filter(None, (plain[:_LONGEST], digest)))


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") if not re.fullmatch(r"[A-Za-z0-9_]*", text) else text


def numbers(metric: MetricVerdict) -> dict[str, float]:
    """What is known of a metric: `baseline` and `current` with the unit's word, and the change with its interval.

    >>> from pytest_perfdl.results.verdict import MetricVerdict
    >>> numbers(MetricVerdict("step_time", "timed", "ns", "lower", 2e6, 3e6, 0.5, (0.4, 0.6)))["current_seconds"]
    0.003

    Returns
    -------
    dict
        `baseline_seconds` and `current_seconds` (or `_bytes`, ...), `change_ratio`, and the ends of the change's 95 %
        interval, `change_ci95_low_ratio` and `change_ci95_high_ratio`; without what is not known.
    """
    unit = base_unit(metric.unit)
    low, high = metric.ci95 or (None, None)
    values = {
        with_unit("baseline", unit): None if metric.base is None else unit.convert(metric.base),
        with_unit("current", unit): None if metric.new is None else unit.convert(metric.new),
        "change_ratio": metric.effect,
        "change_ci95_low_ratio": low,
        "change_ci95_high_ratio": high,
    }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
