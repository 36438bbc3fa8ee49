"""Runs at the same time on one machine: their tests are measured one after the other, also after one is killed."""

import os
import signal

import pytest
from plugin.project import NOT_JUDGED, Project, until

from pytest_perfdl.system.device_lock import DeviceLock, Wanted

REPORT = ("index.html", "run.json", "summary.md")
TEST = """
    import os
    import time
    import pytest

    @pytest.fixture(autouse=True)
    def noted(request):
        def note(what):
            with open(os.environ["NOTES"], "a") as notes:
                notes.write(f"{os.environ['RUN']} {request.node.name} {what}\\n")
        note("begins")
        while os.environ["RUN"] == "killed":
            time.sleep(1)
        yield
        note("ends")

    def test_1(perf):
        perf(lambda: sum(range(100)))

    def test_2(perf):
        perf(lambda: sum(range(100)))
"""


@pytest.fixture
def start(tmp_path):
    """Starts runs that share a folder of locks and a file of notes."""
    (tmp_path / "locks").mkdir()
    environment = {"NOTES": str(tmp_path / "notes"), "CUDA_VISIBLE_DEVICES": ""}

    def started(name, *options):
        project = Project(tmp_path / name, f"perf_device_lock = {tmp_path / 'locks'}")
        project.write("test_speed.py", TEST)
        return project.start("--perf", *NOT_JUDGED, "--perf-memory=off", *options, RUN=name, **environment)

    return started


def waits(folder):
    """Whether a run waits for the host."""
    lock = DeviceLock(folder, [Wanted("host.queue")])
    try:
        lock.acquire(refuse)
    except Waits:
        return True
    finally:
        lock.release()
    return False


class Waits(Exception):
    """The lock is held."""


def refuse(_):
    raise Waits


@pytest.mark.long
def test_two_runs_alternate_test_by_test_after_the_one_before_is_killed(start, tmp_path):
    notes = tmp_path / "notes"
    reports = [tmp_path / "killed" / name for name in (*(f"perf-report/{each}" for each in REPORT), "all.json")]
    for path in reports:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of an earlier run")
    killed = start("killed", "--perf-json=all.json")
    assert until(notes.exists)
    runs = [start("a"), start("b", "--perf-timeout=60")]
    assert until(lambda: waits(tmp_path / "locks"))
    assert {line.split()[0] for line in notes.read_text().splitlines()} == {"killed"}
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    # What an earlier run reported is not there to be taken for the killed one's.
    assert not any(path.exists() for path in reports)
    # Its workers end with it; what they have noted by now is no longer of interest.
    assert [run.finish().code for run in runs] == [0, 0]

    tests = []
    began = ""
    for line in notes.read_text().splitlines():
        test, _, what = line.rpartition(" ")
        if test.startswith("killed"):
            continue
        # A process that measures ends before the next one of any run begins.
        assert (what, began) in (("begins", ""), ("ends", test))
        began = test if what == "begins" else ""
        if tests[-1:] != [test]:
            tests.append(test)
    assert sorted(tests) == ["a test_1", "a test_2", "b test_1", "b test_2"]
