"""What a process reads: files in some directories, and what its test imports."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import os
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_perfdl.system import clocks
from pytest_perfdl.system.git import MADE_BY_PYTHON
from pytest_perfdl.workers.channel import CallShown, Shown
from pytest_perfdl.workers.checkout import NOTES, is_own

# What a process observes while its test is imported: modules, environment variables, import hooks.


_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_FEW = 5
"""Modules that may be loaded beforehand, although the test loads them later or not at all."""
NOT_THE_TESTS = frozenset(("pytest_perfdl", "pytest", "_pytest", "pluggy"))
"""Packages that every worker loads before its test."""
SEEDED = "numpy.random"
"""What seeding loads where numpy is loaded, whether the test uses it or not."""
_HARMLESS_FINDERS = ("_SixMetaPathImporter", "MetadataPathFinder", "VendorImporter", "_LegacyModuleAliasFinder")
"""Finders that libraries in wide use put there for what they make up themselves, or for metadata alone."""


def third_party(name: str, module: object, names: Collection[str], *, rewritten: bool = False) -> str:
    """File of a loaded module that is installed and neither the repository's nor pytest's; empty for all others.

    What pytest rewrites (the packages of its plugins, and what they register) is none, unless it is asked for: imported
    earlier it would stay as it is.

    Parameters
    ----------
    name, module
        As in `sys.modules`.
    names
        Top-level names of the repository's code.
    """
    file = getattr(module, "__file__", None)
    top = name.partition(".")[0]
    if not isinstance(file, str) or top in names or top in NOT_THE_TESTS or getattr(module, "__name__", "") != name:
        return ""
    return file if is_installed(file) and (rewritten or not _rewritten(module)) else ""


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to something that was installed."""
    return any(place in file for place in _INSTALLED)


def is_of_python(file: str) -> bool:
    """Whether a module's file is one of the standard library."""
    return file.startswith(_library()) and not is_installed(file)


@functools.cache
def _library() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib"))


class Watch(MetaPathFinder):
    """Looks on while a test loads, from its making on; `shown` is what was seen.

    It asks what the environment is whenever a module is looked for, by a finder on `sys.meta_path` that finds nothing
    but modules that a forked process was forked with: those are hidden until they are asked for, as if they were not
    loaded.

    Parameters
    ----------
    names
        Top-level names of the repository's code.
    groups
        Of a forked process: modules that were imported before it was forked, each with all that this import loaded.
        What the test imports first of a group must be the module that was imported, or a new process would have loaded
        compiled code in another order.
    """

    def __init__(self, names: Collection[str], groups: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._names = frozenset(names)
        self._began = clocks.monotonic()
        self._first_call: float | None = None
        self._early = 0
        """Modules that were sought before."""
        self._calls: list[CallShown] = []
        self._besides: set[str] = set()
        self._groups = dict(groups or {})
        """Groups that the test has not imported."""
        self._group_of = {name: group for group, members in self._groups.items() for name in members}
        self._hidden = {name: sys.modules.pop(name) for name in self._group_of if name in sys.modules}
        self._attributes = {name: owner for name in self._hidden if (owner := self._owner(name)) is not None}
        """Packages that hidden modules are attributes of: `from package import module` must ask for them."""
        for name, owner in self._attributes.items():
            # Packages may be there under two names.
            owner.__dict__.pop(name.rpartition(".")[2], None)
        self._frozen = gc.get_freeze_count()
        own = next((name for name, module in self._hidden.items() if self._is_own(name, module)), "")
        self._unlike = f"{own} is the repository's, and was loaded with what is installed" if own else ""
        self._modules = frozenset(sys.modules)
        self._hooks = (*sys.meta_path, *sys.path_hooks, builtins.__import__)
        self._sought: dict[str, int] = {}
        """The order in which modules were first imported; `sys.modules` has the order in which imports finished."""
        self._environment = dict(_environment())
        self._changed: set[str] = set()
        self._at: dict[str, frozenset[str]] = {}
        """By module, the environment variables that had changed when the module was imported."""
        self._by: dict[str, set[str]] = {}
        """Environment variables that changed during the import of a module that imported other modules."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Find nothing but what is hidden."""
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        if name in self._hidden:
            return _spec(name, self._hidden[name], self._import)
        self._note(name)
        return None

    def _import(self, name: str) -> None:
        """Put a module that is hidden back, of which Python puts itself only what is asked for where it belongs.

        Not where it is only looked for, as `importlib.util.find_spec` does to see whether something is installed.
        """
        if name not in self._hidden:
            return
        self._note(name)
        group = self._group_of[name]
        if name != group and self._is_compiled(name.partition(".")[0], self._groups[group]):
            self._unlike = self._unlike or f"the test imports {name} before {group}"
        del self._hidden[name]
        for member in self._groups.pop(group) if name == group else ():
            if member in self._hidden:
                self._note(member)
                sys.modules[member] = found = self._hidden.pop(member)
                if member in self._attributes:
                    setattr(self._attributes[member], member.rpartition(".")[2], found)

    def _matters(self, group: str, members: Sequence[str]) -> bool:
        """Whether it makes a difference that a group is loaded which the test has not asked for.

        A few modules in Python make none, of a package that the test has imported: what imports lazily in its own way
        may not have asked for them again.
        """
        top = group.partition(".")[0]
        matters = top == group or top not in self._sought or len(members) > _FEW or self._is_compiled(top, members)
        return matters and group != SEEDED

    def _is_own(self, name: str, module: object) -> bool:
        """Whether a module may be code under test, which each side must load itself."""
        file = getattr(module, "__file__", None)
        # Modules that are made up have names of files that do not exist, or none.
        file = file if isinstance(file, str) and file.startswith(os.sep) else ""
        # Others are modules of the standard library under a second name, as zipp has them.
        elsewhere = file != "" and not (is_installed(file) or is_of_python(file))
        return name.partition(".")[0] in self._names or elsewhere

    def _third_party(self, name: str, module: object) -> str:
        return third_party(name, module, self._names)

    def _owner(self, name: str) -> ModuleType | None:
        """The package that a hidden module is an attribute of."""
        package, _, own = name.rpartition(".")
        owner = self._hidden.get(package) or sys.modules.get(package)
        return owner if getattr(owner, "__dict__", {}).get(own) is self._hidden[name] else None

    def _is_compiled(self, top: str, names: Collection[str]) -> bool:
        """Whether some of these modules of a package that are hidden are compiled code."""
        hidden = (self._hidden.get(name) for name in names if name.partition(".")[0] == top)
        files = (getattr(module, "__file__", None) for module in hidden)
        return any(isinstance(file, str) and not file.endswith((".py", ".pyc")) for file in files)

    def _note(self, name: str) -> None:
        """Note that a module is imported first now."""
        self._sought.setdefault(name, len(self._sought))
        now = _environment()
        if now != self._environment:
            before, self._environment = self._environment, dict(now)
            changed = {os.fsdecode(each) for each in {*now, *before} if now.get(each) != before.get(each)}
            changed = {each for each in changed if not each.startswith(NOTES)}
            # What a module changes while it is loaded it changes wherever it is loaded.
            loader = next((each for each in being_loaded() if self._third_party(each, sys.modules[each])), None)
            if loader is not None:
                self._by.setdefault(loader, set()).update(changed)
            else:
                self._changed |= changed
        if self._changed:
            self._at[name] = frozenset(self._changed)

    def start_call(self) -> str:
        """A `perf(...)` call begins; why a new process would not be like this one, which was forked, or nothing."""
        if self._first_call is not None:
            return ""
        self._first_call, self._early = clocks.monotonic(), len(self._sought)
        if not self._group_of:
            return ""
        if gc.get_freeze_count() > self._frozen:
            return "the test freezes objects (gc.freeze)"
        # Collections walk over everything in a new process.
        gc.unfreeze()
        if missing := next((group for group, members in self._groups.items() if self._matters(group, members)), ""):
            return f"the test has not imported {missing}"
        if changed := sorted({each for name in self._group_of for each in self._at.get(name, ())}):
            return f"the test changes {changed[0]} before it imports modules"
        return self._unlike or next((f"the test uses import hook {hook}" for hook in self._foreign_hooks()), "")

    def end_call(self, call: CallShown, besides: Sequence[str]) -> None:
        """A `perf(...)` call is over; `besides` are the modules that only measuring it loaded."""
        self._calls.append(call)
        self._besides.update(besides)

    def shown(self, plugins: Collection[object] = (), at_import: Collection[tuple[str, str]] = ()) -> Shown:
        """What was seen until now.

        Parameters
        ----------
        plugins
            Pytest's, which are no modules that the test loads.
        at_import
            Modules, each with a file of the side that was opened while the module was loaded.
        """
        left_out = {getattr(plugin, "__name__", "") for plugin in plugins if isinstance(plugin, ModuleType)}
        loaded = {
            name: file
            for name, module in sorted(sys.modules.items(), key=self._place)
            if name not in self._modules
            and name not in left_out
            and (file := third_party(name, module, self._names, rewritten=True))
        }
        # What the test imports may import a plugin's package by the way (httpx: anyio). Its assertions are then not
        # rewritten in forked processes, of either side: nothing else differs.
        modules = tuple(
            (name, file)
            for name, file in loaded.items()
            if name not in self._besides and self._third_party(name, sys.modules[name])
        )
        known = {name for name, _ in modules}
        changed = {each for name, names in self._at.items() if name in known for each in names}
        changed |= {each for name, names in self._by.items() if name not in known for each in names}
        return Shown(
            modules=modules,
            besides=(
                *((name, file) for name, file in loaded.items() if name not in known),
                *((name, file) for name, module in self._hidden.items() if (file := self._third_party(name, module))),
            ),
            late=self._first_call is not None and sum(self._place(each) >= self._early for each in modules) > _FEW,
            environment=tuple(sorted(changed)),
            hooks=tuple(dict.fromkeys(self._foreign_hooks())),
            reads=tuple(sorted({(name, file) for name, file in at_import if name in known})),
            calls=tuple(self._calls),
            start_seconds=(self._first_call or clocks.monotonic()) - self._began,
        )

    def _place(self, module: tuple[str, object]) -> int:
        return self._sought.get(module[0], len(self._sought))

    def _foreign_hooks(self) -> Iterator[str]:
        for hook in (*sys.meta_path, *sys.path_hooks, builtins.__import__):
            kind = hook if isinstance(hook, type) else type(hook)
            module = (getattr(hook, "__module__", None) if kind.__module__ == "builtins" else kind.__module__) or ""
            known = any(hook is each for each in self._hooks) or hook is self
            if not known and not module.startswith("_pytest.") and kind.__name__ not in _HARMLESS_FINDERS:
                yield f"{module}.{getattr(hook, '__name__', kind.__name__)}"


def _spec(name: str, module: ModuleType, imported: Callable[[str], None]) -> ModuleSpec:
    """The spec of a module that is loaded but hidden, with what is asked of the module's own."""
    own = getattr(module, "__spec__", None)
    spec = ModuleSpec(name, _Loaded(module, imported), origin=getattr(own, "origin", None))
    spec.submodule_search_locations = getattr(own, "submodule_search_locations", None)
    spec.has_location = getattr(own, "has_location", False)
    return spec


class _Loaded(Loader):
    """Loads a module that is loaded, and calls `imported` with its name when it is imported."""

    def __init__(self, module: ModuleType, imported: Callable[[str], None]) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module."""
        self._imported(spec.name)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give it back what Python has replaced."""
        module.__spec__ = self._spec


def _environment() -> Mapping[Any, Any]:
    """The environment as Python keeps it: decoding it for thousands of modules takes a tenth of a second."""
    kept: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return kept


def being_loaded() -> Iterator[str]:
    """Modules that are being loaded now, the innermost first, without the one that is looked for."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        spec = frame.f_locals.get("spec") if frame.f_code.co_name == "_load_unlocked" else None
        name = getattr(spec, "name", None)
        if name in sys.modules:
            yield name
        frame = frame.f_back


def _rewritten(module: object) -> bool:
    """Whether pytest was told to rewrite a module's assertions, rather than met a file called like a test."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if not type(loader).__module__.startswith("_pytest."):
        return False
    name, told = getattr(module, "__name__", ""), getattr(loader, "_must_rewrite", None)
    return told is None or any(name == each or name.startswith(f"{each}.") for each in told)


# Which files in some directories a process opens for reading, and which ones it writes itself.
#
# Python reports to its audit hooks every file that it opens, every library that `ctypes` loads and every database of
# `sqlite3`. What compiled code opens (`torch.jit.load`, a data loader in C++) and what processes open that were started
# rather than forked raises no event. Of these files the ones that are still mapped are found in `/proc/self/maps`. That
# there were others the system says (`inotify`): it names every file of a folder that anybody opened.


_MOST = 20_000
"""Files that are noted."""
_MOST_ENTRIES = 200_000
"""Files and folders that are looked through for folders to watch, in about 0.2 seconds."""
_WRITING = frozenset("wax+")
_WALKS = frozenset(("gc.get_objects", "gc.get_referrers"))
"""Calls that walk over all objects of the process, but not over frozen ones (`gc.freeze`)."""
_OURS = f"{__name__.partition('.')[0]}."
_EVENTS = frozenset(("open", "ctypes.dlopen", "sqlite3.connect", *_WALKS))
_IN_OPEN, _IN_Q_OVERFLOW, _IN_ISDIR = 0x20, 0x4000, 0x4000_0000
"""Of Linux' `inotify`."""
_EVENT = struct.Struct("iIII")
"""Head of an event: watch, mask, cookie, length of the name that follows."""
_NOT_WATCHED = {".git", "site-packages", "dist-packages"} | {
    pattern.removesuffix("/**") for pattern in MADE_BY_PYTHON if pattern.endswith("/**")
}
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What the folder of a Python environment has in it."""


class Reads:
    """Notes files below some folders from now on, until the process ends: an audit hook cannot be removed.

    Children that are forked (a data loader's) note theirs in a file that this process reads.

    Parameters
    ----------
    folders
        The side's own folder, then further ones.
    watch
        Whether to find out which files of the first folder were opened without being noted, by this process or any
        other.
    """

    def __init__(self, *folders: str, watch: bool = False) -> None:
        self._folders = tuple(
            {f"{place.rstrip(os.sep)}{os.sep}" for folder in folders for place in (folder, os.path.realpath(folder))}
        )
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._elsewhere: set[str] = set()
        self._seen: dict[object, int] = {}
        """How many modules there were when a file was last opened in some way: more, and another module opens it."""
        self._at_import: set[tuple[str, str]] = set()
        self._notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as the process lives
        at = os.fstat(self._notes.fileno())
        self._place = at.st_dev, at.st_ino
        self._process = os.getpid()
        self.object_walks = 0
        """Calls since then that walk over all objects, other than garbage collections and this package's own."""

        def hear(event: str, args: tuple[Any, ...]) -> None:
            if event in _EVENTS:
                if event in _WALKS:
                    # Counted passes look for tensors, after the timed steps.
                    caller = sys._getframe().f_back
                    ours = caller is not None and str(caller.f_globals.get("__name__")).startswith(_OURS)
                    self.object_walks += not ours
                else:
                    self._opened(args)

        # Python asks hooks for an attribute at every event, of which a step has some (each `id`): a plain function is
        # asked ten times faster than a method, in 0.1 microseconds.
        sys.addaudithook(hear)
        self._watch = _FolderWatch(os.path.realpath(folders[0])) if watch else None

    def files(self) -> set[str]:
        """Files in the folders that were read and not written, by real path."""
        self.look()
        return self._known() - self._outputs()

    def unnoted(self) -> set[str] | None:
        """Files of the first folder that were opened, but not noted; `None` if that is unknown."""
        opened = None if self._watch is None or len(self._seen) >= _MOST else self._watch.opened()
        return None if opened is None else opened - self._known() - self._outputs()

    def elsewhere(self) -> set[str]:
        """Files of code in none of the folders: source code that was opened, libraries that are mapped."""
        self.look()
        return self._elsewhere

    def at_import(self) -> set[tuple[str, str]]:
        """Modules, each with a file that was opened while it was loaded: files of the folders' own code that exist."""
        tops = [Path(folder) for folder in self._folders]
        return {
            (name, path)
            for name, path in self._at_import
            if os.path.isfile(path)  # noqa: PTH113 - as elsewhere here, places are text
            and any(top in Path(path).parents and is_own(Path(path), top) for top in tops)
        }

    def look(self) -> None:
        """Note the files that are mapped now, such as libraries and the weights of a model."""
        with contextlib.suppress(OSError), open("/proc/self/maps", "rb") as maps:
            for line in maps:
                # "7f12... r--p 00000000 08:01 1234   /path of the file"; what is shared and writable is output.
                parts = line.split(maxsplit=5)
                if len(parts) == 6 and parts[1] not in (b"rw-s", b"-w-s"):
                    path = os.fsdecode(parts[5].rstrip(b"\n"))
                    if path.startswith(self._folders):
                        self._read.add(path)
                    elif b"x" in parts[1] and path.startswith(os.sep):
                        self._elsewhere.add(path)

    def _known(self) -> set[str]:
        """Files in the folders that were read, by real path."""
        with contextlib.suppress(OSError):
            self._notes.seek(0)
            for note in filter(None, self._notes.read().split(b"\0")):
                (self._read if note[:1] == b"r" else self._written).add(os.fsdecode(note[1:]))
        return {path for path in map(os.path.realpath, self._read) if path.startswith(self._folders)}

    def _outputs(self) -> set[str]:
        return set(map(os.path.realpath, self._written))

    def _opened(self, args: tuple[Any, ...]) -> None:
        # What is raised here would be raised by `open`.
        with contextlib.suppress(Exception):
            name, mode, flags = (*args, None, os.O_RDONLY)[:3]
            asked = name, mode, flags
            modules = len(sys.modules)
            if isinstance(name, int) or self._seen.get(asked) == modules or len(self._seen) >= _MOST:
                return
            text = os.fsdecode(name)
            if text.startswith("file:"):
                # A database's address: "file:data.db?mode=ro", "file:///data.db".
                text = text.removeprefix("file:").removeprefix("//").partition("?")[0]
            path = os.path.join(os.getcwd(), text)  # noqa: PTH118, PTH109 - called often
            if not path.startswith(self._folders):
                if path.endswith(".py"):
                    self._elsewhere.add(path)
                return
            self._seen[asked] = modules
            writes = not _WRITING.isdisjoint(mode) if mode else flags & os.O_ACCMODE != os.O_RDONLY
            (self._written if writes else self._read).add(path)
            # What imports a module is opened as text by modules that look at their callers' source.
            if not writes and not path.endswith((".py", ".pyi", ".pyc")):
                self._at_import.update((module, path) for module in being_loaded())
            if os.getpid() != self._process:
                self._note(b"w" if writes else b"r", path)

    def _note(self, kind: bytes, path: str) -> None:
        # A program that closes all descriptors may have opened a file of its own under this number.
        at = os.fstat(self._notes.fileno())
        if (at.st_dev, at.st_ino) == self._place:
            os.write(self._notes.fileno(), kind + os.fsencode(path) + b"\0")


class _FolderWatch:
    """Which files below a folder anybody opens from now on, in folders that are there already."""

    def __init__(self, folder: str) -> None:
        self._folders: dict[int, str] = {}
        self._descriptor = -1
        if sys.platform != "linux":
            return
        system = ctypes.CDLL(None)
        self._descriptor = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for place in _folders(folder):
            number = system.inotify_add_watch(self._descriptor, os.fsencode(place), _IN_OPEN) if place else -1
            if number < 0:
                self._close()
                return
            self._folders[number] = place
        if not self._folders:
            self._close()

    def opened(self) -> set[str] | None:
        """The files, by path; `None` if the system could not tell."""
        found = set()
        try:
            # A program that closes all descriptors may have opened a file of its own under this number.
            if os.readlink(f"/proc/self/fd/{self._descriptor}") != "anon_inode:inotify":  # noqa: PTH115
                return None
            while data := os.read(self._descriptor, 2**16):
                while data:
                    number, mask, _, length = _EVENT.unpack_from(data)
                    if mask & _IN_Q_OVERFLOW:
                        self._close()
                        return None
                    name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                    if name and not mask & _IN_ISDIR:
                        found.add(os.path.join(self._folders[number], os.fsdecode(name)))  # noqa: PTH118
                    data = data[_EVENT.size + length :]
        except BlockingIOError:
            pass
        except OSError:
            return None
        return found

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1


def _folders(folder: str) -> Iterator[str]:
    """A folder and those below it, without git's, Python's and environments; at last "" where there are too many."""
    waiting, entries = [folder], 0
    while waiting:
        place = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(place) as listed:
            inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in listed}
            if place != folder and not inside.keys().isdisjoint(_ENVIRONMENTS):
                continue
            yield place
            entries += len(inside)
            if entries > _MOST_ENTRIES:
                yield ""
                return
            below = (name for name, is_folder in inside.items() if is_folder and name not in _NOT_WATCHED)
            waiting += [os.path.join(place, name) for name in below]  # noqa: PTH118 - called often
