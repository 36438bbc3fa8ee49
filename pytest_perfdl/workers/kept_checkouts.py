"""Checkouts that are kept for later runs: which are complete, which are unmodified, and how many are kept.

A checkout is complete if it has a note, which is written last; what a killed run left has none. Builds contain the path
at which they were made, so a checkout is set up in its final place.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system.files import write_files
from pytest_perfdl.system.folders import Folder
from pytest_perfdl.system.git import said
from pytest_perfdl.system.processes import Finished

MOST = 5
"""Checkouts that stay."""
MOST_BYTES = 4 * 2**30
"""Bytes that they may have together; the ones that were not used for longest go first."""
_NOTE = "perfdl-kept.json"
_LIMIT = 2**26
_CACHES = ("__pycache__", ".pytest_cache")
_BUILDING = re.compile(
    r"(?:ARCH|C|CXX|CPP|LD|NVCC|RUST|CUDA)FLAGS|CC|CXX|CPP|LD|AR|NVCC|CUDACXX|CUDAARCHS|MACOSX_DEPLOYMENT_TARGET|"
    r"(?:C_INCLUDE_|CPLUS_INCLUDE_|C|LIBRARY_|LD_LIBRARY_|PKG_CONFIG_)PATH|(?:CUDA|CUDNN|HIP|ROCM)_(?:HOME|PATH)|"
    r"TORCH_CUDA_ARCH_LIST|PYTORCH_ROCM_ARCH|(?:CMAKE|FORCE|SETUPTOOLS|SKBUILD|USE)_\w+"
)
"""Names of environment variables that builds heed."""
_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "hipcc", "rustc", "ld", "cmake", "ninja")

Git = Callable[..., Finished]


class _Note(msgspec.Struct):
    commit: str
    size: int
    made: dict[str, tuple[int, int]]
    """Files that the setup made, changed or deleted: size and time of change."""


def environment(setup: str = "") -> Iterator[str]:
    """What the products of a build depend on: Python, the platform, installed distributions, compilers, their settings.

    Parameters
    ----------
    setup
        The command that builds: the variables that it names count, too.
    """
    yield from (sys.version, sys.executable, platform.machine(), "-".join(platform.libc_ver()))
    named = {*re.findall(r"\w+", setup)}
    yield from sorted(
        f"{name}={value}" for name, value in os.environ.items() if name in named or _BUILDING.fullmatch(name)
    )
    chosen = (words[0] for name in ("CC", "CXX", "NVCC") if (words := os.environ.get(name, "").split()))
    for program in dict.fromkeys((*chosen, *_COMPILERS)):
        # Another version is another file: asking each for its version would take a while.
        if (place := shutil.which(program)) is not None:
            found = Path(place).resolve()
            yield f"{program} {found} {_stat(found)}"
    installed = set()
    for folder in filter(os.path.isdir, sys.path):
        # A folder's name holds the version: reading each distribution's metadata would take a while.
        installed |= {name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))}  # noqa: PTH208
    yield from sorted(installed)


def note(folder: Folder, root: Path, commit: str, git: Git) -> None:
    """Note that a checkout is whole, and what its setup made of it."""
    made = {name: _stat(root / name) for name in (*_unknown(root, git), *_changed(root, git))}
    text = msgspec.json.encode(_Note(commit, sum(map(_size, _files(root))), made))
    write_files({folder.path / _NOTE: text})


def restored(folder: Folder, root: Path, commit: str, git: Git) -> bool:
    """Bring a kept checkout into the state that it was set up in; false where that cannot be, or nothing is kept.

    Tests write where they run, and may have been laid over: files of the commit get its content again, others that the
    setup did not make are deleted. Where something that the setup made is another, only a new setup would do.
    """
    there = _read(folder.path)
    # Where the repository was moved, git's note of the worktree is of another place.
    if there is None or not (root / ".git").is_file() or _top(root, git) != root.resolve():
        return False
    if git(root, "update-ref", "--no-deref", "HEAD", commit).code or git(root, "reset", "--quiet").code:
        return False
    wrong = [name for name in _changed(root, git) if name not in there.made]
    if wrong:
        git(root, "checkout", "--quiet", "--force", "HEAD", "--", *wrong)
    if not there.made.keys() >= set(_changed(root, git)):
        return False
    if any(_stat(root / name) != stat for name, stat in there.made.items()):
        return False
    for name in _unknown(root, git):
        if name not in there.made:
            try:
                folder.delete(root / name.rstrip("/"))
            except OSError:
                return False
    return True


def is_complete(path: Path) -> bool:
    """Whether a folder holds a checkout that was set up to its end."""
    return _read(path) is not None


def commit(path: Path) -> str | None:
    """The commit whose checkout a folder keeps."""
    there = _read(path)
    return None if there is None else there.commit


def size(path: Path) -> int:
    """Bytes that a kept checkout had when it was set up."""
    there = _read(path)
    return 0 if there is None else there.size


def within_bounds(paths: Sequence[Path]) -> set[Path]:
    """Those of some folders that may stay; the ones that were not used for longest come first."""
    stay: set[Path] = set()
    total = 0
    for path in reversed([path for path in paths if is_complete(path)]):
        total += size(path)
        if len(stay) == MOST or total > MOST_BYTES:
            break
        stay.add(path)
    return stay


def _read(path: Path) -> _Note | None:
    try:
        return msgspec.json.decode(untrusted_files.read_bytes(path / _NOTE, _LIMIT), type=_Note)
    except (OSError, msgspec.DecodeError):
        return None


def _top(root: Path, git: Git) -> Path | None:
    done = git(root, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(done.output).rstrip("\n")).resolve() if done.code == 0 else None


def _changed(root: Path, git: Git) -> list[str]:
    """Files of the commit that are changed or gone, and submodules in which some are."""
    git(root, "update-index", "-q", "--refresh")
    return _names(git(root, "diff-index", "-z", "--name-only", "HEAD"))


def _unknown(root: Path, git: Git) -> list[str]:
    """Files that git does not have, ignored or not; of a repository within only its folder. Caches do not count."""
    names = _names(git(root, "ls-files", "--others", "-z"))
    return [name for name in names if not {*_CACHES}.intersection(name.split("/"))]


def _names(done: Finished) -> list[str]:
    if done.code:
        # That nothing is listed does not mean that there is nothing.
        raise CheckoutError(f"git cannot list the files of the checkout: {said(done)}")
    return [os.fsdecode(name) for name in done.output.split(b"\0") if name]


def _stat(path: Path) -> tuple[int, int]:
    """Size and time of change; of a folder, which changes with what is in it, only that it is there."""
    try:
        found = path.lstat()
    except OSError:
        return -1, -1
    return (0, 0) if path.is_dir() and not path.is_symlink() else (found.st_size, found.st_mtime_ns)


def _files(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield Path(entry.path)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0
