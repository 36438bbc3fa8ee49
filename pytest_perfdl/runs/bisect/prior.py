"""How probable each commit is before it is measured, from the files and functions that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_perfdl.analysis.events.source_lines import FRAME
from pytest_perfdl.model.python_source import function_bodies
from pytest_perfdl.runs.bisect.history import Commit, History
from pytest_perfdl.runs.bisect.posterior import uniform
from pytest_perfdl.system.git import content

FUNCTION, FILE, DOCUMENTS = 20.0, 3.0, 0.1
"""Weight of a commit that changes a blamed function, another part of its file, and nothing but documents; else 1."""
UNIFORM = 0.25
"""Share that is divided evenly: no commit has less than a quarter of what it would have without a prior. A search
divides the probability by two with a commit, so a prior that misleads costs two more commits at most."""
_TEXTS = (".md", ".rst", ".txt", ".ipynb", ".png", ".svg")


@dataclass(frozen=True, slots=True)
class Blamed:
    """Where the causes of the whole change are: pairs of a file and a function's name."""

    functions: frozenset[tuple[str, str]]

    @property
    def files(self) -> frozenset[str]:
        """Their files, as the end of a path."""
        return frozenset(file for file, _ in self.functions)

    @classmethod
    def of(cls, blame: Iterable[Mapping[str, Any]], diffs: Iterable[Mapping[str, Any]]) -> Blamed:
        """From the causes and source diffs of the bad end against the good one."""
        found = {(str(each["file"]), str(each["function"]).rpartition(".")[2]) for each in diffs}
        for each in blame:
            if match := FRAME.fullmatch(str(each.get("line", ""))):
                found.add((match["path"], match["function"].rpartition(".")[2]))
        return cls(frozenset(found))


def prior_of(history: History, blamed: Blamed, laid_over: Iterable[str] = ()) -> tuple[float, ...]:
    """The probability of the commits 1 to n.

    Parameters
    ----------
    laid_over
        Files that every commit runs in the version of one of them, from the top of the repository: a commit that
        changes nothing else changes nothing that is measured.
    """
    same = frozenset(laid_over)
    weights = [
        _weight(history.top, before, commit, blamed, same)
        for before, commit in zip(history.commits, history.commits[1:], strict=False)
    ]
    return mixed(weights)


def mixed(weights: Sequence[float]) -> tuple[float, ...]:
    """Probabilities in proportion to weights, `UNIFORM` of them divided evenly.

    >>> [round(each, 3) for each in mixed([1, 1, 18])]
    [0.121, 0.121, 0.758]
    """
    even = uniform(len(weights))
    return tuple(
        UNIFORM * each + (1 - UNIFORM) * weight / sum(weights) for each, weight in zip(even, weights, strict=True)
    )


def _weight(top: Path, before: Commit, commit: Commit, blamed: Blamed, laid_over: frozenset[str]) -> float:
    code = [file for file in commit.files if file not in laid_over and not file.endswith(_TEXTS)]
    if not code:
        return DOCUMENTS
    touched = [file for file in code if any(_ends_with(file, each) for each in blamed.files)]
    if any(_changes(top, before, commit, file, blamed) for file in touched):
        return FUNCTION
    return FILE if touched else 1.0


def _changes(top: Path, before: Commit, commit: Commit, file: str, blamed: Blamed) -> bool:
    """Whether one of the blamed functions of a file is another after the commit."""
    names = {name for each, name in blamed.functions if _ends_with(file, each)}
    old, new = (
        {key: code for key, code in _functions(top, each, file).items() if key[1] in names} for each in (before, commit)
    )
    return old != new


def _functions(top: Path, commit: Commit, file: str) -> dict[tuple[str, str], list[str]]:
    if commit.is_working_tree:
        path = top / file
        return function_bodies(path.read_bytes()) if path.is_file() else {}
    return function_bodies(content(top, commit.sha, file) or b"")


def _ends_with(file: str, end: str) -> bool:
    """Whether a path is, or ends with, another: a line of a cause has a path from an entry of `sys.path`."""
    return file == end or file.endswith(f"/{end}")
