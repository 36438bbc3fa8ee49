"""Which commit holds the code of a baseline, by the hash of the code's tree."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace

import pytest
from making import record, timed

from pytest_perfdl.baseline import source
from pytest_perfdl.baseline.pair import code_of
from pytest_perfdl.baseline.source import describe_source, is_as_before, tree_of_commit, trouble
from pytest_perfdl.record import Occasion

WITHOUT = ("baselines", "perf-report")


class Repository:
    def __init__(self, root):
        self.root = root
        root.mkdir()
        self.git("init", "--quiet")
        self.git("config", "user.email", "author@example.org")
        self.git("config", "user.name", "Author")

    def git(self, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(["git", *arguments], cwd=self.root, env=clean, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "some change")
        return self.git("rev-parse", "HEAD")

    def recorded(self):
        """A baseline recorded on the working tree as it is."""
        source = describe_source(self.root, WITHOUT)
        made = record({"step_time": timed(1.0, 2.0)})
        return replace(made, occasions=(Occasion(2, "2026-01-01T00:00:00Z", source.commit, source.tree),))

    def code(self, base):
        return code_of(base, self.root / "baselines" / "test.json", self.root, WITHOUT)


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "repository")
    made.write("code.py", "x = 1\n")
    made.commit()
    return made


def test_the_commit_that_carries_code_and_baseline(repository):
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.write("baselines/test.json", "{}")
    carries = repository.commit()
    repository.write("code.py", "x = 3\n")
    repository.commit()
    assert base.occasions[-1].commit != carries, "it was recorded before the commit"
    assert repository.code(base).commit == carries


def test_a_baseline_that_was_moved_later(repository):
    text = "".join(f"line {number}\n" for number in range(30))
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.write("baselines/old/test.json", text)
    carries = repository.commit()
    repository.write("code.py", "x = 3\n")
    repository.git("mv", "baselines/old/test.json", "baselines/test.json")
    repository.write("baselines/test.json", text.replace("line 3\n", "new key\n"))
    repository.commit()
    assert repository.code(base).commit == carries


def test_the_present_commit_before_the_baseline_is_committed(repository):
    base = repository.recorded()
    repository.write("baselines/test.json", "{}")
    assert repository.code(base).commit == repository.git("rev-parse", "HEAD")


def test_code_that_no_commit_has(repository):
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.write("code.py", "x = 3\n")
    repository.write("baselines/test.json", "{}")
    repository.commit()
    found = repository.code(base)
    assert found.commit is None
    assert found.reason == "no commit has the code that the baseline was recorded on"


def test_files_that_changed_within_the_second_of_the_index(repository):
    """Same size, same second: git looks into the file then, unless its index seems to be younger than that."""
    path = repository.write("code.py", "x = 5\n")
    repository.git("add", "--all")
    staged = repository.git("write-tree")
    path.write_text("x = 6\n")
    time.sleep(1.1)
    assert describe_source(repository.root, WITHOUT).tree != staged


def test_baselines_and_reports_are_no_code(repository):
    before = describe_source(repository.root, WITHOUT)
    repository.write("baselines/test.json", "{}")
    repository.write("perf-report/index.html", "")
    assert describe_source(repository.root, WITHOUT).tree == before.tree
    commit = repository.commit()
    assert tree_of_commit(repository.root, commit, WITHOUT) == before.tree
    repository.write("more.py", "")
    assert describe_source(repository.root, WITHOUT).tree != before.tree
    assert repository.git("status", "--porcelain") == "?? more.py", "the real index is not touched"


def test_a_shallow_clone_says_what_it_needs(repository, tmp_path):
    base = repository.recorded()
    for number in range(3):
        repository.write("code.py", f"y = {number}\n")
        repository.commit()
    clone = Repository.__new__(Repository)
    clone.root = tmp_path / "clone"
    repository.git("clone", "--quiet", "--depth=1", repository.root.as_uri(), str(clone.root))
    assert clone.code(base).reason == "the clone is shallow: fetch the whole history (fetch-depth: 0)"


def test_without_git_or_without_a_recorded_tree(repository, tmp_path):
    base = repository.recorded()
    unknown = replace(base, occasions=(replace(base.occasions[0], tree=None),))
    assert repository.code(unknown).reason == "the baseline does not say which code it was recorded on"
    (tmp_path / "plain").mkdir()
    found = code_of(base, tmp_path / "plain" / "test.json", tmp_path / "plain", WITHOUT)
    assert found.reason == "there is no git repository"


@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
def test_bytecode_is_no_code(repository, committed):
    """A new repository ignores nothing yet: what Python writes while tests run must not make the code another one."""
    before = repository.recorded()
    for name in ("__pycache__/code.pyc", "tests/__pycache__/test_it.cpython-311.pyc", ".pytest_cache/v/lastfailed"):
        repository.write(name, "made by Python\n")
    if committed:
        commit = repository.commit()
        assert tree_of_commit(repository.root, commit, WITHOUT) == before.occasions[0].tree
    assert repository.recorded().occasions[0].tree == before.occasions[0].tree
    repository.write("tests/data.pyx", "code\n")
    assert repository.recorded().occasions[0].tree != before.occasions[0].tree


def test_what_a_baseline_calls_a_commit_is_no_option_of_git(repository, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    last = replace(repository.recorded().occasions[-1], commit=f"--index-output={victim}", tree="d" * 40)
    base = replace(record({"step_time": timed(1.0, 2.0)}), occasions=(last,))
    assert repository.code(base).commit is None
    assert tree_of_commit(repository.root, "HEAD", WITHOUT) is None
    assert victim.read_text() == "mine"


def test_files_that_git_does_not_know_are_named(repository):
    assert describe_source(repository.root, WITHOUT).warning == ""
    repository.write(".gitignore", "*.log\n")
    repository.commit()
    for name in ("notes.txt", "run.log", "baselines/test.json", "perf-report/index.html", "a/__pycache__/b.pyc"):
        repository.write(name, "some")
    assert describe_source(repository.root, WITHOUT).untracked == ("notes.txt",)
    for number in range(4):
        repository.write(f"data/{number}.bin", "some")
    warning = describe_source(repository.root / "data", ("../baselines", "../perf-report")).warning
    assert "(data/0.bin, data/1.bin, data/2.bin and 2 more): commit them with the baselines, or ignore them" in warning


def test_a_repository_without_a_commit_within(repository):
    (repository.root / "vendored").mkdir()
    repository.git("init", "--quiet", "vendored")
    found = describe_source(repository.root, WITHOUT)
    assert found.tree is None
    assert "tied to no commit" in found.warning
    assert "vendored/' does not have a commit checked out" in found.warning


def test_git_says_itself_why_it_does_not_work(repository, tmp_path, monkeypatch):
    base = repository.recorded()
    assert trouble(repository.root) == ""
    assert trouble(tmp_path) == ""
    # As where a container's user is not the one who checked out.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    said = trouble(repository.root)
    assert said.startswith("detected dubious ownership in repository at ")
    assert said.endswith(f"git config --global --add safe.directory {repository.root}")
    assert describe_source(repository.root, WITHOUT).problem == said
    assert repository.code(base).reason == said


def test_what_is_too_large_is_not_hashed(repository, monkeypatch):
    monkeypatch.setattr(source, "MOST_BYTES", 5000)
    asked = []
    real = source.run_git
    monkeypatch.setattr(source, "run_git", lambda *args, **rest: asked.append(args) or real(*args, **rest))
    repository.write("small.txt", "a few bytes")
    assert describe_source(repository.root, WITHOUT).tree is not None
    repository.write("weights.bin", "x" * 6000)
    asked.clear()
    found = describe_source(repository.root, WITHOUT)
    assert found.tree is None
    assert (
        "too much to hash that git does not know yet: ignore weights.bin (5.859 KiB), small.txt (11 B)" in found.problem
    )
    assert not any("add" in args for args in asked)
    # The same of a file that git knows: it changed.
    repository.commit()
    assert describe_source(repository.root, WITHOUT).tree is not None
    repository.write("weights.bin", "y" * 6000)
    assert describe_source(repository.root, WITHOUT).tree is None


def test_code_that_changes_later_is_noticed(repository, tmp_path):
    repository.write("new.py", "a = 1\n")
    before = describe_source(repository.root, WITHOUT, keep=tmp_path / "kept")
    assert is_as_before(repository.root, before)
    # What a run writes is no change of the code, nor is a file that is only touched.
    repository.write("output.txt", "1")
    repository.write("baselines/test.json", "{}")
    os.utime(repository.write("code.py", "x = 1\n"), (1, 1))
    assert is_as_before(repository.root, before)
    path = repository.write("code.py", "x = 2\n")
    assert not is_as_before(repository.root, before)
    path.write_text("x = 1\n")
    assert is_as_before(repository.root, before)
    (repository.root / "new.py").unlink()
    assert not is_as_before(repository.root, before)
    assert repository.git("status", "--porcelain") == "?? baselines/\n?? output.txt", "the real index is not touched"
