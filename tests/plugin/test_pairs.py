"""Suspects of a baseline: confirmed beside the commit that holds the baseline's code, else unpaired."""

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


def test_a_suspect_is_confirmed_against_the_commit_of_its_baseline(project):
    # The baseline is recorded on the code of "two" and committed with it, as one does.
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=40_000))
    recorded = project.run(*SHORT, "--perf-update", "--perf-repeats=4")
    assert recorded.code == 0, recorded.output
    commit(project, "three, with its baseline")
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=120_000))
    commit(project, "four")
    _, (test,) = run(project, "--perf")
    step = test["metrics"]["step_time"]
    assert "1 paired round" in test["reason"]
    assert step["base"] * 2 < step["new"]
    assert step["limit"] == "3%"


def test_without_the_baselines_code_a_suspect_is_judged_unpaired(project):
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=40_000))
    recorded = project.run(*SHORT, "--perf-update", "--perf-repeats=4")
    assert recorded.code == 0, recorded.output
    project.write("src/demo_package/__init__.py", PACKAGE.format(size=160_000))
    commit(project, "other code than the baseline's")
    _, (test,) = run(project, "--perf")
    assert test["verdict"] == "regressed", test["reason"]
    assert "unpaired" in test["reason"]
    assert test["metrics"]["step_time"]["limit"] == "10%"
    assert any("no commit has the code" in finding["message"] for finding in test["integrity"])
