"""Runs git: commits, trees, and the reason if git does not work."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_perfdl.model.errors import GitError
from pytest_perfdl.system import folders, processes
from pytest_perfdl.system.processes import Finished

GIT_SECONDS = 30
"""Longest that git may take; a tree that cannot be hashed in that time stays unknown."""

FETCH_ALL = "git fetch --unshallow (in GitHub Actions fetch-depth: 0, in GitLab CI GIT_DEPTH: 0)"
"""What gives a shallow clone all commits."""

LOG_SECONDS = 300
"""Longest that git may take to list the commits of a large repository."""

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_GITHUB = re.compile(
    r"(?:https://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[\w.-]+@)(?P<host>(?:[\w-]+\.)*github(?:\.[\w-]+)+)(?::\d+)?[/:]"
    r"(?P<path>[\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
"""Addresses of remotes that git takes, with the host and the repository's path."""

_VARIABLES = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}
"""What git says is looked at: in English. Nobody is there to type a password. The user's index is only read, and a path
is just that."""
_NOT_INHERITED = frozenset(
    (
        *("GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS", "GIT_PAGER_IN_USE", "GIT_NOTES_REF"),
        *("GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
    )
)
"""Variables that change what a command prints, or which files it is for."""
_CONFIGURATION = {
    "color.ui": "false",
    "color.diff": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "core.splitIndex": "false",
    "core.untrackedCache": "false",
    "diff.algorithm": "myers",
    "diff.colorMoved": "no",
    "diff.context": "3",
    "diff.dstPrefix": "b/",
    "diff.indentHeuristic": "true",
    "diff.interHunkContext": "0",
    "diff.mnemonicPrefix": "false",
    "diff.noPrefix": "false",
    "diff.orderFile": os.devnull,
    "diff.relative": "false",
    "diff.renameLimit": "1000",
    "diff.renames": "false",
    "diff.srcPrefix": "a/",
    "diff.submodule": "short",
    "diff.suppressBlankEmpty": "false",
    "diff.wsErrorHighlight": "none",
    "fetch.pruneTags": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "i18n.logOutputEncoding": "UTF-8",
    "log.abbrevCommit": "false",
    "log.decorate": "false",
    "log.diffMerges": "separate",
    "log.follow": "false",
    "log.mailmap": "true",
    "log.showRoot": "true",
    "log.showSignature": "false",
    "maintenance.auto": "false",
    "safe.bareRepository": "all",
    "submodule.recurse": "false",
    "worktree.useRelativePaths": "false",
}
"""Settings that change what a command prints or writes, or start a program, at the values that this package reads.

What tells git how the repository is stored, reached and trusted (credentials, filters, line ends, ignored files,
`safe.directory`) stays the user's.
"""
_FIXED = (
    "--no-pager",
    *itertools.chain.from_iterable(("-c", f"{name}={_CONFIGURATION[name]}") for name in _CONFIGURATION),
)
_OF_THE_USER = (
    *("GIT_ASKPASS", "GIT_CEILING_DIRECTORIES", "GIT_CONFIG_", "GIT_DISCOVERY_", "GIT_HTTP_", "GIT_LFS_", "GIT_SSH"),
    "GIT_SSL_",
)
"""Beginnings of names of variables that are of any repository: how it is reached, trusted and configured."""
_OF_DIFFS = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--ignore-submodules=untracked")
"""Options of all commands that compare: settings of one driver or submodule have no single name to set."""
_COMPARING = ("diff", "diff-files", "diff-index", "diff-tree", "log", "show")

SUBMODULE = "160000"
"""Mode of a submodule in a tree or an index."""
_MOST_NAMES = 500
"""Names in one command line."""

MADE_BY_PYTHON = ("__pycache__/**", "*.pyc", ".pytest_cache/**")
"""What running tests writes beside the code: a repository that does not ignore it yet has the same code without."""


def trouble(root: Path) -> str:
    """Why git does not work in a folder, as it says itself; empty where there just is no repository."""
    done = run_git(root, "rev-parse", "--show-toplevel")
    if done is not None and (done.code == 0 or b"not a git repository" in done.errors):
        return ""
    return said(done)


def said(done: Finished | None) -> str:
    """What git says went wrong, and its advice, which comes last."""
    if done is None:
        return "git did not finish in time" if shutil.which("git") else "git is not installed"
    lines = [line.strip() for line in done.errors.decode(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines[-1:] or ["no message"]
    last = [] if lines[-1:] == wrong[:1] or not lines else lines[-1:]
    return ": ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in (*wrong[:1], *last))


def commit_of(root: Path, revision: str) -> str | None:
    """The commit (full hash) that a revision names; `None` when git knows none of that name.

    A name may be anybody's text: what begins with a dash would be an option, and "^main" would be its opposite.
    """
    if not revision or revision.startswith("-"):
        return None
    found = git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    return found if found is not None and _HASH.fullmatch(found) else None


def merge_request_base(environ: Mapping[str, str]) -> str:
    """The commit that GitLab's merge request is to be compared with (hash); empty outside of such a pipeline.

    It is the target branch where the job runs on the merge with it, else where the merge request left it
    (https://docs.gitlab.com/ci/variables/predefined_variables/).
    """
    variables = ("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA")
    return next(filter(None, map(environ.get, variables)), "")


def tree_of(root: Path, commit: str) -> str:
    """Hash of the whole tree of a commit (full hash).

    Raises
    ------
    GitError
        As of `read`: two commits that git cannot read have not the same tree.
    """
    return read(root, "rev-parse", "--verify", f"{commit}^{{tree}}").rstrip("\n")


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


def inside(root: Path, top: Path, folders: Iterable[str]) -> list[str]:
    """Those of some folders that lie in the repository, relative to its top."""
    places = [(root / folder).resolve() for folder in folders]
    return [place.relative_to(top).as_posix() for place in places if place.is_relative_to(top) and place != top]


def git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command, `None` when git is missing, fails or takes too long: for questions with a no.

    What is not UTF-8 is in surrogates, as in the names of files (`os.fsdecode`).
    """
    done = run_git(folder, *arguments)
    return os.fsdecode(done.output).rstrip("\n") if done is not None and done.code == 0 else None


def is_shallow(folder: Path) -> bool:
    """Whether a clone lacks the older commits."""
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"


def cut_off(folder: Path) -> str:
    """What to do about a clone that lacks the older commits; empty for a complete one."""
    return f"the clone is shallow: run {FETCH_ALL}" if is_shallow(folder) else ""


def read(
    folder: Path,
    *arguments: str,
    given: Iterable[str] | None = None,
    seconds: float = GIT_SECONDS,
) -> str:
    """Output of a git command whose failure is no answer, as of one that lists.

    Parameters
    ----------
    given
        Lines for its standard input.

    Raises
    ------
    GitError
        When git is missing, fails or takes too long, with what it says.
    """
    with contextlib.ExitStack() as stack:
        way: tuple[str, ...] = ()
        if given is not None:
            lines = stack.enter_context(folders.for_a_while("git")) / "given"
            lines.write_bytes(b"".join(os.fsencode(line) + b"\n" for line in given))
            way = ("/bin/sh", "-c", 'exec "$@" <"$0"', str(lines))
        done = _run(folder, [*way, *_command(arguments)], None, seconds=seconds)
    if done is None or done.code:
        raise GitError(f"git {arguments[0]} failed: {said(done)}")
    return os.fsdecode(done.output)


def names(folder: Path, *arguments: str) -> list[str]:
    """What a git command lists that ends each entry with NUL (`-z`).

    Raises
    ------
    GitError
        As of `read`.
    """
    return list(filter(None, read(folder, *arguments).split("\0")))


def says(folder: Path, *arguments: str) -> bool:
    """The answer of a git command that says yes (exit code 0) or no (1).

    Raises
    ------
    GitError
        When it says neither.
    """
    done = run_git(folder, *arguments)
    if done is None or done.code not in (0, 1):
        raise GitError(f"git {arguments[0]} failed: {said(done)}")
    return done.code == 0


def modified(top: Path, commit: str, *places: str) -> list[str]:
    """Files of the working tree that differ from a commit's, and submodules, by their names from the top.

    `git diff` would tell the same, but writes the user's index where files were only touched.

    Parameters
    ----------
    places
        Files or folders, from the top; all of the repository if there are none.

    Raises
    ------
    GitError
        As of `read`.
    """
    # ":100644 100644 1a... 0... M", then the name. Without a hash, the file's state differs, its content may not.
    listed = names(top, "diff-index", "-z", "--no-abbrev", commit, "--", *places)
    found, touched = [], {}
    for about, name in zip(listed[::2], listed[1::2], strict=True):
        before, now, hashed, new, _ = about[1:].split()
        if before == now and now != SUBMODULE and not new.strip("0"):
            touched[name] = hashed
        else:
            found.append(name)
    links = [name for name in touched if (top / name).is_symlink()]
    files = [name for name in touched if name not in links]
    same = {name for name in links if _hash_of(os.fsencode((top / name).readlink()), touched[name]) == touched[name]}
    for group in (files[start : start + _MOST_NAMES] for start in range(0, len(files), _MOST_NAMES)):
        hashes = read(top, "hash-object", "--", *group).split()
        same |= {name for name, each in zip(group, hashes, strict=True) if each == touched[name]}
    return sorted([*found, *(touched.keys() - same)])


def _hash_of(data: bytes, like: str) -> str:
    """What git calls a content, in a repository with hashes as long as another."""
    return hashlib.new("sha1" if len(like) == 40 else "sha256", b"blob %d\0" % len(data) + data).hexdigest()


def content(folder: Path, commit: str, name: str, limit: int = 2**28) -> bytes | None:
    """A file of a commit (full hash), without git's filters; `None` where there is none, or a larger one.

    Parameters
    ----------
    name
        Path from the folder.
    limit
        Bytes that it may have.

    Raises
    ------
    GitError
        As of `read`.
    """
    # "100644 blob 1a... 17", a tab and the name.
    for listed in names(folder, "ls-tree", "-z", "-l", commit, "--", name):
        _, kind, hashed, size = listed.partition("\t")[0].split()
        if kind == "blob" and int(size) <= limit:
            return os.fsencode(read(folder, "cat-file", "blob", hashed))
    return None


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
                _command(("cat-file", "--batch")),
                cwd=folder,
                env=_environment(os.environ),
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
    arguments
        The command and what is for it.
    environment
        Variables beside this process's.
    apart
        Without the variables of a commit in progress (GIT_INDEX_FILE and others), which are of another repository.
    """
    return _run(folder, _command(arguments), environment, apart=apart, seconds=seconds)


def environment_apart() -> dict[str, str]:
    """The variables of this process without those of a git command in progress, as in a hook."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_OF_THE_USER)
    }


def _command(arguments: Sequence[str]) -> list[str]:
    """The whole command line: every command of this package runs with the same settings."""
    name, *rest = arguments
    return ["git", *_FIXED, name, *(_OF_DIFFS if name in _COMPARING else ()), *rest]


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in inherited.items() if name not in _NOT_INHERITED} | _VARIABLES


def _run(
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    *,
    apart: bool = False,
    seconds: float = GIT_SECONDS,
) -> Finished | None:
    inherited = _environment(environment_apart() if apart else os.environ)
    if shutil.which("git") is None:
        # The shell that starts it would say so in words of its own.
        return None
    try:
        return processes.run(command, folder, seconds=seconds, environment={**inherited, **(environment or {})})
    except (OSError, ValueError, subprocess.TimeoutExpired):
        # A name with NUL is no argument, and no name of git's.
        return None
