"""Projects that had an option, an ini key, a marker or a fixture of our names before: they run as they did."""

import sys
import textwrap

import pytest
import torch  # noqa: F401  # pytester forgets what its runs import, and torch cannot be imported twice
from plugin.project import NOT_JUDGED

from pytest_perfdl.plugin import SETTINGS

OURS = """
    def test_ours(perfdl):
        assert perfdl(lambda: 3) == 3
"""

OPTION = """
    def pytest_addoption(parser):
        parser.addoption("--perf", action="store_true", default=False)
"""
SEES_OPTION = """
    def test_theirs(request):
        assert request.config.getoption("--perf") is True
        assert request.config.option.perf is True
"""
FIXTURE = """
    import pytest

    @pytest.fixture
    def perf():
        return "theirs"
"""
SEES_FIXTURE = """
    def test_theirs(perf):
        assert perf == "theirs"
"""
MARKED = """
    import pytest

    @pytest.mark.perf("slow", level=3)
    def test_theirs(request):
        assert request.node.get_closest_marker("perf").args == ("slow",)
"""
ALL = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--perf", default="no")
        parser.addoption("--perf-dir", dest="perf_dir", default=None)
        parser.addini("perf_dir", "theirs", type="linelist")

    def pytest_configure(config):
        config.addinivalue_line("markers", "perf: theirs")

    @pytest.fixture
    def perf(request):
        return request.config.getoption("perf"), request.config.option.perf_dir, request.config.getini("perf_dir")
"""
SEES_ALL = """
    import pytest

    @pytest.mark.perf
    def test_theirs(perf):
        assert perf == ("yes", "here", ["a", "b"])
"""

# name -> (files, ini, their arguments, ours: the spelling that measures)
SHAPES = {
    "option": ({"conftest.py": OPTION, "test_theirs.py": SEES_OPTION}, "", ["--perf"], ["--perfdl"]),
    "option with a value": (
        {
            "conftest.py": """
                def pytest_addoption(parser):
                    parser.addoption("--perf", choices=["fast", "slow"], default=None)
            """,
            "test_theirs.py": "def test_theirs(pytestconfig): assert pytestconfig.getoption('perf') == 'slow'",
        },
        "",
        ["--perf", "slow"],
        ["--perfdl"],
    ),
    "another option": (
        {
            "conftest.py": """
                def pytest_addoption(parser):
                    parser.addoption("--perf-steps", type=int, default=1)
            """,
            "test_theirs.py": "def test_theirs(pytestconfig): assert pytestconfig.getoption('perf_steps') == 5",
        },
        "",
        ["--perf-steps", "5"],
        ["--perf", "--perfdl-steps=3"],
    ),
    "dest": (
        {
            "conftest.py": """
                def pytest_addoption(parser):
                    parser.addoption("--renew", dest="perf_update", action="store_true")
                    parser.addoption("--speed", dest="perf", default="7")
            """,
            "test_theirs.py": """
                def test_theirs(pytestconfig):
                    assert (pytestconfig.option.perf, pytestconfig.option.perf_update) == ("7", True)
            """,
        },
        "",
        ["--renew"],
        ["--perf"],
    ),
    "ini keys": (
        {
            "conftest.py": """
                def pytest_addoption(parser):
                    parser.addini("perf", "theirs", default="no")
                    parser.addini("perf_limits", "theirs", type="string")
            """,
            "test_theirs.py": """
                def test_theirs(pytestconfig):
                    assert (pytestconfig.getini("perf"), pytestconfig.getini("perf_limits")) == ("true", "none")
            """,
        },
        "perf = true\nperf_limits = none",
        [],
        ["--perf"],
    ),
    "marker in the ini file": (
        {"test_theirs.py": MARKED},
        "markers =\n    perf: speed of this and that",
        ["--strict-markers"],
        ["--perf"],
    ),
    "fixture in a conftest file": ({"conftest.py": FIXTURE, "test_theirs.py": SEES_FIXTURE}, "", [], ["--perf"]),
    "plugin before": (
        {"theirs.py": OPTION + FIXTURE, "test_theirs.py": SEES_OPTION + SEES_FIXTURE.replace("test_", "test_2")},
        "",
        ["--perf"],
        ["--perfdl"],
    ),
    "plugin after": (
        {"theirs.py": OPTION + FIXTURE, "test_theirs.py": SEES_OPTION + SEES_FIXTURE.replace("test_", "test_2")},
        "",
        ["--perf"],
        ["--perfdl"],
    ),
    "conftest file deeper down": (
        {
            "deep/er/conftest.py": """
                def pytest_addoption(parser):
                    parser.addoption("--perf", default="late")
                    parser.addoption("--perf-update", default="late")
                    parser.addini("perf_dir", "theirs", type="linelist")
            """,
            "deep/er/test_theirs.py": """
                def test_theirs(pytestconfig):
                    assert [pytestconfig.getoption(name) for name in ("--perf", "--perf-update")] == ["late", "late"]
                    assert pytestconfig.getini("perf_dir") == ["a", "b"]
            """,
        },
        "perf_dir =\n    a\n    b",
        [],
        ["--perf", "--perf-dir=c"],
    ),
    "fixture and marker deeper down": (
        {
            "deep/er/conftest.py": FIXTURE
            + """
    def pytest_configure(config):
        config.addinivalue_line("markers", "perf(level): theirs")
""",
            "deep/er/test_theirs.py": MARKED + SEES_FIXTURE.replace("test_", "test_2"),
        },
        "",
        [],
        ["--perf"],
    ),
    "everything": (
        {"conftest.py": ALL, "test_theirs.py": SEES_ALL},
        "perf_dir =\n    a\n    b",
        ["--perf=yes", "--perf-dir", "here"],
        ["--perfdl", "--perfdl-dir=c"],
    ),
}


@pytest.fixture
def shape(request, pytester, monkeypatch):
    files, ini, theirs, ours = SHAPES[request.param]
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.syspath_prepend(pytester.path)
    for name, text in {**files, "test_ours.py": OURS}.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    pytester.makeini(f"[pytest]\naddopts = -p no:unraisableexception\n{ini}\n")
    extra = ["-ptheirs"] if "theirs.py" in files else []

    def run(*args, plugin=True):
        mine = ["-pperfdl"] if plugin else []
        sys.modules.pop("theirs", None)
        return pytester.runpytest_inprocess(*(mine + extra if request.param.endswith("after") else extra + mine), *args)

    return run, theirs, ours


def told(result):
    """What a run says, without the time it took and the plugins it lists."""
    lines = [line for line in result.outlines if not line.startswith("plugins:")]
    return [line.partition(" in 0.")[0].rstrip("= ") for line in lines]


@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_a_project_runs_as_without_this_plugin(shape):
    run, theirs, _ = shape
    arguments = [*theirs, "--ignore=test_ours.py", "-Werror"]
    without, beside = run(*arguments, plugin=False), run(*arguments)

    assert without.ret == 0, without.outlines
    assert without.parseoutcomes().keys() == {"passed"}
    assert (beside.ret, beside.errlines) == (without.ret, without.errlines)
    assert told(beside) == told(without)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_and_measures_by_the_spelling_that_is_free(shape):
    run, _, ours = shape
    result = run(*ours, "--perfdl-isolate=none", "--perfdl-warmup=1", "test_ours.py")

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["perf: on, in pytest's process, not compared*", "*perf metrics*", "test_ours.py::test_ours"]
    )
    result.stdout.fnmatch_lines(["    step_time *"])


@pytest.mark.long
def test_an_option_of_somebody_else_is_named_with_ours(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--perf-steps')")
    pytester.makepyfile("def test_ours(perf): perf(int)")
    config = pytester.parseconfigure("-pperfdl", "--perf")
    named = [line for line in config.hook.pytest_report_header(config=config, start_path=pytester.path) if line]

    assert config.stash[SETTINGS].clashes == {"--perf-steps": "conftest.py"}
    assert "--perf-steps is defined by conftest.py: use --perfdl-steps" in str(named)


@pytest.mark.long
def test_a_plugin_that_a_conftest_file_asks_for_has_the_short_spelling(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("pytest_plugins = ['pytest_perfdl.plugin']")
    config = pytester.parseconfigure("--perf-update=all", "--perf-steps", "7", "-operf_dir=here", "--strict-config")
    settings = config.stash[SETTINGS]

    assert (settings.update, settings.steps, settings.folder) == ("all", 7, "here")


@pytest.mark.long
def test_a_marker_that_the_project_lists_is_heeded_beside_our_fixture(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers = perf: speed")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perf(steps=7)
        def test_both(perf): perf(int)

        @pytest.mark.perf
        def test_marker_only(): pass
        """
    )
    result = pytester.runpytest_inprocess("-pperfdl", "--perf", "--perf-isolate=none", "--perf-warmup=1")

    result.stdout.fnmatch_lines(["perf: 1 test with the marker perf not measured, because this project registers *"])
    result.stdout.fnmatch_lines(["*perf metrics*", "test_*::test_both"])
    assert "::test_marker_only" not in result.stdout.str().partition("perf metrics")[2]


@pytest.mark.long
def test_what_is_measured_in_workers_is_not_counted_as_left_out(project):
    project.ini("markers = perf: speed")
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.perf
        def test_both(perf): perf(int)

        @pytest.mark.perf
        def test_marker_only(): pass
        """,
    )
    done = project.run("--perf", *NOT_JUDGED)
    assert done.code == 0, done.output
    assert done.line("with the marker perf not measured").startswith("perf: 1 test with the marker")


@pytest.mark.long
def test_a_fixture_of_the_project_may_ask_for_ours(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def perf(perf):
            return perf
        """
    )
    pytester.makepyfile("def test_ours(perf): perf(int)")
    result = pytester.runpytest_inprocess("-pperfdl", "--perf", "--perf-isolate=none", "--perf-warmup=1")

    result.stdout.fnmatch_lines(["*perf metrics*", "*::test_ours", "    step_time *"])
