"""Which code a measurement ran on, as git knows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS = 30
"""Longest that git may take; a tree that cannot be hashed in that time stays unknown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Commit and tree of the working copy; `None` where git does not know."""

    commit: str | None
    tree: str | None
    """Hash of all files that git does not ignore, as they are on disk, without the baseline folder."""


def describe_source(root: Path, without: tuple[str, ...]) -> Source:
    """Commit and tree of the code under `root`, leaving out folders relative to it.

    The tree is written with an index and an object folder of its own, so the repository is not touched.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None:
        return Source(None, None)
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    git_folder = _git(root, "rev-parse", "--absolute-git-dir")
    if git_folder is None:
        return Source(commit, None)
    with tempfile.TemporaryDirectory(prefix="perfdl-git-") as scratch:
        index = Path(scratch) / "index"
        objects = Path(scratch) / "objects"
        objects.mkdir()
        if (Path(git_folder) / "index").is_file():
            # With the real index's cached states of files, only changed ones are read.
            shutil.copyfile(Path(git_folder) / "index", index)
        common = _git(root, "rev-parse", "--git-path", "objects") or ""
        environment = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / common).resolve()),
        }
        excluded = [str((root / folder).resolve()) for folder in without]
        if _git(Path(top), "add", "--all", environment=environment) is None:
            return Source(commit, None)
        inside = [path for path in excluded if Path(path).is_relative_to(top)]
        for path in inside:
            _git(
                Path(top),
                "rm",
                "-r",
                "--cached",
                "--quiet",
                "--force",
                "--ignore-unmatch",
                path,
                environment=environment,
            )
        return Source(commit, _git(Path(top), "write-tree", environment=environment))


def _git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Output of a git command, `None` when git is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
