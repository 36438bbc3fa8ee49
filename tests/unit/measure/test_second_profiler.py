"""A profiler that the test itself starts, before the steps or in them: one line, where torch would crash."""

import contextlib
import threading

import pytest
import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from pytest_perfdl.measure import profiled_pass
from pytest_perfdl.measure.commands import Calibrate, Settle
from pytest_perfdl.measure.memory_pass import begin, end
from pytest_perfdl.measure.profiled_pass import RUNNING, STARTED, refuse_running
from pytest_perfdl.measure.program import Program
from pytest_perfdl.model.failures import PerfError
from unit.measure.answers import Conversation

KINDS = {
    "torch.profiler": lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU]),
    "autograd": autograd_profiler.profile,
}


@pytest.fixture(params=KINDS)
def theirs(request):
    return KINDS[request.param]


def profiled(path, step, *, warmup=1):
    """Two profiled steps, after one that is not."""
    for _ in profiled_pass.record(path, warmup, 2, memory=False, keep_last_result=False):
        step()


def in_thread(step):
    def run():
        with contextlib.suppress(PerfError):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def caught(step):
    with contextlib.suppress(PerfError):
        step()


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("how", [lambda step: step(), caught, in_thread], ids=["raised", "caught", "thread"])
def test_a_step_that_profiles_itself(tmp_path, theirs, how, warmup):
    def step():
        with theirs():
            torch.ones(2)

    with pytest.raises(PerfError, match=STARTED[:40]):
        profiled(tmp_path / "profile.json", lambda: how(step), warmup=warmup)

    # Afterwards all is as it was: their profiler runs, and then ours.
    step()
    profiled(tmp_path / "profile.json", lambda: torch.ones(2))
    assert "ProfilerStep#2" in (tmp_path / "profile.json").read_text()


@pytest.mark.parametrize("command", [Settle(1, 1, 1, 1), Calibrate(1, 1)], ids=["settle", "calibrate"])
def test_a_profiler_that_runs_before_the_first_step(tmp_path, theirs, command):
    with theirs() as running:
        with pytest.raises(PerfError, match="already running"):
            next(Program(Conversation(command)).steps())
        with pytest.raises(PerfError, match="already running"):
            profiled(tmp_path / "profile.json", lambda: torch.ones(2))
        torch.ones(2)

    found = running.events() if callable(getattr(running, "events", None)) else running.function_events
    assert any(event.name == "aten::ones" for event in found), "what they record is complete"


def test_a_profiler_of_another_thread_runs(tmp_path, theirs):
    begun, over = threading.Event(), threading.Event()

    def run():
        with theirs():
            begun.set()
            over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        with pytest.raises(PerfError, match="already running"):
            profiled(tmp_path / "profile.json", lambda: torch.ones(2))
    finally:
        over.set()
        thread.join()


def test_recording_of_memory_is_left_alone(theirs):
    begin()
    try:
        with pytest.raises(PerfError, match=STARTED[:40]), theirs():
            pass
    finally:
        end()
    with theirs():
        torch.ones(2)
    refuse_running()


def test_what_to_do_is_said():
    assert RUNNING.endswith("stop it before the measured steps")
    assert STARTED.endswith("take the profiler out of the step")
