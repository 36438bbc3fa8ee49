"""What a CI system says about its job, and the commit that the job compares with."""

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
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.git import commit_of, git, is_shallow, merge_request_base, run_git, said, trouble

# What a CI system says about its job, in environment variables and in GitHub's event file.
#
# The variables are documented at https://docs.github.com/actions/reference/workflows-and-actions/variables and
# https://docs.gitlab.com/ci/variables/predefined_variables/. They come from the CI system, and are trusted; the event
# file also holds names that contributors choose, such as those of branches.


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
    if commit := merge_request_base(environ):
        return Base("revision", commit)
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


# The commit to compare with: found, and fetched where the clone of a CI job is shallow.


FETCH_SECONDS = 600
"""Longest that one fetch may take: repositories with long histories are large."""
DEEPENINGS = (50, 500, 5000)
"""Commits that a shallow clone is deepened by until HEAD and the branch meet; then everything is fetched."""
_REMOTE = "origin"


@dataclass(frozen=True, slots=True)
class Found:
    """The commit to compare with."""

    commit: str
    """Full hash."""
    why: str
    """What it is, as "merge base of HEAD and origin/main"."""


def find(folder: Path, base: Base) -> Found:
    """The commit to compare with, which is in the clone afterwards.

    A complete clone is never made shallow, and no branch is created or changed except those of the remote.

    Raises
    ------
    CommandError
        When there is no such commit, or it cannot be fetched.
    """
    head = commit_of(folder, "HEAD")
    if head is None:
        why = trouble(folder) or "run the command in a git repository that has commits"
        raise CommandError(f"there is no commit to compare: {why}")
    if base.kind == "revision":
        return _revision(folder, base.name)
    if base.merge == head:
        return Found(_parent(folder, head), "first parent of HEAD, which merges the pull request")
    return _meeting(folder, head, base.name)


def _revision(folder: Path, name: str) -> Found:
    if name.startswith("-") or not name.isprintable() or " " in name or not name:
        raise CommandError(f"{name!r} is not a git revision: give a branch, a tag or a commit")
    commit = commit_of(folder, name)
    if commit is None:
        depth = ("--depth=1",) if is_shallow(folder) else ()
        if any(_fetch(folder, *depth, _REMOTE, there) == "" for there in _on_remote(folder, name)):
            commit = commit_of(folder, "FETCH_HEAD")
        elif depth and _fetch(folder, "--unshallow", _REMOTE) == "":
            # HEAD~3 and v1.0^ are names that only this side knows.
            commit = commit_of(folder, name)
    if commit is None:
        raise CommandError(f"git knows no commit {visible(name)}, and cannot fetch one from {_REMOTE}")
    return Found(commit, visible(name))


def _on_remote(folder: Path, name: str) -> list[str]:
    """What a name may be on the remote: as whole names only, since git takes other texts for options or refspecs."""
    if _HASH.fullmatch(name):
        return [name]
    # A branch of the remote is named with the remote here and without it there.
    there = name.removeprefix(f"{_REMOTE}/")
    whole = [there] if there.startswith("refs/") else [f"refs/heads/{there}", f"refs/tags/{there}"]
    return [each for each in whole if _is_ref(folder, each)]


def _is_ref(folder: Path, name: str) -> bool:
    """Whether a text has the form of a branch's or tag's whole name."""
    return name.startswith("refs/") and git(folder, "check-ref-format", name) is not None


def _parent(folder: Path, head: str) -> str:
    parent = commit_of(folder, f"{head}^1")
    if parent is None and is_shallow(folder):
        wrong = _fetch(folder, "--depth=2", _REMOTE, head)
        if wrong:
            raise CommandError(f"the commit before HEAD cannot be fetched from {_REMOTE}: {wrong}")
        parent = commit_of(folder, f"{head}^1")
    if parent is None:
        raise CommandError("HEAD has no commit before it to compare with: name one, as `perfdl ci base REF`")
    return parent


def _meeting(folder: Path, head: str, branch: str) -> Found:
    """Where HEAD left a branch of the remote; the commit before HEAD if HEAD is on that branch."""
    branch = branch or _default_branch(folder)
    there = f"refs/remotes/{_REMOTE}/{branch}"
    if not _is_ref(folder, there):
        raise CommandError(f"{branch!r} is not the name of a branch")
    fetched = f"+refs/heads/{branch}:{there}"
    depth = ("--depth=1",) if is_shallow(folder) else ()
    wrong = _fetch(folder, *depth, _REMOTE, fetched)
    if wrong and commit_of(folder, there) is None:
        raise CommandError(f"the branch {visible(branch)} cannot be fetched from {_REMOTE}: {wrong}")
    for more in (*(f"--deepen={number}" for number in DEEPENINGS), "--unshallow"):
        if _meets(folder, head, there) or not is_shallow(folder):
            break
        # The server follows only what is asked for: HEAD is, too, where the server has it.
        if _fetch(folder, more, _REMOTE, fetched, head):
            _fetch(folder, more, _REMOTE, fetched)
    meeting = _meets(folder, head, there)
    if meeting is None:
        raise CommandError(f"HEAD and {_REMOTE}/{visible(branch)} have no common commit: name another branch or commit")
    if meeting == head:
        return Found(_parent(folder, head), f"commit before HEAD, which is on {_REMOTE}/{visible(branch)}")
    return Found(meeting, f"merge base of HEAD and {_REMOTE}/{visible(branch)}")


def _meets(folder: Path, head: str, there: str) -> str | None:
    return git(folder, "merge-base", head, there)


def _default_branch(folder: Path) -> str:
    """The branch that the remote's HEAD names, which a clone by hand knows and one of a CI job does not."""
    known = git(folder, "symbolic-ref", "--quiet", f"refs/remotes/{_REMOTE}/HEAD")
    if known:
        return known.removeprefix(f"refs/remotes/{_REMOTE}/")
    done = run_git(folder, "ls-remote", "--symref", _REMOTE, "HEAD", seconds=FETCH_SECONDS)
    match = re.match(rb"ref: refs/heads/(\S+)\s", done.output) if done is not None and done.code == 0 else None
    if match is None:
        raise CommandError(
            f"no commit to compare with: the repository has no remote {_REMOTE} with a default branch (name a commit, "
            "as `perfdl ci base REF`)"
        )
    return match[1].decode("utf-8", "surrogateescape")


def _fetch(folder: Path, *arguments: str) -> str:
    """Fetch; why that failed, in one line, or nothing."""
    done = run_git(folder, "fetch", "--quiet", "--no-tags", "--no-prune", *arguments, seconds=FETCH_SECONDS)
    # An address may hold a password.
    return "" if done is not None and done.code == 0 else re.sub(r"//[^@/\s]+@", "//", visible(said(done)))
