"""How many paired rounds a slowdown needs: as many in a shard as in a run of all tests."""

import random
from types import SimpleNamespace

import pytest
from making import record, rows, timed

from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.judge import kernels, stopping_rule
from pytest_perfdl.judge.round_data import Round, orders
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.run import confirmation
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.stats.evidence import least_rounds

LIMITS = BUILT_IN
STEP, ROW = 10_000_000, 4_000_000


class Measuring:
    """Rounds of a step and of its operator that are slower by factors."""

    how = "made"
    results = ()

    def __init__(self, step, row):
        self._factors = step, row
        self._random = random.Random(7)
        self._orders = orders(7, 200)
        self.count = 0
        self.profiled = []

    def measure(self, number, *, profiled, cases):
        self.count = number
        self.profiled.append(profiled)
        noise = [1 + self._random.gauss(0, 1e-4) for _ in range(4)]
        step, row = self._factors
        return Round(
            self._orders[number - 1],
            {"step_time": STEP * noise[0]},
            {"step_time": STEP * noise[1] * step},
            {"operator mm": ROW * noise[2]} if profiled else {},
            {"operator mm": ROW * noise[3] * row} if profiled else {},
        )


def confirmed(monkeypatch, measuring, *, collected=1, verdict="regressed"):
    """What rounds of a run make of one test, of all that were collected."""
    monkeypatch.setattr(confirmation, "Rounds", lambda *_, **__: measuring)
    idle = SimpleNamespace(start=lambda *_: None, clear=lambda: None)
    options = SimpleNamespace(resolution_for=lambda _: None)
    test = SimpleNamespace(
        item=SimpleNamespace(nodeid="t.py::test"), limits=LIMITS, options=options, plan=SimpleNamespace(ranks=0)
    )
    context = SimpleNamespace(
        tests=(test,),
        collected=collected,
        progress=idle,
        settings=SimpleNamespace(budget=1e9),
        rules=NO_RULES,
        machines=SimpleNamespace(of=lambda _: None),
    )
    side = record({"step_time": timed(STEP)}, rows=rows(mm=(4, ROW)), profiled=(STEP,))
    found = standing(side, side, (), LIMITS)
    judged = Confirmation(context, test, 1).of_code(found, side, side, side, None, shown=None)
    assert judged.verdict == verdict
    return judged


def rounds_to_fail(monkeypatch, *, step=1.0, row=1.0, **rest):
    measuring = Measuring(step, row)
    confirmed(monkeypatch, measuring, **rest)
    # What looks slower is profiled as long as it does.
    assert all(measuring.profiled)
    return measuring.count


@pytest.mark.parametrize("collected", [1, 47, 4000])
def test_a_slower_step(collected, monkeypatch):
    needed = least_rounds(collected / stopping_rule.ALPHA)
    assert rounds_to_fail(monkeypatch, collected=collected, step=1.5) == needed


@pytest.mark.parametrize("collected", [1, 47, 4000])
def test_a_slower_operator(collected, monkeypatch):
    needed = least_rounds(collected / kernels.ALPHA)
    assert rounds_to_fail(monkeypatch, collected=collected, row=1.5) == needed


def test_of_steps_that_look_unchanged_the_first_rounds_are_profiled(monkeypatch):
    measuring = Measuring(1.0, 1.0)
    needed = iter([1.04, 0.97, 1.02, 1.0])
    measure = measuring.measure

    def noisy(number, *, profiled, cases):
        measuring._factors = next(needed, 1.0), 1.0
        return measure(number, profiled=profiled, cases=cases)

    measuring.measure = noisy
    confirmed(monkeypatch, measuring, verdict="unchanged")
    assert measuring.count > 4
    assert measuring.profiled == [True] * 3 + [False] * (measuring.count - 3)
