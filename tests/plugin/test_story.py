"""The life of one perf test in a repository of a team: two machines, a slowdown, branches, a rename and a waiver.

docs/tutorials/team.md tells the same story in commands. Here its step waits for milliseconds, and changes by a factor
of five and by two operators, so that few steps are enough on any machine.
"""

import json
import subprocess

import pytest
from plugin.project import SHORT, Project

MODEL = """
import time
import torch


def step(x):
    time.sleep({sleep})
    for _ in range({layers}):
        x = x @ x
    return x
"""
TEST = """
import pytest
import torch
import net


@pytest.mark.perf(limits={"step_time": "60%", "block_time": "off", "per_kernel": "off", "ops": 0})
def test_step(perf):
    perf(net.step, torch.eye(8))
"""
MACHINES = """
import os

from pytest_perfdl.measure import environment

key = environment._key
environment._key = lambda host, *rest: key({**host, "cpu": f"machine {os.environ['MACHINE']}"}, *rest)
"""
"""A conftest that overrides the machine ID in the workers: no option does."""
FAST, SLOW = {"sleep": 0.004, "layers": 2}, {"sleep": 0.02, "layers": 4}
WAIVER = """
[[waiver]]
test = "test_rate.py::*"
limit = "2000%"
until = {until}
why = "issue 412"
who = "Ana"
"""


class Checkout(Project):
    """A clone of the repository on a machine."""

    def __init__(self, root, machine="A"):
        self.root = root
        self.machine = machine

    def git(self, *words, code=0):
        done = subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def commit(self, message):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def perf(self, *options, on=None, code=0):
        """One run of pytest, and what its run file says of the only test."""
        finished = self.run(*options, *SHORT, "--perf-budget=20", "--perf-memory=off", MACHINE=on or self.machine)
        assert finished.code == code, finished.output
        run = json.loads((self.root / "perf-report" / "run.json").read_text())
        (test,) = run["tests"]
        assert run["key"]["parts"]["cpu"] == f"machine {on or self.machine}"
        return finished, test

    def perfdl(self, *words, code=0):
        finished = self.command(*words)
        assert finished.code == code, finished.output
        return finished.output

    def records(self):
        """The records by machine and file."""
        found = {}
        for name, data in self.baselines().items():
            if name.endswith(".json"):
                machine, _, file = name.partition("/")
                found[machine.split("-")[1].upper(), file] = json.loads(data)
        return found


@pytest.fixture
def machine_a(tmp_path):
    """The repository with a perf test."""
    project = Checkout(tmp_path / "a", "A")
    project.root.mkdir()
    project.ini("pythonpath = .")
    project.write(".gitignore", "perf-report/\noutput-*\n__pycache__/\n.pytest_cache/\n")
    project.write("conftest.py", MACHINES)
    project.write("net.py", MODEL.format(**FAST))
    project.write("test_speed.py", TEST)
    project.git("init", "--quiet", "--initial-branch=main")
    for name, value in (("user.name", "Ana"), ("user.email", "ana@example.org")):
        project.git("config", name, value)
    project.commit("Add a perf test")
    return project


@pytest.mark.long
def test_the_life_of_a_perf_test(machine_a, tmp_path):
    here = machine_a

    # Record on two machines, whose times are not compared.
    _, test = here.perf("--perf-update", "--perf-repeats=2")
    assert test["verdict"] == "missing"
    _, test = here.perf("--perf-update", "--perf-repeats=2", on="B")
    assert (test["verdict"], test["fails"]) == ("incomparable", False)
    here.commit("Baselines of two machines")
    first = here.records()
    assert sorted(first) == [("A", "test_speed/test_step.json"), ("B", "test_speed/test_step.json")]

    # A branch makes the step slower, and fails.
    here.git("switch", "--quiet", "--create", "penalty")
    here.write("net.py", MODEL.format(**SLOW))
    here.commit("Add a penalty")
    finished, test = here.perf("--perf", code=1)
    assert (test["verdict"], test["fails"]) == ("regressed", True)
    assert test["metrics"]["ops"]["verdict"] == "regressed"
    assert test["metrics"]["step_time"]["verdict"] in ("regressed", "suspect")
    assert test["metrics"]["step_time"]["effect"] > 1
    assert "PERF REGRESSED test_speed.py::test_step" in finished.output
    assert here.git("status", "--porcelain") == ""

    # Its report is an artifact, which is accepted in a clone on a machine that has measured nothing.
    laptop = Checkout(tmp_path / "laptop", "laptop")
    here.git("clone", "--quiet", str(here.root), str(laptop.root))
    (here.root / "perf-report").rename(tmp_path / "artifact")
    said = laptop.perfdl("accept", tmp_path / "artifact" / "run.json", "--note", "issue 412")
    assert said.startswith("accepted   test_speed.py::test_step  baselines/machine-a-")
    accepted = laptop.records()
    assert {machine for machine, _ in accepted} == {"A", "B"}
    (name,) = {name for name in accepted if accepted[name] != first[name]}
    assert name[0] == "A"
    assert accepted[name]["note"] == "issue 412"
    for key in ("user.name", "user.email"):
        laptop.git("config", key, "laptop@example.org")
    laptop.commit("Accept the penalty")
    here.git("pull", "--quiet", "--ff-only", str(laptop.root), "penalty")

    # Meanwhile the main branch adds a process of the old code to the same file: take either side.
    here.git("switch", "--quiet", "main")
    here.perf("--perf-update=append", "--perf-repeats=1")
    assert [each["repeats"] for each in here.records()[name]["occasions"]] == [2, 1]
    here.commit("One more process")
    here.git("merge", "--quiet", "--no-edit", "penalty", code=1)
    assert "take either side" in here.perfdl("baseline", "verify", code=1)
    here.git("checkout", "--theirs", "baselines")
    here.commit("Merge the penalty")
    assert here.git("log", "--format=%p", "-1").count(" ") == 1
    assert here.records() == accepted
    _, test = here.perf("--perf")
    assert test["metrics"]["ops"]["verdict"] == "unchanged"
    assert test["metrics"]["step_time"]["verdict"] in ("unchanged", "inconclusive")

    # After a rename, no baseline has a test. To delete all of them needs a word more, and git has them back.
    here.git("mv", "test_speed.py", "test_rate.py")
    here.commit("Rename the test file")
    said = here.perfdl("prune")
    assert said.count("no test  test_speed.py::test_step  baselines/machine-") == 2
    assert "add --all to confirm" in here.perfdl("prune", "--apply", code=2)
    assert here.records() == accepted
    here.perfdl("prune", "--apply", "--all")
    assert here.records() == {}
    here.git("restore", "baselines")
    here.perfdl("baseline", "rename", "test_speed.py", "test_rate.py")
    assert here.perfdl("baseline", "verify") == "2 baselines verified\n"
    assert here.perfdl("prune", code=3).startswith("nothing to prune")
    here.commit("Rename the baselines")
    renamed = here.records()
    assert sorted(renamed) == [("A", "test_rate/test_step.json"), ("B", "test_rate/test_step.json")]

    # On the other machine the penalty is not accepted: it is waived.
    here.write("perf_waivers.toml", WAIVER.format(until="2099-12-31"))
    finished, test = here.perf("--perf", on="B")
    assert (test["verdict"], test["metrics"]["ops"]["verdict"], test["fails"]) == ("waived", "regressed", False)
    assert "waiver added by the current change: test_rate.py::*" in finished.output
    assert "1 compared: 1 waived." in finished.output
    assert "nothing to accept" in here.perfdl("accept", "perf-report/run.json", code=3)
    here.commit("Waive the penalty")

    # Then the waiver expires.
    here.write("perf_waivers.toml", WAIVER.format(until="2020-01-31"))
    here.commit("As if its last day had passed")
    finished, test = here.perf("--perf", on="B", code=1)
    assert (test["verdict"], test["fails"]) == ("regressed", True)
    assert "waiver expired on 2020-01-31: test_rate.py::*" in " ".join(finished.output.split())
    assert here.records() == renamed
