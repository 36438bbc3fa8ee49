"""The file of a campaign: added to, continued, cut off, damaged."""

import json

import pytest

from pytest_perfdl.model.errors import LogError
from pytest_perfdl.qualify.log import Log
from pytest_perfdl.qualify.outcomes import to_json
from unit.qualify.runs_of_suites import outcome


def test_a_run_a_line(tmp_path):
    log = Log(tmp_path / "new" / "runs.jsonl")
    assert log.read() == []

    runs = [outcome(), outcome(inject=0.05), outcome(seconds=3.5)]
    for run in runs:
        log.append(run)

    assert log.read() == runs
    assert [json.loads(line) for line in log.path.read_text().splitlines()] == [
        json.loads(json.dumps(to_json(run))) for run in runs
    ]


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    log = Log(tmp_path / "runs.jsonl")
    log.append(outcome())
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:40])
    assert log.read() == [outcome()]

    log.append(outcome(inject=0.1))
    assert log.read() == [outcome(), outcome(inject=0.1)]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{}\n", "runs.jsonl: line 1: not a run of perfdl qualify (no 'schema')"),
        ("words\n", "runs.jsonl: line 1 is not JSON"),
        ("[1]\n", "runs.jsonl: line 1: not a run of perfdl qualify"),
        ("\xff\n", "runs.jsonl: line 1 is not JSON"),
    ],
    ids=["empty", "words", "list", "bytes"],
)
def test_a_line_that_is_no_run_is_named(tmp_path, text, message):
    (tmp_path / "runs.jsonl").write_bytes(text.encode("latin-1"))

    with pytest.raises(LogError) as error:
        Log(tmp_path / "runs.jsonl").read()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_place_that_cannot_be_used(tmp_path):
    for act in (lambda log: log.read(), lambda log: log.append(outcome())):
        with pytest.raises(LogError, match="cannot be"):
            act(Log(tmp_path))
