"""A waiver from the day that it is written to the day that it ends."""

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
from plugin.project import SHORT

TEST = """
    import os

    import pytest


    @pytest.mark.perf(limits={"ops": 0, "step_time": "off", "block_time": "off", "per_kernel": "off"})
    def test_step(perf):
        import torch

        def step():
            for _ in range(10 + int(os.environ.get("MORE", "0"))):
                torch.ones(3)

        perf(step)
"""
WAIVER = """
[[waiver]]
test = "test_speed.py::*"
metric = "ops"
limit = "30%"
until = {until}
why = "ones are needed"
who = "ana"
"""
SECRET = "s3cr3t" + "V4lue0123456789"
"""No such text is in a file."""
LATER, BEFORE = "2099-12-31", "2020-01-31"


def git(root, *words):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=root, check=True, capture_output=True
    )


def fits(name, data):
    schemas = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas"
    jsonschema.Draft202012Validator(json.loads((schemas / f"{name}.json").read_text())).validate(data)


@pytest.mark.long
def test_a_waived_regression_passes_until_it_gets_worse_or_the_waiver_expires(project):
    project.write("test_speed.py", TEST)
    (project.root / ".gitignore").write_text("perf-report/\n*.xml\noutput-*\n__pycache__/\n")
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    assert project.run("--perf-update", "--perf-repeats=1", *SHORT).code == 0
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "recorded")
    options = ("--perf", "--perf-memory=off", "--perf-traces=none", *SHORT)
    failed = project.run(*options, MORE="2")
    assert failed.code == 1
    assert "limit 0" in failed.output

    project.write("perf_waivers.toml", WAIVER.format(until=LATER))
    git(project.root, "remote", "add", "origin", f"https://user:{SECRET}@github.com/owner/name.git")
    secrets = {"GITHUB_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": SECRET}
    passed = project.run(
        *options,
        "--junitxml=junit.xml",
        "-v",
        "-o",
        f"log_file_date_format={SECRET}",
        MORE="2",
        GITHUB_ACTIONS="true",
        **secrets,
    )
    assert passed.code == 0, passed.output
    assert "PERF WAIVED" in passed.output
    assert "1 compared: 1 waived." in passed.output
    phrase = "waived up to 30% until 2099-12-31 by ana: ones are needed"
    summary = passed.output.partition("perf summary")[2].split("\n", 1)[1]
    assert " ".join(summary.split()).startswith(
        f"waiver added by the current change: test_speed.py::*, ops {phrase}"
    ), summary
    assert "::warning file=test_speed.py" in passed.output
    assert project.cases()["test_step"].properties["perf.ops.waiver"] == phrase
    run = json.loads((project.root / "perf-report" / "run.json").read_text())
    (test,) = run["tests"]
    assert (test["verdict"], test["metrics"]["ops"]["verdict"], test["fails"]) == ("waived", "regressed", False)
    assert run["waivers"]["waivers"][0]["added"] is True
    fits("run", run)
    fits("baseline", json.loads(project.baseline("test_step").read_text()))
    assert phrase in (project.root / "perf-report" / "index.html").read_text()

    assert run["repository"] == "https://github.com/owner/name"
    written = [path for path in project.root.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert len(written) > 5
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []

    worse = project.run(*options, MORE="5")
    assert worse.code == 1
    assert "worse than the waiver of ana allows (30%, 2099-12-31)" in " ".join(worse.output.split())

    project.write("perf_waivers.toml", WAIVER.format(until=BEFORE) + WAIVER.format(until=LATER).replace("_speed", "_x"))
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "waivers")
    expired = project.run(*options, MORE="2")
    flat = " ".join(expired.output.split())
    assert expired.code == 1
    assert "waiver expired on 2020-01-31: test_speed.py::* (by ana: ones are needed); remove it from" in flat
    assert "the waiver of ana expired on 2020-01-31 (ones are needed)" in flat
    assert "waiver without a perf test in perf_waivers.toml: test_x.py::*" in flat
    assert "added by the current change" not in flat


@pytest.mark.long
def test_a_bad_file_ends_pytest_with_one_line_before_anything_is_measured(project):
    project.write("test_speed.py", TEST)
    project.write("perf_waivers.toml", WAIVER.format(until='"soon"'))
    done = project.run("--perf", *SHORT)
    assert done.code == 4
    assert done.line("until").startswith("ERROR: perf_waivers.toml: waiver 1: until is not a date: expected a date")
    project.ini("perf_waivers = none.toml")
    done = project.run("--perf", *SHORT)
    assert done.code == 4
    assert "none.toml is not a file: create it, or change perf_waivers in the ini file" in done.output
