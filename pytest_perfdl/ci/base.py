"""The commit to compare with: found, and fetched where the clone of a CI job is shallow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.ci.job import Base
from pytest_perfdl.model.errors import CommandError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.system.git import commit_of, git, run_git, said, trouble

FETCH_SECONDS = 600
"""Longest that one fetch may take: repositories with long histories are large."""
DEEPENINGS = (50, 500, 5000)
"""Commits that a shallow clone is deepened by until HEAD and the branch meet; then everything is fetched."""
_REMOTE = "origin"
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


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
        depth = ("--depth=1",) if _is_shallow(folder) else ()
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
    if parent is None and _is_shallow(folder):
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
    depth = ("--depth=1",) if _is_shallow(folder) else ()
    wrong = _fetch(folder, *depth, _REMOTE, fetched)
    if wrong and commit_of(folder, there) is None:
        raise CommandError(f"the branch {visible(branch)} cannot be fetched from {_REMOTE}: {wrong}")
    for more in (*(f"--deepen={number}" for number in DEEPENINGS), "--unshallow"):
        if _meets(folder, head, there) or not _is_shallow(folder):
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


def _is_shallow(folder: Path) -> bool:
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"


def _fetch(folder: Path, *arguments: str) -> str:
    """Fetch; why that failed, in one line, or nothing."""
    done = run_git(folder, "fetch", "--quiet", "--no-tags", "--no-prune", *arguments, seconds=FETCH_SECONDS)
    # An address may hold a password.
    return "" if done is not None and done.code == 0 else re.sub(r"//[^@/\s]+@", "//", visible(said(done)))
