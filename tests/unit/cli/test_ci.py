"""`perfdl ci`: what the steps of a job print, and how they end."""

import json
import subprocess
import sys

import pytest

from pytest_perfdl import cli
from pytest_perfdl.report import write_all
from unit.ci.fake_github import REPOSITORY, TOKEN, FakeGitHub, running
from unit.ci.repositories import Hosted
from unit.report import runs

EVENT = {"pull_request": {"number": 7}}


@pytest.fixture
def github():
    with running(FakeGitHub()) as served:
        yield served


@pytest.fixture
def job(tmp_path, monkeypatch, github):
    """A job of pull request 7, in a folder with a report; a function that gives it another event."""
    for name in ("GH_TOKEN", "GITHUB_SHA", "GITHUB_REF", "GITHUB_BASE_REF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": f"{github.url}/",
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_RUN_ID": "42",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    results = (runs.result(), runs.result("unchanged", "tests/test_y.py::test_y"))
    write_all(runs.run(*results, report_dir=tmp_path / "perf-report"))

    def told(event):
        (tmp_path / "event.json").write_text(json.dumps(event))

    told(EVENT)
    return told


def test_a_comment_is_created_and_updated(job, github, capsys):
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    assert cli.main(["ci", "comment", "perf-report/run.json"]) == 0
    address = f"https://github.com/{REPOSITORY}/pull/7#issuecomment-1000"
    assert capsys.readouterr().out.splitlines() == [
        f"comment on #7 created: {address}",
        f"comment on #7 unchanged: {address}",
    ]
    (comment,) = github.comments
    assert comment["body"].startswith("<!-- perfdl -->\n### ")
    assert f"[workflow run](https://github.com/{REPOSITORY}/actions/runs/42)" in comment["body"]


def test_each_artifact_has_a_comment(job, github):
    for name in ("perf-report", "perf-gpu", "perf-gpu"):
        assert cli.main(["ci", "comment", "perf-report", "--artifact", name]) == 0
    assert [each["body"].partition("\n")[0] for each in github.comments] == [
        "<!-- perfdl -->",
        "<!-- perfdl: perf-gpu -->",
    ]


def test_a_dry_run_prints_the_comment_and_asks_nobody(job, github, capsys, monkeypatch):
    assert cli.main(["ci", "comment", "perf-report", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    cli.main(["ci", "comment", "perf-report"])
    assert printed == github.comments[0]["body"]
    for name in ("GITHUB_TOKEN", "GITHUB_REPOSITORY", "GITHUB_EVENT_PATH", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name)
    capsys.readouterr()
    assert cli.main(["ci", "comment", "perf-report", "--dry-run"]) == 0
    assert capsys.readouterr().out == printed.partition("\n---\n")[0] + ("\n" if "\n---\n" not in printed else "")


def of_fork(**more):
    head = {"head_branch": "fix", "head_sha": "a" * 40, "head_repository": {"full_name": "someone/name"}}
    return {"workflow_run": {"id": 41, "event": "pull_request", "pull_requests": [], **head, **more}}


def test_the_pull_request_of_a_fork_is_found_by_its_head(job, github, capsys):
    head = {"repo": {"full_name": "someone/name", "owner": {"login": "someone"}}, "ref": "fix", "sha": "a" * 40}
    github.pulls = [{"number": 7, "head": head}]
    job(of_fork())
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    (comment,) = github.comments
    assert f"https://github.com/{REPOSITORY}/actions/runs/41" in comment["body"]
    assert "could change these numbers" in comment["body"]
    job(of_fork(head_sha="b" * 40))
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    why = "no open pull request has the measured commit bbbbbbbbbbbb as its newest commit"
    assert capsys.readouterr().out.splitlines()[-1] == f"::notice title=perf::no comment: {why}"
    assert len(github.comments) == 1


def test_without_permission_it_is_a_notice(job, github, capsys, monkeypatch):
    github.may_write = False
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("::notice title=perf::no comment: the token of this job has no permission: ")
    assert len(said.splitlines()) == 1
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    assert capsys.readouterr().out == said.replace("::notice title=perf::", "")


def test_without_a_token_or_a_pull_request_it_is_a_notice(job, github, capsys, monkeypatch):
    job({"before": "a" * 40})
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    assert "this job is not for a pull request (set its number with --pr)" in capsys.readouterr().out
    assert cli.main(["ci", "comment", "perf-report", "--pr", "7"]) == 0
    assert len(github.comments) == 1
    monkeypatch.setenv("GITHUB_TOKEN", "")
    assert cli.main(["ci", "comment", "perf-report"]) == 0
    assert "::notice title=perf::no comment: this job has no token in GITHUB_TOKEN" in capsys.readouterr().out


@pytest.mark.parametrize(
    "environ, arguments, said",
    [
        ({"GITHUB_TOKEN": "", "GITHUB_ACTIONS": ""}, [], "there is no token: set GITHUB_TOKEN, or print the comment"),
        ({"GITHUB_TOKEN": "geheim x"}, [], "GITHUB_TOKEN is not a token: it contains spaces"),
        ({"GITHUB_TOKEN": "geheim"}, [], "GET /user: 401 Bad credentials"),
        ({"GITHUB_REPOSITORY": ""}, [], "'' is not the name of a repository: set owner/name with --repo"),
        ({}, ["--repo", "a/b?c"], "'a/b?c' is not the name of a repository"),
        ({}, ["--pr", "8"], f"GET /repos/{REPOSITORY}/issues/8/comments: 404 Not Found"),
        ({}, ["--artifact", "x-->"], "--artifact 'x-->': use letters"),
        ({"GITHUB_EVENT_PATH": "/nowhere"}, [], "GITHUB_EVENT_PATH names /nowhere, which cannot be read"),
        ({"GITHUB_API_URL": "file:///etc"}, [], "GITHUB_API_URL is not an address: file:///etc"),
    ],
)
def test_what_cannot_be_done_is_one_line(environ, arguments, said, job, capsys, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["ci", "comment", "perf-report", *arguments]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"perfdl ci: {said}")
    assert "geheim" not in printed.out + printed.err
    assert TOKEN not in printed.out + printed.err


def test_a_damaged_artifact_is_one_line_and_no_comment(job, github, tmp_path, capsys):
    (tmp_path / "perf-report" / "run.json").write_text('{"schema": 1, "tests": [{"id": 1}]}')
    for action in ("comment", "outputs"):
        assert cli.main(["ci", action, "perf-report"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert github.requests == []


@pytest.mark.parametrize("number", ["0", "-1", "7x", "٧", "9" * 5000])
def test_a_number_that_is_none(number, job, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["ci", "comment", "perf-report", f"--pr={number}"])
    assert ended.value.code == 2
    assert "is not the number of a pull request" in capsys.readouterr().err


def test_outputs_are_lines_for_later_steps(job, tmp_path, capsys):
    assert cli.main(["ci", "outputs", "perf-report"]) == 0
    lines = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == {"report", "failed", "verdicts"}
    assert (lines["report"], lines["failed"]) == (str(tmp_path / "perf-report"), "1")
    counts = json.loads(lines["verdicts"])
    assert {verdict: number for verdict, number in counts.items() if number} == {"regressed": 1, "unchanged": 1}
    assert counts["improved"] == 0


def test_only_the_commit_is_on_stdout(tmp_path, monkeypatch, capsys):
    hosted = Hosted(tmp_path / "name")
    monkeypatch.chdir(hosted.checkout(tmp_path / "job", "refs/pull/7/merge"))
    for name, value in {
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_BASE_REF": "main",
        "GITHUB_SHA": hosted.merge,
        "GITHUB_REF": "refs/pull/7/merge",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GITHUB_EVENT_PATH", raising=False)
    assert cli.main(["ci", "base"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{hosted.left}\n"
    assert printed.err == (f"compare with {hosted.left[:12]}: first parent of HEAD, which merges the pull request\n")
    assert cli.main(["ci", "base", "v1.0"]) == 0
    assert capsys.readouterr().out == f"{hosted.main[0]}\n"
    assert cli.main(["ci", "base", "nowhere"]) == 2
    assert capsys.readouterr() == (
        "",
        "perfdl ci: git knows no commit nowhere, and cannot fetch one from origin\n",
    )


def test_none_of_it_is_loaded_with_the_command():
    code = "import sys; from pytest_perfdl import cli; cli._load('ci'); print('urllib.request' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
