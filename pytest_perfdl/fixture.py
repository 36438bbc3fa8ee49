"""What a test author touches: the `perf` fixture, and what may be asked of it.

The fixture has two faces (`faces`): without `--perf` a step runs once, in a worker process it runs as often as
commands ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pytest_perfdl.errors import PerfError
from pytest_perfdl.limits import UNITS, parse_limit
from pytest_perfdl.record import Better
from pytest_perfdl.units import parse_quantity

T = TypeVar("T")


class Perf:
    """The `perf` fixture: hand it the step, and it measures.

    ::

        @pytest.mark.perf
        def test_train_step(perf, model, batch):
            loss = perf(train_step, model, batch, items=len(batch))
    """

    def __repr__(self) -> str:
        return "<perf>"

    def __call__(
        self,
        fn: Callable[..., T],
        *args: Any,
        name: str = "",
        setup: Callable[[], Any] | None = None,
        reset: Callable[[], object] | None = None,
        period: int = 1,
        items: float | None = None,
        **kwargs: Any,
    ) -> T:
        """Measure `fn(*args, **kwargs)` as the step and return the last call's result.

        Parameters
        ----------
        fn
            The step. Arguments of its own called `name`, `setup`, `reset`, `period` or `items` need a
            `functools.partial`.
        name
            Tells several calls in one test apart; their metrics are called `name.step_time` and so on.
        setup
            Called before every step, not measured: restores what the step consumes. If it returns a pair
            `(args, kwargs)`, the step is called with that instead.
        reset
            Called before every pass over the steps, not measured: empties what grows, such as a cache.
        period
            How many steps make a cycle, such as the micro-batches of gradient accumulation.
        items
            Samples or tokens in a step: adds the metric `throughput`.
        """
        raise NotImplementedError

    def steps(
        self, iterable: Iterable[T], *, name: str = "", period: int = 1, items: float | None = None
    ) -> Iterator[T]:
        """Yield the iterable's elements, each the start of a step; begin it anew when it ends.

        Waiting for the next element is measured as part of the step and apart, as `data_wait`. The loop ends
        when everything is measured. See `__call__` for the parameters.
        """
        raise NotImplementedError

    def step(self, *, name: str = "", period: int = 1, items: float | None = None) -> bool:
        """Mark a step's boundary from a callback (Trainer, Lightning); false once enough is measured.

        The first call begins the first step. The parameters count at the first call only.
        """
        raise NotImplementedError

    def compare(
        self,
        base: Callable[..., object],
        head: Callable[..., object],
        *args: Any,
        name: str = "",
        setup: Callable[[], Any] | None = None,
        reset: Callable[[], object] | None = None,
        period: int = 1,
        **kwargs: Any,
    ) -> Comparison:
        """Compare two alternatives of a step, both called with the same arguments.

        Both run once in the test itself. Under `--perf` they are then measured in pairs of fresh processes that
        take turns, one running `base` and one `head`, until what is expected of `head` is decided. See
        `__call__` for the other parameters.
        """
        raise NotImplementedError

    def assert_scaling(
        self,
        axis: str = "",
        *,
        exponent: float | None = None,
        fixed: str | None = None,
        per_unit: str | None = None,
    ) -> None:
        """Expect something of the step's time as a function of a parameter of the test.

        ::

            @pytest.mark.perf(scaling={"batch": [2, 4, 8, 16]})
            def test_step(perf, batch):
                perf(train_step, make(batch))
                perf.assert_scaling(exponent=1.1, fixed="5ms")

        Under `--perf` the curve is judged once the last of the sizes is measured: held to these bounds, and against
        the curve of the baselines, which `scaling=` in the marker alone asks for too.

        Parameters
        ----------
        axis
            A parameter with three numbers or more; may be left out where the marker names one axis.
        exponent
            At most so steep, d log time / d log size over the larger half of the sizes: 1 where the time doubles with
            the size, 2 where it takes four times as long.
        fixed
            Largest time that does not scale, as a quantity: "5ms". It is that of a line through the times at size 0.
        per_unit
            Largest time per unit of size, the slope of that line: "120us".
        """
        raise NotImplementedError

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        """Add a metric of one's own: one value in every repeat, shown, and judged if it has a limit."""
        raise NotImplementedError

    @property
    def step_time(self) -> float:
        """Seconds that a step of the last call took (lower quartile); for metrics of one's own."""
        raise NotImplementedError


ExpectationKind = Literal["faster", "not slower"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test says of two alternatives: judged after its body, by rounds of two processes."""

    comparison: str
    """Name of the comparison; empty for the only one of a test."""
    kind: ExpectationKind
    amount: str
    """By how much faster, or how much slower at most, as a limit: "10%"."""
    base: str
    """What the first alternative is called."""
    head: str
    """What the second is called, the one that the expectation is about."""


@dataclass(frozen=True, slots=True)
class CurveExpectation:
    """What a test says of its time over the sizes of a parameter: judged after the last of them."""

    axis: str
    """Name of the parameter; empty for the marker's only axis."""
    exponent: float | None
    fixed: str | None
    per_unit: str | None
    """Bounds, see `Perf.assert_scaling`; quantities as they were written."""


class Comparison:
    """Two alternatives of a step; say what you expect of the second.

    ::

        perf.compare(step_loop, step_fused).assert_faster(by="10%")
    """

    def __init__(self, name: str, base: str, head: str, tell: Callable[[Expectation], None] | None) -> None:
        self._name = name
        self._labels = (base, head)
        self._tell = tell
        self.asserted = False
        """Whether anything was expected."""

    def assert_faster(self, by: str | int | float) -> None:
        """Expect the second to take less time than the first, by at least this share: "10%".

        Raises
        ------
        PerfError
            When the amount is no percentage from 0 to 100.
        """
        self._expect("faster", by)

    def assert_not_slower(self, within: str | int | float) -> None:
        """Expect the second to take no more time than the first, within this limit: "3%", "5%+20us"."""
        self._expect("not slower", within)

    def _expect(self, kind: ExpectationKind, amount: str | int | float) -> None:
        __tracebackhide__ = True
        argument = "by" if kind == "faster" else "within"
        try:
            limit = parse_limit("step_time", amount)
        except ValueError as error:
            raise PerfError(f"{argument}={amount!r}: {error}") from None
        if limit.relative is None or (kind == "faster" and (limit.absolute is not None or limit.relative >= 1)):
            raise PerfError(f"{argument}={amount!r}: expected a share such as '10%'")
        self.asserted = True
        if self._tell is not None:
            self._tell(Expectation(self._name, kind, limit.text, *self._labels))


def check_scaling(axis: object, exponent: float | None, fixed: str | None, per_unit: str | None) -> CurveExpectation:
    """What is expected of a curve, validated.

    Raises
    ------
    PerfError
        A bound is no bound.
    """
    __tracebackhide__ = True
    if not isinstance(axis, str):
        raise PerfError(f"perf.assert_scaling({axis!r}): expected the name of a parameter")
    if exponent is not None and not (isinstance(exponent, (int, float)) and math.isfinite(exponent)):
        raise PerfError(f"exponent={exponent!r}: expected a number such as 1.1")
    for name, bound in (("fixed", fixed), ("per_unit", per_unit)):
        try:
            if bound is not None and not (isinstance(bound, str) and parse_quantity(bound, "ns") >= 0):
                raise ValueError(f"expected a time such as '5ms', not {bound!r}")
        except ValueError as error:
            raise PerfError(f"{name}={bound!r}: {error}") from None
    return CurveExpectation(axis, None if exponent is None else float(exponent), fixed, per_unit)


def label(fn: Callable[..., object]) -> str:
    """What to call an alternative."""
    return getattr(fn, "__name__", type(fn).__name__)


def check_call(name: str, period: int, items: float | None, names: set[str]) -> None:
    """Refuse a call that cannot be measured; `names` holds those of the test's calls, and gets this one."""
    __tracebackhide__ = True
    problem = ""
    if not isinstance(name, str) or "." in name:
        problem = f"name={name!r}: expected text without a dot"
    elif name in names:
        problem = (
            f"two perf(...) calls are both named {name!r}: give each its own name="
            if name
            else "two perf(...) calls without a name: give each its own name="
        )
    elif isinstance(period, bool) or not isinstance(period, int) or period < 1:
        problem = f"period={period!r}: expected a whole number, 1 or more"
    elif items is not None and not (math.isfinite(items) and items > 0):
        problem = f"items={items!r}: expected a number above 0"
    if problem:
        raise PerfError(problem)
    names.add(name)


def check_metric(name: object, value: float, unit: object, better: object, given: set[str]) -> None:
    """Refuse what cannot be a metric; `given` holds the names that this call has already, and gets this one."""
    __tracebackhide__ = True
    problem = ""
    if not isinstance(name, str) or not name or "." in name or ":" in name:
        problem = f"perf.metric({name!r}): expected a name without '.' and ':'"
    elif name in UNITS or name == "throughput":
        problem = f"perf.metric({name!r}): every test has a metric of this name, choose another"
    elif name in given:
        problem = f"perf.metric({name!r}) came twice for one call: a metric has one value in a repeat"
    elif better not in ("lower", "higher"):
        problem = f"perf.metric({name!r}, better={better!r}): expected 'lower' or 'higher'"
    elif not isinstance(unit, str):
        problem = f"perf.metric({name!r}, unit={unit!r}): expected text"
    elif not math.isfinite(float(value)):
        problem = f"perf.metric({name!r}) is {value}: expected a finite number"
    if problem:
        raise PerfError(problem)
    given.add(str(name))


def empty() -> PerfError:
    """What to say of an iterable that yields nothing."""
    return PerfError("perf.steps(...) got an iterable without elements")
