"""The stack of a process that did not end in time, as its user wants to see it."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import _pytest
import pluggy
import pytest

import pytest_perfdl

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_MACHINERY = (
    "<",
    *(str(Path(str(module.__file__)).parent) + "/" for module in (_pytest, pluggy, pytest, pytest_perfdl)),
)
"""Where the frames begin that are the same around every test: pytest's, ours, and code without a file."""
_PACKAGES = {"site-packages", "dist-packages"}
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def user_stack(text: str, root: str) -> tuple[str, str]:
    r"""The place in the user's code, and the stacks without pytest's and our own frames.

    Parameters
    ----------
    text
        What `faulthandler` wrote: the stack of each thread, the most recent call first, the main thread's last.
    root
        Folder that the place is relative to.

    Returns
    -------
    tuple[str, str]
        "train.py:12 in step" (empty where no frame is the user's), and the stacks. Threads without other frames are
        left out; where nothing would be left, the text is returned as it is.

    >>> user_stack('Thread 1:\n  File "/p/t.py", line 3 in step\n  File "<string>", line 9 in run', "/p")
    ('t.py:3 in step', 'Thread 1:\n  File "/p/t.py", line 3 in step')
    """
    kept, place = [], ""
    for head, *lines in (thread.split("\n") for thread in re.split(r"\n\s*\n", text)):
        frames = [match for line in lines if (match := _FRAME.match(line))]
        own = [match for match in frames if not match["file"].startswith(_MACHINERY)]
        if own:
            kept.append("\n".join((head, *(match[0] for match in own))))
            users = (match for match in own if not _is_installed(match["file"]))
            place = next((_place(match, root) for match in users), place)
    return place, "\n\n".join(kept) or text


def _is_installed(file: str) -> bool:
    """Whether a file is the standard library's or an installed package's, of this environment or of one below it."""
    return file.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(Path(file).parts)


def _place(frame: re.Match[str], root: str) -> str:
    path = Path(frame["file"])
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return f"{shown}:{frame['line']} in {frame['function']}"
