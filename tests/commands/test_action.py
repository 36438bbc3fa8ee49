"""The composite action and the workflows of docs/workflows, run step by step in bash.

Real are git with shallow clones, `perfdl`, and requests to a server that answers as GitHub's. `pip`, `pytest` and `gh`
are stand-ins.
"""

import json
import shutil

import pytest
import yaml
from commands.runner import Runner
from commands.shown import ROOT
from making import record, timed
from unit.ci.fake_github import REPOSITORY, TOKEN, FakeGitHub, running
from unit.ci.repositories import Hosted, git
from unit.report import runs

from pytest_perfdl.report import write_all

ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "perfdl" / "action.yml").read_text(encoding="utf-8"))
DEFAULTS = {name: each["default"] for name, each in ACTION["inputs"].items()}
INSTALLED = ["python", "-m", "pip", "install", "--disable-pip-version-check", "-e", ".", "pytest-perfdl"]
UPLOAD = next(
    step["uses"] for step in ACTION["runs"]["steps"] if step.get("uses", "").startswith("actions/upload-artifact@")
)
ARTIFACTS = {UPLOAD}
PULL = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_BASE_REF": "main", "GITHUB_REF": "refs/pull/7/merge"}


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    return Hosted(tmp_path_factory.mktemp("hosted") / "name", before=2, since=1, after=1)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a run with one regression, which the stand-in of pytest leaves."""
    folder = tmp_path_factory.mktemp("report") / "perf-report"
    test = "tests/t.py::test_a"
    new = runs.result("regressed", test, new=record({"step_time": timed(10)}, test=test))
    write_all(runs.run(new, runs.result("unchanged", "tests/t.py::test_b"), report_dir=folder))
    return folder


@pytest.fixture
def github():
    with running(FakeGitHub()) as served:
        yield served


@pytest.fixture
def job(tmp_path, github, hosted, report):
    """A function that runs the action with some inputs, as a step of the pull request's job."""

    def run(pytest_code=1, event=None, folder=".", **inputs):
        workspace = hosted.checkout(tmp_path / "workspace", "refs/pull/7/merge")
        (workspace / folder).mkdir(exist_ok=True)
        (tmp_path / "event.json").write_text(json.dumps(event or {"pull_request": {"number": 7}}))
        contexts = {"github": {"token": TOKEN}, "inputs": {}}
        runner = Runner(
            tmp_path / "runner",
            workspace,
            contexts,
            **PULL,
            GITHUB_API_URL=github.url,
            GITHUB_EVENT_PATH=str(tmp_path / "event.json"),
            GITHUB_REPOSITORY=REPOSITORY,
            GITHUB_RUN_ID="42",
            GITHUB_SERVER_URL="https://github.com",
            GITHUB_SHA=hosted.merge,
        )
        named = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert named.keys() <= DEFAULTS.keys()
        contexts["inputs"] = {name: runner.text(value) for name, value in {**DEFAULTS, **named}.items()}
        runner.program("python", "")
        write = f'mkdir -p "$(dirname "$3")"; cp -r \'{report}\' "$3"; ' if pytest_code < 2 else ""
        runner.program("pytest", f"{write}exit {pytest_code}")
        code, used = runner.run(ACTION["runs"]["steps"])
        outputs = {name: runner.text(each["value"]) for name, each in ACTION["outputs"].items()}
        return runner, code, dict(used), outputs

    return run


def test_it_measures_against_the_base_of_the_pull_request(job, hosted, github, tmp_path):
    runner, code, used, outputs = job()
    assert code == 1
    assert runner.calls == [
        INSTALLED,
        ["pytest", "--perf", "--perf-report", "perf-report", "--perf-against", hosted.left],
    ]
    path = str(tmp_path / "workspace" / "perf-report")
    counts = json.loads(outputs.pop("verdicts"))
    assert {verdict: number for verdict, number in counts.items() if number} == {"regressed": 1, "unchanged": 1}
    assert outputs == {"exit-code": "1", "failed": "1", "report": path}
    assert [given for name, given in used.items() if name.startswith("actions/setup-python@")] == [
        {"python-version": "3.12"}
    ]
    assert used[UPLOAD] == {"name": "perf-report", "path": path}
    assert github.requests == []
    assert git(tmp_path / "workspace", "rev-parse", "--is-shallow-repository") == "true"


@pytest.mark.long
def test_it_comments(job, github):
    runner, code, _, _ = job(comment=True)
    assert code == 1
    assert runner.output["Comment on the pull request"] == (
        f"comment on #7 created: https://github.com/{REPOSITORY}/pull/7#issuecomment-1000\n"
    )
    (comment,) = github.comments
    assert comment["body"].startswith("<!-- perfdl -->\n### ")
    assert all(TOKEN not in text for text in runner.output.values())


@pytest.mark.long
def test_a_fork_has_no_token_that_writes(job, github):
    github.may_write = False
    runner, code, used, _ = job(pytest_code=0, comment=True)
    assert code == 0
    assert runner.output["Comment on the pull request"].startswith(
        "::notice title=perf::no comment: the token of this job has no permission: "
    )
    assert used.keys() >= ARTIFACTS


def test_with_committed_baselines_it_fetches_the_history(job, tmp_path):
    runner, code, _, _ = job(pytest_code=0, against="", install="", python="")
    assert code == 0
    assert runner.calls == [["pytest", "--perf", "--perf-report", "perf-report"]]
    assert git(tmp_path / "workspace", "rev-parse", "--is-shallow-repository") == "false"


def test_a_commit_can_be_named(job, hosted):
    runner, _, _, _ = job(against="v1.0")
    assert runner.calls[-1][-2:] == ["--perf-against", hosted.main[0]]


def test_a_commit_that_is_not_there_ends_it_before_anything_is_measured(job):
    runner, code, used, outputs = job(against="nowhere", comment=True)
    assert code == 2
    assert runner.output["Fetch the commit to compare with"] == (
        "perfdl ci: git knows no commit nowhere, and cannot fetch one from origin\n"
    )
    assert runner.calls == [INSTALLED]
    assert set(outputs.values()) == {""}
    assert not used.keys() & ARTIFACTS


def test_arguments_have_quotes_and_run_nothing(job, tmp_path):
    args = "tests/perf -k \"gpt and not slow\" '$(touch evil)' `touch evil` ; touch evil"
    runner, _, _, _ = job(args=args, install='-e ".[test]" $(touch evil)')
    assert runner.calls[0][-4:] == ["-e", ".[test]", "$(touch", "evil)"]
    more = ["tests/perf", "-k", "gpt and not slow", "$(touch evil)", "`touch", "evil`", ";", "touch", "evil"]
    assert runner.calls[1][-len(more) :] == more
    assert not (tmp_path / "workspace" / "evil").exists()


def test_a_shard_has_an_artifact_of_its_own_and_no_comment(job, github):
    runner, _, used, _ = job(shard="2/4", comment=True, name="perf-gpu")
    assert runner.calls[-1][-2:] == ["--perf-shard", "2/4"]
    assert used[UPLOAD]["name"] == "perf-gpu-2"
    assert github.requests == []


def test_a_project_in_a_folder(job, tmp_path):
    runner, _, used, _ = job(folder="my project", working_directory="my project", report="out/perf report")
    path = str(tmp_path / "workspace" / "my project" / "out" / "perf report")
    assert runner.calls[1][3] == "out/perf report"
    assert used[UPLOAD]["path"] == path


def test_without_a_report_there_is_nothing_to_keep(job, github):
    _, code, used, outputs = job(pytest_code=4, comment=True)
    assert code == 4
    assert outputs == {"exit-code": "4", "failed": "", "report": "", "verdicts": ""}
    assert not used.keys() & ARTIFACTS
    assert github.requests == []


def workflow(name):
    data = yaml.safe_load((ROOT / "docs" / "workflows" / name).read_text(encoding="utf-8"))
    (job,) = data["jobs"].values()
    return data, job


def of_fork(hosted, **more):
    head = {"head_branch": "feature", "head_sha": hosted.feature[-1], "head_repository": {"full_name": "someone/name"}}
    return {"id": 41, "event": "pull_request", "conclusion": "failure", "pull_requests": [], **head, **more}


@pytest.mark.parametrize("is_newest", [True, False])
def test_the_second_workflow_comments_for_a_fork(is_newest, tmp_path, github, hosted, report):
    _, steps = workflow("perf-comment.yml")
    commit = hosted.feature[-1] if is_newest else "b" * 40
    owner = {"full_name": "someone/name", "owner": {"login": "someone"}}
    github.pulls = [{"number": 7, "head": {"repo": owner, "ref": "feature", "sha": commit}}]
    event = {"workflow_run": of_fork(hosted)}
    (tmp_path / "event.json").write_text(json.dumps(event))
    contexts = {"github": {"token": TOKEN, "event": event, "repository": REPOSITORY}}
    runner = Runner(
        tmp_path / "runner",
        tmp_path,
        contexts,
        GITHUB_API_URL=github.url,
        GITHUB_EVENT_NAME="workflow_run",
        GITHUB_EVENT_PATH=str(tmp_path / "event.json"),
        GITHUB_REPOSITORY=REPOSITORY,
        GITHUB_SERVER_URL="https://github.com",
    )
    runner.program("pip", "")
    shutil.copytree(report, tmp_path / "runner" / "temp" / "perf-report")
    # What an artifact says of the pull request it is from counts for nothing.
    (tmp_path / "runner" / "temp" / "perf-report" / "pr").write_text("8")
    assert runner.expression(steps["if"]) is True
    code, used = runner.run(steps["steps"])
    assert code == 0
    (download,) = [given for name, given in used if name.startswith("actions/download-artifact@")]
    assert download["run-id"] == "41"
    assert download["path"] == f"{tmp_path}/runner/temp/perf-report"
    if is_newest:
        assert f"https://github.com/{REPOSITORY}/actions/runs/41" in github.comments[0]["body"]
    else:
        assert github.comments == []


@pytest.mark.parametrize(
    "more", [{"event": "push"}, {"conclusion": "cancelled"}, {"head_repository": {"full_name": REPOSITORY}}]
)
def test_the_second_workflow_leaves_other_runs_alone(more, tmp_path, hosted):
    _, steps = workflow("perf-comment.yml")
    event = {"workflow_run": of_fork(hosted, **more)}
    runner = Runner(tmp_path / "runner", tmp_path, {"github": {"event": event, "repository": REPOSITORY}})
    assert runner.expression(steps["if"]) is False


@pytest.fixture
def accepting(tmp_path, hosted, report):
    """A function that runs the workflow that makes a baseline commit."""
    workspace = hosted.checkout(tmp_path / "workspace", "refs/heads/main")
    (workspace / "pytest.ini").write_text("[pytest]\nperf_dir = perf baselines\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "Settings")
    inputs = {"run-id": "41", "message": 'Slower, but right: "$(touch evil)"', "tests": ""}
    github = {"token": TOKEN, "server_url": "https://github.com", "repository": REPOSITORY}

    def run(number, **more):
        folder = tmp_path / f"runner{number}"
        runner = Runner(
            folder,
            workspace,
            {"github": github, "inputs": {**inputs, **more}},
            GITHUB_REF_NAME="main",
            GITHUB_RUN_ID=str(number),
        )
        runner.program("pip", "")
        runner.program("gh", "")
        shutil.copytree(report, folder / "temp" / "perf-report")
        code, _ = runner.run(workflow("perf-accept.yml")[1]["steps"])
        return runner, code

    return workspace, run


def test_an_artifact_becomes_a_commit_and_a_pull_request(accepting, hosted):
    workspace, run = accepting
    runner, code = run(50)
    assert code == 0, runner.output
    source = f"https://github.com/{REPOSITORY}/actions/runs/41"
    message = 'Slower, but right: "$(touch evil)"'
    branch = "perf-baselines-50"
    pull = {"--base": "main", "--head": branch, "--title": message, "--body": f"Baselines from {source}"}
    assert runner.calls[-1] == ["gh", "pr", "create", *(word for option in pull.items() for word in option)]
    assert git(hosted.folder, "log", "-1", "--format=%an|%B", branch) == (
        f"github-actions[bot]|{message}\n\nMeasured in {source}"
    )
    changed = git(hosted.folder, "diff", "--name-only", f"{branch}~1", branch)
    assert changed == "perf baselines/cpu-epyc-8c-1t/tests/t/test_a.json"
    assert not (workspace / "evil").exists()
    git(hosted.folder, "branch", "-D", branch)


@pytest.mark.long
def test_what_is_committed_already_opens_no_pull_request(accepting, hosted):
    _, run = accepting
    run(51)
    runner, code = run(52)
    assert code == 0
    assert [call for call in runner.calls if call[0] == "gh"] == []
    assert "These baselines are committed already." in "".join(runner.output.values())
    runner, code = run(53, tests="test_other")
    assert code == 3
    assert "nothing to accept" in "".join(runner.output.values())
    git(hosted.folder, "branch", "-D", "perf-baselines-51")


def test_the_script_for_any_ci(tmp_path, hosted, report):
    workspace = hosted.checkout(tmp_path / "workspace", "refs/heads/feature", depth=0)
    runner = Runner(tmp_path / "runner", workspace, {})
    script = ROOT / "docs" / "workflows" / "perf.sh"
    step = {"id": "script", "run": f"sh '{script}' -k 'gpt and not slow'"}
    runner.program("pytest", f"cp -r '{report}' perf-report; exit 1")
    assert runner.run([step])[0] == 1
    options = ["--perf-against", hosted.left, "--junitxml=junit.xml", "-k", "gpt and not slow"]
    assert runner.calls == [["pytest", *options]]
    git(workspace, "remote", "remove", "origin")
    assert runner.run([step])[0] == 2
    assert len(runner.calls) == 1
