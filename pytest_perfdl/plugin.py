"""pytest's hooks. Every line here is a hook or one call; the story is in `session`."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_perfdl import options

if TYPE_CHECKING:
    from pytest_perfdl.fixture import Perf
    from pytest_perfdl.local import LocalSession
    from pytest_perfdl.session import PerfSession

SETTINGS = pytest.StashKey[options.Settings]()
SESSION: pytest.StashKey[PerfSession | LocalSession] = pytest.StashKey()
SMOKED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.register(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_perfdl import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    marker = config.getini("perf_marker") or "perf"
    config.addinivalue_line(
        "markers",
        f"{marker}(limits, budget, warmup, steps, repeats, threads, seed, timeout, tags, scaling): "
        "a performance test: under --perf its step is measured and judged (pytest-perfdl)",
    )
    if _worker(config) is not None:
        return
    config.stash[SETTINGS] = settings = options.resolve(config)
    if settings.enabled and not config.option.collectonly:
        options.refuse_xdist(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    settings = config.stash.get(SETTINGS, None)
    if settings is None or not settings.enabled:
        return None
    return options.header(settings, config.rootpath)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from pytest_perfdl.marker import parametrize

    parametrize(metafunc, metafunc.config.getini("perf_marker") or "perf")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    settings = config.stash.get(SETTINGS, None)
    if settings is None or config.option.collectonly:
        return
    if not settings.enabled:
        config.stash[SMOKED] = sum(options.is_perf_test(item, settings.marker) for item in items)
        return
    config.stash[SESSION] = session = _session(config, settings)
    session.collect(items)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    session = config.stash.get(SESSION, None)
    return None if session is None else session.estimate()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    host = _host(item)
    if host is not None:
        from pytest_perfdl.measure.prepare import prepare

        prepare(host.plan)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measures a step under `--perf`, runs it once otherwise; see `pytest_perfdl.fixture.Perf`."""
    from pytest_perfdl.faces import Measured, Smoke

    host = _host(request.node)
    return Smoke() if host is None else Measured(host)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    host = _host(pyfuncitem)
    if host is None:
        result = yield
        if options.FIXTURE in pyfuncitem.funcargs:
            from pytest_perfdl.faces import close

            close(pyfuncitem)
        return result
    from pytest_perfdl.faces import measuring

    with measuring(pyfuncitem, host):
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
    elif config.stash.get(SMOKED, 0):
        terminalreporter.write_line(options.smoke_line(config.stash[SMOKED]))


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.close()


def _session(config: pytest.Config, settings: options.Settings) -> PerfSession | LocalSession:
    if settings.isolate == "none":
        from pytest_perfdl.local import LocalSession

        return LocalSession(settings)
    from pytest_perfdl.session import PerfSession

    return PerfSession(config, settings)


def _worker(config: pytest.Config) -> Any:
    """The plugin of a worker process, when this is one."""
    return config.pluginmanager.get_plugin("perfdl-worker")


def _host(item: pytest.Item) -> Any:
    """Who asks for measurements of this item in this process; `None` when nobody does."""
    worker = _worker(item.config)
    if worker is not None:
        return worker
    session = item.config.stash.get(SESSION, None)
    return None if session is None else session.host(item)
