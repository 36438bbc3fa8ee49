"""`--perf-against-python`: the same code under two environments."""

import json
import shlex
import sys

import pytest
from plugin.project import SHORT, Project, environment, install

pytestmark = pytest.mark.long

KERNELS = """
import torch

def work(x):
    for _ in range({times}):
        x = torch.tanh(x)
    return x
"""
TEST = """
import kernels
import torch

def test_work(perf):
    x = torch.randn(256, 256)
    perf(lambda: kernels.work(x))
"""
LIMITED = ("--perf-memory=off", "--perf-budget=10")


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """Interpreters: `old`, `new` with a library that does three times the work, and `same` as the old one."""
    root = tmp_path_factory.mktemp("environments")
    fast, slow = (KERNELS.format(times=times) for times in (4, 12))
    return {
        "old": environment(root / "old", kernels=("1.0", fast)),
        "new": environment(root / "new", kernels=("2.0", slow)),
        "same": environment(root / "same", kernels=("1.0", fast)),
    }


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project")
    made.write("test_speed.py", TEST)
    return made


def run(project, environments, head, base, *options):
    done = project.run(
        *SHORT, *LIMITED, "--perf-json=run.json", f"--perf-against-python={base}", *options, python=environments[head]
    )
    return done, json.loads((project.root / "run.json").read_text())["tests"][0]


def test_a_library_that_got_slower_is_found_between_two_environments(project, environments):
    # A busy machine leaves time for few rounds: "suspect" then.
    done, test = run(project, environments, "new", environments["old"], "--perf-fail-on=regressed,suspect")

    assert done.code == 1, done.output
    assert test["verdict"] in ("regressed", "suspect")
    assert test["metrics"]["step_time"]["effect"] > 0.5
    assert test["metrics"]["ops"]["base"] < test["metrics"]["ops"]["new"]
    changes = {change["name"]: (change["base"], change["new"]) for change in test["context_changes"]}
    assert changes == {
        "kernels": ("1.0", "2.0"),
        "interpreter": (str(environments["old"]), str(environments["new"])),
    }
    assert "the two sides have different interpreters" in test["rounds"]
    assert f"against {environments['old']}" in " ".join(done.output.split())
    assert "kernels 1.0 -> 2.0" in " ".join(done.output.split())
    command = next(line for line in done.lines if "perfdl bisect --environments" in line).split("perfdl ", 1)[1]
    # By a count, which needs no rounds.
    searched = project.command("bisect", "--metric=ops", *shlex.split(command)[1:], python=environments["new"])
    assert searched.code == 0, searched.output
    assert "found: kernels" in searched.output


def test_two_equal_environments_differ_in_nothing_but_the_interpreter(project, environments):
    done, test = run(project, environments, "same", environments["old"].parents[1], "--perf-limit=step_time:30%")

    # A busy machine may leave too little time to be certain of the step time, or of an operator.
    assert done.code == 0, done.output
    assert test["verdict"] in ("unchanged", "inconclusive", "suspect"), done.output
    assert test["metrics"]["ops"]["base"] == test["metrics"]["ops"]["new"]
    assert {change["name"] for change in test["context_changes"]} == {"interpreter"}


def test_an_environment_without_the_library_says_so(project, environments, tmp_path):
    bare = environment(tmp_path / "bare")
    done, test = run(project, environments, "new", bare)

    assert done.code == 1
    assert test["verdict"] == "invalid"
    assert f"the test did not run under {bare}" in " ".join(test["reason"].split())
    assert "No module named 'kernels'" in done.output


def test_an_environment_with_another_version_of_the_plugin_says_what_to_run(project, environments, tmp_path):
    other = environment(tmp_path / "other")
    (packages,) = (tmp_path / "other").glob("lib/python*/site-packages")
    install(packages, "pytest_perfdl", "0.0.1", "")
    done = project.run(*SHORT, f"--perf-against-python={other}", python=environments["new"])

    assert done.code == 4
    said = done.output.strip().splitlines()[-1]
    assert said.startswith(f"ERROR: --perf-against-python: {other} has pytest-perfdl 0.0.1, but both sides need")
    assert f"run {other} -m pip install pytest-perfdl==" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/no/such/python", "--perf-against-python: there is no Python interpreter /no/such/python"),
        ("/bin/true", "--perf-against-python: /bin/true is not a working Python interpreter (exit code 0)"),
        ("", "--perf-against-python: expected the path of a Python interpreter"),
    ],
)
def test_what_is_no_interpreter_is_refused_in_one_line(project, environments, given, said):
    done = project.run(*SHORT, f"--perf-against-python={given}", python=environments["new"])

    assert done.code == 4
    assert done.output.strip().splitlines()[-1] == f"ERROR: {said}"


def test_it_records_no_baselines(project):
    done = project.run("--perf-update", f"--perf-against-python={sys.executable}")

    assert done.code == 4
    assert "--perf-against-python compares two sides and records no baselines: remove --perf-update" in done.output
