"""What a job is for, from the variables and events of GitHub and GitLab."""

import json

import pytest

from pytest_perfdl.ci import job
from pytest_perfdl.ci.job import Base, Head
from pytest_perfdl.model.errors import CommandError

A, B, NONE = "a" * 40, "b" * 40, "0" * 40


@pytest.fixture
def with_event(tmp_path):
    def environ(told, **more):
        path = tmp_path / "event.json"
        path.write_text(told if isinstance(told, str) else json.dumps(told))
        return {"GITHUB_EVENT_PATH": str(path), **more}

    return environ


PULL = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_BASE_REF": "release/2", "GITHUB_SHA": A}


@pytest.mark.parametrize(
    "told, more, wanted",
    [
        ({}, {**PULL, "GITHUB_REF": "refs/pull/7/merge"}, Base("branch", "release/2", A)),
        ({}, {**PULL, "GITHUB_REF": "refs/heads/x"}, Base("branch", "release/2")),
        ({"before": B}, {"GITHUB_EVENT_NAME": "push"}, Base("revision", B)),
        ({"before": NONE}, {"GITHUB_EVENT_NAME": "push"}, Base("branch")),
        ({"before": "--upload-pack=x"}, {"GITHUB_EVENT_NAME": "push"}, Base("branch")),
        ({"merge_group": {"base_sha": B}}, {"GITHUB_EVENT_NAME": "merge_group"}, Base("revision", B)),
        ({"merge_group": B}, {"GITHUB_EVENT_NAME": "merge_group"}, Base("branch")),
        ({}, {"GITHUB_EVENT_NAME": "schedule"}, Base("branch")),
        ({}, {"CI_MERGE_REQUEST_DIFF_BASE_SHA": B}, Base("revision", B)),
        (
            {},
            {"CI_MERGE_REQUEST_TARGET_BRANCH_SHA": A, "CI_MERGE_REQUEST_DIFF_BASE_SHA": B},
            Base("revision", A),
        ),
        ({}, {"CI_COMMIT_BEFORE_SHA": B}, Base("revision", B)),
        ({}, {"CI_COMMIT_BEFORE_SHA": NONE}, Base("branch")),
    ],
)
def test_what_a_job_compares_with(told, more, wanted, with_event):
    assert job.base(with_event(told, **more)) == wanted


def test_outside_of_ci_it_is_the_default_branch():
    assert job.base({}) == Base("branch")
    assert job.event({}) == {}


@pytest.mark.parametrize("text", ["", "[]", "nul", "[" * 100_000])
def test_an_event_that_is_none_is_one_line(text, with_event):
    with pytest.raises(CommandError, match=r"^GITHUB_EVENT_PATH names .*event.json, which is not a JSON object$"):
        job.event(with_event(text))


def test_an_event_file_that_is_missing_or_too_large_is_one_line(with_event, monkeypatch):
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        job.event({"GITHUB_EVENT_PATH": "/nowhere"})
    monkeypatch.setattr(job, "EVENT_LIMIT", 10)
    with pytest.raises(CommandError, match="cannot be read: it is larger"):
        job.event(with_event({"before": A}))


@pytest.mark.parametrize(
    "told, number",
    [
        ({"pull_request": {"number": 7}}, 7),
        ({"issue": {"number": 7, "pull_request": {"url": "x"}}}, 7),
        ({"issue": {"number": 7}}, None),
        ({"pull_request": {"number": "7"}}, None),
        ({"pull_request": {"number": True}}, None),
        ({"pull_request": [7]}, None),
        ({"number": 7, "before": A}, None),
    ],
)
def test_the_number_of_a_pull_request(told, number):
    assert job.pull_request(told) == number


def finished(**more):
    return {
        "workflow_run": {
            "event": "pull_request",
            "head_branch": "main",
            "head_sha": A,
            "head_repository": {"full_name": "someone/name"},
            "pull_requests": [],
            **more,
        }
    }


def test_the_head_that_a_finished_run_has_measured():
    assert job.measured_head(finished()) == Head("someone/name", "main", A)
    assert job.measured_head(finished()).label == "someone:main"


@pytest.mark.parametrize(
    "more",
    [
        {"event": "push"},
        {"head_sha": "main"},
        {"head_branch": None},
        {"head_repository": None},
        {"head_repository": {"full_name": "../x/y"}},
    ],
)
def test_no_head_where_the_run_is_of_something_else(more):
    assert job.measured_head(finished(**more)) is None
    assert job.measured_head({}) is None


def test_addresses_are_those_of_the_server_and_of_the_run_that_measured(with_event):
    environ = with_event({}, GITHUB_SERVER_URL="https://github.example.org", GITHUB_RUN_ID="42")
    assert job.web_address("owner/name", environ) == "https://github.example.org/owner/name"
    assert job.run_address("owner/name", environ) == "https://github.example.org/owner/name/actions/runs/42"
    of_fork = {**environ, **with_event(finished(id=41))}
    assert job.run_address("owner/name", of_fork) == "https://github.example.org/owner/name/actions/runs/41"
    assert job.run_address("owner/name", {}) == job.web_address("owner/name", {}) == ""


@pytest.mark.parametrize(
    "name", ["", "name", "owner/name/more", "owner/na me", "owner/name\n", "../x", "owner/..", "ówner/x"]
)
def test_a_repository_is_an_owner_and_a_name(name):
    assert job.checked_repository("owner/my.name-2") == "owner/my.name-2"
    with pytest.raises(CommandError, match="set owner/name with --repo"):
        job.checked_repository(name)


def test_a_token_that_cannot_be_sent_is_not_shown():
    assert job.token({"GITHUB_TOKEN": "abc\n", "GH_TOKEN": "d"}) == "abc"
    assert job.token({"GH_TOKEN": "d"}) == "d"
    assert job.token({}) == ""
    with pytest.raises(CommandError) as refused:
        job.token({"GITHUB_TOKEN": "geheim\r\nX-Evil: 1"})
    assert "geheim" not in str(refused.value)
