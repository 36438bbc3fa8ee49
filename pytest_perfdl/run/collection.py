"""Selects perf tests among the collected items, and validates their markers."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_perfdl.config.marker import KEYWORDS, MarkerOptions, check_axes, is_perf_test, is_unittest, ranks_of
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.config.short_names import BENCHMARK, SHARED, marks, uses_benchmark, uses_fixture
from pytest_perfdl.measure.loops import Loops
from pytest_perfdl.model.cases import LONGEST_ID
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.limits import BUILT_IN, PER_KERNEL, Limits, parse_limit_option
from pytest_perfdl.model.metrics import CASE_TIME, GROUP_TIME, METRICS, general, is_utilization, is_zero_if_absent
from pytest_perfdl.model.record import LoopCount, MeasurementPlan, Record
from pytest_perfdl.model.units import plural
from pytest_perfdl.model.waivers import Waiver, waivers_for
from pytest_perfdl.system.pytest_internals import fixture_functions, wide_parameters
from pytest_perfdl.workers.definition import Read, read_file, test_hash
from pytest_perfdl.workers.job import exempt_from_timeout

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{4,}")
"""In the text of an object without one of its own: `<object at 0x7f12c0>`."""
_OF_TABLES = dict.fromkeys((CASE_TIME, GROUP_TIME))
"""Metrics of tables that records do not hold as such."""
_SHARED_HASH = hashlib.sha256(SHARED.encode()).hexdigest()[:16]
"""Of the tests of a file together: each has its own."""
_LIMIT_SOURCES = ("ini perf_limits", "--perf-limit")


@dataclass(frozen=True, slots=True)
class CaseTest:
    """A test that is a case of another one."""

    item: pytest.Function
    group: tuple[object, ...]
    """Its class, and the parameters of its fixtures that live longer than a test: those with the same follow each other
    in a process."""


@dataclass(frozen=True, slots=True)
class PerfTest:
    """A perf test: the item and what its author and the settings ask for."""

    item: pytest.Function
    options: MarkerOptions
    plan: MeasurementPlan
    limits: Limits
    """Marker over command line over ini over built-in."""
    own_limits: Limits
    """The marker's alone."""
    hash: str
    """Of the test's definition and parameters."""
    loops: Loops = field(default_factory=Loops, compare=False)
    """How many calls make a step."""
    cases: Mapping[str, CaseTest] = field(default_factory=dict, compare=False)
    """The tests of a file that share processes, by id of the case; empty for all other tests."""

    @property
    def demands(self) -> tuple[str, ...]:
        """Metrics that the marker holds to a limit or a budget."""
        limits, budgets = self.own_limits.limits, self.own_limits.budgets
        held = {name for name in limits if not limits[name].off} | {name for name in budgets if not budgets[name].off}
        return tuple(sorted(held))

    def unknown_metrics(self, record: Record) -> tuple[str, ...]:
        """Metrics that the marker holds and the test did not measure, without those that a test may be without."""
        return tuple(
            name
            for name in self.own_limits.unmatched({**record.metrics(), **(_OF_TABLES if record.table else {})})
            if not (is_utilization(name) or is_zero_if_absent(name) or self._is_left_alone(name))
        )

    def _is_left_alone(self, name: str) -> bool:
        """Whether the marker names a metric only to say that it has no limit."""
        return general(name) in METRICS and self.own_limits.is_off(name) and name not in self.own_limits.budgets


def unmeasured_limits(settings: Settings, records: Iterable[Record]) -> str:
    """A line about a limit in options or ini for a metric that no test measures; empty if there is none.

    A built-in metric may be missing on this machine and is not reported.
    """
    known = {*METRICS, PER_KERNEL, *(general(name) for record in records for name in record.metrics())}
    for source, texts in zip(_LIMIT_SOURCES, settings.limits, strict=True):
        for name in (general(parse_limit_option(text)[0]) for text in texts):
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                return f"{source}: no test in this session measures the metric {name}{meant}"
    return ""


def is_bare(item: pytest.Item) -> bool:
    """Whether the test function itself is the step, because it does not use the fixture."""
    return not uses_fixture(item)


Refused = dict[str, tuple[pytest.Item, str]]
"""Perf tests that cannot be measured, by node id, with the reason in one line; they fail in their setup."""


def adopt(
    items: list[pytest.Item], settings: Settings, waivers: Sequence[Waiver] = ()
) -> tuple[dict[str, PerfTest], Refused]:
    """Find the perf tests, by node id, and move them to the front of `items`, in their order.

    They run first, so that session fixtures of other tests are not active in this process at that time.

    Raises
    ------
    pytest.UsageError
        Limits in options or ini are invalid.
    """
    tests: dict[str, PerfTest] = {}
    refused: Refused = {}
    merged = _general_limits(settings)
    ids, read = {item.nodeid for item in items}, functools.cache(read_file)
    for item in items:
        if not is_perf_test(item, settings.markers):
            continue
        try:
            waived = waivers_for(item.nodeid, waivers, ids)
            tests[item.nodeid] = test = _perf_test(item, settings, merged, waived, read)
        except ValueError as error:
            reason = f"@pytest.mark.{settings.markers[-1]}: {error}"
            refused[item.nodeid] = item, reason
            _refuse(item, reason)
        else:
            exempt_from_timeout(test.item)
    items.sort(key=lambda item: item.nodeid not in tests and item.nodeid not in refused)
    return tests, refused


def _refuse(item: Any, reason: str) -> None:
    """Have the item fail in its setup, before any fixture."""

    def setup() -> None:
        __tracebackhide__ = True
        raise PerfError(reason)

    item.setup, item.teardown = setup, lambda: None


class SharedFile(pytest.Function):
    """The item of all tests of a file that share processes; it stands before them."""

    def reportinfo(self) -> tuple[Path, int, str]:
        """The file."""
        return self.path, 0, self.name


def share(
    tests: Mapping[str, PerfTest], items: list[pytest.Item], settings: Settings, waivers: Sequence[Waiver] = ()
) -> dict[str, PerfTest]:
    """Join the benchmarks of each file to one test, whose item is put before theirs in `items` (in place).

    Those whose marker `perf` has keywords, coroutine functions and methods of a `unittest.TestCase` stay by themselves.
    """
    found: dict[str, PerfTest] = {}
    cases: dict[str, dict[str, CaseTest]] = {}
    for nodeid, test in tests.items():
        item, (file, _, case) = test.item, nodeid.partition("::")
        module = item.getparent(pytest.Module)
        if module is None or not _shares(test, settings) or len(case) > LONGEST_ID or not case.isprintable():
            found[nodeid] = test
            continue
        if file not in cases:
            cases[file] = {}
            whole = SharedFile.from_parent(module, name=SHARED, callobj=lambda: None)
            # None of them has keywords of its own: plan and limits are those of all.
            limits = replace(test.limits, waivers=waivers_for(whole.nodeid, waivers, {whole.nodeid}))
            found[whole.nodeid] = replace(
                test, item=whole, limits=limits, hash=_SHARED_HASH, loops=Loops(), cases=cases[file]
            )
            exempt_from_timeout(whole)
            items.insert(items.index(item), whole)
        owner = "" if item.parent is None else item.parent.nodeid
        cases[file][case] = CaseTest(item, (owner, *wide_parameters(item)))
    return found


def _shares(test: PerfTest, settings: Settings) -> bool:
    """Whether a test may share processes with others of its file."""
    item, options = test.item, test.options
    marked = settings.benchmarks == "marked" and is_bare(item) and item.get_closest_marker(BENCHMARK) is not None
    return (
        settings.shared
        and (marked or uses_benchmark(item))
        and replace(options, shared=None) == MarkerOptions()
        and options.shared is not False
        and not inspect.iscoroutinefunction(item.function)
        and not is_unittest(item)
    )


def hide_fixtures(items: Iterable[pytest.Item]) -> None:
    """Tell of no fixtures of tests that are not set up here: hooks that look into `item.funcargs` would miss them.

    Once all items are known: anyio replaces coroutine functions that do not have its fixture then.
    """
    for item in items:
        private: Any = item
        private.fixturenames = []


def _general_limits(settings: Settings) -> Limits:
    merged = BUILT_IN
    for source, texts in zip(_LIMIT_SOURCES, settings.limits, strict=True):
        try:
            given = Limits(dict(parse_limit_option(text) for text in texts))
        except ValueError as error:
            raise pytest.UsageError(f"{source}: {error}") from None
        merged = given.over(merged)
    return merged


def _perf_test(
    item: pytest.Item, settings: Settings, merged: Limits, waivers: tuple[Waiver, ...], read: Read
) -> PerfTest:
    assert isinstance(item, pytest.Function)
    if _ADDRESS.search(item.nodeid):
        raise ValueError("the test id contains an address, which differs in every process: use ids= with fixed names")
    if inspect.isgeneratorfunction(item.function) or inspect.isasyncgenfunction(item.function):
        raise ValueError("a perf test cannot be a generator function: remove yield from the test")
    if is_bare(item) and (other := _benchmark_plugin(item)):
        raise ValueError(
            f"the whole test is the step, but its fixture benchmark ({other}) measures by itself: call perf(step) of "
            "the fixture perf instead of benchmark(step), or measure such tests with --perf-benchmarks"
        )
    check_axes(item, settings.markers)
    options = MarkerOptions.merge(marks(item, settings.markers, KEYWORDS))
    own = _parsed(lambda: Limits.parse(options.limits or {}, options.budget or {}))
    usual: LoopCount = "auto" if uses_benchmark(item) else 1
    loops = Loops(settings.loops or usual) if options.loops is None else Loops(options.loops, by_marker=True)
    limits = replace(own.over(merged), waivers=waivers)
    plan = options.plan(settings, _ranks(item, options, settings))
    return PerfTest(item, options, plan, limits, own, test_hash(item, read), loops)


def _ranks(item: pytest.Function, options: MarkerOptions, settings: Settings) -> int | None:
    ranks = ranks_of(item, options)
    if ranks is not None and ranks % settings.launch.nodes:
        nodes = plural(settings.launch.nodes, "node")
        raise ValueError(f"ranks={ranks} cannot be divided among {nodes} (--perf-nodes)")
    return ranks


def _parsed(parse: Callable[[], Limits]) -> Limits:
    try:
        return parse()
    except ValueError as error:
        raise ValueError(f"invalid {error}") from None


def _benchmark_plugin(item: pytest.Item) -> str:
    """The plugin whose fixture `benchmark` a test uses; empty if it uses none, or the project's own."""
    functions = fixture_functions(item, BENCHMARK) if BENCHMARK in getattr(item, "fixturenames", ()) else ()
    tops = [function.__module__.partition(".")[0] for function, _ in functions]
    return next((top.replace("_", "-") for top in tops if top.startswith("pytest_")), "")
