"""The code with which a test was measured: the repository's files that it loaded or read, by content.

The hash of a whole tree would change with every file, even one that the test never uses. So every file has its git
hash: of its content after git's filters (line ends, large file storage), as in the trees of commits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_perfdl.model.record import SHORT_HASH, Code
from pytest_perfdl.model.record_json import PATH
from pytest_perfdl.system.distributions import packages
from pytest_perfdl.system.git import MADE_BY_PYTHON, SUBMODULE, git, inside, modified
from pytest_perfdl.system.git import names as listed

MOST_FILES = 1000
"""Files that a baseline names: modules first, then data, each by name."""
MOST_BYTES = 2**28
"""Most that is hashed of files that git does not know yet, or that changed since it did: about a second's work."""
_IGNORED = 100
"""Ignored files that a baseline names."""
_MOST_UNNOTED = 20
"""Files that were opened without being noted, as many as may be taken for the test's."""
MODULE = (".py", ".pyi", ".so", ".pyd", ".ini", ".toml", ".cfg")
"""Ends of names of what is code rather than data."""


@dataclass(frozen=True, slots=True)
class MeasuredCode:
    """The code of a measurement, and what is odd about it."""

    code: Code
    unknown: tuple[str, ...] = ()
    """Files that git does not know yet: no commit has that code until they are committed."""
    changed: tuple[str, ...] = ()
    """Files that changed since the run began."""


def measured_code(
    top: Path,
    names: Iterable[str],
    imported: Iterable[str],
    *,
    without: Iterable[Path] = (),
    unnoted: Iterable[str] | None = (),
    commit: str | None = None,
    since_ns: int | None = None,
) -> MeasuredCode:
    """Describe the code of a test by what it loaded and read.

    Parameters
    ----------
    top
        Top of the repository.
    names
        Paths of files from there, with `/`.
    imported
        Top-level names of the modules from outside the repository.
    without
        Folders of which nothing counts: baselines, reports.
    unnoted
        Paths of files that were opened, by whomever, and are not among `names`; `None` if that is unknown. A few that
        git knows are taken for the test's.
    commit, since_ns
        The commit that was checked out when the run began, and when that was (`time.time_ns`): what changed later is
        named. A file whose state changed, but whose content is that commit's, was only touched.
    """
    elsewhere = tuple(f"{place}/" for place in inside(top, top, map(str, without)))
    index = _index(top)
    links = [name for name, (mode, *_) in index.items() if mode == SUBMODULE]
    used, opened = ({each for each in given if _is_code(each)} for given in (names, unnoted or ()))
    used, opened = ({each for each in given if not each.startswith(elsewhere)} for given in (used, opened))
    if since_ns is not None:
        opened = {name for name in opened if name in index or changed_ns(top / name) <= since_ns}
    known_to_git = {name for name in opened if name in index or name.startswith(tuple(f"{link}/" for link in links))}
    # Whoever opens more looks through the folder: an editor, a search.
    used |= known_to_git if len(known_to_git - used) <= _MOST_UNNOTED else set()
    seen = sorted(used, key=_order)
    named = [name for name in seen if re.search(PATH, name) and name.isprintable()][:MOST_FILES]
    below = {link for link in links if any(name.startswith(f"{link}/") for name in named)}
    heads = {
        link: _head(top / link, [name[len(link) + 1 :] for name in named if name.startswith(f"{link}/")])
        for link in below
    }
    files = {link: found[:SHORT_HASH] for link, found in heads.items() if found}
    own = [name for name in named if not any(name.startswith(f"{link}/") for link in below)]
    known, others = [name for name in own if name in index], [name for name in own if name not in index]
    fresh = set() if since_ns is None else {name for name in own if changed_ns(top / name) > since_ns}
    # A file that is no module and came while the run went on was written by it: no code.
    unknown = [name for name in _unknown(top, others) if name not in fresh or name.endswith(MODULE)]
    ignored = [name for name in others if name not in unknown and name not in fresh]
    # Git does not look at files that it was told to take as unchanged.
    dirty = {*_dirty(top, known), *(name for name in known if index[name][2] != "H")}
    files |= {name: index[name][1][:SHORT_HASH] for name in known if name not in dirty}
    files |= hashes(top, [*dirty, *unknown])
    before = contents(top, commit, sorted(fresh)) if fresh and commit else {}
    changed = tuple(
        name for name in sorted(fresh) if name in files and before.get(name, "")[:SHORT_HASH] != files[name]
    )
    missing = [name for name in (*below, *known, *unknown) if name not in files]
    left_out = len(seen) - len(named) + len(missing) + len(ignored[_IGNORED:]) + len(opened - used) + (unnoted is None)
    code = Code(dict(sorted(files.items())), packages(imported), tuple(ignored[:_IGNORED]), left_out)
    return MeasuredCode(code, tuple(unknown), changed)


def hashes(top: Path, names: Collection[str]) -> dict[str, str]:
    """The first digits of what git would call the content of files, as far as they are there and not too large."""
    sizes = {}
    for name in names:
        with contextlib.suppress(OSError):
            sizes[name] = (top / name).stat().st_size
    small, total = [], 0
    for name in sorted(sizes, key=lambda each: (sizes[each], each)):
        total += sizes[name]
        if total <= MOST_BYTES:
            small.append(name)
    if not small:
        return {}
    found = (git(top, "hash-object", "--", *small) or "").split()
    return {name: each[:SHORT_HASH] for name, each in zip(small, found, strict=False)}


def present(top: Path, names: Collection[str]) -> dict[str, str]:
    """Files as they are on disk: name -> first digits of the hash; without those that are gone."""
    return dict(measured_code(top, names, ()).code.files)


def tracked(top: Path) -> list[str]:
    """Files that git has in its index, by their paths from the top."""
    return list(_index(top))


def contents(top: Path, commit: str, names: Collection[str]) -> dict[str, str]:
    """Files of a commit: name -> full hash of the content, of a submodule its commit; without those that it lacks."""
    found = {}
    if names:
        for line in listed(top, "ls-tree", "-z", "--full-tree", commit, "--", *names):
            about, _, name = line.partition("\t")
            found[name] = about.split()[2]
    return found


def _index(top: Path) -> dict[str, tuple[str, str, str]]:
    """What git knows: name -> mode, full hash, and "H" if it looks at the file."""
    found = {}
    for line in listed(top, "ls-files", "-s", "-v", "-z"):
        about, _, name = line.partition("\t")
        tag, mode, hashed, _ = about.split()
        found[name] = mode, hashed, tag
    return found


def _unknown(top: Path, names: Collection[str]) -> list[str]:
    """Those of some files that git neither knows nor ignores."""
    if not names:
        return []
    found = listed(top, "ls-files", "--others", "--exclude-standard", "-z", "--", *names)
    return sorted(set(found).intersection(names))


def _dirty(top: Path, names: Collection[str]) -> list[str]:
    """Those of some files whose content may be another than the index has."""
    return listed(top, "diff-files", "-z", "--name-only", "--", *names) if names else []


def _head(submodule: Path, names: Iterable[str]) -> str | None:
    """A submodule's commit; `None` where it does not have files as they are there."""
    head = git(submodule, "rev-parse", "--verify", "--quiet", "HEAD")
    there = [name for name in names if (submodule / name).is_file()]
    if head is None or not there:
        return head
    return None if {*there} - contents(submodule, head, there).keys() or modified(submodule, head, *there) else head


def _is_code(name: str) -> bool:
    """Whether a file counts: it is not git's own, and not made by Python."""
    *folders, last = name.split("/")
    made = not _MADE_FOLDERS.isdisjoint(folders) or last.endswith(_MADE_FILES)
    return not made and ".git" not in folders and last not in _OF_GIT


_OF_GIT = frozenset((".git", ".gitattributes", ".gitignore", ".gitmodules"))
"""Files that git reads: of no use to a test, and opened by git's commands."""
_MADE_FOLDERS = {pattern.removesuffix("/**") for pattern in MADE_BY_PYTHON if pattern.endswith("/**")}
_MADE_FILES = tuple(pattern.removeprefix("*") for pattern in MADE_BY_PYTHON if pattern.startswith("*"))


def _order(name: str) -> tuple[bool, str]:
    return not name.endswith(MODULE), name


def changed_ns(path: Path) -> int:
    """When a file's content or state last changed, which nobody can set."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0
