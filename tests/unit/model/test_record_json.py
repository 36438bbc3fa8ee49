"""Notes in records, which come with pull requests: bounded, and absent where nobody wrote one."""

import re
from dataclasses import replace

import pytest
from making import COMMIT, record

from pytest_perfdl.model.errors import RecordError
from pytest_perfdl.model.record import Case, CaseWork, Refreshed, checked_note
from pytest_perfdl.model.record_json import from_json, to_json


def test_a_note_and_what_a_refresh_keeps_are_read_as_they_were_written():
    noted = record(note="fused optimizer", refreshed=Refreshed("2026-05-01T10:00:00Z", COMMIT, {"step_time": 1e6}))

    assert from_json(to_json(noted)) == noted
    assert not {"note", "refreshed"} & to_json(record()).keys()


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("note", "a" * 501, "note: expected `str` of length <= 500"),
        ("note", 5, "note: expected `str | null`"),
        ("refreshed", {"date": "", "commit": "--option", "best": {}}, "refreshed.commit: not a full hash"),
        ("refreshed", {"date": "", "commit": None, "best": {"step_time": 1e300}}, "refreshed.best.step_time: 1e+300"),
    ],
)
def test_a_note_is_bounded(name, value, says):
    with pytest.raises(RecordError, match=re.escape(says)):
        from_json({**to_json(record()), name: value})


@pytest.mark.parametrize("text, says", [(" ", "is empty"), ("a" * 501, "501 characters"), ("a\x1b[31m", "control")])
def test_a_note_is_one_line_of_moderate_length(text, says):
    assert checked_note(" fused ") == "fused"
    with pytest.raises(ValueError, match=says):
        checked_note(text)


def table(*cases):
    """A record whose call has these cases."""
    made = record()
    return replace(made, calls=(replace(made.calls[0], cases=cases),))


def test_what_cases_have_to_do_is_kept_where_the_test_states_it():
    times = (1.0,) * record().repeats
    kept = table(
        Case("a", times, 1, 1, 0, ("aten::add",), CaseWork(items=0.5, flops=2e9, dtype="float32", cold=True)),
        Case("b", times, 1, 1, 0),
    )
    written = to_json(kept)
    assert [case.get("work") for case in written["calls"][0]["cases"]] == [
        {"items": 0.5, "flops": 2_000_000_000, "dtype": "float32", "cold": True},
        None,
    ]
    assert "work" not in written["calls"][0]["cases"][1]
    assert from_json(written) == kept


def test_what_a_case_is_made_of_is_kept_where_it_is_a_test_of_its_own():
    times = (1.0,) * record().repeats
    kept = table(Case("a", times, 1, 1, 0, definition="0123456789abcdef"), Case("b", times, 1, 1, 0))
    written = to_json(kept)
    assert [case.get("definition") for case in written["calls"][0]["cases"]] == ["0123456789abcdef", None]
    assert from_json(written) == kept
    written["calls"][0]["cases"][0]["definition"] = "../secret"
    with pytest.raises(RecordError, match=r"calls\[0\].cases\[0\].definition"):
        from_json(written)


@pytest.mark.parametrize("flops", [-1, 1e200, "many"])
def test_what_no_call_can_have_to_do_is_refused(flops):
    written = to_json(table(Case("a", (1.0,) * record().repeats, 1, 1, 0, (), CaseWork(flops=1.0))))
    written["calls"][0]["cases"][0]["work"]["flops"] = flops
    with pytest.raises(RecordError, match=r"calls\[0\].cases\[0\].work"):
        from_json(written)
