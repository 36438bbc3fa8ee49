"""Beside other plugins, all installed and active as in a user's environment."""

import json

import pytest
from plugin.project import NOT_JUDGED, SHORT

pytestmark = pytest.mark.long
for name in (
    "xdist",
    "pytest_benchmark",
    "pytest_perf",
    "pytest_randomly",
    "pytest_rerunfailures",
    "pytest_timeout",
    "pytest_cov",
):
    pytest.importorskip(name)

SUITE = """
    import os
    import sys

    import pytest


    def step():
        if "EXTRA_OPERATOR" in os.environ:
            import torch

            torch.ones(3) + 1


    def test_ordinary():
        assert step() is None


    def test_benchmark_of_theirs(benchmark):
        benchmark.pedantic(step, rounds=1)


    @pytest.mark.perf
    @pytest.mark.flaky(reruns=2)
    def test_step(perf):
        assert sys.gettrace() is None
        perf(step)


    @pytest.mark.perf
    @pytest.mark.timeout(1)
    @pytest.mark.parametrize("number", [1, 2])
    def test_fails_the_first_time(perf, number):
        with open(f"tries-{number}", "a") as note:
            print("try", file=note)
        with open(f"tries-{number}") as note:
            tries = len(note.readlines())
        # The first process is forked, and the second one shows that it is not for this that the test fails.
        assert tries > 2
        perf(step)
"""

CONFTEST = """
    import os

    NOTES = "workers.txt"


    def note(line):
        with open(NOTES, "a") as file:
            print(line, file=file)


    def pytest_runtest_setup(item):
        if "PYTEST_PERFDL_WORKER" in os.environ:
            note(f"worker {item.name}")


    def pytest_runtest_logreport(report):
        if "PYTEST_PERFDL_WORKER" not in os.environ and report.outcome == "rerun":
            note(f"rerun {report.nodeid.rpartition('::')[2]}")
"""

ALL = ("--timeout=1", "--cov=.", "--cov-report=term", "--cov-branch", "--randomly-seed=5", "--reruns=1", "-n0")


@pytest.fixture
def suite(project):
    project.write("test_suite.py", SUITE)
    project.write("conftest.py", CONFTEST)
    return project


def run(project, *args, **env):
    # Hypothesis is none of those that are looked at, and takes a second in each of many processes.
    return project.run("-pno:hypothesispytest", *args, autoload=True, **env)


def test_a_suite_passes_beside_all_of_them(suite):
    # As coverage's users ask for it in processes that their tests start.
    traced = suite.write(".coveragerc", "[run]\nparallel = true\n")
    options = ("--perf-json=run.json", "--junitxml=junit.xml")
    finished = run(suite, "--perf", *NOT_JUDGED, *ALL, *options, COVERAGE_PROCESS_START=str(traced))
    cases = suite.cases()
    tests = {
        test["id"].rpartition("::")[2]: test for test in json.loads((suite.root / "run.json").read_text())["tests"]
    }

    assert finished.code == 0, finished.output
    plugins = finished.line("plugins: ")
    for name in ("benchmark", "perf", "randomly", "rerunfailures", "xdist", "timeout", "perfdl", "cov"):
        assert f" {name}-" in plugins
    # A failure of the test's own is tried again, in a new worker; a second of --timeout has long passed then.
    assert "5 passed, 2 rerun" in finished.summary()
    assert {case.outcome for case in cases.values()} == {"passed"}
    assert "Timeout" not in finished.output
    # No tracer came into the measured processes, and the rest is covered as ever.
    assert all(test["verdict"] == "missing" for test in tests.values())
    assert not any(finding["code"] == "tracer" for test in tests.values() for finding in test["integrity"])
    assert finished.line("test_suite.py  ")


def test_a_regression_is_not_measured_until_it_is_green(suite):
    limits = ("--perf-limit=step_time:off", "--perf-limit=block_time:off", "--perf-limit=ops:0", "-ktest_step")
    assert run(suite, "--perf-update", "--perf-repeats=1", *SHORT, *limits, *ALL).code == 0
    workers = suite.root / "workers.txt"
    workers.unlink()
    finished = run(suite, "--perf", *SHORT, *limits, *ALL, EXTRA_OPERATOR="1")
    notes = workers.read_text().splitlines()

    assert finished.code == 1
    assert "1 failed, 4 deselected, 2 rerun" in finished.summary()
    assert notes[-2:] == ["rerun test_step", "rerun test_step"]
    assert notes.count("worker test_step") == len(notes) - 2 > 0


def test_a_plugin_that_writes_does_so_in_one_process_and_own_options_arrive(project):
    project.write(
        "pytest_csv.py",
        """
        import os

        def pytest_addoption(parser):
            parser.addoption("--csv", dest="csv_path")

        def pytest_configure(config):
            if config.getoption("csv_path"):
                with open(config.getoption("csv_path"), "a") as file:
                    file.write(f"{os.getpid()}\\n")
        """,
    )
    project.write("conftest.py", "def pytest_addoption(parser):\n    parser.addoption('--timeout', default='none')\n")
    project.write(
        "test_speed.py",
        """
        import pytest

        @pytest.mark.perf
        def test_step(perf, request):
            assert request.config.getoption("timeout") == "mine"
            perf(lambda: None)
        """,
    )
    finished = project.run(
        "--perf", *NOT_JUDGED, "--csv=t.csv", "--timeout=mine", plugins=["pytest_csv"], PYTHONPATH="."
    )
    assert finished.code == 0, finished.output
    assert (project.root / "t.csv").read_text().count("\n") == 1


def test_smoke_tests_run_under_xdist(suite):
    finished = run(suite, "-n2", "-k", "step or ordinary")

    assert finished.code == 0
    assert "2 passed" in finished.summary()
    assert run(suite, "-n2", "--perf").code == pytest.ExitCode.USAGE_ERROR


def test_a_teardown_that_fails_is_tried_again(project):
    project.write(
        "test_speed.py",
        """
        import pytest

        @pytest.fixture
        def broken():
            yield
            raise OSError("the teardown of a test")

        @pytest.mark.perf
        def test_step(perf, broken):
            perf(int)
        """,
    )
    finished = run(project, "--perf", *NOT_JUDGED, "--reruns=1")
    assert finished.code == 1, finished.output
    assert "the teardown of a test" in finished.output
    assert "INTERNALERROR" not in finished.output
