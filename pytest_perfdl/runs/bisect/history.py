"""The commits between a good and a bad end, in the order of the first-parent line."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pytest_perfdl.baseline.code import MODULE, MOST_BYTES
from pytest_perfdl.model.errors import InputError
from pytest_perfdl.system.git import (
    LOG_SECONDS,
    SUBMODULE,
    commit_of,
    cut_off,
    git,
    modified,
    names,
    read,
    says,
    top_of,
    trouble,
)
from pytest_perfdl.workers.checkout import is_installed

WORKING_TREE = "working tree"
"""What stands for the hash of uncommitted changes."""
_FORMAT = "%H%x1f%aI%x1f%s"
_SHORT = 9
_RECORD = re.compile(r"\x1e(?=[0-9a-f]{40,64}\x1f)")


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of the history: a commit, a merge with all that it brings, or the uncommitted changes."""

    sha: str
    """Full hash, or `WORKING_TREE`."""
    date: str = ""
    """Author date, ISO 8601; empty for the working tree."""
    subject: str = "uncommitted changes"
    files: tuple[str, ...] = ()
    """Paths that differ from the commit before it on the line, from the top of the repository."""

    @property
    def name(self) -> str:
        """The hash as people write it."""
        return self.sha if self.is_working_tree else self.sha[:_SHORT]

    @property
    def is_working_tree(self) -> bool:
        """Whether it is the uncommitted changes."""
        return self.sha == WORKING_TREE


@dataclass(frozen=True, slots=True)
class History:
    """The commits from the good end to the bad one."""

    top: Path
    """Top of the repository."""
    commits: tuple[Commit, ...]
    """The good end first, the bad one last; two at least."""
    notes: tuple[str, ...] = field(default=())
    """What is left out, one sentence each."""

    @property
    def good(self) -> Commit:
        """The good end."""
        return self.commits[0]

    @property
    def bad(self) -> Commit:
        """The bad end."""
        return self.commits[-1]

    @property
    def last(self) -> int:
        """Number of the bad end; the good end is 0."""
        return len(self.commits) - 1


def read_history(folder: Path, good: str, bad: str | None = None) -> History:
    """The commits after `good` up to `bad`, or up to the working tree.

    A merge is one commit, with everything that it brought. Uncommitted changes are the last commit if there is no
    `bad`.

    Raises
    ------
    InputError
        No repository, an unknown revision, a history that is cut off, or a bad end that does not follow the good one.
    """
    top = top_of(folder)
    if top is None:
        raise InputError(trouble(folder) or f"{folder} is in no git repository: run perfdl bisect in the project")
    first, last = _commit(top, good), _commit(top, bad or "HEAD")
    changed = _is_changed(top)
    commits = _line(top, first, last)
    notes: tuple[str, ...] = ()
    if bad is None and changed:
        commits.append(Commit(WORKING_TREE, files=tuple(modified(top, "HEAD"))))
        notes = ("the working tree has uncommitted changes, which are measured as the last commit",)
    elif changed:
        notes = (f"uncommitted changes are not measured: leave out {bad} to measure the working tree",)
    if len(commits) < 2:
        named = (
            f"{good} and {bad} are" if bad else f"{good} is HEAD, and the working tree has no changes: both ends are"
        )
        raise InputError(f"{named} the same commit {first[:_SHORT]}: name an earlier commit as GOOD")
    return History(top, tuple(commits), notes)


def undone(history: History, number: int) -> int | None:
    """The first commit after one at which all files that it changed are as before it; `None` if there is none.

    Where the bad end has the change again, this is a revert in between.
    """
    files = frozenset(history.commits[number].files)
    before = history.commits[number - 1].sha
    for later in range(number + 1, history.last):
        commit = history.commits[later]
        touches = not files.isdisjoint(commit.files)
        if touches and says(history.top, "diff", "--quiet", before, commit.sha, "--", *files):
            return later
    return None


def working_tree_state(top: Path) -> str:
    """A hash of the working tree's code, by which a later run knows whether it is still the same.

    It is of the content of all files that may differ from HEAD's: changed ones, those that git was told not to look at,
    new ones, modules that git ignores, and the same in submodules and repositories within.

    Raises
    ------
    GitError
    """
    state = hashlib.sha256()
    left = MOST_BYTES
    for path in _list_uncommitted(top):
        try:
            found = path.lstat()
            about = [str(path), oct(found.st_mode)]
            if path.is_symlink():
                about.append(str(path.readlink()))
            elif path.is_file() and found.st_size <= left:
                left -= found.st_size
                about.append(hashlib.sha256(path.read_bytes()).hexdigest())
            elif path.is_file():
                # Nobody can set the time at which a file's state changed.
                about += [str(found.st_size), str(found.st_ctime_ns)]
            else:
                about.append(git(path, "rev-parse", "HEAD") or "")
        except OSError as error:
            about = [str(path), str(error.errno)]
        state.update(b"".join(os.fsencode(each) + b"\0" for each in about))
    return state.hexdigest()[:16]


def _list_uncommitted(top: Path) -> list[Path]:
    """Files that may differ from HEAD's, and the folders of the repositories that they are in."""
    changed = modified(top, "HEAD") if commit_of(top, "HEAD") else []
    inside, unwatched = set(), []
    for line in names(top, "ls-files", "-s", "-v", "-z"):
        about, _, name = line.partition("\t")
        tag, mode = about.split()[:2]
        if mode == SUBMODULE:
            inside.add(name)
        elif tag != "H":
            unwatched.append(name)
    ignored = (
        name
        for name in names(top, "ls-files", "--others", "--ignored", "--exclude-standard", "-z")
        if name.endswith(MODULE) and not is_installed(top / name, top)
    )
    files = {*changed, *unwatched, *_list_untracked(top), *ignored}
    # A repository within that is no submodule is listed as a folder.
    inside |= {name.rstrip("/") for name in files if name.endswith("/")}
    below = (_list_uncommitted(top / name) for name in sorted(inside) if (top / name / ".git").exists())
    own = sorted(top / name for name in files - inside if not name.endswith("/"))
    return [top, *own, *itertools.chain.from_iterable(below)]


def _commit(top: Path, revision: str) -> str:
    if revision.startswith("-"):
        raise InputError(f"{revision!r} begins with a dash, so it is no git revision: name a commit, branch or tag")
    found = commit_of(top, revision)
    if found is None:
        why = trouble(top) or cut_off(top)
        raise InputError(f"no git revision {revision!r}{f' ({why})' if why else ''}")
    return found


def _line(top: Path, first: str, last: str) -> list[Commit]:
    """Both ends and what lies between them on the first-parent line."""
    if first != last and not says(top, "merge-base", "--is-ancestor", first, last):
        if why := cut_off(top):
            raise InputError(f"the history between {first[:_SHORT]} and {last[:_SHORT]} is not complete: {why}")
        if says(top, "merge-base", "--is-ancestor", last, first):
            raise InputError(f"{first[:_SHORT]} follows {last[:_SHORT]}: name the older commit first (GOOD BAD TEST)")
        raise InputError(
            f"{first[:_SHORT]} is not an ancestor of {last[:_SHORT]}: use their common ancestor "
            f"(git merge-base {first[:_SHORT]} {last[:_SHORT]}) as GOOD"
        )
    # One record a commit: its line, then the names of its files. Of a merge: what differs from the first parent.
    listed = read(
        top, "log", "--first-parent", "--reverse", "-m", "--name-only", "-z", f"--format=%x1e{_FORMAT}",
        f"{first}..{last}", "--", seconds=LOG_SECONDS,
    )  # fmt: skip
    found = [_read(record) for record in _RECORD.split(listed) if record.strip("\0\n")]
    parent = git(top, "rev-parse", f"{found[0].sha}^") if found else first
    if parent != first:
        raise InputError(
            f"{first[:_SHORT]} is not on the first-parent line of {last[:_SHORT]} (a merge brought it in): "
            f"use {(parent or '')[:_SHORT]} as GOOD"
        )
    head = _read(read(top, "log", "-1", f"--format={_FORMAT}", first, "--"))
    return [head, *found]


def _read(record: str) -> Commit:
    line, _, rest = record.partition("\0")
    sha, date, subject = line.strip("\n").split("\x1f", 2)
    # Behind a line end, each followed by NUL.
    return Commit(sha, date, subject.rstrip("\n"), tuple(filter(None, rest.removeprefix("\n").split("\0"))))


def _is_changed(top: Path) -> bool:
    """Whether the working tree has other code than its commit."""
    return bool(modified(top, "HEAD")) or any(name.endswith(".py") for name in _list_untracked(top))


def _list_untracked(top: Path) -> list[str]:
    return names(top, "ls-files", "--others", "--exclude-standard", "-z")
