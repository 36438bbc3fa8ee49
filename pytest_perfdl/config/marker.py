"""Keywords of the marker `perf`, merged and validated during collection."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest

from pytest_perfdl.config import short_names
from pytest_perfdl.config.options import CHECKING_REPEATS, RECORDING_REPEATS
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.config.short_names import marks
from pytest_perfdl.model.units import plural

if TYPE_CHECKING:
    from pytest_perfdl.model.record import LoopCount, MeasurementPlan


@dataclass(frozen=True, slots=True)
class MarkerOptions:
    """Keywords of the marker, merged from module to class to function; all are optional.

    `limits`, `budget`, `resolution` and `timeout` take precedence over the command line; for the other keywords the
    command line takes precedence. Keywords take precedence over ini values.
    """

    limits: Mapping[str, str | int | float] | None = None
    """Metric -> largest relative change for the worse: "3%", "5%+20us", 0 or "off"."""
    budget: Mapping[str, str | int | float] | None = None
    """Metric -> absolute bound, independent of the baseline: "45ms", "2GiB"."""
    warmup: int | None = None
    """Minimum number of warm-up steps."""
    steps: int | None = None
    """Number of timed steps per process."""
    period: int | None = None
    """Steps after which costs recur; passes over the steps are of whole periods, and times are means over one."""
    repeats: int | None = None
    """Number of fresh processes that measure the test."""
    threads: int | None = None
    """Number of intra-op threads in a measured process."""
    loops: LoopCount | None = None
    """Calls of the function in one timed step, or "auto" for as many as take 100 us; times are reported per call."""
    ranks: int | Sequence[int] | None = None
    """Number of processes that run the step together; several numbers are the sizes of `scaling={"ranks": ...}`."""
    backend: str | None = None
    """Backend of the process group of the ranks; by default "nccl" with CUDA, else "gloo"."""
    seed: int | None = None
    """Seed of the random number generators."""
    timeout: float | None = None
    """Time limit of one measured process, in seconds."""
    resolution: str | None = None
    """When the time budget ends, the test is `unchanged` if a slowdown above this is excluded: "6%"."""
    tags: tuple[str, ...] | None = None
    """Arbitrary labels, shown in reports."""
    scaling: Mapping[str, Sequence[float]] | None = None
    """Argument of the test -> its sizes: one test per size; step time as a function of size is compared as well."""
    shared: bool | None = None
    """Of a test of pytest-benchmark, false: measured in processes of its own, not in those of all such tests of the
    file."""

    @classmethod
    def merge(cls, marks: Sequence[pytest.Mark]) -> MarkerOptions:
        """Join marks from the outermost to the innermost; mappings join, other values replace.

        Raises
        ------
        ValueError
            One line that names the unknown or invalid keyword.
        """
        merged: dict[str, Any] = {}
        for mark in marks:
            if mark.args:
                raise ValueError(f"expected keyword arguments only, got {mark.args[0]!r}")
            for name, value in mark.kwargs.items():
                if name not in KEYWORDS:
                    raise ValueError(f"unknown keyword {name!r}; valid keywords: {', '.join(sorted(KEYWORDS))}")
                _CHECKS[name](name, value)
                merged[name] = {**merged.get(name, {}), **value} if isinstance(value, Mapping) else value
        if "tags" in merged:
            merged["tags"] = tuple(merged["tags"])
        if isinstance(merged.get("ranks"), Sequence):
            merged["scaling"] = {**merged.get("scaling", {}), RANKS: merged.pop("ranks")}
        if merged.get("backend") and merged.get("ranks") is None and RANKS not in merged.get("scaling", {}):
            raise ValueError("backend= is the backend of a process group: set ranks= as well")
        return cls(**merged)

    def plan(self, settings: Settings, ranks: int | None = None) -> MeasurementPlan:
        """The measurement plan: command line over marker over ini over built-in; `ranks` as `ranks_of` says."""
        from pytest_perfdl.model.record import MeasurementPlan

        def shape(name: str, default: int) -> int:
            for value in (getattr(settings, name), getattr(self, name), settings.ini_shape.get(name)):
                if value is not None:
                    return int(value)
            return default

        return MeasurementPlan(
            warmup=shape("warmup", 15),
            steps=shape("steps", 40),
            threads=shape("threads", 1),
            period=self.period or 1,
            seed=self.seed if self.seed is not None else 0,
            ranks=ranks or 0,
            backend=(self.backend or "") if ranks else "",
        )

    def repeats_for(self, settings: Settings, *, recording: bool) -> int:
        """Number of fresh processes: command line over marker over ini over the default."""
        for value in (settings.repeats, self.repeats, settings.ini_shape.get("repeats")):
            if value is not None:
                return value
        return RECORDING_REPEATS if recording else CHECKING_REPEATS

    def resolution_for(self, settings: Settings) -> float | None:
        """The resolution as a fraction: marker over command line and ini; `None` for twice the limit."""
        return settings.resolution if self.resolution is None else _percent("resolution", self.resolution)


RANKS = "ranks"
"""The axis of `scaling=` that is the number of ranks; other axes are arguments of the test only."""
KEYWORDS = tuple(field.name for field in fields(MarkerOptions))
"""Names of the keywords."""


def ranks_of(item: pytest.Item, options: MarkerOptions) -> int | None:
    """The number of ranks of a test: a size of its curve over `ranks`, or the marker's; `None` without either."""
    if RANKS in (options.scaling or {}):
        size: int = getattr(getattr(item, "callspec", None), "params", {})[RANKS]
        return size
    return options.ranks if isinstance(options.ranks, int) else None


def marked_backend(item: pytest.Item, markers: tuple[str, ...]) -> str | None:
    """The backend of a test with ranks, empty for the usual one; `None` for a test without ranks.

    Keywords are not validated, because the test is not measured.
    """
    found = None
    for mark in marks(item, markers, KEYWORDS):
        scaling = mark.kwargs.get("scaling")
        if mark.kwargs.get("ranks") is not None or (isinstance(scaling, Mapping) and RANKS in scaling):
            found = found or ""
        if isinstance(mark.kwargs.get("backend"), str):
            found = mark.kwargs["backend"] if found is not None else None
    return found


def parametrize(metafunc: pytest.Metafunc, markers: tuple[str, ...]) -> None:
    """Parametrize a test with the sizes in the marker's `scaling=`: `test_step[batch=8]`.

    A test whose keyword is invalid stays as it is: it fails by itself, in its setup (`check_axes`).
    """
    try:
        axes = check_axes(metafunc.definition, markers)
    except ValueError:
        return
    if RANKS in axes and RANKS not in metafunc.fixturenames:
        # The number of processes is no argument of most tests.
        metafunc.fixturenames.append(RANKS)
    for name, sizes in axes.items():
        metafunc.parametrize(name, list(sizes), ids=[f"{name}={size!r}" for size in sizes])


def check_axes(item: pytest.Item, markers: tuple[str, ...]) -> dict[str, Sequence[float]]:
    """The sizes of a test by parameter, from the markers' `scaling=` and `ranks=`.

    Raises
    ------
    ValueError
        The sizes are invalid, or the test cannot get them.
    """
    axes: dict[str, Sequence[float]] = {}
    for mark in marks(item, markers, KEYWORDS):
        if (sizes := mark.kwargs.get("scaling")) is not None:
            _check_scaling("scaling", sizes)
            axes |= sizes
        if isinstance(ranks := mark.kwargs.get("ranks"), Sequence):
            _check_ranks("ranks", ranks)
            axes[RANKS] = ranks
    parametrized = " ".join(str(mark.args[0]) for mark in item.iter_markers("parametrize") if mark.args)
    if axes and is_unittest(item):
        raise ValueError("sizes are arguments, which methods of a unittest.TestCase do not get: use a test function")
    for name in axes:
        if re.search(rf"\b{name}\b", parametrized):
            raise ValueError(f"scaling= and @pytest.mark.parametrize both give {name}: remove one of them")
        if name != RANKS and name not in getattr(item, "fixturenames", (name,)):
            raise ValueError(f"scaling= gives {name}, which is not an argument of the test: add the argument")
    return axes


def _check_scaling(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{name}= must map an argument to its sizes, got {value!r}")
    for axis, sizes in value.items():
        what = f"{name}[{axis!r}] must be at least three different numbers above 0, got {sizes!r}"
        if not isinstance(axis, str) or not axis.isidentifier():
            raise ValueError(f"{name}= must map argument names, got {axis!r}")
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            raise ValueError(what)
        if not all(_is_number(size) and 0 < size < math.inf for size in sizes) or len({*sizes}) != len(sizes):
            raise ValueError(what)
        if len(sizes) < 3:
            raise ValueError(what)


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(metric, str) for metric in value):
        raise ValueError(f"{name}= must map metric names to quantities, got {value!r}")
    for metric, spec in value.items():
        if isinstance(spec, bool) or not isinstance(spec, (str, int, float)):
            raise ValueError(f"{name}[{metric!r}] must be a string or a number, got {spec!r}")


def _must(be: str, holds: Callable[[Any], bool]) -> Callable[[str, Any], None]:
    """A check of a keyword's value."""

    def check(name: str, value: Any) -> None:
        if not holds(value):
            raise ValueError(f"{name}= must be {be}, got {value!r}")

    return check


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(least: int) -> Callable[[str, Any], None]:
    return _must(f"an integer of at least {least}", lambda value: _is_whole(value, least))


def _check_ranks(name: str, value: Any) -> None:
    if isinstance(value, Sequence) and not isinstance(value, str):
        _check_scaling("scaling", {RANKS: value})
        for number in value:
            _whole(1)(name, number)
        return
    _whole(1)(name, value)


def _percent(name: str, value: Any) -> float:
    try:
        share = float(value.strip().removesuffix("%")) / 100 if isinstance(value, str) else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise ValueError(f"{name}= must be a percentage above 0 such as '6%', got {value!r}")
    return share


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "limits": _check_mapping,
    "budget": _check_mapping,
    "warmup": _whole(0),
    "steps": _whole(2),
    "period": _whole(1),
    "repeats": _whole(1),
    "threads": _whole(1),
    "ranks": _check_ranks,
    "backend": _must(
        "a backend of torch.distributed, such as 'gloo' or 'nccl'",
        lambda value: isinstance(value, str) and bool(value.strip()),
    ),
    "loops": _must("an integer of at least 1 or 'auto'", lambda value: value == "auto" or _is_whole(value, 1)),
    "seed": _whole(0),
    "timeout": _must("a number of seconds above 0", lambda value: _is_number(value) and 0 < value < math.inf),
    "resolution": _percent,
    "tags": _must(
        "a tuple of strings",
        lambda value: isinstance(value, (tuple, list)) and all(isinstance(tag, str) for tag in value),
    ),
    "scaling": _check_scaling,
    "shared": _must("True or False", lambda value: isinstance(value, bool)),
}


# Which items are perf tests, and the lines printed about perf tests that are not measured.


NOTHING_SELECTED = "perf: no perf test was selected, so nothing was measured"


def is_perf_test(item: pytest.Item, markers: tuple[str, ...]) -> bool:
    """Whether an item has the marker or uses the fixture.

    A doctest in a marked module inherits the marker but is not a perf test. Methods of a `unittest.TestCase` need the
    marker: a fixture for the whole class, which gives one of them `self.perf`, is used by all.
    """
    if not isinstance(item, pytest.Function):
        return False
    if any(item.get_closest_marker(name) for name in markers):
        return True
    return not is_unittest(item) and short_names.uses_fixture(item)


def is_unittest(item: pytest.Item) -> bool:
    """Whether an item is a method of a `unittest.TestCase`, which pytest gives no arguments."""
    cls, unittest = getattr(item, "cls", None), sys.modules.get("unittest")
    return cls is not None and unittest is not None and issubclass(cls, unittest.TestCase)


def smoke_line(tests: int) -> str:
    """The summary line of a run without `--perf`."""
    return f"perf: {plural(tests, 'perf test')} ran once, unmeasured; run pytest --perf to measure"


def foreign_marks_line(items: Sequence[pytest.Item], markers: tuple[str, ...]) -> str | None:
    """A warning about tests with a marker `perf` that the project itself registers; `None` if there are none."""
    if markers != (short_names.LONG,):
        return None
    others = [item for item in items if not is_perf_test(item, markers)]
    count = sum(item.get_closest_marker(short_names.SHORT) is not None for item in others)
    if not count:
        return None
    return (
        f"perf: {plural(count, 'test')} with the marker perf not measured, because this project registers a marker "
        "named perf: use the marker perfdl, or set perf_marker = perf"
    )
