"""What a test author touches: the `perf` fixture.

The fixture has three faces. Without `--perf` a step runs once (`Smoke`). In a worker process, and under
`--perf-isolate=none`, `Measured` runs the step as often as commands ask for; where the commands come from is
the `Host`'s business.
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
from pytest_perfdl.limits import UNITS
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

    def start_call(self, call: CallInfo) -> None:
        """Announce a call; commands about it follow."""
        ...

    def command(self) -> object:
        """Wait for the next command."""
        ...

    def answer(self, reply: object) -> None:
        """Answer the last command."""
        ...

    def send_metric(self, call: str, name: str, value: float, unit: str, better: Better) -> None:
        """Pass on a metric of the author's own."""
        ...


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

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        """Add a metric of one's own: one value in every repeat, shown, and judged if it has a limit."""
        raise NotImplementedError

    @property
    def step_time(self) -> float:
        """Seconds that a step of the last call took (lower quartile); for metrics of one's own."""
        raise NotImplementedError


class Smoke(Perf):
    """Runs every step once: what a perf test does in an ordinary test run."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._metrics: set[str] = set()
        self._seconds = math.nan
        self._callback_steps = 0

    def _begin(self, name: str, period: int, items: float | None) -> None:
        __tracebackhide__ = True
        _check_call(name, period, items, self._names)
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
        if reset is not None:
            reset()
        if setup is not None:
            args, kwargs = _prepared(setup(), args, kwargs)
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
        raise _empty()

    def step(self, *, name: str = "", period: int = 1, items: float | None = None) -> bool:
        if self._callback_steps == 0:
            self._begin(name, period, items)
        self._callback_steps += 1
        return self._callback_steps < 2

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        _check_metric(name, value, unit, better, self._metrics)

    @property
    def step_time(self) -> float:
        return self._seconds


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
        _check_call(name, period, items, self._names)
        program = self._start("function", name, period, items, reset=reset, prepares=setup is not None)
        if setup is None:
            return _run(program.steps(), fn, args, kwargs)
        return _run_prepared(program, setup, fn, args, kwargs)

    def steps(
        self, iterable: Iterable[T], *, name: str = "", period: int = 1, items: float | None = None
    ) -> Iterator[T]:
        _check_call(name, period, items, self._names)
        return self._iterate(iterable, name, period, items)

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
                        raise _empty() from None
            aside = Aside(wait_ns=perf_counter_ns() - start)
            yield element
            del element

    def step(self, *, name: str = "", period: int = 1, items: float | None = None) -> bool:
        if self._finished:
            return False
        if self._callback is None:
            _check_call(name, period, items, self._names)
            self._callback = self._start("callback", name, period, items).steps()
        try:
            next(self._callback)
        except StopIteration:
            self._finished = True
        return not self._finished

    def metric(self, name: str, value: float, *, unit: str = "1", better: Better = "lower") -> None:
        _check_metric(name, value, unit, better, self._metrics)
        if self._program is None:
            raise PerfError("perf.metric() needs a perf(...) call before it: a metric belongs to a call")
        self._host.send_metric(self._last, name, float(value), unit, better)

    @property
    def step_time(self) -> float:
        return self._program.step_ns / 1e9 if self._program else math.nan

    def close(self) -> None:
        """After the test's body: a loop that ended too early measured nothing.

        Raises
        ------
        PerfError
        """
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
        from pytest_perfdl.measure.machine import seed_everything
        from pytest_perfdl.measure.program import Program

        self.close()
        self._kind = kind
        seed_everything(self._host.plan.seed)
        key, context = describe(self._host.plan.threads, self._host.key_extra)
        self._host.start_call(CallInfo(name, kind, period, None if items is None else float(items), key, context))
        self._last = name
        self._metrics.clear()
        self._program = Program(self._host, reset=reset, iterates=kind == "iterable", prepares=prepares)
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
    fixture = item.funcargs.get(FIXTURE)
    if isinstance(fixture, Measured):
        fixture.close()


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


def _check_call(name: str, period: int, items: float | None, names: set[str]) -> None:
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


def _check_metric(name: object, value: float, unit: object, better: object, given: set[str]) -> None:
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


def _empty() -> PerfError:
    return PerfError("perf.steps(...) got an iterable without elements")
