"""Runs git: commits, trees, and the reason if git does not work."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_perfdl.system import folders, processes
from pytest_perfdl.system.processes import Finished

GIT_SECONDS = 30
"""Longest that git may take; a tree that cannot be hashed in that time stays unknown."""

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_GITHUB = re.compile(
    r"(?:https://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[\w.-]+@)(?P<host>(?:[\w-]+\.)*github(?:\.[\w-]+)+)(?::\d+)?[/:]"
    r"(?P<path>[\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
"""Addresses of remotes that git takes, with the host and the repository's path."""

_SETTINGS = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
"""What git says is looked at: in English. Nobody is there to type a password."""

MADE_BY_PYTHON = ("__pycache__/**", "*.pyc", ".pytest_cache/**")
"""What running tests writes beside the code: a repository that does not ignore it yet has the same code without."""


def trouble(root: Path) -> str:
    """Why git does not work in a folder, as it says itself; empty where there just is no repository."""
    done = run_git(root, "rev-parse", "--show-toplevel")
    if done is not None and (done.code == 0 or b"not a git repository" in done.errors):
        return ""
    return _said(done)


def _said(done: Finished | None) -> str:
    """What git says went wrong, and its advice, which comes last."""
    if done is None:
        return "git is not installed or does not answer"
    lines = [line.strip() for line in done.errors.decode(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines[-1:] or ["no message"]
    last = [] if lines[-1:] == wrong[:1] or not lines else lines[-1:]
    return ": ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in (*wrong[:1], *last))


@functools.cache
def tree_of_commit(root: Path, commit: str, without: tuple[str, ...]) -> str | None:
    """Hash of a commit's tree without some folders and what Python makes, as baselines had it; `None` where unknown.

    Parameters
    ----------
    root, without
        Folder in the repository, and folders that are left out, relative to it.
    commit
        Full hash.
    """
    if not _HASH.fullmatch(commit):
        # From a file it may be anything, an option that makes git write somewhere among it.
        return None
    top = top_of(root)
    with _own_index(root) as environment:
        if top is None or environment is None or git(top, "read-tree", commit, environment=environment) is None:
            return None
        return _tree(root, top, without, environment)


def commit_of(root: Path, revision: str) -> str | None:
    """The commit (full hash) that a revision names; `None` when git knows none of that name."""
    return git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")


def tree_of(root: Path, commit: str) -> str | None:
    """Hash of a commit's whole tree."""
    return git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")


def top_of(root: Path) -> Path | None:
    """Top folder of the repository that a folder is in; `None` outside one or without git."""
    top = git(root, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top)


def web_address(root: Path) -> str:
    """Where a repository is on GitHub, "https://github.com/owner/name", without user names or tokens.

    Empty for a folder that is not the top of its repository, and without a remote on a GitHub server.
    """
    if top_of(root) != root.resolve():
        return ""
    url = (git(root, "remote", "get-url", "origin") or "").strip()
    match = _GITHUB.fullmatch(url)
    return f"https://{match['host']}/{match['path']}" if match else ""


@contextlib.contextmanager
def _own_index(root: Path) -> Iterator[dict[str, str] | None]:
    """Environment in which git keeps index and new objects elsewhere."""
    git_folder = git(root, "rev-parse", "--absolute-git-dir")
    if git_folder is None:
        yield None
        return
    with folders.for_a_while("git") as scratch:
        index = scratch / "index"
        objects = scratch / "objects"
        objects.mkdir()
        common = git(root, "rev-parse", "--git-path", "objects") or ""
        yield {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / common).resolve()),
        }


def _tree(root: Path, top: Path, without: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """Write the index's tree without some folders, and without what Python makes."""
    left_out = [
        *(str(top / place) for place in inside(root, top, without)),
        *(f":(top,glob)**/{pattern}" for pattern in MADE_BY_PYTHON),
    ]
    git(top, "rm", "-r", "--cached", "--quiet", "--force", "--ignore-unmatch", "--", *left_out, environment=environment)
    return git(top, "write-tree", environment=environment)


def inside(root: Path, top: Path, folders: Iterable[str]) -> list[str]:
    """Those of some folders that lie in the repository, relative to its top."""
    places = [(root / folder).resolve() for folder in folders]
    return [place.relative_to(top).as_posix() for place in places if place.is_relative_to(top) and place != top]


def git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Output of a git command, `None` when git is missing, fails or takes too long.

    What is not UTF-8 is in surrogates, as in the names of files (`os.fsdecode`).
    """
    done = run_git(folder, *arguments, environment=environment)
    return done.output.decode("utf-8", "surrogateescape").strip() if done is not None and done.code == 0 else None


def asked(folder: Path, *arguments: str, given: Iterable[str]) -> str | None:
    """Output of a git command that reads lines; `None` as of `git`."""
    with folders.for_a_while("git") as scratch:
        lines = scratch / "given"
        lines.write_bytes(b"".join(os.fsencode(line) + b"\n" for line in given))
        done = _run(folder, ["/bin/sh", "-c", 'exec "$@" <"$0"', str(lines), "git", *arguments], None)
    return done.output.decode("utf-8", "surrogateescape") if done is not None and done.code == 0 else None


def blobs(folder: Path, hashes: Sequence[str], limit: int) -> Iterator[bytes | None]:
    """The contents of objects in their order, from one process of git; `None` for what is missing or larger.

    Contents are read one at a time, since all versions of a file may not fit into memory.
    """
    with folders.for_a_while("git") as scratch:
        given = scratch / "given"
        given.write_text("".join(f"{each}\n" for each in hashes), "ascii")
        with (
            given.open("rb") as lines,
            subprocess.Popen(
                ["git", "cat-file", "--batch"],
                cwd=folder,
                env={**os.environ, **_SETTINGS},
                stdin=lines,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for _ in hashes:
                    yield _object(process.stdout, limit)
            finally:
                process.kill()


def _object(stream: IO[bytes], limit: int) -> bytes | None:
    """The next object of `git cat-file --batch`: a line "hash type size", the content and a line end."""
    *_, size = stream.readline().split() or [b""]
    if not size.isdigit():
        return None
    data = stream.read(min(int(size), limit))
    left = int(size) - len(data)
    while left > 0 and (part := stream.read(min(left, 2**20))):
        left -= len(part)
    stream.read(1)
    return data if len(data) == int(size) else None


def run_git(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    apart: bool = False,
    seconds: float = GIT_SECONDS,
) -> Finished | None:
    """A git command that has ended; `None` when git is missing or takes too long.

    Parameters
    ----------
    environment
        Variables beside this process's.
    apart
        Without the variables of a commit in progress (GIT_INDEX_FILE and others), which are of another repository.
    """
    return _run(folder, ["git", *arguments], environment, apart=apart, seconds=seconds)


def environment_apart() -> dict[str, str]:
    """The variables of this process but git's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def _run(
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    *,
    apart: bool = False,
    seconds: float = GIT_SECONDS,
) -> Finished | None:
    inherited = environment_apart() if apart else os.environ
    try:
        return processes.run(
            command, folder, seconds=seconds, environment={**inherited, **_SETTINGS, **(environment or {})}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
