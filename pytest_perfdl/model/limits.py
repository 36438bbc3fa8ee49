"""What a project requires of a metric: its largest change for the worse, and its absolute bound.

A *limit* is relative to the baseline, a *budget* is absolute, an expectation is of two alternatives. All are written as
text (marker, command line, ini, run file), parsed once, and kept as frozen values; `str` gives their text again. The
unit of a custom metric is known only after the measurement, so absolute parts remain text here and are converted later.

    3%          worse by more than 3 % of the baseline
    5%+20us     by more than 5 %, and by more than 20 us: both must be exceeded
    0, 12       more than this many occurrences
    -2pp        down by more than 2 percentage points (for a metric with better="higher")
    2%+1MiB     by more than 2 %, and by more than 1 MiB
    off         not compared
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

from pytest_perfdl.model import metrics
from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.metrics import CASE_TIME, GROUP_TIME, general
from pytest_perfdl.model.units import TIMES, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_perfdl.model.waivers import Waiver

Spec = str | int | float
"""A limit or a budget as written in a marker or option."""
Sign = Literal["", "+", "-"]
Relation = Literal["", "<=", ">=", "<"]

UNPAIRED_LIMIT = 0.10
"""Minimum limit of a time, as a ratio, that is compared without paired rounds (statistics.md, section 8)."""

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PART = rf"({_NUMBER})\s*([A-Za-zµ%/]*)"
_LIMIT = re.compile(rf"\s*([-+]?)\s*{_PART}\s*(?:\+\s*{_PART}\s*)?")
_EXAMPLES = "write it as 3%, 5%+20us, 0, -2pp or off"
_RELATIONS: tuple[Relation, ...] = ("<=", ">=")
_EXPECTED: dict[Literal["faster", "not slower"], str] = {
    "faster": "at least {} faster",
    "not slower": "at most {} slower",
}
PER_KERNEL = "per_kernel"
"""Name for the limit of the time of every single kernel and operator; not a metric."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Largest allowed change of a metric for the worse; both parts must be exceeded. No part means "off"."""

    text: str
    """As written."""
    relative: float | None = None
    """Part of the baseline's value: 0.03 for "3%"."""
    absolute: str | None = None
    """Quantity such as "20us", without a sign."""
    sign: Sign = ""
    """Direction of the change for the worse, if given."""

    def __str__(self) -> str:
        return self.text

    @property
    def off(self) -> bool:
        """Whether the metric is only shown."""
        return self.relative is None and self.absolute is None

    def allowed(self, base: float, unit: str) -> float:
        """The largest allowed change for the worse of a metric with value `base`, in its base unit `unit`.

        It is the larger of the two parts, since both must be exceeded; infinite when off.

        Raises
        ------
        ValueError
            When the absolute part is no quantity of this unit.
        """
        relative = math.inf if self.off else (self.relative or 0.0) * abs(base)
        return relative if self.absolute is None else max(relative, _resolve(self.absolute, unit))

    def check(self, unit: str, better: Literal["lower", "higher"]) -> None:
        """Check that the limit fits a metric with this unit and direction.

        Raises
        ------
        ValueError
            One line that says why it does not.
        """
        self.allowed(0.0, unit)
        if self.sign == ("-" if better == "lower" else "+"):
            change = "a decrease" if self.sign == "-" else "an increase"
            raise ValueError(f"{self.text!r} limits {change}, but {better} values are better")


@dataclass(frozen=True, slots=True)
class Budget:
    """An absolute upper bound of a metric, or a lower bound if higher values are better."""

    text: str
    relation: Relation = ""
    """The relation, if given."""
    slack: Limit | None = None
    """By how much a waiver allows to exceed it."""

    def __str__(self) -> str:
        return f"{self.relation} {self.text}".lstrip()

    @property
    def off(self) -> bool:
        """Whether an outer budget was lifted."""
        return self.text == "off"

    def bound(self, unit: str, better: Literal["lower", "higher"] = "lower") -> float:
        """The bound in the metric's base unit, with the slack of a waiver.

        >>> Budget("40ms", slack=parse_limit("step_time", "10%")).bound("ns")
        44000000.0

        Raises
        ------
        ValueError
            When the text is no quantity of this unit.
        """
        bound = _resolve(self.text, unit)
        slack = 0.0 if self.slack is None else self.slack.allowed(bound, unit)
        return bound + slack if better == "lower" else bound - slack

    def check(self, unit: str, better: Literal["lower", "higher"]) -> None:
        """Check that the budget fits a metric with this unit and direction.

        Raises
        ------
        ValueError
            One line that says why it does not.
        """
        self.bound(unit)
        if self.relation == (">=" if better == "lower" else "<="):
            kind = "a lower bound" if self.relation == ">=" else "an upper bound"
            raise ValueError(f"'{self.relation}{self.text}' is {kind}, but {better} values are better")

    def related(self, better: Literal["lower", "higher"]) -> Budget:
        """The budget as verdicts have it, without a waiver's slack: "<= 45ms"."""
        return Budget(self.text, "<=" if better == "lower" else ">=")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test expects of two alternatives (`perf.compare`)."""

    kind: Literal["faster", "not slower"]
    amount: str
    """Minimum speedup or maximum slowdown, as a limit: "10%"."""

    def __str__(self) -> str:
        return _EXPECTED[self.kind].format(self.amount)


Requirement = Limit | Budget | Expected
"""What a verdict on a metric is about."""


def parse_requirement(metric: str, text: str) -> Requirement:
    """Read the text of a requirement of `metric` again.

    >>> [type(parse_requirement("step_time", text)).__name__ for text in ("3%", "<= 45ms", "at least 10% faster")]
    ['Limit', 'Budget', 'Expected']

    Raises
    ------
    ValueError
        As `parse_limit`.
    """
    relation, _, bound = text.partition(" ")
    if relation in get_args(Relation):
        return Budget(bound, cast("Relation", relation))
    for kind, expected in _EXPECTED.items():
        start, end = expected.split("{}")
        if text.startswith(start) and text.endswith(end):
            return Expected(kind, text[len(start) : -len(end)])
    return parse_limit(metric, text)


def limit_words(text: str, *, short: bool = False) -> str:
    """The text of a limit in words for reports.

    >>> limit_words("2%+1MiB"), limit_words("2%+1MiB", short=True), limit_words("3%"), limit_words("1e+3us")
    ('2% or 1 MiB, whichever is larger', '2% or 1 MiB', '3%', '1e+3us')
    """
    match = _LIMIT.fullmatch(text)
    if match is None or match[4] is None:
        return text
    sign, *rest = match.groups()
    parts = [number + (unit if unit == "%" else f" {unit}".rstrip()) for number, unit in (rest[:2], rest[2:])]
    parts[0] = sign.strip("+") + parts[0]
    return " or ".join(parts) + ("" if short else ", whichever is larger")


Demand = TypeVar("Demand", Limit, Budget)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and budgets of one source, or of several merged; keys are metric names.

    A name is a metric's ("step_time", for every call of a test) or a named call's ("forward.step_time").
    """

    limits: Mapping[str, Limit] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()
    """Names that a marker gave: its test is to have them, where a limit for all tests is for those that do."""
    waivers: tuple[Waiver, ...] = ()
    """The waivers for the test, including expired ones."""

    @classmethod
    def parse(cls, limits: Mapping[str, Spec], budgets: Mapping[str, Spec] | None = None) -> Limits:
        """Read a marker's `limits=` and `budget=`.

        Raises
        ------
        ValueError
            One line that names the metric.
        """
        return cls(
            {metric: parse_limit(metric, spec) for metric, spec in limits.items()},
            {metric: parse_budget(metric, spec) for metric, spec in (budgets or {}).items()},
            frozenset((*limits, *(budgets or {}))),
        )

    def over(self, below: Limits) -> Limits:
        """Both together; where both speak of a metric, this one holds.

        A name without a call speaks of that metric in every call, so it also replaces the named calls'
        entries below: a flag for one call does not tighten a test that its marker calls noisy.

        >>> marker = Limits.parse({"step_time": "30%"})
        >>> marker.over(Limits.parse({"forward.step_time": "3%"})).for_metric("forward.step_time").text
        '30%'
        """
        limits, budgets = _over(self.limits, below.limits), _over(self.budgets, below.budgets)
        return Limits(limits, budgets, self.expected | below.expected, (*self.waivers, *below.waivers))

    def for_metric(self, full_name: str) -> Limit | None:
        """The most specific limit of a metric, `None` when there is none or it is off.

        >>> limits = Limits.parse({"step_time": "3%", "forward.step_time": "5%"})
        >>> limits.for_metric("forward.step_time").text, limits.for_metric("backward.step_time").text
        ('5%', '3%')
        """
        return _most_specific(self.limits, full_name)

    def is_off(self, full_name: str) -> bool:
        """Whether a metric's limit is set to "off"."""
        demand = self.limits.get(full_name) or self.limits.get(general(full_name))
        return demand is not None and demand.off

    def budget_for(self, full_name: str) -> Budget | None:
        """The most specific budget of a metric, `None` when there is none or it is off."""
        return _most_specific(self.budgets, full_name)

    def waiver_for(self, full_name: str, *, of_step: bool = True, expired: bool = False) -> Waiver | None:
        """The first waiver that covers a metric, among those that apply, or among those that have expired.

        Parameters
        ----------
        of_step
            False for a kernel or an operator.
        """
        if not of_step:
            full_name = f"{full_name.partition(' ')[0].rpartition('.')[0]}.{PER_KERNEL}".lstrip(".")
        covering = (each for each in self.waivers if each.covers(full_name))
        return next((each for each in covering if each.expired is expired), None)

    def unpaired(self) -> Limits:
        """What holds for times when there is nothing to pair with: limits of `UNPAIRED_LIMIT` at least.

        >>> Limits.parse({"step_time": "3%", "ops": "3%", "data_wait": "30%"}).unpaired().limits["step_time"].text
        '10%'
        """
        return replace(self, limits={name: _widen(name, limit) for name, limit in self.limits.items()})

    def unmatched(self, full_names: Iterable[str]) -> tuple[str, ...]:
        """Names in these limits and budgets that match no measured metric, such as misspelled ones."""
        measured = tuple(full_names)
        kernels = (f"{full.rpartition('.')[0]}.{PER_KERNEL}".lstrip(".") for full in measured)
        known = {name for full in (*measured, *kernels) for name in (full, general(full))}
        return tuple(sorted({*self.limits, *self.budgets} - known))


_NOT_JUDGED = "this metric cannot be limited, because neither higher nor lower values are better"


def parse_limit(metric: str, text: Spec) -> Limit:
    """Read a limit of `metric`, which may be a full name.

    >>> parse_limit("kernel_time", "5%+20us")
    Limit(text='5%+20us', relative=0.05, absolute='20us', sign='')

    Raises
    ------
    InputError
        One line that names the metric and says what was expected.
    """
    written = str(text).strip()
    if written == "off":
        return Limit("off")
    match = None if isinstance(text, bool) else _LIMIT.fullmatch(written)
    if match is None:
        raise InputError(f"limit of {metric}: {written!r} is not a valid limit: {_EXAMPLES}")
    sign, *rest = match.groups()
    parts = [(number, unit) for number, unit in (rest[:2], rest[2:]) if number is not None]
    shares = [float(number) / 100 for number, unit in parts if unit == "%"]
    amounts = [f"{number}{unit}" for number, unit in parts if unit != "%"]
    if len(shares) > 1 or len(amounts) > 1:
        raise InputError(f"limit of {metric}: {written!r} has two percentages or two absolute parts: {_EXAMPLES}")
    limit = Limit(written, shares[0] if shares else None, amounts[0] if amounts else None, cast("Sign", sign))
    if not all(map(math.isfinite, shares)):
        raise InputError(f"limit of {metric}: {written!r} is not finite")
    if general(metric) == PER_KERNEL and (limit.absolute is not None or limit.sign == "-"):
        raise InputError(f"limit of {metric}: {written!r} is not a percentage: write it as 5% or off")
    if not metrics.is_judged(metric):
        raise InputError(f"limit of {metric}: {_NOT_JUDGED}")
    unit = metrics.unit(metric)
    if unit is not None:
        try:
            limit.check(unit, metrics.better(metric))
        except ValueError as error:
            raise InputError(f"limit of {metric}: {error}") from None
    return limit


def limit_of(waiver: Waiver) -> Limit:
    """The limit that a waiver sets in place of a metric's own."""
    # Without a metric it is a percentage, as any metric may have.
    return parse_limit(waiver.metric or "step_time", waiver.limit)


def parse_budget(metric: str, value: Spec) -> Budget:
    """Read a budget of `metric`: "45ms", "2GiB", ">=40%", or a number for a metric that needs no unit.

    Raises
    ------
    ValueError
        One line that names the metric and says what was expected.
    """
    written = str(value).strip()
    if isinstance(value, bool) or not written:
        raise ValueError(f"budget of {metric}: {written!r} is not a quantity")
    if general(metric) == PER_KERNEL:
        raise ValueError(f"budget of {metric}: kernels can have a limit, but no budget")
    if not metrics.is_judged(metric):
        raise ValueError(f"budget of {metric}: {_NOT_JUDGED}")
    relation: Relation = next((sign for sign in _RELATIONS if written.startswith(sign)), "")
    budget = Budget(written.removeprefix(relation).strip(), relation)
    unit = metrics.unit(metric)
    if unit is not None and not budget.off:
        try:
            budget.check(unit, metrics.better(metric))
            bound = budget.bound(unit)
        except ValueError as error:
            raise ValueError(f"budget of {metric}: {error}") from None
        if bound < 0:
            raise ValueError(f"budget of {metric}: {written!r} is negative")
    return budget


def parse_limit_option(text: str) -> tuple[str, Limit]:
    """Read `METRIC:SPEC` from the command line or ini.

    >>> parse_limit_option("step_time:3%")
    ('step_time', Limit(text='3%', relative=0.03, absolute=None, sign=''))

    Raises
    ------
    ValueError
        One line that says what was expected.
    """
    metric, colon, spec = (part.strip() for part in text.rpartition(":"))
    if not colon or not metric or not spec:
        raise ValueError(f"{text.strip()!r}: expected METRIC:SPEC, such as step_time:3%")
    return metric, parse_limit(metric, spec)


def _resolve(text: str, unit: str) -> float:
    """A quantity in base unit `unit`; zero needs no unit, "2pp" fits metrics in % and ratios."""
    if text.endswith("pp"):
        scale = {"%": 1.0, "1": 0.01}.get(unit)
        if scale is None:
            raise ValueError(f"{text!r} is in percentage points, but the metric's unit is {unit}")
        return parse_quantity(text[:-2], "1") * scale
    try:
        return parse_quantity(text, unit)
    except ValueError:
        if re.fullmatch(r"0+\.?0*|\.0+", text):
            return 0.0
        raise


def _widen(name: str, limit: Limit) -> Limit:
    known = metrics.of(name)
    if limit.off or isinstance(known, metrics.CountedMetric) or (limit.relative or 0.0) >= UNPAIRED_LIMIT:
        return limit
    # A custom metric may be a count, whose limit holds as it is: only a unit tells that it is a time.
    if known is None and limit.relative is None and not _is_time(limit.absolute or ""):
        return limit
    text = f"{UNPAIRED_LIMIT:.0%}" + (f"+{limit.absolute}" if limit.absolute else "")
    return replace(limit, text=text, relative=UNPAIRED_LIMIT)


def _is_time(quantity: str) -> bool:
    match = re.fullmatch(_PART, quantity)
    return match is not None and match[2] in TIMES


def _over(above: Mapping[str, Demand], below: Mapping[str, Demand]) -> dict[str, Demand]:
    return {
        **{name: demand for name, demand in below.items() if general(name) not in above},
        **above,
    }


def _most_specific(demands: Mapping[str, Demand], full_name: str) -> Demand | None:
    demand = demands.get(full_name) or demands.get(general(full_name))
    return None if demand is None or demand.off else demand


BUILT_IN = Limits.parse(
    {
        "step_time": "3%",
        "block_time": "3%",
        "peak_memory": "2%+1MiB",
        PER_KERNEL: "5%",
        CASE_TIME: "5%",
        GROUP_TIME: "1%",
    }
)
"""The default limits."""
