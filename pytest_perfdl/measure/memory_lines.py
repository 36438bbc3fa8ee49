"""Records a profiler range around every executed line of the user's code, so that allocations have a source line.

The profiler's stacks name functions by their first line, and record every frame of torch. Here Python's tracing records
the executed line; frames of torch, of installed packages and of the standard library cost one callback per function,
and their allocations belong to the line that called them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_perfdl.analysis.events.source_lines import is_user_code

LINE = "perfdl.line#"
"""Begins the name of a range; the number of its place follows."""
MOST_LINES = 2_000_000
"""Lines that are told of, each of which the profiler keeps: a setup may run many more of them than matter."""
NO_PLACE = 0
"""Number of the place outside of all of the user's code."""

_INSTALLED = tuple(
    {
        *(f"{Path(__file__).resolve().parents[1]}{os.sep}", "<"),
        *(f"{folder}{os.sep}" for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))),
    }
)
"""Beginnings of paths that are none of the user's, wherever they are: this package, Python's library, made-up code."""


class LineRanges:
    """Names the line of the user's code that this thread runs, from `start` to `stop`.

    A place is a line with the lines that led to it. Of a frame that Python makes up, such as a comprehension's, the
    line counts as its own.
    """

    def __init__(self) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self._range: Any = _RecordFunctionFast
        self._numbers: dict[tuple[int, CodeType, int], int] = {}
        self._places: list[tuple[int, CodeType, int] | None] = [None]
        self._is_user: dict[int, tuple[bool, CodeType]] = {}
        """By id of a code object: whether the code is the user's. Kept objects have unique ids."""
        self._stack: list[tuple[int, Any]] = []
        """For each user frame of this thread, the number of its line and its open range."""
        self._before: Any = None
        self._running = False
        self._left = MOST_LINES

    def start(self) -> None:
        """Begin with frames that are entered from now on."""
        self._before = sys.gettrace()
        self._running = True
        sys.settrace(self._called)

    def stop(self) -> None:
        """End, and let others trace who did before."""
        if self._running:
            self._running = False
            sys.settrace(self._before)
            while self._stack:
                self._close(self._stack.pop()[1])

    @property
    def gave_up(self) -> bool:
        """Whether there were more lines than are told of: what runs after them has none."""
        return self._left < 0

    def lines(self, place: int) -> tuple[str, ...]:
        """The lines of a place, "model.py(41): GPT.__init__", the innermost first."""
        found = []
        while (known := self._places[place]) is not None:
            place, code, line = known
            found.append(f"{_shown(code.co_filename)}({line}): {_name(code)}")
        return tuple(found)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        known = self._is_user.get(id(code))
        if known is None:
            known = self._is_user[id(code)] = _of_user(code), code
        if not known[0] or not self._running:
            return None
        self._stack.append((self._stack[-1][0] if self._stack else NO_PLACE, None))
        return self._local

    def _local(self, frame: FrameType, event: str, _arg: object) -> Any:
        if not self._running or not self._stack:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.stop()
                return None
            _, opened = self._stack.pop()
            self._close(opened)
            around = self._stack[-1][0] if self._stack else NO_PLACE
            key = (around, frame.f_code, frame.f_lineno)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._places)
                self._places.append(key)
            self._stack.append((number, self._opened(number)))
        elif event == "return":
            self._close(self._stack.pop()[1])
        return self._local

    def _opened(self, place: int) -> Any:
        opened = self._range(LINE + str(place))
        opened.__enter__()
        return opened

    @staticmethod
    def _close(opened: Any) -> None:
        if opened is not None:
            opened.__exit__(None, None, None)


def _of_user(code: CodeType) -> bool:
    path = code.co_filename
    return not path.startswith(_INSTALLED) and is_user_code(f"{path}({code.co_firstlineno}): f")


def _name(code: CodeType) -> str:
    """The qualified name, which Python has from 3.11 on; without the function that a local one is in."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]


_SHOWN: dict[str, str] = {}


def _shown(path: str) -> str:
    """A path from the entry of `sys.path` that holds it, as the profiler writes it."""
    if path not in _SHOWN:
        entries = (entry.rstrip("/\\") for entry in sys.path if entry)
        inside = [entry for entry in entries if path.startswith((f"{entry}/", f"{entry}\\"))]
        longest = max(inside, key=len, default="")
        _SHOWN[path] = path[len(longest) + 1 :] if longest else path
    return _SHOWN[path]
