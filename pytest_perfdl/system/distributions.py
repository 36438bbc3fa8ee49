"""The distributions that are installed: what modules they hold, their versions, and where they came from.

`importlib.metadata.packages_distributions` asks the file system for every file of every distribution, for a second.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote

_ORIGIN = "direct_url.json"


def packages(imported: Iterable[str]) -> dict[str, str]:
    """Distributions that hold some top-level modules: name -> version, sorted."""
    names = set[str]().union(*map(_names, imported))
    return {name: version for name in sorted(names) if (version := installed(name)) is not None}


def installed(name: str) -> str | None:
    """Version of a distribution here; `None` where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def from_an_index(module: str) -> bool:
    """Whether a top-level module was installed from a package index, rather than from a folder or a file (PEP 610)."""
    names = _names(module)
    return bool(names) and all(importlib.metadata.distribution(name).read_text(_ORIGIN) is None for name in names)


def modules_from(folder: Path) -> set[str]:
    """Top-level names of the modules of distributions that were installed from a folder or below it (PEP 610)."""
    found = set[str]()
    for each in importlib.metadata.distributions():
        place = (each.read_text(_ORIGIN) or "").partition('"file://')[2].partition('"')[0]
        if place and Path(unquote(place)).is_relative_to(folder):
            found |= _modules(each)
    return set(filter(str.isidentifier, found))  # What is beside the modules (metadata, scripts) is no identifier.


def _names(module: str) -> set[str]:
    """Names of the distributions that hold a module: of several with one name, the first on the path counts."""
    return {each.metadata["Name"] for each in _holders().get(module, ())}


@functools.cache
def _holders() -> Mapping[str, Sequence[Distribution]]:
    """The distributions that hold each top-level module."""
    found = defaultdict[str, list[Distribution]](list)
    for each in importlib.metadata.distributions():
        for module in _modules(each):
            found[module].append(each)
    return found


def _modules(distribution: Distribution) -> set[str]:
    """Top-level names of a distribution's modules: those that it declares, or else of the files that it lists."""
    if declared := distribution.read_text("top_level.txt"):
        return set(declared.split())
    listed = distribution.read_text("RECORD")
    if listed is None:
        return {file.parts[0].partition(".")[0] for file in distribution.files or ()}
    return {line.strip('"').partition(",")[0].partition("/")[0].partition(".")[0] for line in listed.splitlines()}
