"""Another revision's code on disk, and what a worker needs to run that instead of the working tree's.

The revision is checked out as a git worktree in a temporary folder. A worker of that side gets every path of
the working tree replaced by the worktree's: import path, root directory, ini file, test file, options, current
folder. That covers packages imported from the tree, from `src/`, and editable installs of either kind, since
a folder on the import path goes before an editable install's finder; whether it held is not believed but
checked (`Origins`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INSTALLED = ("site-packages", "dist-packages")


class CheckoutError(Exception):
    """A revision cannot be checked out or set up; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder that stands in for the working tree."""

    working_tree: Path
    """Top of the repository that pytest runs in."""
    root: Path
    """Top of the folder that replaces it."""

    def path(self, path: Path | str) -> str:
        """Where a file of the working tree is here; paths outside it stay, and so does what is installed in it."""
        own = Path(path)
        if not own.is_relative_to(self.working_tree) or is_installed(own, self.working_tree):
            return str(path)
        return str(self.root / own.relative_to(self.working_tree))

    def import_path(self) -> list[str]:
        """`sys.path` with the working tree's folders replaced, those of editable installs in front."""
        present = (entry or str(Path.cwd()) for entry in sys.path)
        return list(dict.fromkeys(self.path(entry) for entry in (*editable_folders(), *present)))

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options whose texts name places in the working tree, moved here."""
        return {name: self._moved(value) for name, value in options.items()}

    def _moved(self, value: Any) -> Any:
        if isinstance(value, str) and Path(value).is_absolute():
            return self.path(value)
        if isinstance(value, list):
            return [self._moved(item) for item in value]
        return value


def is_installed(path: Path, tree: Path) -> bool:
    """Whether a path below a folder belongs to the environment that Python runs in, rather than to the code there.

    An environment may lie in the folder (`.venv`, conda's), or be the folder itself (`python -m venv .`): then only
    its library counts.
    """
    if any(part in _INSTALLED for part in path.relative_to(tree).parts):
        return True
    library = _places(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    inside = (prefix for prefix in _places((sys.prefix, sys.base_prefix)) if tree in prefix.parents)
    return any(path.is_relative_to(place) for place in (*library, *inside))


def _places(paths: Iterable[str]) -> set[Path]:
    """As they are called and as they are: either may be what a module's path begins with."""
    return {form for path in paths for form in (Path(path), Path(path).resolve())}


def editable_folders() -> list[str]:
    """Folders from which editable installs with a finder (setuptools' kind) import their packages."""
    folders = []
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        mapping = getattr(module, "MAPPING", None)
        if isinstance(mapping, dict):
            folders += [str(Path(place).parent) for place in mapping.values() if isinstance(place, str)]
    return folders


@contextlib.contextmanager
def checked_out(working_tree: Path, commit: str, setup: str = "") -> Iterator[Checkout]:
    """Check a commit out as a worktree, set it up, and remove it afterwards, whatever happens.

    Parameters
    ----------
    working_tree
        Top of the repository.
    commit
        Full hash.
    setup
        Shell command that builds what needs building, run in the worktree; empty for none.

    Raises
    ------
    CheckoutError
        When git or the command fails, with the last line that it wrote.
    """
    folder = Path(tempfile.mkdtemp(prefix="pytest-perfdl-against-"))
    root = folder / working_tree.name
    try:
        done = _git(working_tree, "worktree", "add", "--detach", "--force", str(root), commit)
        if done.returncode:
            raise CheckoutError(f"git cannot check out {commit[:12]}: {_last_line(done.stderr)}")
        if setup:
            _set_up(root, setup)
        yield Checkout(working_tree, root)
    finally:
        _git(working_tree, "worktree", "remove", "--force", "--force", str(root))
        shutil.rmtree(folder, ignore_errors=True)
        _git(working_tree, "worktree", "prune")


def overlay(checkout: Checkout, folder: Path) -> None:
    """Put the working tree's present content of a folder in place of the revision's."""
    target = Path(checkout.path(folder))
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def _set_up(root: Path, command: str) -> None:
    environment = {**os.environ, "PERFDL_CHECKOUT": str(root)}
    done = subprocess.run(command, shell=True, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = _last_line(done.stderr) or _last_line(done.stdout)
        raise CheckoutError(f"perf_against_setup failed with exit code {done.returncode}: {said}")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Hooks and environment of a commit in progress (GIT_INDEX_FILE and others) are not meant for the worktree.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
