"""Which annotations are steps that figures are made of, and what is said of the others: each worked out by hand."""

import pytest

from pytest_perfdl.analysis.account.accounts import profile_tables
from pytest_perfdl.analysis.events.steps import steps_of
from pytest_perfdl.analysis.overview.summary import summarize
from unit.analysis.jobs import lengths, pipelined, said, steady, steps_in, without
from unit.trace.chrome import kernel, launch, step, trace, x


@pytest.mark.parametrize("called", [False, True], ids=["launched before the recording", "launched before the step"])
def test_the_first_window_of_a_pipelined_job_opens_where_carried_over_work_ends(called):
    # Carried over: 30 kernels of 100 us, until 3000. Each step has 10 more: C_0 = 3000, then 4000, 5000 and 6000.
    events = pipelined(called=called)
    found = steps_in(*events)
    assert [(window.start, window.end) for window in found.windows] == [
        (3_000_000, 4_000_000),
        (4_000_000, 5_000_000),
        (5_000_000, 6_000_000),
    ]
    assert found.findings == found.left_out == ()
    tables = profile_tables(trace(*events))
    assert tables.step_ns == (1_000_000,) * 3
    assert sum(tables.account.values()) == sum(tables.step_ns) == tables.account["compute"]
    # Sums are of the steps' own kernels: 30 of the 60.
    summary = summarize(trace(*events))
    assert [(row.count, row.total_ns) for row in summary.kernels] == [(30, 3_000_000)]
    assert summary.gpu.busy_ns == 3_000_000


def test_what_ends_after_the_first_step_was_not_carried_over_into_it():
    # A copy on a stream of its own runs on until 9000, beyond C_1 = 4000: the first window opens at 3000 all the same.
    copy = [launch(0, 1, 9, name="cudaMemcpyAsync"), kernel("Memcpy HtoD", 5, 8995, 9, stream=20, cat="gpu_memcpy")]
    assert lengths(steps_in(*pipelined(called=True), *copy)) == {10: 1000, 11: 1000, 12: 1000}


def test_a_step_that_waits_for_the_device_begins_with_its_annotation():
    # The carried-over kernel ends at 30, before the first annotation at 100.
    events = [kernel("gemm", 0, 30, 9), *steady(3, at=100)]
    assert lengths(steps_in(*events)) == {1: 1000, 2: 1000, 3: 1000}


def test_each_run_of_numbers_has_its_own_beginning():
    # A schedule that records twice, 10 s apart: no step is 10 s long, and nothing is left out.
    again = 10_000_000
    found = steps_in(*steady(3), *steady(3, first=21, at=again))
    assert lengths(found) == {1: 1000, 2: 1000, 3: 1000, 21: 1000, 22: 1000, 23: 1000}
    assert [window.start for window in found.windows][3] == again * 1000
    assert found.findings == ()


@pytest.mark.parametrize(("pause", "longer"), [(1000, True), (1001, False)], ids=["as long as a step", "longer"])
def test_a_pause_between_two_steps(pause, longer):
    # Steps 1 to 3, then a pause, as for a checkpoint, and steps 4 to 6. A pause of up to a step is part of step 4,
    # which begins where step 3 ends.
    found = steps_in(*steady(3), *steady(3, first=4, at=3000 + pause))
    assert lengths(found) == {1: 1000, 2: 1000, 3: 1000, 4: 1000 + pause * longer, 5: 1000, 6: 1000}
    assert set(said(found)) == (set() if longer else {"pauses"})


def test_every_fifth_step_is_as_long_as_it_is():
    # Steps 5, 10 and 15 of 1000 us, 5000 us apart.
    events = [event for number in (5, 10, 15) for event in steady(1, first=number, at=1000 * number)]
    found = steps_in(*events)
    assert lengths(found) == {5: 1000, 10: 1000, 15: 1000}
    assert found.left_out == found.findings == ()


@pytest.mark.parametrize("inset", [0, 2], ids=["equal", "inside"])
def test_steps_that_are_annotated_twice_count_once(inset):
    again = [step(number, 1000 * (number - 1) + inset, 1000 - 2 * inset) for number in range(1, 6)]
    found = steps_in(*steady(), *again)
    assert lengths(found) == dict.fromkeys(range(1, 6), 1000)
    assert [window.host_ns for window in found.windows] == [1_000_000] * 5
    assert found.left_out == ()
    assert said(found) == {
        "steps-twice": "5 steps are annotated twice: the outer annotation of each is used",
    }
    assert not found.damaged


def test_the_steps_of_a_second_profiler_within_those_of_the_first():
    # Two profilers, one inside the other and with its own numbers.
    inner = [step(100 + number, 1000 * number + 100, 800) for number in range(5)]
    found = steps_in(*steady(), *inner)
    assert lengths(found) == dict.fromkeys(range(1, 6), 1000)
    assert said(found) == {
        "nested-steps": "5 step annotations overlap those of another profiler on the same thread: the 5 steps 1 to 5 "
        "are used"
    }


def test_shorter_steps_around_which_one_is_annotated_are_the_steps():
    # One annotation around all five: the chain of five counts.
    found = steps_in(*steady(), step(0, 0, 5000))
    assert lengths(found) == dict.fromkeys(range(1, 6), 1000)
    assert "nested-steps" in said(found)


@pytest.mark.parametrize(("over", "kept"), [(10, True), (11, False)], ids=["1 %", "more"])
def test_steps_that_overlap(over, kept):
    # Step 3 begins before step 2 has ended: by 1 % of its 1000 us, or more.
    events = [{**one, "dur": one["dur"] + over} if one["name"] == "ProfilerStep#2" else one for one in steady()]
    found = steps_in(*events)
    if kept:
        assert list(lengths(found)) == [1, 2, 3, 4, 5]
        assert found.findings == ()
    else:
        assert lengths(found) == {1: 1000, 4: 1000, 5: 1000}
        assert [number for number, _ in found.left_out] == [2, 3]
        assert said(found)["overlapping-steps"] == (
            "steps 2 and 3 overlap by up to 1.1% of a step: left out of all figures"
        )


def test_steps_without_a_duration():
    events = [{**one, "dur": 0} if one["name"] == "ProfilerStep#3" else one for one in steady()]
    found = steps_in(*events)
    # Step 4 begins with its annotation, as the end of step 3 is not known.
    assert lengths(found) == {1: 1000, 2: 1000, 4: 1000, 5: 1000}
    assert found.left_out == ((3, "step 3 without a duration"),)
    assert said(found) == {"empty-step": "step 3 without a duration: left out of all figures"}
    none = steps_in(*({**one, "dur": 0} if "ProfilerStep" in one["name"] else one for one in steady()))
    assert none.windows == ()
    assert none.damaged
    assert said(none)["empty-step"] == "all 5 steps without a duration: left out of all figures: no step remains"


def half_of_the_last(steps):
    """The profiler stops in the middle of the last step: after 5 of its 10 operators, its annotation after 480 us."""
    limit = 1000 * steps - 520
    kept = [one for one in steady(steps) if one["ts"] < limit]
    return [{**one, "dur": 480} if one["name"] == f"ProfilerStep#{steps}" else one for one in kept]


def test_a_last_step_in_which_the_profiler_stopped():
    # 5 operators and 5 launches where the others have 20.
    found = steps_in(*half_of_the_last(4))
    assert lengths(found) == {1: 1000, 2: 1000, 3: 1000}
    assert said(found) == {
        "cut-step": "step 4 runs 10 operators and launches where 3 other steps run 20, so the recording ends inside "
        "it: left out of all figures"
    }
    assert not found.damaged


def test_a_first_step_in_which_the_profiler_began():
    # The operators of the first half of step 1 are not there.
    events = [one for one in steady(4) if one["ts"] >= 500 or "ProfilerStep" in one["name"]]
    found = steps_in(*events)
    assert lengths(found) == {2: 1000, 3: 1000, 4: 1000}
    assert "so the recording begins inside it" in said(found)["cut-step"]


def test_a_last_step_that_runs_more_is_no_damage():
    # Evaluation in the last step: five operators more than the others have.
    more = [x("aten::topk", 3050 + 100 * each, 20) for each in range(5)]
    found = steps_in(*steady(4), *more)
    assert list(lengths(found)) == [1, 2, 3]
    assert [(finding.level, finding.code) for finding in found.findings] == [("note", "other-step")]


def test_three_steps_are_too_few_to_say_which_one_is_cut():
    found = steps_in(*half_of_the_last(3))
    # It ends with its annotation, 480 us after the one before.
    assert lengths(found) == {1: 1000, 2: 1000, 3: 480}
    assert [(finding.level, finding.code) for finding in found.findings] == [("note", "steps-differ")]
    assert "all 3 steps run different operators (20, 20, 10)" in said(found)["steps-differ"]


def test_accumulation_of_gradients_differs_by_right():
    # Every second step updates: A B A B A B, so that no first or last step is unlike all others.
    update = [x("aten::_foreach_add_", 1000 * number + 960, 20) for number in (1, 3, 5)]
    update += [x("aten::_foreach_mul_", 1000 * number + 985, 10) for number in (1, 3, 5)]
    found = steps_in(*steady(6), *update)
    assert list(lengths(found)) == [1, 2, 3, 4, 5, 6]
    assert found.findings == ()


def test_one_operator_in_a_hundred_is_no_other_step():
    # 99 operators and launches more than twenty would be: of 200 events 2 are 1 %, 3 are more.
    for more, kept in ((2, True), (3, False)):
        events = [event for number in range(1, 5) for event in steady(1, first=number, at=1000 * number)]
        events += [x("aten::add", 1000 * number + each, 1) for number in range(1, 5) for each in range(180)]
        events += [x("aten::sum", 4900 + each, 1) for each in range(more)]
        assert (4 in lengths(steps_in(*events))) == kept


def test_a_measured_pass_knows_that_its_steps_are_whole():
    from pytest_perfdl.analysis.events.steps import whole_steps

    found = trace(*steady(4), *(x("aten::topk", 3050 + 100 * each, 20) for each in range(5)))
    assert [window.number for window in whole_steps(found).windows] == [1, 2, 3, 4]
    assert [window.number for window in steps_of(found).windows] == [1, 2, 3, 4], "whoever asks later is told the same"


def test_the_thread_that_holds_the_work_owns_the_steps():
    # A second thread has more annotations, of other numbers and lengths, but runs nothing in them.
    others = [step(100 + number, 400 * number, 300, tid=777) for number in range(12)]
    found = steps_in(*steady(), *others, x("aten::mm", 5100, 10, tid=777))
    assert lengths(found) == dict.fromkeys(range(1, 6), 1000)
    assert found.findings == ()


def test_setup_after_carried_over_work_is_taken_off():
    # 3000 to 4000 holds none of the setup, which ran on the host from 20 to 60 while the device was behind.
    events = [*pipelined(), x("perfdl.setup", 20, 40, "user_annotation")]
    found = steps_in(*events)
    assert lengths(found) == {10: 1000, 11: 1000, 12: 1000}
    assert [window.host_ns for window in found.windows] == [60_000, 100_000, 100_000]


def test_a_step_whose_work_is_all_done_when_that_of_earlier_steps_is():
    # Step 20 launches nothing and ends on the host at 130, while work that was carried over runs until exactly then.
    events = [kernel("gemm", 0, 130, 999), step(20, 100, 30), x("aten::mm", 101, 20)]
    events += [step(30, 200, 100), launch(210, 5, 1), kernel("gemm", 220, 50, 1)]
    found = steps_in(*events)
    assert lengths(found) == {30: 100}
    assert said(found)["covered-step"].startswith("step 20 without time of their own, after the work of earlier steps")


def test_totals_are_those_of_the_steps_that_are_left():
    # Step 3 of 5 lacks 3 of its 10 kernels; those that it has are in no table.
    summary = summarize(trace(*without(steady(), 301, 302, 303)))
    assert [(row.count, row.total_ns) for row in summary.kernels] == [(40, 2_000_000)]
    assert [each.name for each in summary.steps] == [f"ProfilerStep#{number}" for number in (1, 2, 4, 5)]
    assert [number for number, _ in summary.left_out] == [3]
    assert summary.events == len(steady()) - 3


def test_a_pause_between_steps_is_in_no_step():
    # The third step begins 10 s later; its number goes on.
    later = [{**one, "ts": one["ts"] + (10_000_000 if one["ts"] >= 2000 else 0)} for one in steady(4)]
    found = steps_in(*later)
    assert lengths(found) == {1: 1000, 2: 1000, 3: 1000, 4: 1000}
    assert said(found) == {"pauses": "1 pause between steps, 10.00 s in all: in no step"}


def test_a_pause_before_the_device_is_done_leaves_its_step_out():
    # The last kernel of step 2 is on the other side of the pause: by its completion the step would take 10 s.
    events = [
        {
            **one,
            "ts": one["ts"] + (10_000_000 if one["ts"] >= 2000 or (one["cat"], one["ts"]) == ("kernel", 1920) else 0),
        }
        for one in steady(4)
    ]
    found = steps_in(*events)
    assert lengths(found) == {1: 1000, 3: 1000, 4: 1000}
    assert list(said(found)) == ["pause"]


def test_a_fragment_after_the_last_step_is_none():
    # What a script runs between `prof.step()` and the end: two operators, where a step has ten and ten launches.
    tail = [step(3, 2000, 30), x("aten::item", 2005, 10), x("aten::_local_scalar_dense", 2007, 5)]
    found = steps_in(*steady(2), *tail)
    assert lengths(found) == {1: 1000, 2: 1000}
    assert found.left_out == ((3, "step 3, a fragment between the last whole step and the end"),)
    assert not found.damaged


def test_a_step_whose_annotation_ends_early_is_left_out():
    # The annotation of step 2 ends after five of its ten operators.
    events = [{**one, "dur": 500} if one["name"] == "ProfilerStep#2" else one for one in steady(4)]
    found = steps_in(*events)
    assert lengths(found) == {1: 1000, 3: 1000, 4: 1000}
    assert list(said(found)) == ["early-end"]


def test_work_that_ran_before_a_first_step_and_is_not_recorded_leaves_it_out():
    # Launched at 0, the first kernel begins at 3 ms: the device ran what is not in the file.
    events = [one for one in pipelined(steps=4) if one["args"].get("correlation", 0) < 10_000]
    found = steps_in(*events)
    assert lengths(found) == {11: 1000, 12: 1000, 13: 1000}
    assert list(said(found)) == ["unseen-work"]
    assert not found.damaged


def test_the_operators_of_other_threads_do_not_tell_a_step_from_others():
    # A thread that pins memory is done before the last step.
    pins = [x("aten::pin_memory", 1000 * number + 100, 20, tid=77) for number in range(4)]
    assert lengths(steps_in(*steady(5), *pins)) == dict.fromkeys(range(1, 6), 1000)


def test_without_launches_the_ends_of_steps_are_not_known_where_kernels_run_on():
    # A host that is 3 ms ahead of the device, without runtime calls: no kernel runs inside its own step.
    events = [one for one in pipelined(steps=4) if one["cat"] != "cuda_runtime"]
    found = steps_in(*events)
    assert found.windows == ()
    assert "unknown-ends" in said(found)
