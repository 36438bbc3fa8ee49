"""How measuring ends: in good order, by mistake, by force. No process and no half-written file is left."""

import json
import os
import signal

import pytest
from plugin.project import NOT_JUDGED, SHORT, Project, alive, until

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.name != "posix", reason="signals and process groups")]

DEATHS = """
    import atexit
    import os
    import signal
    import sys
    import time
    from pathlib import Path

    import pytest

    # Python passes over what is no text, in plain pytest too.
    sys.path.insert(0, Path("/no/such/folder"))
    pytestmark = pytest.mark.perf


    def hang_forever():
        while True:
            time.sleep(3600)


    @pytest.mark.perf(timeout=12)
    def test_hangs(perf):
        perf(hang_forever)


    def test_killed_with_a_grandchild(perf):
        def step():
            grandchild = os.fork()
            if grandchild == 0:
                time.sleep(3600)
            with open("grandchild", "w") as note:
                print(grandchild, file=note)
            os.kill(os.getpid(), signal.SIGKILL)

        perf(step)


    def test_crashes(perf):
        perf(lambda: os.kill(os.getpid(), signal.SIGSEGV))


    def test_exits(perf):
        perf(lambda: os._exit(3))


    def test_forks(perf):
        def step():
            if os.fork() == 0:
                raise ValueError("this went wrong in the child")
            assert os.wait()[1] == 0

        perf(step)


    def test_exits_as_if_all_were_well(perf):
        perf(lambda: os._exit(0))


    @pytest.fixture
    def kills_at_teardown():
        yield
        os.kill(os.getpid(), signal.SIGKILL)


    def test_dies_in_teardown(perf, kills_at_teardown):
        perf(int)


    @pytest.fixture
    def kills_at_setup():
        os.kill(os.getpid(), signal.SIGKILL)


    def test_dies_in_setup(perf, kills_at_setup):
        perf(int)


    def test_never_measures(perf):
        assert perf is not None


    @pytest.mark.perf(limits={"no_such_metric": 0}, budget={"forward.step_time": "1s"})
    def test_unknown_metric(perf):
        perf(int, name="backward")


    def test_breaks_out(perf):
        for _ in perf.steps([1, 2]):
            break


    @pytest.fixture(scope="session")
    def database():
        yield
        with open("released", "w") as note:
            print(os.getpid(), file=note)


    @pytest.fixture
    def measured_before(perf):
        return perf(int, name="before")


    def test_measured_after_all_these(perf, database, measured_before):
        # The last one registered runs first.
        atexit.register(hang_forever)
        atexit.register(lambda: Path("at-exit").write_text("ran\\n"))
        assert perf(int) == measured_before == 0
"""

MISUSE = """
    import pytest

    pytestmark = pytest.mark.perf


    def test_same_name_twice(perf):
        perf(int, name="forward")
        perf(int, name="forward")


    def test_no_name_twice(perf):
        perf(int)
        perf(int)


    def test_empty_iterable(perf):
        for _ in perf.steps([]):
            pass


    def test_breaks_out(perf):
        for _ in perf.steps([1, 2]):
            break


    def test_callback_ends_early(perf):
        for _ in range(3):
            perf.step()


    def test_swallows(perf):
        with pytest.raises(ZeroDivisionError):
            perf(lambda: 1 // 0)


    def test_nested(perf):
        perf(lambda: perf(int, name="inner"))


    def test_setup_returns_nonsense(perf):
        perf(int, setup=lambda: 3)


    def test_metric_first(perf):
        perf.metric("loss", 1.0)


    def test_metric_is_not_a_number(perf):
        perf(int)
        perf.metric("loss", float("nan"))


    def test_metric_of_everybody(perf):
        perf(int)
        perf.metric("peak_memory", 3)


    def test_metric_twice(perf):
        perf(int, name="first")
        perf.metric("loss", 1)
        perf(int, name="second")
        perf.metric("loss", 1)
        perf.metric("loss", 2)


    def test_bad_period(perf):
        perf(int, period=0)


    def test_bad_name(perf):
        perf(int, name="a.b")


    async def wait():
        pass


    def test_coroutine(perf):
        perf(wait)


    def test_coroutine_with_setup(perf):
        perf(wait, setup=lambda: None)


    def test_generator(perf):
        perf(lambda: (number for number in range(3)))
"""

MESSAGES = {
    "test_same_name_twice": "two perf(...) calls have name='forward': use different names",
    "test_no_name_twice": "two perf(...) calls without a name: give them different names with name=",
    "test_empty_iterable": "perf.steps(...) got an empty iterable: pass at least one item",
    "test_breaks_out": "the loop over perf.steps(...) ended before the measurement was complete",
    "test_callback_ends_early": "the loop that calls perf.step() ended before the measurement was complete",
    "test_swallows": "a perf(...) call did not complete",
    "test_nested": "a perf(...) call did not complete",
    "test_setup_returns_nonsense": "setup= must return None or a pair (args, kwargs), got int",
    "test_metric_first": "perf.metric() adds a metric to the previous perf(...) call, but there is none",
    "test_metric_is_not_a_number": "perf.metric('loss') is nan: expected a finite number",
    "test_metric_of_everybody": "perf.metric('peak_memory'): a built-in metric has this name, choose another one",
    "test_metric_twice": "perf.metric('loss') was called twice for one perf(...) call",
    "test_bad_period": "period=0: expected an integer of at least 1",
    "test_bad_name": "name='a.b': expected a string without a dot",
    "test_coroutine": "got a coroutine function and was not awaited: write await perf(STEP, ...) in an `async def`",
    "test_coroutine_with_setup": "got a coroutine function and was not awaited: write await perf(STEP, ...)",
    "test_generator": "the step returned a generator, which does no work until it is iterated: measure lambda: list(",
}

SEMANTICS = """
    import pytest


    @pytest.mark.perf
    def test_setup_and_reset(perf):
        log = []

        def setup():
            log.append("setup")
            return (len(log),), {"twice": True}

        def step(number, twice):
            assert twice
            log.append("step")
            return number

        last = perf(step, setup=setup, reset=lambda: log.append("reset"))
        passes = " ".join(log).split("reset")

        # Settling, timing, profiling and counting are passes; each begins with a reset.
        assert passes[0] == ""
        assert len(passes) == 5
        assert all(set(pairs.split("setup")[1:]) <= {" step ", " step"} for pairs in passes[1:])
        # The result is that of the very last step.
        assert last == len(log) - 1


    @pytest.mark.perf(limits={"cycle.step_time": "900%", "cycle.throughput": "90%", "each.loss": "50%"})
    def test_names_periods_and_items(perf):
        steps = []
        assert perf(steps.append, 1, name="cycle", period=3, items=6) is None
        assert len(steps) % 3 == 0
        for element in perf.steps([1, 2], name="each", model_flops=2e9):
            steps.append(element)
        perf.metric("loss", 0.5, unit="nat", better="lower")
        while perf.step(name="called"):
            steps.append(2)
        perf.metric("accuracy", 0.9, better="higher")


    @pytest.mark.perf(seed=3)
    def test_seed_and_threads(perf):
        import random

        import torch

        first = torch.initial_seed(), torch.get_num_threads()
        assert first == (3, 1)
        perf(random.random)


    @pytest.mark.perf
    class TestBare:
        counted = 0

        def test_body_is_the_step(self):
            TestBare.counted += 1

        @pytest.fixture(autouse=True)
        def every(self):
            yield
            # 4 + 1 warming up, more than 8 timed, profiled and counted.
            assert TestBare.counted == 0 or TestBare.counted > 16
"""


def start(project, text, *options, **env):
    project.write("test_it.py", text)
    return project.start("--perf", *NOT_JUDGED, "-rfE", "--tb=short", "--junitxml=junit.xml", *options, **env)


def no_traceback(text):
    return "Traceback (most recent call last)" not in text


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("deaths") / "project")
    running = start(project, DEATHS, "--perf-json=run.json")
    finished = running.finish()
    return project, finished, project.cases()


def test_a_death_is_the_result_of_the_test_in_whatever_phase(deaths):
    tests = json.loads((deaths[0].root / "run.json").read_text())["tests"]
    found = {test["id"].partition("::")[2]: (test["verdict"], test["reason"]) for test in tests}

    assert found["test_dies_in_setup"] == ("invalid", "the worker process was killed by SIGKILL")
    assert found["test_crashes"][0] == "invalid"


def test_a_call_in_a_fixture_is_measured(deaths):
    tests = json.loads((deaths[0].root / "run.json").read_text())["tests"]
    (test,) = (each for each in tests if each["id"].endswith("::test_measured_after_all_these"))

    assert deaths[2]["test_measured_after_all_these"].outcome == "passed"
    assert [call["name"] for call in test["record"]["calls"]] == ["before", ""]


def test_what_a_test_registers_for_the_exit_runs_and_cannot_hold_it_up(deaths):
    assert deaths[0].note("at-exit") == ["ran"]


def test_a_step_that_never_returns(deaths):
    _, _, cases = deaths
    text = cases["test_hangs"].text

    assert cases["test_hangs"].outcome == "failure"
    assert text.count("the test did not finish within 12 s (timeout) at ") == 2  # the message and the text
    assert "in hang_forever" in text
    assert no_traceback(text)


def test_a_killed_worker_is_noticed_while_a_grandchild_holds_its_channel(deaths):
    project, _, cases = deaths
    (grandchild,) = project.note("grandchild")

    assert "the worker process was killed by SIGKILL" in cases["test_killed_with_a_grandchild"].text
    until(lambda: not alive(grandchild))


def test_a_crash_shows_where(deaths):
    text = deaths[2]["test_crashes"].text

    assert "the worker process was killed by SIGSEGV" in text
    assert "Segmentation fault" in text
    assert "in test_crashes" in text


@pytest.mark.parametrize(
    "name, message",
    [
        ("test_exits", "the worker process exited with code 3"),
        ("test_exits_as_if_all_were_well", "the worker process exited during the test's call phase"),
        ("test_dies_in_teardown", "the worker process was killed by SIGKILL"),
        ("test_dies_in_setup", "the worker process was killed by SIGKILL"),
        ("test_never_measures", "test_never_measures measured nothing: call perf(...)"),
        (
            "test_unknown_metric",
            "limits or budgets exist for forward.step_time, no_such_metric, which this test does not",
        ),
        ("test_breaks_out", "the loop over perf.steps(...) ended before the measurement was complete"),
    ],
)
def test_what_else_goes_wrong(deaths, name, message):
    case = deaths[2][name]

    assert message in case.text
    assert no_traceback(case.text)
    assert "hidden" not in case.text


def test_a_child_that_comes_out_of_the_step_is_not_taken_for_the_test(deaths):
    _, finished, cases = deaths

    assert cases["test_forks"].outcome == "failure"
    assert "assert os.wait()[1] == 0" in cases["test_forks"].text
    assert "ValueError: this went wrong in the child" in finished.output
    assert "ChannelClosed" not in finished.output
    assert "TestFailedInWorker" not in finished.output


def test_the_run_goes_on_after_a_death(deaths):
    project, finished, cases = deaths

    assert finished.code == 1
    assert cases["test_measured_after_all_these"].outcome == "passed"
    (worker,) = project.note("released")
    assert not alive(worker)


def test_misuse_is_told_in_one_line(project):
    finished = start(project, MISUSE, "--perf-isolate=none").finish()
    cases = project.cases()

    assert finished.code == 1
    assert cases.keys() == MESSAGES.keys()
    for name, message in MESSAGES.items():
        assert cases[name].outcome == "failure"
        assert message in cases[name].text
        assert no_traceback(cases[name].text)
        assert "hidden" not in cases[name].text


def test_what_the_parameters_of_a_call_mean(project):
    project.write("test_it.py", SEMANTICS)
    finished = project.run("--perf", *NOT_JUDGED, "--perf-json=run.json")
    tests = {
        test["id"].rpartition("::")[2]: test for test in json.loads((project.root / "run.json").read_text())["tests"]
    }
    metrics = tests["test_names_periods_and_items"]["metrics"]

    assert finished.code == 0, finished.output
    assert {"cycle.step_time", "cycle.throughput", "each.data_wait", "each.block_time", "called.step_time"} <= set(
        metrics
    )
    assert metrics["cycle.throughput"]["unit"] == "items/s"
    assert (metrics["each.loss"]["new"], metrics["each.loss"]["unit"]) == (0.5, "nat")
    assert metrics["called.accuracy"]["better"] == "higher"
    record = tests["test_names_periods_and_items"]["record"]
    assert [call["name"] for call in record["calls"]] == ["cycle", "each", "called"]
    assert record["plan"]["period"] == 3


ENDLESS = """
    import ctypes
    import os
    import subprocess
    import sys
    import time

    import pytest


    @pytest.fixture
    def tells():
        yield
        with open("torn_down", "w") as note:
            print("yes", file=note)


    @pytest.mark.perf
    def test_measures(perf, tells):
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

        def step():
            with open("pids", "w") as note:
                print(os.getpid(), grandchild.pid, file=note)
            if "HANGS" in os.environ:
                # With the interpreter's lock.
                ctypes.PyDLL(None).sleep(3600)
            time.sleep(0.2)

        perf(step, period=1000)
"""


def test_no_process_outlives_a_killed_main_process_and_the_next_start_removes_its_folders(project, tmp_path):
    running = start(project, ENDLESS, HANGS="in native code", TMPDIR=str(tmp_path))
    pids = project.note("pids")
    running.process.kill()
    running.process.wait()

    until(lambda: not any(map(alive, pids)))
    assert list(tmp_path.glob("pytest-perfdl-*"))
    assert project.run("--perf", "-k", "none_of_that_name", TMPDIR=str(tmp_path)).code == 5
    assert not list(tmp_path.glob("pytest-perfdl-*"))


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 2), ("SIGTERM", -signal.SIGTERM)])
def test_an_interrupt_ends_the_worker_and_the_run(project, tmp_path, name, code):
    running = start(project, ENDLESS, TMPDIR=str(tmp_path))
    pids = project.note("pids")
    running.process.send_signal(signal.Signals[name])
    finished = running.finish()

    assert finished.code == code
    assert "KeyboardInterrupt" in finished.output
    assert not (project.root / "baselines").exists()
    # It had the chance to release what it held.
    assert project.note("torn_down") == ["yes"]
    until(lambda: not any(map(alive, pids)))
    assert not list(tmp_path.glob("pytest-perfdl-*"))


def test_an_interrupt_while_writing_leaves_the_old_baseline(project):
    project.write("test_it.py", "def test_step(perf):\n    perf(sum, [1, 2])\n")
    assert project.run("--perf-update", "--perf-repeats=1", *SHORT).code == 0
    before = project.baselines()
    project.write("test_it.py", "def test_step(perf):\n    perf(sum, [1, 2, 3])\n")
    # Interrupted between the writing of the temporary file and its taking the old one's place.
    project.write(
        "conftest.py",
        """
        import os
        import signal
        from pathlib import Path

        replace = Path.replace

        def interrupted(self, target):
            if "baselines" in str(target) and str(target).endswith(os.environ["SUFFIX"]):
                os.kill(os.getpid(), signal.SIGINT)
            return replace(self, target)

        Path.replace = interrupted
        """,
    )

    finished = project.run("--perf-update=all", "--perf-repeats=1", *SHORT, SUFFIX="test_step.json")
    after = project.baselines()

    assert finished.code == 2
    assert after.keys() == before.keys()
    assert [after[name] for name in after if name.endswith("test_step.json")] == [
        before[name] for name in before if name.endswith("test_step.json")
    ]


@pytest.mark.parametrize(
    "ending, code, message",
    [
        ("pytest.exit('enough for today', returncode=7)", 7, "enough for today"),
        ("raise KeyboardInterrupt", 2, "KeyboardInterrupt"),
    ],
)
def test_a_test_that_ends_the_whole_run(project, ending, code, message):
    project.write("test_z_not_reached.py", "def test_not_reached():\n    pass\n")
    finished = start(project, f"import pytest\ndef test_ends(perf):\n    {ending}\n").finish()

    assert finished.code == code
    assert message in finished.output
    assert "passed" not in finished.summary()


def test_a_worker_has_the_same_root_and_ini_file(project):
    """Looked for from its one test file on, they would be others."""
    project.ini("perf_steps = 6")
    project.write("one/pytest.ini", "[pytest]\nperf_steps = 8\n")
    project.write(
        "one/test_one.py",
        "def test_step(perf, pytestconfig):\n    assert pytestconfig.getini('perf_steps') == '6'\n    perf(int)\n",
    )
    project.write("two/test_two.py", "def test_ordinary():\n    pass\n")
    finished = project.run("--perf", "--perf-fail-on=invalid", "--perf-warmup=2", "one", "two")

    assert finished.code == 0, finished.output
    assert finished.summary() == "2 passed"
