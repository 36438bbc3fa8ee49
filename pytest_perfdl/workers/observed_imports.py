"""What a process observes while its test is imported: modules, environment variables, import hooks."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from pytest_perfdl.system import clocks
from pytest_perfdl.workers.messages import CallShown, Shown

_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
NOT_THE_TESTS = frozenset(("pytest_perfdl", "pytest", "_pytest", "pluggy"))
"""Packages that every worker loads before its test."""
_NOTES = ("PYTEST_", "_TORCHINDUCTOR_")
"""How variables begin that pytest keeps for others, and torch's compiler for the code that it writes."""
_HARMLESS_FINDERS = ("_SixMetaPathImporter", "MetadataPathFinder", "VendorImporter")
"""Finders that libraries in wide use put there for what they make up themselves, or for metadata alone."""


def third_party(name: str, module: object, names: Collection[str]) -> str:
    """File of a loaded module that is installed and neither the repository's nor pytest's; empty for all others.

    What pytest rewrites (its plugins, and what they register) is none: imported earlier it would stay as it is.

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
    return file if is_installed(file) and not _rewritten(module) else ""


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to something that was installed."""
    return any(place in file for place in _INSTALLED)


class Watch:
    """Looks on while a test loads, from its making on; `shown` is what was seen.

    It asks what the environment is whenever a module is looked for, by a finder on `sys.meta_path` that finds nothing.

    Parameters
    ----------
    names
        Top-level names of the repository's code.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._began = clocks.monotonic()
        self._first_call: float | None = None
        self._calls: list[CallShown] = []
        self._besides: set[str] = set()
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

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing."""
        if name.partition(".")[0] in sys.stdlib_module_names:
            return
        self._sought.setdefault(name, len(self._sought))
        now = _environment()
        if now != self._environment:
            before, self._environment = self._environment, dict(now)
            changed = {os.fsdecode(each) for each in {*now, *before} if now.get(each) != before.get(each)}
            changed = {each for each in changed if not each.startswith(_NOTES)}
            # What a module changes while it is loaded it changes wherever it is loaded.
            loader = next((each for each in being_loaded() if third_party(each, sys.modules[each], self._names)), None)
            if loader is not None:
                self._by.setdefault(loader, set()).update(changed)
            else:
                self._changed |= changed
        if self._changed:
            self._at[name] = frozenset(self._changed)

    def start_call(self) -> None:
        """A `perf(...)` call begins."""
        if self._first_call is None:
            self._first_call = clocks.monotonic()

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
        loaded = tuple(
            (name, file)
            for name, module in sorted(sys.modules.items(), key=self._place)
            if name not in self._modules and name not in left_out and (file := third_party(name, module, self._names))
        )
        modules = tuple((name, file) for name, file in loaded if name not in self._besides)
        known = {name for name, _ in modules}
        changed = {each for name, names in self._at.items() if name in known for each in names}
        changed |= {each for name, names in self._by.items() if name not in known for each in names}
        return Shown(
            modules=modules,
            besides=tuple((name, file) for name, file in loaded if name in self._besides),
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
