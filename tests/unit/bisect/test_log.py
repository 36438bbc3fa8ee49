"""The file of a search: what is written is read again, and a cut-off line does not count."""

import pytest

from pytest_perfdl.bisect.log import Log
from pytest_perfdl.bisect.measurements import Measurement, Request
from pytest_perfdl.model.errors import LogError

ROUND = Measurement(
    Request("a" * 40, "b" * 40, timed=True),
    counts={"ops": 16.0},
    base_counts={"ops": 16.0},
    rounds={"step_time": ((100.0, 105.0), (101.0, 106.5))},
    blame=({"kind": "operator", "name": "aten::relu"},),
    source_diffs=({"file": "model.py", "function": "step"},),
    causes=("more calls of relu",),
    seconds=12.5,
    key="machine",
)
SKIPPED = Measurement(Request("c" * 40), "ImportError: no", seconds=1.0)
SEARCH = {"good": "a", "bad": "b"}


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "folder" / "log.jsonl", SEARCH)


def test_what_is_written_is_read(log):
    assert log.read() == []
    log.append(ROUND)
    log.append(SKIPPED)
    assert log.read() == [ROUND, SKIPPED]


def test_a_line_that_was_cut_off_does_not_count(log):
    log.append(ROUND)
    with log.path.open("ab") as file:
        file.write(b'{"schema": 1, "req')
    assert log.read() == [ROUND]
    log.append(SKIPPED)
    assert log.read() == [ROUND, SKIPPED]


def test_a_first_line_that_was_cut_off(log):
    log.append(ROUND)
    log.path.write_bytes(log.path.read_bytes()[:10])
    assert log.read() == []
    log.append(SKIPPED)
    assert log.read() == [SKIPPED]


@pytest.mark.parametrize(
    "text, said",
    [
        ("not json\n", "line 1 is not JSON"),
        ("[]\n", "line 1 does not begin a log of perfdl bisect"),
        ('{"search": {"good": "a", "bad": "c"}}\n', r"of another search \(bad differ\): use another --log"),
        ('{"search": {"good": "a", "bad": "b"}}\n{"schema": 9}\n', "line 2 was written by a newer pytest-perfdl"),
        ('{"search": {"good": "a", "bad": "b"}}\n{"schema": 1}\n', "line 2 is not a measurement of perfdl bisect"),
    ],
)
def test_files_that_are_refused(log, text, said):
    log.path.parent.mkdir()
    log.path.write_text(text)
    with pytest.raises(LogError, match=said):
        log.read()


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(LogError, match="cannot be"):
        Log(tmp_path, SEARCH).append(ROUND)
