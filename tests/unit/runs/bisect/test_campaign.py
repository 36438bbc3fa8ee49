"""The search as a whole, on made-up measurements."""

from dataclasses import replace

import pytest

from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.runs.bisect.answers import to_json
from pytest_perfdl.runs.bisect.campaign import CommitSearch
from pytest_perfdl.runs.bisect.posterior import mixed
from pytest_perfdl.runs.bisect.search import Options
from unit.runs.bisect.simulated import Simulated, made_up, stepped

KEYS = {
    *("status", "culprit", "candidates", "effect", "interval", "probability", "measured_commits", "skipped", "blame"),
}


def searched(measure, last=16, **options):
    return CommitSearch(made_up(last), measure.measure, Options(**options)).run()


def test_counts_that_differ_need_no_timing():
    measure = Simulated(ops=stepped(64, 23, 16, 18), times=stepped(64, 23, 100.0, 110.0))
    answer = searched(measure, 64)
    assert (answer.status, answer.culprit.subject, answer.exit_code) == ("found", "c23", 0)
    assert answer.effect.ratio == pytest.approx(0.125)
    assert answer.values == (16, 18)
    assert len(answer.measured) == 8
    # Only the comparison with the parent at the end is timed, for the lines and for what it costs.
    assert [each.timed for each in measure.asked] == [False] * 7 + [True]
    assert answer.time[1].ratio == pytest.approx(0.1, abs=0.02)


def test_commits_that_cannot_be_measured_are_told():
    answer = searched(Simulated(ops=stepped(16, 5, 16, 18), times=[1.0] * 17, skipped={8, 12}), 16)
    assert answer.culprit.subject == "c5"
    assert [(commit.subject, why) for commit, why in answer.skipped] == [("c8", "ImportError: no")]


def test_a_broken_commit_before_the_culprit_leaves_a_range():
    answer = searched(Simulated(ops=stepped(16, 5, 16, 18), skipped={4}), 16)
    assert (answer.status, answer.exit_code, answer.culprit) == ("range", 1, None)
    assert [commit.subject for commit in answer.candidates] == ["c4", "c5"]
    assert "cannot be measured" in answer.reason


def test_several_changes_of_a_count_are_told():
    ops = [16] * 4 + [17] * 6 + [20] * 7
    answer = searched(Simulated(ops=ops, times=[1.0] * 17), 16)
    assert answer.culprit.subject == "c10"
    assert answer.values == (17, 20)
    assert any("other commits change ops too" in note for note in answer.notes)
    assert len(answer.commands) == 3


def test_a_slowdown_without_other_counts_is_timed():
    answer = searched(Simulated(times=stepped(16, 9, 100.0, 105.0)))
    assert (answer.status, answer.culprit.subject) == ("found", "c9")
    assert answer.metric == "step_time"
    low, high = answer.effect.interval
    assert low < 0.05 < high
    assert answer.comparison.request.against == answer.parent.sha
    assert answer.probability >= 0.999


def test_no_difference():
    answer = searched(Simulated(times=[100.0] * 17, rounds=12))
    assert (answer.status, answer.exit_code, answer.candidates) == ("no difference", 3, ())
    assert "not measurably slower" in answer.reason


def test_a_bad_end_that_is_faster():
    answer = searched(Simulated(times=stepped(16, 9, 105.0, 100.0), rounds=12))
    assert (answer.status, answer.exit_code) == ("faster", 3)


def test_fewer_operators_do_not_hide_a_slowdown():
    answer = searched(Simulated(ops=stepped(16, 3, 18, 16), times=stepped(16, 9, 100.0, 105.0)))
    assert answer.culprit.subject == "c9"


def test_a_count_that_was_asked_for_and_does_not_differ():
    answer = searched(Simulated(), metric="ops")
    assert (answer.status, answer.reason) == ("no difference", "ops is 16 at both ends")


def test_two_slowdowns_are_told():
    times = [100.0 if number < 5 else 104.0 if number < 12 else 110.0 for number in range(17)]
    answer = searched(Simulated(times=times, noise=0.005))
    assert answer.culprit.subject == "c12"
    assert any("not the only one" in note for note in answer.notes)
    assert len(answer.commands) == 3


@pytest.mark.parametrize("counted", [True, False])
def test_a_revert_in_between_is_told(counted):
    slow = [not (number < 3 or 8 <= number < 11) for number in range(17)]
    measure = Simulated(
        ops=[18 if each else 16 for each in slow] if counted else None, times=[1 + each for each in slow]
    )
    # The prior leads to the commit that was reverted; its files at commit 8 are those of before.
    prior = mixed([20.0 if number == 3 else 1.0 for number in range(1, 17)])
    answer = CommitSearch(made_up(16), measure.measure, Options(), lambda _: prior, {3: 8}.get).run()
    assert answer.culprit.subject == "c11"
    assert any("there was an earlier slowdown" in note for note in answer.notes)


def test_a_commit_that_is_no_slower_than_its_parent_is_not_named():
    # The slowdown comes in small steps.
    times = [100.0 * 1.004**number for number in range(17)]
    answer = searched(Simulated(times=times, noise=0.02, rounds=8))
    assert answer.status == "range"


def test_the_budget_ends_the_search():
    answer = searched(Simulated(times=stepped(64, 9, 100.0, 103.0)), 64, budget=35.0)
    assert answer.status == "range"
    assert "--budget" in answer.reason
    assert "c9" in [commit.subject for commit in answer.candidates]


def test_an_end_that_cannot_be_measured():
    with pytest.raises(RunFailed, match="ImportError: no"):
        searched(Simulated(skipped={16}))


def test_a_metric_that_the_test_does_not_have():
    with pytest.raises(RunFailed, match="no rounds of kernel_time"):
        searched(Simulated(times=[1.0] * 17), metric="kernel_time")


def test_what_was_measured_is_not_measured_again():
    first = Simulated(times=stepped(16, 9, 100.0, 105.0))
    kept = []
    whole = CommitSearch(made_up(16), first.measure, Options(), keep=kept.append).run()
    for number in (0, 1, 3, len(kept)):
        again = Simulated(times=stepped(16, 9, 100.0, 105.0), seed=1)
        answer = CommitSearch(made_up(16), again.measure, Options(), done=kept[:number]).run()
        assert answer.culprit == whole.culprit
        if number == len(kept):
            assert not again.asked
            assert to_json(answer) == to_json(whole)


def test_a_log_of_another_machine_is_refused():
    kept = []
    CommitSearch(made_up(16), Simulated(times=stepped(16, 9, 100.0, 105.0)).measure, Options(), keep=kept.append).run()
    other = Simulated(times=stepped(16, 9, 100.0, 105.0))
    measured = other.measure
    other.measure = lambda *given: replace(measured(*given), key="another")
    with pytest.raises(RunFailed, match="another machine"):
        CommitSearch(made_up(16), other.measure, Options(), done=kept[:2]).run()


def test_the_contract_of_the_json():
    data = to_json(searched(Simulated(ops=stepped(16, 5, 16, 18), times=[1.0] * 17)))
    assert data.keys() >= KEYS
    assert data["culprit"] == f"{5:040}"
    assert data["effect"] == pytest.approx(0.125)
    nothing = to_json(searched(Simulated(times=[100.0] * 17, rounds=12)))
    assert nothing.keys() == data.keys()
    assert nothing["culprit"] is None
