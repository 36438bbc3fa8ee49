"""A CI job from a shallow clone to its exit code, as docs/workflows/perf.sh runs it."""

import json
import os
import subprocess
import sys

import pytest
from commands.shown import ROOT
from plugin.project import SHORT, surroundings
from unit.ci.repositories import checkout, commit, git

TEST = """
import pytest
from layers import COUNT

@pytest.mark.perf(limits={"ops": 0})
def test_step(perf):
    import torch
    perf(lambda: [torch.ones(8).sum() for _ in range(COUNT)])
"""


def hosted(folder):
    """A repository whose pull request does more than main; the commit that it left main at."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "before")
    (folder / "pytest.ini").write_text("[pytest]\nperf_calibrate = off\nperf_budget = 1\npythonpath = .\n")
    (folder / "test_layers.py").write_text(TEST)
    (folder / "layers.py").write_text("COUNT = 2\n")
    (folder / ".gitignore").write_text("perf-report\n__pycache__\n*.xml\n")
    left = commit(folder, "main")
    git(folder, "switch", "--quiet", "--create", "feature")
    (folder / "layers.py").write_text("COUNT = 3\n")
    commit(folder, "more")
    git(folder, "switch", "--quiet", "main")
    return left


@pytest.mark.long
def test_a_shallow_clone_of_a_pull_request_is_compared_with_main(tmp_path):
    left = hosted(tmp_path / "name")
    folder = checkout(tmp_path / "name", tmp_path / "job", "refs/heads/feature")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, module in (("perfdl", "pytest_perfdl.cli"), ("pytest", "pytest -p perfdl")):
        (programs / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' -m {module} \"$@\"\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(ROOT / "docs" / "workflows" / "perf.sh"), *SHORT],
        cwd=folder,
        env=surroundings(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"compare with {left[:12]}: merge base of HEAD and origin/main" in done.stderr
    (test,) = json.loads((folder / "perf-report" / "run.json").read_text())["tests"]
    metric = test["metrics"]["ops"]
    assert (metric["verdict"], metric["new"] / metric["base"]) == ("regressed", 1.5)
    assert "<failure" in (folder / "junit.xml").read_text()
    assert git(folder, "status", "--porcelain") == ""
