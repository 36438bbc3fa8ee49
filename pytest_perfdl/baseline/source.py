"""Which code a measurement ran on, as git knows it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl import folders, processes
from pytest_perfdl.processes import Finished
from pytest_perfdl.units import format_quantity

GIT_SECONDS = 30
"""Longest that git may take; a tree that cannot be hashed in that time stays unknown."""

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

MADE_BY_PYTHON = ("__pycache__/**", "*.pyc", ".pytest_cache/**")
"""What running tests writes beside the code: a repository that does not ignore it yet has the same code without."""


MOST_BYTES = 2**28
"""Most that is hashed of files that git does not know yet, or that changed since it did: about a second's work."""
_NAMED = 3
"""How many files a message names."""


@dataclass(frozen=True, slots=True)
class Source:
    """Commit and tree of the working copy; `None` where git does not know."""

    commit: str | None
    tree: str | None
    """Hash of all files that git does not ignore, as they are on disk, without the baseline folder and bytecode."""
    untracked: tuple[str, ...] = ()
    """Files in the tree that git does not know yet: no commit has that code until they are committed or ignored."""
    problem: str = ""
    """Why there is no tree, where there is a repository; for people."""
    index: Path | None = None
    """A git index of the tree's files, by which `is_as_before` knows them again."""

    @property
    def warning(self) -> str:
        """What a run that records must say: why its baselines are tied to no commit; empty where all is well."""
        if self.problem:
            return f"the baselines are tied to no commit, and times will be judged unpaired: {self.problem}"
        if not self.untracked:
            return ""
        return (
            f"the recorded code has files that git does not know ({some(self.untracked)}): commit them with the "
            "baselines, or ignore them (.gitignore) and record again; otherwise no commit has that code, and times "
            "will be judged unpaired"
        )


def some(names: Sequence[str]) -> str:
    """The first of several names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def describe_source(root: Path, without: tuple[str, ...], keep: Path | None = None) -> Source:
    """Commit and tree of the code under `root`, leaving out folders relative to it.

    The tree is written with an index and an object folder of its own, so the repository is not touched. The index
    becomes the file `keep`, if one is given.
    """
    top = top_of(root)
    if top is None:
        return Source(None, None, problem=trouble(root))
    commit = git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    untracked = _untracked(root, top, without)
    sizes = _sizes(top, (*untracked, *(git(top, "ls-files", "--modified", "-z") or "").split("\0")))
    if sum(sizes.values()) > MOST_BYTES:
        large = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
        named = ", ".join(f"{name} ({format_quantity(sizes[name], 'B')})" for name in large)
        return Source(commit, None, problem=f"too much to hash that git does not know yet: ignore {named}")
    with _own_index(root, start=True) as environment:
        if environment is None:
            return Source(commit, None, problem=trouble(root))
        # Nobody reads the objects: to compress them would be most of the work.
        done = run_git(top, "-c", "core.looseCompression=0", "add", "--all", environment=environment)
        if done is None or done.code:
            return Source(commit, None, problem=_said(done))
        tree = _tree(root, top, without, environment)
        if keep is not None:
            shutil.copy2(environment["GIT_INDEX_FILE"], keep)
    return Source(commit, tree, untracked, "" if tree else "git cannot write the tree", keep)


def is_as_before(root: Path, before: Source) -> bool:
    """Whether the files that a source was made of are as they were then; files that came later do not count."""
    top = top_of(root)
    if before.index is None or top is None:
        return before.tree is None
    environment = {"GIT_INDEX_FILE": str(before.index)}
    git(top, "update-index", "-q", "--refresh", environment=environment)
    done = run_git(top, "diff-files", "--quiet", "--ignore-submodules=dirty", environment=environment)
    return done is not None and done.code == 0


def _untracked(root: Path, top: Path, without: tuple[str, ...]) -> tuple[str, ...]:
    """Files that git neither knows nor ignores, but those that are no code; a repository within is one name."""
    left_out = [f":(top,exclude){place}" for place in _inside(root, top, without)]
    left_out += [f":(top,exclude,glob)**/{pattern}" for pattern in MADE_BY_PYTHON]
    listed = git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", ":(top)", *left_out)
    return tuple(sorted(filter(None, (listed or "").split("\0"))))


def _sizes(top: Path, names: Iterable[str]) -> dict[str, int]:
    """Sizes of files in bytes, without those that are gone."""
    found = {}
    for name in filter(None, names):
        with contextlib.suppress(OSError):
            found[name] = (top / name).lstat().st_size
    return found


def trouble(root: Path) -> str:
    """Why git does not work in a folder, as it says itself; empty where there just is no repository."""
    done = run_git(root, "rev-parse", "--show-toplevel")
    if done is not None and (done.code == 0 or b"not a git repository" in done.errors):
        return ""
    return _said(done)


def _said(done: Finished | None) -> str:
    """What git says went wrong, and its advice, which comes last."""
    if done is None:
        return "git is not installed, or takes too long"
    lines = [line.strip() for line in done.errors.decode(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines[-1:] or ["no message"]
    last = [] if lines[-1:] == wrong[:1] or not lines else lines[-1:]
    return ": ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in (*wrong[:1], *last))


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
    left_out = [
        *(str(top / place) for place in _inside(root, top, without)),
        *(f":(top,glob)**/{pattern}" for pattern in MADE_BY_PYTHON),
    ]
    git(top, "rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *left_out, environment=environment)
    return git(top, "write-tree", environment=environment)


def _inside(root: Path, top: Path, folders: Iterable[str]) -> list[str]:
    """Those of some folders that lie in the repository, relative to its top."""
    places = [(root / folder).resolve() for folder in folders]
    return [place.relative_to(top).as_posix() for place in places if place.is_relative_to(top) and place != top]


def git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Output of a git command, `None` when git is missing, fails or takes too long.

    What is not UTF-8 is in surrogates, as in the names of files (`os.fsdecode`).
    """
    done = run_git(folder, *arguments, environment=environment)
    return done.output.decode("utf-8", "surrogateescape").strip() if done is not None and done.code == 0 else None


def run_git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Finished | None:
    """A git command that has ended; `None` when git is missing or takes too long."""
    # What it says is looked at: in English. Nobody is there to type a password.
    settings = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        return processes.run(
            ["git", *arguments],
            folder,
            seconds=GIT_SECONDS,
            environment={**os.environ, **settings, **(environment or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
