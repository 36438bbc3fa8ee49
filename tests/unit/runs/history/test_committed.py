"""The baselines of all commits of a real repository."""

import json
import subprocess

import pytest

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.record import Key
from pytest_perfdl.runs import history
from pytest_perfdl.system.git import FETCH_ALL, blobs
from unit.runs.history.records import TEST, Repository, record


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository")


def read(repository, folder="baselines"):
    skipped = []
    found = list(history.measurements(repository.project, folder, skipped.append))
    return found, skipped


def test_every_commit_that_changed_a_baseline_is_there_in_order(repository):
    first = repository.commit("First \u00fc", record(4e7), record(1e7, test="tests/test_gpt.py::test_other"))
    repository.commit("No baseline")
    third = repository.commit("Third", record(5e7))
    found, skipped = read(repository)
    assert [(each.commit, each.subject, each.test.rpartition(":")[2]) for each in found] == [
        (first, "First \u00fc", "test_other"),
        (first, "First \u00fc", "test_step"),
        (third, "Third", "test_step"),
    ]
    assert [each.metrics["step_time"].values for each in found if each.test == TEST] == [
        (39760000, 39920000, 40080000, 40240000),
        (49700000, 49900000, 50100000, 50300000),
    ]
    assert found[0].date.startswith(repository.git("log", "-1", "--format=%aI", first)[:10])
    assert not skipped


def test_the_first_commit_of_a_repository_counts(tmp_path):
    repository = Repository(tmp_path / "r")
    commit = repository.commit("x", record())
    repository.git("checkout", "-q", "--orphan", "fresh")
    repository.git("config", "log.showRoot", "false")
    only = repository.commit("Only", record())
    assert only != commit
    assert [each.commit for each in read(repository)[0]] == [only]


def test_a_project_below_the_top_of_its_repository(tmp_path):
    repository = Repository(tmp_path / "r", "projects/gpt")
    repository.commit("One", record())
    assert len(read(repository)[0]) == 1


def test_a_merge_is_one_commit_with_what_it_brings(repository):
    repository.commit("One", record(4e7))
    repository.git("checkout", "-q", "-b", "topic")
    repository.commit("On the branch", record(4.2e7))
    repository.commit("Again", record(4.4e7))
    repository.git("checkout", "-q", "main")
    repository.commit("Beside it")
    repository.git("merge", "-q", "--no-ff", "-m", "Merge topic", "topic")
    found, _ = read(repository)
    assert [each.subject for each in found] == ["One", "Merge topic"]
    assert min(found[-1].metrics["step_time"].values) > 4.3e7


def test_removed_baselines_and_other_files_are_no_points(repository):
    one = record()
    repository.commit("One", one)
    repository.git("rm", "-q", str(repository.path(one)))
    repository.commit("Removed")
    machine = repository.project / "baselines" / one.key.slug / "machine.json"
    machine.parent.mkdir(parents=True)
    machine.write_text("{}")
    (machine.parent / "test_step.trace.json.gz").write_bytes(b"")
    repository.commit("Peak rates and a trace")
    found, skipped = read(repository)
    assert [each.subject for each in found] == ["One"]
    assert not skipped


def test_what_is_not_committed_comes_last(repository):
    repository.commit("One", record(4e7))
    repository.write(record(5e7), record(1e7, key=Key("cpu-b", {})))
    found, _ = read(repository)
    assert [(each.commit == history.WORKING_TREE, each.machine_id) for each in found] == [
        (False, "cpu-a"), (True, "cpu-a"), (True, "cpu-b"),
    ]  # fmt: skip
    assert found[1].date == "2026-05-02T10:00:00Z"


@pytest.mark.parametrize(
    "data, why",
    [
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (
            b'{"schema": 99, "test": []}',
            "was written by another version of pytest-perfdl (schema 99, this one reads 1)",
        ),
        (b"<<<<<<< ours\n{}", "is damaged"),
    ],
)
def test_files_that_cannot_be_used_are_skipped_with_a_line(data, why, repository):
    one = record()
    repository.commit("One", one)
    repository.path(one).write_bytes(data)
    commit = repository.commit("Damaged")
    repository.commit("Well again", record(4.1e7))
    found, (line,) = read(repository)
    assert [each.subject for each in found] == ["One", "Well again"]
    assert line.startswith(f"{commit[:9]}:baselines/cpu-a/tests/test_gpt/test_step.json {why}")
    assert line.endswith(": skipped")
    assert "\n" not in line


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["calls"][0]["metrics"]["step_time"].update(values=[1, 2]),
        lambda data: data["calls"][0]["metrics"]["step_time"].update(values=[1, 2, 3, 1e200]),
        lambda data: data.update(occasions=[]),
        lambda data: data.update(calls=[]),
        lambda data: data["key"].update(slug=3),
    ],
)
def test_a_record_with_wrong_values_is_skipped(change, repository):
    one = record()
    repository.write(one)
    data = json.loads(repository.path(one).read_bytes())
    change(data)
    repository.path(one).write_text(json.dumps(data))
    repository.commit("Wrong")
    found, (line,) = read(repository)
    assert not found
    assert line.endswith(": skipped")


def test_a_file_that_is_too_large_is_skipped_and_the_next_one_read(repository, monkeypatch):
    repository.commit("One", record())
    repository.path(record()).write_bytes(b" " * 5000 + repository.path(record()).read_bytes())
    repository.commit("Large")
    repository.commit("Small", record(5e7))
    monkeypatch.setattr(history, "LIMIT", 4096)
    found, (line,) = read(repository)
    assert [each.subject for each in found] == ["One", "Small"]
    assert "larger than 4 KiB" in line


def test_a_note_is_kept(repository):
    repository.commit("One", record(), note="new cuDNN")
    assert [each.note for each in read(repository)[0]] == ["new cuDNN"]


def test_a_shallow_clone_is_said_to_be_one(repository, tmp_path):
    repository.commit("One", record(4e7))
    repository.commit("Two", record(5e7))
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.root}", str(clone))
    lines = []
    found = list(history.measurements(clone, "baselines", lines.append))
    assert [each.subject for each in found] == ["Two"]
    assert lines == [f"older commits are missing: the clone is shallow: run {FETCH_ALL}"]


def test_no_repository_and_a_folder_elsewhere(tmp_path, repository):
    said = r"no git repository: name run files instead \(perfdl history --runs FOLDER\)"
    with pytest.raises(InputError, match=said):
        list(history.measurements(tmp_path, "baselines", print))
    with pytest.raises(InputError, match=r"is not in the git repository .*: set the folder with --dir"):
        read(repository, str(tmp_path / "elsewhere"))


def test_without_a_commit_there_are_the_files(tmp_path):
    root = tmp_path / "empty"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    made = Repository.__new__(Repository)
    made.root = made.project = root
    made.write(record(), record(test="tests/a.py::test_a"))
    made.git("add", str(made.path(record())))
    assert [each.commit for each in read(made)[0]] == [history.WORKING_TREE] * 2


def test_objects_that_are_missing_are_none(repository):
    names = [
        repository.git("hash-object", "-w", "pytest.ini"),
        "0" * 40,
        repository.git("rev-parse", "HEAD:pytest.ini"),
    ]
    text = (repository.root / "pytest.ini").read_bytes()
    assert list(blobs(repository.root, names, 100)) == [text, None, text]
    assert list(blobs(repository.root, names, 3)) == [None, None, None]
    assert list(blobs(repository.root, [], 3)) == []
