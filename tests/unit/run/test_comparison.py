"""What of a comparison is lost when a process of it does not do as the others, and what is not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from making import counted, record, timed

from pytest_perfdl.model.errors import SideError, WorkerDied, WorkerTimeout
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.model.record import Finding
from pytest_perfdl.report import words
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.comparison import Baseline, _compare_in_pairs, _Pair
from pytest_perfdl.run.paired_rounds import RoundSide, parts_of


class Processes:
    """Starts workers that end at once."""

    scratch = "/scratch"

    def __init__(self, error):
        self.error = error

    def last_fork(self, test):
        return None

    def start(self, *_, **__):
        return self

    def finish(self):
        raise self.error


@pytest.mark.parametrize(
    "error, message",
    [
        (WorkerDied("killed by SIGSEGV"), "killed by SIGSEGV"),
        (WorkerTimeout("(stacks)"), "did not finish in time on the base"),
    ],
)
def test_a_worker_that_does_not_survive(error, message):
    context = SimpleNamespace(processes=Processes(error))
    with pytest.raises(SideError, match=message) as found:
        parts_of(context, None, RoundSide("base"))
    assert not found.value.invalid


def in_pairs(monkeypatch, *sides, only_tests=""):
    """What comes of a baseline of 10 operators whose code counts so many now, and how many processes were asked."""
    step = {"step_time": timed(100.0)}
    stored = record({**step, "ops": counted(10, 10)})
    left = [SimpleNamespace(record=each, origins=None, rank_traces={}) for each in sides]
    measurement = SimpleNamespace(
        context=SimpleNamespace(revisions=None),
        test=SimpleNamespace(limits=BUILT_IN),
        record=lambda: record({**step, "ops": counted(10)}),
        measure_base=lambda *_: left.pop(0),
        remote=SimpleNamespace(origins=None),
    )
    said = dict.fromkeys(("mistaken", "not_as_recorded", "only_tests", "maybe_one_sided", "shared"), lambda *_: "")
    said["only_tests"] = lambda *_: only_tests
    revisions = SimpleNamespace(checkout=lambda _: None, ignored=lambda _: ("built.so",), **said)
    monkeypatch.setattr(_Pair, "judged", lambda self, found, new, base: found)
    measurement.context.revisions = revisions
    code = SimpleNamespace(base=stored, commit="c" * 40, note="")
    found = _compare_in_pairs(measurement, Baseline(stored), code)
    return found, len(sides) - len(left)


def counts(*ops, integrity=(), op_counts=()):
    made = record({"step_time": timed(100.0), "ops": counted(*ops)})
    calls = tuple(replace(call, op_counts=op_counts) for call in made.calls)
    return replace(made, integrity=integrity, calls=calls)


def test_a_count_that_another_process_of_the_baseline_reproduces_is_no_other_code(monkeypatch):
    found, asked = in_pairs(monkeypatch, counts(12), counts(10), counts(12))
    assert asked == 2
    assert found.now.metrics()["ops"].values == (10,)


RECOMPILING = (Finding("note", "recompiled", "torch.compile compiled inside timed steps"),)


@pytest.mark.parametrize(
    "side, why",
    [
        (counts(12), "probably because untracked files (the test uses built.so, ignored by git), the environment or"),
        (counts(12, integrity=RECOMPILING), "because torch.compile compiled inside measured steps: see the note on it"),
        (counts(12, op_counts=(11, 13)), "because the steps are not all alike: set period="),
    ],
)
def test_why_the_baselines_code_does_not_reproduce_its_counts(monkeypatch, side, why):
    with pytest.raises(SideError, match=r"\(ops 10 -> 12\)") as error:
        in_pairs(monkeypatch, side, side, side)
    assert why in str(error.value)


def test_doubts_whether_a_side_ran_its_own_code_are_told_with_any_verdict(monkeypatch):
    found, _ = in_pairs(monkeypatch, counts(10), only_tests="a side loaded no code")
    assert words.telling_notes(found.judgement) == ["a side loaded no code"] * 2


def test_causes_without_places_are_told(monkeypatch):
    def located(*_):
        raise SideError("the test failed on the baseline side\nE  details", invalid=False)

    context = SimpleNamespace(progress=SimpleNamespace(clear=list))
    monkeypatch.setattr(_Pair, "confirmation", SimpleNamespace(located=located))
    pair = _Pair(SimpleNamespace(context=context), None, "", None)
    judgement = Judgement("test_it.py::test_step", "regressed", "slower", blame=("a cause",))
    found = pair._locate(judgement)

    assert found.verdict == "regressed"
    assert found.blame == judgement.blame
    (note,) = found.integrity
    assert (note.level, note.code) == ("note", "no-places")
    assert "(the test failed on the baseline side)" in note.message
