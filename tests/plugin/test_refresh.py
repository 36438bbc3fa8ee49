"""Nights of a real project: an improvement, a slowdown, another environment, and what `perfdl refresh` makes of them.

The step waits for milliseconds, and changes by a factor of two or more, so that few rounds are enough on any machine.
"""

import json
import shlex
import subprocess

import pytest
from plugin.project import SHORT

pytestmark = pytest.mark.long

MODEL = """
import time
import torch


def step(x):
    time.sleep({sleep})
    return x @ x
"""
TEST = """
import pytest
import torch
import net


@pytest.mark.perf
def test_step(perf):
    perf(net.step, torch.ones(8, 8))
"""
ID = "test_speed.py::test_step"
NIGHT = (*SHORT, "--perf-budget=60")


def git(project, *words):
    subprocess.run(["git", *words], cwd=project.root, check=True, capture_output=True)


def commit(project, **model):
    if model:
        project.write("net.py", MODEL.format(**model))
    git(project, "add", "-A")
    git(project, "commit", "--quiet", "--message", "work")


def night(project, name):
    """One run, and its report."""
    finished = project.run("--perf", *NIGHT, f"--perf-report=reports/{name}")
    (test,) = json.loads((project.root / "reports" / name / "run.json").read_text())["tests"]
    return finished, test


def refresh(project, *names):
    finished = project.command("refresh", *(f"reports/{name}" for name in names), "--json")
    assert finished.code == 0, finished.output
    return json.loads(finished.output)


def test_baselines_follow_the_project_and_no_slowdown(project):
    git(project, "init", "--quiet")
    git(project, "config", "user.email", "author@example.org")
    git(project, "config", "user.name", "Author")
    project.write(".gitignore", "reports/\nperf-report/\n__pycache__/\n")
    project.write("test_speed.py", TEST)
    project.write("net.py", MODEL.format(sleep=0.024))
    recorded = project.run("--perf-update", *SHORT, "--perf-repeats=2", "--perf-note=the first one")
    assert recorded.code == 0, recorded.output
    commit(project)
    path = project.baseline("test_step")
    first = json.loads(path.read_text())
    assert first["note"] == "the first one"

    # An improvement.
    commit(project, sleep=0.009)
    finished, test = night(project, "1")
    assert test["verdict"] == "improved", finished.output
    assert [each["why"] for each in refresh(project, "1")["unchanged"]] == [
        "improved, but fewer than 2 runs in a row confirm it"
    ]
    night(project, "2")
    (adopted,) = refresh(project, "1", "2")["adopted"]
    assert (adopted["id"], adopted["change"], adopted["runs"]) == (ID, "improvement", 2)
    assert adopted["effect"] < -0.3
    commit(project)

    # A slowdown, which is accepted.
    commit(project, sleep=0.027)
    finished, test = night(project, "3")
    assert test["verdict"] in ("regressed", "suspect"), finished.output
    found = refresh(project, "1", "2", "3")
    (refused,) = found["refused"]
    assert found["adopted"] == []
    assert refused["effect"] > 0.5
    program, *words = shlex.split(refused["command"])
    assert program == "perfdl"
    assert project.command(*words).code == 0
    accepted = json.loads(path.read_text())
    assert accepted["note"] == "the reason"
    assert "refreshed" not in accepted
    commit(project)

    # Another environment, as if the baseline had been recorded in an older one.
    accepted["context"]["torch"] = "2.0.0"
    path.write_text(json.dumps(accepted))
    commit(project)
    finished, test = night(project, "4")
    assert test["verdict"] == "unchanged", finished.output
    assert test["base_now"]["occasions"][0]["commit"] is not None
    (adopted,) = refresh(project, "4")["adopted"]
    assert adopted["change"] == "environment"
    now = json.loads(path.read_text())
    assert now["code"]["files"] == accepted["code"]["files"]
    assert now["context"]["torch"] != "2.0.0"
    commit(project)
    finished, test = night(project, "5")
    assert (test["verdict"], test["context_changes"]) == ("unchanged", [])
    assert {metric["evidence"] for metric in test["metrics"].values() if metric["limit"] == "3%"} == {"paired"}


def test_a_note_without_a_recording_is_refused(project):
    project.write("test_speed.py", TEST)
    finished = project.run("--perf", "--perf-note=why")

    assert finished.code == 4
    assert "--perf-note is kept in the baselines that a run records, but this run records none" in finished.output
