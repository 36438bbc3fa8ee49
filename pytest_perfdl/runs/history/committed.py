"""The committed baselines of a project, at every commit that changed one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.baseline.text import LIMIT
from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import HistoryError, RecordError
from pytest_perfdl.model.visible import visible
from pytest_perfdl.results.history import SHORT
from pytest_perfdl.runs.history.measurements import Measurement, is_baseline, of_baseline
from pytest_perfdl.system.git import LOG_SECONDS, blobs, commit_of, git, modified, names, read, top_of, trouble

WORKING_TREE = "working tree"
"""What stands for the hash of a baseline that is not committed."""
_COMMIT = re.compile(r"\x1e(?=[0-9a-f]{40,64}\x1f)")
_GONE = re.compile(r"0+")
"""Hash of a file that a commit removed."""

Skip = Callable[[str], None]
"""Called with one line about a file that cannot be used."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A baseline file as one commit left it."""

    commit: str
    date: str
    subject: str
    path: str
    """From the top of the repository."""
    blob: str


def measurements(root: Path, folder: str, skip: Skip) -> Iterator[Measurement]:
    """Every baseline at every commit that changed it, the oldest first, then those that are not committed.

    The commits are those of the first-parent line of HEAD: a merge is one commit, with everything that it brings.

    Parameters
    ----------
    root, folder
        Root directory of the project and the folder of its baselines, relative to it or absolute.
    skip
        Called for files that cannot be used.

    Raises
    ------
    HistoryError
        There is no repository, or the folder is not in it.
    """
    base = (root / folder).resolve()
    top = top_of(root)
    if top is None:
        raise HistoryError(
            trouble(root) or f"{root} is in no git repository: name run files instead (perfdl history --runs FOLDER)"
        )
    if not base.is_relative_to(top.resolve()):
        raise HistoryError(f"the baselines folder {base} is not in the git repository {top}: set the folder with --dir")
    place = base.relative_to(top.resolve()).as_posix()
    if git(top, "rev-parse", "--is-shallow-repository") == "true":
        skip("this is a shallow clone, which lacks older commits: run git fetch --unshallow first")
    versions = _versions(top, place)
    for version, data in zip(versions, blobs(top, [each.blob for each in versions], LIMIT), strict=True):
        where = f"{version.commit[:SHORT]}:{visible(version.path)}"
        if data is None:
            skip(f"{where} cannot be read, or is larger than {untrusted_files.size(LIMIT)}: skipped")
            continue
        try:
            yield of_baseline(data, version.commit, version.date, version.subject)
        except RecordError as error:
            skip(f"{where} {error}: skipped")
    yield from _uncommitted(top, place, skip)


def _versions(top: Path, place: str) -> list[_Version]:
    if commit_of(top, "HEAD") is None:
        # Nothing is committed yet.
        return []
    listed = read(
        top,
        *("log", "--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "--no-renames", "-z"),
        *("--format=%x1e%H%x1f%aI%x1f%s", "HEAD", "--", place),
        seconds=LOG_SECONDS,
    )
    found = []
    for block in _COMMIT.split(listed):
        head, *rest = (part.lstrip("\n") for part in block.split("\0"))
        if "\x1f" not in head:
            continue
        commit, date, subject = head.split("\x1f", 2)
        changes = zip(rest[::2], rest[1::2], strict=False)
        for change, path in changes:
            # ":100644 100644 1a... 2b... M"
            blob = change.split()[3]
            if is_baseline(_inside(path, place)) and not _GONE.fullmatch(blob):
                found.append(_Version(commit, date, subject, path, blob))
    return found


def _uncommitted(top: Path, place: str, skip: Skip) -> Iterator[Measurement]:
    """Baselines whose files differ from those of HEAD, or that git does not know yet."""
    if commit_of(top, "HEAD"):
        known, old = [], modified(top, "HEAD", place)
    else:
        known, old = ["--cached"], []
    new = names(top, "ls-files", "--others", "--exclude-standard", "-z", *known, "--", place)
    for path in sorted({*old, *new}):
        if not is_baseline(_inside(path, place)) or not (top / path).is_file():
            continue
        try:
            yield of_baseline(untrusted_files.read_bytes(top / path, LIMIT), WORKING_TREE, "", "uncommitted baseline")
        except RecordError as error:
            skip(f"{visible(path)} {error}: skipped")
        except OSError as error:
            skip(f"{visible(path)} cannot be read: {error.strerror}: skipped")


def _inside(path: str, place: str) -> str:
    """The path of a file from the baselines folder."""
    return path if place == "." else path.removeprefix(f"{place}/")
