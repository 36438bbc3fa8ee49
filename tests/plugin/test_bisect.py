"""`perfdl bisect` on small repositories with a model that is measured: what it finds, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from plugin.project import SHORT, Project, Running, alive, commit, git, make_repository, until

pytestmark = pytest.mark.long

MODEL = """
import time
import torch

def step(layer, x):
    time.sleep({sleep})
    y = layer(x)
    return {result}
"""
TEST = """
import pytest
import torch
import net

@pytest.mark.perf
def test_step(perf):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 64), torch.randn(8, 64)
    perf(lambda: net.step(layer, x))
"""
ID = "tests/test_speed.py::test_step"
QUICK = ("--", *SHORT, "--perf-budget=20")
COUNTED = ("--", *SHORT, "--perf-budget=1")
"""Where rounds do not matter."""
BROKEN = "import nothing_there\n"


def model(*, sleep=0.0, result="y.relu().sum()"):
    return MODEL.format(sleep=sleep, result=result)


@pytest.fixture
def project(tmp_path):
    """A package with a src layout under git, and a test that only the working tree has."""
    made = Project(tmp_path / "project", "pythonpath = src")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n__pycache__/\noutput-*\n")
    return made


def history(project, *versions):
    """A commit for each text of the module; the test comes with the last one."""
    for number, text in enumerate(versions):
        project.write("src/net/__init__.py", text)
        project.write("notes.txt", str(number))
        if number == len(versions) - 1:
            project.write("tests/test_speed.py", TEST)
        commit(project, f"c{number}")
    return git(project.root, "log", "--format=%H", "--reverse").split()


def start(project, *words):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    settings = {"COLUMNS": "120", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p perfdl"}
    return Running([sys.executable, "-m", "pytest_perfdl.cli", *words], project.root, {**inherited, **settings})


def bisect(project, *words):
    return start(project, "bisect", *words).finish()


def answer(done):
    """The JSON after the progress."""
    return json.loads(done.output[done.output.index("\n{\n") :])


def test_a_count_is_found_among_commits_that_do_not_import_and_goes_on_after_ctrl_c(project):
    slower = model(result="y.relu().relu().sum()")
    commits = history(project, model(), BROKEN + model(), model(), slower, slower, slower)
    project.write("notes.txt", "not committed")
    log = project.root.parent / "log.jsonl"
    running = start(project, "bisect", "--json", "--log", str(log), commits[0], ID, *COUNTED)
    until(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 3 and running.output.endswith("... "), within=200)
    running.process.send_signal(signal.SIGINT)
    stopped = running.finish()
    assert stopped.code == 130, stopped.output
    assert "the same command goes on from" in stopped.output
    known = log.read_bytes()

    done = bisect(project, "--json", "--log", str(log), commits[0], ID, *COUNTED)
    assert done.code == 0, done.output
    assert log.read_bytes().startswith(known)
    found = answer(done)
    assert (found["status"], found["culprit"], found["parent"]) == ("found", commits[3], commits[2])
    assert (found["metric"], found["values"][1] - found["values"][0]) == ("ops", 2)
    assert found["effect"] == found["interval"][0] > 0
    assert found["subject"] == "c3"
    assert found["probability"] > 0.999
    assert found["blame"]
    assert found["source_diffs"][0]["file"] == "src/net/__init__.py"
    assert "+    return y.relu().relu().sum()" in found["source_diffs"][0]["text"]
    assert all(each["commit"] == commits[1] and "nothing_there" in each["why"] for each in found["skipped"])
    assert git(project.root, "status", "--porcelain") == "M notes.txt"

    # The command that is shown repeats the proof.
    words = shlex.split(found["commands"][0])
    assert words[:2] == ["perfdl", "bisect"]
    again = start(project, *words[1:]).finish()
    assert again.code == 0, again.output
    assert f"found: {commits[3][:9]} c3" in again.output
    assert "net/__init__.py" in again.output


def test_a_slowdown_that_changes_no_count_is_found_by_time(project):
    before, after = model(sleep=0.002), model(sleep=0.004)
    commits = history(project, before, after, after)
    page = project.root.parent / "page.html"
    done = bisect(project, "--out", str(page), commits[0], "HEAD", ID, *QUICK)
    assert done.code == 0, done.output
    assert f"found: {commits[1][:9]} c1" in done.output
    assert "paired rounds" in done.output
    assert page.read_text().startswith("<!")
    assert git(project.root, "status", "--porcelain") == ""


def test_ends_that_do_not_differ(project):
    commits = history(project, model(), model())
    done = bisect(project, "--metric", "ops", commits[0], ID, *QUICK)
    assert done.code == 3, done.output
    assert "no difference: ops is " in done.output


def test_a_killed_search_leaves_nothing_that_the_next_one_does_not_remove(project):
    commits = history(project, model(), model())
    words = ("--metric", "ops", commits[0], "HEAD", ID, *COUNTED)
    running = start(project, "bisect", *words)
    (child,) = until(lambda: _children(running.process.pid, "pytest"), within=60)
    running.process.kill()
    running.process.wait()
    until(lambda: not alive(child))
    done = bisect(project, *words)
    assert done.code == 3, done.output
    kept = git(project.root, "worktree", "list", "--porcelain").count("worktree ") - 1
    assert len(list((project.root / ".git/perfdl").glob("pytest-perfdl-checkout-*"))) == kept <= 2


def _children(parent, name):
    listed = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if f"run_module({name!r}" in line]
