"""Notes in records, which come with pull requests: bounded, and absent where nobody wrote one."""

import re

import pytest
from making import COMMIT, record

from pytest_perfdl.model.errors import RecordError
from pytest_perfdl.model.record import Refreshed, checked_note
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
