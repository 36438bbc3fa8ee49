"""Which code a measurement ran on, as git knows it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl import folders, processes

GIT_SECONDS = 30
"""Longest that git may take; a tree that cannot be hashed in that time stays unknown."""

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

MADE_BY_PYTHON = ("__pycache__/**", "*.pyc", ".pytest_cache/**")
"""What running tests writes beside the code: a repository that does not ignore it yet has the same code without."""


@dataclass(frozen=True, slots=True)
class Source:
    """Commit and tree of the working copy; `None` where git does not know."""

    commit: str | None
    tree: str | None
    """Hash of all files that git does not ignore, as they are on disk, without the baseline folder and bytecode."""


def describe_source(root: Path, without: tuple[str, ...]) -> Source:
    """Commit and tree of the code under `root`, leaving out folders relative to it.

    The tree is written with an index and an object folder of its own, so the repository is not touched.
    """
    top = top_of(root)
    if top is None:
        return Source(None, None)
    commit = git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    with _own_index(root, start=True) as environment:
        if environment is None or git(top, "add", "--all", environment=environment) is None:
            return Source(commit, None)
        return Source(commit, _tree(root, top, without, environment))


@functools.cache
def tree_of_commit(root: Path, commit: str, without: tuple[str, ...]) -> str | None:
    """The tree that `describe_source` would have found on a clean checkout of a commit (full hash)."""
    if not _HASH.fullmatch(commit):
        # From a file it may be anything, an option that makes git write somewhere among it.
        return None
    top = top_of(root)
    with _own_index(root, start=False) as environment:
        if top is None or environment is None or git(top, "read-tree", commit, environment=environment) is None:
            return None
        return _tree(root, top, without, environment)


def commit_of(root: Path, revision: str) -> str | None:
    """The commit (full hash) that a revision names; `None` when git knows none of that name."""
    return git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")


def top_of(root: Path) -> Path | None:
    """Top folder of the repository that a folder is in; `None` outside one or without git."""
    top = git(root, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top)


@contextlib.contextmanager
def _own_index(root: Path, *, start: bool) -> Iterator[dict[str, str] | None]:
    """Environment in which git keeps index and new objects elsewhere; `start` from the real index."""
    git_folder = git(root, "rev-parse", "--absolute-git-dir")
    if git_folder is None:
        yield None
        return
    with folders.for_a_while("git") as scratch:
        index = scratch / "index"
        objects = scratch / "objects"
        objects.mkdir()
        if start and (Path(git_folder) / "index").is_file():
            # With the real index's cached states of files, only changed ones are read. Its time of change comes along:
            # by that git tells which of those states were taken in the same moment as a file was written.
            shutil.copy2(Path(git_folder) / "index", index)
        common = git(root, "rev-parse", "--git-path", "objects") or ""
        yield {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / common).resolve()),
        }


def _tree(root: Path, top: Path, without: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """Write the index's tree without some folders, and without what Python makes."""
    paths = [path for folder in without if (path := (root / folder).resolve()).is_relative_to(top)]
    left_out = [*map(str, paths), *(f":(top,glob)**/{pattern}" for pattern in MADE_BY_PYTHON)]
    git(top, "rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *left_out, environment=environment)
    return git(top, "write-tree", environment=environment)


def git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Output of a git command, `None` when git is missing, fails or takes too long.

    What is not UTF-8 is in surrogates, as in the names of files (`os.fsdecode`).
    """
    try:
        done = processes.run(
            ["git", *arguments],
            folder,
            seconds=GIT_SECONDS,
            environment={**os.environ, "GIT_TERMINAL_PROMPT": "0", **(environment or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.output.decode("utf-8", "surrogateescape").strip() if done.code == 0 else None
