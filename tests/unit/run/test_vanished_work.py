"""Which tests are looked at once more, and what their verdict then is."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_perfdl.measure.commands import FirstAndLater, Profiled
from pytest_perfdl.model.errors import SideError
from pytest_perfdl.model.record import Call, MeasurementPlan, ProfiledRow, Row
from pytest_perfdl.report.story import story
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run import vanished_work
from unit.report import runs

BASE = (Call("", {}, (Row("operator", "aten::mm", 10, (900, 1100)), Row("idle", "idle: host", 1, (9000,))), (1000,)),)
FASTER = runs.timed(base=40_000_000, new=1_000_000, verdict="improved")


def profiled(*rows):
    found = tuple(ProfiledRow("operator", name, count, ns) for name, count, ns in rows)
    return Profiled((1000,), found, (1,), None, None, None, None, ("",), (), None)


ALL, NOTHING = profiled(("aten::mm", 10, 1000)), profiled()


def judged(monkeypatch, *answers, metrics=(FASTER,), verdict="improved", ranks=0):
    """The judgement, and which sides were measured for it."""
    asked = []
    left = list(answers)

    def measured(context, test, side):
        asked.append("base" if side.checkout else "head")
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    monkeypatch.setattr(vanished_work, "_measure_steps", measured)
    progress = SimpleNamespace(start=lambda *_: None, clear=lambda: None)
    test = SimpleNamespace(item=SimpleNamespace(nodeid="t"), plan=MeasurementPlan(1, 2, ranks=ranks))
    context = SimpleNamespace(progress=progress, as_failures=nullcontext)
    before = Judgement("t", verdict, "step_time -97.5%", metrics=tuple(metrics))
    found = vanished_work.with_vanished_work(context, test, before, BASE, SimpleNamespace())
    return found, asked, before


def test_what_is_not_faster_is_not_looked_at(monkeypatch):
    for metrics, verdict in [
        ((runs.quiet(),), "unchanged"),
        ((runs.timed(),), "regressed"),
        ((runs.timed("operator aten::mm", verdict="improved", of_step=False),), "improved"),
        ((runs.quiet(new=9_000_000, verdict="inconclusive"),), "inconclusive"),
    ]:
        found, asked, before = judged(monkeypatch, metrics=metrics, verdict=verdict)
        assert (found, asked) == (before, [])
    assert judged(monkeypatch, ranks=2)[1] == []


@pytest.mark.parametrize("verdict", ["improved", "unchanged", "inconclusive"])
def test_work_that_vanished_is_changed_with_the_time_first(monkeypatch, verdict):
    metric = replace(FASTER, verdict=verdict)
    found, asked, _ = judged(
        monkeypatch,
        FirstAndLater("", ALL, NOTHING, ""),
        metrics=[runs.counted("static_memory", 1, 2), metric],
        verdict=verdict,
    )
    assert asked == ["head"]
    assert found.verdict == "changed"
    assert found.reason.startswith("only the first step does 100% of the baseline's work (aten::mm), so ")
    assert found.metrics[1].verdict == "changed"
    one = runs.result("changed", metrics=found.metrics)
    assert story(one, runs.run(one)).headline.name == "step_time"


def test_a_result_that_is_not_computed_is_changed_unless_the_baselines_is_not_either(monkeypatch):
    late = FirstAndLater("", NOTHING, NOTHING, "a future")
    found, asked, _ = judged(monkeypatch, late, FirstAndLater("", ALL, ALL, ""))
    assert (found.verdict, asked) == ("changed", ["head", "base"])
    assert found.reason.startswith("the step returns a future: compute the result in the step; ")
    found, _, before = judged(monkeypatch, late, late)
    assert found == before


def test_work_that_is_still_done_or_was_counted_or_cannot_be_looked_at_is_improved(monkeypatch):
    assert judged(monkeypatch, FirstAndLater("", ALL, ALL, ""))[0].verdict == "improved"
    kept = runs.counted("flops", 100, 60)
    assert judged(monkeypatch, FirstAndLater("", ALL, NOTHING, ""), metrics=[FASTER, kept])[0].verdict == "improved"
    found, *_ = judged(monkeypatch, SideError("it died", invalid=False))
    assert found.verdict == "improved"
    assert [each.code for each in found.integrity] == ["no-first-step"]
