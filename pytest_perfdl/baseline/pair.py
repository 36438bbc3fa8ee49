"""Which commit holds the code that a baseline was recorded on.

A baseline is recorded before the commit that carries it, so the commit named in it is only its parent, without
the change that was meant. What tells is the hash of the code's tree, without the baselines, at recording time:
a commit with that tree is the baseline's code, whatever it is called (statistics.md, section 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.baseline.source import git, top_of, tree_of_commit, trouble
from pytest_perfdl.record import Record

_EARLIER = 10
"""How many earlier changes of a baseline's file are looked at."""


@dataclass(frozen=True, slots=True)
class BaselineCode:
    """A commit with the code of a baseline; without one, why there is none, as one line."""

    commit: str | None
    reason: str = ""


def code_of(base: Record, path: Path, root: Path, without: tuple[str, ...]) -> BaselineCode:
    """Find the commit that has the code of a baseline.

    Parameters
    ----------
    base, path
        The baseline and its file. With repeats of several occasions the last one's code counts.
    root
        Folder in the repository.
    without
        Folders that the recorded hash leaves out, relative to `root`.

    The candidates are the commit that last changed the file, the present one, the one it was recorded at, and those
    that changed the file before, under other names too: the first with the recorded tree is the one.
    """
    wanted = base.occasions[-1].tree
    if wanted is None:
        return BaselineCode(None, "the baseline does not say which code it was recorded on")
    if top_of(root) is None:
        return BaselineCode(None, trouble(root) or "there is no git repository")
    for commit in _candidates(base, path, root):
        if tree_of_commit(root, commit, without) == wanted:
            return BaselineCode(commit)
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        return BaselineCode(None, "the clone is shallow: fetch the whole history (fetch-depth: 0)")
    return BaselineCode(None, "no commit has the code that the baseline was recorded on")


def _candidates(base: Record, path: Path, root: Path) -> Iterator[str]:
    """Commits that may have a baseline's code, the likely ones first, each once."""
    seen: set[str] = set()
    asked: tuple[Callable[[], str | None], ...] = (
        lambda: git(root, "rev-list", "-1", "HEAD", "--", str(path)),
        lambda: git(root, "rev-parse", "--verify", "--quiet", "HEAD"),
        lambda: base.occasions[-1].commit,
        # A baseline that was moved is as it was recorded: only the folder's name is another.
        lambda: git(
            root, "-c", "log.showSignature=false", "log", "--follow", f"-{_EARLIER}", "--format=%H", "--", str(path)
        ),
    )
    for ask in asked:
        for commit in (ask() or "").split():
            if commit not in seen:
                seen.add(commit)
                yield commit
