"""The commands that reports show do what was done."""

import shlex

import pytest

from pytest_perfdl.config.invocation import Invocation, invocation
from pytest_perfdl.plugin import SETTINGS

CONFTEST = """
    def pytest_addoption(parser):
        parser.addoption("--device", default="cpu")
        parser.addoption("--hub-token")
        parser.addoption("--large", action="store_true")
        parser.addoption("--sources", nargs="?", const="all")
        parser.addoption("--shapes", nargs="*")
"""


@pytest.fixture
def called(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr("sys.argv", ["pytest"])
    pytester.makeconftest(CONFTEST)
    pytester.mkdir("tests").joinpath("test_it.py").write_text("")

    def call(*args):
        config = pytester.parseconfigure("-pperfdl", *args)
        return invocation(config, config.stash[SETTINGS])

    return call


TEST = "tests/test_it.py::test_step[a b]"


@pytest.mark.long
@pytest.mark.parametrize(
    "args, measuring, updating",
    [
        ("--perf", "--perf", "--perf-update"),
        ("--perf-update=all tests", "--perf", "--perf-update"),
        ("--perf-update", "--perf", "--perf-update"),
        ("--perf-against HEAD~1", "--perf-against HEAD~1", "--perf-update"),
        ("--perf-against=main --perf-inject 5", "--perf-against=main --perf-inject 5", "--perf-update"),
        (
            "--perf -operf_dir=x -o perf_threads=2 --override-ini=a=b",
            "--perf -operf_dir=x -o perf_threads=2 --override-ini=a=b",
            "--perf-update -operf_dir=x -o perf_threads=2 --override-ini=a=b",
        ),
        (
            "--perf --perf-steps 8 --perf-limit step_time:5% --perfdl-dir=x --perf-json run.json --perf-report=r",
            "--perf --perf-steps 8 --perf-limit step_time:5% --perfdl-dir=x",
            "--perf-update --perf-steps 8 --perf-limit step_time:5% --perfdl-dir=x",
        ),
        (
            "--perf -q -x -vv --tb=short -k step -m perf tests/test_it.py --deselect a --maxfail 3",
            "--perf",
            "--perf-update",
        ),
        ("--perf --junitxml x.xml -rA --color no -s --durations=3", "--perf", "--perf-update"),
        ("--perf --rootdir . -Werror", "--perf --rootdir . -Werror", "--perf-update --rootdir . -Werror"),
        (
            "--device cuda --perf --large --hub-token hf_abc",
            "--perf --device cuda --large",
            "--perf-update --device cuda --large",
        ),
        ("--perf --perf-require 1 -- tests", "--perf", "--perf-update"),
        ("--perf --sources --large", "--perf --sources --large --", "--perf-update --sources --large --"),
        ("--sources src --perf", "--perf --sources src", "--perf-update --sources src"),
        ("--sources=src --perf", "--perf --sources=src", "--perf-update --sources=src"),
        ("--shapes 1 2 --perf", "--perf --shapes 1 2 --", "--perf-update --shapes 1 2 --"),
    ],
)
def test_what_a_command_keeps(called, args, measuring, updating):
    found = called(*shlex.split(args))

    assert found.measuring([TEST]) == f"pytest {_after(measuring)} 'tests/test_it.py::test_step[a b]'"
    assert found.updating([TEST]) == f"pytest {_after(updating)} 'tests/test_it.py::test_step[a b]'"
    assert found.updating([TEST], "new") == found.updating([TEST]).replace("-update", "-update=new", 1)


def _after(words):
    first, *others = shlex.split(words)
    plugin = ["-pperfdl"]
    if first.startswith("--perf-against"):
        return shlex.join([*plugin, first, *others])
    return shlex.join([first, *plugin, *others])


def test_tests_are_named_from_the_folder_that_pytest_was_called_in(called, pytester, monkeypatch):
    pytester.makeini("[pytest]")
    monkeypatch.chdir(pytester.path / "tests")
    config = pytester.parseconfig("-pperfdl", "--perf", "test_it.py")

    assert Invocation(folder="tests").measuring([TEST]) == "pytest --perf 'test_it.py::test_step[a b]'"
    assert Invocation(folder="other/deep").measuring([TEST]) == "pytest --perf '../../tests/test_it.py::test_step[a b]'"
    assert (
        Invocation(root="../project").measuring([TEST]) == "pytest --perf '../project/tests/test_it.py::test_step[a b]'"
    )
    assert config.rootpath == pytester.path


@pytest.mark.long
def test_the_spelling_that_holds_here(called, pytester):
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--perf', action='store_true')")
    found = called("--perfdl")

    assert found.measuring([TEST]).startswith("pytest --perfdl -pperfdl ")
    assert found.updating([TEST]).startswith("pytest --perf-update -pperfdl ")


@pytest.mark.long
def test_python_that_runs_pytest_as_a_module(called, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/pytest/__main__.py"])

    assert called("--perf").measuring([]) == "python -m pytest --perf -pperfdl"


@pytest.mark.long
def test_one_test_is_not_held_to_the_number_that_the_ini_file_wants(called, pytester):
    pytester.makeini("[pytest]\nperf_require = 10\n")
    found = called("--perf")
    assert found.measuring([TEST]) == "pytest --perf --perf-require=0 -pperfdl 'tests/test_it.py::test_step[a b]'"
    assert "--perf-require" not in found.updating([TEST])
    assert called("--perf", "--perf-require=0").measuring([TEST]) == found.measuring([TEST])


@pytest.mark.long
def test_a_command_for_an_option_that_may_take_a_value_runs_the_test(called, pytester):
    pytester.path.joinpath("tests/test_it.py").write_text("def test_it():\n    pass\n")
    command = called("--perf", "--sources").measuring(["tests/test_it.py::test_it"])
    program, *words = shlex.split(command)
    config = pytester.parseconfigure(*words)
    assert (program, config.args, config.getoption("--sources")) == ("pytest", ["tests/test_it.py::test_it"], "all")
