"""Rounds that a suspected curve has measured of one of its sizes: how many, of which sides, and when there are none."""

import contextlib
from types import SimpleNamespace

import pytest

from pytest_perfdl import confirming, trial
from pytest_perfdl.baseline.pair import BaselineCode
from pytest_perfdl.confirming import Confirmation
from pytest_perfdl.isolate.checkout import CheckoutError
from pytest_perfdl.rounds import SideError

CHECKOUT = object()


class Clock:
    """Seconds that pass only while something is measured."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Bench:
    """What a confirmation needs of a run."""

    def __init__(self, budget, checkout=CHECKOUT):
        self.settings = SimpleNamespace(budget=budget)
        self.told = []
        self.progress = SimpleNamespace(
            start_round=lambda number, of, nodeid: self.told.append((number, of, nodeid)),
            clear=lambda: self.told.append("cleared"),
        )
        self._checkout = checkout

    def checkout(self, commit):
        if isinstance(self._checkout, Exception):
            raise self._checkout
        return self._checkout


@pytest.fixture
def measured(monkeypatch):
    """Rounds that take ten seconds each, and what was asked of them."""
    clock, asked = Clock(), []

    class Rounds:
        def __init__(self, bench, test, base, head, serving, *, seed, profiled):
            asked.append((base, head, profiled))

        def measure(self, number):
            clock.now += 10
            return number

    monkeypatch.setattr(confirming, "Rounds", Rounds)
    monkeypatch.setattr(confirming, "time", clock)
    return asked


def confirmation(bench):
    test = SimpleNamespace(item=SimpleNamespace(nodeid="t.py::test[4]"))
    return Confirmation(bench, test, lambda remote: contextlib.nullcontext(), 1)


@pytest.mark.parametrize(("budget", "count"), [(1000, 8), (80, 8), (60, 6), (55, 6), (0, 0)])
def test_as_many_rounds_as_wanted_within_the_budget(measured, budget, count):
    bench = Bench(budget)
    assert confirmation(bench).of_curve(8, CHECKOUT) == list(range(1, count + 1))
    assert bench.told == [*((number, 8, "t.py::test[4]") for number in range(1, count + 1)), "cleared"]
    ((base, head, profiled),) = measured
    assert (base.checkout, base.against, head.checkout, head.against) == (CHECKOUT, None, None, CHECKOUT)
    assert not profiled


def of_trial(bench, commit="abc"):
    """A test's rounds, without a worker that it would start."""
    one = object.__new__(trial.Trial)
    one.bench, one._confirming = bench, confirmation(bench)
    one._code = lambda: BaselineCode(commit)
    return one.rounds(3)


def test_rounds_of_a_test(measured):
    assert of_trial(Bench(100)) == [1, 2, 3]


def test_there_are_none_without_the_baselines_code(measured):
    assert of_trial(Bench(100), commit=None) == []
    assert of_trial(Bench(100, CheckoutError("no commit abc"))) == []
    assert measured == []


def test_there_are_none_where_a_side_cannot_be_measured(measured, monkeypatch):
    def broken(self, number):
        raise SideError("the base did not pass", invalid=False)

    monkeypatch.setattr(confirming.Rounds, "measure", broken)
    bench = Bench(100)
    assert of_trial(bench) == []
    assert bench.told[-1] == "cleared"
