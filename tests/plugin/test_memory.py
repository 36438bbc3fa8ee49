"""Memory that a change costs, as a user sees it: the cause, what accumulates, and the commands that show it again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from plugin.project import SHORT, Project, commit, git, make_repository

pytestmark = pytest.mark.long

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(256, 512)
        self.decode = nn.Linear(512, 1024)
        self.seen = []

    def forward(self, x):
        hidden = torch.tanh(self.encode(x))
        return self.decode(hidden)
"""
TEST = """
import pytest
import torch
from model import Net

LIMITS = {"step_time": "off", "block_time": "off"}

@pytest.mark.perf(limits=LIMITS)
def test_step(perf):
    net, x = Net(), torch.ones(512, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    perf(step)
"""
MIB = 2**20


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project", "pythonpath = .", "perf_budget = 1")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\n")
    made.write("model.py", MODEL)
    made.write("test_net.py", TEST)
    commit(made, "one")
    return made


def change(project, old, new):
    assert MODEL.count(old) == 1
    project.write("model.py", MODEL.replace(old, new))


def run(project, *arguments):
    done = project.run(*SHORT, "--perf-against=HEAD", *arguments)
    (test,) = json.loads((project.root / "perf-report/run.json").read_text())["tests"]
    return done, test


def perfdl(project, *arguments):
    command = [sys.executable, "-m", "pytest_perfdl.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)


def line_of(project, text):
    (number,) = [
        number for number, line in enumerate((project.root / "model.py").read_text().splitlines(), 1) if text in line
    ]
    return number


def test_the_cause_of_a_higher_peak_is_named_everywhere(project):
    # A weight of 1024 x 512 floats: itself, its gradient, and its momentum. The peak is while gradients are alive.
    change(project, "self.seen = []", "self.seen = []\n        self.more = nn.Linear(1024, 1024, bias=False)")
    text = (project.root / "model.py").read_text()
    project.write("model.py", text.replace("return self.decode(hidden)", "return self.more(self.decode(hidden))"))
    done, test = run(project)
    place = f"model.py({line_of(project, 'self.more = ')}): Net.__init__"
    (first, *_) = [cause for cause in test["blame"] if cause["kind"] == "memory"]
    assert test["blame"][0] == first
    assert (first["module"], first["line"], first["category"]) == ("Net.more", place, "parameters")
    assert first["parameters"] == ["Net.more.weight"]
    assert first["bytes"] in (2 * 4 * MIB, 3 * 4 * MIB), (
        "the weight, its momentum, and its gradient if it is alive then"
    )
    (account,) = test["memory"]
    for side in ("base", "new"):
        assert account[side]["residual"] == 0
        assert account[side]["peak_bytes"] == test["metrics"]["peak_memory"][side]
        assert account[side]["peak_bytes"] == sum(row["bytes"] for row in account[side]["rows"])
    moved = sum(cause["bytes"] for cause in test["blame"] if cause["kind"] == "memory")
    assert moved == account["new"]["peak_bytes"] - account["base"]["peak_bytes"]
    (diff, *_) = test["source_diffs"]
    assert (diff["file"], diff["function"]) == ("model.py", "__init__")
    for text in (done.output, (project.root / "perf-report/summary.md").read_text()):
        assert f"model.py:{line_of(project, 'self.more = ')}" in text
        assert "Net.more.weight" in text
    page = (project.root / "perf-report/index.html").read_text()
    assert "What the peak consists of" in page
    assert done.code == 1

    again = perfdl(project, "report", "perf-report/run.json", "--out", "again")
    assert again.returncode == 0, again.stderr
    (reread,) = json.loads((project.root / "again/run.json").read_text())["tests"]
    assert (reread["memory"], reread["blame"]) == (test["memory"], test["blame"])

    shown = perfdl(project, "diff", "--memory", "perf-report", "perf-report")
    assert shown.returncode == 0, shown.stderr
    assert f"model.py:{line_of(project, 'self.more = ')}" in shown.stdout
    told = json.loads(perfdl(project, "diff", "--memory", "--json", "perf-report", "perf-report").stdout)
    assert told["blame"] == [
        cause | {"call": "test_net.py::test_step"} for cause in test["blame"] if cause["kind"] == "memory"
    ]


def test_what_accumulates_is_named_with_its_line_and_fails_where_nothing_did(project):
    change(project, "return self.decode(hidden)", "self.seen.append(hidden)\n        return self.decode(hidden)")
    done, test = run(project)
    (growth,) = test["growth"]
    assert growth["bytes"] == test["metrics"]["growth"]["new"] == 512 * 512 * 4
    assert growth["line"] == f"model.py({line_of(project, 'torch.tanh')}): Net.forward"
    assert test["metrics"]["growth"]["verdict"] == "regressed"
    assert "memory grows: each step keeps 1.000 MiB" in done.output
    assert done.code == 1

    # What grew before is known: it warns, unless a limit is set.
    git(project.root, "commit", "--quiet", "-a", "-m", "it grows")
    text = (project.root / "model.py").read_text()
    project.write("model.py", text.replace("self.seen.append(hidden)", "self.seen.append((hidden, x + 1))"))
    done, test = run(project, "--perf-memory=off", "--perf-limit=peak_memory:off")
    assert test["metrics"]["growth"]["verdict"] == "changed"
    assert (done.code, done.output.count("memory grows")) == (0, 1)


def test_unchanged_memory_is_not_looked_at_unless_asked(project):
    change(project, "def forward(self, x):", "def forward(self, x):\n        # The same.")
    _, test = run(project)
    assert (test["memory"], test["growth"]) == ([], [])
    assert not [cause for cause in test["blame"] if cause["kind"] == "memory"]
    assert "growth" not in test["metrics"]
    _, test = run(project, "--perf-memory=all")
    (account,) = test["memory"]
    assert account["base"] is None
    assert account["causes"] == []
    # Weights and biases, and the momentum of each.
    weights = 4 * (256 * 512 + 512 + 512 * 1024 + 1024)
    categories = account["new"]["by_category"]
    assert (categories["parameters"], categories["optimizer state"]) == (weights, weights)
    assert categories["inputs"] == 512 * 256 * 4
    assert sum(categories.values()) == test["metrics"]["peak_memory"]["new"]


def test_accounts_are_left_out_where_that_is_asked(project):
    change(project, "512, 1024", "512, 2048")
    done, test = run(project, "--perf-memory=off")
    assert test["metrics"]["peak_memory"]["verdict"] == "regressed"
    assert test["memory"] == []
    assert done.code == 1


def test_a_step_that_does_not_bear_to_be_recorded_is_judged_all_the_same(project):
    change(project, "512, 1024", "512, 2048")
    project.write(
        "conftest.py",
        """
        from pytest_perfdl.measure import memory_pass

        def fail(command):
            raise RuntimeError("no recording here")
            yield

        memory_pass.run = fail
        """,
    )
    done, test = run(project)
    assert test["metrics"]["peak_memory"]["verdict"] == "regressed"
    assert test["memory"] == []
    assert "no-account" in [finding["code"] for finding in test["integrity"]]
    assert done.code == 1


TWO_CALLS = """
import pytest
import torch
from model import Net

LIMITS = {"step_time": "off", "block_time": "off", "growth": 0}

@pytest.mark.perf(limits=LIMITS)
def test_passes(perf):
    net, x = Net(), torch.ones(512, 256)
    with torch.no_grad():
        assert perf(net.encode, x, name="encode").sum().isfinite()
        assert perf(net, x, name="whole").sum().isfinite()
"""


def test_of_several_calls_that_which_changed_is_explained_against_a_baseline(project):
    project.write("test_net.py", TWO_CALLS)
    assert project.run(*SHORT, "--perf-update").code == 0
    commit(project, "the baseline")
    change(project, "return self.decode(hidden)", "return self.decode(torch.cat((hidden, hidden)))[:512]")
    done = project.run(*SHORT, "--perf", "-v")
    (test,) = json.loads((project.root / "perf-report/run.json").read_text())["tests"]
    (account,) = test["memory"]
    assert account["call"] == "whole"
    assert (account["base"]["residual"], account["new"]["residual"]) == (0, 0)
    for side in ("base", "new"):
        assert account[side]["peak_bytes"] == test["metrics"]["whole.peak_memory"][side]
    (first, *_) = [cause for cause in test["blame"] if cause["kind"] == "memory"]
    assert first["call"] == "whole"
    assert first["line"] == f"model.py({line_of(project, 'torch.cat')}): Net.forward"
    assert "whole: the peak went from" in done.output
    assert not [finding for finding in test["integrity"] if finding["code"] in ("account", "no-account")]
    assert done.code == 1
