"""One measured commit: which tests run on it, and why it was skipped."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.runs.bisect.child import OWN_TESTS, Child, Suite, keep_tests
from pytest_perfdl.runs.bisect.history import WORKING_TREE, read_history
from pytest_perfdl.runs.bisect.measurements import Request
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command
from pytest_perfdl.workers.checkout import Checkout
from unit.runs.bisect.test_history import commit, git


@pytest.fixture
def repository(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "pytest.ini").write_text("[pytest]\n")
    commit(root, "one", model="version = 1\n")
    (root / "tests" / "conftest.py").write_text("# conftest\n")
    (root / "tests" / "test_speed.py").write_text("# old\n")
    commit(root, "two", model="version = 2\n")
    monkeypatch.chdir(root)
    return root


def suite(root, tests_of=None):
    history = read_history(root, "HEAD~1")
    return Suite(
        history, root, root / "pytest.ini", root / "tests/test_speed.py", "::test", tests_of or history.bad.sha
    )


def child(root, tmp_path, **options):
    made = suite(root, **options)
    keep_tests(made, tmp_path / "kept")
    return made, Child(made, tmp_path / "kept", tmp_path / "reports")


def kept(root, tmp_path, tests_of=None):
    folder = tmp_path / "kept"
    keep_tests(suite(root, tests_of), folder)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_tests_of_a_commit_or_of_the_working_tree(repository, tmp_path):
    found = kept(repository, tmp_path)
    assert found == {"tests/test_speed.py": "# old\n", "tests/conftest.py": "# conftest\n", "pytest.ini": "[pytest]\n"}
    (repository / "tests" / "test_speed.py").write_text("# new\n")
    assert kept(repository, tmp_path, WORKING_TREE)["tests/test_speed.py"] == "# new\n"
    assert suite(repository, OWN_TESTS).laid_over == ()


def test_a_test_that_is_not_there(repository, tmp_path):
    with pytest.raises(RunFailed, match=r"there is no tests/test_speed.py in [0-9a-f]{9}: name a test file"):
        kept(repository, tmp_path, git(repository, "rev-parse", "HEAD~1"))


def test_the_command_line(repository, tmp_path):
    _, measure = child(repository, tmp_path)
    checkout = Checkout(repository, Path("/checkout"))
    words = measure.command(Request("a", "b", timed=True), checkout, Path("/scratch"), "step_time", 0.025)
    assert list(words[:4]) == module_command(
        sys.executable, "pytest", "/checkout/tests/test_speed.py::test", path=LIBRARY_FIRST
    )
    assert {"--rootdir=/checkout", "--perf-against=b", "perf_against_tests=head", "perf_shared=false"} <= set(words)
    assert {"--perf-limit=step_time:2.5%", "--perf-limit=block_time:off"} <= set(words)
    counted = measure.command(Request("a"), checkout, Path("/scratch"), "step_time", 0.025)
    assert {"--perf-limit=step_time:off", "--perf-steps=4"} <= set(counted)
    assert not any(word.startswith("--perf-against=") for word in counted)


@pytest.mark.parametrize(
    "said, why",
    [
        ("E   ModuleNotFoundError: No module named 'x'\nERROR: found no collectors", "ModuleNotFoundError: No module"),
        ("ERROR: not found: tests/test_speed.py::test", "ERROR: not found: tests/test_speed.py::test"),
        ("", "no output"),
    ],
)
def test_a_commit_that_cannot_be_measured(repository, tmp_path, monkeypatch, said, why):
    made, measure = child(repository, tmp_path)
    ends = (sys.executable, "-c", f"print({said!r}); raise SystemExit(4)")
    monkeypatch.setattr(Child, "command", lambda *given: ends)
    found = measure.measure(Request(made.history.good.sha), "step_time", 0.1)
    assert found.skipped.startswith(why)
    assert git(repository, "status", "--porcelain") == ""


def test_a_setup_that_fails(repository, tmp_path):
    made, _ = child(repository, tmp_path)
    measure = Child(replace(made, setup="echo no compiler >&2; exit 3"), tmp_path / "kept", tmp_path / "reports")
    found = measure.measure(Request(made.history.good.sha), "step_time", 0.1)
    assert found.skipped == "perf_against_setup failed with exit code 3: no compiler"


def test_a_commit_without_the_test(repository, tmp_path):
    made, _ = child(repository, tmp_path)
    measure = Child(suite(repository, OWN_TESTS), tmp_path / "none", tmp_path / "reports")
    found = measure.measure(Request(made.history.good.sha), "step_time", 0.1)
    assert found.skipped == "there is no test_speed.py"
