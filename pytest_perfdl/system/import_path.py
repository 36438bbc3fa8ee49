"""What Python processes import that this package starts: a project's modules never replace those of the library.

`python -m` and `python -c` put the current folder first on `sys.path`, where every import would find a project's own
`json.py` or `secrets.py`. Python's option against this (`-P`) came with Python 3.11.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_STARTED_WITH = tuple(entry for entry in sys.path if isinstance(entry, str))
"""`sys.path` as it was when pytest loaded the plugin: before conftest files, and tests' folders, changed it."""
# Both need nothing but modules that every Python has loaded when its first line runs.
WITHOUT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path); "
"""First statements of a `-c` that needs nothing of the current folder."""
LIBRARY_FIRST = (
    "import os, sys; own = os.path.dirname(os.__file__); "
    "sys.path[:] = sorted((each or os.getcwd() for each in sys.path), "
    "key=lambda each: each != own and os.path.basename(each) != 'lib-dynload'); "
)
"""First statements of a `-c` that imports what `python -m` would, but for the standard library, which comes first."""
_OURS = (
    "import pytest; from pytest_perfdl.system.import_path import own_imports; sys.path[:] = path\n"
    "with own_imports():\n    from {module} import main\n"
)
_RUN = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def module_command(executable: str, module: str, *arguments: str, path: str = WITHOUT_FOLDER) -> list[str]:
    """The command line of `python -m MODULE ARGUMENTS`, with another `sys.path`."""
    return [executable, "-c", path + _RUN.format(module=module), *arguments]


def importing(module: str) -> str:
    """Statements of a `-c` under `own_path` that import `main` of a module of ours and set `sys.path` to `path`."""
    return _OURS.format(module=module)


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """Imports within are of `own_path`; a project's modules with names of the library's are found before and after."""
    path, ours = list(sys.path), own_path()
    theirs = {
        name: module for name, module in sys.modules.items() if _is_of_library(name) and _is_in(module, path, ours)
    }
    for name in theirs:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path[:] = ours
    try:
        yield
    finally:
        sys.path[:] = path
        added = [entry for entry in path if isinstance(entry, str) and entry not in ours]
        for name in filter(_is_of_library, set(sys.modules) - before):
            top = name.partition(".")[0]
            if any(Path(entry, file).is_file() for entry in added for file in (f"{top}.py", f"{top}/__init__.py")):
                del sys.modules[name]
        sys.modules.update(theirs)


def _is_of_library(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _is_in(module: object, path: list[str], ours: list[str]) -> bool:
    """Whether a module is a file in an entry of `sys.path` that came later."""
    file = getattr(module, "__file__", None) or ""
    return any(isinstance(entry, str) and entry not in ours and file.startswith(f"{entry}{os.sep}") for entry in path)


def own_path() -> list[str]:
    """The `sys.path` under which a process imports this package and pytest."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - entries of sys.path are texts
    return sorted(_STARTED_WITH, key=lambda entry: entry != library and not entry.endswith("lib-dynload"))
