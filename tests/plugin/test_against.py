"""`--perf-against`: another revision measured beside the working tree, and nothing left behind."""

from __future__ import annotations

import json
import subprocess

import pytest
from plugin.project import SHORT, Project

pytestmark = pytest.mark.torch

PACKAGE = """
def work():
    return sum(range({size}))
"""
TEST = """
import pytest
from demo_package import work

@pytest.mark.perf(limits={"ops": 0})
def test_work(perf):
    assert perf(work) > 0
"""


def git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(project, message):
    git(project.root, "add", "--all")
    git(project.root, "commit", "--quiet", "-m", message)
    return git(project.root, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path):
    """A package with a src layout under git; its first commit does half of the work of the second."""
    made = Project(tmp_path / "project", "pythonpath = src", "perf_budget = 1")
    git(made.root, "init", "--quiet")
    git(made.root, "config", "user.email", "author@example.org")
    git(made.root, "config", "user.name", "Author")
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\n")
    made.write("src/demo_package/__init__.py", PACKAGE.format(size=10_000))
    made.write("tests/test_speed.py", TEST)
    commit(made, "one")
    made.write("src/demo_package/__init__.py", PACKAGE.format(size=20_000))
    commit(made, "two")
    return made


def run(project, *arguments, **options):
    done = project.run(*SHORT, "--perf-json=run.json", *arguments, **options)
    return done, json.loads((project.root / "run.json").read_text())["tests"]


def test_each_side_runs_its_own_code(project):
    done, (test,) = run(project, "--perf-against=HEAD~1")
    step = test["metrics"]["step_time"]
    assert step["base"] * 1.5 < step["new"], "half of the work, however noisy"
    assert test["verdict"] == "inconclusive", "one round of a budget of a second proves nothing"
    assert "1 paired round" in test["reason"]
    assert done.code == 0
    assert git(project.root, "worktree", "list").count("\n") == 0
    assert git(project.root, "status", "--porcelain") == ""


def test_the_working_tree_counts_as_it_is_on_disk(project):
    project.write("src/demo_package/__init__.py", "import torch\n\ndef work():\n    return torch.ones(3).sum()\n")
    _, (test,) = run(project, "--perf-against=HEAD")
    assert test["metrics"]["ops"]["base"] == 0
    assert test["metrics"]["ops"]["new"] > 0
    assert test["metrics"]["ops"]["verdict"] == "regressed"
    assert test["verdict"] == "regressed"


def test_a_test_that_the_other_revision_does_not_have_is_new(project):
    project.write("tests/test_more.py", TEST)
    project.write("tests/test_speed.py", TEST + "\n@pytest.mark.perf\ndef test_again(perf):\n    perf(work)\n")
    _, tests = run(project, "--perf-against=HEAD", "-k", "more or again")
    assert {test["id"]: test["verdict"] for test in tests} == {
        "tests/test_more.py::test_work": "new",
        "tests/test_speed.py::test_again": "new",
    }


def test_a_test_that_changed_is_said_to_have_changed(project):
    project.write("tests/test_speed.py", TEST.replace("perf(work)", "perf(lambda: work())"))
    _, (test,) = run(project, "--perf-against=HEAD")
    assert test["verdict"] == "outdated"
    _, (test,) = run(project, "--perf-against=HEAD", "-o", "perf_against_tests=head")
    assert test["verdict"] in ("inconclusive", "unchanged")


def test_the_heads_code_on_both_sides_is_caught(project):
    # As a hand-made import path does that names the repository absolutely.
    project.write(
        "conftest.py",
        f"import sys\nsys.path.insert(0, {str(project.root / 'src')!r})\n",
    )
    commit(project, "three")
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=30_000))
    done, (test,) = run(project, "--perf-against=HEAD")
    assert test["verdict"] == "invalid"
    assert "loaded the other side's code (demo_package)" in test["reason"]
    assert done.code == 1


def test_what_builds_the_package_runs_in_the_checkout(project):
    setup = "pwd > built.txt && printf 'def work():\\n    return 7\\n' > src/demo_package/__init__.py"
    project.write("tests/test_speed.py", TEST.replace("assert perf(work) > 0", "assert perf(work) != 8"))
    commit(project, "three")
    _, (test,) = run(project, "--perf-against=HEAD", "-o", f"perf_against_setup={setup}")
    assert test["metrics"]["step_time"]["base"] * 3 < test["metrics"]["step_time"]["new"]
    assert not (project.root / "built.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf-against=nowhere"], "--perf-against: git knows no revision 'nowhere' here"),
        (["--perf-against=HEAD", "--perf-update"], "drop --perf-update"),
        (["--perf-against=HEAD", "--perf-isolate=none"], "--perf-against needs processes of its own"),
        (
            ["--perf-against=HEAD", "-o", "perf_against_setup=echo no compiler >&2; exit 3"],
            "perf_against_setup failed with exit code 3: no compiler",
        ),
        (["--perf-against=HEAD", "-o", "perf_against_tests=both"], "ini perf_against_tests = 'both'"),
    ],
    ids=["revision", "update", "in-process", "setup", "tests"],
)
def test_wrong_usage_is_one_line(project, arguments, message):
    done = project.run(*arguments)
    assert done.code == 4
    assert message in done.output
    assert "Traceback" not in done.output
    assert git(project.root, "worktree", "list").count("\n") == 0


def test_outside_a_repository(tmp_path):
    project = Project(tmp_path / "bare", "pythonpath = src")
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=10))
    project.write("tests/test_speed.py", TEST)
    done = project.run("--perf-against=HEAD")
    assert done.code == 4
    assert "git knows no revision 'HEAD' here" in done.output
