"""Files of a pull request or an artifact: refused in one line, or read; never followed out of their folder."""

import copy
import json
import random
import tracemalloc

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import main
from pytest_perfdl.machine.rates import LIMIT, Machine
from pytest_perfdl.model.errors import BaselineError, PerfdlError, RunFileError
from pytest_perfdl.model.record_json import to_json as record_to_json
from pytest_perfdl.model.untrusted_files import read_bytes
from pytest_perfdl.results import run_file
from pytest_perfdl.results.run_file import dump, read_run, to_json
from unit.report import runs

TEST = "tests/test_a.py::test_step"
RECORD = runs.record(TEST)
EVIL = (
    *("../../etc/passwd", "/etc/passwd", "..", "a/../../b", "--upload-pack=touch x", "-x", "\x1b[2J", "::error::x"),
    *("\x00", "\ud800", "a" * 100_000, "\u202e", "C:\\Windows", "file:///etc/passwd", "`id`", "$(id)", "{{7*7}}"),
    *(-1, 0, 1e308, 10**400, True, None, [], {}, [[[[]]]], {"a": {"b": {}}}),
)


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    found = Store(root, "baselines")
    found.save(RECORD, {})
    return found


def places(value, here=()):
    """The place of every value in plain data."""
    yield here
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, (*here, name))


def changed(data, place, value):
    found = copy.deepcopy(data)
    inner = found
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return found


def variants(data, count, seed):
    """The data with a hostile value in one place, again and again in others."""
    draw = random.Random(seed)
    where = [place for place in places(data) if place]
    for number in range(count):
        yield changed(data, draw.choice(where), EVIL[number % len(EVIL)])


def one_line(error):
    return "\n" not in str(error) and len(str(error)) < 2000 and "\x1b" not in str(error)


def test_150_hostile_baselines(store):
    path = store.path(TEST, RECORD.key.slug)
    refused = 0
    for data in variants(record_to_json(RECORD), 150, seed=1):
        path.write_text(json.dumps(data))
        try:
            found = store.load(TEST, RECORD.key.slug)
        except BaselineError as error:
            refused += 1
            assert one_line(error)  # noqa: PT017  # what is read is no error
        else:
            assert found.test == TEST
    assert 50 < refused < 150


@pytest.mark.long
def test_150_hostile_run_files(tmp_path, capsys):
    path = tmp_path / "run.json"
    data = json.loads(dump(to_json(runs.run(runs.result("regressed", TEST, blame=runs.BLAME), runs.result("waived")))))
    before = {each.name for each in tmp_path.parent.iterdir()}
    refused = 0
    for each in variants(data, 150, seed=2):
        path.write_text(json.dumps(each))
        try:
            for test in read_run(path).results:
                assert test.id == each["tests"][0]["id"] or test.id
        except RunFileError as error:
            refused += 1
            assert one_line(error)  # noqa: PT017
        assert main(["report", str(path), "-o", str(tmp_path / "page")]) in (0, 2)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert "\x1b" not in said.out + said.err
    assert 10 < refused < 150
    assert {each.name for each in tmp_path.iterdir()} <= {"run.json", "page"}
    assert {each.name for each in tmp_path.parent.iterdir()} == before


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.json.gz", "/etc/x.json.gz", "traces/../../secret.json.gz", "traces/a/b.json.gz", "traces/.."),
        *("traces/x.json.gz\n", "secret.json.gz", "traces\\x.json.gz", "traces/" + "a" * 300 + ".json.gz", "traces/x"),
    ],
)
def test_names_of_traces_stay_in_the_folder(name, tmp_path):
    data = json.loads(dump(to_json(runs.run(runs.result("regressed", TEST)))))
    data["tests"][0]["traces"] = [{"call": "", "new": name}]
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(RunFileError, match="not a file name in traces/"):
        read_run(tmp_path / "run.json")


def test_a_trace_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "report"
    (folder / "traces").mkdir(parents=True)
    (tmp_path / "secret.json.gz").write_bytes(b"x")
    (folder / "traces" / "x.json.gz").symlink_to(tmp_path / "secret.json.gz")
    data = json.loads(dump(to_json(runs.run(runs.result("regressed", TEST)))))
    data["tests"][0]["traces"] = [{"call": "", "new": "traces/x.json.gz"}]
    (folder / "run.json").write_text(json.dumps(data))
    with pytest.raises(RunFileError, match="symbolic link"):
        read_run(folder / "run.json")


def test_a_baseline_that_is_a_link_out_of_the_folder_is_not_read(store, tmp_path, capsys):
    path = store.path(TEST, RECORD.key.slug)
    outside = tmp_path / "outside.json"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(BaselineError, match="it is a symbolic link out of baselines"):
        store.load(TEST, RECORD.key.slug)
    assert main(["list", "--dir", str(store.base)]) == 2
    assert "is a symbolic link out of" in capsys.readouterr().err
    # A folder of machine IDs elsewhere, which the project links to as a whole, is the user's own.
    path.unlink()
    outside.rename(path)
    store.base.rename(tmp_path / "elsewhere")
    store.base.symlink_to(tmp_path / "elsewhere")
    assert store.load(TEST, RECORD.key.slug) == RECORD or store.load(TEST, RECORD.key.slug).test == TEST


def test_a_trace_of_a_baseline_that_is_a_link_out_of_the_folder_is_not_used(store, tmp_path):
    trace = runs.exemplar(tmp_path / "trace.json.gz").read_bytes()
    store.save(RECORD, {"": trace})
    found, _ = store.exemplars(TEST, RECORD.key.slug)
    (file,) = found.values()
    (tmp_path / "outside.json.gz").write_bytes(trace)
    file.unlink()
    file.symlink_to(tmp_path / "outside.json.gz")
    assert store.exemplars(TEST, RECORD.key.slug) == ({}, (file,))


@pytest.mark.parametrize("node_id", ["../x.py::test", "/etc/x.py::test", "a/../../x.py::test", "x.py::../test", "x::y"])
def test_a_baseline_lies_below_the_folder_whatever_the_test_is_called(store, node_id):
    try:
        path = store.path(node_id, RECORD.key.slug)
    except PerfdlError as error:
        assert one_line(error)  # noqa: PT017
    else:
        assert path.resolve().is_relative_to(store.base.resolve())


def test_files_that_are_too_large_are_not_read_whole(store, tmp_path, monkeypatch):
    path = store.path(TEST, RECORD.key.slug)
    with path.open("r+b") as file:
        file.truncate(2**33)
    with pytest.raises(BaselineError, match="larger than"):
        store.load(TEST, RECORD.key.slug)
    machine = tmp_path / "machine.json"
    with machine.open("wb") as file:
        file.truncate(LIMIT + 1)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        Machine.load(machine)
    monkeypatch.setattr(run_file, "LIMIT", 2**20)
    run = tmp_path / "run.json"
    with run.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(RunFileError, match="larger than 1 MiB"):
        read_run(run)


def test_nothing_is_read_of_a_file_that_says_that_it_is_too_large(tmp_path):
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(2**30)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="it is larger than 64 MiB"):
            read_bytes(tmp_path / "run.json", 64 * 2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
