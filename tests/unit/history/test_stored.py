"""The updates of a remote store as a history."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.baseline.remote import opened
from pytest_perfdl.cli import main
from pytest_perfdl.model.record import Occasion
from unit.history.records import TEST, record


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return f"file://{tmp_path}/remote"


def recorded(day, step=4e7, **of):
    commit = f"{day:040x}"
    return replace(record(step, **of), occasions=(Occasion(4, f"2026-05-{day:02}T10:00:00Z", commit, None),))


def shown(url, capsys, *words):
    code = main(["history", "--dir", url, "--json", *words])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if code == 0 else printed.err


def test_each_update_is_a_point_in_the_order_of_the_recordings(url, capsys):
    store = opened(Path.cwd(), url)
    for day, step in ((1, 4e7), (2, 4e7), (4, 5e7), (3, 4e7), (5, 5e7)):
        store.save(replace(recorded(day, step), note="more layers" if day == 4 else None), {"": b"trace"})
    store.write(store.key_folder("cpu-a") / "machine.json", b'{"date": "2026-05-01"}')
    code, found = shown(url, capsys, "test_step")
    (history,) = found["tests"]
    assert (code, history["id"], history["machine_id"]) == (0, TEST, "cpu-a")
    points = history["points"]
    assert [int(point["commit"], 16) for point in points] == [1, 2, 3, 4, 5]
    assert [point["date"] for point in points][:2] == ["2026-05-01T10:00:00Z", "2026-05-02T10:00:00Z"]
    assert [round(point["value"] / 1e6) for point in points] == [40, 40, 40, 50, 50]
    assert points[3]["note"] == "more layers"
    assert found["skipped"] == []


def test_an_update_that_recorded_nothing_is_no_point(url, capsys):
    store = opened(Path.cwd(), url)
    store.save(recorded(1), {})
    path = store.path(TEST, "cpu-a")
    store.write(path, path.read_bytes().replace(b"\n", b"\n\n", 1))
    assert len(shown(url, capsys)[1]["tests"][0]["points"]) == 1
    store.remove(TEST, "cpu-a")
    assert len(shown(url, capsys)[1]["tests"][0]["points"]) == 1


def test_an_update_that_cannot_be_used_is_named(url, capsys):
    store = opened(Path.cwd(), url)
    store.save(recorded(1), {})
    store.write(store.path(TEST, "cpu-a"), b"{}")
    code, found = shown(url, capsys)
    (line,) = found["skipped"]
    assert code == 0
    assert line.startswith(f"{url}/cpu-a/tests/test_gpt/test_step/")
    assert "is damaged, or no file of pytest-perfdl" in line


def test_an_empty_store(url, capsys):
    assert main(["history", "--dir", url, "test_x"]) == 3
    assert capsys.readouterr().out == (
        f"nothing to show: {url} has no baseline of a test whose id contains 'test_x' (record baselines with "
        "`pytest --perf-update`, or name run files with --runs)\n"
    )
