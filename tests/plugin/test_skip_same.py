"""`--perf-skip-same`: a test whose code and environment are those of its baseline is not measured."""

from __future__ import annotations

import json
import subprocess

import pytest
from plugin.project import SHORT

TEST = """
import pathlib
import pytest
import code_under_test

@pytest.fixture
def ended():
    yield
    with open("output-ended", "a") as file:
        file.write("ended\\n")

def test_step(perf, ended):
    perf(code_under_test.work)
    pathlib.Path("output-measured").write_text("measured")
"""


@pytest.mark.long
def test_what_is_the_same_is_not_measured_and_passes_as_unchanged(project):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=project.root, check=True, capture_output=True)

    def run(*arguments):
        (project.root / "output-measured").unlink(missing_ok=True)
        (project.root / "output-ended").unlink(missing_ok=True)
        done = project.run(*SHORT, "--perf-json=run.json", *arguments)
        (test,) = json.loads((project.root / "run.json").read_text())["tests"]
        return done, test, (project.root / "output-measured").exists()

    project.ini("perf_budget = 1", "perf_limits =", "  step_time:off", "  block_time:off")
    project.write(".gitignore", "output-*\nperf-report/\nrun.json\n__pycache__/\n.pytest_cache/\n")
    # No event of Python's tells what other processes and compiled code open.
    code = "import subprocess\nsubprocess.run(['cat', 'table.txt'])\ndef work():\n    return sum(range({}))\n"
    project.write("code_under_test.py", code.format(1000))
    project.write("table.txt", "1")
    project.write("test_it.py", TEST)
    git("init", "--quiet")
    git("add", "--all")
    git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "one")
    done, _, measured = run("--perf-update", "--perf-repeats=1", "--perf-skip-same")
    assert (done.code, measured) == (0, True), done.output

    done, test, measured = run("--perf", "--perf-skip-same", "--perf-require=1")
    assert (done.code, measured) == (0, False), done.output
    assert (test["verdict"], test["reason"], test["record"]) == ("unchanged", "same code", None)
    assert (project.root / "output-ended").read_text() == "ended\n", "its fixtures were torn down"
    said = "1 test not measured: same code as its baseline (--perf-skip-same)"
    assert done.line(said)
    assert said in (project.root / "perf-report/summary.md").read_text()

    project.write("code_under_test.py", code.format(1001))
    _, test, measured = run("--perf", "-o", "perf_skip_same=true")
    assert measured
    assert test["reason"] != "same code"
    used = {"code_under_test.py", "pytest.ini", "table.txt", "test_it.py"}
    assert test["record"]["code"]["files"].keys() == used

    project.write("code_under_test.py", code.format(1000))
    _, test, measured = run("--perf")
    assert measured, "only where it is asked for"
    assert test["reason"] != "same code"

    project.write("table.txt", "2")
    _, test, measured = run("--perf", "--perf-skip-same")
    assert measured, "the table is another one"
