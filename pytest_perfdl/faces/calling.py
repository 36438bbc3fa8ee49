"""How a step is called: with what its `setup=` says, once or as often as a program of steps asks for."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_perfdl.errors import PerfError
from pytest_perfdl.faces.checks import check_result

if TYPE_CHECKING:
    from pytest_perfdl.measure.program import Program, Steps

T = TypeVar("T")


def ready(
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


def run(steps: Steps, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Call a step as often as asked; the result of the call that is to be kept."""
    __tracebackhide__ = True
    result: Any = None
    first = True
    for keep in steps:
        if keep:
            result = fn(*args, **kwargs)
        elif first:
            first = False
            check_result(fn(*args, **kwargs))
        else:
            # The result dies inside the step, as it does in a loop that goes on.
            fn(*args, **kwargs)
    return result  # type: ignore[no-any-return]


def run_prepared(
    program: Program, setup: Callable[[], Any], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> T:
    """The same with `setup` before every step, which is not measured."""
    __tracebackhide__ = True
    from pytest_perfdl.measure.profiled import SETUP_ANNOTATION
    from pytest_perfdl.measure.program import Aside, annotated
    from pytest_perfdl.measure.timed import synchronize

    steps = program.steps()
    result: Any = None
    aside = None
    first = True
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
        elif first:
            first = False
            check_result(fn(*step_args, **step_kwargs))
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
