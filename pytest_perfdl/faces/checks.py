"""What a test asks of the fixture, validated: what cannot be meant is refused in one line, measured or not."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping

from pytest_perfdl.errors import PerfError
from pytest_perfdl.fixture import Comparison, CurveExpectation, WhatIfExpectation
from pytest_perfdl.limits import UNITS, parse_limit
from pytest_perfdl.units import parse_quantity


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


def check_result(result: object) -> None:
    """Refuse what a step returned where its work has not been done yet: nothing of it would be measured."""
    __tracebackhide__ = True
    if inspect.isgenerator(result):
        problem = "a generator, which does nothing until it is iterated: measure lambda: list(STEP(...))"
    elif inspect.isasyncgen(result):
        problem = (
            "an asynchronous generator, which does nothing until it is iterated: measure a function that iterates it "
            "in asyncio.run(...)"
        )
    elif inspect.isawaitable(result):
        problem = "an awaitable, which is not waited for: measure lambda: asyncio.run(STEP(...))"
        if inspect.iscoroutine(result):
            # Python would warn later, elsewhere, that nobody waited for it.
            result.close()
    else:
        return
    raise PerfError(f"the step returned {problem}")


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


def check_whatif(
    call: str, transform: object, gains_less_than: str | int | float, machine: object, parameters: Mapping[str, object]
) -> WhatIfExpectation:
    """What is expected of an optimisation of a call, validated against the optimisations that there are.

    Raises
    ------
    PerfError
        There is no such optimisation or parameter (those that exist are named), or the bound is no share.
    """
    __tracebackhide__ = True
    # numpy comes with them: only a test that asks this loads it.
    from pytest_perfdl.predict.whatif.machine import Machine
    from pytest_perfdl.predict.whatif.transform import parameters as read

    if not isinstance(transform, str):
        raise PerfError(f"perf.assert_whatif({transform!r}): expected the name of an optimisation")
    try:
        limit = parse_limit("step_time", gains_less_than)
        if limit.relative is None or limit.relative >= 1 or limit.absolute is not None:
            raise ValueError
    except ValueError:
        raise PerfError(f"gains_less_than={gains_less_than!r}: expected a share such as '3%'") from None
    if machine is not None and not isinstance(machine, Machine):
        raise PerfError(f"machine={machine!r}: expected a pytest_perfdl.predict.whatif.machine.Machine")
    try:
        known = read(transform, {name: str(value) for name, value in parameters.items()})
    except ValueError as error:
        raise PerfError(f"perf.assert_whatif: {error}") from None
    return WhatIfExpectation(call, transform, known, limit.text, machine)


def check_asserted(comparisons: Iterable[Comparison]) -> None:
    """Refuse a comparison of which nothing is expected."""
    if not all(comparison.asserted for comparison in comparisons):
        raise PerfError(
            "perf.compare(...) by itself expects nothing: add .assert_faster(by=...) or .assert_not_slower(within=...)"
        )


def empty() -> PerfError:
    """What to say of an iterable that yields nothing."""
    return PerfError("perf.steps(...) got an iterable without elements")
