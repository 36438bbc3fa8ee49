"""The faces of the `perf` fixture.

Without `--perf` a step runs once (`Smoke`). In a worker process, and under `--perf-isolate=none`, `Measured` runs
the step as often as commands ask for; where the commands come from is the `Host`'s business.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from pytest_perfdl.errors import PerfError
from pytest_perfdl.fixture import (
    Comparison,
    CurveExpectation,
    Expectation,
    Perf,
    check_call,
    check_metric,
    check_scaling,
    empty,
    label,
)
from pytest_perfdl.options import FIXTURE
from pytest_perfdl.record import Better, Plan

if TYPE_CHECKING:
    from pytest_perfdl.measure.commands import CallInfo, CallKind
    from pytest_perfdl.measure.program import Program, Steps

T = TypeVar("T")
_UNFINISHED: Mapping[CallKind, str] = {
    "function": "a perf(...) call did not come to its end: its step raised an exception that the test caught, or "
    "called perf(...) itself",
    "iterable": "the loop over perf.steps(...) ended before everything was measured: let it run until it ends by "
    "itself",
    "callback": "the loop that calls perf.step() ended before everything was measured: let it run until "
    "perf.step() returns False",
}
"""What to say of a call that is not finished, where another begins or the test ends."""


class Host(Protocol):
    """Who asks for measurements: the orchestrating process, or a script in this one."""

    plan: Plan
    key_extra: tuple[str, ...]
    side: str
    """Which alternative of which comparison is measured, `base:NAME` or `head:NAME`; empty for all other calls."""
    inject: float
    """Share of their own time by which steps are slowed down on purpose."""

    def start_call(self, call: CallInfo) -> None:
        """Announce a call; commands about it follow."""
        ...

    def command(self) -> object:
        """Wait for the next command."""
        ...

    def answer(self, reply: object) -> None:
        """Answer the last command."""
        ...

    def expect(self, expectation: Expectation | CurveExpectation) -> None:
        """Pass on what a test expects of two alternatives, or of a curve."""
        ...

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Pass on a metric of the author's own."""
        ...


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
        args, kwargs = _ready(args, kwargs, setup, reset)
        start = perf_counter_ns()
        result = fn(*args, **kwargs)
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
            step_args, step_kwargs = _ready(args, kwargs, setup, reset)
            fn(*step_args, **step_kwargs)
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
        _check_asserted(self._comparisons)


class Measured(Perf):
    """Runs every step as often as the host asks for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._names: set[str] = set()
        self._metrics: set[str] = set()
        self._last = ""
        self._program: Program | None = None
        self._kind: CallKind = "function"
        self._callback: Steps | None = None
        self._finished = False
        self._comparisons: list[Comparison] = []
        self._once = Smoke()
        """Runs what is not measured in this process: all calls but the alternative that it is for."""

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
        if self._host.side:
            return self._once(fn, *args, name=name, setup=setup, reset=reset, period=period, items=items, **kwargs)
        check_call(name, period, items, self._names)
        return self._measure(fn, args, kwargs, name, setup, reset, period, items)

    def _measure(
        self,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        setup: Callable[[], Any] | None,
        reset: Callable[[], object] | None,
        period: int,
        items: float | None,
    ) -> T:
        __tracebackhide__ = True
        program = self._start("function", name, period, items, reset=reset, prepares=setup is not None)
        if setup is None:
            return _run(program.steps(), fn, args, kwargs)
        return _run_prepared(program, setup, fn, args, kwargs)

    def steps(
        self, iterable: Iterable[T], *, name: str = "", period: int = 1, items: float | None = None
    ) -> Iterator[T]:
        if self._host.side:
            return self._once.steps(iterable, name=name, period=period, items=items)
        check_call(name, period, items, self._names)
        return self._iterate(iterable, name, period, items)

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
        check_call(name, period, None, self._names)
        alternatives = {f"base:{name}": base, f"head:{name}": head}
        if self._host.side in alternatives:
            self._measure(alternatives[self._host.side], args, kwargs, name, setup, reset, period, None)
        else:
            for fn in alternatives.values():
                step_args, step_kwargs = _ready(args, kwargs, setup, reset)
                fn(*step_args, **step_kwargs)
        comparison = Comparison(name, label(base), label(head), None if self._host.side else self._host.expect)
        self._comparisons.append(comparison)
        return comparison

    def _iterate(self, iterable: Iterable[T], name: str, period: int, items: float | None) -> Iterator[T]:
        from pytest_perfdl.measure.profiled import WAIT_ANNOTATION
        from pytest_perfdl.measure.program import Aside, annotated

        program = self._start("iterable", name, period, items)
        steps = program.steps()
        source: Iterator[T] = iter(())
        aside = None
        while True:
            try:
                steps.send(aside)
            except StopIteration:
                return
            start = perf_counter_ns()
            with annotated(WAIT_ANNOTATION, program.annotating):
                try:
                    element = next(source)
                except StopIteration:
                    source = iter(iterable)
                    try:
                        element = next(source)
                    except StopIteration:
                        raise empty() from None
            aside = Aside(wait_ns=perf_counter_ns() - start)
            yield element
            del element

    def step(self, *, name: str = "", period: int = 1, items: float | None = None) -> bool:
        if self._host.side:
            return self._once.step(name=name, period=period, items=items)
        if self._finished:
            return False
        if self._callback is None:
            check_call(name, period, items, self._names)
            self._callback = self._start("callback", name, period, items).steps()
        try:
            next(self._callback)
        except StopIteration:
            self._finished = True
        return not self._finished

    def assert_scaling(
        self,
        axis: str = "",
        *,
        exponent: float | None = None,
        fixed: str | None = None,
        per_unit: str | None = None,
    ) -> None:
        __tracebackhide__ = True
        expectation = check_scaling(axis, exponent, fixed, per_unit)
        if not self._host.side:
            self._host.expect(expectation)

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        if self._host.side:
            self._once.metric(name, value, unit=unit, better=better)
            return
        check_metric(name, value, unit, better, self._metrics)
        if self._program is None:
            raise PerfError("perf.metric() needs a perf(...) call before it: a metric belongs to a call")
        self._host.send_metric(self._last, name, float(value), unit, better)

    @property
    def step_time(self) -> float:
        if self._host.side:
            return self._once.step_time
        return self._program.step_ns / 1e9 if self._program else math.nan

    def close(self) -> None:
        """After the test's body: a loop that ended too early measured nothing, nor does a comparison by itself.

        Raises
        ------
        PerfError
        """
        self._check_finished()
        _check_asserted(self._comparisons)

    def _check_finished(self) -> None:
        if self._program is not None and not self._program.finished:
            raise PerfError(_UNFINISHED[self._kind])

    def _start(
        self,
        kind: CallKind,
        name: str,
        period: int,
        items: float | None,
        *,
        reset: Callable[[], object] | None = None,
        prepares: bool = False,
    ) -> Program:
        from pytest_perfdl.measure.commands import CallInfo
        from pytest_perfdl.measure.environment import describe
        from pytest_perfdl.measure.injected import Delay
        from pytest_perfdl.measure.machine import seed_everything
        from pytest_perfdl.measure.program import Program

        self._check_finished()
        self._kind = kind
        seed_everything(self._host.plan.seed)
        key, context = describe(self._host.plan.threads, self._host.key_extra)
        self._host.start_call(CallInfo(name, kind, period, None if items is None else float(items), key, context))
        self._last = name
        self._metrics.clear()
        delay = Delay(self._host.inject, period)
        self._program = Program(self._host, reset=reset, iterates=kind == "iterable", prepares=prepares, delay=delay)
        return self._program


@contextlib.contextmanager
def measuring(item: pytest.Function, host: Host) -> Iterator[None]:
    """Around the call of a test, whoever calls it: makes the body of a bare test its step, and sees loops end."""
    body = item.obj
    if FIXTURE not in item.fixturenames:

        @functools.wraps(body)
        def measured(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return Measured(host)(body, *args, **kwargs)

        item.obj = measured
    try:
        yield
    finally:
        item.obj = body
    close(item)


def close(item: pytest.Function) -> None:
    """After the call of a test: see that what it asked of the fixture is complete.

    Raises
    ------
    PerfError
    """
    fixture = item.funcargs.get(FIXTURE)
    if isinstance(fixture, (Smoke, Measured)):
        fixture.close()


def _ready(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setup: Callable[[], Any] | None,
    reset: Callable[[], object] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a step that runs once is called with, after what goes before it."""
    __tracebackhide__ = True
    if reset is not None:
        reset()
    return (args, kwargs) if setup is None else _prepared(setup(), args, kwargs)


def _check_asserted(comparisons: Iterable[Comparison]) -> None:
    if not all(comparison.asserted for comparison in comparisons):
        raise PerfError(
            "perf.compare(...) by itself expects nothing: add .assert_faster(by=...) or .assert_not_slower(within=...)"
        )


def _run(steps: Steps, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    __tracebackhide__ = True
    result: Any = None
    for keep in steps:
        if keep:
            result = fn(*args, **kwargs)
        else:
            # The result dies inside the step, as it does in a loop that goes on.
            fn(*args, **kwargs)
    return result  # type: ignore[no-any-return]


def _run_prepared(
    program: Program, setup: Callable[[], Any], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> T:
    __tracebackhide__ = True
    from pytest_perfdl.measure.profiled import SETUP_ANNOTATION
    from pytest_perfdl.measure.program import Aside, annotated
    from pytest_perfdl.measure.timed import synchronize

    steps = program.steps()
    result: Any = None
    aside = None
    while True:
        try:
            keep = steps.send(aside)
        except StopIteration:
            return result  # type: ignore[no-any-return]
        start = perf_counter_ns()
        with annotated(SETUP_ANNOTATION, program.annotating):
            step_args, step_kwargs = _prepared(setup(), args, kwargs)
            synchronize()
        aside = Aside(setup_ns=perf_counter_ns() - start)
        if keep:
            result = fn(*step_args, **step_kwargs)
        else:
            fn(*step_args, **step_kwargs)


def _prepared(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if value is None:
        return args, kwargs
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], (tuple, list))
        and isinstance(value[1], dict)
    ):
        return tuple(value[0]), value[1]
    raise PerfError(f"setup= must return None or a pair (args, kwargs), not {type(value).__name__}")
