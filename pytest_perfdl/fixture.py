"""What a test author touches: the `perf` fixture, and what may be asked of it.

The fixture has two faces (`faces`): without `--perf` a step runs once, in a worker process it runs as often as
commands ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pytest_perfdl.errors import PerfError
from pytest_perfdl.limits import parse_limit
from pytest_perfdl.record import Better

if TYPE_CHECKING:
    from pytest_perfdl.predict.whatif.machine import Machine

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

    def assert_whatif(
        self,
        transform: str,
        /,
        *,
        gains_less_than: str | int | float,
        machine: Machine | None = None,
        **parameters: Any,
    ) -> None:
        """Expect that an optimisation has next to nothing left to gain: fails where one that should be on is not.

        ::

            perf(train_step, model, batch)
            perf.assert_whatif("fused_optimizer", gains_less_than="3%")

        Under `--perf` the gain is predicted after the test's body, from the trace of a median step of the last call,
        without the profiler's own time, as `perfdl whatif --step-time` does. It fails where the whole range of the
        prediction is above the bound, passes where the prediction is not above it, or nothing is there that could be
        changed, and is inconclusive otherwise.

        Parameters
        ----------
        transform
            An optimisation of `perfdl whatif --list`, or one that the project registers.
        gains_less_than
            Share of the step: "3%".
        machine
            Constants that the trace does not have; what `--machine` is to `perfdl whatif`.
        **parameters
            Those of the optimisation: `dtype="float16"`.
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


@dataclass(frozen=True, slots=True)
class WhatIfExpectation:
    """What a test says of an optimisation: judged after its body, on the trace of one of its calls."""

    call: str
    """Name of the call; empty where it has none."""
    transform: str
    parameters: Mapping[str, Any]
    gains_less_than: str
    """The largest gain that is expected, as a share of the step: "3%"."""
    machine: Machine | None = None
    """Constants that the trace does not have."""


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


def label(fn: Callable[..., object]) -> str:
    """What to call an alternative."""
    return getattr(fn, "__name__", type(fn).__name__)
