"""What is read of the machine, the compiler and the clock, without any of them in the way."""

import os
import random
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import STEADY

from pytest_perfdl.measure import compiling, environment, machine, timed
from pytest_perfdl.measure.quiet import profiler_chatter


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.floats(0, 1))
@STEADY
def test_quantiles_are_numpys(values, q):
    assert timed.quantile(tuple(values), q) == pytest.approx(np.quantile(values, q), abs=0.51)


@pytest.fixture
def ticking(monkeypatch):
    """A clock that is told how long each step takes and how much of it others had the processor."""

    class Ticking:
        def __init__(self):
            self.now = self.delayed = self.asked = 0
            self.clock = timed._HostClock(self.delay)

        def delay(self):
            self.asked += 1
            return self.delayed

        def step(self, taken, delayed=0):
            self.now += taken
            self.delayed += delayed
            self.clock.mark()

    ticking = Ticking()
    ticking.now = 1
    monkeypatch.setattr(timed, "perf_counter_ns", lambda: ticking.now)
    ticking.clock.mark()
    return ticking


def test_the_hosts_clock(ticking):
    ticking.step(200_000, 0)
    ticking.step(900_000, 650_000)
    ticking.step(100_000, 0)

    assert ticking.clock.durations_ns() == [200_000, 900_000, 100_000]
    assert ticking.clock.delays_ns() == [0, 650_000, 0]


def test_the_scheduler_is_not_asked_about_short_steps(ticking):
    asked = ticking.asked
    for _ in range(5):
        ticking.step(99_999)

    assert ticking.asked == asked
    assert ticking.clock.delays_ns() == [0] * 5


def test_the_scheduler_can_be_asked():
    with machine.run_delay_reader() as read:
        first = read()
        assert 0 <= first <= read()


def test_where_there_is_no_scheduler_to_ask(monkeypatch):
    monkeypatch.setattr(machine, "_SCHEDULER", "/no/such/file")
    with machine.run_delay_reader() as read:
        assert read() == 0


def load(wall, busy, own):
    return machine.Load(float(wall), float(busy), float(own))


def test_the_load_of_others():
    # In ten seconds all were busy for 14 processor seconds, of which 9 were ours.
    assert load(110, 64, 29).others_since(load(100, 50, 20)) == pytest.approx(0.5)
    assert load(110, 60, 31).others_since(load(100, 50, 20)) == 0.0


def test_a_load_that_is_not_known():
    assert load(100.1, 60, 20).others_since(load(100, 50, 20)) is None
    assert load(110, 0, 0).others_since(load(100, 0, 0)) is None


def test_a_tracer_is_seen():
    before = sys.gettrace()

    def tracing(frame, event, argument):
        return None

    sys.settrace(tracing)
    try:
        found = machine.active_tracer()
    finally:
        sys.settrace(before)
    assert found == f"a trace function from {__name__}"


def test_seeding_makes_numbers_repeat():
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        machine.seed_everything(2**40)
        first = random.random(), np.random.random()
        machine.seed_everything(2**40)
        assert (random.random(), np.random.random()) == first
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def test_the_profilers_chatter_is_held_back_and_nothing_else(capfd):
    with profiler_chatter():
        os.write(2, b"USDT: profiler_start\nfrom the step\nSTAGE:2026 something\n")
    os.write(2, b"USDT: of the user's own\n")

    assert capfd.readouterr().err == "from the step\nUSDT: of the user's own\n"


def test_what_a_step_wrote_is_not_lost_when_it_raises(capfd):
    def step():
        with profiler_chatter():
            os.write(2, b"last words")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert capfd.readouterr().err == "last words"


@pytest.fixture
def dynamo(monkeypatch):
    """Dynamo's counters, as torch keeps them."""
    utils = types.ModuleType("torch._dynamo.utils")
    utils.metrics = []
    utils.get_compilation_metrics = lambda: utils.metrics
    utils.counters = {"frames": {"ok": 2}, "graph_break": {"print": 1, "item": 2}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return utils


def compilation(name, number, microseconds):
    return types.SimpleNamespace(co_name=name, compile_id=number, duration_us=microseconds)


def test_what_was_compiled(dynamo):
    dynamo.metrics += [compilation("step", "0/0", 900), compilation(None, "0/0", 100)]
    before = compiling.compilations(), compiling.events()
    dynamo.metrics.append(compilation("step", "0/1", 500))

    assert before == (2, 4)
    assert compiling.events() == 5
    assert compiling.names_since(before[0]) == ("step (0/1)",)
    summary = compiling.summary()
    assert (summary.used, summary.compile_ns) == (True, 1_500_000)
    assert (summary.recompiles, summary.graph_breaks) == (1, 3)


def test_nothing_was_compiled(dynamo, monkeypatch):
    assert not compiling.summary().used
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert not compiling.summary().used
    assert (compiling.events(), compiling.compilations(), compiling.names_since(0)) == (0, 0, ())


PARTS = {"cpu": "AMD EPYC(TM) 7B13", "family": "25", "model": "1", "stepping": "0", "capability": "AVX2", "cores": 8}


def test_a_key_names_what_decides():
    parts = PARTS | {"threads": 1, "accelerator": None}
    card = {"accelerator": "NVIDIA H200", "multiprocessors": 132, "accelerators": 1}

    assert environment._slug(parts, []) == "amd-epyc-tm-7b13-f25m1s0-avx2-8c-1t"
    assert environment._slug(parts | card, ["torch-2.13.0"]) == (
        "nvidia-h200-132sm-x1-amd-epyc-tm-7b13-f25m1s0-avx2-8c-1t-torch-2-13-0"
    )
    assert environment._slug(parts | {"family": "", "model": "", "stepping": ""}, []) == "amd-epyc-tm-7b13-avx2-8c-1t"
