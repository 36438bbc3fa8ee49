"""`loops`: a step too short to be timed is called several times, and everything is reported for one call."""

import json
import subprocess

import pytest
from plugin.project import SHORT

RECORD = ("--perf-update", "--perf-repeats=2", *SHORT)
TEST = """
    import pytest

    class Calls:
        number = 0

    def step():
        Calls.number += 1

    {mark}
    def test_step(perf):
        perf(step)
"""


def plan(project):
    return json.loads(project.baseline("test_step").read_text())["plan"]


@pytest.mark.long
def test_a_short_step_has_loops_suggested_which_then_are_calibrated_once(project):
    project.write("test_speed.py", TEST.format(mark="@pytest.mark.perf"))
    recorded = project.run(*RECORD)

    assert recorded.code == 0, recorded.output
    assert "too short for accurate timing" in recorded.output
    assert 'use @pytest.mark.perf(loops="auto")' in " ".join(recorded.output.split())
    assert "loops" not in plan(project)
    checked = project.run("--perf", "--perf-fail-on=invalid", *SHORT)
    assert "too short" not in checked.output
    assert "too short" in project.run("--perf", "--perf-fail-on=invalid", "-v", *SHORT).output

    project.write("test_speed.py", TEST.format(mark="@pytest.mark.perf(loops='auto')"))
    outdated = project.run("--perf", *SHORT)
    assert outdated.code == 1, "the test's source changed"

    recorded = project.run(*RECORD)
    assert "too short" not in recorded.output
    number = plan(project)["loops"][""]
    assert number >= 128
    assert number & (number - 1) == 0, "a power of two"
    metrics = json.loads(project.baseline("test_step").read_text())["calls"][0]["metrics"]
    assert max(metrics["step_time"]["values"]) < 100_000 / number * 8, "of one call"

    # Another number in the baseline is the one that is used.
    record = json.loads(project.baseline("test_step").read_text())
    record["plan"]["loops"] = {"": 512}
    project.baseline("test_step").write_text(json.dumps(record))
    project.write("test_speed.py", TEST.format(mark="@pytest.mark.perf(loops='auto')"))
    checked = project.run("--perf", "--perf-fail-on=invalid,outdated", "--perf-json=run.json", *SHORT)
    assert checked.code == 0, checked.output
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert test["record"]["plan"]["loops"] == {"": 512}


@pytest.mark.long
def test_the_ini_file_s_number_is_part_of_the_plan(project):
    project.write("test_speed.py", TEST.format(mark="@pytest.mark.perf"))
    project.ini("perf_loops = 300")
    assert project.run(*RECORD).code == 0
    assert plan(project)["loops"] == {"": 300}

    project.ini("perf_loops = 400")
    changed = project.run("--perf", *SHORT)
    assert changed.code == 1
    assert "loops 300 -> 400" in changed.output


@pytest.mark.long
def test_paired_rounds_measure_both_sides_with_one_number(project):
    project.write("test_speed.py", TEST.format(mark="@pytest.mark.perf(loops='auto')"))
    project.write(".gitignore", "output-*\n__pycache__/\n")
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Tests"]):
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *named, *arguments], cwd=project.root, check=True, capture_output=True)
    project.run("--perf-against=HEAD", "--perf-budget=12", "--perf-fail-on=invalid", "--perf-json=run.json", *SHORT)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    number = test["record"]["plan"]["loops"][""]
    step = test["metrics"]["step_time"]

    assert number >= 128
    assert test["base_record"]["plan"]["loops"] == {"": number}
    assert step["rounds"] >= 1
    assert max(step["base"], step["new"]) < 100_000 / number * 8, "of one call"


FORMS = {
    "perf.steps(...)": "for _ in perf.steps([1]): pass",
    "perf.step()": "while perf.step(): pass",
    "setup=": "perf(int, setup=lambda: None)",
    "period=": "perf(int, period=2)",
}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_cannot_be_looped_is_refused_in_one_line(project, form):
    project.write(
        "test_speed.py",
        f"""
        import pytest

        @pytest.mark.perf(loops=4)
        def test_step(perf):
            {FORMS[form]}
        """,
    )
    refused = project.run("--perf", *SHORT)

    assert refused.code == 1
    assert f"which is not possible with {form}: remove loops" in " ".join(refused.output.split())
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_number_that_is_none_is_refused(inner, value):
    inner.makeini(f"[pytest]\nperf_loops = {value}")
    assert inner.runpytest_inprocess("--perf").ret == 4
