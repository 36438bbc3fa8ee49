"""The waivers of a run: dates, what the current change adds, and waivers without a test."""

import datetime
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.run.selection import resolve, unmatched
from pytest_perfdl.system import clocks
from pytest_perfdl.system.git import FETCH_ALL, commit_of

FILE = "perf_waivers.toml"


def entry(test="t.py::test_a", until="2026-12-01", limit="12%", why="x"):
    return f'[[waiver]]\ntest = "{test}"\nlimit = "{limit}"\nuntil = {until}\nwhy = "{why}"\nwho = "ana"\n'


def settings(against=None, waivers=FILE):
    return SimpleNamespace(waivers=waivers, against=against)


@pytest.fixture(autouse=True)
def day(monkeypatch):
    monkeypatch.setattr(clocks, "today", lambda: datetime.date(2026, 12, 1))


@pytest.fixture
def root(tmp_path):
    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("config", "user.email", "a@b.c")
    git("config", "user.name", "a")
    (tmp_path / "code.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return SimpleNamespace(path=tmp_path, git=git)


def write(root, *entries, commit=False):
    (root.path / FILE).write_text("\n".join(entries))
    if commit:
        root.git("add", ".")
        root.git("commit", "-qm", "waivers")


def added(file):
    return [each.test for each in file.waivers if each.added]


@pytest.mark.parametrize("until, expired", [("2026-11-30", True), ("2026-12-01", False), ("2026-12-02", False)])
def test_the_last_day_is_included(tmp_path, until, expired):
    (tmp_path / FILE).write_text(entry(until=until))
    (found,) = resolve(tmp_path, settings(), {}).waivers
    assert found.expired is expired


def test_without_a_file_or_git_there_is_nothing_to_say(tmp_path):
    assert resolve(tmp_path, settings(), {}).waivers == ()
    (tmp_path / FILE).write_text(entry())
    file = resolve(tmp_path, settings(), {"GITHUB_BASE_REF": "main"})
    assert (added(file), file.doubt) == ([], "")


def test_what_the_working_tree_adds_to_head(root):
    write(root, entry("t.py::test_a"), commit=True)
    assert added(resolve(root.path, settings(), {})) == []
    write(root, entry("t.py::test_a"), entry("t.py::test_b"))
    assert added(resolve(root.path, settings(), {})) == ["t.py::test_b"]


@pytest.mark.parametrize("change", [{"until": "2027-06-01"}, {"limit": "20%"}, {"why": "another reason"}])
def test_an_entry_that_is_changed_counts_as_added(root, change):
    write(root, entry(), commit=True)
    write(root, entry(**change))
    assert added(resolve(root.path, settings(), {})) == ["t.py::test_a"]


GITLAB = {
    "head": "CI_MERGE_REQUEST_DIFF_BASE_SHA",
    "target": "CI_MERGE_REQUEST_TARGET_BRANCH_SHA",
}
"""Set where a job runs on the head of a merge request, and where it runs on the merge with its target."""


@pytest.mark.parametrize("pipeline", ["head", "target"])
def test_a_merge_request_of_gitlab_is_compared_with_its_base(root, pipeline):
    write(root, entry("t.py::test_a"), commit=True)
    root.git("checkout", "-qb", "change")
    write(root, entry("t.py::test_a"), entry("t.py::test_b"), commit=True)
    environ = {GITLAB["head"]: commit_of(root.path, "main")}
    if pipeline == "target":
        root.git("checkout", "-q", "main")
        (root.path / "other.py").touch()
        root.git("add", ".")
        root.git("commit", "-qm", "other")
        environ[GITLAB["target"]] = commit_of(root.path, "main")
        root.git("merge", "-q", "change")
    assert added(resolve(root.path, settings(), environ)) == ["t.py::test_b"]
    unknown = resolve(root.path, settings(), {GITLAB["head"]: "0123" * 10})
    assert (added(unknown), FETCH_ALL in unknown.doubt) == ([], True)


@pytest.mark.parametrize("against, environ", [("main", {}), (None, {"GITHUB_BASE_REF": "main"})])
def test_a_branch_is_compared_with_its_merge_base(root, against, environ):
    write(root, entry("t.py::test_a"), commit=True)
    root.git("checkout", "-qb", "change")
    write(root, entry("t.py::test_a"), entry("t.py::test_b"), commit=True)
    root.git("checkout", "-q", "main")
    # What the target adds after the merge base does not matter.
    write(root, entry("t.py::test_a"), entry("t.py::test_c"), commit=True)
    root.git("checkout", "-q", "change")
    assert added(resolve(root.path, settings(against), environ)) == ["t.py::test_b"]
    assert added(resolve(root.path, settings(), {})) == []


def test_below_the_top_of_the_repository(root):
    below = root.path / "package"
    below.mkdir()
    (below / FILE).write_text(entry())
    root.git("add", ".")
    root.git("commit", "-qm", "waivers")
    assert added(resolve(below, settings(), {})) == []
    (below / FILE).write_text(entry(until="2027-01-01"))
    assert added(resolve(below, settings(), {})) == ["t.py::test_a"]


def test_a_target_that_git_does_not_have_is_said(root):
    write(root, entry(), commit=True)
    for target in ("main2", "--output=x", "\x1b[2J"):
        file = resolve(root.path, settings(), {"GITHUB_BASE_REF": target})
        assert added(file) == []
        assert "it is unknown which waivers the current change adds" in file.doubt
        assert FETCH_ALL in file.doubt
        assert "\x1b" not in file.doubt
    assert not list(root.path.glob("x*"))


def test_a_file_at_the_base_that_cannot_be_used_is_as_none(root):
    for content in ("[[waiver]\n", "#" * 300_000):
        (root.path / FILE).write_text(content)
        root.git("add", ".")
        root.git("commit", "-qm", "broken")
        write(root, entry())
        assert added(resolve(root.path, settings(), {})) == ["t.py::test_a"]


def test_errors_are_those_of_the_file(root):
    write(root, "[[waiver]]")
    with pytest.raises(InputError, match=r"perf_waivers.toml: waiver 1: has no test"):
        resolve(root.path, settings(), {})


def config(root, *args, stats={}, **options):  # noqa: B006  # is only read
    return SimpleNamespace(
        args=list(args) or [str(root)],
        rootpath=root,
        invocation_params=SimpleNamespace(dir=root),
        getoption=lambda name, default: options.get(name, default),
        pluginmanager=SimpleNamespace(get_plugin=lambda name: SimpleNamespace(stats=stats)),
    )


def named(*tests):
    return [Waiver(test, "", "1%", "2026-12-01", "x", "y") for test in tests]


def test_waivers_without_a_test_are_found():
    root = Path("/project")
    found = named("tests/a.py::test_1", "tests/a.py::test_2", "tests/b*::test_*", "other/c.py::test_x")
    tests = ["tests/a.py::test_1", "tests/a.py::test_3"]
    assert [each.test for each in unmatched(found, tests, config(root))] == [
        "tests/a.py::test_2",
        "tests/b*::test_*",
        "other/c.py::test_x",
    ]
    # Of tests that are not collected, nothing is known.
    assert [each.test for each in unmatched(found, tests, config(root, "tests"))] == [
        "tests/a.py::test_2",
        "tests/b*::test_*",
    ]
    assert [each.test for each in unmatched(found, tests, config(root, "tests/a.py"))] == ["tests/a.py::test_2"]
    assert unmatched(found, tests, config(root, "tests/a.py::test_1")) == ()
    assert unmatched(found, tests, config(root, keyword="test_1")) == ()
    assert unmatched(found, tests, config(root, markexpr="not slow")) == ()
    assert unmatched(found, tests, config(root, stats={"deselected": ["by a plugin"]})) == ()
