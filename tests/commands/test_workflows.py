"""The workflows in the documentation are complete, and each of their commands is checked.

`pytest` and `perfdl` lines are parsed by the real parsers in test_commands_parse.py, and run by every_command.py.
"""

import re

import pytest
import yaml
from commands.shown import DOCUMENTS, ROOT, in_document
from commands.states import NOT_RUN


def all_blocks():
    """The YAML of every document, by its place; pieces of a file are lists or have no jobs."""
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for fence in re.finditer(r"(?ms)^```yaml\n(.*?)^```$", text):
            yield pytest.param(name, yaml.safe_load(fence[1]), id=f"{name}:{text[: fence.start()].count(chr(10)) + 1}")


BLOCKS = list(all_blocks())
WORKFLOWS = [each for each in BLOCKS if isinstance(each.values[1], dict) and "jobs" in each.values[1]]


def commands(value):
    """What a piece of YAML runs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("run", "entry"):
                yield inner
            else:
                yield from commands(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands(inner)


def test_four_documents_have_a_workflow():
    assert [each.values[0] for each in WORKFLOWS] == [
        "README.md",
        "docs/how-to/github-actions.md",
        "docs/how-to/gpu-runner.md",
        "docs/how-to/sharding.md",
    ]


@pytest.mark.parametrize("name, workflow", WORKFLOWS)
def test_a_workflow_is_whole(name, workflow):
    # YAML 1.1 reads the key `on` as a truth value.
    assert workflow.keys() >= {"name", True, "permissions", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    for job_name, job in workflow["jobs"].items():
        assert re.fullmatch(r"[a-z][a-z-]*", job_name)
        assert job["runs-on"]
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", each) for each in used)
        for step in job["steps"]:
            # Run again, a job of several would find its artifact there.
            if step.get("uses", "").startswith("actions/upload-artifact") and len(workflow["jobs"]) > 1:
                assert step["with"]["overwrite"] is True
    steps = next(iter(workflow["jobs"].values()))["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used[:2] == ["actions/checkout@v4", "actions/setup-python@v5"]
    assert steps[0]["with"] == {"fetch-depth": 0}
    # A bare 3.10 would be the number 3.1.
    assert isinstance(steps[1]["with"]["python-version"], str)
    ran = [step["run"] for step in steps if "run" in step]
    assert [each for each in ran if each.startswith("pip install") and each.endswith("-e . pytest-perfdl")]
    assert len([each for each in ran if re.match(r"pytest (-m perf )?--perf", each)]) == 1


def test_the_jobs_of_shards_are_joined():
    ((_, workflow),) = [each.values for each in WORKFLOWS if each.values[0] == "docs/how-to/sharding.md"]
    measure, report = workflow["jobs"].values()
    count = len(measure["strategy"]["matrix"]["shard"])
    assert measure["strategy"]["matrix"]["shard"] == list(range(1, count + 1))
    (step,) = [step for step in measure["steps"] if "--perf-shard" in step.get("run", "")]
    assert f'--perf-shard="$SHARD/{count}"' in step["run"]
    assert step["env"] == {"SHARD": "${{ matrix.shard }}"}
    (upload,) = [step["with"] for step in measure["steps"] if "upload" in step.get("uses", "")]
    (download,) = [step["with"] for step in report["steps"] if "download" in step.get("uses", "")]
    assert upload["name"] == download["pattern"].replace("*", "${{ matrix.shard }}")
    assert report["needs"] == "measure"
    assert f"perfdl merge {download['path']}/*" in [step.get("run") for step in report["steps"]]


@pytest.mark.parametrize("name, block", BLOCKS)
def test_every_command_of_a_workflow_is_run_or_parsed(name, block):
    shown = {each.text for each in in_document(name)}
    for command in commands(block):
        assert re.sub(r"\s+#\s.*$", "", command) in shown
        assert command in NOT_RUN or re.match(r"(pytest|perfdl) ", command), command
