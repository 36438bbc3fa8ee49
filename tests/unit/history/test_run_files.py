"""Run files from files, folders and file systems of fsspec."""

import socket
import sys

import fsspec
import pytest

from pytest_perfdl.history import run_files
from pytest_perfdl.model.errors import HistoryError
from pytest_perfdl.model.record import INJECTED
from unit.history.records import invalid, paired, record, run_file, write


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
        "newer.json was written by a ",
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
    write(tmp_path, a=run_file(), b=run_file(), c=run_file())
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
    assert [line.partition(" is larger than ")[2] for line in skipped] == ["0 KiB: skipped"] * 2


@pytest.mark.parametrize(
    "place, why",
    [
        ("nowhere", "there is no run file or folder nowhere (TEST comes before --runs)"),
        ("memory://nowhere", "there is no run file at memory://nowhere"),
        ("unheard://bucket/runs", "unheard://bucket/runs cannot be opened: Protocol not known: unheard"),
    ],
)
def test_a_place_that_is_not_there(place, why, memory):
    with pytest.raises(HistoryError) as error:
        read(place)
    assert str(error.value) == why


@pytest.mark.parametrize("protocol, package", [("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")])
def test_a_missing_backend_is_named_with_its_command(protocol, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _url: (_ for _ in ()).throw(ImportError("Install it")))
    with pytest.raises(HistoryError) as error:
        read(f"{protocol}://bucket/runs")
    assert str(error.value) == f"{protocol}://bucket/runs needs a package that is not installed: pip install {package}"


def test_fsspec_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(HistoryError, match=r"needs the package fsspec: pip install fsspec\Z"):
        read("memory://runs")


def test_no_token_is_printed(monkeypatch):
    def failing(url):
        raise ValueError(f"403 for {url}?sig=SECRET")

    monkeypatch.setattr(fsspec.core, "url_to_fs", failing)
    with pytest.raises(HistoryError) as error:
        read("https://me:SECRET@host/runs?sig=SECRET")
    assert "SECRET" not in str(error.value)
    assert "https://host/runs" in str(error.value)


@pytest.mark.parametrize("url", ["s3://me:SECRET@bucket/runs", "simplecache::gs://SECRET@bucket/runs"])
def test_credentials_before_a_bucket_are_refused_and_not_printed(url):
    with pytest.raises(HistoryError, match="bucket/runs: a bucket has no user name or password") as error:
        read(url)
    assert "SECRET" not in str(error.value)


def test_a_web_server_that_is_away_is_no_empty_folder():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/runs"
        with pytest.raises(HistoryError, match=f"there is no run file at {url}: Cannot connect"):
            read(url)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("s3://bucket/a b", "s3://bucket/a b"),
        ("https://u:p@h/x?y=z#w", "https://h/x"),
        ("hf://datasets/a/b\x1b[31m", "hf://datasets/a/b\\x1b[31m"),
    ],
)
def test_a_url_as_messages_name_it(url, shown):
    assert run_files.plain(url) == shown


@pytest.mark.parametrize("name", ["a.py::test_b", "a.py::test_b[s3://c]", "tests/a.py::test_b", "runs/a.json", "runs"])
def test_a_node_id_or_a_path_is_no_url(name):
    assert not run_files.is_url(name)
    assert run_files.is_url(f"memory://{name}")
