"""The stack pass says lines and functions: a test that does not bear it is judged all the same."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.model.errors import SideError, WorkerDied, WorkerTimeout
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.comparison import _Pair
from pytest_perfdl.run.paired_rounds import RoundSide, parts_of


class Processes:
    """Starts workers that end at once."""

    scratch = "/scratch"

    def __init__(self, error):
        self.error = error

    def start(self, *_, **__):
        return self

    def finish(self):
        raise self.error


@pytest.mark.parametrize(
    "error, message",
    [(WorkerDied("killed by SIGSEGV"), "killed by SIGSEGV"), (WorkerTimeout("(stacks)"), "did not finish in time")],
)
def test_a_worker_that_does_not_survive(error, message):
    context = SimpleNamespace(processes=Processes(error))
    with pytest.raises(SideError, match=message) as found:
        parts_of(context, None, RoundSide("base"))
    assert not found.value.invalid


def test_causes_without_places_are_told():
    def located(*_):
        raise SideError("the test failed on the baseline side\nE  details", invalid=False)

    context = SimpleNamespace(progress=SimpleNamespace(clear=list))
    pair = _Pair(context, None, SimpleNamespace(located=located), None, "", None)
    judgement = Judgement("test_it.py::test_step", "regressed", "slower", blame=("a cause",))
    found = pair._located(judgement)

    assert found.verdict == "regressed"
    assert found.blame == judgement.blame
    (note,) = found.integrity
    assert (note.level, note.code) == ("note", "no-places")
    assert "(the test failed on the baseline side)" in note.message
