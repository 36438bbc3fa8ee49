"""The stack pass says lines and functions: a test that does not bear it is judged all the same."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.model.errors import SideError, WorkerDied, WorkerTimeout
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.paired_rounds import Side, parts_of
from pytest_perfdl.run.perf_test import Trial


class Bench:
    """Starts workers that end at once."""

    def __init__(self, error):
        self.error = error
        self.running = []
        self.ended = []

    def start(self, *_, **__):
        self.running.append(self)
        return self

    def finish(self):
        raise self.error

    def end(self, *, gently):
        self.ended.append(gently)


@pytest.mark.parametrize(
    "error, message",
    [(WorkerDied("killed by SIGSEGV"), "killed by SIGSEGV"), (WorkerTimeout("(stacks)"), "not finished in time")],
)
def test_a_worker_that_does_not_survive(error, message):
    bench = Bench(error)
    with pytest.raises(SideError, match=message) as found:
        parts_of(bench, None, Side("base"))
    assert not found.value.invalid
    assert bench.running == []


def test_an_interrupt_ends_the_worker():
    bench = Bench(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        parts_of(bench, None, Side("base"))
    assert bench.running == []
    assert bench.ended == [True]


def test_causes_without_places_are_told():
    def located(*_):
        raise SideError("the test did not pass on the base side\nE  details", invalid=False)

    trial = SimpleNamespace(
        _confirming=SimpleNamespace(located=located), bench=SimpleNamespace(progress=SimpleNamespace(clear=list))
    )
    judgement = Judgement("test_it.py::test_step", "regressed", "slower", blame=("a cause",))
    found = Trial._located(trial, judgement, None)

    assert found.verdict == "regressed"
    assert found.blame == judgement.blame
    (note,) = found.integrity
    assert (note.level, note.code) == ("note", "no-places")
    assert "(the test did not pass on the base side)" in note.message
