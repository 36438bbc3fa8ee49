"""Run files from files, folders and file systems of fsspec."""

import json

import fsspec
import pytest

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.record import INJECTED
from pytest_perfdl.runs import run_files
from pytest_perfdl.runs.history import histories
from unit.runs.history.records import invalid, paired, record, run_file, write


def read(*places):
    skipped = []
    return list(run_files.measurements([str(place) for place in places], skipped.append)), skipped


def test_files_and_folders_are_read_in_the_order_of_their_dates(tmp_path):
    write(
        tmp_path / "nights" / "deep", b=run_file(date="2026-05-02T10:00:00Z"), a=run_file(date="2026-05-04T10:00:00Z")
    )
    write(tmp_path, other=run_file(date="2026-05-03T10:00:00Z", commit="d" * 40))
    found, skipped = read(tmp_path / "nights", tmp_path / "other.json")
    assert [each.date[8:10] for each in found] == ["02", "03", "04"]
    assert [each.commit[0] for each in found] == ["c", "d", "c"]
    assert not skipped


def test_rounds_and_the_baseline_are_there(tmp_path):
    write(tmp_path, run=run_file(base=record(commit="b" * 40), paired=paired(0.02)))
    ((one,), _) = read(tmp_path)
    assert one.base.measured_commit == "b" * 40
    assert one.paired["step_time"].effect == 0.02
    assert one.paired["step_time"].interval == pytest.approx((0.01, 0.03))


@pytest.mark.parametrize("wrong", [{"effect": -2.0}, {"ci95": None}, {"evidence": "exact"}, {"effect": 1e200}])
def test_rounds_without_a_usable_effect_are_none(wrong, tmp_path):
    write(tmp_path, run=run_file(base=record(), paired=paired(0.02) | wrong))
    ((one,), _) = read(tmp_path)
    assert not one.paired


@pytest.mark.parametrize("finding", [invalid(), invalid(INJECTED)])
def test_measurements_that_are_invalid_or_slowed_on_purpose_are_left_out(finding, tmp_path):
    write(tmp_path, run=run_file(invalid=[finding]))
    assert read(tmp_path) == ([], [])


def test_a_test_whose_rounds_are_invalid_is_left_out(tmp_path):
    """Its record is valid, but a single process among points of rounds would have all of machine drift."""
    write(tmp_path, run=run_file(base=record(), verdict="invalid"))
    assert read(tmp_path) == ([], [])


def test_damaged_and_newer_files_are_skipped_with_a_line(tmp_path):
    write(tmp_path, good=run_file(), cut=run_file()[:-30], other=b'{"a": 1}', newer=b'{"schema": 7}')
    found, skipped = read(tmp_path)
    assert len(found) == 1
    assert [line.removeprefix(f"{tmp_path}/")[:28] for line in skipped] == [
        "cut.json is damaged, or no f",
        "newer.json was written by an",
        "other.json is damaged, or no",
    ]


def test_a_large_file_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "LIMIT", 1024)
    write(tmp_path, run=b" " * 1024 + run_file())
    found, (line,) = read(tmp_path)
    assert not found
    assert line.endswith("run.json cannot be read: it is larger than 1 KiB: skipped")


def test_only_so_many_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "MOST_FILES", 2)
    write(tmp_path, **{name: run_file(date=f"2026-05-0{day}T10:00:00Z") for day, name in enumerate("abc", start=1)})
    found, (line,) = read(tmp_path)
    assert len(found) == 2
    assert line.endswith("has 3 files: only the last 2 by name are read")


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe("/runs/1.json", run_file(date="2026-05-02T10:00:00Z"))
    system.pipe("/runs/deep/2.json", run_file(date="2026-05-03T10:00:00Z"))
    system.pipe("/runs/notes.txt", b"nothing")
    yield system
    system.store.clear()


def test_a_url_is_a_folder_or_a_file(memory):
    assert len(read("memory://runs")[0]) == 2
    assert len(read("memory://runs/1.json")[0]) == 1
    memory.pipe("/runs/3.json", b"{")
    found, (line,) = read("memory://runs")
    assert len(found) == 2
    assert line.startswith(("memory://runs/3.json is damaged", "memory:///runs/3.json is damaged"))


def test_a_url_with_large_files(memory, monkeypatch):
    monkeypatch.setattr(run_files, "LIMIT", 100)
    found, skipped = read("memory://runs")
    assert not found
    assert [line.partition(" cannot ")[2] for line in skipped] == ["be read: it is larger than 0 KiB: skipped"] * 2


@pytest.mark.parametrize(
    "place, why",
    [
        ("nowhere", "there is no run file or folder nowhere (TEST comes before --runs)"),
        ("memory://nowhere", "there is no run file at memory://nowhere"),
        ("unheard://bucket/runs", "unheard://bucket/runs cannot be opened: Protocol not known: unheard"),
    ],
)
def test_a_place_that_is_not_there(place, why, memory):
    with pytest.raises(InputError) as error:
        read(place)
    assert str(error.value) == why


def test_a_url_that_cannot_be_read_is_skipped_with_a_line(memory, monkeypatch):
    def denied(*_, **__):
        raise PermissionError("403 for https://host/a?sig=SECRET")

    monkeypatch.setattr(type(memory), "open", denied)
    found, skipped = read("memory://runs")
    assert not found
    assert [line.partition(" cannot ")[2] for line in skipped] == ["be read: 403 for https://host/a: skipped"] * 2


def test_a_name_from_a_url_reaches_no_terminal(memory):
    memory.pipe("/runs/\x1b[31m.json", b"{")
    _, (line,) = read("memory://runs")
    assert "\x1b" not in line
    with pytest.raises(InputError) as error:
        read("unheard://\x1b[31m")
    assert "\x1b" not in str(error.value)


def test_a_run_that_is_there_twice_is_one_point(tmp_path):
    write(tmp_path, run=run_file(), json=run_file(), other=run_file(date="2026-05-03T10:00:00Z"))
    assert [each.date[8:10] for each in read(tmp_path)[0]] == ["02", "03"]


def run_with(**changes):
    data = json.loads(run_file(date="2026-05-03T10:00:00Z", commit="d" * 40))
    record = data["tests"][0]["record"]
    for name, value in changes.items():
        record[name] = {**record[name], **value} if isinstance(value, dict) else value
    return json.dumps(data).encode()


OTHER = {
    "definition": ({"test_hash": "fedcba9876543210"}, ("test source", "0123456789ab", "fedcba987654")),
    "steps": ({"plan": {"steps": 80}}, ("steps", "20", "80")),
    "threads": ({"plan": {"threads": 2}}, ("threads", "1", "2")),
    "loops": ({"plan": {"loops": {"": 8}}}, ("loops", "none", '{"": 8}')),
    "torch": ({"context": {"torch": "2.13.0"}}, ("torch", "2.12.0", "2.13.0")),
}


@pytest.mark.parametrize("changes, said", OTHER.values(), ids=OTHER)
def test_a_point_that_was_measured_otherwise_says_so(changes, said, tmp_path):
    write(tmp_path, first=run_file(), second=run_with(**changes))
    (history,) = histories(read(tmp_path)[0], "", None)
    assert [point.environment_changes for point in history.points] == [(), (said,)]


def test_another_machine_is_another_history(tmp_path):
    write(tmp_path, first=run_file(), second=run_with(key={"slug": "cpu-b"}))
    assert [each.machine_id for each in histories(read(tmp_path)[0], "", None)] == ["cpu-a", "cpu-b"]
