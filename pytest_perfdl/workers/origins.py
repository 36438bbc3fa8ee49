"""Whose code a worker loaded, from its report.

A side's code is below its directory, without other worktrees that lie there. A module of the repository that is loaded
from elsewhere (an installed copy, another clone) would be the same on both sides, so the comparison would be invalid.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath

from pytest_perfdl.workers.channel import Origins
from pytest_perfdl.workers.checkout import is_own
from pytest_perfdl.workers.files_read import Reads
from pytest_perfdl.workers.files_read import is_installed as is_library

NOT_MEASURED = frozenset(
    ("benchmarks", "build", "conftest", "dist", "docs", "examples", "pytest_perfdl", "setup", "test", "tests")
)
"""Names at the top of many repositories that are no code under test, and of ours, which measures itself."""
_OURS = Path(__file__).resolve().parents[1]
"""This package, which is none of the code under test."""
_SYSTEM = tuple(
    f"{os.path.realpath(place)}{os.sep}" for place in ("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix)
)
"""Where the system and Python keep their libraries."""
MADE_WHILE_BUILDING = ("_version.py", "version.py")
"""Files that an installed package has and its repository need not have."""


def code_names(folders: Iterable[Path]) -> tuple[str, ...]:
    """Top-level names of the packages and modules in some folders, without those of the standard library."""
    names: set[str] = set()
    for folder in folders:
        if folder.is_dir():
            names |= {entry.stem for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    known = NOT_MEASURED | sys.stdlib_module_names
    return tuple(sorted(name for name in names if name.isidentifier() and name not in known))


def import_roots(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Where code can be imported from, at any depth: top-level name -> folders that hold a package or module of it.

    A folder with an `__init__.py` is a package's, and its modules are imported from the first folder above without one.
    Without any `__init__.py` (namespace packages), every folder above may be the one on the import path.

    Parameters
    ----------
    files
        Paths of a repository's files, from its top and with `/`; folders are given likewise, the top as ".".
    """
    modules = [PurePosixPath(file) for file in files if file.endswith(".py")]
    packages = {path.parent for path in modules if path.name == "__init__.py"}
    known = {"conftest", "pytest_perfdl", "setup", *sys.stdlib_module_names}
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules:
        for inside in (path, *path.parents[:-1]):
            name = inside.stem if inside is path else inside.name
            if inside.parent not in packages and name.isidentifier() and name not in known:
                found[name].add(str(inside.parent))
    return {name: tuple(sorted(folders)) for name, folders in found.items()}


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
    read = {*besides, *(reads.files() if reads is not None else ())}
    unnoted = None if reads is None else reads.unnoted()
    # The checkout may lie within the working tree: a module belongs to the innermost of the two.
    places = {os.path.realpath(folder): folder for folder in (own, foreign) if folder}
    inward = sorted(places, key=len, reverse=True)
    found: dict[str, list[str]] = {own: [], foreign: []}
    used: dict[str, set[str]] = {own: set(), foreign: set()}
    outside, packages, loose, wanted = [], set(), set(), frozenset(names)
    for name, place in loaded:
        top = name.partition(".")[0]
        folder = _home(place, inward)
        if folder is not None:
            used[places[folder]].add(place)
            if foreign or top in wanted:
                found[places[folder]].append(name)
            continue
        if top not in sys.stdlib_module_names:
            packages.add(top)
            if not _has_version(name, place):
                loose.add(place)
        if top in wanted:
            outside.append((name, place))
    for place in map(os.path.realpath, read):
        folder = _home(place, inward)
        if folder is not None:
            used[places[folder]].add(place)
    files = _below(own, used[own])
    scripts = () if reads is None else map(os.path.realpath, reads.elsewhere())
    without = {*map(os.path.realpath, read)}
    code = {*loose, *(place for place in scripts if not _has_version("", place) and not place.startswith(_SYSTEM))}
    if unnoted is not None:
        unnoted = {place for place in unnoted if (folder := _home(place, inward)) and places[folder] == own}
    return Origins(
        own=tuple(found[own]),
        foreign=tuple(found[foreign]),
        test_hash=identity,
        outside=tuple(outside),
        files=files,
        borrowed=_below(foreign, used[foreign]) if foreign else (),
        unnoted=None if unnoted is None else (*sorted(set(_below(own, unnoted)).difference(files)), *sorted(loose)),
        elsewhere=tuple(sorted(place for place in code - without if _is_strange(place, inward))),
        packages=tuple(sorted(packages)),
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


def _home(place: str, folders: Sequence[str]) -> str | None:
    """The first of some folders that a file is code of: below it, not installed there, and of no other worktree."""
    folder = next((folder for folder in folders if place.startswith(folder.rstrip(os.sep) + os.sep)), None)
    return folder if folder is not None and is_own(Path(place), Path(folder)) else None


def _is_strange(place: str, folders: Sequence[str]) -> bool:
    """Whether code is none of some folders, nor ours."""
    return _home(place, folders) is None and _OURS not in Path(place).parents and os.path.isfile(place)  # noqa: PTH113


def _has_version(name: str, place: str) -> bool:
    """Whether a module from outside changes only with a version of something: a distribution, or Python."""
    # The system's Python may keep its `sitecustomize` in /etc.
    if is_library(place) or name in ("__main__", "__mp_main__", "sitecustomize"):
        return True
    library = (os.path.realpath(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib"))
    return place.startswith(tuple(f"{each}{os.sep}" for each in library))


def _below(folder: str, places: Iterable[str]) -> tuple[str, ...]:
    """Files by their paths from a folder, without this package's and those that are gone."""
    root = Path(os.path.realpath(folder))
    paths = (Path(place) for place in places)
    mine = (path for path in paths if path.is_file() and _OURS not in path.parents and root in path.parents)
    return tuple(sorted(path.relative_to(root).as_posix() for path in mine))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Code of the repository that was not loaded from the side's folder."""

    files: Mapping[str, Sequence[tuple[Path, Path | None]]]
    """By package or module: files that were loaded, each with its counterpart in the folder, if there is one."""
    folders: Mapping[str, tuple[Path, Path]]
    """By package or module: where it was imported from, and where from it could be in the side's folder."""

    @property
    def names(self) -> tuple[str, ...]:
        """Outermost packages, and modules without one, sorted."""
        return tuple(sorted(self.files))

    @property
    def names_and_path(self) -> str:
        """Names of the packages and the directory that they were loaded from, as text."""
        return f"{', '.join(self.names[:3])} from {self.folders[self.names[0]][0]}"

    @property
    def packages(self) -> list[Path]:
        """The packages and modules of the side's folder that stand for those that were loaded."""
        places = (folder.joinpath(*name.split(".")) for name, (_, folder) in self.folders.items())
        return [place if place.is_dir() else place.with_suffix(".py") for place in places]

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
    at least half of its modules that were loaded are in the side's folders.

    Parameters
    ----------
    found
        What the worker reported.
    folders
        Where the side's packages are imported from.
    """
    packages = {name for name, file in found.outside if Path(file).name == "__init__.py"}
    by_name: dict[str, list[tuple[Path, Path | None]]] = defaultdict(list)
    places: dict[str, tuple[Path, Path]] = {}
    for name, file in found.outside:
        counterpart = _counterpart(name, Path(file), folders)
        # A folder that is called like one of packages may be the repository's own.
        if file.endswith(".py") and (counterpart is None or os.path.realpath(counterpart) != file):
            top = _package(name, packages)
            by_name[top].append((Path(file), counterpart))
            if counterpart is not None:
                places.setdefault(top, (_import_folder(name, Path(file)), _import_folder(name, counterpart)))
    files = {
        name: pairs for name, pairs in by_name.items() if 2 * sum(own is not None for _, own in pairs) >= len(pairs)
    }
    return Elsewhere(files, {name: places[name] for name in files}) if files else None


def _package(name: str, packages: Container[str]) -> str:
    """The outermost package of a module; several distributions may share a namespace package, which is none."""
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts)))
    return next((each for each in above if each in packages), name)


def _counterpart(name: str, file: Path, folders: Sequence[Path]) -> Path | None:
    inside = Path(*name.split("."))
    inside = inside / file.name if file.name == "__init__.py" else inside.with_name(f"{inside.name}.py")
    return next((folder / inside for folder in folders if (folder / inside).is_file()), None)


def _import_folder(name: str, file: Path) -> Path:
    """The folder on the import path from which a module has its file."""
    return file.parents[name.count(".") + (file.name == "__init__.py")]


def _same(loaded: Path, counterpart: Path | None) -> bool:
    if counterpart is None:
        return loaded.name in MADE_WHILE_BUILDING
    try:
        return loaded.read_bytes() == counterpart.read_bytes()
    except OSError:
        return False
