"""The file of a search or a campaign: what is written is read again, and a cut-off line does not count."""

import json

import pytest

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.results.verdict import SourceDiff
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.log import Log
from pytest_perfdl.runs.qualify import log as campaign
from unit.runs.qualify.runs_of_suites import case_of, outcome

ROUND = Measurement(
    Request("a" * 40, "b" * 40, timed=True),
    counts={"ops": 16.0},
    base_counts={"ops": 16.0},
    rounds={"step_time": ((100.0, 105.0), (101.0, 106.5))},
    blame=({"kind": "operator", "name": "aten::relu"},),
    source_diffs=(SourceDiff("model.py", "step", "-one\n+two"),),
    causes=("more calls of relu",),
    seconds=12.5,
    key="machine",
)
SKIPPED = Measurement(Request("c" * 40), "ImportError: no", seconds=1.0)
RUNS = (outcome(), outcome(inject=0.05), outcome(case_of("regressed", effect=0.07), case_of("invalid", "b")))


@pytest.fixture(params=["search", "campaign"])
def log(request, tmp_path):
    path = tmp_path / "folder" / "log.jsonl"
    return searching(path) if request.param == "search" else campaign(path)


@pytest.fixture
def entries(log):
    return [ROUND, SKIPPED] if log.entry is Measurement else [*RUNS]


def searching(path):
    return Log(path, Measurement, "perfdl bisect", {"good": "a", "bad": "b"})


def test_what_is_written_is_read(log, entries):
    assert log.read() == []
    for entry in entries:
        log.append(entry)
    assert log.read() == entries
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(lines) == len(entries) + bool(log.search)


def test_a_line_that_was_cut_off_does_not_count(log, entries):
    log.append(entries[0])
    with log.path.open("ab") as file:
        file.write(b'{"schema": 1, "req')
    assert log.read() == entries[:1]
    log.append(entries[1])
    assert log.read() == entries[:2]


def test_a_first_line_that_was_cut_off(log, entries):
    log.append(entries[0])
    log.path.write_bytes(log.path.read_bytes()[:10])
    assert log.read() == []
    log.append(entries[1])
    assert log.read() == entries[1:2]


FIRST = '{"search": {"good": "a", "bad": "b"}}\n'


@pytest.mark.parametrize(
    "text, said",
    [
        ("not json\n", "line 1 is not JSON"),
        ("[]\n", "line 1 does not begin a log of perfdl bisect"),
        ('{"search": {"good": "a", "bad": "c"}}\n', r"of another search \(bad differ\): use another --log"),
        (FIRST + '{"schema": 9}\n', "line 2 was written by another version of pytest-perfdl"),
        (FIRST + '{"schema": 1}\n', "line 2 was not written by perfdl bisect: it is malformed"),
        (FIRST + json.dumps({"schema": 1, "request": {"commit": "a"}, "rounds": {"step_time": [[0, 1]]}}), None),
    ],
)
def test_files_of_searches_that_are_refused(tmp_path, text, said):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    if said is None:
        assert searching(path).read() == [], "a line without an end was cut off"
        path.write_text(f"{text}\n")
        said = "line 2 was not written by perfdl bisect: it is malformed .*rounds"
    with pytest.raises(InputError, match=said):
        searching(path).read()


CASE = {"id": "a", "verdict": "unchanged", "basis": "paired", "compared": True, "metrics": {}}
RUN = {"schema": 1, "inject": 0.0, "date": "", "seconds": 1.0, "commit": None, "key": "", "arguments": []}


@pytest.mark.parametrize(
    "text, said",
    [
        ("{}", "runs.jsonl: line 1 was not written by perfdl qualify: it is malformed (missing field `schema`)"),
        ("[1]", "runs.jsonl: line 1 was not written by perfdl qualify"),
        ("\xff", "runs.jsonl: line 1 is not JSON"),
        ({"schema": 9}, "another version of pytest-perfdl"),
        ({"inject": "5"}, "inject: expected `float`"),
        ({"inject": float("nan")}, "line 1 is not JSON"),
        ({"seconds": True}, "seconds: expected `float`"),
        ({"cases": [{"id": "a"}]}, "cases[0]: missing field `verdict`"),
        ({"cases": None}, "cases: expected `array`"),
        ({"cases": [{**CASE, "basis": "luck"}]}, "cases[0].basis: invalid enum value 'luck'"),
    ],
    ids=["empty", "list", "bytes", "newer", "text", "nan", "bool", "test", "nothing", "basis"],
)
def test_a_line_that_is_no_run_is_named(tmp_path, text, said):
    path = tmp_path / "runs.jsonl"
    line = text if isinstance(text, str) else json.dumps({**RUN, "cases": [CASE], **text})
    path.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(InputError) as error:
        campaign(path).read()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("make", [searching, campaign])
def test_a_place_that_cannot_be_used(tmp_path, make):
    for act in (lambda log: log.read(), lambda log: log.append(SKIPPED)):
        with pytest.raises(InputError, match="cannot be"):
            act(make(tmp_path))
