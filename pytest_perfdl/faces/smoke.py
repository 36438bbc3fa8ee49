"""The face without `--perf`: a step runs once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_perfdl.faces.calling import ready
from pytest_perfdl.faces.checks import (
    check_asserted,
    check_call,
    check_metric,
    check_result,
    check_scaling,
    check_whatif,
    empty,
)
from pytest_perfdl.fixture import Comparison, Perf, label
from pytest_perfdl.record import Better

if TYPE_CHECKING:
    from pytest_perfdl.predict.whatif.machine import Machine

T = TypeVar("T")


class Smoke(Perf):
    """Runs every step once: what a perf test does in an ordinary test run."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._metrics: set[str] = set()
        self._seconds = math.nan
        self._callback_steps = 0
        self._comparisons: list[Comparison] = []

    def _begin(self, name: str, period: int, items: float | None) -> None:
        __tracebackhide__ = True
        check_call(name, period, items, self._names)
        self._metrics.clear()

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
        __tracebackhide__ = True
        self._begin(name, period, items)
        args, kwargs = ready(args, kwargs, setup, reset)
        start = perf_counter_ns()
        result = fn(*args, **kwargs)
        check_result(result)
        self._seconds = (perf_counter_ns() - start) / 1e9
        return result

    def steps(
        self, iterable: Iterable[T], *, name: str = "", period: int = 1, items: float | None = None
    ) -> Iterator[T]:
        self._begin(name, period, items)
        return self._first(iterable)

    def _first(self, iterable: Iterable[T]) -> Iterator[T]:
        start = perf_counter_ns()
        for element in iterable:
            yield element
            self._seconds = (perf_counter_ns() - start) / 1e9
            return
        raise empty()

    def step(self, *, name: str = "", period: int = 1, items: float | None = None) -> bool:
        if self._callback_steps == 0:
            self._begin(name, period, items)
        self._callback_steps += 1
        return self._callback_steps < 2

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
        __tracebackhide__ = True
        self._begin(name, period, None)
        for fn in (base, head):
            step_args, step_kwargs = ready(args, kwargs, setup, reset)
            check_result(fn(*step_args, **step_kwargs))
        comparison = Comparison(name, label(base), label(head), None)
        self._comparisons.append(comparison)
        return comparison

    def assert_scaling(
        self,
        axis: str = "",
        *,
        exponent: float | None = None,
        fixed: str | None = None,
        per_unit: str | None = None,
    ) -> None:
        __tracebackhide__ = True
        check_scaling(axis, exponent, fixed, per_unit)

    def assert_whatif(
        self,
        transform: str,
        /,
        *,
        gains_less_than: str | int | float,
        machine: Machine | None = None,
        **parameters: Any,
    ) -> None:
        __tracebackhide__ = True
        check_whatif("", transform, gains_less_than, machine, parameters)

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        check_metric(name, value, unit, better, self._metrics)

    @property
    def step_time(self) -> float:
        return self._seconds

    def close(self) -> None:
        """After the test's body: a comparison of which nothing is expected is a mistake.

        Raises
        ------
        PerfError
        """
        check_asserted(self._comparisons)
