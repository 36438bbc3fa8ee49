"""The other side's code and interpreter: checkouts, kept ones, and files of the working tree laid over them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytest_perfdl.model import untrusted_files
from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.model.units import some
from pytest_perfdl.model.visible import without_secrets
from pytest_perfdl.system import clocks, folders, processes
from pytest_perfdl.system.files import replacing, write_files
from pytest_perfdl.system.folders import Folder
from pytest_perfdl.system.git import environment_apart, run_git, said, trouble
from pytest_perfdl.system.processes import Finished
from pytest_perfdl.workers.interpreter import Interpreter

# Checkouts that are kept for later runs: which are complete, which are unmodified, and how many are kept.
#
# A checkout is complete if it has a note, which is written last; what a killed run left has none. Builds contain the
# path at which they were made, so a checkout is set up in its final place.


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


# The other side's code and interpreter, and the settings with which a worker runs them instead of the working tree.
#
# The revision is checked out as a git worktree in the git directory, so files have their modes and filters (line ends,
# large file storage), and git commands in a setup or a test find a repository. Checkouts are kept for later runs
# (`within_bounds`). For a worker of that side, every path in the working tree is replaced by its path in the worktree:
# import path, root directory, ini file, test file, options, working directory. This covers packages imported from the
# tree, from `src/`, and editable installs of both kinds, since directories on the import path precede the finder of an
# editable install; whether it worked is checked (`Origins`).


GIT_SECONDS = 30.0
"""Longest that git may take where it writes no files."""
_OURS = "perfdl"
"""Folder within the git folder."""
_PURPOSE = "checkout"
_FILTER = (
    "install what the filter of these files runs (Git LFS: git lfs install), and fetch their content (git lfs fetch "
    "origin {})"
)
_INSTALLED = ("site-packages", "dist-packages")


NOTES = ("PYTEST_", "_TORCHINDUCTOR_")
"""How variables begin that pytest keeps for others, and torch's compiler for the code that it writes."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder that stands in for the working tree."""

    working_tree: Path
    """Top of the repository that pytest runs in."""
    root: Path
    """Top of the folder that replaces it."""
    seconds: float = 0.0
    """What it took to have it there, set up."""
    is_kept: bool = False
    """Whether an earlier run had set it up."""
    ready_ns: int | None = None
    """When it was set up in this run (`time.time_ns`): what is written in it later the measured processes wrote."""
    interpreter: Interpreter | None = None
    """Another Python that runs the code; `None` for this process's. With one, `root` may be the working tree itself."""

    @property
    def is_other_code(self) -> bool:
        """Whether it stands in for the working tree at all, rather than only for the interpreter."""
        return self.root != self.working_tree

    def path(self, path: Path | str) -> str:
        """Where a file of the working tree is here; paths outside it stay, and so does what is not its own code."""
        for own in (Path(path), Path(path).resolve()):
            if own.is_relative_to(self.root):
                break
            if own.is_relative_to(self.working_tree) and is_own(own, self.working_tree):
                return str(self.root / own.relative_to(self.working_tree))
        return str(path)

    def in_words(self, commit: str) -> str:
        """Where the other side ran: "at the baseline commit 0123456789ab", "under /venvs/old/bin/python", or both."""
        at = f"at the baseline commit {commit[:12]}" if commit else ""
        under = f"under {self.interpreter.executable}" if self.interpreter is not None else ""
        return " ".join(filter(None, (at, under)))

    def folder(self, path: Path) -> str:
        """Where a folder of the working tree is here, or the nearest one above it that this revision has."""
        found = Path(self.path(path))
        return str(next(each for each in (found, *found.parents) if each.is_dir()))

    def import_path(self) -> list[str]:
        """`sys.path` with the working tree's folders replaced, those of editable installs in front.

        Editable installs of other folders keep their place: where this process itself runs in a checkout
        (`perfdl bisect`), the repository that is installed is another one. Under another interpreter, what is outside
        of the working tree comes from its own environment.
        """
        ours = (entry for entry in editable_folders() if self._holds(Path(entry)))
        present = [*ours, *(entry or str(Path.cwd()) for entry in sys.path)]
        if self.interpreter is None:
            return list(dict.fromkeys(map(self.path, present)))
        own = (entry for entry in present if self._holds(Path(entry)))
        return list(dict.fromkeys((*map(self.path, own), *self.interpreter.path)))

    def _holds(self, path: Path) -> bool:
        """Whether a path is of the working tree's code."""
        tree = self.working_tree.resolve()
        forms = ((path, self.working_tree), (path.resolve(), tree))
        return any(form.is_relative_to(top) and is_own(form, top) for form, top in forms)

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options whose texts name places in the working tree, moved here."""
        return {name: self._moved(value) for name, value in options.items()}

    def environment(self) -> dict[str, str]:
        """What processes that a step starts need of the environment, to import this side's code.

        They know nothing of this process's import path: where the working tree is installed editable, its installation
        would lead them there.
        """
        given = os.environ.get("PYTHONPATH", "")
        installed = dict.fromkeys(self.path(entry) for entry in (*editable_folders(), *linked_folders()))
        ours = [entry for entry in installed if Path(entry).is_relative_to(self.root)]
        entries = [*ours, *(self._moved(entry) for entry in given.split(os.pathsep) if given)]
        return {"PYTHONPATH": os.pathsep.join(entries)} if entries else {}

    def unset(self, began: Mapping[str, str]) -> dict[str, str | None]:
        """Variables that changed since pytest began, unless this side's code sets them as the working tree's does.

        pytest's process has loaded the working tree's code, which may have set them when it was imported; code that
        sets one names it. This side's processes begin without, and set what their code does.

        Parameters
        ----------
        began
            The variables before any code of the repository was loaded.

        Returns
        -------
        dict
            Their values then, `None` for what was not set.
        """
        names = {name for name in {*began, *os.environ} if began.get(name) != os.environ.get(name)}
        changed = sorted(name for name in names if not name.startswith(NOTES))
        if not changed or not self.is_other_code:
            return {}
        here, there = (_lines_with(changed, tree) for tree in (self.root, self.working_tree))
        return {name: began.get(name) for name in changed if here[name] != there[name]}

    def _moved(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.path(value) if Path(value).is_absolute() else value
        if isinstance(value, os.PathLike):
            make: Callable[[str], Any] = type(value)
            return make(self._moved(str(value)))
        if isinstance(value, list | tuple):
            return type(value)(map(self._moved, value))
        return value


def _lines_with(names: Sequence[str], tree: Path) -> dict[str, list[str]]:
    """Lines of a worktree's files, other than texts, in which each name is a word."""
    words = [word for name in names for word in ("-e", name)]
    command = ("grep", "-hIFw", "--untracked", *words, "--", ".", ":(exclude)*.md", ":(exclude)*.rst")
    done = run_git(tree, *command, environment={"GIT_LITERAL_PATHSPECS": "0"}, apart=True)
    lines = sorted(map(str.strip, os.fsdecode(b"" if done is None else done.output).splitlines()))
    return {name: [line for line in lines if name in line] for name in names}


def is_own(path: Path, tree: Path) -> bool:
    """Whether a path below a worktree's top belongs to its code, rather than to what lies there besides.

    That is git's folder, an environment, or another worktree.
    """
    if path.relative_to(tree).parts[:1] == (".git",) or is_installed(path, tree):
        return False
    return not is_of_another_worktree(str(path), str(tree))


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


@functools.cache
def is_of_another_worktree(place: str, top: str) -> bool:
    """Whether a folder below a worktree's top is in another one that lies there (`git worktree add .worktrees/new`)."""
    if len(place) <= len(top):
        return False
    try:
        # The file of a submodule names ".git/modules/...".
        if "/worktrees/" in Path(place, ".git").read_text("utf-8", "replace"):
            return True
    except OSError:
        pass
    return is_of_another_worktree(os.path.dirname(place), top)  # noqa: PTH120 - called often


def _places(paths: Iterable[str]) -> set[Path]:
    """As they are called and as they are: either may be what a module's path begins with."""
    return {form for path in paths for form in (Path(path), Path(path).resolve())}


def editable_folders() -> list[str]:
    """Folders from which editable installs with a finder (setuptools' kind) import packages, as those are called."""
    folders = []
    for mapping in _mappings("MAPPING"):
        for name, place in mapping.items():
            inside = tuple(name.split("."))
            if isinstance(place, str) and (*Path(place).parts[:-1], Path(place).stem)[-len(inside) :] == inside:
                folders.append(str(Path(place).parents[len(inside) - 1]))
    return folders


def move_editable_installs(checkout: Checkout) -> None:
    """Have the finders of editable installs in this process lead to a checkout in place of the working tree.

    A package may be called otherwise than its folder (`package-dir`), so that no import path leads to it.
    """
    for mapping in (*_mappings("MAPPING"), *_mappings("NAMESPACES")):
        for name, places in mapping.items():
            mapping[name] = checkout.path(places) if isinstance(places, str) else [*map(checkout.path, places)]


def _mappings(name: str) -> Iterator[dict[str, Any]]:
    """What the finders of editable installs keep under a name: module -> place or places."""
    for finder in sys.meta_path:
        mapping = getattr(sys.modules.get(getattr(finder, "__module__", "")), name, None)
        if isinstance(mapping, dict):
            yield mapping


def linked_folders() -> list[str]:
    """Folders that editable installs with a path file (`.pth`: hatch's, poetry's, pip's of old) import from."""
    named = set()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for file in Path(place).glob("*.pth"):
            with contextlib.suppress(OSError):
                lines = (line.strip() for line in file.read_text(errors="replace").splitlines())
                named |= {str(Path(place, line).resolve()) for line in lines if line and not line.startswith("import")}
    return [entry for entry in sys.path if entry and str(Path(entry).resolve()) in named]


@contextlib.contextmanager
def checked_out(working_tree: Path, commit: str, *, seconds: float, setup: str = "") -> Iterator[Checkout]:
    """Have a commit checked out as a worktree and set up.

    It lies within the repository's git folder: on the same disk as the working tree, which both sides read from. It
    stays there for later runs that want the same tree, set up by the same command in the same environment; another run
    that wants it meanwhile makes one of its own, which is removed.

    Parameters
    ----------
    working_tree
        Top of the repository.
    commit
        Full hash.
    seconds
        Longest that git and `setup` may take each.
    setup
        Shell command that builds what needs building, run in the worktree; empty for none.

    Raises
    ------
    CheckoutError
        When git or the command fails, with the last line that it wrote.
    """
    started = clocks.monotonic()
    common = common_folder(working_tree)
    if common is None:
        raise CheckoutError(trouble(working_tree) or "the project is not in a git repository")
    name = working_tree.name or "repository"
    try:
        wanted = _identity(working_tree, commit, name, setup)
        folder = folders.claim(common / _OURS, _PURPOSE, wanted) or folders.make(common / _OURS, _PURPOSE)
    except OSError as error:
        raise CheckoutError(f"cannot create a checkout in {common / _OURS}: {error.strerror or error}") from error
    root = folder.path / name
    keep = folder.path.name.endswith(wanted)
    try:
        is_kept = restored(folder, root, commit, _git) and not _pointers(root, working_tree)
        if not is_kept:
            _deregister(common, folder)
            done = _git(working_tree, "worktree", "add", "--detach", "--force", str(root), commit, seconds=seconds)
            if done.code:
                what = f"git failed to check out {commit[:12]}: {_last_line(done.errors)}"
                raise CheckoutError(f"{what}: {_FILTER.format(commit[:12])}" if b"filter" in done.errors else what)
            if setup:
                _set_up(root, setup, seconds)
            if pointers := _pointers(root, working_tree):
                raise CheckoutError(
                    f"git checked out {commit[:12]} without the content of files in Git LFS that the working tree has "
                    f"({some(pointers)}): run git lfs fetch origin {commit[:12]} with GIT_LFS_SKIP_SMUDGE unset, or "
                    "git lfs pull in perf_against_setup"
                )
            if keep:
                note(folder, root, commit, _git)
        folder.use()
        yield Checkout(working_tree, root, clocks.monotonic() - started, is_kept, clocks.time_ns())
    finally:
        if keep and is_complete(folder.path):
            folder.release()
            sweep(working_tree)
        else:
            try:
                _deregister(common, folder)
            except OSError:
                # The empty folder stays, so that the next sweep tries again.
                folder.release()
            else:
                folder.remove()
            _remove_if_empty(common)


def _pointers(root: Path, working_tree: Path) -> list[str]:
    """Files in Git LFS that a checkout has without their content, which the working tree has: no code, other data."""
    listed = _git(root, "ls-files", "-z", "--", ":(attr:filter=lfs)", environment={"GIT_LITERAL_PATHSPECS": "0"})
    names = [os.fsdecode(name) for name in listed.output.split(b"\0") if name]
    return [name for name in names if _is_pointer(root / name) and not _is_pointer(working_tree / name, absent=True)]


def _is_pointer(file: Path, *, absent: bool = False) -> bool:
    """Whether a file is what Git LFS has in commits: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md."""
    try:
        return file.lstat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs.github.com/spec/")
    except OSError:
        return absent


def _identity(working_tree: Path, commit: str, name: str, setup: str) -> str:
    """What a checkout is known by again: the tree's hash, what builds it, and what that may depend on."""
    done = _git(working_tree, "rev-parse", "--verify", f"{commit}^{{tree}}")
    if done.code:
        raise CheckoutError(f"git failed to check out {commit[:12]}: {said(done)}")
    # A filter writes what the commit does not have.
    filters = os.fsdecode(_git(working_tree, "config", "--get-regexp", r"^filter\.").output)
    skips = os.environ.get("GIT_LFS_SKIP_SMUDGE", "")
    made_in = environment(setup) if setup else ()
    parts = [done.output.decode().strip(), name, setup, filters, skips, *made_in]
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()[:16]


def sweep(working_tree: Path) -> None:
    """Remove the checkouts that killed runs have left, what is kept beyond its bounds, and what git knows of them."""
    common = common_folder(working_tree)
    if common is not None and (common / _OURS).is_dir():
        stay = within_bounds(folders.used(common / _OURS, _PURPOSE))
        folders.sweep(common / _OURS, _PURPOSE, lambda folder: _deregister(common, folder), stay.__contains__)
        _remove_if_empty(common)


def clear(working_tree: Path) -> tuple[int, int]:
    """Remove every checkout that is kept and not in use: how many there were, and their bytes."""
    common = common_folder(working_tree)
    if common is None:
        return 0, 0
    before = {path: size(path) for path in folders.used(common / _OURS, _PURPOSE)}
    folders.sweep(common / _OURS, _PURPOSE, lambda folder: _deregister(common, folder))
    _remove_if_empty(common)
    gone = [size for path, size in before.items() if not path.exists()]
    return len(gone), sum(gone)


def kept_commits(working_tree: Path) -> list[str]:
    """Commits of which a checkout is kept, full hashes, the one that was used last first."""
    common = common_folder(working_tree)
    paths = [] if common is None else folders.used(common / _OURS, _PURPOSE)
    return list(dict.fromkeys(filter(None, map(commit, reversed(paths)))))


def common_folder(working_tree: Path) -> Path | None:
    """The git folder that all worktrees of a repository share."""
    done = _git(working_tree, "rev-parse", "--git-common-dir")
    return (working_tree / os.fsdecode(done.output).rstrip("\n")).resolve() if done.code == 0 else None


def _deregister(common: Path, folder: Folder) -> None:
    """Delete the worktree in a folder of ours, then git's note of it; no other worktree is touched.

    Raises
    ------
    OSError
        When git still has the note.
    """
    folder.clear()
    for worktree in _worktrees(common, folder):
        try:
            _git(common, "worktree", "remove", "--force", "--force", str(worktree))
        except CheckoutError as error:
            raise OSError(str(error)) from error
    if _worktrees(common, folder):
        raise OSError(f"git still has a worktree registered in {folder.path}")


def _worktrees(common: Path, folder: Folder) -> list[Path]:
    """Worktrees in a folder of ours that git has a note of."""
    found = []
    for note in common.glob("worktrees/*/gitdir"):
        # Another run may remove its own meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append(Path(note.read_text().strip()).parent)
    return [worktree for worktree in found if worktree.parent == folder.path]


def _remove_if_empty(common: Path) -> None:
    with contextlib.suppress(OSError):
        (common / _OURS).rmdir()


def _set_up(root: Path, command: str, seconds: float) -> None:
    try:
        environment = environment_apart() | {"GIT_TERMINAL_PROMPT": "0", "PERFDL_CHECKOUT": str(root)}
        done = processes.run(["/bin/sh", "-c", command], root, seconds=seconds, environment=environment)
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"perf_against_setup did not finish within {seconds:g} s (--perf-timeout)") from None
    if done.code:
        said = _last_line(done.errors, done.output)
        raise CheckoutError(f"perf_against_setup failed with exit code {done.code}: {said}")


def _git(
    folder: Path, *arguments: str, seconds: float = GIT_SECONDS, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run git without what belongs to a commit in progress.

    Raises
    ------
    CheckoutError
        When it does not end.
    """
    done = run_git(folder, *arguments, environment=environment, apart=True, seconds=seconds)
    if done is None:
        raise CheckoutError(f"git {arguments[0]} did not finish within {seconds:g} s")
    return done


def _last_line(*texts: bytes) -> str:
    lines = (line.strip() for text in texts for line in reversed(text.decode(errors="replace").splitlines()))
    return without_secrets(next(filter(None, lines), "no message"))


# Copies files of the working tree into a checkout, to run the current tests on the other revision.


def with_conftests(tests: Iterable[Path], top: Path) -> list[Path]:
    """Test files, and the conftest files on the way to them from a top folder on."""
    found: dict[Path, None] = {}
    for test in tests:
        # A test that was named through a link is below the top folder only once that is resolved.
        below = (folder for folder in test.parents if folder.resolve().is_relative_to(top.resolve()))
        way = list(below) or [test.parent]
        found |= dict.fromkeys(file for folder in way if (file := folder / "conftest.py").is_file())
        found[test] = None
    return list(found)


def overlay(checkout: Checkout, files: Iterable[Path]) -> None:
    """Put the working tree's files in place of the revision's; what lies outside is on both sides anyhow.

    Raises
    ------
    CheckoutError
        When a file's place is not within the checkout, as where a link leads out of it; nothing was written there.
    """
    for file in files:
        target = _resolved(Path(checkout.path(file)))
        if target == _resolved(file):
            continue
        if not target.is_relative_to(checkout.root.resolve()):
            raise CheckoutError(
                f"{file} cannot be replaced, because it is a link to {target} in the "
                "baseline commit, outside the checkout"
            )
        try:
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open("rb") as given, replacing(target) as made:
                    shutil.copyfileobj(given, made)
                shutil.copystat(file, target)
            elif target.name == "conftest.py" and target.is_file():
                # The working tree has none: what it does there would be on one side only.
                with replacing(target):
                    pass
        except OSError as error:
            raise CheckoutError(f"cannot copy {file} to the baseline checkout: {error.strerror or error}") from error


def _resolved(file: Path) -> Path:
    """Where a file is; if it is a link itself, that link's place."""
    return file.parent.resolve() / file.name
