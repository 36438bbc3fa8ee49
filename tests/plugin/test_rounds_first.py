"""`--perf` measures the baseline's code beside the working tree's; where it cannot, one line says why and what then."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from plugin.project import SHORT, Project, commit, git, make_repository

pytestmark = pytest.mark.long

PACKAGE = """
import torch

def work():
    return [torch.ones(8).sum() for _ in range({count})]
"""
TEST = """
import pytest
from package import work

@pytest.mark.perf
def test_work(perf):
    perf(work)
"""
WIDE = ("--perf-limit=step_time:900%", "--perf-limit=block_time:900%")
"""No slowdown of a busy machine is past them: three rounds then exclude more, as a rule."""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A repository with a recorded and committed baseline."""
    made = Project(tmp_path_factory.mktemp("rounds") / "project", "pythonpath = src", "perf_budget = 60")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\nbuilt.txt\n")
    made.write("src/package/__init__.py", PACKAGE.format(count=10))
    made.write("tests/test_speed.py", TEST)
    commit(made, "code")
    recorded = made.run("--perf-update", "--perf-repeats=4", *SHORT)
    assert recorded.code == 0, recorded.output
    commit(made, "baseline")
    return made


@pytest.fixture
def project(template, tmp_path):
    """A copy of it, with a change that leaves the work as it is."""
    made = Project(tmp_path / "project")
    shutil.copytree(template.root, made.root, dirs_exist_ok=True)
    made.write("src/package/__init__.py", PACKAGE.format(count=10) + "\n# changed\n")
    commit(made, "a comment")
    return made


def judged(project, *options, **environment):
    done = project.run("--perf", "--perf-json=run.json", *SHORT, *WIDE, *options, **environment)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert "Traceback" not in done.output, done.output
    return done, test


def unpaired(test):
    """The line that says why a test was judged unpaired."""
    (note,) = [each["message"] for each in test["integrity"] if each["code"] == "unpaired"]
    assert "\n" not in note
    assert {each["evidence"] for each in test["metrics"].values()} == {None, "unpaired"}
    return note


def test_every_test_is_measured_in_rounds_and_has_a_bound(project):
    done, test = judged(project)
    step = test["metrics"]["step_time"]
    assert (done.code, test["verdict"], step["evidence"]) == (0, "unchanged", "paired"), done.output
    assert step["rounds"] >= 3
    assert step["excluded"] < 9
    assert "is excluded (97.5% confidence)" in step["reason"] or "no slowdown" in step["reason"]
    assert step["stored"] > 0
    assert step["stored"] != step["base"], "what the baseline stores stands beside what its code took now"
    count, _, how = test["rounds"].partition(" rounds, ")
    # Rounds go on behind the step's verdict while an operator looks slower.
    assert int(count) >= step["rounds"]
    assert how.startswith("forked processes; ")


def test_a_slowdown_is_found_without_a_suspicion_first(project):
    project.write("src/package/__init__.py", PACKAGE.format(count=400))
    done, test = judged(project, "--perf-limit=step_time:300%", "--perf-limit=block_time:300%")
    assert (done.code, test["verdict"]) == (1, "regressed"), done.output
    assert test["metrics"]["step_time"]["rounds"] >= 9
    assert test["metrics"]["ops"]["verdict"] == "changed"


def test_a_speed_up_is_improved_though_counts_changed(project):
    project.write("src/package/__init__.py", PACKAGE.format(count=1))
    done, test = judged(project, "--perf-limit=step_time:5%", "--perf-limit=block_time:off")
    assert (done.code, test["verdict"]) == (0, "improved"), done.output
    assert test["metrics"]["ops"]["verdict"] == "changed"
    assert "counts changed: ops " in test["reason"]


def test_counts_fail_a_test_for_whom_asks_for_it(project):
    project.write("src/package/__init__.py", PACKAGE.format(count=11))
    done, test = judged(project, "--perf-fail-on=changed")
    assert (done.code, test["fails"]) == (1, True), done.output


@pytest.mark.parametrize(
    "mode, count, paired",
    [("", 10, True), ("", 11, False), ("=all", 10, False)],
    ids=["changed, the same counts", "changed, another count", "all"],
)
def test_what_is_recorded_in_any_case_is_not_measured_in_rounds(mode, count, paired, project):
    project.write("src/package/__init__.py", PACKAGE.format(count=count))
    done = project.run(f"--perf-update{mode}", "--perf-repeats=2", "--perf-json=run.json", *SHORT, *WIDE)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert done.code == 0, done.output
    assert test["metrics"]["step_time"]["evidence"] == ("paired" if paired else "unpaired"), done.output
    assert test["updated"] == (not paired)


def test_a_shallow_clone_says_how_to_get_a_commit(project, tmp_path):
    clone = Project(tmp_path / "clone")
    shutil.rmtree(clone.root)
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{project.root}", str(clone.root)],
        check=True,
        capture_output=True,
    )
    clone.write("src/package/__init__.py", PACKAGE.format(count=12))
    git(clone.root, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--all", "-m", "more")
    git(clone.root, "update-ref", "refs/heads/main", "HEAD")
    (clone.root / ".git" / "shallow").write_text(
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone.root, capture_output=True, text=True, check=True).stdout
    )
    _, test = judged(clone)
    assert "fetch-depth: 0" in unpaired(test)


def test_without_git(project):
    shutil.rmtree(project.root / ".git")
    _, test = judged(project)
    assert "git repository" in unpaired(test)


def test_a_commit_that_does_not_import_any_more(project):
    # What the baseline's code imported was removed from this environment since.
    project.write("src/package/__init__.py", "import gone\n" + PACKAGE.format(count=10))
    project.write(
        "conftest.py",
        "import sys, types, os\nif 'GONE' not in os.environ:\n    sys.modules['gone'] = types.ModuleType('gone')\n",
    )
    commit(project, "needs a module")
    recorded = project.run("--perf-update=all", "--perf-repeats=4", *SHORT)
    assert recorded.code == 0, recorded.output
    commit(project, "its baseline")
    project.write("src/package/__init__.py", PACKAGE.format(count=10))
    commit(project, "needs it no more")
    _, test = judged(project, GONE="1")
    assert "the test did not " in unpaired(test)


def test_a_commit_without_the_test(project):
    baseline = next((project.root / "baselines").rglob("test_work.json"))
    stored = json.loads(baseline.read_bytes())
    stored["code"] = None
    assert stored["occasions"][-1].keys()
    git(project.root, "mv", "tests/test_speed.py", "tests/test_moved.py")
    moved = baseline.parent.parent / "test_moved" / baseline.name
    moved.parent.mkdir(parents=True)
    text = baseline.read_text().replace("tests/test_speed.py::", "tests/test_moved.py::")
    moved.write_text(text)
    shutil.rmtree(baseline.parent)
    _, test = judged(project)
    assert "does not exist at" in unpaired(test)


def test_a_baseline_whose_counts_its_code_does_not_give_again(project):
    """The step reads a file that git ignores: as a built product or data would, it made other counts then."""
    project.write(
        "src/package/__init__.py",
        PACKAGE.format(count=10).replace("range(10)", "range(int(open(BUILT).read()))")
        + "\nfrom pathlib import Path\nBUILT = Path(__file__).parents[2] / 'built.txt'\n",
    )
    project.write("built.txt", "10")
    commit(project, "reads what is built")
    setup = "-o", "perf_against_setup=echo 13 > built.txt"
    recorded = project.run("--perf-update=all", "--perf-repeats=4", *SHORT)
    assert recorded.code == 0, recorded.output
    commit(project, "its baseline")
    _, test = judged(project, *setup)
    note = unpaired(test)
    assert "differ from the recorded counts (ops " in note
    assert "built.txt" in note


def test_another_torch_is_judged_apart_from_the_code(project):
    (baseline,) = (project.root / "baselines").rglob("test_work.json")
    text = baseline.read_text()
    version = json.loads(text)["context"]["torch"]
    baseline.write_text(text.replace(f'"torch": "{version}"', '"torch": "2.0.0"'))
    commit(project, "as if recorded with another torch")
    done, test = judged(project)
    assert test["metrics"]["step_time"]["evidence"] == "paired", done.output
    environment = {each["name"]: each for each in test["environment"]}
    assert environment["step_time"]["evidence"] == "unpaired"
    assert environment["step_time"]["limit"] == "900%"
    assert {"name": "torch", "base": "2.0.0", "new": version} in test["context_changes"]


OTHERS = """
import pytest
from package import work

@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").write_text("8")
    return tmp_path / "data"

@pytest.mark.perf(
    limits={"throughput": "90%", "loss": "5%", "gain": "5%"}, budget={"loss": "0.4", "throughput": "1000000000"}
)
def test_work(perf, data, request):
    assert request.config.getoption("--own") == "default"
    perf(lambda: (data.read_text(), work()), items=4)
    perf.metric("loss", 0.5, unit="nat")
    perf.metric("gain", -1.0, unit="nat")
"""
CONFTEST = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

def pytest_addoption(parser):
    parser.addoption("--own", default="default")
"""


def test_every_limit_and_budget_holds_in_rounds_of_a_project_without_an_ini_file(template, tmp_path):
    """Both processes have temporary folders of their own, and conftest files of their own side alone."""
    made = Project(tmp_path / "project")
    shutil.copytree(template.root, made.root, dirs_exist_ok=True)
    (made.root / "pytest.ini").unlink()
    shutil.rmtree(made.root / "baselines")
    made.write("conftest.py", CONFTEST)
    made.write("tests/test_speed.py", OTHERS)
    commit(made, "more to hold")
    recorded = made.run("--perf-update", "--perf-repeats=4", "--perf-fail-on=invalid", *SHORT, "tests")
    assert recorded.code == 0, recorded.output
    made.write("src/package/__init__.py", PACKAGE.format(count=10) + "\n# changed\n")
    made.write("new/deep/notes.txt", "a folder that the baseline's commit lacks\n")
    commit(made, "baseline and a comment")
    below = Project(made.root / "new" / "deep")
    (below.root / "pytest.ini").unlink()
    done, test = judged(below, "--perf-budget=60", "--perf-limit=steptime:1%", "--rootdir=../..", "../../tests")
    found = {name: (each["verdict"], each["evidence"]) for name, each in test["metrics"].items()}
    assert found["step_time"] == ("unchanged", "paired"), done.output
    # Budgets that no run on this machine keeps: of a figure that an author reports, and from below.
    assert (found["loss"], test["metrics"]["loss"]["limit"]) == (("regressed", "paired"), "<= 0.4")
    assert (found["throughput"], test["metrics"]["throughput"]["limit"]) == (("regressed", "paired"), ">= 1000000000")
    assert found["gain"] == ("inconclusive", None)
    assert "--perf-limit: no test in this session measures the metric steptime; did you mean step_time?" in done.output
