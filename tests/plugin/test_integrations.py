"""The recipes of the pages on integrations and on GitLab, as they are there, against stand-ins of what they send to."""

import json
import os
import re
from pathlib import Path

import pytest
from plugin.project import SHORT, Project

FAKES = Path(__file__).with_name("fakes")
PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
TEXT = "".join((PAGES / name).read_text(encoding="utf-8") for name in ("integrations.md", "gitlab.md"))
TEST = """
    import time

    import pytest


    @pytest.mark.perf
    @pytest.mark.parametrize("size", ["small/1", "small 1"])
    def test_step(perf, size):
        perf(lambda: time.sleep(0.002), name="forward")
        perf.metric("loss (nats)", 1.5, unit="nat")


    @pytest.mark.perf
    @pytest.mark.skip
    def test_later(perf):
        perf(int)
"""
IDS = ("test_speed.py::test_step[small/1]", "test_speed.py::test_step[small 1]", "test_speed.py::test_later")


def fence(kind, part):
    """The one fence of the pages that holds a text."""
    (found,) = [each for each in re.findall(rf"(?s)```{kind}\n(.*?)```", TEXT) if part in each]
    return found


def script(part):
    """The commands of a GitLab job, for a project that has baselines and is in no repository."""
    text = fence("yaml", part).replace('--perf-against "$base"', "--perf")
    return [line.strip()[2:] for line in text.splitlines() if re.match(r" +- pytest ", line)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with both recipes, the one in its folder, the other in that of its tests, with a recorded baseline."""
    made = Project(tmp_path_factory.mktemp("integrations") / "project")
    made.write("conftest.py", fence("python", "wandb"))
    made.write("inner/conftest.py", fence("python", "mlflow"))
    made.write("inner/test_speed.py", TEST)
    run(made, "--perf-update", "--perf-repeats=2", "--junitxml=first.xml", "-o", "junit_family=xunit2")
    return made


def run(project, *options):
    """Run pytest; its end, and what the recipes of either kind called."""
    (project.root / "recorded").unlink(missing_ok=True)
    # What is measured is a pause: whatever the machine does, no limit is to be exceeded.
    wide = ("--perf-limit=step_time:10000%", "--perf-limit=block_time:10000%")
    path = os.pathsep.join(filter(None, (str(FAKES), os.environ.get("PYTHONPATH"))))
    recorded = str(project.root / "recorded")
    finished = project.run(*options, *SHORT, *wide, "--perf-budget=1", PYTHONPATH=path, RECORDED=recorded)
    assert finished.code == 0, finished.output
    assert "pytest_perfdl_report failed" not in finished.output
    return [json.loads(line) for line in (project.root / "recorded").read_text().splitlines()]


@pytest.fixture(scope="module")
def compared(project):
    """The calls of a run that compared, by GitLab's first command, and its run file's data."""
    (command,) = [line for line in script("junit: junit.xml") if line.startswith("pytest")]
    calls = run(project, *command.split()[1:], "-o", "junit_family=xunit1")
    return calls, json.loads((project.root / "perf-report" / "run.json").read_text())


def of_tests(calls):
    """What was logged of each test: key -> number, without those of other tests."""
    found = {}
    for name, values in calls:
        found.update(values["data"] if name == "log" else {})
    return found


def current(data, test):
    return next(each for each in data["tests"] if each["id"] == f"inner/{test}")["metrics"]


@pytest.mark.long
def test_weights_and_biases_gets_numbers_verdicts_and_the_report(compared):
    calls, data = compared
    named = [name for name, _ in calls if name in ("init", "log", "log_artifact", "finish")]
    assert named == ["init", "log", "log", "log", "log_artifact", "finish"]
    by_name = dict(calls)
    assert by_name["init"]["config"].items() >= {"machine": data["key"]["slug"], "commit": None}.items()
    assert by_name["init"]["config"]["torch"] == data["context"]["torch"]
    assert by_name["log_artifact"]["files"] == sorted([".gitignore", "index.html", "run.json", "summary.md", "traces"])
    verdicts = by_name["finish"]["summary"]
    assert sorted(verdicts.values()) == sorted(test["verdict"] for test in data["tests"])

    logged = of_tests(calls)
    for test in IDS[:2]:
        metric = current(data, test)["forward.step_time"]
        assert metric["new"] in {
            round(value * 1e9) for key, value in logged.items() if key.endswith(".current_seconds")
        }
    times = {key: value for key, value in logged.items() if key.endswith("/forward.step_time.current_seconds")}
    assert len(times) == 2
    assert all(re.fullmatch(r"test_step_small_1_[0-9a-f]{6}/forward\.step_time\.current_seconds", key) for key in times)
    assert all(0.002 <= value < 60 for value in times.values())
    assert [value for key, value in logged.items() if re.search(r"forward\.loss_nats_\w{6}\.current_nat$", key)] == [
        1.5
    ] * 2


@pytest.mark.long
def test_mlflow_gets_the_same(compared):
    calls, data = compared
    named = [name for name, _ in calls]
    assert named.count("set_experiment") == named.count("start_run") == named.count("end_run") == 1
    metrics = {values["key"]: values["value"] for name, values in calls if name == "log_metric"}
    assert metrics == of_tests(calls)
    assert len(metrics) > 30
    tags = {values["key"]: values["value"] for name, values in calls if name == "set_tag"}
    assert tags.items() >= {"machine": data["key"]["slug"], "torch": data["context"]["torch"]}.items()
    assert sum(key.endswith(".verdict") for key in tags) == 3
    (artifacts,) = [values for name, values in calls if name == "log_artifacts"]
    assert {"index.html", "run.json", "summary.md"} <= set(artifacts["files"])


@pytest.mark.long
def test_no_process_that_measures_imports_what_a_hook_does(compared):
    calls, _ = compared
    assert [values["module"] for name, values in calls if name == "import"] == ["mlflow", "wandb"]


@pytest.mark.long
@pytest.mark.parametrize("file", ["first.xml", "junit.xml"])
def test_junit_properties_are_in_the_file_of_either_family(project, compared, file):
    cases = project.cases(file)
    assert len(cases) == 3
    for name in ("test_step[small/1]", "test_step[small 1]"):
        properties = cases[name].properties
        assert properties["perf.verdict"] in ("missing", "unchanged", "inconclusive", "improved")
        assert 0.002 <= float(properties["perf.forward.step_time.current_seconds"]) < 60
        assert float(properties["perf.forward.loss (nats).current_nat"]) == 1.5
        assert properties["perf.report"] == "perf-report/index.html"
        if file == "junit.xml":
            documented = re.findall(r"`perf\.step_time\.(\w+)`", TEXT)
            assert len(documented) == 7
            assert {f"perf.forward.step_time.{part}" for part in documented} <= set(properties)
            assert 0.002 <= float(properties["perf.forward.step_time.baseline_seconds"]) < 60
            assert properties["perf.forward.step_time.limit"] == "10000%"
    assert cases["test_later"].outcome == "skipped"
