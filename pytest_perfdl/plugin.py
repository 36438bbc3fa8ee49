"""pytest hooks of the plugin. They only delegate; the implementation is in `run.session`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_perfdl.config import marker, options, settings, short_names
from pytest_perfdl.config.marker import KEYWORDS, check_axes, marked_backend, parametrize
from pytest_perfdl.config.settings import Settings
from pytest_perfdl.config.short_names import BENCHMARK
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.system import clocks as clocks  # bound before any conftest file is loaded
from pytest_perfdl.system import pytest_internals
from pytest_perfdl.system.import_path import own_imports

if TYPE_CHECKING:
    from pytest_perfdl.fixture.benchmarks import Benchmark
    from pytest_perfdl.fixture.perf import Perf
    from pytest_perfdl.run.in_process import LocalSession
    from pytest_perfdl.run.session import PerfSession
    from pytest_perfdl.system.processes import Ending
    from pytest_perfdl.workers.forks import Forks

SETTINGS = pytest.StashKey[Settings]()
SESSION: pytest.StashKey[PerfSession | LocalSession] = pytest.StashKey()
ENDING: pytest.StashKey[Ending] = pytest.StashKey()
FORKS: pytest.StashKey[Forks] = pytest.StashKey()
SMOKED = pytest.StashKey[frozenset[str]]()
"""Ids of the perf tests of a run that measures nothing."""
LEFT_OUT = pytest.StashKey["str | None"]()
"""A warning about tests that look like perf tests but are not."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    late = short_names.loads_late(pluginmanager)
    options.register(parser, in_short=late)
    if late:
        _offer_fixture(pluginmanager)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    early_config.stash[settings.ENVIRONMENT] = dict(os.environ)
    if "--perf-update" not in short_names.registered(parser):
        settings.refuse_unknown_mode(args)
    if short_names.lengthen(args, options.FLAGS, parser):
        # pytest reports invalid arguments itself when it parses them again.
        with contextlib.suppress(pytest.UsageError):
            pytest_internals.parse_early(early_config, parser, args)
    _offer_fixture(early_config.pluginmanager)
    yield
    short_names.restore(args, parser)
    options.register_short_ini_keys(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_perfdl import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for name in short_names.markers(config):
        config.addinivalue_line(
            "markers",
            f"{name}({', '.join(KEYWORDS)}): "
            "performance test: with --perf its step is measured and compared with a baseline (pytest-perfdl)",
        )
    if _worker(config) is not None:
        _offer_benchmark(config, settings.benchmarks(config))
        return
    config.stash[SETTINGS] = found = settings.resolve(config)
    # Where tests are not measured, pytest-benchmark's own fixture stays, if it has registered its options.
    if found.enabled or not hasattr(config.option, "benchmark_skip"):
        _offer_benchmark(config, found.benchmarks)
    settings.refuse_mode_as_path(config)
    if found.enabled and not config.option.collectonly:
        settings.refuse_xdist(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    found = config.stash.get(SETTINGS, None)
    if found is None or not found.enabled:
        return None
    unused = "" if found.benchmarks == "false" else settings.unused_benchmark_options(config)
    return "\n".join(filter(None, (settings.header(found, config.rootpath), unused)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, short_names.markers(metafunc.config))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> pytest.Item | None:
    """Collect a perf test that is a generator function, to refuse it alone: pytest would end the run."""
    found = collector.config.stash.get(SETTINGS, None)
    if found is None or not found.enabled or not inspect.isgeneratorfunction(obj) or not collector.funcnamefilter(name):
        return None
    item = pytest.Function.from_parent(collector, name=name)
    return item if marker.is_perf_test(item, short_names.markers(collector.config)) else None


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Have a process load what the tests of the last run loaded, while tests are collected."""
    config = session.config
    found = config.stash.get(SETTINGS, None)
    if found is None or not found.enabled or config.option.collectonly or found.isolate == "none":
        return
    with own_imports():
        from pytest_perfdl.workers.forks import last_loaded
        from pytest_perfdl.workers.job import early_plugins
    cache, threads = getattr(config, "cache", None), found.threads or 1
    forks = last_loaded(cache, threads, start=found.start, plugins=early_plugins(config))
    config.stash[FORKS] = forks
    config.add_cleanup(forks.close)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = config.stash.get(SETTINGS, None)
    if found is None:
        return
    # A conftest file in a subdirectory may have registered the marker in the meantime.
    config.stash[SETTINGS] = found = dataclasses.replace(found, markers=short_names.markers(config))
    if config.option.collectonly:
        if found.enabled and found.shard is not None:
            from pytest_perfdl.run.session import PerfSession

            PerfSession(config, found).select(items)
        return
    if not found.enabled:
        config.stash[SMOKED] = frozenset(item.nodeid for item in items if marker.is_perf_test(item, found.markers))
        return
    from pytest_perfdl.system.processes import Ending

    # Before tests are adopted, which then have no fixtures here.
    config.stash[LEFT_OUT] = marker.foreign_marks_line(items, found.markers)
    config.stash[ENDING] = ending = Ending()
    config.add_cleanup(ending.finish)
    config.stash[SESSION] = session = _session(config, found)
    session.collect(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    perf_session = session.config.stash.get(SESSION, None)
    if perf_session is not None:
        perf_session.finish_collecting()


def pytest_report_collectionfinish(config: pytest.Config) -> list[str] | None:
    session = config.stash.get(SESSION, None)
    if session is None:
        return None
    return [line for line in (session.estimate(), config.stash.get(LEFT_OUT, None)) if line]


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    worker = _worker(collector.config)
    if worker is not None and worker.job.attribute and isinstance(collector, pytest.Module):
        from pytest_perfdl.measure import memory_pass

        memory_pass.begin()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Measure tests of a file as cases of one test, in a worker process that is to do so."""
    worker = _worker(session.config)
    if worker is None or not worker.job.tests:
        return None
    from pytest_perfdl.fixture.shared import measure_tests
    from pytest_perfdl.measure.environment import prepare

    def measure(items: Mapping[str, pytest.Function]) -> None:
        prepare(worker.plan, worker.rank_timeout)
        measure_tests(items, worker)

    worker.run_tests(session, measure)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    host = _host(item)
    if host is not None:
        from pytest_perfdl.measure.environment import prepare

        prepare(host.plan, host.rank_timeout)
    elif item.config.stash.get(SESSION, None) is None and isinstance(item, pytest.Function):
        markers = short_names.markers(item.config)
        try:
            check_axes(item, markers)
        except ValueError as error:
            raise PerfError(f"@pytest.mark.{markers[-1]}: {error}") from None
        backend = marked_backend(item, markers)
        if backend is not None:
            from pytest_perfdl.measure import process_group

            process_group.join_alone(backend)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        process_group = sys.modules.get("pytest_perfdl.measure.process_group")
        if process_group is not None:
            process_group.leave()


@pytest.fixture
def perfdl(request: pytest.FixtureRequest) -> Perf:
    """The fixture `perf`, under a name that no other plugin or conftest file uses."""
    return _fixture(request)


class ShortFixture:
    """Registered only if no other plugin defines a fixture `perf`."""

    @pytest.fixture
    def perf(self, request: pytest.FixtureRequest) -> Perf:
        """Measure a step with `--perf`, run it once without; see `pytest_perfdl.fixture.perf.Perf`."""
        return _fixture(request)


class BenchmarkFixtures:
    """Registered only with `--perf-benchmarks`: pytest-benchmark's fixtures and marker."""

    def __init__(self, mode: settings.Benchmarks) -> None:
        self._marked = mode == "marked"

    @pytest.fixture
    def benchmark(self, request: pytest.FixtureRequest) -> Generator[Benchmark, None, None]:
        """Measure a function with `--perf`, run it once without; see `pytest_perfdl.fixture.benchmarks.Benchmark`."""
        from pytest_perfdl.fixture.benchmarks import benchmark_of

        fixture = benchmark_of(_fixture(request), request.node)
        yield fixture
        fixture.clean_up()

    @pytest.fixture
    def benchmark_weave(self, benchmark: Benchmark) -> Callable[..., None]:
        """Benchmark the next call of a function, replaced by aspectlib."""
        return benchmark.weave

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Have a test with the marker alone be a perf test whose function is the step."""
        if self._marked and item.get_closest_marker(BENCHMARK) and not short_names.uses_fixture(item):
            item.add_marker(short_names.LONG)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Around all that runs the test, since `pytest_pyfunc_call` is not called for methods of a `TestCase`."""
    host = _host(item)
    if host is None or not isinstance(item, pytest.Function):
        result = yield
        if isinstance(item, pytest.Function) and short_names.uses_fixture(item):
            from pytest_perfdl.fixture import close

            close(item)
        return result
    from pytest_perfdl.fixture import measuring

    with measuring(item, host):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    session = item.config.stash.get(SESSION, None)
    if session is not None:
        session.dress(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    session = config.stash.get(SESSION, None)
    return None if session is None else session.status(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    perf_session = session.config.stash.get(SESSION, None)
    if perf_session is not None:
        session.exitstatus = perf_session.finish(session.exitstatus)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.summarize(terminalreporter)
        return
    skipped = {report.nodeid for report in terminalreporter.stats.get("skipped", ())}
    if ran := config.stash.get(SMOKED, frozenset()) - skipped:
        terminalreporter.write_line(marker.smoke_line(len(ran)))


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(SESSION, None)
    if session is not None:
        config.stash[ENDING].hold()
        session.close()


def _session(config: pytest.Config, found: Settings) -> PerfSession | LocalSession:
    # Test modules may have put folders on `sys.path` by now.
    with own_imports():
        if found.isolate == "none":
            from pytest_perfdl.run.in_process import LocalSession

            return LocalSession(found)
        from pytest_perfdl.run.session import PerfSession

        return PerfSession(config, found, config.stash.get(FORKS, None))


def _offer_fixture(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the fixture `perf`, unless another plugin defines one; conftest files can override it."""
    if not short_names.has_fixture(pluginmanager):
        pluginmanager.register(ShortFixture(), "perfdl-fixture")


def _fixture(request: pytest.FixtureRequest) -> Perf:
    from pytest_perfdl.fixture import implementation

    return implementation(request.node, _host(request.node))


def _offer_benchmark(config: pytest.Config, mode: settings.Benchmarks) -> None:
    """Register pytest-benchmark's fixtures, in place of its own; unless its options leave no benchmark to be run."""
    if mode == "false" or settings.leaves_benchmarks_out(config):
        return
    config.addinivalue_line("markers", f"{BENCHMARK}: a test of pytest-benchmark, measured as a perf test")
    config.pluginmanager.register(BenchmarkFixtures(mode), "perfdl-benchmarks")


def _worker(config: pytest.Config) -> Any:
    """The plugin of a worker process, if this is one."""
    return config.pluginmanager.get_plugin("perfdl-worker")


def _host(item: pytest.Item) -> Any:
    """The object that runs measurements of this item in this process; `None` if it is not measured here."""
    worker = _worker(item.config)
    if worker is not None:
        return worker
    session = item.config.stash.get(SESSION, None)
    return None if session is None else session.host(item)
