"""What a CI system says about its job, in environment variables and in GitHub's event file.

The variables are documented at https://docs.github.com/actions/reference/workflows-and-actions/variables and
https://docs.gitlab.com/ci/variables/predefined_variables/. They come from the CI system, and are trusted; the event
file also holds names that contributors choose, such as those of branches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import CommandError

EVENT_LIMIT = 2**26
"""Bytes of an event file; GitHub's are at most 25 MB."""
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_COMMIT = re.compile(r"0+")
_TOKEN = re.compile(r"[!-~]{1,4096}")
_REPOSITORY = re.compile(r"(?!\.+/)[\w.-]{1,100}/(?!\.+\Z)[\w.-]{1,100}", re.ASCII)
_SERVER = re.compile(r"https?://[\w.:-]+")


@dataclass(frozen=True, slots=True)
class Base:
    """How to find the commit that a job compares with."""

    kind: Literal["branch", "revision"]
    """The merge base of HEAD and a branch of the remote, or a revision itself."""
    name: str = ""
    """The branch or revision; an empty branch is the remote's default branch."""
    merge: str = ""
    """Commit that merges the pull request into its base (full hash): where it is checked out, its first parent is the
    base, whatever was pushed to the branch since."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a pull request, as the event of a finished workflow run names it."""

    repository: str
    """`owner/name`; of a fork, that of the fork."""
    branch: str
    commit: str
    """Full hash."""

    @property
    def label(self) -> str:
        """`owner:branch`, by which GitHub's API finds pull requests."""
        return f"{self.repository.partition('/')[0]}:{self.branch}"


def event(environ: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """GitHub's event of this job; empty outside of GitHub Actions.

    Raises
    ------
    CommandError
        When the event file cannot be read, or is not a JSON object.
    """
    name = environ.get("GITHUB_EVENT_PATH", "")
    if not name:
        return {}
    try:
        data = json.loads(untrusted_files.read_bytes(Path(name), EVENT_LIMIT))
    except OSError as error:
        raise CommandError(f"GITHUB_EVENT_PATH names {name}, which cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise CommandError(f"GITHUB_EVENT_PATH names {name}, which is not a JSON object")
    return data


def base(environ: Mapping[str, str] = os.environ) -> Base:
    """The commit that this job should be compared with.

    A pull request is compared with the commit that it is merged into, a push with the commit before the push, and
    anything else with the default branch.

    Raises
    ------
    CommandError
        As of `event`.
    """
    told = event(environ)
    name = environ.get("GITHUB_EVENT_NAME", "")
    if name.startswith("pull_request"):
        # actions/checkout has checked out the merge of the pull request into its base, unless it was told otherwise.
        is_merge = environ.get("GITHUB_REF", "").endswith("/merge")
        merge = environ.get("GITHUB_SHA", "") if is_merge else ""
        return Base("branch", environ.get("GITHUB_BASE_REF", ""), merge)
    if name == "merge_group":
        return _before(_text(told, "merge_group", "base_sha"))
    if name == "push":
        return _before(_text(told, "before"))
    # GitLab: the target branch where the job runs on the merge with it, else where the merge request left it.
    for variable in ("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA"):
        if environ.get(variable):
            return Base("revision", environ[variable])
    return _before(environ.get("CI_COMMIT_BEFORE_SHA", ""))


def _before(commit: str) -> Base:
    """The commit before a push; the default branch for a new branch, of which zeros are told."""
    return Base("revision", commit) if _HASH.fullmatch(commit) and not _NO_COMMIT.fullmatch(commit) else Base("branch")


def repository(environ: Mapping[str, str] = os.environ) -> str:
    """The repository of this job, `owner/name`; empty outside of GitHub Actions."""
    return environ.get("GITHUB_REPOSITORY", "")


def token(environ: Mapping[str, str] = os.environ) -> str:
    """The token for GitHub's API; empty without one.

    Raises
    ------
    CommandError
        When it is something that cannot be sent; the message does not show it.
    """
    given = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    if given and not _TOKEN.fullmatch(given):
        raise CommandError("GITHUB_TOKEN is not a token: it contains spaces, line ends or letters beyond ASCII")
    return given


def checked_repository(name: str) -> str:
    """The name, if it is one.

    Raises
    ------
    CommandError
    """
    if not _REPOSITORY.fullmatch(name):
        raise CommandError(f"{name!r} is not the name of a repository: set owner/name with --repo")
    return name


def web_address(repository: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where a repository is on the web; empty outside of GitHub Actions."""
    server = environ.get("GITHUB_SERVER_URL", "")
    return f"{server}/{repository}" if _SERVER.fullmatch(server) else ""


def run_address(repository: str, environ: Mapping[str, str] = os.environ) -> str:
    """The page of the workflow run that measured; empty outside of GitHub Actions."""
    web = web_address(repository, environ)
    told = event(environ).get("workflow_run")
    number = str(told.get("id", "")) if isinstance(told, dict) else environ.get("GITHUB_RUN_ID", "")
    return f"{web}/actions/runs/{number}" if web and number.isascii() and number.isdigit() else ""


def pull_request(told: Mapping[str, Any]) -> int | None:
    """Number of the pull request that an event is about; `None` for other events.

    To the event of a comment, a pull request is an issue with a note that it is one.
    """
    about = told.get("pull_request")
    issue = told.get("issue")
    if about is None and isinstance(issue, dict) and issue.get("pull_request"):
        about = issue
    number = about.get("number") if isinstance(about, dict) else None
    return number if type(number) is int and number > 0 else None


def measured_head(told: Mapping[str, Any]) -> Head | None:
    """The head that a finished workflow run has measured, from a `workflow_run` event; `None` for other events.

    The run must be one of a pull request. Its `pull_requests` is empty for forks (github/docs#22501), and is not read.
    """
    if _text(told, "workflow_run", "event") != "pull_request":
        return None
    head = Head(
        repository=_text(told, "workflow_run", "head_repository", "full_name"),
        branch=_text(told, "workflow_run", "head_branch"),
        commit=_text(told, "workflow_run", "head_sha"),
    )
    is_whole = _REPOSITORY.fullmatch(head.repository) and head.branch and _HASH.fullmatch(head.commit)
    return head if is_whole else None


def _text(data: Any, *path: str) -> str:
    """A text within nested objects; empty where there is none."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, str) else ""
