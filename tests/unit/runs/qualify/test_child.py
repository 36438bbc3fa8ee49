"""One run of the suite: what pytest is told, and what is made of how it ends."""

import json
import signal
import sys
import threading
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.results.run import Run
from pytest_perfdl.results.run_file import to_json
from pytest_perfdl.runs import qualify
from pytest_perfdl.runs.qualify import command, run_suite
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command
from unit.runs.qualify.runs_of_suites import result_of, run_of

ENDS = """
import pathlib, sys
scratch, run, code, said = sys.argv[1:]
if run:
    (pathlib.Path(scratch) / "run.json").write_text(run)
print(said)
sys.exit(int(code))
"""


@pytest.fixture
def pytest_that(monkeypatch):
    """Puts a process that writes this run file, says this and ends with this code in pytest's place."""

    def ends(run=None, *, code=0, said=""):
        text = "" if run is None else json.dumps(to_json(run) if isinstance(run, Run) else run)

        def words(arguments, share, scratch, **rest):
            return sys.executable, "-c", ENDS, str(scratch), text, str(code), said

        monkeypatch.setattr(qualify, "command", words)

    return ends


def test_the_command_line():
    words = command(["tests", "-k", "gpt"], 0.025, Path("/scratch"), first=True, folder="/records")

    assert list(words[:6]) == module_command(sys.executable, "pytest", "tests", "-k", "gpt", path=LIBRARY_FIRST)
    assert {"--perf", "--perf-inject=2.5", "--maxfail=1", "--perf-dir=/records"} <= set(words)
    assert {"--perf-json=/scratch/run.json", "--perf-report=/scratch/report"} <= set(words)
    later = command([], 0.0, Path("/scratch"), first=False)
    assert not any(word.startswith(("--perf-inject", "--maxfail", "--perf-dir")) for word in later)


@pytest.mark.parametrize("share, text", [(0.03, "3"), (0.07, "7"), (3.0, "300"), (0.001, "0.1")], ids=str)
def test_a_share_is_given_as_it_was_written(share, text):
    assert f"--perf-inject={text}" in command([], share, Path("/scratch"), first=False)


@pytest.mark.parametrize("code", [0, 1], ids=["passed", "failed"])
def test_a_run_that_came_to_its_end(pytest_that, code):
    pytest_that(run_of(result_of("regressed")), code=code)
    found = run_suite(["tests"], 0.05, first=True)

    assert (found.inject, found.arguments, found.cases[0].verdict) == (0.05, ("tests",), "regressed")
    assert found.seconds > 0


@pytest.mark.parametrize(
    "code, said, message",
    [
        (4, "ERROR: --perf cannot run with pytest-xdist\n\n", "exit code 4: ERROR: --perf cannot run with"),
        (2, "____ ERROR collecting\nERROR t.py - No module\n1 error in 0.1s", "exit code 2: ERROR t.py - No module"),
        (5, "perf: no perf test was selected\nno tests ran", "exit code 5: perf: no perf test was selected"),
        (0, "1 passed in 0.1s\n", "exit code 0: 1 passed in 0.1s"),
        (
            4,
            "ERROR: usage: pytest [options]\npytest: error: unrecognized: --foo\n  inifile: x",
            "4: pytest: error: unrec",
        ),
        (3, "INTERNALERROR> Traceback\nINTERNALERROR> KeyError: 5\n\nno tests ran", "3: INTERNALERROR> KeyError: 5"),
        (3, "", "exit code 3: no output"),
    ],
    ids=["usage", "collecting", "nothing", "unwritten", "unknown", "internal", "silent"],
)
def test_a_run_that_did_not_is_one_line(pytest_that, code, said, message):
    pytest_that(code=code, said=said)
    with pytest.raises(RunFailed) as error:
        run_suite([], 0.0, first=True)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("verdict", ["missing", "outdated", "incomparable"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_baselines_must_be_there(pytest_that, verdict, first):
    pytest_that(run_of(result_of(), result_of(verdict, "b.py::test_b", reason="so it is")), code=1)
    with pytest.raises(RunFailed) as error:
        run_suite([], 0.0, first=first)

    assert str(error.value) == (
        f"b.py::test_b has no baseline to compare with ({verdict}: so it is): record baselines on this machine with "
        "`pytest --perf-update`, then run perfdl qualify"
    )


def test_a_suite_that_cannot_be_measured_is_told_at_once(pytest_that):
    pytest_that(run_of(result_of(), result_of("invalid", "b.py::test_b", reason="it died")), code=1)
    with pytest.raises(RunFailed, match="test_b is invalid: it died"):
        run_suite([], 0.0, first=True)
    assert len(run_suite([], 0.0, first=False).cases) == 2, "one bad run ends no campaign"

    pytest_that(run_of(result_of("unmeasured"), result_of(record=False)))
    with pytest.raises(RunFailed, match="no test was compared with a baseline: record baselines with `pytest"):
        run_suite([], 0.0, first=True)


def test_what_is_no_run_file(pytest_that):
    pytest_that({"tests": [{}]})
    with pytest.raises(RunFailed, match=r"the run.json file of pytest cannot be used: .*/run.json is not a run file"):
        run_suite([], 0.0, first=True)


def test_ctrl_c_ends_pytest_too(monkeypatch, tmp_path):
    marks = tmp_path / "ready", tmp_path / "torn-down"
    waits = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    pathlib.Path(sys.argv[1]).touch()\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    pathlib.Path(sys.argv[2]).touch()\n"
    )
    monkeypatch.setattr(qualify, "command", lambda *_, **__: (sys.executable, "-c", waits, *map(str, marks)))
    main = threading.main_thread().ident

    def interrupt():
        while not marks[0].exists():
            threading.Event().wait(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_suite([], 0.0, first=True)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert marks[1].exists()
