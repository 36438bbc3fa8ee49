"""Whose code a worker loaded, from its report.

A side's code is below its directory. A module of the repository that is loaded from elsewhere (an installed copy,
another clone) would be the same on both sides, so the comparison would be invalid.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from pytest_perfdl.workers.checkout import is_installed
from pytest_perfdl.workers.files_read import Reads
from pytest_perfdl.workers.messages import Origins

_NOT_MEASURED = frozenset(
    ("benchmarks", "build", "conftest", "dist", "docs", "examples", "pytest_perfdl", "setup", "test", "tests")
)
"""Names at the top of many repositories that are no code under test, and of ours, which measures itself."""
_OURS = Path(__file__).resolve().parents[1]
"""This package, which is none of the code under test."""
_MADE_WHILE_BUILDING = ("_version.py", "version.py")
"""Files that an installed package has and its repository need not have."""


def code_names(folders: Iterable[Path]) -> tuple[str, ...]:
    """Top-level names of the packages and modules in some folders, without those of the standard library."""
    names: set[str] = set()
    for folder in folders:
        if folder.is_dir():
            names |= {entry.stem for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    known = _NOT_MEASURED | sys.stdlib_module_names
    return tuple(sorted(name for name in names if name.isidentifier() and name not in known))


def origins(
    own: str, foreign: str, names: Sequence[str], identity: str, reads: Reads | None = None, besides: Iterable[str] = ()
) -> Origins:
    """Modules by the folder they come from, in the process that loaded them.

    Parameters
    ----------
    own, foreign
        Folders of this side's code and of the other side's, if there is one.
    names
        Top-level names of the repository's code, of which modules from elsewhere are reported too.
    identity
        Hash of the test as it is here.
    reads, besides
        Files that were read, and further ones that decided what ran (conftest files, the ini file).
    """
    loaded = _loaded()
    # The checkout may lie within the working tree: a module belongs to the innermost of the two.
    places = {os.path.realpath(folder): folder for folder in (own, foreign) if folder}
    inward = sorted(places, key=len, reverse=True)
    found: dict[str, list[str]] = {own: [], foreign: []}
    outside = []
    for name, place in loaded:
        top = name.partition(".")[0]
        if not foreign and top not in names:
            continue
        folder = next((folder for folder in inward if _is_below(place, folder)), None)
        if folder is not None and not is_installed(Path(place), Path(folder)):
            found[places[folder]].append(name)
        elif top in names:
            outside.append((name, place))
    files, packages = _used(own, foreign, loaded, {*besides, *(reads.files() if reads is not None else ())})
    return Origins(
        own=tuple(found[own]),
        foreign=tuple(found[foreign]),
        test_hash=identity,
        outside=tuple(outside),
        files=files,
        packages=packages,
        prefix=sys.prefix,
    )


def _loaded() -> list[tuple[str, str]]:
    """Modules that are not ours with their files as `os.path.realpath` gives them, sorted.

    A process has thousands of modules in hundreds of folders, and each folder's links are followed once.
    """
    folders: dict[str, str] = {}
    found = []
    for name, module in sorted(sys.modules.items(), key=itemgetter(0)):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file or name.partition(".")[0] == "pytest_perfdl":
            continue
        folder, base = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        place = os.path.join(folders[folder], base)  # noqa: PTH118 - called often
        found.append((name, os.path.realpath(place) if os.path.islink(place) else place))  # noqa: PTH114
    return found


def _is_below(place: str, folder: str) -> bool:
    return place.startswith(folder.rstrip(os.sep) + os.sep)


def _used(
    own: str, foreign: str, loaded: Sequence[tuple[str, str]], read: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files of a folder that were loaded or read, and top-level names of the modules from outside it."""
    root = Path(os.path.realpath(own))
    inner = Path(os.path.realpath(foreign)) if foreign else None
    paths, packages = set(map(os.path.realpath, read)), set()
    for name, place in loaded:
        if _is_below(place, str(root)) and not is_installed(Path(place), root):
            paths.add(place)
        elif (top := name.partition(".")[0]) not in sys.stdlib_module_names:
            packages.add(top)
    files = set()
    for path in map(Path, paths):
        mine = root in path.parents and path.is_file() and not is_installed(path, root) and _OURS not in path.parents
        if mine and (inner is None or inner not in path.parents or inner in root.parents):
            files.add(path.relative_to(root).as_posix())
    return tuple(sorted(files)), tuple(sorted(packages))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Code of the repository that was not loaded from the side's folder."""

    files: Mapping[str, Sequence[tuple[Path, Path | None]]]
    """By top-level name: files that were loaded, each with its counterpart in the folder, if there is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Top-level names, sorted."""
        return tuple(sorted(self.files))

    @property
    def names_and_path(self) -> str:
        """Names of the packages and the directory that they were loaded from, as text."""
        first = self.files[self.names[0]][0][0]
        levels = 1 if first.stem != "__init__" else 2
        return f"{', '.join(self.names[:3])} from {first.parents[levels - 1]}"

    @property
    def counterparts(self) -> list[Path]:
        """The files of the side's folder that stand for those that were loaded."""
        return [counterpart for files in self.files.values() for _, counterpart in files if counterpart is not None]

    @property
    def is_the_same(self) -> bool:
        """Whether every file that was loaded is in the folder too, to the byte."""
        return all(_same(loaded, counterpart) for files in self.files.values() for loaded, counterpart in files)


def elsewhere(found: Origins, folders: Sequence[Path]) -> Elsewhere | None:
    """The repository's code that a side loaded from elsewhere; `None` where there is none.

    A name alone proves nothing: a repository may hold stubs of another package. It is the repository's package where
    at least half of the modules that were loaded are in the side's folders.

    Parameters
    ----------
    found
        What the worker reported.
    folders
        Where the side's packages are imported from.
    """
    by_name: dict[str, list[tuple[Path, Path | None]]] = defaultdict(list)
    for name, file in found.outside:
        counterpart = _counterpart(name, Path(file), folders)
        # A folder that is called like one of packages may be the repository's own.
        if file.endswith(".py") and (counterpart is None or os.path.realpath(counterpart) != file):
            by_name[name.split(".")[0]].append((Path(file), counterpart))
    files = {
        name: pairs for name, pairs in by_name.items() if 2 * sum(own is not None for _, own in pairs) >= len(pairs)
    }
    return Elsewhere(files) if files else None


def _counterpart(name: str, file: Path, folders: Sequence[Path]) -> Path | None:
    inside = Path(*name.split("."))
    inside = inside / file.name if file.name == "__init__.py" else inside.with_name(f"{inside.name}.py")
    return next((folder / inside for folder in folders if (folder / inside).is_file()), None)


def _same(loaded: Path, counterpart: Path | None) -> bool:
    if counterpart is None:
        return loaded.name in _MADE_WHILE_BUILDING
    try:
        return loaded.read_bytes() == counterpart.read_bytes()
    except OSError:
        return False
