"""What Python processes import that this package starts: a project's modules never replace those of the library.

`python -m` and `python -c` put the current folder first on `sys.path`, where every import would find a project's own
`json.py` or `secrets.py`. Python's option against this (`-P`) came with Python 3.11.
"""

from __future__ import annotations

import os
import sys

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
_RUN = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def module_command(executable: str, module: str, *arguments: str, path: str = WITHOUT_FOLDER) -> list[str]:
    """The command line of `python -m MODULE ARGUMENTS`, with another `sys.path`."""
    return [executable, "-c", path + _RUN.format(module=module), *arguments]


def own_path() -> list[str]:
    """The `sys.path` under which a process imports this package and pytest."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - entries of sys.path are texts
    return sorted(_STARTED_WITH, key=lambda entry: entry != library and not entry.endswith("lib-dynload"))
