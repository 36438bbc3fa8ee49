"""Merging two updates of a baseline: what is joined, what stays, and what is a conflict."""

import json
from dataclasses import replace

import pytest
from making import COMMIT, counted, record, rows, timed

from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.merge import merge, merge_files
from pytest_perfdl.baseline.text import dump, parse
from pytest_perfdl.model.record import Code, Occasion

OLD, NEW, OTHER = (Code({"src/step.py": digit * 12}) for digit in "abc")


def measured(day, *times, code=OLD, ops=3, **more):
    """A record of one occasion on a day of May."""
    made = record(
        {"step_time": timed(*times), "ops": counted(*[ops] * len(times))},
        rows=rows(mm=(2, *[int(time) for time in times])),
        occasions=(Occasion(len(times), f"2026-05-{day:02}T10:00:00Z", COMMIT, None, tuple(100 + day for _ in times)),),
        code=code,
        **more,
    )
    return parse(dump(made))


def days(merged):
    return [int(occasion.date[8:10]) for occasion in merged.occasions]


def times(merged):
    return merged.metrics()["step_time"].values


BASE = measured(1, 10.0, 11.0)


@pytest.mark.parametrize("swap", [False, True])
def test_both_added_to_the_same_baseline(swap):
    ours, theirs = append(BASE, measured(3, 13.0)), append(BASE, measured(2, 12.0, 12.5))
    merged, conflict = merge([BASE], *((theirs, ours) if swap else (ours, theirs)))
    assert conflict == ""
    assert (days(merged), times(merged)) == ([1, 2, 3], (10, 11, 12, 12.5, 13))
    assert merged.repeats == 5
    assert merged.calls[0].rows[0].ns == (10, 11, 12, 12, 13)
    assert merged.occasions[-1].reference_ns == (103,)
    assert parse(dump(merged)) == merged


def test_what_both_sides_have_is_there_once():
    both = append(BASE, measured(2, 12.0))
    ours, theirs = append(both, measured(3, 13.0)), append(both, measured(4, 14.0))
    merged, _ = merge([BASE], ours, theirs)
    assert times(merged) == (10, 11, 12, 13, 14)


def test_two_measurements_that_began_in_the_same_second_are_two():
    merged, _ = merge([BASE], append(BASE, measured(2, 12.0)), append(BASE, measured(2, 12.5)))
    assert sorted(times(merged)) == [10, 11, 12, 12.5]


def test_an_occasion_that_one_side_replaced_stays_away():
    merged, conflict = merge([BASE], measured(3, 13.0), append(BASE, measured(2, 12.0)))
    assert (conflict, times(merged)) == ("", (12, 13))


def test_a_baseline_that_both_sides_added_with_the_same_code():
    merged, conflict = merge([], measured(3, 13.0), measured(2, 12.0))
    assert (conflict, times(merged)) == ("", (12, 13))


@pytest.mark.parametrize("other", [append(BASE, measured(2, 12.0)), measured(2, 12.0)], ids=["appended", "recorded"])
def test_the_side_with_other_code_than_the_ancestor_stays(other):
    """The merged tree has its code: the other side's measurements are of code that is replaced."""
    changed = measured(3, 13.0, code=NEW, ops=7)
    assert merge([BASE], changed, other) == (changed, "")
    assert merge([BASE], other, changed) == (changed, "")


def test_different_code_on_both_sides_is_a_conflict_that_keeps_one_whole():
    ours, theirs = measured(2, 12.0, code=NEW), measured(3, 13.0, code=OTHER)
    for sides in ((ours, theirs), (theirs, ours)):
        merged, conflict = merge([BASE], *sides)
        assert merged is sides[0]
        assert "neither is the baseline of the merged code" in conflict


def test_the_same_code_with_different_counts_is_a_conflict():
    merged, conflict = merge([BASE], append(BASE, measured(2, 12.0)), measured(3, 13.0, ops=4))
    assert days(merged) == [1, 2]
    assert "cannot be joined" in conflict
    assert "different metric ops" in conflict
    assert "--perf-update" not in conflict


def test_other_packages_are_other_code():
    ours = measured(2, 12.0, code=replace(OLD, packages={"torch": "2.13.0"}))
    theirs = measured(3, 13.0, code=replace(OLD, packages={"torch": "2.14.0"}))
    assert merge([BASE], ours, theirs)[1]


def test_unknown_code_is_joined_only_where_both_sides_added():
    base = measured(1, 10.0, code=None)
    added = [append(base, measured(day, 10.0 + day, code=None)) for day in (2, 3)]
    assert merge([base], *added)[1] == ""
    assert merge([base], measured(2, 12.0, code=None), measured(3, 13.0, code=None))[1]
    assert merge([], measured(2, 12.0, code=None), measured(3, 13.0, code=None))[1]


def test_histories_that_crossed_lose_nothing():
    """Both ancestors were merged on both sides before each added more."""
    first, second = append(BASE, measured(2, 12.0)), append(BASE, measured(3, 13.0))
    both, _ = merge([BASE], first, second)
    ours, theirs = append(both, measured(4, 14.0)), append(both, measured(5, 15.0))
    merged, conflict = merge([first, second], ours, theirs)
    assert (conflict, times(merged)) == ("", (10, 11, 12, 13, 14, 15))


def test_the_traces_of_ours_belong_to_a_joined_record():
    ours = replace(append(BASE, measured(2, 12.0)), exemplars={"": "a" * 64})
    theirs = replace(append(BASE, measured(3, 13.0)), exemplars={"": "b" * 64})
    assert merge([BASE], ours, theirs)[0].exemplars == {"": "a" * 64}


# Files


def test_a_side_that_did_not_change_gives_way():
    base, new = dump(BASE), dump(measured(2, 12.0))
    assert merge_files([base], base, new).data == new
    assert merge_files([base], new, base).data == new
    assert merge_files([], new, new).data == new


@pytest.mark.parametrize("damaged", [b"", b"{", b"<<<<<<< HEAD\n", b'{"schema": 99}', b"[]", b"\xff"])
def test_what_cannot_be_read_is_a_conflict_and_the_other_side_stays(damaged):
    good = dump(BASE)
    for sides in ((damaged, good), (good, damaged)):
        merged = merge_files([], *sides)
        assert (merged.data, bool(merged.conflict)) == (good, True)


def test_a_damaged_ancestor_is_as_none():
    merged = merge_files([b"{"], dump(measured(2, 12.0)), dump(measured(3, 13.0)))
    assert (merged.conflict, times(parse(merged.data))) == ("", (12, 13))


def test_records_of_different_tests_are_a_conflict():
    merged = merge_files([], dump(BASE), dump(replace(BASE, test="t.py::test_other")))
    assert merged.data == dump(BASE)
    assert "different tests" in merged.conflict


def test_the_later_rates_of_a_machine_stay():
    old, new = (json.dumps({"cores": 8, "date": f"2026-05-0{day}"}).encode() for day in (1, 2))
    assert merge_files([], old, new) == merge_files([], new, old)
    assert merge_files([b"{}"], old, new).data == new
