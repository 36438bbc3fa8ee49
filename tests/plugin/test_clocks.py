"""Tests that freeze or scale time: patches in Python change nothing, and others are named."""

import itertools
import json

import pytest
from plugin.project import NOT_JUDGED

from pytest_perfdl.system import clocks

PATCHES = """
    import ctypes
    import sys
    import time

    import pytest

    NAMES = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time_ns")


    @pytest.fixture
    def frozen(monkeypatch):
        '''As freezegun: in every module that holds a function of `time`.'''
        fakes = {id(getattr(time, name)): (lambda now: lambda: now)(getattr(time, name)()) for name in NAMES}
        fakes[id(time.sleep)] = lambda seconds: None
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in fakes:
                    monkeypatch.setattr(module, name, fakes[id(value)])


    @pytest.fixture
    def scaled():
        '''As time-machine: in the C function itself (the second field of its `PyMethodDef`).'''
        began, real = time.perf_counter_ns(), time.clock_gettime_ns

        @ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
        def slow(module, nothing):
            return began + (real(time.CLOCK_MONOTONIC) - began) // 10

        method = ctypes.c_void_p.from_address(id(time.perf_counter_ns) + object.__basicsize__).value
        function = ctypes.c_void_p.from_address(method + ctypes.sizeof(ctypes.c_void_p))
        before, function.value = function.value, ctypes.cast(slow, ctypes.c_void_p).value
        yield
        function.value = before


    def work():
        return sum(range(30_000))


    def test_frozen(perf, frozen):
        perf(work)
        assert time.perf_counter_ns() == time.perf_counter_ns()


    def test_scaled(perf, scaled):
        perf(work)
"""


@pytest.mark.long
def test_a_clock_that_is_patched_changes_nothing_or_is_named(project):
    project.write("test_it.py", PATCHES)
    done = project.run("--perf", "--perf-json=run.json", *NOT_JUDGED)
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    frozen, scaled = sorted(tests, key=lambda test: test["id"])

    assert done.code == 1
    assert (frozen["verdict"], scaled["verdict"]) == ("missing", "invalid")
    assert scaled["reason"].startswith("time.perf_counter_ns counted ")
    assert "waited for a CPU" not in done.output


def test_limits_that_another_clock_kept_are_named(inner, monkeypatch):
    inner.makepyfile("import pytest\n@pytest.mark.perf(a=1)\ndef test_step(): pass\n")
    moments = itertools.chain([clocks.Moment(1.0, 1.0, 10.0)], itertools.repeat(clocks.Moment(2.0, 2.0, 20.0)))
    monkeypatch.setattr(clocks.Moment, "now", lambda: next(moments))
    told = " ".join(inner.runpytest_inprocess("--perf").outlines)

    assert "time limits and budgets were not kept: time.perf_counter_ns counted 1.00 s of 10.00 s" in told
