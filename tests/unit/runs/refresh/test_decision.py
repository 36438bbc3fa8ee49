"""What several nights mean for a baseline: which changes are adopted, and that no slowdown ever is."""

from dataclasses import replace

import pytest

from pytest_perfdl.judge.log_ratios import middle
from pytest_perfdl.model.record import INJECTED, Case, Code, Finding
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.results.verdict import SAME_CODE
from pytest_perfdl.runs.refresh import decide, of_runs
from unit.report import runs as made
from unit.runs.refresh.nights import BASE_NS, NEW, OLD, STORED, UPGRADED, metric, night, of


def steps(record):
    return middle(record.metrics()["step_time"])


# Improvements


@pytest.mark.parametrize("before", [OLD, Code({"src/gpt.py": "3" * 12})], ids=["same-code", "other-code"])
def test_an_improvement_of_two_nights_is_adopted_with_its_code(before):
    decision = decide([night(1, code=before), night(2, -0.1), night(3, -0.1)], STORED)

    assert (decision.kind, decision.change, decision.runs) == ("adopted", "improvement", 2)
    assert decision.effect == pytest.approx(-0.1, abs=0.01)
    assert decision.record.code.files == NEW.files
    assert decision.record.occasions[0].date == "2026-05-03T02:00:00Z"
    assert decision.record.repeats == 2, "the third night measured the same code"
    assert "step_time -10." in decision.why or "step_time -9." in decision.why


def test_an_improvement_of_one_night_waits_for_another():
    decision = decide([night(1, code=OLD), night(2, code=OLD), night(3, -0.1)], STORED)

    assert (decision.kind, decision.record) == ("unchanged", None)
    assert "fewer than 2 runs" not in decision.why, "the nights before it are runs, too"
    assert decide([night(3, -0.1)], STORED).why == "improved, but fewer than 2 runs in a row confirm it"


def test_a_table_is_not_refreshed():
    """Its cases are no metrics: that none of them got slower would have to be shown for each."""

    def with_table(run):
        call = replace(run.result.new.calls[0], cases=(Case("n=1", (1000.0, 1000.0), 1, 1, 0),))
        return replace(run, result=replace(run.result, new=replace(run.result.new, calls=(call,))))

    decision = decide([with_table(night(2, -0.1)), with_table(night(3, -0.1))], STORED)
    assert decision.record is None
    assert "--perf-update=changed records" in decision.why


def test_what_got_slower_after_an_improvement_is_not_part_of_the_new_baseline():
    slower = Code({"src/gpt.py": "2" * 12})
    nights = [night(2, -0.1), night(3, -0.09, code=slower), night(4, -0.09, code=slower)]
    decision = decide(nights, STORED)

    assert decision.record.code.files == NEW.files
    assert steps(decision.record) == pytest.approx(0.9 * BASE_NS, rel=1e-3)


@pytest.mark.parametrize(
    "last", [night(4, 0.05), night(4, 0.05, "suspect"), night(4)], ids=["regressed", "suspect", "gone"]
)
def test_a_later_night_contradicts(last):
    decision = decide([night(2, -0.1), night(3, -0.1), last], STORED)

    assert decision.record is None


def test_small_improvements_of_several_nights_add_up():
    nights = [night(number, -0.04, "unchanged") for number in (1, 2, 3)]

    assert decide(nights, STORED).change == "improvement"


def test_an_improvement_that_makes_another_time_slower_is_refused():
    def both(number):
        return night(
            number,
            -0.1,
            metrics=(
                metric(-0.1, "improved", name="forward.step_time", seed=number),
                metric(0.02, "unchanged", name="backward.step_time", seed=number),
            ),
        )

    decision = decide([both(1), both(2)], STORED)

    assert decision.kind == "refused"
    assert decision.metric == "backward.step_time"
    assert decision.effect == pytest.approx(0.02, abs=0.005)


def test_bytes_add_up_over_improvements():
    """Each adds 1.5 % to the peak, which is within its limit of 2 %; two are not."""
    stored, peak, decisions = STORED, 1_000_000_000, []
    for number in (1, 3):
        peak = round(peak * 1.015)
        code = Code({"src/gpt.py": f"{number:012x}"})
        nights = [
            night(each, -0.1, stored=stored, code=code, new=of(0.9, code=code, night=each, memory=peak))
            for each in (number, number + 1)
        ]
        decisions.append(decide(nights, stored))
        stored = decisions[-1].record or stored

    assert [each.kind for each in decisions] == ["adopted", "refused"]
    assert "peak_memory is over its limit" in decisions[1].why
    assert decisions[1].effect == pytest.approx(0.0302, abs=1e-3)


def test_code_that_no_commit_has_is_refused():
    nights = [night(1, -0.1), night(2, -0.1)]

    lacking = decide(nights, STORED, not_in_git=lambda _: "it was not committed")
    untied = decide([night(1, -0.1, code=None), night(2, -0.1, code=None)], STORED)

    assert (lacking.kind, untied.kind) == ("refused", "refused")
    assert "it was not committed" in lacking.why
    assert "no commit" in untied.why


# Environments


def test_another_environment_is_adopted_with_the_code_of_the_baseline():
    upgraded = Code(NEW.files, {"numpy": "2.1.0"})
    decision = decide([night(1, 0.02, context=UPGRADED, code=upgraded, environment=0.97)], STORED)

    assert (decision.kind, decision.change) == ("adopted", "environment")
    assert "torch 2.13.0 -> 2.14.0" in decision.why
    assert decision.record.code == replace(OLD, packages={"numpy": "2.1.0"})
    assert decision.record.context == UPGRADED
    assert steps(decision.record) == pytest.approx(0.97 * BASE_NS, rel=1e-3), "not the time of the current code"


def test_nights_in_one_environment_are_joined():
    nights = [night(number, context=UPGRADED) for number in (1, 2, 3)]

    assert decide(nights, STORED).record.repeats == 3
    assert decide([night(0), *nights], STORED).record.repeats == 3


def test_eight_small_slowdowns_are_refused_together_whatever_the_environment():
    """The environment changes in the middle: the code of the baseline stays the first one."""
    stored, kinds = STORED, []
    for step in range(1, 9):
        change = 1.01**step - 1
        context = UPGRADED if step >= 3 else STORED.context
        decision = decide([night(step, change, stored=stored, context=context)], stored)
        kinds.append(decision.kind)
        if decision.record is not None:
            assert decision.record.code.files == OLD.files
            stored = decision.record

    assert kinds == ["unchanged", "unchanged", "refused", "refused", "refused", "refused", "refused", "refused"]
    assert decision.effect == pytest.approx(1.01**8 - 1)


def test_environments_that_each_cost_a_little_are_refused_together():
    stored, kinds, factor = STORED, [], 1.0
    for step in range(1, 6):
        factor *= 1.04
        context = {**STORED.context, "torch": f"3.{step}.0"}
        decision = decide([night(step, stored=stored, context=context, environment=factor)], stored)
        kinds.append(decision.kind)
        stored = decision.record or stored

    assert kinds == ["adopted", "adopted", "refused", "refused", "refused"]
    assert "of the baseline's code got slower by +" in decision.why


REFUSED = {
    "counts-alone": (night(1, context=UPGRADED, metrics=()), "counts alone"),
    "unpaired": (
        night(1, context=UPGRADED, metrics=(metric(0.0, "unchanged", evidence="unpaired", pairs=()),)),
        "not compared in paired rounds",
    ),
    "regressed": (night(1, 0.05, context=UPGRADED), "regressed"),
    "suspect": (night(1, 0.05, "suspect", context=UPGRADED), "suspect"),
    "inconclusive": (night(1, 0.01, "inconclusive", context=UPGRADED), "inconclusive"),
    "injected": (
        night(1, context=UPGRADED, new=of(context=UPGRADED, integrity=(Finding("note", INJECTED, "slow"),))),
        "--perf-inject",
    ),
    "another-commit": (
        night(1, context=UPGRADED, integrity=(Finding("note", "pair", "the comparison uses commit 1234567"),)),
        "the comparison uses commit 1234567",
    ),
    "slower-environment": (
        night(1, context=UPGRADED, judged_environment=(metric(0.06, "suspect", reason="+6 % since then"),)),
        "+6 % since then",
    ),
    "more-memory": (
        night(1, context=UPGRADED, base_now=of(code=None, context=UPGRADED, memory=1_100_000_000)),
        "peak_memory is over its limit",
    ),
    "earlier-version": (
        replace(night(1, context=UPGRADED), result=replace(night(1, context=UPGRADED).result, base_now=None)),
        "does not contain the baseline's code",
    ),
}


@pytest.mark.parametrize("run, why", REFUSED.values(), ids=REFUSED)
def test_an_environment_without_rounds_that_clear_it_is_refused(run, why):
    decision = decide([run], STORED)

    assert decision.kind == "refused"
    assert why in decision.why
    assert decision.run == run.path


# Neither


NOTHING = {
    "quiet": (night(1), "step_time +0.0%"),
    "inconclusive": (night(1, 0.01, "inconclusive"), "inconclusive: step_time +1.0%"),
    "invalid": (night(1, verdict="invalid", reason="throttled"), "invalid: throttled"),
    "skipped": (night(1, verdict="unmeasured", reason="skipped"), "unmeasured: skipped"),
    "same-code": (night(1, reason=SAME_CODE), "unchanged: same code"),
    "other-baseline": (night(1, -0.2, stored=of(night=9)), "not compared with the baseline that is stored now"),
    "against": (night(1, -0.2, against="main"), "compares with main"),
}


@pytest.mark.parametrize("run, why", NOTHING.values(), ids=NOTHING)
def test_nothing_to_do(run, why):
    decision = decide([run], STORED)

    assert (decision.kind, decision.record) == ("unchanged", None)
    assert why in decision.why


@pytest.mark.parametrize("verdict", ["regressed", "suspect", "outdated", "changed"])
def test_other_changes_are_refused(verdict):
    assert decide([night(1, 0.05, verdict)], STORED).kind == "refused"


def test_a_test_without_a_baseline_is_refused():
    decision = decide([night(1, verdict="missing", stored=None, metrics=())], None)

    assert (decision.kind, decision.machine, decision.effect) == ("refused", STORED.key.slug, None)


def test_a_night_without_a_measurement_contradicts_nothing():
    nights = [night(1, -0.1), night(2, verdict="invalid", reason="throttled"), night(3, -0.1)]

    assert decide(nights, STORED).kind == "adopted"


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    one = made.run(made.result("improved"))
    found = of_runs([(tmp_path / "a.json", one), (tmp_path / "b.json", replace(one)), (tmp_path / "c.json", one)])

    assert [len(each) for each in found.values()] == [1]


def test_a_copy_with_another_date_is_no_other_run(tmp_path):
    """Two of them would confirm an improvement that one run shows."""
    one = night(1, -0.1)
    run = made.run(one.result, date=one.date)
    copy, other = replace(run, date=night(2).date), made.run(night(3, -0.1).result, date=night(3).date)
    (found,) = of_runs([(tmp_path / "b.json", copy), (tmp_path / "a.json", run), (tmp_path / "c.json", other)]).values()

    assert [each.path.name for each in found] == ["a.json", "c.json"]
    assert decide(found[:1], STORED).kind == "unchanged"
    assert decide(found, STORED).kind == "adopted"


def test_runs_that_measured_nothing_are_not_copies(tmp_path):
    runs = [made.run(made.result("unmeasured"), date=date) for date in ("2026-05-02", "2026-05-03")]
    (found,) = of_runs([(tmp_path / run.date, run) for run in runs]).values()

    assert [each.date for each in found] == ["2026-05-02", "2026-05-03"]


def test_a_night_that_was_judged_by_other_limits_confirms_nothing():
    nights = [night(2, -0.1), night(3, -0.1)]
    assert decide(nights, STORED).kind == "adopted"
    loose = replace(nights[0], settings={"--perf-limit": "step_time:500%"})
    assert decide([loose, nights[1]], STORED).why == "improved, but fewer than 2 runs in a row confirm it"


# Waivers

WAIVER = Waiver("tests/*", "", "30%", "2999-01-01", "new attention", "ana")


@pytest.mark.parametrize("context", [STORED.context, UPGRADED], ids=["same-environment", "other-environment"])
def test_a_waived_slowdown_is_refused_every_night(context):
    slower = [metric(0.08, "regressed", seed=number, waiver=WAIVER) for number in (1, 2, 3)]
    nights = [
        night(number, 0.08, "waived", metrics=(each,), context=context) for number, each in enumerate(slower, start=1)
    ]

    for count in (1, 2, 3):
        decision = decide(nights[:count], STORED)
        assert (decision.kind, decision.record) == ("refused", None)
        assert decision.why.startswith("waived: step_time +8.0%")
        assert (decision.metric, decision.effect) == ("step_time", 0.08)


def test_a_waived_slowdown_of_the_environment_is_refused():
    """The code is as fast as the baseline's, which the environment made slower."""
    environment = (metric(0.08, "regressed", waiver=WAIVER),)
    decision = decide([night(1, context=UPGRADED, environment=1.08, judged_environment=environment)], STORED)

    assert (decision.kind, decision.record) == ("refused", None)
    assert "of the baseline's code" in decision.why


def test_what_improved_before_a_waived_slowdown_is_not_adopted_over_it():
    waived = night(4, 0.08, "waived", metrics=(metric(0.08, "regressed", waiver=WAIVER),))

    assert decide([night(2, -0.1), night(3, -0.1), waived], STORED).kind == "refused"
    assert decide([night(2, -0.1), waived, night(5, -0.1)], STORED).kind == "unchanged"


def test_runs_are_in_the_order_of_their_dates(tmp_path):
    later, earlier = (made.run(night(number).result, date=night(number).date) for number in (8, 1))
    (found,) = of_runs([(tmp_path / "a.json", later), (tmp_path / "b.json", earlier)]).values()

    assert [each.date for each in found] == [night(1).date, night(8).date]
