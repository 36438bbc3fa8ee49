"""The face in a worker process, and under `--perf-isolate=none`: a step runs as often as the host asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_perfdl.errors import PerfError
from pytest_perfdl.faces.calling import ready, run, run_prepared
from pytest_perfdl.faces.checks import (
    check_asserted,
    check_call,
    check_metric,
    check_result,
    check_scaling,
    check_whatif,
    empty,
)
from pytest_perfdl.faces.host import Host
from pytest_perfdl.faces.smoke import Smoke
from pytest_perfdl.fixture import Comparison, Perf, label
from pytest_perfdl.record import Better

if TYPE_CHECKING:
    from pytest_perfdl.measure.commands import CallKind
    from pytest_perfdl.measure.program import Program, Steps
    from pytest_perfdl.predict.whatif.machine import Machine

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
            return run(program.steps(), fn, args, kwargs)
        return run_prepared(program, setup, fn, args, kwargs)

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
                step_args, step_kwargs = ready(args, kwargs, setup, reset)
                check_result(fn(*step_args, **step_kwargs))
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
        expectation = check_whatif(self._last, transform, gains_less_than, machine, parameters)
        if self._host.side:
            return
        if self._program is None:
            raise PerfError("perf.assert_whatif() needs a perf(...) call before it: it asks about the last one")
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
        check_asserted(self._comparisons)

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
        from pytest_perfdl.measure.environment import describe, former
        from pytest_perfdl.measure.injected import Delay
        from pytest_perfdl.measure.machine import seed_everything
        from pytest_perfdl.measure.program import Program

        self._check_finished()
        self._kind = kind
        seed_everything(self._host.plan.seed)
        key, context = describe(self._host.plan.threads, self._host.key_extra)
        earlier = former(self._host.plan.threads, self._host.key_extra)
        number = None if items is None else float(items)
        self._host.start_call(CallInfo(name, kind, period, number, key, context, earlier))
        self._last = name
        self._metrics.clear()
        delay = Delay(self._host.inject, period)

        def show(program: Program) -> None:
            self._host.show(
                name,
                step_ns=program.step_ns,
                children=program.had_children,
                threads=program.had_threads,
                device=program.had_device,
                tracer=program.tracer,
                loaded=program.loaded,
            )

        self._program = Program(
            self._host,
            finished=show,
            reset=reset,
            iterates=kind == "iterable",
            prepares=prepares,
            delay=delay,
            threads=self._host.plan.threads,
        )
        return self._program
